"""Seasons: found where they are, at any times, with gaps and trends; not where they are not (`benchmarks/seasons.py` counts)."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import arcta
from arcta.data.seasons import find_seasons


def found(times: np.ndarray, values: np.ndarray) -> list[float]:
    return [season.period for season in find_seasons([arcta.Series(times, values)])]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("sampling", ["regular", "irregular", "gap", "missing"])
def test_two_periods_a_trend_and_noise(seed, sampling):
    rng = np.random.default_rng(seed)
    n = 400
    t = np.cumsum(rng.exponential(1.0, n)) if sampling == "irregular" else np.arange(float(n))
    x = 0.01 * t + np.cos(2 * np.pi * t / 12) + 0.4 * np.cos(4 * np.pi * t / 12 + 1) + np.sin(2 * np.pi * t / 31.3)
    x += 0.5 * rng.standard_normal(n)
    kept = np.ones(n, bool)
    if sampling == "gap":
        kept[150:210] = False
    if sampling == "missing":
        kept = rng.random(n) > 0.3
    assert sorted(found(t[kept], x[kept])) == [pytest.approx(12, rel=0.02), pytest.approx(31.3, rel=0.03)]


@pytest.mark.parametrize("kind", ["white", "autoregression", "walk", "line"])
def test_no_season_is_invented(kind):
    """At most one in twelve; over 300 series `benchmarks/seasons.py` counts fewer than 2 %."""
    wrong = 0
    for seed in range(12):
        rng = np.random.default_rng(100 + seed)
        e = rng.standard_normal(300)
        if kind == "autoregression":
            for i in range(1, 300):
                e[i] += 0.8 * e[i - 1]
        x = {"walk": np.cumsum(e), "line": np.arange(300) * 0.1 + 0.01 * e}.get(kind, e)
        wrong += bool(found(np.arange(300.0), x))
    assert wrong <= 1


def dated(values: np.ndarray, start: str, step: str) -> arcta.Series:
    return arcta.read(pd.DataFrame({"x": values}, index=pd.date_range(start, periods=len(values), freq=step)))


def test_the_calendar_names_them():
    rng = np.random.default_rng(0)
    months, quarters, hours = np.arange(72), np.arange(48), np.arange(24 * 7 * 10)
    monthly = np.sin(2 * np.pi * months / 12) + 0.02 * months + 0.3 * rng.standard_normal(72)
    quarterly = np.sin(2 * np.pi * quarters / 4) + 0.3 * rng.standard_normal(48)
    hourly = np.sin(2 * np.pi * hours / 24) + (hours // 24 % 7 >= 5) + 0.3 * rng.standard_normal(len(hours))
    assert [s.name for s in find_seasons([dated(monthly, "2010-01-31", "ME")])] == ["year"]
    assert [s.name for s in find_seasons([dated(quarterly, "2010-01-01", "QS")])] == ["year"]
    assert {s.name for s in find_seasons([dated(hourly, "2024-01-01", "h")])} == {"day", "week"}


def test_five_minute_data_cut_at_night():
    rng = np.random.default_rng(1)
    minutes = np.arange(0, 14 * 1440, 5)
    day = minutes[(minutes % 1440 >= 360) & (minutes % 1440 < 1320)]
    x = np.sin(2 * np.pi * day / 1440) + 0.3 * np.sin(4 * np.pi * day / 1440) + 0.2 * rng.standard_normal(len(day))
    index = pd.Timestamp("2024-03-01") + pd.to_timedelta(day, unit="min")
    seasons = find_seasons([arcta.read(pd.DataFrame({"x": x}, index=index))])
    assert [s.name for s in seasons] == ["day"]
    assert seasons[0].period == pytest.approx(1440)
    assert "(a day)" in seasons[0].words("min")


def test_a_record_that_was_cut_keeps_its_season():
    """Two days at a time, from one clock: no piece alone has seen the day come back."""
    rng, t = np.random.default_rng(0), np.arange(1200.0)
    x = np.sin(2 * np.pi * t / 24) + 0.3 * rng.standard_normal(1200)
    pieces = [arcta.Series(t[i : i + 40], x[i : i + 40], name=f"piece {i}") for i in range(0, 1200, 40)]
    assert [round(season.period) for season in find_seasons(pieces)] == [24]
    together = [arcta.Series(t[:40], x[i : i + 40], name=f"piece {i}") for i in range(0, 1200, 40)]
    assert find_seasons(together) == []  # from many clocks
