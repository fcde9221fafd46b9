"""Oracles 3 and 4: the path KL against simulation; what must not change it; and what must."""

from __future__ import annotations

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from stochastic import assert_mean, assert_proportion, assert_same_mean, assert_variance

import arcta
from arcta.bound.elbo import elbo
from arcta.bound.objective import joins
from arcta.bound.residual import residual
from arcta.data.batches import pairs, take
from arcta.data.scaling import Scaling
from arcta.data.windows import WindowShape, windows_of
from arcta.model.build import build
from arcta.model.reading import read_data
from arcta.model.start import warm_start
from arcta.parts.encoders import neighbours
from arcta.parts.kernel import DeepKernel
from arcta.parts.local import LocalEncoder, local_lines
from arcta.parts.physics import ParametricDrift
from arcta.parts.posterior import Bridge, rotation

SPEC = arcta.LatentSDE(posterior="amortised",
    latent_size=2, decoder="identity", encoder="window", lookahead=2, lookahead_dropout=0.0, partition_size=8, noise=0.2,
    activation="tanh",
    encoder_sizes=(6,), drift_sizes=(8,), kernel_sizes=(4,), diffusion_start=0.5, lengthscale=2.0,
)  # fmt: skip


def setting(spec=SPEC, n: int = 20, missing: float = 0.0, seed: int = 0):
    rng = np.random.default_rng(seed)
    times = np.cumsum(rng.uniform(0.2, 0.6, n))
    values = np.stack([np.sin(times), np.cos(times)], axis=1) + 0.2 * rng.standard_normal((n, 2))
    values[rng.random(values.shape) < missing] = np.nan
    series = arcta.Series(times, values)
    layout, reading = read_data(spec, series)
    model = build(spec, layout, reading, key=jax.random.key(1))
    # The residual encoder starts at zero; give it some life, so that means, variances and look-ahead all matter.
    alive = lambda weight: weight + 0.3 * jax.random.normal(jax.random.key(3), weight.shape)  # noqa: E731
    model = eqx.tree_at(lambda m: m.encoder.net.layers[-1].weight, model, replace_fn=alive)
    windows = windows_of([series], layout.scaling, WindowShape(layout.partition_size, spec.lookahead))
    return series, layout, model, jax.tree.map(jnp.asarray, windows)


def hiding(encoder, dropout):
    """The encoder with another look-ahead dropout."""
    clone = jax.tree.map(lambda leaf: leaf, encoder)
    object.__setattr__(clone, "dropout", dropout)
    return clone


def known_diffusion(model, q):
    return eqx.tree_at(lambda m: m.diffusion.level, model, arcta.Known(np.asarray(q)))


def test_path_kl_and_marginals_against_a_girsanov_simulation():
    """Paths of the posterior's own SDE: their law at the end is N(m, s), and their mean ∫ ½‖r‖² is the path KL."""
    _, _, model, windows = setting()
    model = known_diffusion(model, [0.5, 0.9])
    turning = ParametricDrift(lambda t, z, p, u: [jnp.tanh(z[0]) + 2 * z[1], -2 * z[0] - 0.5 * z[1] ** 2], {})
    model = eqx.tree_at(lambda m: m.drift, model, turning)
    window = take(windows, jnp.array(0))
    posterior, q = model.posterior(window), jnp.array([0.5, 0.9])
    steps, num_paths = 1500, 4000
    h = window.end / steps

    def step(carry, i):
        z, cost, key = carry
        key, sub = jax.random.split(key)
        t = i * h
        marginal = posterior(t)
        variance = jnp.exp(marginal.normal.log_variance)
        jacobian = jax.jacfwd(lambda z: model.drift(t, z, jnp.zeros(0), {}))(marginal.normal.mean)
        pull = 0.5 * (q / variance - marginal.log_variance_rate)
        turn = rotation(jacobian, variance, q)

        def drift(z):
            return marginal.mean_rate + pull * (marginal.normal.mean - z) + turn @ (z - marginal.normal.mean)

        prior = jax.vmap(lambda z: model.drift(t, z, jnp.zeros(0), {}))(z)
        ours = jax.vmap(drift)(z)
        cost = cost + 0.5 * h * jnp.sum((ours - prior) ** 2 / q, axis=1)
        z = z + h * ours + jnp.sqrt(h * q) * jax.random.normal(sub, z.shape)
        return (z, cost, key), None

    at_nodes = posterior.at_nodes()
    mean, log_variance = at_nodes.mean, at_nodes.log_variance
    start = mean[0] + jnp.exp(0.5 * log_variance[0]) * jax.random.normal(jax.random.key(8), (num_paths, 2))
    run = jax.jit(lambda: jax.lax.scan(step, (start, jnp.zeros(num_paths), jax.random.key(9)), jnp.arange(steps))[0])
    z, cost, _ = run()
    keys = jax.random.split(jax.random.key(2), 4000)
    estimates = jax.jit(jax.vmap(lambda k: elbo(model, window, key=k).path_kl))(keys)
    size = float(estimates.mean())
    assert_same_mean(cost, estimates, detects=0.1 * size, slack=0.01 * size)  # Euler's O(h) beside
    last = int(window.node.sum()) - 1
    spread = np.exp(0.5 * np.asarray(log_variance[last]))
    away = np.asarray(z - mean[last]) / spread
    assert_mean(away, 0, detects=0.16, slack=0.02)
    assert_variance(away, 1, detects=0.25, slack=0.04)  # twice that of the deviation
    assert float(jnp.abs(turn_size(model, posterior, q, window)).max()) > 0.1, "the rotation takes part"


