"""The smoother posterior against exact answers: for linear dynamics the bound IS the log-likelihood, whatever the channels see."""

from __future__ import annotations

import dataclasses
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import linear
import numpy as np
import pytest
from stochastic import assert_estimate, assert_variance

import arcta
from arcta.bound.residual import residual
from arcta.parts.decoders import LinearDecoder
from arcta.parts.diffusion import Diffusion
from arcta.parts.encoders import WindowEncoder
from arcta.parts.kernel import DeepKernel, interpolate
from arcta.parts.likelihoods import Gaussian
from arcta.parts.model import Model
from arcta.parts.networks import MLP
from arcta.parts.physics import ParametricDrift
from arcta.parts.posterior import Bridge, DiagonalNormal, FullMarginal, FullNormal, FullPosterior, turning
from arcta.parts.prior import Known
from arcta.parts.smoother import Rows, SmoothedPosterior, _cubic, _slopes, smooth_rows
from arcta.predict import recognise
from arcta.predict.recognise import refined
from arcta.runtime.small import factor, solve_lower, solve_upper


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


def random_matrices(d: int, seed: int = 0) -> tuple[np.ndarray, ...]:
    """A covariance, its rate, a Jacobian and a diffusion."""
    rng = np.random.default_rng([d, seed])
    root, rate = rng.standard_normal((2, d, d))
    return root @ root.T + 0.1 * np.eye(d), rate + rate.T, rng.standard_normal((d, d)), np.exp(rng.uniform(-2, 1, d))


@pytest.mark.parametrize("d", [1, 2, 5])
def test_small_algebra_against_lapack(d):
    S, *_ = random_matrices(d)
    b = np.arange(1.0, d + 1)
    np.testing.assert_allclose(factor(jnp.asarray(S)), np.linalg.cholesky(S), atol=1e-12)
    triangle = jnp.asarray(np.linalg.cholesky(S))
    np.testing.assert_allclose(solve_lower(triangle, jnp.asarray(b)), np.linalg.solve(triangle, b), rtol=1e-10)
    np.testing.assert_allclose(solve_upper(triangle, jnp.asarray(b)), np.linalg.solve(triangle.T, b), rtol=1e-10)


@pytest.mark.parametrize("d", [1, 2, 4])
def test_the_drift_of_a_full_marginal_keeps_mean_and_covariance(d):
    """E g = ṁ and E[g δᵀ] + E[δ gᵀ] + Q = Ṡ, with the turning part and without."""
    S, Ṡ, J, q = (jnp.asarray(x) for x in random_matrices(d))
    ṁ = jnp.arange(1.0, d + 1)
    marginal = FullMarginal(FullNormal(jnp.zeros(d), factor(S)), ṁ, Ṡ)
    for jacobian in (None, J):
        slope = jax.jacfwd(lambda δ, jacobian=jacobian: marginal.drift(δ, q, jacobian))(jnp.zeros(d))
        np.testing.assert_allclose(marginal.drift(jnp.zeros(d), q, jacobian), ṁ)
        np.testing.assert_allclose(slope @ S + (slope @ S).T + jnp.diag(q), Ṡ, atol=1e-9)


@pytest.mark.parametrize("d", [2, 3, 5])
def test_the_turning_part_is_the_best_skew_matrix(d):
    S, Ṡ, J, q = random_matrices(d)
    C = J @ S - 0.5 * (Ṡ - np.diag(q))
    ours = np.asarray(turning(*(jnp.asarray(x) for x in (C, S, q))))
    np.testing.assert_allclose(ours, -ours.T, atol=1e-9)
    upper = np.triu_indices(d, 1)

    def skew(entries: np.ndarray) -> np.ndarray:
        K = np.zeros((d, d))
        K[upper] = entries
        return K - K.T

    # tr[(K − C) S⁻¹ (K − C)ᵀ Q⁻¹] as least squares in the free entries of K.
    root = np.linalg.cholesky(np.linalg.inv(S))
    columns = [((skew(e) @ root) / np.sqrt(q)[:, None]).ravel() for e in np.eye(len(upper[0]))]
    best = np.linalg.lstsq(np.stack(columns, axis=1), ((C @ root) / np.sqrt(q)[:, None]).ravel(), rcond=None)[0]
    np.testing.assert_allclose(ours, skew(best), atol=1e-8)


