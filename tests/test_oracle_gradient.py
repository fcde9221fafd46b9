"""Oracle 2: the mean of the gradient estimator over keys against dense quadrature, to the rates of `stochastic`.

The data is awkward on purpose: two series, irregular times, a ragged last partition, missing channels.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from stochastic import assert_mean

import arcta
from arcta.bound.objective import Objective
from arcta.bound.residual import residual
from arcta.data.batches import TrainingData, observed_entries, take
from arcta.data.windows import WindowShape, windows_of
from arcta.model.build import build
from arcta.model.reading import read_data
from arcta.parts.generative import Draw
from arcta.parts.networks import MLP
from arcta.runtime.sums import sum_over


def awkward(channels: int) -> list[arcta.Series]:
    rng = np.random.default_rng(0)
    series = []
    for name, n in (("a", 11), ("b", 7)):
        times = np.cumsum(rng.uniform(0.1, 1.0, n))
        values = np.sin(times)[:, None] + 0.3 * rng.standard_normal((n, channels))
        values[rng.random(values.shape) < 0.25] = np.nan
        values[0] = 1.0 + rng.standard_normal(channels)
        series.append(arcta.Series(times, values, name=name))
    return series


def hermite(size: int, order: int):
    roots, mass = np.polynomial.hermite_e.hermegauss(order)
    points = np.stack(np.meshgrid(*[roots] * size, indexing="ij"), -1).reshape(-1, size)
    masses = np.prod(np.stack(np.meshgrid(*[mass] * size, indexing="ij"), -1).reshape(-1, size), axis=1)
    return jnp.asarray(points), jnp.asarray(masses / masses.sum())


def dense_loss(model, windows, draws: Draw, draw_mass, order: int):
    """The whole data's loss by Gauss–Legendre in time and Gauss–Hermite in ε; parameters on given points with masses."""
    latent = len(model.initial.mean)
    epsilon, mass = hermite(latent, order)
    nodes, weights = np.polynomial.legendre.leggauss(48)
    nodes, weights = jnp.asarray(0.5 * (nodes + 1)), jnp.asarray(0.5 * weights)

    def one(window):
        posterior = model.posterior(window)
        at_nodes = posterior.at_nodes()
        mean, log_variance = at_nodes.mean, at_nodes.log_variance
        count = len(mean)
        mask = window.mask[:count] & window.scored[:count, None]

        def log_density(draw, e):
            outputs = jax.vmap(lambda z: model.decoder(z, draw.decoder))(mean + jnp.exp(0.5 * log_variance) * e)
            rows = jax.vmap(lambda x, o: model.likelihood.log_density(x, o, draw.likelihood))
            return jnp.sum(jnp.where(mask, rows(window.values[:count], outputs), 0))

        def rate(draw, t, e):
            r, q = residual(model, posterior(t), window.start + t, jnp.zeros(0), e, draw)
            return jnp.sum(r**2 / q)

        over_noise = jax.vmap(jax.vmap(log_density, (None, 0)), (0, None))(draws, epsilon)
        times = nodes * window.end
        rates = jax.vmap(jax.vmap(jax.vmap(rate, (None, None, 0)), (None, 0, None)), (0, None, None))
        log_likelihood = draw_mass @ over_noise @ mass
        path_kl = 0.5 * window.end * (draw_mass @ (rates(draws, times, epsilon) @ mass) @ weights)
        first = window.margin
        initial = at_nodes.at(first).kl(model.initial)
        return log_likelihood - path_kl - jnp.where(window.first, initial, 0)

    bounds = [one(take(windows, jnp.array(i))) for i in range(len(windows.first))]
    return -(sum(bounds) - model.parameter_kl()) / observed_entries(windows)