def turn_size(model, posterior, q, window):
    marginal = posterior(0.5 * window.end)
    jacobian = jax.jacfwd(lambda z: model.drift(jnp.zeros(()), z, jnp.zeros(0), {}))(marginal.normal.mean)
    return rotation(jacobian, jnp.exp(marginal.normal.log_variance), q)


@pytest.mark.parametrize("turning", [False, True])
def test_residual_vanishes_when_the_prior_is_the_posteriors_own_sde(turning):
    _, _, model, windows = setting()
    window = take(windows, jnp.array(1))
    posterior, q = model.posterior(window), jnp.array([0.5, 0.9])

    def own(t, z, p, u):
        m = posterior(t)
        s = jnp.exp(m.normal.log_variance)
        skew = 1.3 * jnp.array([[0.0, s[0]], [-s[1], 0.0]]) if turning else jnp.zeros((2, 2))  # G S + S Gᵀ = 0
        return m.mean_rate + (0.5 * (q / s - m.log_variance_rate)) * (m.normal.mean - z) + skew @ (z - m.normal.mean)

    model = known_diffusion(eqx.tree_at(lambda m: m.drift, model, ParametricDrift(own, {})), q)
    draw = model.draw(key=jax.random.key(0))
    for t, key in zip((0.1, 0.4, 0.9), jax.random.split(jax.random.key(4), 3), strict=True):
        time = t * window.end
        r, _ = residual(model, posterior(time), time, jnp.zeros(0), jax.random.normal(key, (2,)), draw)
        assert np.abs(np.asarray(r)).max() < 1e-4


def test_padding_and_masked_rows_change_nothing():
    """The same observations in longer windows, and with wholly missing rows strewn in, give the same numbers."""
    series, layout, model, windows = setting(n=13)
    assert not bool(windows.node[-1].all()), "the last window is padded"
    long_rows = windows_of([series], layout.scaling, WindowShape(8, 2))
    last = jax.tree.map(lambda leaf: jnp.asarray(leaf[-1]), long_rows)
    count = int(last.node.sum())
    cut = eqx.tree_at(
        lambda w: (w.times, w.values, w.mask, w.node, w.scored),
        last,
        (
            last.times[: count + 2],
            last.values[: count + 2],
            last.mask[: count + 2],
            last.node[: count + 2],
            last.scored[: count + 2],
        ),
    )
    for t in (0.0, 0.3, 0.99):
        padded, bare = (model.posterior(w)(t * last.end) for w in (last, cut))
        for a, b in zip(jax.tree.leaves(padded), jax.tree.leaves(bare), strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)
    gappy_times = np.sort(np.concatenate([series.times, series.times[:-1] + 0.01]))
    gappy = np.full((len(gappy_times), 2), np.nan)
    gappy[np.isin(gappy_times, series.times)] = series.values
    again = windows_of([arcta.Series(gappy_times, gappy)], layout.scaling, WindowShape(8, 2))
    jax.tree.map(np.testing.assert_array_equal, again, long_rows)


def test_values_behind_the_mask_do_not_matter():
    _, _, model, windows = setting(missing=0.4)
    window = take(windows, jnp.array(0))
    garbage = eqx.tree_at(lambda w: w.values, window, jnp.where(window.mask, window.values, 1e3))
    for a, b in zip(
        elbo(model, window, key=jax.random.key(0)), elbo(model, garbage, key=jax.random.key(0)), strict=True
    ):
        assert float(a) == float(b)


