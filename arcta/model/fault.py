"""Whose numbers are not finite: drift and decoder evaluated at given states, and the first place where one fails, in words."""

from __future__ import annotations

from typing import NamedTuple, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ..data.scaling import Scaling
from ..data.windows import Window
from ..parts.generative import AbstractGenerative
from ..parts.model import Model
from ..parts.sde import Draw, interpolate_inputs

NEAR = (0.0, 0.5, -0.5, 1.5, -1.5)  # model's units around a state, where training may have looked
MOST_WINDOWS = 64
MOST_STEPS = 2000


class Places(NamedTuple):
    """Times, states and known inputs, in the model's units."""

    times: Float[Array, " n"]
    states: Float[Array, "n latent"]
    inputs: Float[Array, "n inputs"]


def find_fault(
    model: AbstractGenerative,
    scaling: Scaling,
    places: Places,
    θ: PyTree[Array] | None = None,
    *,
    values: bool = False,
) -> str | None:
    """What failed first, value or slope, at which time and state (as its owner sees that); None if all is finite. θ: a draw
    of the drift's parameters (default: the median); `values`: these alone, not their slopes."""
    draw, fixed = cast(Draw, model.drift.median() if θ is None else θ), model.decoder.median()

    def drift(t: Array, z: Array, u: Array) -> Array:
        return model.drift(t, z, u, draw)

    def decoder(t: Array, z: Array, u: Array) -> Array:
        return model.decoder(z, fixed)

    for part, function in ((model.drift, drift), (model.decoder, decoder)):
        told = zip(_at_all(function, places), ("returned", "has a derivative that is"), strict=True)
        for numbers, what in list(told)[: 1 if values else 2]:
            rows = np.flatnonzero(~np.isfinite(numbers.reshape(len(numbers), -1)).all(axis=1))
            if len(rows):
                where = [int(i) for i in np.argwhere(~np.isfinite(numbers[rows[0]]))[0]]
                t = scaling.origin + scaling.time_scale * float(places.times[rows[0]])
                state = ", ".join(f"{x:.4g}" for x in part.as_seen(np.asarray(places.states[rows[0]], float)))
                value = numbers[rows[0]][tuple(where)]
                return f"{part.owner} {what} {value} in component {where[0]} at t={t:.5g}, z=[{state}]"
    return None


def _at_all(function: object, places: Places) -> tuple[np.ndarray, np.ndarray]:
    """Values and derivatives in z at all places."""

    def at(t: Array, z: Array, u: Array) -> tuple[Array, Array]:
        return function(t, z, u), jax.jacfwd(lambda z: function(t, z, u))(z)  # pyright: ignore[reportCallIssue]

    return tuple(np.asarray(x) for x in jax.jit(jax.vmap(at))(*places))  # pyright: ignore[reportReturnType]


def find_fault_in_training(model: Model, scaling: Scaling, windows: Window) -> str | None:
    """The same where the encoder sees the training data, and near there."""
    size, some = len(model.initial.mean), jax.tree.map(lambda leaf: jnp.asarray(leaf[:MOST_WINDOWS]), windows)

    def places_of(window: Window) -> tuple[Array, Array, Array]:
        nodes = model.encode(window)
        count = nodes.values.shape[0]
        times, knots, known = (jnp.asarray(x) for x in (window.times, window.input_times, window.inputs))
        times = times[:count]
        inputs = jax.vmap(lambda t: interpolate_inputs(t, knots, known))(times)
        return jnp.asarray(window.start) + times, nodes.values[:, :size], inputs

    found = jax.lax.map(places_of, some)
    kept = np.asarray(some.node)[:, : found[0].shape[1]].ravel()
    times, states, inputs = (np.asarray(x).reshape(kept.size, *x.shape[2:])[kept] for x in found)
    kept = np.isfinite(states).all(axis=1)
    times, states, inputs = times[kept], states[kept], inputs[kept]
    if not len(times):
        return None
    order = np.argsort(times, kind="stable")
    for shift in NEAR:
        near = Places(*(jnp.asarray(x[order]) for x in (times, states + shift, inputs)))
        if fault := find_fault(model, scaling, near):
            return fault
    return None


def check_start(model: Model, scaling: Scaling, windows: Window) -> None:
    """Refuse a user's own drift or decoder that fails at the very first state, before anything is compiled. Where that state is not
    known, it fails if it does so at all that are tried."""
    if not (model.drift.own or model.decoder.own):
        return
    size, first = len(model.initial.mean), jax.tree.map(lambda leaf: leaf[0], windows)
    row = int(np.argmax(np.asarray(first.scored)))
    tried = [np.zeros(size), np.ones(size), -np.ones(size)]
    if model.decoder.in_data_coordinates:
        tried = [np.where(first.mask[row], first.values[row], 0.0)]
    real = first.times.dtype
    u = np.array([np.interp(first.times[row], first.input_times, column) for column in np.asarray(first.inputs).T])
    times = np.asarray(first.start + first.times[row])[None]
    faults = [
        find_fault(
            model, scaling, Places(*(jnp.asarray(x, real) for x in (times, z[None], u.reshape(1, -1)))), values=True
        )
        for z in tried
    ]
    if all(faults):
        raise ValueError(
            f"{faults[0]}, where the data starts. It must be finite wherever the data is; change the function."
        )


def walk_to_fault(
    model: AbstractGenerative, scaling: Scaling, place: Places, step: float, θ: PyTree[Array]
) -> str | None:
    """From one finite state on, without noise: the first fault on the way."""
    drift = eqx.filter_jit(lambda t, z: model.drift(t, z, place.inputs[0], θ))
    t, z = place.times[0], place.states[0]
    walked = [(t, z)]
    while len(walked) < MOST_STEPS and np.isfinite(np.asarray(z)).all():
        slope = drift(t, z)
        ahead = z + step * slope
        walked.append((t + step, ahead))
        z, t = z + 0.5 * step * (slope + drift(t + step, ahead)), t + step
        walked.append((t, z))
    times, states = (np.stack([np.asarray(pair[i]) for pair in walked]) for i in range(2))
    kept = np.isfinite(states).all(axis=1)
    inputs = np.repeat(np.asarray(place.inputs), kept.sum(), axis=0)
    return find_fault(model, scaling, Places(*(jnp.asarray(x) for x in (times[kept], states[kept], inputs))), θ)
