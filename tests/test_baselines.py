"""Rivals on a solver: gradients against closed forms and each other, any spacing of times, and the same interface as `Fit`."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp
from stochastic import assert_variance

import arcta
from arcta.data.windows import WindowShape, windows_of
from arcta.model.reading import read_data
from arcta.model.spec import LatentSDE
from arcta.rivals.baselines import LatentODE, NeuralODE, SolvedSDE, assemble
from arcta.rivals.solved import Clock, solve_ode, solve_sde


def decay(t, z, rate):
    return -rate * z


@pytest.mark.parametrize("gradient", ["adjoint", "backprop"])
def test_gradient_of_exponential_decay(gradient):
    """d/dλ of z₀ e^{−λt} is −t z₀ e^{−λt}, at every output time."""
    times = jnp.array([0.0, 0.3, 1.0, 2.5])

    def total(rate):
        return jnp.sum(solve_ode(decay, jnp.array([2.0]), times, rate, tolerance=1e-6, gradient=gradient).states)

    value, slope = jax.value_and_grad(total)(jnp.array(0.7))
    assert value == pytest.approx(np.sum(2 * np.exp(-0.7 * np.array(times))), rel=1e-4)
    assert slope == pytest.approx(np.sum(-np.array(times) * 2 * np.exp(-0.7 * np.array(times))), rel=1e-3)


def test_stochastic_adjoint_is_the_gradient_of_the_sampled_path():
    """dz = −λ z dt + 0.3 dβ: adjoint and backpropagation agree on the same Brownian path as the step shrinks."""
    times = jnp.array([0.0, 0.5, 1.0])

    def total(rate, gradient):
        options = {"step": 0.005, "gradient": gradient, "key": jax.random.key(3)}
        spread = lambda t, z, args: 0.3 * jnp.ones_like(z)  # noqa: E731
        return jnp.sum(solve_sde((decay, spread), jnp.array([1.0]), times, rate, **options).states)

    adjoint, backprop = (jax.grad(total)(jnp.array(0.7), gradient) for gradient in ("adjoint", "backprop"))
    assert adjoint == pytest.approx(float(backprop), rel=0.02)


def test_stationary_variance_of_solved_ou():
    """dz = −z dt + √2 dβ from 0 has variance 1 − e^{−2t}."""
    times = jnp.array([0.0, 1.5])

    def end(key):
        spread = lambda t, z, args: jnp.sqrt(2.0) * jnp.ones_like(z)  # noqa: E731
        return solve_sde((decay, spread), jnp.zeros(1), times, jnp.array(1.0), step=0.05, key=key).states[-1, 0]

    ends = np.asarray(jax.vmap(end)(jax.random.split(jax.random.key(0), 4000)))
    exact = 1 - np.exp(-3.0)
    assert_variance(ends, exact, detects=0.25)


def ragged(seed: int = 0) -> list[arcta.Series]:
    rng = np.random.default_rng(seed)
    times = [np.cumsum(rng.exponential(0.2, n)) for n in (11, 7)]
    return [arcta.Series(t, np.stack([np.cos(t), np.sin(t)], axis=1), name=f"s{i}") for i, t in enumerate(times)]


def test_one_solve_serves_windows_of_any_spacing():
    """All windows at once on the rows' clock, against scipy on each window's own times."""
    data = ragged()
    spec = LatentSDE(decoder="identity", encoder="window", lookahead=0, drift="plain", noise=0.1, partition_size=4)
    layout, reading = read_data(spec, data)
    windows = jax.tree.map(jnp.asarray, windows_of(data, layout.scaling, WindowShape(4, 0)))
    rival = NeuralODE(drift_sizes=(8,), tolerance=1e-6)
    solved = assemble(rival, spec, layout, reading, key=jax.random.key(1))
    draw = solved.draw(key=jax.random.key(0))
    states = np.asarray(solved.through(windows, draw, key=jax.random.key(0))[0].states)
    for w in range(len(windows.first)):
        count = int(np.sum(np.asarray(windows.node)[w]))
        times = np.asarray(windows.times, float)[w, :count]

        def rate(t, z):
            return np.asarray(solved.drift(jnp.asarray(t), jnp.asarray(z, jnp.float32), jnp.zeros(0), {}), float)

        exact = solve_ivp(
            rate, (0, times[-1]), np.asarray(windows.values)[w, 0], t_eval=times, rtol=1e-6, atol=1e-8
        ).y.T
        # The clock is only once differentiable at the rows, where the solver's interpolant is a little less exact.
        np.testing.assert_allclose(states[:count, w], exact, atol=1e-3)


def test_clock_rate_is_the_derivative_and_meets_the_times():
    data = ragged()
    spec = LatentSDE(decoder="identity", encoder="window", lookahead=0, noise=0.1, partition_size=4)
    windows = jax.tree.map(jnp.asarray, windows_of(data, read_data(spec, data)[0].scaling, WindowShape(4, 0)))
    clock = Clock(windows)
    for row in range(clock.times.shape[1]):
        np.testing.assert_allclose(clock(jnp.asarray(float(row)))[0], clock.times[:, row], rtol=1e-5, atol=1e-6)
    for r in (0.2, 1.7, 3.4):
        slope = jax.jvp(lambda x: clock(x)[0], (jnp.asarray(r),), (jnp.asarray(1.0),))[1]
        np.testing.assert_allclose(clock(jnp.asarray(r))[1], slope, rtol=1e-4)
        assert (np.asarray(slope) > 0).all()


def test_gradients_agree_between_adjoint_and_backprop():
    data = ragged()
    spec = LatentSDE(decoder="identity", encoder="window", lookahead=0, drift="plain", noise=0.1, partition_size=4)
    layout, reading = read_data(spec, data)
    windows = jax.tree.map(jnp.asarray, windows_of(data, layout.scaling, WindowShape(4, 0)))

    def slopes(gradient):
        rival = NeuralODE(drift_sizes=(8,), tolerance=1e-5, gradient=gradient)
        solved = assemble(rival, spec, layout, reading, key=jax.random.key(1))
        loss = lambda s: jnp.sum(s.terms(windows, key=jax.random.key(0))[0])  # noqa: E731
        return np.concatenate([np.ravel(x) for x in jax.tree.leaves(eqx.filter_grad(loss)(solved).drift)])

    adjoint, backprop = slopes("adjoint"), slopes("backprop")
    assert np.linalg.norm(adjoint - backprop) < 0.01 * np.linalg.norm(backprop)


@pytest.mark.parametrize(
    "rival",
    [
        NeuralODE(drift_sizes=(8,), gradient="backprop"),
        LatentODE(latent_size=2, drift_sizes=(8,), hidden_size=4, partition_size=8, gradient="backprop"),
        SolvedSDE(latent_size=2, drift_sizes=(8,), hidden_size=4, partition_size=8, gradient="backprop", substeps=1),
    ],
    ids=lambda rival: type(rival).__name__,
)
def test_same_interface_as_fit(rival):
    """Two irregular series with a gap in one channel: train, forecast, score; evaluations are counted."""
    data = [
        arcta.Series(s.times, np.where(s.times[:, None] > 1, s.values, [np.nan, 0.3]), name=s.name) for s in ragged(1)
    ]
    training = arcta.Training(steps=4, batch_size=3, log_every=2)
    fit = arcta.fit(rival, data, training=training, progress=False)
    later = data[0].times[-1] + np.array([0.1, 0.5])
    ahead = fit.forecast(later, given=data[0], num_samples=3)
    assert ahead.signal.shape == (3, 2, 2)
    assert np.isfinite(ahead.observations).all()
    assert set(fit.forecast(20 + later, num_samples=2)) == {"s0", "s1"}
    test = arcta.Series(later, np.zeros((2, 2)), name="s0")
    assert np.isfinite(fit.score(test)["rmse"])
    counts = [row["drift_evaluations"] for row in fit.history]
    assert counts[1] > counts[0] > 0
    with pytest.raises(ValueError, match="does not know out="):
        arcta.fit(rival, data, out="somewhere")
