"""Where training starts: a linear state-space reading of the data, for what `build` leaves random.

`read_linear` finds levels, slopes, axes, dynamics and read-out (`base.LinearReading`); each part takes from it what it has a
use for. Everything learned goes on from there; all of it is read off the training data.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from ..data.moments import moments
from ..data.windows import Window
from ..parts.base import LinearReading
from ..parts.decoders import AbstractDecoder
from ..parts.encoders import AbstractEncoder
from ..parts.local import LocalEncoder, local_lines
from ..parts.model import Model
from ..runtime.compile import compile_lightly
from .build import first_outputs, local_encoder
from .reading import DataLayout, Reading
from .spec import LatentSDE

MAX_WINDOWS = 64  # more say no more about a linear model
Pair = tuple[AbstractEncoder, AbstractDecoder]
FLAT = 1e-6  # in the model's units
LAG = 0.5  # model's units of time, in which the dynamics turn by about half a radian


@compile_lightly
def _features(encoder: LocalEncoder, windows: Window) -> Array:
    return jax.lax.map(lambda w: encoder.features(w.times, w.values, w.mask)[0], windows)


@compile_lightly
def _levels(encoder: LocalEncoder, window: Window) -> Array:
    x = (window.values - encoder.shift) / encoder.scale
    lines = local_lines(window.times, x, window.mask, jnp.exp(encoder.log_bandwidth[0]), encoder.ridge)
    return jnp.asarray(lines.level)


def _components(
    encoder: LocalEncoder, windows: Window, used: Bool[np.ndarray, "windows rows"]
) -> Float[np.ndarray, "channels components"]:
    """The principal components of the channels' levels, as many as the encoder projects on."""
    channels, count = encoder.project.shape
    if channels == count:
        return np.asarray(encoder.project)
    each = (jax.tree.map(lambda leaf, i=i: leaf[i], windows) for i in range(len(windows.first)))
    levels = np.concatenate([np.asarray(_levels(encoder, window))[used[i]] for i, window in enumerate(each)])
    return np.linalg.eigh(np.cov(levels.T))[1][:, ::-1][:, :count]


def _read_lines(
    encoder: LocalEncoder, windows: Window, shift: np.ndarray, scale: np.ndarray
) -> tuple[Float[np.ndarray, "channels components"], Float[np.ndarray, "windows rows levels_and_slopes"]]:
    """Principal components of standardised values, and their levels and slopes around every row."""
    standard = (jnp.asarray(shift, float), jnp.asarray(scale, float))
    encoder = eqx.tree_at(lambda e: (e.shift, e.scale), encoder, standard)
    components = _components(encoder, windows, np.asarray(windows.scored))
    encoder = eqx.tree_at(lambda e: e.project, encoder, jnp.asarray(components, float))
    return components, np.asarray(_features(encoder, windows), float)[..., : 2 * components.shape[1]]


def _axes(lines: Float[np.ndarray, "n levels_and_slopes"], latent_size: int, slope_axes: int) -> np.ndarray:
    """E: rows are latent axes, columns [levels, slopes] of the components; unit variance each."""
    count = lines.shape[1] // 2
    levels = lines[:, :count]
    vectors = np.linalg.eigh(np.cov(levels.T).reshape(count, count))[1][:, ::-1]
    zeros = np.zeros(count)
    rows = [np.concatenate([vectors[:, i], zeros]) for i in range(min(latent_size - slope_axes, count))]
    rest = latent_size - len(rows)
    rows += [np.concatenate([zeros, vectors[:, i % count]]) for i in range(rest)]
    axes = np.array(rows)
    spread = (lines @ axes.T).std(axis=0)
    return axes / np.where(spread > FLAT, spread, 1.0)[:, None]  # a flat axis is left as it is


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
    back = np.linalg.pinv(vectors)  # channels that repeat one another may leave fewer vectors than axes
    transition = np.real(vectors @ np.diag(values) @ back)
    A = np.real(vectors @ np.diag(np.log(values.astype(complex))) @ back) / lag
    residual = after - before @ transition.T
    if not np.isfinite(A).all() or np.abs(A).max() > 20:
        A = np.zeros((size, size))
    return A, residual.var(axis=0) / lag


