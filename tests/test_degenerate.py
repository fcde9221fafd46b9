"""Data with next to nothing in it, or with gaps and horizons beyond all others: what can be said is said, in bounded time."""

from __future__ import annotations

import warnings

import jax.numpy as jnp
import numpy as np
import pytest
from stochastic import assert_same_mean

import arcta
from arcta.data.moments import average, deviation, moments, root_mean_square
from arcta.data.scaling import Scaling
from arcta.model.reading import read_data
from arcta.predict.solve import plan

QUICK = arcta.Training(steps=20)
T = np.arange(60.0)
WAVE = np.sin(T / 4) + 0.1 * np.random.default_rng(0).standard_normal(60)
STILL = {
    "one beside others": np.stack([WAVE, np.full(60, 5.0)], axis=1),
    "alone": np.full(60, -3e-200),
    "no count at all": np.zeros(60),
    "seen once": np.stack([WAVE, np.where(T == 20, 3.0, np.nan)], axis=1),
}
OTHERS = {
    "alternating": T % 2,
    "twins": np.stack([WAVE, WAVE], axis=1),
    "sums of others": np.stack([WAVE, WAVE[::-1], WAVE + 2 * WAVE[::-1]], axis=1),
    "denormal": np.round(100 * WAVE) * 5e-322,
}


@pytest.mark.parametrize("size", [1e-300, 1e-160, 1e-12, 1.0, 1e12, 1e160, 1e300])
def test_moments_are_those_of_exact_arithmetic(size):
    from fractions import Fraction

    x = size * WAVE[:, None] + 1e3 * size
    exact = [Fraction(float(v)) for v in x[:, 0]]
    mean = sum(exact) / len(exact)
    variance = sum((v - mean) ** 2 for v in exact) / len(exact) / Fraction(size) ** 2
    found = moments(x, np.ones_like(x, bool))
    np.testing.assert_allclose(found.mean[0], float(mean), rtol=1e-14)
    np.testing.assert_allclose(found.deviation[0] / size, float(variance) ** 0.5, rtol=1e-12)
    np.testing.assert_allclose(average(x)[0], float(mean), rtol=1e-14)
    np.testing.assert_allclose(deviation(x)[0] / size, float(variance) ** 0.5, rtol=1e-10)
    np.testing.assert_allclose(root_mean_square(np.array([3.0, 4.0]) * size / 5), size * np.sqrt(0.5), rtol=1e-14)


@pytest.mark.parametrize("values", [*STILL.values(), *OTHERS.values()], ids=[*STILL, *OTHERS])
@pytest.mark.filterwarnings("ignore")
def test_what_the_data_says_is_finite(values):
    layout, reading = read_data(arcta.LatentSDE(), arcta.Series(T, values))
    numbers = [*layout.scaling.scale, layout.scaling.time_scale, reading.bandwidth, *reading.noise, *reading.means]
    assert np.isfinite(numbers).all()
    assert (layout.scaling.scale > 0).all()


@pytest.mark.slow
@pytest.mark.parametrize("values", [*STILL.values(), *OTHERS.values()], ids=[*STILL, *OTHERS])
@pytest.mark.filterwarnings("ignore")
def test_every_verb_works_where_there_is_little_to_learn(values, tmp_path):
    series = arcta.Series(T, values)
    fit = arcta.fit(arcta.LatentSDE(), series, training=QUICK, holdout=0.2, progress=False)
    ahead = fit.forecast(T[-1] + np.arange(1.0, 6.0), num_samples=64)
    for said in (ahead, fit.smooth(num_samples=8), fit.sample(T[:9])):
        assert np.isfinite(said.observations).all()
        assert np.isfinite(said.signal).all()
    assert np.isfinite(fit.score()["rmse"])
    assert arcta.backtest(fit, series, horizon=5.0, num_origins=2, num_samples=16).verdict()
    assert arcta.report(fit, tmp_path, num_origins=2).exists()


@pytest.mark.filterwarnings("ignore:.*never vary")
def test_a_constant_is_forecast_to_stay_one_with_a_tiny_spread():
    fit = arcta.fit(arcta.LatentSDE(), arcta.Series(T, STILL["one beside others"]), training=QUICK, progress=False)
    assert fit.about["evidence"]["structure"] < 5, "a constant is certain beyond bounds and must not count as evidence"
    ahead = fit.forecast(T[-1] + np.arange(1.0, 6.0), num_samples=64).observations[..., 1]
    assert np.abs(ahead - 5).max() < 1e-5
    assert ahead.std() > 0


