"""Ensembles and sweeps: every member is the model it would be alone, mixtures are mixtures, runs come back from disk."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from stochastic import assert_estimate

import arcta
from arcta.bound.objective import Objective
from arcta.data.batches import TrainingData
from arcta.data.windows import WindowShape, windows_of
from arcta.model.build import build
from arcta.model.reading import read_data
from arcta.predict.prediction import Prediction, mix
from arcta.training.ensemble import Members, _advance, stack
from arcta.training.loop import start

MODEL = arcta.LatentSDE(
    decoder="identity", encoder="window", lookahead=0, partition_size=32, drift_sizes=(8,), encoder_sizes=(8,)
)
TRAINING = arcta.Training(steps=30, log_every=10, validate_every=30, checkpoint_every=10)


@pytest.fixture(scope="module")
def data() -> tuple[arcta.Series, arcta.Series]:
    return arcta.split(arcta.datasets.lotka_volterra(), at=0.8)


@pytest.fixture(scope="module")
def ensemble(data, tmp_path_factory) -> tuple[arcta.Fit, object]:
    out = tmp_path_factory.mktemp("ensemble")
    return arcta.fit(MODEL, data[0], training=TRAINING, ensemble=3, holdout=0.2, progress=False, out=out), out


def test_members_are_the_models_they_would_be_alone(ensemble, data):
    """Bit for bit on a CPU; and their forecasts, mixed in turns, are those of each."""
    fit, _ = ensemble
    for key, model in zip(jax.random.split(jax.random.key(0), 3), fit.members, strict=True):
        alone = arcta.fit(MODEL, data[0], key=key, training=TRAINING, holdout=0.2, progress=False)
        for a, b in zip(jax.tree.leaves(alone.model), jax.tree.leaves(model), strict=True):
            np.testing.assert_array_equal(a, b)
    ahead = fit.forecast(data[1].times, num_samples=10)
    assert ahead.observations.shape[0] == 10
    np.testing.assert_array_equal(np.bincount(ahead.member), [3, 3, 4])
    assert list(ahead.member[:3]) == [0, 1, 2]
    assert set(fit.forecast(data[1].times, num_samples=10, quantiles=(0.1, 0.9)).levels) == {0.1, 0.9}


def test_an_ensemble_is_saved_loaded_resumed_and_reported(ensemble, data, tmp_path):
    fit, out = ensemble
    loaded = arcta.load(out)
    assert repr(loaded).startswith("Fit(3 members")
    np.testing.assert_array_equal(loaded.forecast(data[1].times).mean, fit.forecast(data[1].times).mean)
    options = {"ensemble": 3, "holdout": 0.2, "progress": False, "out": out, "resume": True}
    resumed = arcta.fit(MODEL, data[0], training=TRAINING, **options)
    for a, b in zip(jax.tree.leaves(resumed.members), jax.tree.leaves(fit.members), strict=True):
        np.testing.assert_array_equal(a, b)
    with pytest.raises(ValueError, match="members"):
        arcta.fit(MODEL, data[0], training=TRAINING, **{**options, "ensemble": 2})
    page = arcta.report(loaded, tmp_path, num_origins=2).read_text()
    assert "Two kinds of uncertainty" in page
    assert loaded.parameters().loc["diffusion[prey]", "q5"] < loaded.parameters().loc["diffusion[prey]", "q95"]


def test_the_vmapped_program_of_a_gpu_trains_as_the_cpus_threads_do(data):
    series = [data[0]]
    layout, reading = read_data(MODEL, series)
    modules = [build(MODEL, layout, reading, key=jax.random.key(i)) for i in range(2)]
    state = stack([start(module, TRAINING, key=jax.random.key(i)) for i, module in enumerate(modules)])
    windows = TrainingData(windows_of(series, layout.scaling, WindowShape(32, 0)))
    objective, stop = Objective(num_draws=4, num_times=16, kl_ramp=2), jnp.asarray(10, jnp.int32)
    arrays, means, _ = _advance(objective, TRAINING, state, windows, stop)
    threads = Members([TRAINING] * 2)
    after, _, _ = threads.advance(objective, TRAINING, state, windows, stop)
    np.testing.assert_allclose(means["loss"], threads.terms[0]["loss"], rtol=1e-4)
    np.testing.assert_allclose(arrays.model.initial.mean, after.model.initial.mean, rtol=1e-2, atol=1e-5)


def test_both_kinds_of_uncertainty_of_a_mixture_with_known_ones():
    """Members N(μ_i, 2²) with μ = −3, 0, 3: within 2, between 3, densities are the mixture's."""
    rng = np.random.default_rng(0)
    shape = (20_000, 1, 1)

    def one(mean: float) -> Prediction:
        values = mean + 2 * rng.standard_normal(shape)
        density = lambda x: -0.5 * ((x - mean) / 2) ** 2 - np.log(2 * np.sqrt(2 * np.pi))  # noqa: E731
        return Prediction("x", np.zeros(1), values, values, values, ("a",), ("",), "", None, density)

    both = mix([one(-3.0), one(0.0), one(3.0)])
    within, between = both.spreads()
    assert_estimate(within[0, 0], 2, error=2 / np.sqrt(2 * 60_000), detects=0.05)
    assert_estimate(between[0, 0], 3, error=2 / np.sqrt(20_000), detects=0.12)
    x = np.array([[1.3]])
    parts = [np.exp(-0.5 * ((1.3 - m) / 2) ** 2) / (2 * np.sqrt(2 * np.pi)) for m in (-3, 0, 3)]
    np.testing.assert_allclose(both.log_density(x), np.log(np.mean(parts)))
    with pytest.raises(ValueError, match="only an ensemble"):
        one(0.0).spreads()


