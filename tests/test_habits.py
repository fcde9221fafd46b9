"""How people of pandas begin: their tables, dates, horizons and notebooks. Truths are written out by hand or by pandas."""

from __future__ import annotations

import dataclasses
import functools

import jax
import numpy as np
import pandas as pd
import pytest
from test_mistakes import QUICK, untrained

import arcta
from arcta.data.seasons import find_seasons
from arcta.data.spans import span_of
from arcta.linear.find import find_structure
from arcta.predict.figures import components_over_time

DAYS = pd.date_range("2024-01-01", periods=40, freq="D")
VALUES = np.random.default_rng(0).standard_normal((40, 2))
WIDE = pd.DataFrame({"date": DAYS, "sales": VALUES[:, 0], "visits": VALUES[:, 1]})
INDEXED = WIDE.set_index("date")
PANEL = pd.concat({"north": INDEXED, "south": 2 * INDEXED}, names=["shop"])


@pytest.mark.parametrize(
    "source",
    [
        WIDE,
        INDEXED,
        WIDE[WIDE.sales < 99],
        WIDE.sample(frac=1, random_state=0).sort_values("date"),
        WIDE.melt("date"),
        INDEXED.stack().rename("value").rename_axis(["date", "variable"]).reset_index(),
        INDEXED.rename_axis(columns="channel").to_period("D"),
    ],
)
def test_a_table_is_the_same_series_however_it_is_laid_out(source):
    found = arcta.read(
        source, value="value" if "value" in source else None, variable="variable" if "variable" in source else None
    )
    assert found.channels == ("sales", "visits")
    np.testing.assert_array_equal(found.values, VALUES)
    assert (found.calendar.dates(found.times) == DAYS).all()


def test_a_long_table_is_found_by_its_names_and_said():
    with pytest.warns(UserWarning, match="read as a long table: 'variable' names the channels"):
        found = arcta.read(WIDE.melt("date"))
    np.testing.assert_array_equal(found.values, VALUES)


@pytest.mark.parametrize(
    "source", [PANEL, PANEL.swaplevel().sort_index(), PANEL.reset_index().set_index(["date", "shop"])]
)
def test_the_levels_of_an_index_tell_series_apart(source):
    north, south = arcta.read(source)
    assert (north.name, south.name) == ("north", "south")
    np.testing.assert_array_equal(north.values, VALUES)
    np.testing.assert_array_equal(south.values, 2 * VALUES)


def test_three_levels_are_joined():
    cube = pd.concat({"a": PANEL, "b": PANEL}, names=["chain"])
    assert [item.name for item in arcta.read(cube)] == ["a / north", "a / south", "b / north", "b / south"]


def test_columns_arrays_and_lists_of_them():
    import xarray as xr

    column = INDEXED["sales"]
    assert arcta.read(column).channels == ("sales",)
    assert arcta.read(column.to_numpy()).time_unit == "rows"
    np.testing.assert_array_equal(arcta.read(pd.Series([3.0, 1.0, 2.0])).times, [0, 1, 2])
    np.testing.assert_array_equal(arcta.read(VALUES).values, VALUES)
    assert [len(item) for item in arcta.read([VALUES, VALUES[:7]])] == [40, 7]
    assert len(arcta.read([1.0, 2.0, 4.0])) == 3
    array = xr.DataArray(VALUES, dims=("time", "what"), coords={"time": DAYS, "what": ["sales", "visits"]})
    assert arcta.read(array).channels == ("sales", "visits")
    np.testing.assert_array_equal(arcta.read(array).values, VALUES)
    one, other = arcta.read([WIDE, WIDE.assign(date=DAYS + pd.Timedelta("7D"))])
    assert other.times[0] - one.times[0] == 7  # on one clock


@pytest.mark.parametrize(
    "times",
    [
        DAYS,
        DAYS.to_numpy(),
        list(DAYS),
        [str(day.date()) for day in DAYS],
        DAYS.to_pydatetime(),
        DAYS.to_period("D"),
        DAYS.to_series(),
    ],
)
def test_dates_of_any_kind_are_times(times):
    series = arcta.Series(times, VALUES)
    assert series.time_unit == "d"
    np.testing.assert_array_equal(series.times, np.arange(40))
    assert (series.to_frame().index == DAYS).all()


def test_dates_of_months_count_months_and_zones_are_kept():
    months = pd.date_range("2024-01-31", periods=5, freq="ME", tz="Europe/Berlin")
    series = arcta.Series(months, np.arange(5.0))
    np.testing.assert_allclose(series.times, np.arange(5))
    assert (series.to_frame().index == months).all()
    assert arcta.Series(["2024", "2025"], [1.0, 2.0]).calendar is None  # numbers, as they always were
    minutes = arcta.Series(pd.timedelta_range("0s", periods=3, freq="min"), [1, 2, 3], time_unit="min")
    np.testing.assert_array_equal(minutes.times, [0, 1, 2])