def test_kl_of_full_normals_against_the_closed_form_and_the_diagonal_one():
    S, *_ = random_matrices(3)
    T, *_ = random_matrices(3, 1)
    m, n = np.array([0.3, -1.0, 2.0]), np.zeros(3)
    ours = FullNormal(jnp.asarray(m), factor(jnp.asarray(S))).kl(FullNormal(jnp.asarray(n), factor(jnp.asarray(T))))
    inverse = np.linalg.inv(T)
    logs = np.linalg.slogdet(T)[1] - np.linalg.slogdet(S)[1]
    assert float(ours) == pytest.approx(0.5 * (np.trace(inverse @ S) + (n - m) @ inverse @ (n - m) - 3 + logs))
    prior = DiagonalNormal(jnp.asarray(n), jnp.log(jnp.array([1.0, 2.0, 0.5])))
    plain = DiagonalNormal(jnp.asarray(m), jnp.log(jnp.array([0.1, 0.2, 0.3])))
    full = FullNormal(plain.mean, factor(plain.covariance()))
    assert float(full.kl(prior)) == pytest.approx(float(plain.kl(prior)))


def problem(d: int, seed: int, n: int = 40):
    """A random stable system, read-out and irregular times; 40 % of the entries are missing, one channel sees one axis only."""
    rng = np.random.default_rng([d, seed])
    A = rng.standard_normal((d, d))
    F = A - A.T + 0.3 * rng.standard_normal((d, d))
    F = F - (max(np.linalg.eigvals(F).real.max(), 0) + 0.2) * np.eye(d)
    q, H = np.exp(rng.uniform(-3, 0, d)), rng.standard_normal((rng.integers(1, d + 2), d))
    H[0] = np.eye(d)[rng.integers(d)]
    m0, P0 = rng.standard_normal(d), np.diag(np.exp(rng.uniform(-1, 1, d)))
    times = np.cumsum(rng.exponential(0.2, n))
    states = linear.simulate(F, q, m0, P0, times, 1e-12, rng)
    xs = states @ H.T + np.sqrt(0.05) * rng.standard_normal((n, len(H)))
    xs[rng.random(xs.shape) < 0.4] = np.nan
    return F, q, H, m0, P0, times, xs


def log_likelihood(F, q, H, m0, P0, times, xs) -> float:
    m, P, total = m0, P0, 0.0
    for i, x in enumerate(xs):
        if i:
            A, Q = linear.transition(F, q, times[i] - times[i - 1])
            m, P = A @ m, A @ P @ A.T + Q
        seen = ~np.isnan(x)
        V = H[seen] @ P @ H[seen].T + 0.05 * np.eye(seen.sum())
        error, gain = x[seen] - H[seen] @ m, P @ H[seen].T @ np.linalg.inv(V)
        total += -0.5 * (error @ np.linalg.solve(V, error) + np.linalg.slogdet(2 * np.pi * V)[1])
        m, P = m + gain @ error, P - gain @ H[seen] @ P
    return total


def linear_model(F, q, H, m0, P0) -> Model:
    d, rng = len(q), np.random.default_rng(0)
    decoder = LinearDecoder(d, np.zeros(len(H)), rng=rng)
    certain = (jnp.asarray(H), jnp.full(H.shape, -40.0))
    return Model(
        encoder=WindowEncoder(MLP((2 * d, 2 * d), rng=rng), jnp.zeros(()), latent_size=d, lookahead=0),
        kernel=DeepKernel(rng=rng),
        drift=ParametricDrift(lambda t, z, p, u: jnp.asarray(F) @ z, {}),
        diffusion=Diffusion(Known(q), d, rng=rng),
        initial=DiagonalNormal(jnp.asarray(m0), jnp.log(jnp.diag(jnp.asarray(P0)))),
        decoder=eqx.tree_at(lambda e: (e.weights.mean, e.weights.log_std), decoder, certain),
        likelihood=Gaussian(Known(np.full(len(H), 0.05))),
    )


def with_nodes(times: np.ndarray, xs: np.ndarray, longest: float) -> Rows:
    """The observed rows, and empty ones where two of them are far apart."""
    grid = [times[:1]]
    for a, b in itertools.pairwise(times):
        grid.append(np.linspace(a, b, int(np.ceil((b - a) / longest)) + 1)[1:])
    nodes = np.concatenate(grid)
    values = np.full((len(nodes), xs.shape[1]), np.nan)
    values[np.searchsorted(nodes, times - 1e-12)] = xs
    mask = ~np.isnan(values)
    made = (nodes[0], nodes - nodes[0], np.where(mask, values, 0), mask, True)
    return Rows(*(jnp.asarray(x) for x in made), jnp.zeros(0), jnp.zeros((0, 0)))


