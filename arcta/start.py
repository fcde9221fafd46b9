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
from jaxtyping import Float
from scipy.linalg import logm

from .model import DataSummary, Model, output_start
from .nn import Identity, LocalEncoder, SkipMLP
from .prior import LogNormal
from .sde import NeuralDrift
from .windows import Window

MAX_WINDOWS = 64  # more say no more about a linear model
LAG = 0.5  # model's units of time, in which the dynamics turn by about half a radian


@eqx.filter_jit
def _features(encoder: LocalEncoder, windows: Window) -> Any:
    return jax.lax.map(lambda w: encoder.features(w.times, w.values, w.mask), windows)


def _axes(
    levels: np.ndarray, slopes: np.ndarray, doubt: np.ndarray, latent_size: int, bandwidth: float
) -> np.ndarray:
    """E: rows are latent axes, columns [levels, slopes]; unit variance each."""
    channels = levels.shape[1]
    eigenvalues, vectors = np.linalg.eigh(np.cov(levels.T).reshape(channels, channels))
    eigenvalues, vectors = eigenvalues[::-1], vectors[:, ::-1]
    floor = doubt * (1 + np.sqrt(channels / len(levels))) ** 2
    count = int(np.clip((eigenvalues > np.maximum(2 * floor, 1e-3 * eigenvalues[0])).sum(), 1, latent_size))
    rows = [np.concatenate([vectors[:, i], np.zeros(channels)]) for i in range(count)]
    rows += [np.concatenate([np.zeros(channels), vectors[:, i]]) for i in range(min(count, latent_size - count))]
    rest = max(latent_size - len(rows), 0)
    rows += [
        np.concatenate([vectors[:, (count + i) % channels], vectors[:, i % channels]]) for i in range(rest)
    ]
    axes = np.array(rows)
    spread = (np.concatenate([levels, slopes], axis=1) @ axes.T).std(axis=0)
    return axes / np.maximum(spread, 1e-6)[:, None]


def _pairs(windows: Window, states: np.ndarray, used: np.ndarray, lag: float) -> tuple[np.ndarray, np.ndarray, float]:
    """States `lag` apart within windows, and their mean distance in time."""
    before, after, distance = [], [], []
    for times, z, ok in zip(np.asarray(windows.times), states, used, strict=True):
        t, z = times[ok], z[ok]
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
    transition = np.real(vectors @ np.diag(values) @ np.linalg.inv(vectors))
    A = np.real(np.asarray(logm(transition))) / lag
    residual = after - before @ transition.T
    if not np.isfinite(A).all() or np.abs(A).max() > 20:
        A = np.zeros((size, size))
    return A, residual.var(axis=0) / lag


def warm_start(model: Model, summary: DataSummary, windows: Window, *, diffusion: bool = True) -> Model:
    """`model` with encoder, decoder, drift and, if asked, diffusion at their linear reading of the windows."""
    encoder = model.encoder
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
    lines, variances = (np.asarray(part, float) for part in _features(encoder, some))
    used = np.asarray(some.scored)
    channels = values.shape[-1]
    levels, slopes = lines[used][:, :channels], lines[used][:, channels : 2 * channels]
    doubt = float(np.mean(variances[used][:, :channels] * np.asarray(encoder.ridge)))
    if isinstance(model.decoder, Identity):
        axes = np.eye(channels, 2 * channels)
    else:
        axes = _axes(levels, slopes, doubt, summary.latent_size, summary.bandwidth)
    linear = np.concatenate([axes, np.zeros_like(axes)], axis=1)
    encoder = eqx.tree_at(lambda e: e.linear, encoder, jnp.asarray(linear, encoder.linear.dtype))
    states = lines @ linear.T
    offset = states[used].mean(axis=0)
    A, q = linear_dynamics(*_pairs(some, states - offset, used, float(np.clip(1.5 * summary.bandwidth, LAG, 3 * LAG))))
    drift, decoder = model.drift, model.decoder
    if isinstance(drift, NeuralDrift):
        weight = np.zeros((len(A), drift.linear.in_features))
        weight[:, : len(A)] = A
        drift = eqx.tree_at(
            lambda d: (d.linear.weight, d.linear.bias), drift, (jnp.asarray(weight, float), jnp.asarray(-A @ offset, float))
        )
    if isinstance(decoder, SkipMLP):
        z = states[used]
        C = _read_out(z, ((values - mean) / scale)[used], seen[used])
        slope = _link_slope(summary, mean, scale)
        decoder = eqx.tree_at(
            lambda d: (d.linear.weight, d.linear.bias),
            decoder,
            (jnp.asarray((C[:-1] * slope).T, float), jnp.asarray(output_start(summary) + C[-1] * slope, float)),
        )
    level = model.diffusion.level
    q = np.clip(q, 1e-3, 1.0)
    if diffusion and isinstance(level, LogNormal):
        level = eqx.tree_at(lambda p: p.log.mean, level, jnp.asarray(np.log(q), float))
    model = eqx.tree_at(
        lambda m: (m.encoder, m.drift, m.decoder, m.diffusion.level), model, (encoder, drift, decoder, level)
    )
    return eqx.tree_at(lambda m: m.bridge.log_diffusion, model, jnp.asarray(np.log(q), float))


def _link_slope(summary: DataSummary, mean: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """d output / d standardised value at the mean: 1 where the output is the value, the link's derivative elsewhere."""
    probability = np.clip(mean, 0.05, 0.95)
    slopes = {"poisson": scale / np.maximum(mean, 0.1), "bernoulli": scale / (probability * (1 - probability))}
    return np.array([slopes[kind][i] if kind in slopes else 1.0 for i, kind in enumerate(summary.kinds)])