def test_a_sweep_gives_each_variant_the_model_it_would_have_alone(data):
    usual = dataclasses.replace(MODEL, posterior="amortised")  # which another kl_weight needs
    variants = {
        "plain": (usual, TRAINING),
        "fast": (usual, dataclasses.replace(TRAINING, learning_rate=0.02, clip=1.0)),
        "weighted": (dataclasses.replace(usual, lengthscale=20.0), dataclasses.replace(TRAINING, kl_weight=0.1)),
        "again": (usual, TRAINING),
        "wide": (dataclasses.replace(usual, drift_sizes=(16,)), TRAINING),
    }
    fits = arcta.sweep(variants, data[0], progress=False)
    assert list(fits) == list(variants)
    assert fits["plain"].about["sweep"] == ["plain", "fast", "weighted", "again"]
    for name, (model, training) in variants.items():
        alone = arcta.fit(model, data[0], training=training, progress=False)
        np.testing.assert_allclose(fits[name].history[-1]["loss"], alone.history[-1]["loss"], rtol=1e-3)
        assert fits[name].training == training
    twins = arcta.sweep({"one": (MODEL, TRAINING), "other": (MODEL, TRAINING)}, data[0], progress=False)
    assert [len(fit.members) for fit in twins.values()] == [1, 1]
    drifts = {"forth": lambda t, z, p, u: [z[1], -z[0]], "back": lambda t, z, p, u: [-z[1], z[0]]}
    few = dataclasses.replace(TRAINING, steps=2)
    turning = {name: (dataclasses.replace(MODEL, drift=drift), few) for name, drift in drifts.items()}
    forth, back = arcta.sweep(turning, data[0], progress=False).values()
    assert forth.model.drift.function is drifts["forth"]
    assert back.model.drift.function is drifts["back"]
    with pytest.raises(ValueError, match="does not know ensemble"):
        arcta.fit(arcta.baselines.NeuralODE(), data[0], ensemble=2)
    with pytest.raises(ValueError, match="at least one"):
        arcta.sweep({}, data[0])