def check(model, windows, truth, *, num_keys: int, batch_size: int) -> None:
    parameters, static = eqx.partition(model, eqx.is_inexact_array)
    flat, unravel = ravel_pytree(parameters)
    objective = Objective(batch_size=batch_size, num_draws=2, num_times=3)
    exact_value, exact = jax.jit(jax.value_and_grad(lambda f: truth(eqx.combine(unravel(f), static))))(flat)

    def estimate(key):
        return jax.value_and_grad(
            lambda f: objective(eqx.combine(unravel(f), static), TrainingData(windows), jnp.array(9), key=key)[0]
        )(flat)

    keys = jax.random.split(jax.random.key(5), (num_keys // 250, 250))
    values, gradients = jax.lax.map(jax.jit(jax.vmap(estimate)), keys)
    values, gradients = np.asarray(values, float).ravel(), np.asarray(gradients, float).reshape(num_keys, -1)
    directions = np.random.default_rng(1).standard_normal((gradients.shape[1], 24))
    directions = np.concatenate([directions, np.eye(gradients.shape[1])[:, np.argsort(-np.abs(exact))[:8]]], axis=1)
    samples = np.concatenate([values[:, None], gradients @ directions], axis=1)
    expected = np.concatenate([[exact_value], np.asarray(exact, float) @ directions])
    errors = samples.std(axis=0) / np.sqrt(num_keys)
    slack = 1e-6 + 1e-4 * np.abs(expected)  # what is not random has float32's error only
    # Directions differ in how random they are; of the best one a bias of less than half is seen.
    assert_mean(samples, expected, detects=9 * errors + slack, slack=slack)
    assert np.abs(expected / (errors + slack)).max() > 20, "a test that could see a bias"


class Certain(eqx.Module):
    """A drift without uncertainty, so that the dense truth need not integrate over it."""

    net: MLP

    def __call__(self, t, z, u, parameters):
        return self.net(z)

    def draw(self, *, key):
        return {}

    def median(self):
        return {}

    def kl(self):
        return jnp.zeros(())


@pytest.mark.parametrize(("encoder", "batch_size"), [("window", 1), ("window", 3), ("local", 3)])
def test_gradient_is_unbiased_with_rotation_ragged_irregular_and_masked(encoder, batch_size):
    data = awkward(2)
    spec = arcta.LatentSDE(posterior="amortised",
        latent_size=2, encoder=encoder, decoder="mlp", lookahead=1, lookahead_dropout=0.0, partition_size=4, noise=0.4,
        activation="tanh", encoder_sizes=(5,), decoder_sizes=(4,), kernel_sizes=(3,), diffusion_start=0.5,
        drift=Certain(MLP((2, 6, 2), "tanh", rng=np.random.default_rng(4))),
    )  # fmt: skip
    layout, reading = read_data(spec, data)
    model = build(spec, layout, reading, key=jax.random.key(0))
    model = eqx.tree_at(lambda m: m.diffusion.level, model, arcta.Known(np.array([0.5, 0.8])))
    shape = WindowShape(4, *model.reach)
    windows = jax.tree.map(jnp.asarray, windows_of(data, layout.scaling, shape))
    assert len(windows.first) == 5
    draw = jax.vmap(lambda k: model.draw(key=k))(jax.random.split(jax.random.key(0), 1))
    check(
        model,
        windows,
        lambda m: dense_loss(m, windows, draw, jnp.ones(1), order=14),
        num_keys=4000,
        batch_size=batch_size,
    )


def test_gradient_is_unbiased_over_the_parameters_posteriors_too():
    data = awkward(1)
    spec = arcta.LatentSDE(posterior="amortised",
        latent_size=1, decoder="identity", encoder="window", lookahead=0, partition_size=4, noise="posterior",
        activation="tanh", encoder_sizes=(5,), kernel_sizes=(3,), diffusion_start=0.5,
        drift=Certain(MLP((1, 6, 1), "tanh", rng=np.random.default_rng(4))),
    )  # fmt: skip
    layout, reading = read_data(spec, data)
    model = build(spec, layout, reading, key=jax.random.key(0))
    spread = lambda m: (m.diffusion.level.log.log_std, m.likelihood.variance.log.log_std)  # noqa: E731
    model = eqx.tree_at(spread, model, (jnp.array([-1.0]), jnp.array([-1.2])))
    windows = jax.tree.map(jnp.asarray, windows_of(data, layout.scaling, WindowShape(4, 0)))

    def truth(m):
        points, mass = hermite(2, 12)
        diffusion, variance = m.diffusion.level.log, m.likelihood.variance.log
        draws = Draw(
            {},
            jnp.exp(diffusion.mean + jnp.exp(diffusion.log_std) * points[:, :1]),
            jnp.exp(variance.mean + jnp.exp(variance.log_std) * points[:, 1:]),
        )
        return dense_loss(m, windows, draws, mass, order=14)

    check(model, windows, truth, num_keys=4000, batch_size=1)


def test_gradient_is_unbiased_over_the_weights_of_drift_and_decoder():
    data = awkward(1)
    spec = arcta.LatentSDE(posterior="amortised",
        latent_size=1, encoder="window", lookahead=0, partition_size=4, noise=0.4, activation="tanh", encoder_sizes=(5,),
        drift_sizes=(2,), kernel_sizes=(3,),
    )  # fmt: skip
    layout, reading = read_data(spec, data)
    model = build(spec, layout, reading, key=jax.random.key(0))
    model = eqx.tree_at(lambda m: m.diffusion.level, model, arcta.Known(np.array([0.5])))
    wide = lambda m: (m.drift.linear.log_std, m.drift.weights.log_std, m.decoder.weights.log_std)  # noqa: E731
    model = eqx.tree_at(wide, model, replace_fn=lambda leaf: jnp.full_like(leaf, -1.0))
    windows = jax.tree.map(jnp.asarray, windows_of(data, layout.scaling, WindowShape(4, 0)))

    def truth(m):
        points, mass = hermite(4, 5)  # exact: the integrand is a polynomial of degree two in the weights
        around = lambda w, e: w.mean + jnp.exp(w.log_std) * e  # noqa: E731
        draws = Draw(
            {
                "linear": jax.vmap(lambda e: around(m.drift.linear, e[None, :1]))(points),
                "weights": jax.vmap(lambda e: around(m.drift.weights, e[None, 1:3]))(points),
                "bias": jnp.broadcast_to(m.drift.bias, (len(points), *m.drift.bias.shape)),
            },
            jnp.full((len(points), 1), 0.5),
            jnp.broadcast_to(jax.lax.stop_gradient(m.likelihood.variance.value), (len(points), 1)),
            jax.vmap(lambda e: around(m.decoder.weights, e[None, 3:]))(points),
        )
        return dense_loss(m, windows, draws, mass, order=10)

    check(model, windows, truth, num_keys=4000, batch_size=1)


def test_sums_over_items_and_their_derivative_are_those_of_all_at_once():
    model = {"a": jnp.array([0.3, -0.7]), "b": jnp.array(1.5), "name": "held"}
    items = (jax.random.normal(jax.random.key(0), (5, 2)), jnp.arange(5), jax.random.split(jax.random.key(1), 5))

    def function(model, item):
        x, i, key = item
        value = jnp.sum(jnp.sin(model["a"] * x)) * model["b"] ** i + jax.random.normal(key)
        return value, {"square": value**2}

    def plain(parts):
        values, reported = jax.vmap(lambda item: function({**model, **parts}, item))(items)
        return 3 * jnp.sum(values) ** 2, jax.tree.map(jnp.sum, reported)

    def ours(parts):
        value, reported = sum_over(function, {**model, **parts}, items)
        return 3 * value**2, reported

    parts = {name: model[name] for name in ("a", "b")}
    for of in (lambda f: f(parts), lambda f: jax.jit(jax.value_and_grad(f, has_aux=True))(parts)):
        for x, y in zip(jax.tree.leaves(of(ours)), jax.tree.leaves(of(plain)), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-5)
