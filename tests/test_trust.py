"""Importance weights of a posterior: their mean is the likelihood, the estimator of their tail finds the tail of known
distributions, and the light is green where a posterior is exact and not where it was spoiled."""

from __future__ import annotations

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import linear
import numpy as np
import pytest
from jaxtyping import Array, Float
from scipy import stats
from stochastic import assert_mean
from test_oracle_smoother import linear_model, with_nodes

import arcta
from arcta.bound.weights import belief, log_weights, tail_shape
from arcta.data.windows import Window
from arcta.model.build import build
from arcta.model.reading import read_data
from arcta.parts.model import Model
from arcta.parts.posterior import AbstractGaussian, AbstractMarginal, AbstractPosterior
from arcta.parts.prior import Known
from arcta.parts.smoother import SmoothedPosterior, smooth_rows
from arcta.predict import trust as weighing
from arcta.predict.recognise import posterior_in
from arcta.predict.trust import Light, Trust

NOISE = 0.05


def turning(t, z, p, u):
    """One function for all systems, so that they share their programs."""
    return p["F"].reshape(2, 2) @ z


def system(seed: int, rows: int = 100) -> tuple[arcta.Fit, float]:
    """A turning, damped pair seen through noise at irregular times, with all it is made of known; and its log-likelihood."""
    rng = np.random.default_rng(seed)
    ω, r = rng.uniform(1.0, 2.0), rng.uniform(0.1, 0.5)
    F, q = np.array([[-r, ω], [-ω, -r]]), np.exp(rng.uniform(-2, 0, 2))
    times = np.cumsum(rng.uniform(0.1, 0.5, rows))
    xs = linear.simulate(F, q, np.zeros(2), np.eye(2), times, NOISE, rng)
    series, parameters = arcta.Series(times, xs), {"F": Known(F.ravel())}
    spec = arcta.LatentSDE(
        decoder="identity", drift=turning, parameters=parameters, noise=NOISE**0.5, posterior="smoother"
    )
    layout, reading = read_data(spec, series)
    model = build(spec, layout, reading, key=jax.random.key(0))
    shift, scale = layout.scaling.shift, layout.scaling.scale
    level = Known(q * layout.scaling.time_scale / scale**2)
    model = dataclasses.replace(eqx.tree_at(lambda m: m.diffusion.level, model, level), margin=32)
    exact = linear.log_likelihood(F, q, shift, np.diag(scale**2), times, xs, NOISE)
    # Units as arrays: as Python's floats they would make a program for each system.
    model = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32) if isinstance(x, float | np.ndarray) else x, model)
    return arcta.Fit(spec, layout, reading, model, arcta.Training(), [series], []), exact


def scaled(posterior: SmoothedPosterior, factor: float) -> SmoothedPosterior:
    """With all covariances, and their slopes, that much larger."""

    def parts(p: SmoothedPosterior):
        return p.covariance, p.sides.covariance_after, p.sides.covariance_before

    return eqx.tree_at(parts, posterior, tuple(factor * part for part in parts(posterior)))


def shifted(posterior: SmoothedPosterior) -> SmoothedPosterior:
    spread = jnp.sqrt(jnp.diagonal(posterior.covariance, axis1=1, axis2=2))
    return eqx.tree_at(lambda p: p.mean, posterior, posterior.mean + spread)


class TurnedMarginal(AbstractMarginal):
    """Turns by another part of what would be best."""

    inner: AbstractMarginal
    normal: AbstractGaussian
    part: Float[Array, ""]

    def drift(self, deviation, q, jacobian=None):
        still, turned = self.inner.drift(deviation, q), self.inner.drift(deviation, q, jacobian)
        return still + self.part * (turned - still)


class Turned(AbstractPosterior):
    inner: AbstractPosterior
    part: Float[Array, ""]

    def __call__(self, t):
        marginal = self.inner(t)
        return TurnedMarginal(marginal, marginal.normal, self.part)

    def at_nodes(self):
        return self.inner.at_nodes()


def of_another_diffusion(model: Model, window: Window, factor: float) -> AbstractPosterior | None:
    level = model.diffusion.level
    other = eqx.tree_at(lambda m: m.diffusion.level.value, model, factor * level.value)
    return posterior_in(other, window, refined=True)


