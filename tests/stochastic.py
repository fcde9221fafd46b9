"""Statistical tests with two error rates: a right program fails with probability `RATE` at most, and one that is off by the stated
discrepancy `detects` passes with probability 1 − `POWER` at most, or the test says how many samples it needs.

    tolerance t:   P(|x̄ − μ| > t + slack) ≤ RATE,      detects ≥ slack + t + margin,      P(x̄ deviates by margin) ≤ 1 − POWER

RATE is that of a whole call: among the entries of an array it is shared out (Bonferroni). `slack` is a bias that is allowed: a
discretisation, float32. Seeds are fixed, so that a test that passes goes on doing so; the rates say what a change of seed, of a
library or of the order of random numbers may do, and what the test is good for.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

RATE = 1e-6  # of a test that fails although nothing is wrong
POWER = 0.999  # to see the stated discrepancy
KNOWN = 10**9  # degrees of freedom of a standard error that is not estimated
FEWEST = 30  # samples for the laws of large numbers that are used


def _refuse(needed: int, count: int, detects: float) -> None:
    raise AssertionError(
        f"needs n ≥ {needed} samples to detect a discrepancy of {detects:.4g} with power {POWER}; got {count}. "
        "Draw more, or state a larger discrepancy."
    )


def _quantiles(count: int, entries: int, rate: float) -> tuple[float, float]:
    """In standard errors: the tolerance of each of some entries, and the margin beyond it that the power needs. Student's law, as
    the standard error is estimated from the samples."""
    if count < FEWEST:
        raise AssertionError(f"needs n ≥ {FEWEST} samples for a mean to be near normal; got {count}. Draw more.")
    law = stats.t(count - 1)
    return float(law.isf(rate / (2 * entries))), float(law.ppf(POWER))


def _compare(
    found: np.ndarray,
    expected: np.ndarray,
    error: np.ndarray,
    count: int,
    detects: ArrayLike,
    slack: ArrayLike,
    rate: float,
) -> None:
    """Means against what is expected, given their standard errors; entries that do not vary must agree to the slack."""
    found, expected, error, detects, slack = np.broadcast_arrays(found, expected, error, detects, slack)
    tolerance, margin = _quantiles(count, found.size, rate)
    room = np.asarray(detects - slack, float)
    short = error * (tolerance + margin) > room
    if np.any(short):
        worst = np.argmax(np.where(room > 0, error / np.maximum(room, 1e-300), np.inf))
        if room.flat[worst] <= 0:
            raise AssertionError("detects= must exceed slack=: what is allowed as a bias cannot be detected.")
        if count == KNOWN:
            raise AssertionError(
                f"needs a standard error of {room.flat[worst] / (tolerance + margin):.4g} or less to detect a discrepancy of "
                f"{detects.flat[worst]:.4g} with power {POWER}; got {error.flat[worst]:.4g}. Draw more samples."
            )
        needed = math.ceil(count * (error.flat[worst] * (tolerance + margin) / room.flat[worst]) ** 2)
        _refuse(needed, count, float(detects.flat[worst]))
    off = np.abs(found - expected) / (tolerance * error + slack + 1e-300)
    worst = int(np.argmax(off))
    assert np.all(off <= 1), (
        f"entry {worst}: {found.flat[worst]:.6g} is not {expected.flat[worst]:.6g} within {tolerance:.2f} standard errors of "
        f"{error.flat[worst]:.3g} and a slack of {slack.flat[worst]:.3g}"
    )


def assert_mean(
    samples: ArrayLike, expected: ArrayLike, *, detects: ArrayLike, slack: ArrayLike = 0.0, rate: float = RATE
) -> None:
    """The mean over the first axis of independent samples is `expected`. The samples' own variance says how well it is known."""
    x = np.asarray(samples, float)
    error = x.std(axis=0, ddof=1) / math.sqrt(len(x))
    _compare(x.mean(axis=0), np.asarray(expected, float), error, len(x), detects, slack, rate)


