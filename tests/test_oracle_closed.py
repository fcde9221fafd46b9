"""Closed forms against exact answers: what a chain says of shared numbers, and parameters learned from linear systems."""

from __future__ import annotations

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import linear
import numpy as np
import pytest
import scipy.linalg
from scipy.optimize import minimize_scalar
from stochastic import assert_mean_below
from test_oracle_smoother import linear_model, with_nodes

import arcta
from arcta.bound.elbo import elbo
from arcta.parts.chain import Information, Steps, adjoints, information, information_of_noise, respond, smooth
from arcta.parts.smoother import smooth_rows
from arcta.training.prepare import prepare


@pytest.fixture
def double():
    with jax.enable_x64(True):
        yield


def random_chain(d: int, n: int, p: int, seed: int = 0):
    rng = np.random.default_rng([d, seed])
    Φ = 0.5 * rng.standard_normal((n - 1, d, d))
    roots = rng.standard_normal((n - 1, d, d))
    steps = Steps(
        *map(jnp.asarray, (Φ, rng.standard_normal((n - 1, d)), roots @ np.swapaxes(roots, 1, 2) + 0.1 * np.eye(d)))
    )
    H = rng.standard_normal((n, 1, d)) * (rng.random((n, 1, 1)) < 0.7)
    x = rng.standard_normal((n, 1))
    seen = Information(jnp.asarray(np.swapaxes(H, 1, 2) @ H), jnp.asarray(np.einsum("nci,nc->ni", H, x)))
    return steps, seen, jnp.asarray(rng.standard_normal((n - 1, d, p)))


@pytest.mark.parametrize("d", [1, 2, 4])
def test_a_chain_answers_to_shared_numbers_as_one_joint_gaussian_does(d, double):
    """e, c jointly normal: the dense precision says what c's is, and how e's mean moves with c."""
    n, p = 6, 3
    steps, seen, Ψ = random_chain(d, n, p)
    found = smooth(steps, seen, jnp.zeros(d), jnp.eye(d))
    answer = respond(steps, seen, found, Ψ)
    size = n * d
    precision, shift = np.zeros((size + p, size + p)), np.zeros(size + p)
    precision[:d, :d] += np.eye(d)
    for i in range(n):
        at = slice(i * d, (i + 1) * d)
        precision[at, at] += np.asarray(seen.Λ[i])
        shift[at] += np.asarray(seen.η[i])
    for i in range(n - 1):  # e' − Φ e − Ψ c ~ N(ρ, Q)
        B = np.zeros((d, size + p))
        B[:, (i + 1) * d : (i + 2) * d], B[:, i * d : (i + 1) * d] = np.eye(d), -np.asarray(steps.Φ[i])
        B[:, size:] = -np.asarray(Ψ[i])
        inverse = np.linalg.inv(np.asarray(steps.Q[i]))
        precision += B.T @ inverse @ B
        shift += B.T @ inverse @ np.asarray(steps.ρ[i])
    inner, cross = precision[:size, :size], precision[:size, size:]
    np.testing.assert_allclose(found.e.ravel(), np.linalg.solve(inner, shift[:size]), atol=1e-9)
    np.testing.assert_allclose(answer.e.reshape(size, p), -np.linalg.solve(inner, cross), atol=1e-9)
    of_c = precision[size:, size:] - cross.T @ np.linalg.solve(inner, cross)
    counted = jnp.ones(n, bool)
    np.testing.assert_allclose(information(answer.ahead, seen, found.P, counted), of_c, atol=1e-8)


@pytest.mark.parametrize("d", [1, 2, 4])
def test_a_chain_smoothed_in_parallel_is_the_same(d, double):
    steps, seen, _ = random_chain(d, 37, 1)
    one, other = (smooth(steps, seen, jnp.ones(d), jnp.eye(d), parallel=way) for way in (False, True))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-9), one, other)


F, Q = np.array([[-0.3, 1.5], [-1.5, -0.3]]), np.array([0.3, 0.3])