@pytest.mark.parametrize(
    ("span", "unit", "step", "truth"),
    [
        ("14d", "d", 1.0, 14), ("2 weeks", "d", 1.0, 14), ("36h", "d", 1.0, 1.5), (pd.Timedelta("36h"), "d", 1.0, 1.5),
        (np.timedelta64(90, "m"), "h", 0.5, 1.5), (24, "d", 0.5, 12), (24.0, "d", 0.5, 24), ("12months", "month", 1.0, 12),
        ("1 year", "month", 1.0, 12), ("2 quarters", "month", 1.0, 6), ("7", "", 1.0, 7), (np.int64(3), "s", 2.0, 6),
    ],
)  # fmt: skip
def test_spans(span, unit, step, truth):
    assert span_of(span, unit, step) == pytest.approx(truth)


@functools.cache
def dated():
    return untrained(arcta.read(WIDE))


def test_a_horizon_is_a_number_of_steps_a_span_or_times():
    fit = dated()
    ahead = pd.date_range("2024-02-10", periods=5, freq="D")
    asked = [(5,), ("5d",), (pd.Timedelta("5D"),), (ahead,), (list(ahead),), ([str(day) for day in ahead],)]
    found = [fit.forecast(*one, num_samples=2) for one in asked] + [fit.forecast(horizon=5, num_samples=2)]
    for one in found:
        assert (one.to_frame().index == ahead).all()
        np.testing.assert_array_equal(one.mean, found[0].mean)
    assert fit.forecast(44.0, num_samples=2).times == [44.0]  # a float is a time,
    assert len(fit.forecast(horizon=4.0, num_samples=2).times) == 4  # as a horizon a span
    assert (fit.forecast(ahead[0], num_samples=2).to_frame().index == ahead[:1]).all()
    assert isinstance(fit.forecast("2d", quantiles=(0.5,)), arcta.Bands)
    early = fit.forecast(2, origin="2024-02-05", num_samples=2).to_frame().index
    assert (early == pd.DatetimeIndex(["2024-02-06", "2024-02-07"])).all()


def test_steps_of_months_end_with_them():
    months = pd.date_range("2020-01-31", periods=36, freq="ME")
    fit = untrained(arcta.read(pd.Series(np.sin(np.arange(36.0)), months, name="x")))
    assert (
        fit.forecast(14, num_samples=2).to_frame().index == pd.date_range("2023-01-31", periods=14, freq="ME")
    ).all()


def test_dates_wherever_a_time_is_meant():
    data, fit = arcta.read(WIDE), dated()
    for before, after in (arcta.split(WIDE, at="2024-01-30"), arcta.split(data, time=pd.Timestamp("2024-01-30"))):
        assert (len(before), len(after)) == (30, 10)
    assert len(arcta.split([data, data.replace(name="b")], at=np.datetime64("2024-01-30"))[0]) == 2
    inside = fit.smooth(WIDE, ["2024-01-03", "2024-01-04 12:00"], num_samples=2)
    np.testing.assert_array_equal(inside.times, [2, 3.5])
    drawn = fit.sample("3d", num_samples=2)
    assert (drawn.to_frame().index == DAYS[:4]).all()
    for horizon in (3, "3d", pd.Timedelta("3D"), 3.0):
        result = arcta.backtest(
            fit, WIDE, horizon=horizon, start="2024-02-01", num_origins=1, baselines=["last value"], num_samples=2
        )
        assert result.horizon == 3
        assert result.origins == [31.0]


def test_inputs_have_a_time_column_of_their_own():
    fit = untrained(arcta.read(WIDE.assign(heat=np.arange(40.0)), inputs="heat"))
    ahead = pd.date_range("2024-02-10", periods=3, freq="D")
    table = pd.DataFrame({"when": DAYS[-1:].append(ahead), "heat": [39.0, 1.0, 2.0, 3.0]})
    for known in (
        table,
        table.set_index("when"),
        table.assign(when=table["when"].astype(str)).rename(columns={"when": "date"}),
    ):
        found = fit.forecast(3, inputs=known, num_samples=2)
        np.testing.assert_array_equal(found.mean, fit.forecast(3, inputs=[[1.0], [2.0], [3.0]], num_samples=2).mean)


def test_fit_takes_model_and_data_in_either_spelling():
    spec = arcta.LatentSDE(encoder="window", posterior="amortised", partition_size=16, structure="none", latent_size=2)
    options = {"training": QUICK, "progress": False}
    found = [
        arcta.fit(spec, arcta.read(WIDE), **options),
        arcta.fit(WIDE, model=spec, **options),
        arcta.fit(INDEXED, model=spec, **options),
    ]
    for one in found[1:]:
        for a, b in zip(jax.tree.leaves(found[0].model), jax.tree.leaves(one.model), strict=True):
            np.testing.assert_array_equal(a, b)
    assert found[0].spec == spec


# What notebooks and the prompt show ------------------------------------------------------------------------------------