def assert_mean_below(
    samples: ArrayLike, bound: ArrayLike, *, detects: ArrayLike, slack: ArrayLike = 0.0, rate: float = RATE
) -> None:
    """The mean over the first axis is not above `bound`; one that is above it by `detects` is seen."""
    x = np.asarray(samples, float)
    mean = x.mean(axis=0)
    error = x.std(axis=0, ddof=1) / math.sqrt(len(x))
    # A mean that is below is as good as one that is there.
    _compare(np.maximum(mean, bound), np.asarray(bound, float), error, len(x), detects, slack, 2 * rate)


def assert_same_mean(
    first: ArrayLike, second: ArrayLike, *, detects: ArrayLike, slack: ArrayLike = 0.0, rate: float = RATE
) -> None:
    """Two independent sets of samples have one mean (Welch, with the degrees of freedom of the smaller set)."""
    x, y = np.asarray(first, float), np.asarray(second, float)
    error = np.sqrt(x.var(axis=0, ddof=1) / len(x) + y.var(axis=0, ddof=1) / len(y))
    _compare(x.mean(axis=0), y.mean(axis=0), error, min(len(x), len(y)), detects, slack, rate)


def assert_estimate(
    found: ArrayLike,
    expected: ArrayLike,
    *,
    error: ArrayLike,
    detects: ArrayLike,
    slack: ArrayLike = 0.0,
    rate: float = RATE,
) -> None:
    """An estimate, near normal, whose standard error is known from theory: a mean of samples of known variance, a variance, …"""
    _compare(
        np.asarray(found, float), np.asarray(expected, float), np.asarray(error, float), KNOWN, detects, slack, rate
    )


def assert_bounded_mean(
    samples: ArrayLike,
    expected: float,
    *,
    low: float,
    high: float,
    detects: float,
    slack: float = 0.0,
    rate: float = RATE,
) -> None:
    """The mean of independent values between `low` and `high`, of any law: empirical Bernstein (Maurer and Pontil 2009), which
    holds for every number of samples."""
    x = np.ravel(np.asarray(samples, float))
    if x.min() < low or x.max() > high:
        raise AssertionError(
            f"needs values from {low} to {high}; got {x.min():.4g} to {x.max():.4g}. State their true bounds."
        )

    def away(chance: float, count: int) -> float:
        logs = math.log(2 / chance)
        return math.sqrt(2 * x.var(ddof=1) * logs / count) + 7 * (high - low) * logs / (3 * (count - 1))

    def enough(count: int) -> bool:
        return away(rate / 2, count) + away(1 - POWER, count) <= detects - slack

    if not enough(len(x)):
        _refuse(_first(enough, len(x)), len(x), detects)
    off = abs(float(x.mean()) - expected)
    assert off <= away(rate / 2, len(x)) + slack, (
        f"{x.mean():.6g} is not {expected:.6g} within {away(rate / 2, len(x)):.3g}"
    )


def assert_variance(
    samples: ArrayLike, expected: ArrayLike, *, detects: float, slack: float = 0.0, rate: float = RATE
) -> None:
    """The variance over the first axis is `expected`, to a relative discrepancy. Squares around the mean are averaged, so that the
    law of the samples need not be known."""
    x = np.asarray(samples, float)
    squares = (x - x.mean(axis=0)) ** 2 * (len(x) / (len(x) - 1)) / np.asarray(expected, float)
    assert_mean(squares, 1.0, detects=detects, slack=slack, rate=rate)