@pytest.mark.parametrize("count", [5, 10, 20, 50])
@pytest.mark.parametrize("noise", [0.05, 0.3, 1.0])
def test_the_posterior_of_a_spiral_is_the_exact_one(noise, count, double):
    """KL from the exact posterior at times between the observations, the mean over 16 trials, below 0.01 nats."""
    model = linear_model(F, Q, np.eye(2), np.zeros(2), np.eye(2))
    model = eqx.tree_at(lambda m: m.likelihood.variance, model, arcta.Known(np.full(2, noise**2)))
    find = jax.jit(
        lambda rows, ts: jax.vmap(lambda t: smooth_rows(model, rows, jnp.zeros((len(rows.times), 2)))[0](t).normal)(ts)
    )
    gaps = []
    for trial in range(16):
        rng = np.random.default_rng([count, trial, round(100 * noise)])
        times = np.linspace(0, 10, count)
        xs = linear.simulate(F, Q, np.zeros(2), np.eye(2), times, noise**2, rng)
        query = np.sort(rng.uniform(0, 10, 6))
        mean, covariance = linear.joint(F, Q, np.zeros(2), np.eye(2), times, xs, noise**2, query)
        normal = find(with_nodes(times, xs, 0.4), jnp.asarray(query))
        for m, S, ours, factor in zip(mean, covariance, normal.mean, normal.factor, strict=True):
            T = np.asarray(factor @ factor.T)
            away, inverse = np.asarray(ours) - m, np.linalg.inv(S)
            logs = np.linalg.slogdet(S)[1] - np.linalg.slogdet(T)[1]
            gaps.append(0.5 * (np.trace(inverse @ T) + away @ inverse @ away - 2 + logs))
    assert 0 <= np.mean(gaps) < 0.01


RATE, DIFFUSION, VARIANCE = 1.3, 0.8, 0.05


@pytest.fixture(scope="module")
def relaxation():
    """An OU process, its exact log-likelihood by rate and diffusion, and a configuration that knows all but what is asked for."""
    times = 0.2 * np.arange(400)
    series = arcta.datasets.ornstein_uhlenbeck(times, rate=RATE, diffusion=DIFFUSION, noise=VARIANCE**0.5, seed=3)

    def log_likelihood(rate: float, diffusion: float, start: np.ndarray) -> float:
        return linear.log_likelihood(
            np.array([[-rate]]), np.array([diffusion]), start[:1], np.diag(start[1:]), times, series.values, VARIANCE
        )

    spec = arcta.LatentSDE(
        decoder="identity",
        noise=VARIANCE**0.5,
        drift=lambda t, z, p, u: [-p["rate"] * z[0]],
        parameters={"rate": arcta.LogNormal(1.0, 1.0)},
        diffusion_prior=(1.0, 100.0),
    )
    return series, log_likelihood, spec


def learned_start(fit: arcta.Fit) -> np.ndarray:
    """Mean and variance of p(z0) in the data's units."""
    scaling, initial = fit.layout.scaling, fit.model.initial
    mean, variance = np.asarray(initial.mean, float), np.exp(np.asarray(initial.log_variance, float))
    return np.concatenate([scaling.shift + scaling.scale * mean, scaling.scale**2 * variance])


def test_the_posterior_of_a_rate_is_that_of_the_exact_likelihood(relaxation):
    """On a grid: centred on its mode at the learned diffusion to 0.02 standard deviations; those, of rate and of diffusion, within
    10 % of the exact ones, the other integrated out. (The posterior of log rate is skewed: its mean is 0.2 of them below.)"""
    series, log_likelihood, spec = relaxation
    fit = arcta.fit(spec, series, training=arcta.Training(steps=1500), progress=False)
    table = fit.parameters()
    q, start = table.loc["diffusion[x0]", "median"], learned_start(fit)
    ours, level = fit.model.drift.named_parameters()["rate"].log, fit.model.diffusion.level.log
    stds, reach = np.exp([float(ours.log_std), float(level.log_std[0])]), np.linspace(-4.5, 4.5, 10)
    grids = float(ours.mean) + stds[0] * reach, np.log(q) + stds[1] * reach
    logs = np.array([[log_likelihood(np.exp(x), np.exp(y), start) - 0.5 * x**2 for y in grids[1]] for x in grids[0]])
    weight = np.exp(logs - logs.max())
    weight /= weight.sum()
    exact = []
    for grid, alone in zip(grids, (weight.sum(axis=1), weight.sum(axis=0)), strict=True):
        exact.append(np.sqrt(alone @ (grid - alone @ grid) ** 2))
    std = exact[0]
    mode = minimize_scalar(
        lambda x: 0.5 * x**2 - log_likelihood(np.exp(x), q, start), bounds=(-1, 1), method="bounded"
    ).x
    assert abs(float(ours.mean) - mode) < 0.02 * std
    np.testing.assert_allclose(stds, exact, rtol=0.1)


