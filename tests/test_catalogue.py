"""Every drift with every encoder, likelihood and rotation: trains, forecasts and saves; and subclasses that override one method."""

from __future__ import annotations

import itertools
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import arcta
from arcta.bound.residual import residual
from arcta.data.batches import take
from arcta.model.build import build
from arcta.model.reading import read_data
from arcta.parts.decoders import LinearDecoder, NetworkDecoder
from arcta.parts.likelihoods import LIKELIHOODS
from arcta.parts.networks import MLP
from arcta.parts.sde import NeuralDrift, PlainDrift
from arcta.training.prepare import prepare

DRIFTS = {"neural": "neural", "plain": "plain", "own": lambda t, z, p, u: [z[1], -p["k"] * z[0]]}
ENCODERS = ("local", "window", "gru", "transformer")
FEW = arcta.Training(steps=10, num_draws=2, num_times=3, log_every=5, validate_every=10**6, checkpoint_every=10**6)


def data_for(likelihood: str) -> arcta.Series:
    """Two channels that turn, as real numbers, positive ones, counts, or zeros and ones."""
    rng = np.random.default_rng(0)
    times = np.cumsum(rng.uniform(0.1, 0.3, 60))
    waves = np.stack([np.sin(times), np.cos(times)], axis=1)
    values = {
        "log-normal": lambda: np.exp(waves + 0.1 * rng.standard_normal(waves.shape)),
        "bernoulli": lambda: rng.random(waves.shape) < 0.5 + 0.4 * waves,
        "poisson": lambda: rng.poisson(np.exp(1 + waves)),
        "negative-binomial": lambda: rng.poisson(np.exp(1 + waves) * rng.gamma(2, 0.5, waves.shape)),
    }.get(likelihood, lambda: waves + 0.1 * rng.standard_normal(waves.shape))()
    values = np.asarray(values, float)
    values[rng.random(values.shape) < 0.1] = np.nan
    return arcta.Series(times, values)