def test_rescaling_time_rescales_the_drift_and_changes_no_term():
    """t → c t, f → f/c, q → q/c leaves every term of the bound as it is."""
    _, _, model, windows = setting()
    c = 7.0
    window = take(windows, jnp.array(1))
    slow = eqx.tree_at(
        lambda w: (w.start, w.end, w.spacing, w.times),
        window,
        (c * window.start, c * window.end, c * window.spacing, c * window.times),
    )
    inner = model.drift
    same = ParametricDrift(lambda t, z, p, u: inner(t, z, u, inner.median()), {})
    fast = eqx.tree_at(lambda m: m.drift, known_diffusion(model, [0.5, 0.9]), same)
    drift = ParametricDrift(lambda t, z, p, u: inner(t / c, z, u, inner.median()) / c, {})
    slowed = known_diffusion(model, [0.5 / c, 0.9 / c])
    slowed = eqx.tree_at(lambda m: m.drift, slowed, drift)
    slowed = eqx.tree_at(lambda m: m.encoder, slowed, rescaled(slowed.encoder, c))
    key = jax.random.key(0)
    ours, theirs = elbo(fast, window, key=key), elbo(slowed, slow, key=key)
    for a, b in zip(ours[:3], theirs[:3], strict=True):  # the parameter KL is that of another drift
        assert float(a) == pytest.approx(float(b), rel=1e-3, abs=1e-3)


def rescaled(encoder, c):
    """The encoder with its typical step in other units."""
    clone = jax.tree.map(lambda x: x, encoder)
    object.__setattr__(clone, "typical_step", encoder.typical_step * c)
    return clone


def test_units_of_time_and_value_do_not_matter_to_training():
    """Seconds or milliseconds, metres or feet: the model sees the same windows."""
    series, layout, _, windows = setting(missing=0.2)
    other = arcta.Series(1e3 * series.times + 5e6, np.where(series.mask, 3.28 * series.values + 40, np.nan))
    there, _ = read_data(dataclasses.replace(SPEC, noise=0.2 * 3.28), other)
    assert there.scaling.time_scale == pytest.approx(1e3 * layout.scaling.time_scale)
    again = windows_of([other], there.scaling, WindowShape(there.partition_size, 2))
    for a, b in zip(jax.tree.leaves(again), jax.tree.leaves(windows), strict=True):
        np.testing.assert_allclose(np.asarray(a, float), np.asarray(b, float), atol=2e-5)


def test_neighbouring_windows_encode_the_shared_node_alike():
    _, _, model, windows = setting(n=24)
    before, after = take(windows, jnp.array(0)), take(windows, jnp.array(1))
    shared = int(before.node.sum()) - 1
    np.testing.assert_allclose(model.encoder(before).values[shared], model.encoder(after).values[0], atol=1e-5)


def test_lookahead_dropout_hides_successors_only_in_training():
    _, _, model, windows = setting()
    window = take(windows, jnp.array(0))
    plain = model.encoder(window).values
    np.testing.assert_array_equal(plain, model.encoder(window, key=jax.random.key(0)).values)
    masked = hiding(model.encoder, 0.5)(window, key=jax.random.key(0)).values
    changed = np.any(np.asarray(masked != plain), axis=1)
    assert 0 < changed.sum() < len(changed)


def test_lookahead_dropout_cuts_at_every_neighbour_alike():
    """Of 20,000 nodes the third successor is hidden from a fraction `dropout`, the second from 2/3 of it, the first from 1/3."""
    series = arcta.Series(np.arange(20_003.0), np.ones(20_003))
    windows = windows_of(
        [series], Scaling(0.0, 1.0, np.zeros(1), np.ones(1), np.zeros(0), np.zeros(0)), WindowShape(20_003, 3)
    )
    window = take(windows, jnp.array(0))
    near = neighbours(window, window.mask, 0.3, jax.random.key(0))
    hidden = np.sum(~np.asarray(near.mask)[:20_000, :, 0], axis=0)
    assert hidden[0] == 0
    assert_proportion(hidden[1:], 20_000, [0.1, 0.2, 0.3], detects=0.03)


