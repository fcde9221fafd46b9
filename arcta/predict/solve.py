"""Sample paths of the prior SDE by Heun's scheme with fixed steps, all paths at once; training never comes here.

    w  = √(h q) ε,   z̃ = z + h f(t, z) + w,   z' = z + ½h (f(t, z) + f(t + h, z̃)) + w

has order 2 in the drift and strong order 1 in additive noise. Paths run along the last axis, so that a network on all of them is
one matrix product. A long horizon is walked in stretches: memory is that of one stretch unless the paths are kept, and
the noise of a step depends on (key, number of the step) alone, so where a horizon is cut changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ..parts.generative import AbstractGenerative, Draw
from ..parts.sde import interpolate_inputs

STRETCH = 512
AWAY = 30.0  # in units of the data's spread: where a path has run away


class Grid(eqx.Module):
    """A stretch of output times, measured from `start`; the steps before each and before all; the known inputs on the way."""

    start: Float[Array, ""]
    begin: Float[Array, ""]
    times: Float[Array, " n"]
    substeps: Int[Array, " n"]
    taken: Int[Array, ""]
    input_times: Float[Array, " knots"]
    inputs: Float[Array, "knots inputs"]


def padded_length(count: int) -> int:
    """The next of 32, 48, 64, 96, 128, …: few lengths, so that asking for other times seldom compiles anew."""
    power = 1 << max(count - 1, 31).bit_length()
    return 3 * power // 4 if 3 * power // 4 >= max(count, 32) else power


def make_grids(
    start: float,
    times: Float[np.ndarray, " n"],
    max_step: float,
    input_times: Float[np.ndarray, " knots"],
    inputs: Float[np.ndarray, "knots inputs"],
) -> list[Grid]:
    """Output times (since `start`, in the model's units) in stretches, with no step longer than `max_step`.

    Times and knots are padded to `padded_length`: the last time is repeated, which takes no step.
    """
    in_last = (len(times) - 1) % STRETCH + 1
    times = np.pad(times, (0, padded_length(in_last) - in_last), mode="edge")
    before = np.concatenate([[0.0], times[:-1]])
    substeps = np.ceil((times - before) / max_step - 1e-6).astype(np.int32)
    if inputs.shape[1]:
        more = padded_length(len(input_times)) - len(input_times)
        input_times = np.concatenate([input_times, input_times[-1] + np.arange(1.0, more + 1)])
        inputs = np.pad(inputs, ((0, more), (0, 0)), mode="edge")
    taken = np.cumsum(substeps, dtype=np.int32) - substeps

    def stretch(first: int) -> Grid:
        inside = slice(first, first + STRETCH)
        progress = (before[first], times[inside], substeps[inside], taken[first])
        return Grid(*(jnp.asarray(part) for part in (np.float64(start), *progress, input_times, inputs)))

    return [stretch(first) for first in range(0, len(times), STRETCH)]


@eqx.filter_jit
def paths(
    model: AbstractGenerative, draws: Draw, initial: Float[Array, "samples latent"], grid: Grid, *, key: PRNGKeyArray
) -> Float[Array, "samples n latent"]:
    """Paths z at the grid's times, each with its own draw of the parameters, from `initial` at the grid's beginning."""

    def drift(t: Array, z: Float[Array, "latent samples"]) -> Float[Array, "latent samples"]:
        u = interpolate_inputs(t, grid.input_times, grid.inputs)
        of_one = lambda z, parameters: model.drift(grid.start + t, z, u, parameters)  # noqa: E731
        return jax.vmap(of_one, in_axes=(-1, 0), out_axes=-1)(z, draws.drift)

    def spread(t: Array) -> Float[Array, "latent samples"]:
        return jnp.sqrt(jax.vmap(lambda level: model.diffusion(grid.start + t, level), out_axes=-1)(draws.diffusion))

    def leap(carry: tuple[Array, Array], span: tuple[Array, Array, Array]) -> tuple[tuple[Array, Array], Array]:
        begin, end, count = span
        h = (end - begin) / jnp.maximum(count, 1)

        def step(i: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
            z, taken = carry
            t = begin + i * h
            noise = jax.random.normal(jax.random.fold_in(key, taken), z.shape, z.dtype)
            kick = jnp.sqrt(h) * 0.5 * (spread(t) + spread(t + h)) * noise
            slope = drift(t, z)
            ahead = drift(t + h, z + h * slope + kick)
            return z + 0.5 * h * (slope + ahead) + kick, taken + 1

        carry = jax.lax.fori_loop(0, count, step, carry)
        return carry, carry[0]

    before = jnp.concatenate([grid.begin[None], grid.times[:-1]])
    _, states = jax.lax.scan(leap, (initial.T, grid.taken), (before, grid.times, grid.substeps))
    return jnp.moveaxis(states, -1, 0)


def walk(
    model: AbstractGenerative,
    draws: Draw,
    initial: Float[Array, "samples latent"],
    grids: list[Grid],
    *,
    key: PRNGKeyArray,
) -> Iterator[Float[Array, "samples n latent"]]:
    """The paths stretch by stretch, or an error as soon as some of them leave the range of numbers.

    Some of the drifts that a posterior allows are unstable where there was no data; had the system been so, it would have left. So
    paths of a learned drift that run away make room for others, unless most do. A user's own equations may lead anywhere.
    """
    for grid in grids:
        states = paths(model, draws, initial, grid, key=key)
        away = np.asarray(~(jnp.max(jnp.abs(states), axis=(1, 2)) < AWAY))
        if not model.drift.believed and 0 < away.sum() <= len(away) / 2:
            stay = np.arange(len(away))
            stay[away] = np.resize(np.flatnonzero(~away), away.sum())
            states, draws = jax.tree.map(lambda leaf, stay=stay: leaf[stay], (states, draws))
        initial = states[:, -1]
        lost = int((~np.isfinite(np.asarray(initial))).any(axis=1).sum())
        if lost:
            raise FloatingPointError(
                f"{lost} of {len(initial)} sample paths left the range of numbers: the learned drift is unstable there or the "
                "solver's step too long. Pass a smaller max_step=, or train longer."
            )
        yield states