SPOILED = {
    "collapsed variance": lambda model, window, exact: scaled(exact, 0.1),
    "shifted means": lambda model, window, exact: shifted(exact),
    "diffusion too large": lambda model, window, exact: of_another_diffusion(model, window, 30.0),
    "diffusion too small": lambda model, window, exact: of_another_diffusion(model, window, 1 / 30),
    "no turning": lambda model, window, exact: Turned(exact, jnp.asarray(0.0)),
    "turning the wrong way": lambda model, window, exact: Turned(exact, jnp.asarray(-1.0)),
}


def light_of(fit: arcta.Fit, monkeypatch, spoil=None) -> Light:
    """The public verdict on the one series of a fit whose posterior was spoiled on its way."""

    def made(model, window, *, refined):
        exact = posterior_in(model, window, refined=refined)
        return exact if spoil is None else spoil(model, window, exact)

    monkeypatch.setattr(weighing, "posterior_in", made)
    return fit.trust(key=1).lights[0]


def rates(seeds: range, monkeypatch) -> tuple[dict[str, int], int, list[float], list[float]]:
    """Of series: how often the light of each spoiled posterior was not green, and how often that of the exact one; how far from
    the log-likelihood the bound of the exact one is, and the tightened one."""
    flagged, alarms, loose, off = dict.fromkeys(SPOILED, 0), 0, [], []
    for seed in seeds:
        fit, exact_likelihood = system(seed)
        light = light_of(fit, monkeypatch)
        alarms += light.colour != "green"
        loose.append(light.bound - exact_likelihood)
        off.append(light.tightened - exact_likelihood)
        for name, spoil in SPOILED.items():
            flagged[name] += light_of(fit, monkeypatch, spoil).colour != "green"
    return flagged, alarms, loose, off


def test_the_light_is_green_for_exact_posteriors_and_not_for_spoiled_ones(monkeypatch):
    """All observations are weighed; float32 and Euler's steps leave a fraction of a nat."""
    flagged, alarms, loose, off = rates(range(1), monkeypatch)
    assert alarms == 0
    assert flagged == dict.fromkeys(SPOILED, 1)
    assert np.max(np.abs(off)) < 0.3
    assert np.max(np.abs(off)) < np.max(np.abs(loose)), "tightened"


@pytest.mark.slow
def test_the_rates_of_the_light(monkeypatch):
    """Per series, through the public verb; what is printed is what docs/trust.md says."""
    seeds = range(100, 140)
    flagged, alarms, loose, off = rates(seeds, monkeypatch)
    print(f"not green of {len(seeds)}:", flagged, "of exact ones:", alarms)
    print(f"bound − exact {np.mean(loose):.2f}, tightened − exact {np.mean(off):.3f}, at most {np.abs(off).max():.3f}")
    assert alarms <= 0.05 * len(seeds)
    assert sum(flagged.values()) >= 0.95 * len(seeds) * len(SPOILED)
    assert np.max(np.abs(off)) < 0.5


def test_weights_of_a_posterior_that_is_off_a_little_still_average_to_the_likelihood():
    """Whatever the posterior, over a whole series, its start and its end: E w = p(x)."""
    with jax.enable_x64(True):
        rng, F, q = np.random.default_rng(7), np.array([[-0.3, 1.5], [-1.5, -0.3]]), np.array([0.3, 0.5])
        times = np.cumsum(rng.uniform(0.1, 0.5, 40))
        xs = linear.simulate(F, q, np.zeros(2), np.eye(2), times, NOISE, rng)
        exact = linear.log_likelihood(F, q, np.zeros(2), np.eye(2), times, xs, NOISE)
        model, rows = linear_model(F, q, np.eye(2), np.zeros(2), np.eye(2)), with_nodes(times, xs, 0.1)
        smoothed = smooth_rows(model, rows, jnp.zeros((len(rows.times), 2)), passes=2)[0]
        weigh = eqx.filter_jit(lambda p: log_weights(model, rows, p, num_paths=4000, key=jax.random.key(1)))
        weights = np.asarray(weigh(scaled(smoothed, 1.1)))
    found = belief(weights)
    assert found.bound < found.tightened - 0.1
    # Euler's steps leave a bias.
    assert_mean(np.exp(weights - exact), 1.0, detects=0.4, slack=0.1)


