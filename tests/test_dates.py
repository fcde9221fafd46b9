"""Dates written in every format, with every separator and zone, come back as they were or are refused; none is misread."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pandas as pd
import pytest

import arcta
from arcta.data.calendar import Calendar
from arcta.data.dates import Ambiguous, DateError, read_dates
from arcta.data.read import reading
from arcta.data.readers.source import Options

DAYS = {
    "Y{s}m{s}d": "%Y{s}%m{s}%d",
    "d{s}m{s}Y": "%d{s}%m{s}%Y",
    "m{s}d{s}Y": "%m{s}%d{s}%Y",
    "d{s}m{s}y": "%d{s}%m{s}%y",
    "m{s}d{s}y": "%m{s}%d{s}%y",
    "y{s}m{s}d": "%y{s}%m{s}%d",
    "d{s}b{s}Y": "%d{s}%b{s}%Y",
    "d{s}B{s}y": "%d{s}%B{s}%y",
    "b{s}d, Y": "%b{s}%d, %Y",
    "Y{s}b{s}d": "%Y{s}%b{s}%d",
}
SEPARATORS = ["-", "/", ".", " "]
CLOCKS = {"none": "", "minutes": " %H:%M", "seconds": " %H:%M:%S", "T": "T%H:%M:%S", "half": " %I:%M %p",
          "fraction": " %H:%M:%S.%f", "dots": " %H.%M.%S"}  # fmt: skip
ZONES = ["", "Z", "+02:00", "-0530", "+00", " UTC"]
STARTS = ["2020-01-01", "2021-11-25", "1999-12-28 06:00"]
STEPS = ["1D", "6h", "35min", "9D"]


def offset_of(zone: str) -> pd.Timedelta:
    match = re.fullmatch(r"([+-])(\d\d):?(\d\d)?", zone)
    if match is None:
        return pd.Timedelta(0)
    return (1 if match[1] == "+" else -1) * pd.Timedelta(hours=int(match[2]), minutes=int(match[3] or 0))


def written(dates: pd.DatetimeIndex, form: str, separator: str, clock: str, zone: str) -> list[str]:
    pattern = DAYS[form].format(s=separator) + CLOCKS[clock]
    return [date.strftime(pattern) + zone for date in dates]


def grid() -> list[tuple[str, str, str, str]]:
    """Every format with every separator, clock and zone; a zone needs a clock."""
    every = itertools.product(DAYS, SEPARATORS, CLOCKS, ZONES)
    return [(form, s, clock, zone) for form, s, clock, zone in every if clock != "none" or not zone]


def meant(dates: pd.DatetimeIndex, clock: str) -> pd.DatetimeIndex:
    """What a clock keeps of dates."""
    return dates.floor({"none": "D", "minutes": "min", "half": "min"}.get(clock, "us"))


def check_grid(form: str, spans: list[tuple[str, str]]) -> tuple[int, int]:
    """How many columns of a format were tried, and how many were refused for two readings that differ; the rest were right."""
    count = refused = 0
    for i, (_, separator, clock, zone) in enumerate(cell for cell in grid() if cell[0] == form):
        for start, step in spans or [(STARTS[i % len(STARTS)], STEPS[i % len(STEPS)])]:
            dates = pd.date_range(start, periods=40, freq=step if clock != "none" else "1D")
            want = meant(dates, clock) - offset_of(zone)
            cells = written(dates, form, separator, clock, zone)
            count += 1
            try:
                found = [read_dates(cells)]
                assert (found[0].offsets is not None) == bool(zone)
            except Ambiguous:
                refused += 1
                found = [read_dates(cells, day_first=first) for first in agreed(form)]
            assert all((one.to_index().tz_localize(None) == want).all() for one in found), (cells[:3], found[0].words)
    return count, refused


@pytest.mark.parametrize("form", DAYS)
def test_what_is_written_is_read_or_refused(form):
    """Every format with every separator, clock and zone. With 40 days or 10 in hours, most tell their order."""
    count, refused = check_grid(form, [])
    assert count == len(SEPARATORS) * (1 + (len(CLOCKS) - 1) * len(ZONES))
    assert refused < count / 2


@pytest.mark.slow
@pytest.mark.parametrize("form", DAYS)
def test_the_whole_grid(form):
    check_grid(form, list(itertools.product(STARTS, STEPS)))


def agreed(form: str) -> list[bool]:
    """What a user who knows the format would say of it; not enough if two digits at the end may be a day."""
    return {"d": [True], "m": [False]}.get(form[0], []) if "y" not in form or form[0] == "d" else []


@pytest.mark.parametrize("seed", range(20))
def test_day_and_month_are_never_exchanged(seed):
    """Random dates that leave the order open by chance, too: right, or refused."""
    rng = np.random.default_rng(seed)
    for _ in range(20):
        form = ["%d/%m/%Y", "%m/%d/%Y", "%d.%m.%y %H:%M", "%m-%d-%Y %H:%M"][rng.integers(4)]
        steps = rng.integers(1, [3, 40, 200][rng.integers(3)], size=rng.integers(1, 12))
        dates = pd.Timestamp("2019-01-01") + pd.to_timedelta(np.cumsum(steps), unit="D")
        cells = list(dates.strftime(form))
        try:
            found = read_dates(cells)
        except Ambiguous:
            continue
        assert (found.to_index() == dates).all(), cells


@pytest.mark.parametrize("form", ["%Y-%m-%d %H:%M", "%d/%m/%Y %H:%M", "%b %d, %Y %I:%M %p"])
@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Pacific/Auckland", "Asia/Kolkata", "UTC"])
def test_a_year_of_local_hours_comes_back_through_both_changes_of_clocks(tmp_path, form, zone):
    dates = pd.date_range("2023-12-25", "2024-12-31", freq="h", tz=zone)
    table = pd.DataFrame({"date": dates.strftime(form), "x": np.arange(len(dates))})
    path = tmp_path / "a.csv"
    table.to_csv(path, index=False)
    series = reading(path, Options(time_zone=zone)).series[0]
    assert series.calendar is not None
    assert (series.calendar.dates(series.times) == dates).all()


def test_the_same_dates_as_text_and_as_dates_are_one_series(tmp_path):
    dates = pd.date_range("2024-02-28", periods=30, freq="7h")
    plain = reading(pd.DataFrame({"date": dates, "x": range(30)})).series[0]
    for form in ("%Y-%m-%dT%H:%M:%S", "%d/%m/%Y %H:%M", "%d-%b-%Y %H:%M:%S", "%Y%m%d%H%M%S"):
        text = reading(pd.DataFrame({"date": dates.strftime(form), "x": range(30)})).series[0]
        np.testing.assert_array_equal(text.times, plain.times)
        assert text.calendar == plain.calendar


def test_times_asked_for_are_read_as_carefully_as_those_of_a_file():
    calendar = Calendar("2024-01-01", "d")
    with pytest.raises(ValueError, match="'01/02/2024' may be day/month/year or month/day/year"):
        calendar.numbers(["01/02/2024"])
    np.testing.assert_array_equal(calendar.numbers(["01/02/2024"], day_first=True), [31])
    with pytest.raises(ValueError, match="'2024-02-30'"):
        calendar.numbers(["2024-02-30"])
    local = Calendar("2024-03-30T23:00:00", "h", "Europe/Berlin")
    np.testing.assert_array_equal(local.numbers(["2024-03-31 01:00", "2024-03-31 03:00"]), [1, 2])
    with pytest.raises(ValueError, match="nonexistent"):
        local.numbers(["2024-03-31 02:30"])


def test_dates_far_apart_come_back():
    dates = pd.DatetimeIndex(["1200-01-01", "1583-02-28", "2999-12-31"])
    series = arcta.read(pd.DataFrame({"date": dates, "x": [1, 2, 3]}))
    assert series.calendar is not None
    assert (series.calendar.dates(series.times) == dates).all()
    with pytest.raises(ValueError, match=r"1000 to 2999; row 1, .* 9999-12-31"):
        arcta.read(pd.DataFrame({"date": pd.DatetimeIndex(["2020-01-01", "9999-12-31"]), "x": [1, 2]}))
    with pytest.raises(ValueError, match="100,000 years"):
        series.calendar.dates([1e12])


def test_days_that_do_not_exist_are_refused_in_every_format():
    for form, separator in itertools.product(("{y}{s}{m}{s}{d}", "{d}{s}{m}{s}{y}", "{m}{s}{d}{s}{y}"), SEPARATORS):
        for y, m, d in ((2023, 2, 29), (2024, 2, 30), (2024, 4, 31), (1900, 2, 29), (2024, 13, 13), (2024, 0, 20)):
            cells = [form.format(y=y, m=f"{m:02d}", d=f"{d:02d}", s=separator)]
            with pytest.raises(DateError):
                read_dates(cells)


def test_a_joined_air_quality_table_keeps_every_hour(tmp_path):
    """As the file of UCI stands: day first, clocks with dots, decimal commas, -200 for missing, empty columns and rows."""
    dates = pd.date_range("2004-03-10 18:00", periods=400, freq="h")
    lines = [f"{d:%d/%m/%Y};{d:%H.%M.%S};{i % 7},{i % 10};{-200 if i % 50 == 0 else i};;" for i, d in enumerate(dates)]
    path = tmp_path / "air.csv"
    path.write_text("\n".join(["Date;Time;CO(GT);PT08;;", *lines, ";;;;;", ";;;;;"]))
    found = reading(path, Options(missing=(-200,)))
    series = found.series[0]
    assert series.calendar is not None
    assert (series.calendar.dates(series.times) == dates).all()
    np.testing.assert_array_equal(series.values[:, 0], [float(f"{i % 7}.{i % 10}") for i in range(400)])
    assert (~series.mask[:, 1]).sum() == 8
    assert any("are joined" in note for note in found.notes)
    assert any("day/month/year" in note for note in found.notes)
