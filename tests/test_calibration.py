"""Posteriors of a law's parameters, diffusion, noise and states: ranks of the truth over data sets, and widths beside the exact.

`arcta study calibration` asks the same of four laws; this is its linear one, with fewer data sets.

False alarms: a posterior whose z have a root mean square between 1/1.25 and 1.25 fails with a probability below 1e-6, over all its
quantities together (χ² bounds, each at 1e-6 / 14). Found in nine of ten runs: a reported standard deviation that is too small by a
factor of 2.4, or too large by one of 3.0; beside the exact posterior, where random numbers of the data cancel, one of 1.25.
"""

from __future__ import annotations

import json
import runpy

import numpy as np
import pytest
from scipy import stats

from arcta.outside import page
from arcta.outside.study import FOLDER

COUNT, STEPS, TOLERATED, RATE = 40, 400, 1.25, 1e-6


@pytest.fixture(scope="module")
def found():
    study = runpy.run_path(str(FOLDER / "calibration.py"))
    return study["measure_posteriors"](STEPS, COUNT, "ou", 0, COUNT)


def bounds(count: int, tests: int) -> tuple[float, float]:
    """Between which Σ z² lies but with probability RATE / tests, if the root mean square of z is anywhere that is tolerated."""
    tail = RATE / tests / 2
    return float(stats.chi2.ppf(tail, count)) / TOLERATED**2, float(stats.chi2.isf(tail, count)) * TOLERATED**2


def test_what_the_bounds_find():
    """The factors in the docstring."""
    low, high = bounds(COUNT, 7)
    assert 2.3 < np.sqrt(high / stats.chi2.ppf(0.1, COUNT)) < 2.45
    assert 2.9 < np.sqrt(stats.chi2.ppf(0.9, COUNT) / low) < 3.1


def test_truths_are_where_posteriors_say(found):
    assert len(found["z"]) == 7
    low, high = bounds(COUNT, len(found["z"]))
    for name, z in found["z"].items():
        assert low < np.sum(np.square(z)) < high, f"{name}: root mean square {np.sqrt(np.mean(np.square(z))):.2f}"


def test_the_study_is_right_the_exact_posterior_has_uniform_ranks(found):
    tail = RATE / len(found["exact"]) / 2
    for name, z in found["exact"].items():
        assert stats.chi2.ppf(tail, COUNT) < np.sum(np.square(z)) < stats.chi2.isf(tail, COUNT), name
        assert abs(np.mean(z)) * COUNT**0.5 < stats.norm.isf(tail), name


def test_widths_are_those_of_the_exact_posterior(found):
    """Of log rate, level, log diffusion and log noise, medians over the data sets."""
    ratios = {name: float(np.median(values)) for name, values in found["width"].items()}
    assert all(0.8 < ratio < 1.25 for ratio in ratios.values()), ratios


def test_a_report_says_what_the_study_found():
    stored = json.loads((FOLDER / "results" / "calibration" / "result.json").read_text())["summary"]["table"]
    np.testing.assert_allclose(page.SPREAD, stored["std"], atol=0.0051)
    np.testing.assert_allclose(page.BIAS, stored["mean"], atol=0.0051)
