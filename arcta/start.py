"""Where training starts: a linear state-space reading of the data, for what `build` leaves random.

    level a, slope c   local lines through the observations (`LocalEncoder.features`)
    z = E [a, c]       principal axes of the levels, then of the slopes, each of unit variance
    x ≈ C z            least squares: the decoder's linear part
    ż ≈ A z            from the regression of z(t + Δ) on z(t): the drift's linear part; its residuals start the diffusion

Everything learned goes on from there; all of it is read off the training data.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from .compiled import compiled
from .model import DataSummary, LinearDecoder, Model, output_start
from .nn import Identity, LocalEncoder, SkipMLP, WindowEncoder, columns, local_lines
from .posterior import encode
from .prior import LogNormal
from .sde import NeuralDrift
from .windows import Window

MAX_WINDOWS = 64  # more say no more about a linear model
LAG = 0.5  # model's units of time, in which the dynamics turn by about half a radian


@compiled
def _features(encoder: LocalEncoder, windows: Window) -> Any:
    return jax.lax.map(lambda w: encoder.features(w.times, w.values, w.mask), windows)


def _components(windows: Window, encoder: LocalEncoder, used: np.ndarray) -> LocalEncoder:
    """`encoder` with its projection on the principal components of the channels' levels."""
    channels, count = encoder.project.shape
    if channels == count:
        return encoder
    levels = np.concatenate(
        [
            np.asarray(_levels(encoder, jax.tree.map(lambda leaf, i=i: leaf[i], windows)))[used[i]]
            for i in range(len(windows.first))
        ]
    )
    vectors = np.linalg.eigh(np.cov(levels.T))[1][:, ::-1][:, :count]
    return eqx.tree_at(lambda e: e.project, encoder, jnp.asarray(vectors, float))


@compiled
def _levels(encoder: LocalEncoder, window: Window) -> Any:
    times, values, mask = (jnp.asarray(part) for part in (window.times, window.values, window.mask))
    x = (values - encoder.shift) / encoder.scale
    return local_lines(times, x, mask, jnp.exp(encoder.log_bandwidth[0]), encoder.ridge)[0]


def _axes(levels: np.ndarray, slopes: np.ndarray, latent_size: int, slope_axes: int) -> np.ndarray:
    """E: rows are latent axes, columns [levels, slopes] of the components; unit variance each."""
    count = levels.shape[1]
    vectors = np.linalg.eigh(np.cov(levels.T).reshape(count, count))[1][:, ::-1]
    zeros = np.zeros(count)
    rows = [np.concatenate([vectors[:, i], zeros]) for i in range(min(latent_size - slope_axes, count))]
    rest = latent_size - len(rows)
    rows += [np.concatenate([zeros, vectors[:, i % count]]) for i in range(rest)]
    axes = np.array(rows)
    spread = (np.concatenate([levels, slopes], axis=1) @ axes.T).std(axis=0)
    return axes / np.maximum(spread, 1e-6)[:, None]


def _pairs(windows: Window, states: np.ndarray, used: np.ndarray, lag: float) -> tuple[np.ndarray, np.ndarray, float]:
    """States `lag` apart within windows, and their mean distance in time."""
    before, after, distance = [], [], []
    for times, z, ok in zip(np.asarray(windows.times), states, used, strict=True):
        t, z = times[: len(ok)][ok], z[ok]
        if len(t) < 3:
            continue
        j = np.searchsorted(t, t + lag)
        good = j < len(t)
        good &= np.where(good, t[np.minimum(j, len(t) - 1)] - t < 2 * lag, False)
        before.append(z[good])
        after.append(z[j[good]])
        distance.append((t[np.minimum(j, len(t) - 1)] - t)[good])
    if not before or sum(map(len, before)) == 0:
        return np.zeros((0, states.shape[-1])), np.zeros((0, states.shape[-1])), lag
    return np.concatenate(before), np.concatenate(after), float(np.mean(np.concatenate(distance)))


