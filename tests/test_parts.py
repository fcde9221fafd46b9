"""Parts against independent truths: priors, likelihoods, kernel, quadrature, solver, scores, scaling."""

from __future__ import annotations

import contextlib
import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from stochastic import assert_estimate, assert_law, assert_mean

import arcta
from arcta.bound.quadrature import stratified
from arcta.data.scaling import Scaling, noise_level
from arcta.parts.channels import ByChannel
from arcta.parts.convolutions import Double, GroupNorm, Halve
from arcta.parts.kernel import DeepKernel, interpolate, solve_kernel
from arcta.parts.likelihoods import LIKELIHOODS, Bernoulli, Gaussian, LogNormal, NegativeBinomial, Poisson, StudentT
from arcta.parts.networks import ACTIVATIONS
from arcta.parts.physics import ParametricDrift
from arcta.parts.sde import NeuralDrift, PlainDrift, value_and_jacobian
from arcta.predict.metrics import crps
from arcta.runtime.activations import tanh
from arcta.runtime.random import normal

# ---- priors (oracle 5) --------------------------------------------------------------------------------------------


@settings(max_examples=15, deadline=None)
@given(st.floats(0.2, 5), st.floats(0.2, 2), st.floats(0.2, 5), st.floats(0.1, 2))
def test_log_normal_kl_against_scipy(median, spread, start, start_spread):
    """∫ q log(q/p) with scipy's log-normal densities."""
    ours = float(arcta.LogNormal(median, spread, start=start, start_spread=start_spread).kl())
    q, p = scipy.stats.lognorm(start_spread, scale=start), scipy.stats.lognorm(spread, scale=median)
    low, high = np.log(start) - 10 * start_spread, np.log(start) + 10 * start_spread
    integrand = lambda y: q.pdf(np.exp(y)) * np.exp(y) * (q.logpdf(np.exp(y)) - p.logpdf(np.exp(y)))  # noqa: E731
    exact = scipy.integrate.quad(integrand, low, high, limit=200)[0]
    assert ours == pytest.approx(exact, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize(("mean", "std", "start"), [(1.0, 0.5, 0.6), (0.05, 0.05, 0.02), (-0.5, 1.0, 0.4)])
def test_a_normal_prior_cut_off_at_zero_against_scipy(mean, std, start):
    """∫ q log(q/p), quantiles of the prior, and the slope of its parabola in log θ."""
    ours = arcta.TruncatedNormal(mean, std, start=start)
    width = float(np.exp(ours.log.log_std))
    q, p = scipy.stats.lognorm(width, scale=start), scipy.stats.truncnorm(-mean / std, np.inf, loc=mean, scale=std)
    integrand = lambda y: q.pdf(np.exp(y)) * np.exp(y) * (q.logpdf(np.exp(y)) - p.logpdf(np.exp(y)))  # noqa: E731
    exact = scipy.integrate.quad(integrand, np.log(start) - 10 * width, np.log(start) + 10 * width, limit=200)[0]
    assert float(ours.kl()) == pytest.approx(exact, rel=1e-4, abs=1e-4)
    assert float(ours.prior_quantile(0.3)) == pytest.approx(p.ppf(0.3), rel=1e-3)
    at = ours.coordinates()
    slope = jax.grad(lambda m: eqx.tree_at(lambda x: x.log.mean, ours, m).kl())(ours.log.mean)
    assert float(at.prior_precision * (at.prior_mean - at.mean)) == pytest.approx(-float(slope), rel=1e-4)


@pytest.mark.parametrize("double", [False, True])
def test_log_normal_kl_against_monte_carlo(double):
    with jax.enable_x64(True) if double else contextlib.nullcontext():
        prior = arcta.LogNormal([1.0, 0.5], 1.0, start=[0.2, 0.9], start_spread=0.3)
        draws = np.asarray(jax.vmap(lambda k: prior.sample(key=k))(jax.random.split(jax.random.key(0), 50_000)), float)
        kl = float(prior.kl())
    ratio = np.sum(
        scipy.stats.lognorm(0.3, scale=[0.2, 0.9]).logpdf(draws)
        - scipy.stats.lognorm(1.0, scale=[1.0, 0.5]).logpdf(draws),
        axis=1,
    )
    assert_mean(ratio, kl, detects=0.1)
    assert float(prior.quantile(0.9)[0]) == pytest.approx(scipy.stats.lognorm(0.3, scale=0.2).ppf(0.9), rel=1e-4)


def test_normal_prior_is_not_trained():
    gradient = jax.grad(lambda p: p.kl())(arcta.Normal(1.0, 2.0, start=0.3, start_std=0.5))
    assert float(gradient.prior_mean) == float(gradient.prior_std) == 0
    assert float(gradient.mean) != 0 != float(gradient.log_std)


# ---- likelihoods --------------------------------------------------------------------------------------------------

OUTPUT = np.array([-0.7, 0.2, 1.5])
SIZES = np.array([0.5, 3.0, 20.0])


@pytest.mark.parametrize(
    ("likelihood", "x", "reference"),
    [
        (Gaussian(arcta.Known([0.3, 1.0, 2.0])), [0.1, -2.0, 1.0], scipy.stats.norm(OUTPUT, np.sqrt([0.3, 1.0, 2.0]))),
        (
            StudentT.build(arcta.Known([0.3, 1.0, 2.0]), 3),
            [0.1, -9.0, 1.0],
            scipy.stats.t(5, OUTPUT, np.sqrt([0.3, 1.0, 2.0])),
        ),
        (
            LogNormal(arcta.Known([0.3, 1.0, 2.0])),
            [0.1, 2.0, 9.0],
            scipy.stats.lognorm(np.sqrt([0.3, 1.0, 2.0]), scale=np.exp(OUTPUT)),
        ),
    ],
    ids=["gaussian", "student-t", "log-normal"],
)
def test_continuous_log_densities_against_scipy(likelihood, x, reference):
    draw = likelihood.draw(key=jax.random.key(0))
    ours = likelihood.log_density(jnp.array(x), jnp.array(OUTPUT), draw)
    np.testing.assert_allclose(ours, reference.logpdf(x), rtol=1e-5, atol=1e-5)
    samples = jax.vmap(lambda k: likelihood.sample(jnp.array(OUTPUT), draw, key=k))(
        jax.random.split(jax.random.key(1), 20000)
    )
    for i in range(3):
        frozen = lambda v, i=i: reference.cdf(np.repeat(v[:, None], 3, 1))[:, i]  # noqa: E731
        assert_law(samples[:, i], frozen, detects=0.05)


@pytest.mark.parametrize(
    ("likelihood", "x", "reference"),
    [
        (Bernoulli(), [0.0, 1.0, 1.0], scipy.stats.bernoulli(1 / (1 + np.exp(-OUTPUT)))),
        (Poisson(), [0.0, 3.0, 7.0], scipy.stats.poisson(np.exp(OUTPUT))),
        (
            NegativeBinomial(arcta.Known(SIZES)),
            [0.0, 3.0, 7.0],
            scipy.stats.nbinom(SIZES, SIZES / (SIZES + np.exp(OUTPUT))),
        ),
    ],
    ids=["bernoulli", "poisson", "negative-binomial"],
)
def test_discrete_log_densities_against_scipy(likelihood, x, reference):
    draw = likelihood.draw(key=jax.random.key(0))
    ours = likelihood.log_density(jnp.array(x), jnp.array(OUTPUT), draw)
    np.testing.assert_allclose(ours, reference.logpmf(x), rtol=1e-5, atol=1e-5)
    samples = jax.vmap(lambda k: likelihood.sample(jnp.array(OUTPUT), draw, key=k))(
        jax.random.split(jax.random.key(1), 20000)
    )
    errors = np.sqrt(reference.var() / 20000)
    assert_estimate(np.asarray(samples).mean(0), reference.mean(), error=errors, detects=9 * errors)
    np.testing.assert_allclose(likelihood.mean(jnp.array(OUTPUT), draw), reference.mean(), rtol=1e-5)


def test_the_mean_of_a_log_normal_is_that_of_scipys():
    likelihood, variance = LogNormal(arcta.Known([0.3, 1.0, 2.0])), np.array([0.3, 1.0, 2.0])
    mean = likelihood.mean(jnp.array(OUTPUT), jnp.asarray(variance))
    np.testing.assert_allclose(mean, scipy.stats.lognorm(np.sqrt(variance), scale=np.exp(OUTPUT)).mean(), rtol=1e-5)


def test_links_and_views_of_every_kind():
    """A link's slope is its derivative where it is not held back; what is missing (0) is seen as something finite."""
    for name, kind in LIKELIHOODS.items():
        seen = kind.view_of(np.array([0.0, 0.3, 0.7]))
        assert np.isfinite(seen).all(), name
        at = np.array([0.3, 0.5, 0.7])
        numeric = (kind.link(at + 1e-6) - kind.link(at - 1e-6)) / 2e-6
        np.testing.assert_allclose(kind.link_slope(at), numeric, rtol=1e-4, err_msg=name)


def test_mixed_channels_keep_their_order_and_masks_drop_entries():
    mixed = ByChannel((Gaussian(arcta.Known([0.5, 0.5])), Poisson()), ((0, 2), (1,)))
    draw = mixed.draw(key=jax.random.key(0))
    x, output = jnp.array([0.4, 2.0, -1.0]), jnp.array([0.1, 0.3, 0.2])
    exact = np.array(
        [
            scipy.stats.norm(0.1, 0.5**0.5).logpdf(0.4),
            scipy.stats.poisson(np.exp(0.3)).logpmf(2),
            scipy.stats.norm(0.2, 0.5**0.5).logpdf(-1),
        ]
    )
    np.testing.assert_allclose(mixed.log_density(x, output, draw), exact, rtol=1e-5)


# ---- kernel -------------------------------------------------------------------------------------------------------


def interpolant(times, h, **kernel):
    times = jnp.asarray(times)
    net = DeepKernel(rng=np.random.default_rng(0), **kernel)
    warp = lambda w: w + 0.1 * jax.random.normal(jax.random.key(1), w.shape)  # noqa: E731
    net = eqx.tree_at(lambda k: k.net.layers[-1].weight, net, replace_fn=warp)  # a kernel that is deep
    spacing = jnp.median(jnp.diff(times))
    return interpolate(net, times, jnp.asarray(h), node=jnp.ones(len(times), bool), end=times[-1], spacing=spacing)


def test_time_derivative_is_that_of_the_interpolant():
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        times = np.concatenate([[0.0], np.cumsum(rng.uniform(0.1, 1.0, 29))])
        v = interpolant(times, rng.standard_normal((30, 3)))
        for t in rng.uniform(0, times[-1], 20):
            step = 1e-5
            numeric = (v(jnp.array(t + step))[0] - v(jnp.array(t - step))[0]) / (2 * step)
            np.testing.assert_allclose(v(jnp.array(t))[1], numeric, rtol=1e-6, atol=1e-6)


def test_values_at_the_nodes_are_those_of_the_interpolant():
    with jax.enable_x64(True):
        times, h = np.linspace(0, 5, 40), np.random.default_rng(0).standard_normal((40, 2))
        v = interpolant(times, h, noise=0.3)
        direct = jax.vmap(lambda t: v(t)[0])(jnp.asarray(times))
        np.testing.assert_allclose(v.at_nodes, direct, atol=1e-9)
        exact = interpolant(times, h, noise=1e-9, lengthscale=0.5)
        np.testing.assert_allclose(exact.at_nodes, h, atol=1e-4)


@pytest.mark.parametrize("n", [1, 2, 8, 256, 512])
def test_constants_stay_constant_in_short_long_and_gappy_windows(n):
    times = np.linspace(0, 1, n) if n > 1 else np.zeros(1)
    if n >= 8:
        times = np.delete(times, slice(n // 2, n // 2 + n // 5))
    net = DeepKernel(noise=1e-6, rng=np.random.default_rng(0))
    v = interpolate(
        net, jnp.asarray(times), jnp.ones((len(times), 2)), node=jnp.ones(len(times), bool),
        end=jnp.asarray(times[-1]), spacing=jnp.asarray(1 / max(n - 1, 1)),
    )  # fmt: skip
    for t in (0.0, 0.5, 0.6, 1.0):
        value, rate = v(jnp.array(t))
        np.testing.assert_allclose(value, 1, atol=1e-4)
        np.testing.assert_allclose(rate, 0, atol=1e-2)


def test_normal_numbers_computed_once_are_jax_own():
    keys = jax.random.split(jax.random.key(0), 3)
    plain = jax.vmap(lambda key: jax.random.normal(key, (4, 2)))(keys)
    for ours in (
        jax.jit(jax.vmap(lambda key: normal(key, (4, 2)))),
        lambda k: jax.lax.map(lambda x: normal(x, (4, 2)), k),
    ):
        np.testing.assert_array_equal(ours(keys), plain)


@pytest.mark.parametrize("double", [False, True])
def test_tanh_has_the_slope_of_tanh(double):
    with jax.enable_x64(True) if double else contextlib.nullcontext():
        x = jnp.concatenate([jnp.linspace(-6, 6, 97), jnp.array([-1e3, -25.0, 25.0, 1e3])])
        for ours, truth in zip(*(jax.jvp(f, (x,), (jnp.ones_like(x),)) for f in (tanh, jnp.tanh)), strict=True):
            np.testing.assert_allclose(ours, truth, rtol=1e-12 if double else 1e-6, atol=1e-15 if double else 1e-7)


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("rough", [False, True])
def test_kernel_solve_and_its_derivatives_against_the_inverse(double, rough):
    def plain(scaled, share, noise, right):
        gaps = [u[None, :] - u[:, None] for u in scaled]
        k = jnp.exp(-0.5 * gaps[0] ** 2)
        k = k if share is None else (1 - share) * k + share * jnp.exp(-jnp.abs(gaps[1]))
        return jnp.linalg.inv(k + noise * jnp.eye(len(right))) @ right

    with jax.enable_x64(True) if double else contextlib.nullcontext():
        points = jnp.sort(jax.random.uniform(jax.random.key(0), (2, 3, 20)) * 20, axis=-1)
        scaled = (points[0], points[1]) if rough else (points[0],)
        share = jnp.array([0.2, 0.5, 0.7]) if rough else None
        noise, right = jnp.array([0.3, 0.1, 0.5]), jax.random.normal(jax.random.key(1), (3, 20, 4))
        argnums = (0, 1, 2, 3) if rough else (0, 2, 3)

        def loss(solve):
            return lambda *of: jnp.sum(jnp.sin(jax.vmap(solve)(*of)))

        ours, truth = (jax.grad(loss(solve), argnums)(scaled, share, noise, right) for solve in (solve_kernel, plain))
        for x, y in zip(jax.tree.leaves(ours), jax.tree.leaves(truth), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-8 if double else 2e-3, atol=1e-9 if double else 2e-3)


def test_solves_side_by_side_do_not_wait_for_each_other():
    """Batched LAPACK calls at once hang jaxlib 0.10 on two cores; ours must not. In a process that can be ended."""
    code = """
import jax, jax.numpy as jnp
from arcta.parts.kernel import solve_kernel
points = jnp.broadcast_to(jnp.arange(65.0), (8, 65))
solve = jax.vmap(lambda u: solve_kernel((u,), None, jnp.array(0.1), jnp.ones((65, 3))))
f = jax.jit(lambda *each: sum(jnp.sum(solve(u)) for u in each))
for i in range(50):
    f(*(points * (1 + i * j) for j in range(4))).block_until_ready()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=180)


# ---- quadrature, scores, scaling ----------------------------------------------------------------------------------


def test_stratified_times_are_unbiased_and_their_variance_falls_as_the_cube():
    def spread(num_times):
        ts = np.asarray(stratified(4000, num_times, key=jax.random.key(0)), float)
        assert np.all((ts * num_times).astype(int) == np.arange(num_times)), "one in each stratum"
        means = np.exp(ts).mean(axis=1)
        assert_mean(means, np.e - 1, detects=0.005)
        return means.var()

    rate = np.log2(spread(8) / spread(16))
    assert 2.7 < rate < 3.3


def test_crps_against_the_gaussians_closed_form():
    rng = np.random.default_rng(0)
    samples, value = rng.standard_normal((4000, 50)), np.linspace(-3, 3, 50)
    exact = value * (2 * scipy.stats.norm.cdf(value) - 1) + 2 * scipy.stats.norm.pdf(value) - 1 / np.sqrt(np.pi)
    # 1.2: a bound on the deviation of what is averaged.
    assert_estimate(crps(samples, value), exact, error=1.2 / np.sqrt(4000), detects=0.18)


@pytest.mark.parametrize("irregular", [False, True])
def test_noise_level_and_time_scale_of_a_noisy_sine(irregular):
    rng = np.random.default_rng(0)
    times = np.cumsum(rng.uniform(0.01, 0.09, 2000)) if irregular else 0.05 * np.arange(2000)
    series = arcta.Series(times, 3 * np.sin(times) + 0.1 * rng.standard_normal(2000))
    scaling = Scaling.fit([series], np.array([True]))
    assert scaling.time_scale == pytest.approx(1.05, rel=0.1)  # 1 − cos(ωh) = ½ at h = π/3ω
    assert noise_level([series], np.ones(1))[0] == pytest.approx(0.1, rel=0.1)
    np.testing.assert_allclose(scaling.undo(scaling.values(series.values)), series.values, atol=1e-9)


def test_convolutions_as_matrix_products():
    """`Halve` is a 4 × 4 convolution of stride 2, `Double` the transpose of one: against XLA's own."""
    rng = np.random.default_rng(0)
    halve, double = Halve(3, 5, rng=rng), Double(3, 5, rng=rng)
    x = jax.random.normal(jax.random.key(0), (3, 8, 12))
    several = jax.random.normal(jax.random.key(1), (8, 6, 4, 5))
    for layer in (Halve(8, 4, rng=rng), Double(8, 4, rng=rng), GroupNorm(2, 8)):
        np.testing.assert_allclose(layer(several), jax.vmap(layer, -1, -1)(several), atol=1e-5)
    np.testing.assert_allclose(GroupNorm(2, 8)(several[..., 0]), eqx.nn.GroupNorm(2, 8)(several[..., 0]), atol=1e-5)
    kernel = halve.weight.reshape(5, 4, 4, 3).transpose(0, 3, 1, 2)
    np.testing.assert_allclose(
        halve(x), jax.lax.conv_general_dilated(x[None], kernel, (2, 2), ((1, 1), (1, 1)))[0], atol=1e-5
    )
    # Output row 2h + a sees input rows h − 1 + a + i, i = 0, 1: in the stretched input, entry 2i + (1 − a) of four.
    stretched = np.zeros((5, 3, 4, 4), np.float32)
    weight = np.asarray(double.weight).reshape(2, 2, 5, 2, 2, 3)
    whole = np.zeros((5, 16, 24), np.float32)
    for a in range(2):
        for b in range(2):
            stretched[:] = 0
            for i in range(2):
                for j in range(2):
                    stretched[:, :, 2 * i + a, 2 * j + b] = weight[a, b, :, i, j]
            options = {"lhs_dilation": (2, 2), "padding": ((2, 2), (2, 2))}
            every = jax.lax.conv_general_dilated(x[None], jnp.asarray(stretched), (1, 1), **options)[0]
            whole[:, a::2, b::2] = np.asarray(every)[:, a::2, b::2][:, :8, :12]
    np.testing.assert_allclose(double(x), whole, atol=1e-5)


# ---- drifts at many points ----------------------------------------------------------------------------------------


def own(t, z, p, u):
    return [p["a"] * z[1] * u[0], -z[0] + z[1] ** 2, jnp.sin(z[2] * t)]


def drift_of(kind, activation, rng):
    if kind == "own":
        return ParametricDrift(own, {"a": arcta.LogNormal(1.0, 0.5)})
    made = {"plain": PlainDrift, "neural": NeuralDrift}[kind]
    drift = made(3, 1, hidden_sizes=(5, 4), activation=activation, span=2.0, rng=rng)
    weights, rest = eqx.partition(drift, eqx.is_inexact_array)  # some start at zero
    return eqx.combine(jax.tree.map(lambda x: jnp.asarray(rng.standard_normal(x.shape)), weights), rest)


@pytest.mark.parametrize("several", [True, False])
@pytest.mark.parametrize(
    ("kind", "activation"), [*(("plain", name) for name in ACTIVATIONS), ("neural", "silu"), ("own", "")]
)
def test_drift_and_jacobian_at_many_points_are_those_at_each(kind, activation, several):
    """Point by point and by `jax.jacrev`, which shares no code with `push_forward`; mapped over draws and times as in `elbo`."""
    rng = np.random.default_rng(4)
    with jax.enable_x64(True):
        drift = drift_of(kind, activation, rng)
        keys = jax.random.split(jax.random.key(1), 2)
        draws = jax.vmap(lambda key: drift.draw(key=key))(keys)
        parameters = draws if several else jax.tree.map(lambda leaf: leaf[0], draws)
        t, u = (jnp.asarray(rng.standard_normal(shape)) for shape in ((2, 4), (2, 4, 1)))
        z, mean = (jnp.asarray(rng.standard_normal((2, 4, 3))) for _ in range(2))
        at_times = jax.vmap(lambda *point: value_and_jacobian(drift, *point), in_axes=(0, 0, 0, 0, None))
        at_draws = jax.vmap(at_times, in_axes=(0, 0, 0, 0, 0 if several else None))
        values, jacobian = at_draws(t, z, mean, u, parameters)
        for r, s in np.ndindex(2, 4):
            one = jax.tree.map(lambda leaf, r=r: leaf[r], draws) if several else parameters
            at = lambda x, r=r, s=s, one=one: drift(t[r, s], x, u[r, s], one)  # noqa: E731
            np.testing.assert_allclose(values[r, s], at(z[r, s]), rtol=1e-10)
            np.testing.assert_allclose(jacobian[r, s], jax.jacrev(at)(mean[r, s]), rtol=1e-10, atol=1e-12)