def _standardise(
    reading: Reading, values: np.ndarray, seen: np.ndarray
) -> tuple[Float[np.ndarray, " channels"], Float[np.ndarray, " channels"]]:
    """Mean and spread of the values of channels that the scaling has left as they are; 0 and 1 for the others."""
    shift, scale = np.zeros(values.shape[-1]), np.ones(values.shape[-1])
    for kind, columns in reading.likelihoods():
        if not kind.standardised:
            found = moments(*(part[..., columns].reshape(-1, len(columns)) for part in (values.astype(float), seen)))
            shift[columns], scale[columns] = found.mean, np.where(found.varies, found.unit, 1.0)
    return shift, scale


def _link_slope(reading: Reading, shift: np.ndarray, scale: np.ndarray) -> Float[np.ndarray, " channels"]:
    """d output / d standardised value at the mean."""
    slopes = np.empty_like(scale)
    for kind, columns in reading.likelihoods():
        slopes[columns] = kind.link_slope(shift[columns]) * scale[columns]
    return slopes


def read_linear(model: Model, spec: LatentSDE, layout: DataLayout, reading: Reading, windows: Window) -> LinearReading:
    """The linear reading of some of the windows, through the lines of the default encoder."""
    chosen = np.unique(np.linspace(0, len(windows.first) - 1, MAX_WINDOWS).astype(int))
    some = jax.tree.map(lambda leaf: jnp.asarray(leaf)[chosen], windows)
    some = eqx.tree_at(lambda w: w.values, some, model.likelihood.view(some.values))
    seen, values, used = np.asarray(some.mask), np.asarray(some.values), np.asarray(some.scored)
    shift, scale = _standardise(reading, values, seen)
    reader = local_encoder(spec, layout, reading, np.random.default_rng(0))
    components, lines = _read_lines(reader, some, shift, scale)
    if model.decoder.in_data_coordinates:
        axes = components @ np.eye(components.shape[1], lines.shape[-1])
    else:
        axes = _axes(lines[used], reading.latent_size, reading.slope_axes)
    states = lines @ axes.T
    centre = states[used].mean(axis=0)
    lag = float(np.clip(1.5 * reading.bandwidth, LAG, 3 * LAG))
    A, q = linear_dynamics(*_pairs(some, states - centre, used, lag))
    q = np.clip(q, 1e-3, 1.0)
    C = _read_out(states[used], ((values - shift) / scale)[used], seen[used]) * _link_slope(reading, shift, scale)
    return LinearReading(
        shift=shift,
        scale=scale,
        components=components,
        axes=axes,
        dynamics=A,
        centre=centre,
        diffusion=q if spec.diffusion_start is None else None,
        bridge=q,
        read_out=C[:-1].T,
        intercept=first_outputs(reading) + C[-1],
    )


