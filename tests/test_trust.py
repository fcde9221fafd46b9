"""Importance weights of a posterior: their mean is the likelihood, the estimator of their tail finds the tail of known
distributions, and the light is red where a posterior was spoiled and green where it is exact."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import linear
import numpy as np
import pytest
from scipy import stats
from test_oracle_smoother import linear_model, with_nodes

from arcta.bound.weights import Belief, belief, log_weights, steps_for, tail_shape
from arcta.parts.model import Model
from arcta.parts.smoother import Rows, SmoothedPosterior, smooth_rows

NOISE = 0.05


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


def system(seed: int):
    """A turning, damped pair seen through noise at irregular times."""
    rng = np.random.default_rng(seed)
    ω, r = rng.uniform(1.0, 2.0), rng.uniform(0.1, 0.5)
    F, q = np.array([[-r, ω], [-ω, -r]]), np.exp(rng.uniform(-2, 0, 2))
    m0, P0 = rng.standard_normal(2), np.eye(2)
    times = np.cumsum(rng.uniform(0.1, 0.5, 40))
    xs = linear.simulate(F, q, m0, P0, times, NOISE, rng)
    exact = linear.log_likelihood(F, q, m0, P0, times, xs, NOISE)
    return linear_model(F, q, np.eye(2), m0, P0), with_nodes(times, xs, 0.1), exact


@eqx.filter_jit
def smoothed(model: Model, rows: Rows) -> SmoothedPosterior:
    return smooth_rows(model, rows, jnp.zeros((len(rows.times), 2)), passes=2)[0]


@eqx.filter_jit
def _weights(model: Model, rows: Rows, posterior: SmoothedPosterior, substeps: int, rotation: bool, key):
    return log_weights(model, rows, posterior, num_paths=1000, substeps=substeps, rotation=rotation, key=key)


def weigh(model: Model, rows: Rows, posterior: SmoothedPosterior, *, rotation: bool = True) -> Belief:
    substeps = steps_for(model, rows, smoothed(model, rows))
    return belief(np.asarray(_weights(model, rows, posterior, substeps, rotation, jax.random.key(1))))


def scaled(posterior: SmoothedPosterior, factor: float) -> SmoothedPosterior:
    """With all covariances, and their slopes, that much larger."""

    def parts(p: SmoothedPosterior):
        return p.covariance, p.sides.covariance_after, p.sides.covariance_before

    return eqx.tree_at(parts, posterior, tuple(factor * part for part in parts(posterior)))


def shifted(posterior: SmoothedPosterior) -> SmoothedPosterior:
    spread = jnp.sqrt(jnp.diagonal(posterior.covariance, axis1=1, axis2=2))
    return eqx.tree_at(lambda p: p.mean, posterior, posterior.mean + spread)


def of_another_diffusion(model: Model, rows: Rows, factor: float) -> SmoothedPosterior:
    level = model.diffusion.level
    return smoothed(eqx.tree_at(lambda m: m.diffusion.level.value, model, factor * level.value), rows)


SPOILED = {
    "collapsed variance": lambda model, rows, exact: weigh(model, rows, scaled(exact, 0.1)),
    "shifted means": lambda model, rows, exact: weigh(model, rows, shifted(exact)),
    "diffusion too large": lambda model, rows, exact: weigh(model, rows, of_another_diffusion(model, rows, 30.0)),
    "diffusion too small": lambda model, rows, exact: weigh(model, rows, of_another_diffusion(model, rows, 1 / 30)),
    "no turning": lambda model, rows, exact: weigh(model, rows, exact, rotation=False),
}


def rates(seeds: range) -> tuple[dict[str, int], int, list[float]]:
    """How often each spoiled posterior was flagged, how often the exact one was, and how far its tightened bound is off."""
    flagged, alarms, off = dict.fromkeys(SPOILED, 0), 0, []
    for seed in seeds:
        model, rows, exact_likelihood = system(seed)
        exact = smoothed(model, rows)
        found = weigh(model, rows, exact)
        alarms += not found.believed
        off.append(found.tightened - exact_likelihood)
        for name, spoil in SPOILED.items():
            flagged[name] += not spoil(model, rows, exact).believed
    return flagged, alarms, off


def test_the_light_is_red_for_spoiled_posteriors_and_green_for_exact_ones():
    flagged, alarms, off = rates(range(1))
    assert alarms == 0
    assert flagged == dict.fromkeys(SPOILED, 1)
    assert np.max(np.abs(off)) < 0.3


@pytest.mark.slow
def test_the_rates_of_the_light():
    seeds = range(100, 160)
    flagged, alarms, off = rates(seeds)
    print("flagged of 60:", flagged, "false alarms:", alarms, "off:", np.abs(off).max())
    assert alarms <= 0.05 * len(seeds)
    assert sum(flagged.values()) >= 0.95 * len(seeds) * len(SPOILED)
    assert np.max(np.abs(off)) < 0.3


def test_weights_of_a_posterior_that_is_off_a_little_still_average_to_the_likelihood():
    model, rows, exact_likelihood = system(7)
    found = weigh(model, rows, scaled(smoothed(model, rows), 1.2))
    assert found.bound < found.tightened - 0.1
    assert found.tightened == pytest.approx(exact_likelihood, abs=0.5)


@pytest.mark.parametrize("k", [0.1, 0.5, 0.9])
def test_the_tail_of_known_distributions_is_found(k):
    x = 1 + stats.genpareto(k).rvs((40, 4000), random_state=np.random.default_rng(0))
    found = np.array([tail_shape(np.log(row)) for row in x])
    assert np.mean(found) == pytest.approx(k, abs=0.12)


def test_equal_weights_have_no_tail_and_lost_paths_are_not_believed():
    assert belief(np.zeros(500)).k == -np.inf
    assert not belief(np.array([0.0] * 499 + [np.nan])).believed