def test_the_diffusion_is_the_most_likely_one(relaxation):
    """At the learned rate: the closed form's fixed point against the maximum of the exact likelihood."""
    series, log_likelihood, spec = relaxation
    known = dataclasses.replace(spec, parameters={"rate": arcta.Known(RATE)})
    fit = arcta.fit(known, series, training=arcta.Training(steps=1500), progress=False)
    q, start = fit.parameters().loc["diffusion[x0]", "median"], learned_start(fit)
    best = minimize_scalar(lambda x: -log_likelihood(RATE, np.exp(x), start), bounds=(-3, 3), method="bounded").x
    assert abs(np.log(q) - best) < 0.02


def test_the_bound_with_the_joint_posterior_of_rate_and_path_is_the_evidence(relaxation):
    """log ∫ p(x | rate) p(rate) d rate on a grid. With rate and path independent the bound would be looser by more than a nat."""
    series, log_likelihood, spec = relaxation
    fit = arcta.fit(spec, series, training=arcta.Training(steps=1500), progress=False)
    q, start, scaling = fit.parameters().loc["diffusion[x0]", "median"], learned_start(fit), fit.layout.scaling
    grid = np.linspace(-1.2, 1.5, 200)
    logs = np.array([log_likelihood(np.exp(x), q, start) - 0.5 * x**2 - 0.5 * np.log(2 * np.pi) for x in grid])
    exact = logs.max() + np.log(np.exp(logs - logs.max()).sum() * (grid[1] - grid[0]))
    exact += len(series) * np.log(scaling.scale[0])  # densities in the model's units
    windows = prepare(
        dataclasses.replace(spec, partition_size=400), series, fit.training, key=jax.random.key(0)
    ).windows
    window = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), windows)
    certain = arcta.Known(fit.model.diffusion.median())
    model = eqx.tree_at(lambda m: m.diffusion.level, fit.model, certain)
    bounds = [float(elbo(model, window, num_draws=64, num_times=64, key=jax.random.key(i)).total()) for i in range(40)]
    assert np.mean(bounds) - exact > -0.5
    # The grid of the exact value and float32 leave a little.
    assert_mean_below(bounds, exact, detects=12.0, slack=0.05)


def log_likelihood_of_chain(steps, seen, P):
    """log p of everything seen, up to what no step changes: the chain as one Gaussian, given potentials η, Λ."""
    n, d = len(seen.η), seen.η.shape[1]
    mean, covariance = [np.zeros(d)], np.zeros((n * d, n * d))
    covariance[:d, :d] = P
    for i in range(n - 1):
        Φ, at, next_ = np.asarray(steps.Φ[i]), slice(i * d, (i + 1) * d), slice((i + 1) * d, (i + 2) * d)
        mean.append(Φ @ mean[-1] + np.asarray(steps.ρ[i]))
        covariance[next_, : (i + 1) * d] = Φ @ covariance[at, : (i + 1) * d]
        covariance[: (i + 1) * d, next_] = covariance[next_, : (i + 1) * d].T
        covariance[next_, next_] = Φ @ covariance[at, at] @ Φ.T + np.asarray(steps.Q[i])
    precision = np.linalg.inv(covariance)
    Λ = scipy.linalg.block_diag(*np.asarray(seen.Λ))
    m, η = np.concatenate(mean), np.asarray(seen.η).ravel()
    both = precision + Λ
    shift = precision @ m + η
    logs = np.linalg.slogdet(precision)[1] - np.linalg.slogdet(both)[1]
    return 0.5 * (logs + shift @ np.linalg.solve(both, shift) - m @ precision @ m)


@pytest.mark.parametrize("d", [1, 3])
def test_the_slope_in_the_noise_of_a_chain_is_that_of_its_likelihood(d, double):
    """½ tr(∂Q (λ λᵀ − N)) right before the nodes, against a difference of the dense log-likelihood."""
    steps, seen, _ = random_chain(d, 6, 1, seed=1)
    found = smooth(steps, seen, jnp.zeros(d), jnp.eye(d))
    _, before = adjoints(seen, found)
    change = 0.3 * np.eye(d) + 0.1
    slope = 0.5 * np.einsum("ij,nji->", change, np.asarray(before.λ[1:, :, None] * before.λ[1:, None] - before.N[1:]))
    ends = [log_likelihood_of_chain(steps._replace(Q=steps.Q + x * change), seen, np.eye(d)) for x in (-1e-5, 1e-5)]
    np.testing.assert_allclose(slope, (ends[1] - ends[0]) / 2e-5, rtol=1e-6)