@pytest.mark.parametrize("k", [0.1, 0.5, 0.9])
def test_the_tail_of_known_distributions_is_found(k):
    """The estimator is drawn towards ½ and has a bias of its own in finite samples, which the slack allows."""
    x = 1 + stats.genpareto(k).rvs((600, 4000), random_state=np.random.default_rng(0))
    assert_mean([tail_shape(np.log(row)) for row in x], k, detects=0.16, slack=0.1)


def test_equal_weights_have_no_tail_and_lost_paths_are_not_believed():
    assert belief(np.zeros(500)).k == -np.inf
    assert not belief(np.array([0.0] * 499 + [np.nan])).believed


def test_the_encoders_posterior_is_weighed_too_and_says_how_much_of_it(monkeypatch):
    fit, _ = system(0, rows=40)
    model = dataclasses.replace(fit.model, smoothed=False)
    light = dataclasses.replace(fit, model=model).trust(num_paths=100).lights[0]
    assert light.colour == "red", "an encoder that was never trained"
    assert 0 < light.weighed <= light.observations == 80
    monkeypatch.setattr(
        weighing, "posterior_in", lambda m, w, refined: None if refined else posterior_in(m, w, refined=False)
    )
    assert "did not settle" in fit.trust(num_paths=100).lights[0].verdict


def light(name: str, *ks: float) -> Light:
    return Light(name, ks, tuple(float(i) for i in range(len(ks))), 0.0, 0.0, 1, 1, "noon")


def test_a_series_is_as_good_as_its_middle_stretch_and_the_worst_is_told():
    assert light("a", 0.1, 0.3, 0.4).colour == "green"
    assert light("a", 0.1, 0.3, 0.9).colour == "amber"
    assert (
        "believe it, but not in 1 of the 3 stretches weighed, the worst from noon" in light("a", 0.1, 0.3, 0.9).verdict
    )
    assert light("a", 0.1, 0.6, 0.6).colour == "amber"
    assert light("a", 0.1, 0.8, 0.9).colour == "red"
    both = Trust((light("b", 0.9), light("a", 0.1)), "not weighed: 1 of one observation, which has no path")
    assert both.words() == "1 green, 1 red; not weighed: 1 of one observation, which has no path"
    assert list(both.to_frame().colour) == ["red", "green"]


def test_many_series_are_weighed_in_part_and_those_of_one_observation_not(monkeypatch):
    fit, _ = system(0, rows=40)
    series = fit.context[0]
    many = [series.at_rows(slice(0, 12 + i % 3)).replace(name=f"s{i}") for i in range(5)]
    single = series.at_rows(slice(0, 1)).replace(name="single")
    monkeypatch.setattr(weighing, "IN_ALL", 3)
    found = fit.trust([*many, single], num_paths=100)
    assert len(found.lights) == 3
    assert "1 of one observation" in found.words()
    assert "2 of 6 series" in found.words()
    assert "no series has two" in str(fit.trust(single))


def test_the_summary_says_what_is_known_and_a_structure_has_no_light():
    fit, _ = system(0, rows=40)
    fit = dataclasses.replace(fit, stopped="interrupted")
    told = fit.summary()
    text = str(told)
    for words in (
        "80 in 40 rows, 0.0% missing",
        "2 (x0, x1)",
        "diffusion[x0]",
        "noise[x1]",
        "ended early: interrupted",
    ):
        assert words in text, words
    assert told.trust.lights[0].colour == "green"
    assert told.scores is None
    assert text.splitlines()[4].strip() in told._repr_html_()
    assert max(len(line) for line in text.splitlines()) <= 132
    structure = arcta.fit(
        arcta.LatentSDE(structure="linear"), fit.context, training=arcta.Training(steps=2), holdout=0.25, progress=False
    )
    told = structure.summary()
    assert not told.trust.lights
    assert "exact" in str(told.trust)
    assert "evidence" in told.model
    assert told.scores is not None
