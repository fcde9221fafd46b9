"""Oracle 1: linear-Gaussian SDEs, where the log-likelihood and the posterior are known exactly."""

from __future__ import annotations

import contextlib

import equinox as eqx
import jax
import jax.numpy as jnp
import linear
import numpy as np
import pytest
from stochastic import assert_mean_below

import arcta
from arcta.bound.elbo import elbo
from arcta.bound.residual import residual
from arcta.data.scaling import Scaling
from arcta.data.windows import WindowShape, last_window
from arcta.parts.decoders import Identity
from arcta.parts.diffusion import Diffusion
from arcta.parts.encoders import WindowEncoder
from arcta.parts.kernel import DeepKernel
from arcta.parts.likelihoods import Gaussian
from arcta.parts.model import Model
from arcta.parts.networks import MLP
from arcta.parts.physics import ParametricDrift
from arcta.parts.posterior import DiagonalMarginal, DiagonalNormal
from arcta.parts.prior import Known

NOISE = 0.04


def linear_model(F, q, m0, P0, *, rotation: bool) -> Model:
    """The linear SDE as an arcta model that learns nothing but its inference network."""
    d = len(q)
    matrix = jnp.asarray(F)
    rng = np.random.default_rng(0)
    initial = eqx.tree_at(
        lambda state: (state.mean, state.log_variance),
        DiagonalNormal.standard(d),
        (jnp.asarray(m0), jnp.asarray(np.log(np.diag(P0)))),
    )
    return Model(
        encoder=WindowEncoder(
            MLP((2 * d, 32, 32, 2 * d), zero_last=True, rng=rng),
            log_variance=jnp.log(NOISE),
            latent_size=d,
            lookahead=0,
            residual=True,
        ),
        kernel=DeepKernel(lengthscale=2.0, noise=0.1, rng=rng),
        drift=ParametricDrift(lambda t, z, p, u: matrix @ z, {}),
        diffusion=Diffusion(Known(q), d, rng=rng),
        initial=initial,
        decoder=Identity(),
        likelihood=Gaussian(Known(np.full(d, NOISE))),
        rotation=rotation,
    )


def exact_bound(F, q, m0, P0, times, xs, *, rotation: bool) -> tuple[float, float]:
    """The bound with the smoother's own marginals, by quadrature over `residual`; and ∫ ω² s₀/q dt beside it.

    Gauss–Legendre between observations (the marginals have kinks there), Gauss–Hermite over ε.
    """
    d = len(q)
    nodes, weights = np.polynomial.legendre.leggauss(32)
    spans = np.diff(times)
    grid = (times[:-1, None] + 0.5 * spans[:, None] * (nodes + 1)).ravel()
    weight = (0.5 * spans[:, None] * weights).ravel()
    h = 1e-4
    mean, cov = linear.joint(F, q, m0, P0, times, xs, NOISE, grid)
    (up, cov_up), (down, cov_down) = (linear.joint(F, q, m0, P0, times, xs, NOISE, grid + s) for s in (h, -h))
    var, var_up, var_down = (np.stack([np.diag(c) for c in x]) for x in (cov, cov_up, cov_down))
    assert np.abs(cov - np.stack([np.diag(v) for v in var])).max() < 1e-9, "this oracle needs a diagonal posterior"
    marginal = DiagonalMarginal(
        DiagonalNormal(jnp.asarray(mean), jnp.asarray(np.log(var))),
        jnp.asarray((up - down) / (2 * h)),
        jnp.asarray((np.log(var_up) - np.log(var_down)) / (2 * h)),
    )
    model = linear_model(F, q, m0, P0, rotation=rotation)
    draw = model.draw(key=jax.random.key(0))
    roots, mass = np.polynomial.hermite_e.hermegauss(6)
    epsilon = np.stack(np.meshgrid(*[roots] * d, indexing="ij"), -1).reshape(-1, d)
    mass = np.prod(np.stack(np.meshgrid(*[mass] * d, indexing="ij"), -1).reshape(-1, d), axis=1)
    mass = mass / mass.sum()

    def rate(m: DiagonalMarginal, t, e):
        r, diffusion = residual(model, m, t, jnp.zeros(0), e, draw)
        return jnp.sum(r**2 / diffusion)

    rates = jax.vmap(jax.vmap(rate, (None, None, 0)), (0, 0, None))(marginal, jnp.asarray(grid), jnp.asarray(epsilon))
    path_kl = 0.5 * float(weight @ (np.asarray(rates, float) @ mass))
    at, at_cov = linear.joint(F, q, m0, P0, times, xs, NOISE, times)
    at_var = np.stack([np.diag(c) for c in at_cov])
    log_lik = np.sum(-0.5 * ((xs - at) ** 2 + at_var) / NOISE - 0.5 * np.log(2 * np.pi * NOISE))
    initial = DiagonalNormal(*(jnp.asarray(x) for x in (at[0], np.log(at_var[0])))).kl(model.initial)
    return float(log_lik) - path_kl - float(initial), float(weight @ (var[:, 0] / q[0]))