def test_values_too_large_to_compute_with_are_refused():
    with pytest.raises(ValueError, match=r"row 3, channel 'x0'.*larger unit"):
        read_data(arcta.LatentSDE(), arcta.Series(T, np.where(T == 3, 1e307, WAVE)))


def test_a_gap_changes_no_reading_of_the_time_scale():
    late = np.where(T < 40, T, T + 1e6)
    whole, split = (Scaling.fit([arcta.Series(t, WAVE)], np.array([True])).time_scale for t in (T, late))
    assert split == pytest.approx(whole, rel=0.15)


def test_steps_are_bounded_and_short_horizons_untouched():
    near = plan(np.arange(1, 100.0), 0.025, 40_000)
    assert near.longest is None
    assert near.substeps.sum() == 99 * 40
    far = plan(np.array([1.0, 2.0, 1e6, 1e9]), 0.025, 40_000)
    assert far.substeps.sum() <= 40_000
    assert list(far.substeps[:2]) == [40, 40], "what can be walked whole is"
    np.testing.assert_allclose((np.array([1.0, 2.0, 1e6, 1e9]) - far.begins) / far.substeps, 0.025, rtol=1e-6)
    dense = plan(0.025 * np.arange(1, 50_001), 0.025, 40_000)
    assert dense.longest is None, "each of these times was asked for"


@pytest.mark.filterwarnings("ignore:.*trained anew", "ignore:.*posterior")
def test_a_forecast_a_million_steps_ahead_is_the_settled_law_and_said_to_be():
    fit = arcta.fit(arcta.LatentSDE(structure="none"), arcta.Series(T, WAVE), training=QUICK, progress=False)
    with pytest.warns(UserWarning, match=r"solver steps.*max_step"):
        far = fit.forecast([T[-1] + 1.0, T[-1] + 1e6], num_samples=128)
    assert np.isfinite(far.observations).all()
    near = fit.forecast([T[-1] + 1.0], num_samples=128)
    # Five standard errors of the difference of two means of 128.
    assert_same_mean(far.signal[:, 0, 0], near.signal[:, 0, 0], detects=1.2 * near.signal[:, 0].std())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit.forecast(T[-1] + np.arange(1.0, 20.0), num_samples=8)


def physics(function):
    k = {"k": arcta.LogNormal(1.0, 1.0)}
    return arcta.LatentSDE(decoder="identity", drift=function, parameters=k, structure="none", posterior="amortised")


ROUND = arcta.Series(T / 6, np.stack([np.cos(T / 6), -np.sin(T / 6)], axis=1))


def test_a_drift_that_fails_where_the_data_starts_is_refused_before_training():
    with pytest.raises(
        ValueError, match=r"your drift returned nan in component 1 at t=0, z=\[1, .*\], where the data starts"
    ):
        arcta.fit(physics(lambda t, z, p, u: [z[1], -p["k"] * jnp.log(-1 - t)]), ROUND, progress=False)


def test_a_drift_that_fails_later_is_named_not_the_learning_rate():
    with pytest.raises(
        arcta.TrainingDiverged, match=r"your drift returned nan in component 1 at t=\d.*z=\[-"
    ) as caught:
        arcta.fit(physics(lambda t, z, p, u: [z[1], -p["k"] * jnp.sqrt(z[0])]), ROUND, training=QUICK, progress=False)
    assert "learning_rate" not in str(caught.value)


def test_a_drift_that_fails_ahead_is_named_with_the_time():
    model = physics(lambda t, z, p, u: [z[1], -p["k"] * z[0] + jnp.where(t > 20, jnp.nan, 0.0)])
    fit = arcta.fit(model, ROUND, training=QUICK, progress=False)
    with pytest.raises(FloatingPointError, match=r"your drift returned nan in component 1 at t=20\."):
        fit.forecast(np.linspace(10, 30, 20), num_samples=8)
    with pytest.raises(ValueError, match=r"steps of your own drift.*max_step"):
        fit.forecast([1e7], num_samples=8)