EVERY = list(itertools.product(DRIFTS, ENCODERS, LIKELIHOODS, (True, False)))
# Each drift with each encoder, each likelihood twice; the rest of the product is slow.
SOME = [EVERY[12 * i + 2 * (i % 6) + (i // 2) % 2] for i in range(12)]
MARKED = [pytest.param(*case, marks=() if case in SOME else pytest.mark.slow) for case in EVERY]


@pytest.mark.parametrize(("drift", "encoder", "likelihood", "rotation"), MARKED)
def test_every_combination_trains_forecasts_and_saves(drift, encoder, likelihood, rotation, tmp_path):
    series = data_for(likelihood)
    own = {"parameters": {"k": arcta.LogNormal(1.0, 0.5)}} if drift == "own" else {}
    spec = arcta.LatentSDE(
        latent_size=2, drift=DRIFTS[drift], encoder=encoder, likelihood=likelihood, rotation=rotation, partition_size=20,
        drift_sizes=(8,), encoder_sizes=(8,), **own,
    )  # fmt: skip
    fit = arcta.fit(spec, series, training=FEW, progress=False)
    assert np.isfinite([row["loss"] for row in fit.history]).all()
    times = series.times[-1] + 0.2 * np.arange(1, 4)
    ahead = fit.forecast(times, num_samples=16)
    assert np.isfinite(ahead.observations).all()
    if likelihood == "log-normal":
        assert ahead.observations.min() > 0
    if likelihood in ("poisson", "negative-binomial", "bernoulli"):
        assert np.array_equal(ahead.observations, np.round(ahead.observations))
        assert ahead.observations.min() >= 0
    fit.save(tmp_path)
    code = {"drift": DRIFTS["own"]} if drift == "own" else {}
    again = arcta.load(tmp_path, **code).forecast(times, num_samples=16)
    np.testing.assert_array_equal(again.observations, ahead.observations)


@pytest.mark.parametrize("encoder", ["gru", "transformer"])
def test_encoders_over_the_window_ignore_what_is_missing_and_learn(encoder):
    """What is behind the mask changes nothing, the window around a node does, and training lowers the loss."""
    series = data_for("gaussian")
    spec = arcta.LatentSDE(
        latent_size=2, encoder=encoder, partition_size=20, encoder_sizes=(8, 8), posterior="amortised"
    )
    ready = prepare(spec, series, FEW, key=jax.random.key(0))
    model = ready.state.model
    alive = lambda weight: 0.3 * jax.random.normal(jax.random.key(3), weight.shape)  # noqa: E731
    model = eqx.tree_at(lambda m: m.encoder.last.weight, model, replace_fn=alive)
    window = take(jax.tree.map(jnp.asarray, ready.windows), jnp.array(1))
    plain = model.encoder(window).values
    behind = eqx.tree_at(lambda w: w.values, window, jnp.where(window.mask, window.values, 1e3))
    np.testing.assert_allclose(model.encoder(behind).values, plain, atol=1e-4)
    moved = eqx.tree_at(lambda w: w.values, window, window.values.at[3].add(1.0))
    changed = np.abs(np.asarray(model.encoder(moved).values - plain)).max(axis=1)
    assert changed[12] > 1e-4
    training = arcta.Training(steps=400, log_every=50, validate_every=10**6, checkpoint_every=10**6)
    history = arcta.fit(spec, series, training=training, progress=False).history
    assert history[-1]["loss"] < history[1]["loss"] - 0.1


@pytest.mark.parametrize("encoder", ["local", "window", "gru"])
def test_a_full_covariance_is_learned_saved_and_of_use(encoder, tmp_path):
    series = data_for("gaussian")
    spec = arcta.LatentSDE(latent_size=2, encoder=encoder, partition_size=20, encoder_sizes=(8, 8), posterior="full")
    training = arcta.Training(steps=200, log_every=50, validate_every=10**6, checkpoint_every=10**6)
    fit = arcta.fit(spec, series, training=training, progress=False)
    assert fit.history[-1]["loss"] < fit.history[0]["loss"]
    ready = prepare(spec, series, FEW, key=jax.random.key(0))
    normal = fit.model.posterior(take(jax.tree.map(jnp.asarray, ready.windows), jnp.array(0))).at_nodes()
    covariance = np.asarray(normal.covariance())
    assert np.abs(covariance[:, 0, 1]).min() > 0
    fit.save(tmp_path)
    times = series.times[-1] + 0.2 * np.arange(1, 4)
    said, again = (f.forecast(times, num_samples=16).observations for f in (fit, arcta.load(tmp_path)))
    np.testing.assert_array_equal(said, again)


@pytest.mark.parametrize(("held", "sure", "says"), [(2.0, 2.0, "Trained anew"), (0.0, 2.0, "By the bound")])
def test_where_the_smoother_is_in_doubt_the_encoders_posterior_is_trained_too(held, sure, says, tmp_path, monkeypatch):
    monkeypatch.setattr(arcta.task.fit, "HELD", held)
    monkeypatch.setattr(arcta.task.fit, "SURE", sure)
    with pytest.warns(UserWarning, match=says) as said:
        fit = arcta.fit(arcta.LatentSDE(), data_for("gaussian"), training=FEW, progress=False, out=tmp_path)
    chosen = "amortised" if held else str(said[0].message).split("posterior='")[1].split("'")[0]
    assert fit.model.smoothed == (chosen == "smoother")
    assert arcta.load(tmp_path).model.smoothed == fit.model.smoothed


class Still(PlainDrift):
    def __call__(self, *arguments):
        return super().__call__(*arguments).at[-1].set(0.0)


class StillNeural(NeuralDrift):
    def __call__(self, *arguments):
        return super().__call__(*arguments).at[-1].set(0.0)


class Shifted(NetworkDecoder):
    def __call__(self, z, θ):
        return super().__call__(z, θ) + 1.0


@pytest.mark.parametrize("kind", [Still, StillNeural])
def test_a_drift_that_overrides_its_call_trains_on_what_it_forecasts_with(kind):
    """The residual's f at z, recovered from r = g − f, is the drift's own; so is the Jacobian in its rotation term."""
    series = data_for("gaussian")
    spec = arcta.LatentSDE(latent_size=2, encoder="window", partition_size=20)
    model = build(spec, *read_data(spec, series), key=jax.random.key(0))
    drift = kind(2, hidden_sizes=(8,), rng=np.random.default_rng(1))
    model = eqx.tree_at(lambda m: m.drift, model, drift)
    plain = eqx.tree_at(lambda m: m.drift, model, arcta.parts.physics.OwnDrift(drift))  # by way of `__call__` alone
    window = take(jax.tree.map(jnp.asarray, prepare(spec, series, FEW, key=jax.random.key(0)).windows), jnp.array(0))
    q_t, θ = model.posterior(window)(0.4 * window.end), model.draw(key=jax.random.key(2))
    ε, u, t = jnp.array([0.3, -1.2]), jnp.zeros(0), jnp.array(0.4)
    for a, b in zip(residual(model, q_t, t, u, ε, θ), residual(plain, q_t, t, u, ε, θ), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


def test_a_decoder_that_overrides_its_call_is_decoded_by_it_in_training():
    decoder = Shifted(MLP((2, 4, 3), rng=np.random.default_rng(0)))
    z = jax.random.normal(jax.random.key(0), (2, 7))
    each = jnp.stack([decoder(z[:, i], ()) for i in range(7)], axis=1)
    np.testing.assert_allclose(decoder.at_many(z, ()), each, rtol=1e-5)
    for own in (NetworkDecoder(decoder.net), LinearDecoder(2, np.zeros(3), rng=np.random.default_rng(0))):
        θ = own.draw(key=jax.random.key(1))
        each = jnp.stack([own(z[:, i], θ) for i in range(7)], axis=1)
        np.testing.assert_allclose(own.at_many(z, θ), each, rtol=1e-5, atol=1e-6)


def test_the_page_about_parts_recovers_the_scatter_it_was_made_with(capsys):
    """Fixed seeds; each 90 % interval would miss the truth in one of ten data sets."""
    page = Path(arcta.__file__).parents[1] / "docs" / "parts.md"
    scope: dict = {}
    exec(page.read_text().split("```python\n")[1].split("```")[0], scope)
    table = scope["fit"].parameters()
    for name, truth in (("dispersion[cases]", 4.0), ("noise of the log of[level]", 0.2)):
        assert table.loc[name, "q5"] < truth < table.loc[name, "q95"]
    assert float(capsys.readouterr().out.splitlines()[-1]) >= 0