def exact_bound(model: Model, rows: Rows, posterior: SmoothedPosterior, H: np.ndarray) -> float:
    """The bound by quadrature. r is affine in ε, so that E‖r‖² needs its values at 0 and at the unit vectors alone."""
    d = len(model.initial.mean)
    roots, mass = np.polynomial.legendre.leggauss(6)
    h = jnp.diff(rows.times)
    ts, weight = (rows.times[:-1, None] + h[:, None] * (roots + 1) / 2).ravel(), (h[:, None] * mass / 2).ravel()
    θ, ε = model.median(), jnp.concatenate([jnp.zeros((1, d)), jnp.eye(d)])

    def rate(t):
        r, q = jax.vmap(lambda e: residual(model, posterior(t), t, jnp.zeros(0), e, θ))(ε)
        return jnp.sum(r[0] ** 2 / q[0]) + jnp.sum((r[1:] - r[0]) ** 2 / q[0])

    path_kl = 0.5 * weight @ jax.jit(jax.vmap(rate))(ts)
    normal = posterior.at_nodes()
    spread = jnp.einsum("ci,nij,cj->nc", H, normal.covariance(), H)
    densities = -0.5 * (((rows.values - normal.mean @ H.T) ** 2 + spread) / 0.05 + np.log(2 * np.pi * 0.05))
    return float(jnp.sum(jnp.where(rows.mask, densities, 0)) - path_kl - normal.at(0).kl(model.initial))


@pytest.mark.parametrize("d", range(1, 7))
@pytest.mark.parametrize("seed", range(2))
def test_the_bound_of_linear_systems_is_their_log_likelihood(d, seed):
    F, q, H, m0, P0, times, xs = problem(d, seed)
    exact = log_likelihood(F, q, H, m0, P0, times, xs)
    model, rows = linear_model(F, q, H, m0, P0), with_nodes(times, xs, 0.1)
    posterior = jax.jit(lambda rows: smooth_rows(model, rows, jnp.zeros((len(rows.times), d)), passes=2)[0])(rows)
    gap = (exact - exact_bound(model, rows, posterior, H)) / np.isfinite(xs).sum()
    assert abs(gap) < 2e-4


@pytest.fixture(scope="module")
def oscillator():
    """A damped oscillator with a gap, a fit that knows its parameters, and the exact posterior at some times."""
    rng = np.random.default_rng(5)
    F, q, noise = np.array([[-0.2, 1.5], [-1.5, -0.2]]), np.array([0.05, 0.2]), 0.04
    times = np.cumsum(rng.uniform(0.1, 0.5, 60))
    times[30:] += 3.0
    xs = linear.simulate(F, q, np.zeros(2), np.eye(2), times, noise, rng)
    with jax.enable_x64(True):
        series = arcta.Series(times, xs)
        spec = arcta.LatentSDE(
            decoder="identity", drift=lambda t, z, p, u: jnp.asarray(F) @ z, noise=noise**0.5, partition_size=25
        )
        fit = arcta.fit(spec, series, training=arcta.Training(steps=1), progress=False)
        scaling = fit.layout.scaling
        known = Known(q * scaling.time_scale / scaling.scale**2)
        parts = (known, DiagonalNormal.standard(2))
        fit = dataclasses.replace(fit, model=eqx.tree_at(lambda m: (m.diffusion.level, m.initial), fit.model, parts))
    query = np.concatenate([times[5:28:4] + 0.03, np.linspace(times[29] + 0.2, times[30] - 0.2, 5), times[-1:]])
    exact = linear.joint(F, q, scaling.shift, np.diag(scaling.scale**2), times, xs, noise, query)
    return F, q, series, fit, query, exact