def test_one_flag_for_a_whole_row_encodes_as_a_flag_for_each_channel_does():
    """With weights that are the sums of those of the channels' flags; and a model that was built for whole rows takes others."""
    rng = np.random.default_rng(0)
    times, values = 0.1 * np.arange(30), rng.standard_normal((30, 3))
    values[[4, 5, 20]] = np.nan
    spec = dataclasses.replace(SPEC, latent_size=3)
    series = arcta.Series(times, values)
    layout, reading = read_data(spec, series)
    assert reading.whole_rows
    lean = build(spec, layout, reading, key=jax.random.key(0)).encoder
    full = build(spec, layout, reading._replace(whole_rows=False), key=jax.random.key(0)).encoder
    alive = jnp.asarray(rng.standard_normal(full.net.layers[0].weight.shape), jnp.float32)
    seen, flags, steps = jnp.split(alive, [9, 18], axis=1)
    for_rows = jnp.concatenate([seen, flags.reshape(-1, 3, 3).sum(axis=2), steps], axis=1)
    assert for_rows.shape == lean.net.layers[0].weight.shape
    last = jnp.asarray(rng.standard_normal(full.net.layers[-1].weight.shape), jnp.float32)
    place = lambda e: (e.net.layers[0].weight, e.net.layers[0].bias, e.net.layers[-1].weight)  # noqa: E731
    bias = jnp.asarray(rng.standard_normal(len(alive)), jnp.float32)
    lean, full = eqx.tree_at(place, lean, (for_rows, bias, last)), eqx.tree_at(place, full, (alive, bias, last))
    shape = WindowShape(layout.partition_size, spec.lookahead)
    windows = windows_of([series], layout.scaling, shape)
    for i in range(len(windows.first)):
        window = take(windows, jnp.array(i))
        both = (hiding(e, 0.5)(window, key=jax.random.key(i)).values for e in (lean, full))
        np.testing.assert_allclose(*both, rtol=1e-4, atol=1e-4)
    values[:, 1] = np.nan
    partly = windows_of([arcta.Series(times, values)], layout.scaling, shape)
    assert np.all(np.isfinite(lean(take(partly, jnp.array(0))).values))


# The local encoder, its margins and its bridge ----------------------------------------------------------------------------

LOCAL = arcta.LatentSDE(
    posterior="amortised", latent_size=3, partition_size=40, activation="tanh", encoder_sizes=(6,), drift_sizes=(8,)
)


def local_setting(n: int = 120, missing: float = 0.3):
    """Noisy data, a warm-started model with some life in its MLP, and stacked windows with margins."""
    rng = np.random.default_rng(5)
    times = np.cumsum(rng.uniform(0.05, 0.15, n))
    values = np.stack([np.sin(times), np.cos(times)], axis=1) + 0.2 * rng.standard_normal((n, 2))
    values[rng.random(values.shape) < missing] = np.nan
    series = arcta.Series(times, values)
    layout, reading = read_data(LOCAL, series)
    windows = windows_of([series], layout.scaling, WindowShape(40, 0, reading.margin))
    model = warm_start(build(LOCAL, layout, reading, key=jax.random.key(0)), LOCAL, layout, reading, windows)
    alive = lambda weight: weight + 0.1 * jax.random.normal(jax.random.key(3), weight.shape)  # noqa: E731
    model = eqx.tree_at(lambda m: m.encoder.net.layers[-1].weight, model, replace_fn=alive)
    return series, layout, model, jax.tree.map(jnp.asarray, windows)


def test_local_lines_against_weighted_least_squares():
    """Each line is the minimiser of the weighted, ridge-regularised squares, solved here one by one by NumPy."""
    rng = np.random.default_rng(0)
    t, x = np.sort(rng.uniform(0, 5, 15)), rng.standard_normal((15, 2))
    mask = rng.random((15, 2)) < 0.7
    bandwidth, ridge = 0.8, np.array([0.1, 0.3])
    level, slope, level_variance, slope_variance = local_lines(
        jnp.asarray(t), jnp.asarray(x), jnp.asarray(mask), jnp.asarray(bandwidth), jnp.asarray(ridge)
    )
    for i in range(15):
        for c in range(2):
            tau = (t - t[i]) / bandwidth
            weight = np.exp(-0.5 * tau**2) * mask[:, c]
            design = np.stack([np.ones(15), tau], axis=1)
            inverse = np.linalg.inv(design.T @ (weight[:, None] * design) + ridge[c] * np.eye(2))
            expected = inverse @ design.T @ (weight * x[:, c])
            np.testing.assert_allclose([level[i, c], slope[i, c]], expected, atol=2e-4)
            np.testing.assert_allclose([level_variance[i, c], slope_variance[i, c]], np.diag(inverse), rtol=1e-3)


