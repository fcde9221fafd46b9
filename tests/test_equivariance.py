"""Units are the user's affair: what is said of a x + b at times c t + d is what is said of x at t, in those units.

Positive data has scales of its own (root, logarithm), for which only x → a x with a > 0 is a change of units; counts have none.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest

import arcta
from arcta.data.seasons import find_seasons
from arcta.linear.find import find_structure
from arcta.model.reading import read_data
from arcta.predict.classical import BASELINES
from arcta.predict.structural import tell

N = 72
T = np.arange(N) * 1.0
RNG = np.random.default_rng(3)
SIGNED = np.sin(2 * np.pi * T / 12) + 0.3 * np.cumsum(RNG.standard_normal(N)) + 0.1 * RNG.standard_normal(N)
SIGNED = SIGNED - SIGNED.mean()
POSITIVE = np.exp(0.5 * SIGNED)
UNITS = [  # a, b, c, d
    (1e-12, 0.0, 1.0, 0.0), (1e12, 0.0, 1.0, 0.0), (1e-200, 0.0, 1.0, 0.0), (1e250, 0.0, 1.0, 0.0), (-1.0, 0.0, 1.0, 0.0),
    (1.0, 1e6, 1.0, 0.0), (-1e-12, 1e-6, 1.0, 0.0), (1.0, 0.0, 1e-12, 0.0), (1.0, 0.0, 1e12, 0.0), (1.0, 0.0, 1.0, 1e9),
    (3e7, -4e11, 7e-9, 1e-3),
]  # fmt: skip
QUICK = (UNITS[2], UNITS[6], UNITS[10])
INFLATED = [unit for unit in UNITS if unit[0] > 0 and unit[1] == 0]


def told(x: np.ndarray, unit: tuple[float, float, float, float]):
    """Seasons, structure and log densities of two values ahead, in units of x and t."""
    a, b, c, d = unit
    series = arcta.Series(c * T + d, a * x + b)
    seasons = find_seasons([series])
    structure = find_structure([series], seasons)
    layout, reading = read_data(arcta.LatentSDE(), series)
    ahead, inside = c * np.array([73.0, 80.5]) + d, c * np.array([20.3, 50.0]) + d
    densities = [
        tell(structure, layout, series, times, np.zeros((2, 0)), num_samples=4, seed=0).log_density(
            a * np.array([[x[-1]], [x[-1] + 0.2]]) + b
        )
        + np.log(abs(a))
        for times in (ahead, inside)
    ]
    return {
        "periods": [season.period / c for season in seasons],
        "words": structure.words(series.channels),
        "densities": np.concatenate(densities)[:, 0],
        "time scale": layout.scaling.time_scale / c,
        "noise": reading.noise,
        "latent size": reading.latent_size,
    }


def assert_same(ours, theirs, rtol: float):
    assert ours["words"] == theirs["words"]
    assert ours["latent size"] == theirs["latent size"]
    for name in ("periods", "densities", "time scale", "noise"):
        np.testing.assert_allclose(ours[name], theirs[name], rtol=rtol, atol=rtol, err_msg=name)


@functools.cache
def usual(name: str):
    return told({"signed": SIGNED, "positive": POSITIVE}[name], (1.0, 0.0, 1.0, 0.0))


@pytest.mark.parametrize(
    "unit", [unit if unit in QUICK else pytest.param(unit, marks=pytest.mark.slow) for unit in UNITS], ids=str
)
def test_structures_and_readings_of_signed_data(unit):
    assert_same(told(SIGNED, unit), usual("signed"), rtol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("unit", INFLATED, ids=str)
def test_structures_and_readings_of_positive_data(unit):
    assert_same(told(POSITIVE, unit), usual("positive"), rtol=1e-3)


@pytest.mark.parametrize("name", BASELINES)
@pytest.mark.parametrize("unit", [UNITS[1], UNITS[3], UNITS[10]], ids=str)
def test_the_forecasts_to_beat(name, unit):
    def forecast(a: float, b: float, c: float, d: float) -> tuple[np.ndarray, ...]:
        series = arcta.Series(c * T + d, a * SIGNED + b)
        mean, std = BASELINES[name]([series])(series, c * np.array([73.0, 80.0]) + d)
        return (mean - b) / a, std / abs(a)

    for ours, theirs in zip(forecast(*unit), forecast(1.0, 0.0, 1.0, 0.0), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-2, atol=1e-2)


@pytest.mark.slow
@pytest.mark.parametrize("unit", [UNITS[0], UNITS[1], UNITS[3], UNITS[5], UNITS[7], UNITS[9]], ids=str)
def test_the_latent_sde(unit):
    def said(a: float, b: float, c: float, d: float) -> tuple[np.ndarray, ...]:
        series = arcta.Series(c * T + d, a * SIGNED + b)
        spec, training = arcta.LatentSDE(structure="none"), arcta.Training(steps=20)
        fit = arcta.fit(spec, series, training=training, progress=False)
        ahead, inside = fit.forecast(c * np.array([73.0, 76.0]) + d), fit.smooth(series, c * np.array([10.5, 40.0]) + d)
        return tuple((s.observations - b) / a for s in (ahead, inside))

    for ours, theirs in zip(said(*unit), said(1.0, 0.0, 1.0, 0.0), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0.02, atol=0.02)