def test_a_refined_posterior_is_the_exact_one_across_joins_and_gaps(oscillator):
    *_, series, fit, query, (mean, covariance) = oscillator
    normal = refined(fit.model, fit.layout, series, query).normal
    scale = fit.layout.scaling.scale
    np.testing.assert_allclose(fit.layout.scaling.shift + scale * normal.mean, mean, atol=1e-3)
    np.testing.assert_allclose(scale[:, None] * scale * normal.covariance(), covariance, atol=1e-3)
    smooth = fit.smooth(series, query, num_samples=4000, refine=True)
    spread = np.sqrt(np.diagonal(covariance, axis1=1, axis2=2))
    assert_estimate(smooth.mean, mean, error=spread / np.sqrt(4000), detects=0.15 * spread)


def test_a_refined_forecast_starts_from_the_exact_state(oscillator):
    F, q, series, fit, _, (mean, covariance) = oscillator
    ahead = series.times[-1] + np.array([0.5, 1.0, 2.0])
    forecast = fit.forecast(ahead, num_samples=4000, refine=True)
    for i, step in enumerate(ahead - series.times[-1]):
        A, Q = linear.transition(F, q, step)
        spread = np.sqrt(np.diag(A @ covariance[-1] @ A.T + Q))
        assert_estimate(forecast.mean[i], A @ mean[-1], error=spread / np.sqrt(4000), detects=0.15 * spread)
        assert_variance(forecast.signal[:, i], spread**2, detects=0.22, slack=0.02)  # the solver's steps


def test_where_the_passes_do_not_settle_the_encoders_posterior_is_used_and_it_is_said(oscillator, monkeypatch):
    *_, series, fit, query, _ = oscillator
    monkeypatch.setattr(recognise, "SETTLED", -1.0)
    with pytest.warns(UserWarning, match="does not settle"):
        found = fit.smooth(series, query, refine=True)
    np.testing.assert_array_equal(found.mean, fit.smooth(series, query).mean)


def test_what_cannot_be_refined_is_said(oscillator):
    *_, series, fit, _, _ = oscillator
    with pytest.warns(UserWarning, match="has one observation"):
        fit.forecast(series.times[:1] + 1, given=series.at_rows(slice(0, 1)), refine=True)
    far = series.replace(times=np.where(np.arange(len(series)) < 30, series.times, series.times + 1e6))
    with pytest.warns(UserWarning, match="gaps included"):
        fit.smooth(far, far.times[:3], refine=True)


def test_only_the_start_of_a_series_is_held_to_the_prior_of_starts(oscillator):
    """The end of a series after its tail alone: with p(z0) there, a narrow one far away, it would be wrong by many deviations."""
    *_, series, fit, _, (mean, _) = oscillator
    narrow = DiagonalNormal(jnp.full(2, 5.0), jnp.full(2, -8.0))
    model = eqx.tree_at(lambda m: m.initial, fit.model, narrow)
    tail = series.at_rows(slice(-20, None))
    free = refined(model, fit.layout, tail, tail.times[:1], first=False).normal
    held = refined(model, fit.layout, tail, tail.times[:1], first=True).normal
    assert np.abs(np.asarray(free.mean)).max() < 3 < np.abs(np.asarray(held.mean)).min()
    short = dataclasses.replace(fit, model=model, layout=fit.layout._replace(partition_size=10))
    ahead = short.forecast(series.times[-1:] + 0.01, num_samples=2000, refine=True)
    np.testing.assert_allclose(ahead.mean[0], mean[-1], atol=0.05)


def test_rivals_have_no_posterior_to_refine():
    series = arcta.datasets.lotka_volterra()
    rival = arcta.fit(arcta.baselines.NeuralODE(), series, training=arcta.Training(steps=1), progress=False)
    with pytest.raises(ValueError, match="leave refine= out"):
        rival.forecast(series.times[-1] + np.ones(1), refine=True)


def encoding_of(normal: FullNormal) -> jax.Array:
    """[m, ℓ, U] of a Gaussian, as an encoder with a full covariance would say it."""
    scale = jnp.diagonal(normal.factor)
    rows, columns = np.tril_indices(len(scale), -1)
    return jnp.concatenate([normal.mean, 2 * jnp.log(scale), (normal.factor / scale)[rows, columns]])


class Encodings(eqx.Module):
    """In the place of an interpolant: the encodings of a smoother's posterior, and their rates."""

    posterior: SmoothedPosterior
    at_nodes: jax.Array

    def __call__(self, t):
        return jax.jvp(lambda t: encoding_of(self.posterior(t).normal), (t,), (jnp.ones_like(t),))