def test_local_encoder_ignores_padding_and_what_is_behind_the_mask():
    _, _, model, windows = local_setting()
    window = take(windows, jnp.array(0))  # its margin before the start is padding
    plain = model.posterior(window)
    padding = ~jnp.any(window.mask, axis=1)
    assert int(padding.sum()) >= window.margin
    moved = eqx.tree_at(
        lambda w: (w.values, w.times),
        window,
        (jnp.where(window.mask, window.values, 1e3), jnp.where(padding, window.times * 1.7 - 0.3, window.times)),
    )
    other = model.posterior(moved)
    for t in (0.0, 0.41, 0.97):
        for a, b in zip(*(jax.tree.leaves(p(t * window.end)) for p in (plain, other)), strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-4)


def test_windows_with_margins_meet():
    """With a margin as wide as the smoothing, neighbouring windows agree on the shared node; without one they do not."""
    series, layout, model, windows = local_setting(n=240, missing=0.0)
    with_margin = float(jnp.max(joins(model, *pairs(windows, jnp.arange(4)))))
    bare = windows_of([series], layout.scaling, WindowShape(40, 0, 0))
    without = float(jnp.max(joins(model, *pairs(jax.tree.map(jnp.asarray, bare), jnp.arange(4)))))
    assert with_margin < 0.2 < without


def test_bridge_is_the_variance_of_a_pinned_process():
    """κ, λ against the conditional variance of an Ornstein–Uhlenbeck process given both ends, and its rate by differences."""
    kappa, rate, span = 0.7, 1.3, 2.0
    bridge = Bridge(1, kappa, rate)
    stationary = kappa / (2 * rate)
    for a in (0.1, 0.9, 1.7):
        points = np.array([0.0, a, span])
        covariance = stationary * np.exp(-rate * np.abs(points[:, None] - points[None, :]))
        ends = covariance[np.ix_([0, 2], [0, 2])]
        cross = covariance[1, [0, 2]]
        expected = covariance[1, 1] - cross @ np.linalg.solve(ends, cross)
        value, slope = bridge(jnp.asarray(a), jnp.asarray(span - a))
        assert float(value[0]) == pytest.approx(expected, rel=1e-4)
        step = 1e-2
        later, _ = bridge(jnp.asarray(a + step), jnp.asarray(span - a - step))
        before, _ = bridge(jnp.asarray(a - step), jnp.asarray(span - a + step))
        assert float(slope[0]) == pytest.approx(float((later - before)[0]) / (2 * step), rel=2e-2, abs=1e-3)


def test_posterior_rates_are_derivatives_with_bridge_and_rough_kernel():
    _, _, model, windows = local_setting()
    rough = DeepKernel(hidden_sizes=(), lengthscale=2.0, roughness=0.5, rng=np.random.default_rng(0))
    model = eqx.tree_at(lambda m: m.kernel, model, rough, is_leaf=lambda x: x is None)
    posterior = model.posterior(take(windows, jnp.array(1)))
    times = posterior.node_times
    middle = float(0.5 * (times[20] + times[21]))
    step = 2e-3
    before, here, after = (posterior(jnp.asarray(middle + d)) for d in (-step, 0.0, step))
    np.testing.assert_allclose(
        here.mean_rate, (after.normal.mean - before.normal.mean) / (2 * step), rtol=2e-2, atol=2e-2
    )
    slope = (after.normal.log_variance - before.normal.log_variance) / (2 * step)
    np.testing.assert_allclose(here.log_variance_rate, slope, rtol=2e-2, atol=2e-2)


def test_averaging_in_the_rotating_frame_keeps_an_oscillation():
    """An exact rotation goes through the average unchanged at its own frequency, and is damped at frequency zero."""
    t = jnp.linspace(0, 12, 80)
    h = jnp.stack([jnp.cos(2 * t), -jnp.sin(2 * t)], axis=1)  # dz/dt = A z with A = [[0, 2], [-2, 0]]
    encoder = LocalEncoder(2, 2, bandwidth=0.4, noise=np.full(2, 0.1), rng=np.random.default_rng(0))
    seen, flat = jnp.ones(80, bool), jnp.zeros((80, 2))
    still, _ = encoder._averaged(t, h, flat, seen)
    turning, _ = encoder._in_modes(np.array([[0.0, 2.0], [-2.0, 0.0]]))._averaged(t, h, flat, seen)
    np.testing.assert_allclose(turning, h, atol=1e-4)
    assert float(jnp.std(still[20:60])) < 0.2 * float(jnp.std(h[20:60]))