def assert_proportion(
    successes: ArrayLike, count: int, expected: ArrayLike, *, detects: float, slack: float = 0.0, rate: float = RATE
) -> None:
    """Numbers of successes among `count` independent trials each, against their probabilities: the exact binomial law."""
    found, p = np.broadcast_arrays(np.asarray(successes), np.asarray(expected, float))
    share = rate / found.size
    for k, probability in zip(found.ravel(), p.ravel(), strict=True):

        def enough(n: int, p: float = probability) -> bool:
            low, high = _accepted(n, p, slack, share)
            below, above = p - detects, p + detects
            seen_below = below < 0 or stats.binom.cdf(low - 1, n, below) >= POWER
            return bool(seen_below and (above > 1 or stats.binom.sf(high, n, above) >= POWER))

        if not enough(count):
            _refuse(_first(enough, count), count, detects)
        low, high = _accepted(count, probability, slack, share)
        assert low <= k <= high, f"{k} of {count} is not {probability:.4g}: from {low} to {high} would be"


def assert_proportion_at_least(
    successes: int, count: int, wanted: float, *, detects: float | None = None, rate: float = RATE
) -> None:
    """A probability is not below `wanted`; with `detects`, one that is lower by that much is seen."""

    def low(n: int) -> float:
        return stats.binom.ppf(rate, n, wanted)

    def enough(n: int) -> bool:
        return detects is None or bool(stats.binom.cdf(low(n) - 1, n, wanted - detects) >= POWER)

    if not enough(count):
        _refuse(_first(enough, count), count, detects or 0.0)
    assert successes >= low(count), (
        f"{successes} of {count} is less than {wanted:.4g}: {low(count):.0f} or more would be that"
    )


def assert_law(samples: ArrayLike, cdf, *, detects: float, rate: float = RATE) -> None:
    """Independent samples of one dimension have that distribution function, to a discrepancy in probability somewhere (the largest
    distance between distribution functions): the exact law of Kolmogorov's statistic, and the power by the inequality of Dvoretzky,
    Kiefer, Wolfowitz and Massart."""
    x = np.ravel(np.asarray(samples, float))

    def tolerance(n: int) -> float:
        return float(stats.kstwo(n).isf(rate))

    def enough(n: int) -> bool:
        return tolerance(n) + math.sqrt(math.log(2 / (1 - POWER)) / (2 * n)) <= detects

    if not enough(len(x)):
        _refuse(_first(enough, len(x)), len(x), detects)
    distance = stats.kstest(x, cdf).statistic
    assert distance <= tolerance(len(x)), f"distance {distance:.4g} is more than {tolerance(len(x)):.4g}"


def assert_counts(counts: ArrayLike, probabilities: ArrayLike, *, detects: float, rate: float = RATE) -> None:
    """Counts of a multinomial have those probabilities; `detects`: the relative deviation (root mean square, weighted by the
    probabilities) of others. Pearson's statistic and its noncentral law."""
    found, p = np.asarray(counts, float), np.asarray(probabilities, float)
    total, free = found.sum(), len(found) - 1
    law = stats.chi2(free)

    def enough(n: int) -> bool:
        return bool(stats.ncx2(free, n * detects**2).sf(law.isf(rate)) >= POWER)

    if not enough(int(total)):
        _refuse(_first(enough, int(total)), int(total), detects)
    statistic = np.sum((found - total * p) ** 2 / (total * p))
    assert statistic <= law.isf(rate), f"chi-squared {statistic:.4g} of {free} degrees is more than {law.isf(rate):.4g}"


def _accepted(n: int, p: float, slack: float, rate: float) -> tuple[int, int]:
    """The fewest and the most successes of n that a probability within `slack` of p may have."""
    low, high = max(p - slack, 0.0), min(p + slack, 1.0)
    return int(stats.binom.ppf(rate / 2, n, low)), int(stats.binom.isf(rate / 2, n, high))


def _first(enough, below: int) -> int:
    """A number of samples above `below` that is enough, to one part in a hundred."""
    high = below
    while not enough(high):
        if high > 10**12:
            raise AssertionError("no number of samples is enough: state a larger discrepancy, or a smaller slack.")
        high = max(high + 1, math.ceil(1.01 * high))
    return high