@compile_lightly
def _imitate(
    model: Model, windows: Window, states: Float[Array, "windows rows latent"], steps: int, key: PRNGKeyArray
) -> tuple[AbstractEncoder, AbstractDecoder]:
    """Encoder and decoder after some steps of Adam on given states: the encoder's means learn to hit them, the decoder to draw
    the frames from them, a window at a time."""
    pair, fixed = eqx.partition((model.encoder, model.decoder), eqx.is_inexact_array)
    optimiser = optax.adam(optax.cosine_decay_schedule(2e-3, steps))

    def loss(pair: Pair, window: Window, target: Array, key: PRNGKeyArray) -> Array:
        encoder, decoder = eqx.combine(pair, fixed)
        nodes = encoder(window)
        count, size = len(nodes.node), target.shape[1]
        miss = jnp.where(nodes.node[:, None], nodes.values[:, :size] - target[:count], 0)
        near = target[:count] + 0.1 * jax.random.normal(key, (count, size))
        outputs = decoder.at_many(near.T, decoder.draw(key=key))
        density = jax.vmap(model.likelihood.log_density, in_axes=(0, -1, None))
        mask = window.mask[:count] & nodes.node[:, None]
        densities = density(jnp.asarray(window.values)[:count], outputs, model.likelihood.draw(key=key))
        fit = jnp.sum(jnp.where(mask, densities, 0)) / jnp.maximum(jnp.sum(mask), 1)
        return jnp.sum(miss**2) / jnp.sum(nodes.node) - fit

    def step(i: Array, carry: tuple[Pair, optax.OptState]) -> tuple[Pair, optax.OptState]:
        pair, moments = carry
        choose, blur = jax.random.split(jax.random.fold_in(key, i))
        index = jax.random.randint(choose, (), 0, len(windows.first))
        chosen = jax.tree.map(lambda leaf: leaf[index], windows)
        updates, moments = optimiser.update(jax.grad(loss)(pair, chosen, states[index], blur), moments)
        return eqx.apply_updates(pair, updates), moments

    return eqx.combine(jax.lax.fori_loop(0, steps, step, (pair, optimiser.init(pair)))[0], fixed)


@compile_lightly
def _encode(encoder: AbstractEncoder, windows: Window) -> Array:
    return jax.lax.map(lambda window: encoder(window).values, windows)


def _start_frames(
    model: Model, spec: LatentSDE, layout: DataLayout, reading: Reading, windows: Window, steps: int = 600
) -> Model:
    """For frames: half of the axes are levels of principal components, half their slopes; encoder and decoder learn them first.

    Left to itself the bound finds the levels alone and takes motion for noise.
    """
    size, channels, step = reading.latent_size, len(layout.channels), layout.typical_step
    rng = np.random.default_rng(0)
    reader = LocalEncoder(channels, size, bandwidth=4 * step, noise=np.full(channels, 0.1), rng=rng)
    some = jax.tree.map(jnp.asarray, windows)
    used, shift, scale = np.asarray(some.scored), np.array(reading.means), np.ones(channels)
    components, lines = _read_lines(reader, some, shift, scale)
    axes = _axes(lines[used], size, size // 2)
    states = lines @ axes.T
    states = states - states[used].mean(axis=0)
    lag = float(np.clip(6 * step, LAG, 3 * LAG))
    encoder, decoder = _imitate(model, some, jnp.asarray(states, some.values.dtype), steps, jax.random.key(0))
    read = np.asarray(_encode(encoder, some), float)[..., :size]
    A, _ = linear_dynamics(*_pairs(some, states, used, lag))
    # What the encoder gets wrong looks like diffusion to begin with; too small a q would make it drop the slopes.
    _, q = linear_dynamics(*_pairs(some, read, used[:, : read.shape[1]], step))
    q = np.clip(q, 1e-3, 1.0)
    none = np.zeros((0, size))
    found = LinearReading(
        shift=shift,
        scale=scale,
        components=components,
        axes=axes,
        dynamics=A,
        centre=np.zeros(size),
        diffusion=q if spec.diffusion_start is None else None,
        bridge=q,
        read_out=none,
        intercept=none[:, 0],
    )
    parts = (encoder, decoder, model.drift.started_from(found), model.diffusion.started_from(found))
    return eqx.tree_at(lambda m: (m.encoder, m.decoder, m.drift, m.diffusion), model, parts)


def warm_start(model: Model, spec: LatentSDE, layout: DataLayout, reading: Reading, windows: Window) -> Model:
    """`model` with its parts where a linear reading of the windows puts them, if its encoder has a use for one."""
    if model.encoder.start == "reading":
        return model.started_from(read_linear(model, spec, layout, reading, windows))
    if model.encoder.start == "imitation" and model.drift.takes_dynamics:
        return _start_frames(model, spec, layout, reading, windows)
    return model