def test_what_is_shown_is_short_has_dates_and_is_escaped():
    data = arcta.read(WIDE.rename(columns={"sales": "<b>sales"})).replace(name="<script>")
    fit = untrained(data)
    ahead = fit.forecast(30, num_samples=2)
    bands = fit.forecast(30, quantiles=(0.1, 0.9))
    result = arcta.backtest(fit, data, horizon=3, num_origins=1, baselines=["last value"], num_samples=2)
    for thing in (data, fit, ahead, bands, result):
        text, shown = repr(thing), thing._repr_html_()
        assert "\n" not in text
        assert len(text) < 300
        assert "<script>" not in shown
        assert "<b>" not in shown
        assert len(shown) < 8000
    assert "2024-02-10" in repr(ahead)
    assert "2024-02-10" in ahead._repr_html_()
    assert repr(result) == "Backtest(1 origins, 3 d ahead, 2 channels, against 'last value')"
    assert ahead._repr_html_().count("<tr") < 12


# The core --------------------------------------------------------------------------------------------------------------


def test_windows_score_every_observation_once_and_a_seed_is_a_key():
    fit, data = dated(), arcta.read(WIDE)
    whole = fit.window(number=None)
    assert int(np.sum(whole.mask & whole.scored[..., None])) == data.mask.sum()
    one = arcta.window(fit, WIDE, 1)
    np.testing.assert_array_equal(one.values, whole.values[1])
    by_seed, by_key = (arcta.elbo(fit.model, one, num_draws=2, num_times=2, key=key) for key in (3, jax.random.key(3)))
    assert by_seed == by_key
    each = jax.vmap(lambda window: arcta.elbo(fit.model, window, num_draws=2, num_times=2, key=3))(whole)
    np.testing.assert_allclose(each.log_likelihood[1], by_seed.log_likelihood, rtol=1e-4)
    with pytest.raises(ValueError, match=r"3 windows; got number=9\. Use 0 to 2"):
        fit.window(number=9)
    with pytest.raises(ValueError, match=r"takes one window; got 3 of them"):
        arcta.elbo(fit.model, whole, key=0)


# Components ------------------------------------------------------------------------------------------------------------


def test_components_of_a_structure_are_the_true_ones():
    """A line, a season of 12 and noise, as a sum and as a product; parts and noise give the data back exactly."""
    t, rng = np.arange(120.0), np.random.default_rng(0)
    trend, season, noise = 0.05 * t, np.sin(2 * np.pi * t / 12), 0.1 * rng.standard_normal(120)
    for scale, values in (("identity", trend + season + noise), ("log", np.exp(1.0 + trend + season + noise))):
        series = arcta.Series(t, values, channels=["x"])
        fit = untrained(series, latent_size=2)
        structure = find_structure([series], find_seasons([series]))
        fit = dataclasses.replace(fit, structure=structure, by_structure=True, smooth_by_structure=True)
        frame = fit.components()
        assert frame.attrs["scales"] == {"x": scale}
        parts = frame["x"] if scale == "identity" else np.log(frame["x"])
        back = frame["x"].sum(axis=1) if scale == "identity" else frame["x"].prod(axis=1)
        np.testing.assert_allclose(back, values)
        assert next(iter(parts)) == "trend"
        name = next(part for part in parts if part.startswith("season"))
        assert abs(float(name.split()[1]) - 12) < 0.2
        away = parts[name] - season
        assert np.std(away) < 0.1  # a constant may be the season's or the trend's
        rest = parts.drop(columns=[name, "noise"]).sum(axis=1) - trend - (scale == "log")
        assert np.std(rest) < 0.1
        assert abs(np.std(parts["noise"]) / 0.1 - 1) < 0.3
        smooth, mean = fit.smooth(num_samples=400), frame["x"].drop(columns="noise")
        whole = mean.sum(axis=1) if scale == "identity" else mean.prod(axis=1)
        assert np.max(np.abs(whole / smooth.mean[:, 0] - 1)[np.abs(whole) > 0.5]) < 0.1
        assert len(components_over_time(frame).axes) == len(list(parts))


def test_components_of_the_state_add_up_to_the_smoothed_mean():
    fit, data = dated(), arcta.read(WIDE)
    frame = fit.components()
    assert frame.columns.names == ["channel", "part"]
    assert (frame.index == DAYS).all()
    for c, channel in enumerate(data.channels):
        parts = frame[channel]
        np.testing.assert_allclose(parts.sum(axis=1), data.values[:, c], rtol=1e-4)
        smooth = fit.smooth(data, num_samples=4000, key=1)
        error = np.std(smooth.signal[:, :, c], axis=0) / np.sqrt(4000)
        assert np.max(np.abs(parts.drop(columns="noise").sum(axis=1) - smooth.mean[:, c]) / error) < 5
    between = fit.components(times=["2024-01-03", "2024-01-03 12:00"])
    assert between[("sales", "noise")].isna().tolist() == [False, True]
    figure = components_over_time(frame, "visits")
    assert len(figure.axes) == frame["visits"].shape[1]
    counts = untrained(arcta.Series(DAYS, np.random.default_rng(0).poisson(3.0, 40)))
    with pytest.raises(ValueError, match=r"got the poisson likelihood of 'x0'\. Use fit\.smooth"):
        counts.components()