@pytest.mark.parametrize("d", [2, 3, 5])
def test_an_encoder_that_says_the_exact_full_covariance_has_the_log_likelihood_as_its_bound(d):
    F, q, H, m0, P0, times, xs = problem(d, 1)
    exact = log_likelihood(F, q, H, m0, P0, times, xs)
    model, rows = linear_model(F, q, H, m0, P0), with_nodes(times, xs, 0.1)
    smooth = jax.jit(lambda rows: smooth_rows(model, rows, jnp.zeros((len(rows.times), d)), passes=2)[0])(rows)
    encodings = Encodings(smooth, jax.vmap(encoding_of)(smooth.at_nodes()))
    some = interpolate(
        model.kernel, rows.times, encodings.at_nodes, node=rows.times >= 0, end=rows.times[-1], spacing=jnp.array(0.1)
    )
    full = eqx.tree_at(lambda p: p.interpolant, FullPosterior(some, None, rows.times, d), encodings)
    assert abs(exact - exact_bound(model, rows, full, H)) / np.isfinite(xs).sum() < 2e-4


def test_the_rates_of_a_full_posterior_with_a_bridge_are_those_of_its_moments():
    rng = np.random.default_rng(3)
    times, values = jnp.linspace(0.0, 3.0, 7), jnp.asarray(0.3 * rng.standard_normal((7, 9)))
    interpolant = interpolate(
        DeepKernel(rng=rng), times, values, node=jnp.ones(7, bool), end=times[-1], spacing=jnp.array(0.5)
    )
    posterior = FullPosterior(interpolant, Bridge(3, diffusion=0.2), times, 3)
    t, h = jnp.array(1.3), 1e-5
    (up, down), here = (posterior(t + s) for s in (h, -h)), posterior(t)
    np.testing.assert_allclose(here.mean_rate, (up.normal.mean - down.normal.mean) / (2 * h), atol=1e-6)
    change = (up.normal.covariance() - down.normal.covariance()) / (2 * h)
    np.testing.assert_allclose(here.covariance_rate, change, atol=1e-6)


def test_the_derivative_of_the_turning_part_where_eigenvalues_meet():
    """By differences; S is a multiple of the identity, whose eigenvectors have no derivative."""
    rng = np.random.default_rng(0)
    C, S, q = rng.standard_normal((3, 3)), 0.7 * np.eye(3), np.ones(3)
    change = [rng.standard_normal((3, 3)), (A := rng.standard_normal((3, 3))) + A.T, rng.standard_normal(3)]
    ours = jax.jvp(turning, (C, S, q), tuple(change))[1]
    up, down = (
        turning(*(jnp.asarray(x + s * dx) for x, dx in zip((C, S, q), change, strict=True))) for s in (1e-5, -1e-5)
    )
    np.testing.assert_allclose(ours, (up - down) / 2e-5, atol=1e-8)


def test_covariances_between_nodes_are_positive_however_stiff_the_drift():
    """Nodes much further apart than the state remembers: the cubics' own slopes would make variances negative; where nodes are
    close nothing changes."""
    rng = np.random.default_rng(3)
    F, q, H = np.array([[-0.2, 10.0], [-10.0, -0.2]]), np.array([20.0, 0.01]), np.array([[20.0, 0.0]])
    model = linear_model(F, q, H, np.zeros(2), np.eye(2))

    def lowest(step: float) -> tuple[float, float]:
        times = step * np.arange(1.0, 12.0)
        posterior, last = smooth_rows(model, with_nodes(times, rng.standard_normal((11, 1)), 10.0), jnp.zeros((11, 2)))
        plain = eqx.tree_at(lambda p: p.sides, posterior, _slopes(last, jnp.broadcast_to(jnp.asarray(q), (11, 2))))
        at = jnp.asarray(np.linspace(0, float(posterior.times[-1]), 400))

        def least(p: SmoothedPosterior) -> float:
            def covariance(t):
                i, h, a = p._where(t)
                slopes = p.sides.covariance_after[i], p.sides.covariance_before[i + 1]
                return _cubic(a, h, p.covariance[i], p.covariance[i + 1], *slopes)[0]

            return float(jnp.linalg.eigvalsh(jax.vmap(covariance)(at)).min())

        return least(posterior), least(plain)

    ours, plain = lowest(0.3)
    assert plain < 0 < ours
    ours, plain = lowest(0.01)
    assert ours == plain > 0