def test_the_information_about_the_noise_of_a_chain_is_the_variance_of_that_slope(double):
    """Over 4,000 draws of what is seen; the variance of so many slopes is known to 3 %, so that 10 % is three errors away."""
    d, n = 2, 8
    steps, seen, _ = random_chain(d, n, 1, seed=2)
    steps = steps._replace(ρ=jnp.zeros_like(steps.ρ))
    changes = jnp.stack([jnp.diag(jnp.eye(d)[k]) for k in range(d)])[None].repeat(n - 1, axis=0)
    rng, counted = np.random.default_rng(0), jnp.ones(n, bool)
    roots = np.linalg.cholesky(np.asarray(steps.Q))
    H = np.linalg.cholesky(np.asarray(seen.Λ) + 1e-12 * np.eye(d))  # Λ = H Hᵀ: d observations of unit noise

    @jax.jit
    def of(η):
        what = Information(seen.Λ, η)
        found = smooth(steps, what, jnp.zeros(d), jnp.eye(d))
        _, before = adjoints(what, found)
        more = (before.λ[:, :, None] * before.λ[:, None] - before.N)[1:]
        return 0.5 * jnp.einsum("nkij,nji->k", changes, more), information_of_noise(
            steps, what, found, changes, counted
        )

    slopes, known = [], []
    for _ in range(4000):
        z = [rng.standard_normal(d)]
        for i in range(n - 1):
            z.append(np.asarray(steps.Φ[i]) @ z[-1] + roots[i] @ rng.standard_normal(d))
        seen_now = np.einsum("nji,nj->ni", H, np.array(z)) + rng.standard_normal((n, d))
        slope, information_now = of(jnp.asarray(np.einsum("nij,nj->ni", H, seen_now)))
        slopes.append(np.asarray(slope))
        known.append(np.asarray(information_now))
    np.testing.assert_allclose(np.mean(known, axis=0), np.cov(np.array(slopes).T), rtol=0.1, atol=0.02)


def test_a_law_without_noise_has_the_exact_posterior():
    """Decay dz = −k z from an unknown start, 20 observations with unknown noise, almost no diffusion: the posterior on a grid of
    k, z0 and σ. Means within 0.1 standard deviations, those within 15 %."""
    rng = np.random.default_rng(5)
    times = np.linspace(0.2, 4, 20)
    x = 3 * np.exp(-0.7 * times) + 0.2 * rng.standard_normal(20)
    spec = arcta.LatentSDE(
        decoder="identity",
        drift=lambda t, z, p, u: [-p["k"] * z[0]],
        parameters={"k": arcta.TruncatedNormal(1.0, 0.5)},
        noise=arcta.LogNormal(0.3, 1.0),
        initial=(2.0, 2.0),
        diffusion_prior=(1e-6, 0.01),
    )
    fit = arcta.fit(spec, arcta.Series(times, x[:, None]), progress=False)
    k, start, σ = np.meshgrid(
        np.linspace(0.4, 1.1, 90), np.linspace(1.8, 3.6, 90), np.exp(np.linspace(-2.4, -0.8, 60)), indexing="ij"
    )
    path = start[..., None] * np.exp(-k[..., None] * (times - times[0]))
    logs = -0.5 * ((k - 1) / 0.5) ** 2 - 0.5 * ((start - 2) / 2) ** 2 - 0.5 * np.log(σ / 0.3) ** 2
    logs += np.sum(-0.5 * ((x - path) / σ[..., None]) ** 2, axis=-1) - 20 * np.log(σ)
    weight = np.exp(logs - logs.max())
    weight /= weight.sum()
    ours = {"k": fit.model.drift.named_parameters()["k"].log, "σ": fit.model.likelihood.variance.log}
    for name, grid in (("k", k), ("σ", σ)):
        mean, std = float(np.ravel(ours[name].mean)[0]), float(np.exp(np.ravel(ours[name].log_std)[0]))
        draws = np.exp(mean + std * rng.standard_normal(200_000))
        draws = draws if name == "k" else np.sqrt(draws) * float(fit.layout.scaling.scale[0])
        exact = np.sum(weight * grid)
        exact_std = np.sqrt(np.sum(weight * (grid - exact) ** 2))
        assert abs(draws.mean() - exact) < 0.1 * exact_std
        assert abs(draws.std() / exact_std - 1) < 0.15