PRECISIONS = [pytest.param(True, 2e-6, id="float64"), pytest.param(False, 2e-3, id="float32")]


def precision(double: bool):
    return jax.enable_x64(True) if double else contextlib.nullcontext()


@pytest.mark.parametrize(("double", "tolerance"), PRECISIONS)
def test_one_dimensional_ou_is_exact_with_the_smoothers_marginals(double, tolerance):
    F, q = np.array([[-0.7]]), np.array([0.5])
    P0, times = linear.stationary(F, q), np.array([0.0, 0.3, 1.0, 1.1, 2.5, 3.0])
    xs = linear.simulate(F, q, np.zeros(1), P0, times, NOISE, np.random.default_rng(1))
    exact = linear.log_likelihood(F, q, np.zeros(1), P0, times, xs, NOISE)
    with precision(double):
        bound, _ = exact_bound(F, q, np.zeros(1), P0, times, xs, rotation=True)
    assert bound == pytest.approx(exact, abs=tolerance * max(1, abs(exact)))


@pytest.mark.parametrize(("double", "tolerance"), PRECISIONS)
def test_rotating_ou_is_exact_with_the_rotation_term_and_short_by_the_predicted_gap_without(double, tolerance):
    omega = 2.0
    F, q = np.array([[-0.4, omega], [-omega, -0.4]]), np.array([0.3, 0.3])
    P0, times = linear.stationary(F, q), np.array([0.0, 0.2, 0.7, 1.5, 2.0])
    xs = linear.simulate(F, q, np.zeros(2), P0, times, NOISE, np.random.default_rng(2))
    exact = linear.log_likelihood(F, q, np.zeros(2), P0, times, xs, NOISE)
    with precision(double):
        bound, area = exact_bound(F, q, np.zeros(2), P0, times, xs, rotation=True)
        without, _ = exact_bound(F, q, np.zeros(2), P0, times, xs, rotation=False)
    assert bound == pytest.approx(exact, abs=tolerance * abs(exact))
    assert exact - without == pytest.approx(omega**2 * area, rel=max(tolerance, 1e-5))
    assert omega**2 * area > 1, "a gap that shows"


def test_the_rotation_is_the_best_skew_part_for_unequal_diffusion():
    """Brute force over all G with G S + S Gᵀ = 0 in two dimensions: G = g [[0, s0], [−s1, 0]]."""
    from arcta.parts.posterior import rotation

    rng = np.random.default_rng(3)
    J, s, q = rng.standard_normal((2, 2)), np.array([0.5, 2.0]), np.array([0.3, 1.7])
    ours = np.asarray(rotation(jnp.asarray(J), jnp.asarray(s), jnp.asarray(q)))
    assert np.abs(ours @ np.diag(s) + np.diag(s) @ ours.T).max() < 1e-6

    def cost(G):  # E‖(G − J)(z − m)‖² in Q⁻¹, for the part that G can change
        return np.sum((G - J) ** 2 * s[None, :] / q[:, None])

    grid = np.linspace(-5, 5, 20001)
    costs = [cost(g * np.array([[0, s[0]], [-s[1], 0]])) for g in grid]
    best = grid[int(np.argmin(costs))] * np.array([[0, s[0]], [-s[1], 0]])
    assert np.abs(best - ours).max() < 2e-3


@pytest.mark.parametrize("seed", range(3))
def test_the_estimated_bound_never_exceeds_the_log_likelihood(seed):
    """One partition, an arbitrary inference network: the mean of `elbo` over keys lies below the exact value."""
    rng = np.random.default_rng(seed)
    F, q = np.array([[-0.4, 1.5], [-1.5, -0.4]]), np.array([0.3, 0.6])
    P0 = np.diag([0.5, 0.8])
    times = np.sort(rng.uniform(0, 6, 24))
    xs = linear.simulate(F, q, np.zeros(2), P0, times, NOISE, rng)
    xs[rng.random(xs.shape) < 0.2] = np.nan
    exact = linear.log_likelihood(F, q, np.zeros(2), P0, times, xs, NOISE)
    unscaled = Scaling(times[0], 1.0, np.zeros(2), np.ones(2), np.zeros(0), np.ones(0))
    window = last_window(arcta.Series(times, xs), unscaled, WindowShape(24, 0))
    model = linear_model(F, q, np.zeros(2), P0, rotation=True)
    window = jax.tree.map(jnp.asarray, window)
    keys = jax.random.split(jax.random.key(seed), 400)
    bounds = np.asarray(jax.jit(jax.vmap(lambda k: elbo(model, window, key=k).total()))(keys))
    assert_mean_below(bounds, exact, detects=20)
    assert np.mean(bounds) > exact - 500, "a bound, not an accident"