def _read_out(states: np.ndarray, values: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Least squares of each channel's observed values on [z, 1]: (latent + 1, channels)."""
    z = np.concatenate([states, np.ones((len(states), 1))], axis=1)
    gram = np.einsum("na,nb,nc->cab", z, z, seen * 1.0, optimize=True) + 1e-3 * len(z) * np.eye(z.shape[1])
    return np.linalg.solve(gram, np.einsum("na,nc->ca", z, values * seen)[..., None])[..., 0].T


def in_modes(encoder: LocalEncoder, A: np.ndarray) -> LocalEncoder:
    """`encoder` that averages in the modes of the linear dynamics, if those are well apart."""
    values, vectors = np.linalg.eig(A)
    if np.linalg.cond(vectors) > 100:
        return encoder
    inverse = np.linalg.inv(vectors)
    modes = np.stack([np.real(vectors), np.imag(vectors), np.real(inverse), np.imag(inverse)])
    start = (jnp.asarray(modes, float), jnp.asarray(np.imag(values), float))
    return eqx.tree_at(lambda e: (e.modes, e.frequency), encoder, start)


def linear_dynamics(
    before: Float[np.ndarray, "n latent"], after: Float[np.ndarray, "n latent"], lag: float
) -> tuple[Float[np.ndarray, "latent latent"], Float[np.ndarray, " latent"]]:
    """A and q of dz = A z dt + √q dβ from states `lag` apart; eigenvalues that grow are held at the unit circle."""
    size = before.shape[1]
    if len(before) < 4 * size:
        return np.zeros((size, size)), np.full(size, 0.1)
    transition = np.linalg.solve(before.T @ before + 1e-3 * len(before) * np.eye(size), before.T @ after).T
    values, vectors = np.linalg.eig(transition)
    values = np.where(np.abs(values) > 1, values / np.abs(values), values)
    values = np.where(np.abs(values) < 1e-2, 1e-2, values)
    back = np.linalg.inv(vectors)
    transition = np.real(vectors @ np.diag(values) @ back)
    A = np.real(vectors @ np.diag(np.log(values.astype(complex))) @ back) / lag
    residual = after - before @ transition.T
    if not np.isfinite(A).all() or np.abs(A).max() > 20:
        A = np.zeros((size, size))
    return A, residual.var(axis=0) / lag


def warm_start(model: Model, summary: DataSummary, windows: Window, *, diffusion: bool = True) -> Model:
    """`model` with encoder, decoder, drift and, if asked, diffusion at their linear reading of the windows."""
    encoder = model.encoder
    if summary.frame_shape is not None and isinstance(encoder, WindowEncoder) and isinstance(model.drift, NeuralDrift):
        return _start_frames(model, model.drift, summary, windows, diffusion=diffusion)
    if not isinstance(encoder, LocalEncoder):
        return model
    chosen = np.unique(np.linspace(0, len(windows.first) - 1, MAX_WINDOWS).astype(int))
    some = jax.tree.map(lambda leaf: jnp.asarray(leaf)[chosen], windows)
    seen, values = np.asarray(some.mask), np.asarray(some.values)
    standard = np.isin(summary.kinds, ("gaussian", "student-t"))
    rows = seen.reshape(-1, seen.shape[-1])
    count = np.maximum(rows.sum(axis=0), 1)
    mean = np.where(standard, 0.0, values.sum(axis=(0, 1)) / count)
    spread = np.sqrt(np.sum((values - mean) ** 2 * seen, axis=(0, 1)) / count)
    scale = np.where(standard | (spread == 0), 1.0, spread)
    encoder = eqx.tree_at(lambda e: (e.shift, e.scale), encoder, (jnp.asarray(mean, float), jnp.asarray(scale, float)))
    used = np.asarray(some.scored)
    encoder = _components(some, encoder, used)
    lines = np.asarray(_features(encoder, some)[0], float)
    components = encoder.project.shape[1]
    levels, slopes = lines[used][:, :components], lines[used][:, components : 2 * components]
    if isinstance(model.decoder, Identity):
        axes = np.asarray(encoder.project) @ np.eye(components, 2 * components)
    else:
        axes = _axes(levels, slopes, summary.latent_size, summary.slope_axes)
    linear = np.zeros((len(axes), lines.shape[-1]))
    linear[:, : 2 * components] = axes  # the narrowest bandwidth alone, to begin with
    encoder = eqx.tree_at(lambda e: e.linear, encoder, jnp.asarray(linear, encoder.linear.dtype))
    states = lines @ linear.T
    offset = states[used].mean(axis=0)
    A, q = linear_dynamics(*_pairs(some, states - offset, used, float(np.clip(1.5 * summary.bandwidth, LAG, 3 * LAG))))
    encoder = in_modes(encoder, A)
    drift, decoder = model.drift, model.decoder
    if isinstance(drift, NeuralDrift):
        weight = np.zeros(drift.linear.mean.shape)
        weight[:, : len(A)] = A
        start = (jnp.asarray(weight, float), jnp.asarray(-A @ offset, float))
        drift = eqx.tree_at(lambda d: (d.linear.mean, d.bias), drift, start)
    if isinstance(decoder, SkipMLP | LinearDecoder):
        C = _read_out(states[used], ((values - mean) / scale)[used], seen[used]) * _link_slope(summary, mean, scale)
        weight, bias = jnp.asarray(C[:-1].T, float), jnp.asarray(output_start(summary) + C[-1], float)
        if isinstance(decoder, LinearDecoder):
            spread = jnp.log(jnp.sqrt(jnp.mean(weight**2, axis=0)) + 1e-3)
            decoder = eqx.tree_at(
                lambda d: (d.weights.mean, d.weights.log_prior_std, d.bias), decoder, (weight, spread, bias)
            )
        else:
            decoder = eqx.tree_at(lambda d: (d.linear.weight, d.linear.bias), decoder, (weight, bias))
    level = model.diffusion.level
    q = np.clip(q, 1e-3, 1.0)
    if diffusion and isinstance(level, LogNormal):
        level = eqx.tree_at(lambda p: p.log.mean, level, jnp.asarray(np.log(q), float))
    model = eqx.tree_at(
        lambda m: (m.encoder, m.drift, m.decoder, m.diffusion.level), model, (encoder, drift, decoder, level)
    )
    return eqx.tree_at(lambda m: m.bridge.log_diffusion, model, jnp.asarray(np.log(q), float))


@compiled
def _imitate(model: Model, windows: Window, states: Array, steps: int, key: PRNGKeyArray) -> tuple[Any, Any]:
    """Encoder and decoder after some steps of Adam on given states: the encoder's means learn to hit them, the decoder to draw
    the frames from them, a window at a time."""
    pair, fixed = eqx.partition((model.encoder, model.decoder), eqx.is_inexact_array)
    optimiser = optax.adam(optax.cosine_decay_schedule(2e-3, steps))

    def loss(pair: Any, window: Window, target: Array, key: PRNGKeyArray) -> Array:
        encoder, decoder = eqx.combine(pair, fixed)
        h = encode(encoder, window)
        count, size = len(h), target.shape[1]
        node = jnp.asarray(window.node)[:count]
        miss = jnp.where(node[:, None], h[:, :size] - target[:count], 0)
        near = target[:count] + 0.1 * jax.random.normal(key, (count, size))
        outputs = columns(decoder, near.T)
        draw = model.likelihood.draw(key=key)
        mask = (jnp.asarray(window.mask)[:count] & node[:, None]).T
        fit = model.likelihood.total(jnp.asarray(window.values)[:count].T, mask, outputs, draw)
        return jnp.sum(miss**2) / jnp.sum(node) - fit / jnp.maximum(jnp.sum(mask), 1)

    def step(i: Array, carry: Any) -> Any:
        pair, moments = carry
        choose, blur = jax.random.split(jax.random.fold_in(key, i))
        index = jax.random.randint(choose, (), 0, len(windows.first))
        chosen = jax.tree.map(lambda leaf: leaf[index], windows)
        updates, moments = optimiser.update(jax.grad(loss)(pair, chosen, states[index], blur), moments)
        return eqx.apply_updates(pair, updates), moments

    return eqx.combine(jax.lax.fori_loop(0, steps, step, (pair, optimiser.init(pair)))[0], fixed)


def _start_frames(
    model: Model,
    drift: NeuralDrift,
    summary: DataSummary,
    windows: Window,
    *,
    diffusion: bool,
    steps: int = 600,
) -> Model:
    """For frames: half of the axes are levels of principal components, half their slopes; encoder and decoder learn them first.

    Left to itself the bound finds the levels alone and takes motion for noise. (Pendulum video after 3,000 steps: the latent
    state explained the angle, R² 0.99, and nothing of the velocity.)
    """
    size, channels = summary.latent_size, len(summary.channels)
    noise = np.full(channels, 0.1)
    reader = LocalEncoder(channels, size, bandwidth=4 * summary.typical_step, noise=noise, rng=np.random.default_rng(0))
    some = jax.tree.map(jnp.asarray, windows)
    reader = eqx.tree_at(lambda e: e.shift, reader, jnp.asarray(summary.means, float))
    used = np.asarray(some.scored)
    reader = _components(some, reader, used)
    lines = np.asarray(_features(reader, some)[0], float)
    count = reader.project.shape[1]
    levels, slopes = lines[used][:, :count], lines[used][:, count : 2 * count]
    axes = _axes(levels, slopes, size, size // 2)
    states = lines[..., : 2 * count] @ axes.T
    states = states - states[used].mean(axis=0)
    lag = float(np.clip(6 * summary.typical_step, LAG, 3 * LAG))
    encoder, decoder = _imitate(model, some, jnp.asarray(states, some.values.dtype), steps, jax.random.key(0))
    read = np.asarray(_encoded(encoder, some), float)[..., :size]
    A, _ = linear_dynamics(*_pairs(some, states, used, lag))
    # What the encoder gets wrong looks like diffusion to begin with; too small a q would make it drop the slopes.
    _, q = linear_dynamics(*_pairs(some, read, used[:, : read.shape[1]], summary.typical_step))
    weight = np.zeros(drift.linear.mean.shape)
    weight[:, :size] = A
    model = eqx.tree_at(
        lambda m: (m.encoder, m.decoder, m.drift.linear.mean), model, (encoder, decoder, jnp.asarray(weight, float))
    )
    level = model.diffusion.level
    if not diffusion or not isinstance(level, LogNormal):
        return model
    start = jnp.asarray(np.log(np.clip(q, 1e-3, 1.0)), float)
    return eqx.tree_at(lambda m: m.diffusion.level.log.mean, model, start)


@compiled
def _encoded(encoder: WindowEncoder, windows: Window) -> Array:
    return jax.lax.map(lambda window: encode(encoder, window), windows)


def _link_slope(summary: DataSummary, mean: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """d output / d standardised value at the mean: 1 where the output is the value, the link's derivative elsewhere."""
    probability = np.clip(mean, 0.05, 0.95)
    slopes = {"poisson": scale / np.maximum(mean, 0.1), "bernoulli": scale / (probability * (1 - probability))}
    return np.array([slopes[kind][i] if kind in slopes else 1.0 for i, kind in enumerate(summary.kinds)])
