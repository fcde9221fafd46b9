"""The two rates of the statistical assertions: measured, or calculated by another way."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from stochastic import (
    POWER,
    assert_bounded_mean,
    assert_counts,
    assert_law,
    assert_mean,
    assert_mean_below,
    assert_proportion,
    assert_proportion_at_least,
    assert_same_mean,
    assert_variance,
)

MANY = 2000  # repetitions, at a rate of failures that can be counted
OFTEN = 0.02


def failures(check, draw, *, seed: int = 0) -> int:
    rng, count = np.random.default_rng(seed), 0
    for _ in range(MANY):
        try:
            check(draw(rng))
        except AssertionError as error:
            if "needs n" in str(error):
                raise
            count += 1
    return count


def at_most(count: int, rate: float) -> bool:
    """Whether so many of `MANY` are no sign that their probability is above the rate."""
    return stats.binom.sf(count - 1, MANY, rate) > 1e-6


def smallest(check, draw) -> float:
    """The smallest discrepancy that some samples suffice for."""
    rng = np.random.default_rng(9)
    low, high = 1e-4, 1.0
    for _ in range(40):
        middle, x = np.sqrt(low * high), [draw(rng) for _ in range(20)]
        try:
            for one in x:
                check(one, middle)
        except AssertionError as error:
            if "needs n" in str(error):
                low = middle
                continue
        high = middle
    return 1.02 * high


def normal(rng):
    return rng.standard_normal(400)


def uniform(rng):
    return rng.uniform(size=2000)


CASES = {
    "mean": (lambda x, δ, **o: assert_mean(x, 0.0, detects=δ, **o), normal, lambda x, δ: x + δ),
    "skewed mean": (
        lambda x, δ, **o: assert_mean(x, 1.0, detects=δ, **o), lambda rng: rng.exponential(size=4000), lambda x, δ: x + δ,
    ),
    "mean below": (lambda x, δ, **o: assert_mean_below(x, 0.0, detects=δ, **o), normal, lambda x, δ: x + δ),
    "same mean": (
        lambda x, δ, **o: assert_same_mean(x[:200], x[200:], detects=δ, **o), normal,
        lambda x, δ: x + δ * (np.arange(400) < 200),
    ),
    "bounded mean": (
        lambda x, δ, **o: assert_bounded_mean(x, 0.5, low=0, high=2, detects=δ, **o), uniform, lambda x, δ: x + δ,
    ),
    "variance": (lambda x, δ, **o: assert_variance(x, 1.0, detects=δ, **o), lambda rng: rng.standard_normal(4000),
                 lambda x, δ: x * np.sqrt(1 + δ)),
    "law": (lambda x, δ, **o: assert_law(x, stats.uniform.cdf, detects=δ, **o), uniform, lambda x, δ: np.maximum(x - δ, -x)),
    "proportion": (
        lambda k, δ, **o: assert_proportion(k, 1000, 0.3, detects=δ, **o), lambda rng: rng.binomial(1000, 0.3), None,
    ),
    "counts": (
        lambda c, δ, **o: assert_counts(c, np.full(10, 0.1), detects=δ, **o),
        lambda rng: rng.multinomial(3000, np.full(10, 0.1)), None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_is_right_fails_as_rarely_as_is_stated(name):
    check, draw, _ = CASES[name]
    count = failures(lambda x: check(x, 1.0 if name != "proportion" else 0.65, rate=OFTEN), draw)
    assert at_most(count, OFTEN), f"{count} of {MANY}"


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name][2]])
def test_what_is_off_by_the_stated_discrepancy_passes_as_rarely(name):
    check, draw, spoil = CASES[name]
    δ = smallest(check, draw)
    passed = MANY - failures(lambda x: check(spoil(x, δ), 2 * δ), draw)
    assert at_most(passed, 1 - POWER), f"{passed} of {MANY} at {δ:.3g}"


def test_proportions_and_counts_that_are_off_pass_as_rarely():
    """Others than the smallest discrepancy that is accepted would be refused."""
    δ = smallest(lambda k, δ: assert_proportion(k, 1000, 0.3, detects=δ), lambda rng: 300)
    for p in (0.3 - δ, 0.3 + δ):
        passed = MANY - failures(
            lambda k: assert_proportion(k, 1000, 0.3, detects=δ), lambda rng, p=p: rng.binomial(1000, p)
        )
        assert at_most(passed, 1 - POWER)
    δ = smallest(lambda c, δ: assert_counts(c, np.full(10, 0.1), detects=δ), lambda rng: np.full(10, 300))
    other = 0.1 * (1 + δ * np.tile([1, -1], 5))
    passed = MANY - failures(
        lambda c: assert_counts(c, np.full(10, 0.1), detects=δ), lambda rng: rng.multinomial(3000, other)
    )
    assert at_most(passed, 1 - POWER)


def test_too_few_samples_are_refused_with_a_number_that_suffices():
    x = np.random.default_rng(0).standard_normal(100)
    with pytest.raises(
        AssertionError, match=r"needs n ≥ \d+ samples to detect a discrepancy of 0.1 with power 0.999; got 100"
    ):
        assert_mean(x, 0.0, detects=0.1)
    with pytest.raises(AssertionError, match="needs n ≥") as error:
        assert_proportion(30, 100, 0.3, detects=0.02)
    needed = int(str(error.value).split("needs n ≥ ")[1].split()[0])
    assert_proportion(int(0.3 * needed), needed, 0.3, detects=0.02)
    with pytest.raises(AssertionError, match="needs n ≥ 30"):
        assert_mean(x[:10], 0.0, detects=10.0)
    with pytest.raises(AssertionError, match="must exceed slack"):
        assert_mean(x, 0.0, detects=0.1, slack=0.2)


def test_the_tolerance_of_the_usual_rate_is_that_of_students_law():
    """Samples of mean exactly on either side of it."""
    x = np.random.default_rng(0).standard_normal(10_000)
    x = (x - x.mean()) / x.std(ddof=1)
    edge = stats.t(9_999).isf(0.5e-6) / 100
    assert_mean(x + 0.999 * edge, 0.0, detects=1.0)
    with pytest.raises(AssertionError, match="standard errors"):
        assert_mean(x + 1.001 * edge, 0.0, detects=1.0)


def test_a_proportion_below_what_is_wanted_is_seen():
    assert_proportion_at_least(950, 1000, 0.95, detects=0.07)
    with pytest.raises(AssertionError, match="is less than"):
        assert_proportion_at_least(880, 1000, 0.95, detects=0.07)
    with pytest.raises(AssertionError, match="needs n"):
        assert_proportion_at_least(95, 100, 0.95, detects=0.05)
