"""Sample paths of the prior SDE by Heun's scheme with fixed steps, all paths at once; training never comes here.

    w  = √(h q) ε,   z̃ = z + h f(t, z) + w,   z' = z + ½h (f(t, z) + f(t + h, z̃)) + w

has order 2 in the drift and strong order 1 in additive noise. Paths run along the last axis, so that a network on all of them is
one matrix product. A long horizon is walked in stretches: memory is that of one stretch unless the paths are kept, and
the noise of a step depends on (key, number of the step) alone, so where a horizon is cut changes nothing.

How many steps there are is bounded (`plan`): where too many would be needed, what is remembered across a gap of many time scales is
nothing, and only the last `REMEMBERED` of it, or as much more as can be afforded, are walked.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ..data.scaling import Scaling
from ..model.fault import Places, walk_to_fault
from ..parts.generative import AbstractGenerative, Draw
from ..parts.sde import interpolate_inputs
from ..runtime.compile import compile_plainly

STRETCH = 512
FINEST, COARSEST = 1 / 400, 1 / 40  # default steps in time scales
AFFORDABLE, BELIEVED = 40_000.0, 1_000_000.0  # steps of a forecast by a learned drift, by a user's own
REMEMBERED, ENOUGH = 20.0, 100.0  # time scales of a gap that are walked if there are too many: at least, and at most
MOST = 2_000_000_000  # steps that can be counted
UNSTABLE = (
    "the learned drift is unstable there or the solver's step too long. Pass a smaller max_step=, or train longer."
)
AWAY = 30.0  # in units of the data's spread: where a path has run away


class Grid(eqx.Module):
    """A stretch of output times, measured from `start`; when the walk to each begins, and its steps; those before all; the known
    inputs on the way."""

    start: Float[Array, ""]
    begins: Float[Array, " n"]
    lengths: Float[Array, " n"]
    substeps: Int[Array, " n"]
    taken: Int[Array, ""]
    input_times: Float[Array, " knots"]
    inputs: Float[Array, "knots inputs"]


def padded_length(count: int) -> int:
    """The next of 32, 48, 64, 96, 128, …: few lengths, so that asking for other times seldom compiles anew."""
    power = 1 << max(count - 1, 31).bit_length()
    return 3 * power // 4 if 3 * power // 4 >= max(count, 32) else power


class Plan(NamedTuple):
    """How paths are walked to some times: from where to each, in how many steps, and the longest gap that is walked whole (None:
    all are)."""

    begins: Float[np.ndarray, " n"]
    substeps: Int[np.ndarray, " n"]
    longest: float | None = None


def plan(times: Float[np.ndarray, " n"], max_step: float, affordable: int | float = np.inf) -> Plan:
    """Steps to increasing times since the start, none longer than `max_step`, and no more than are affordable unless
    `REMEMBERED` asks for them."""
    before = np.concatenate([[0.0], times[:-1]])
    gaps = times - before
    counts = np.ceil(gaps / max_step - 1e-6).astype(np.int64)
    if counts.sum() <= affordable:
        return Plan(before, counts)
    ordered = np.sort(counts)
    # With the k shortest gaps whole, the others share what is left.
    shares = (affordable - np.concatenate([[0.0], np.cumsum(ordered)[:-1]])) / np.arange(len(counts), 0, -1)
    fits = np.flatnonzero(shares <= ordered)
    most = float(np.clip(shares[fits[0]], REMEMBERED / max_step, ENOUGH / max_step))
    kept = np.minimum(counts, int(most))
    if np.array_equal(kept, counts):
        return Plan(before, counts)
    return Plan(np.where(counts > kept, times - kept * max_step, before), kept, most * max_step)


def make_grids(
    start: float,
    times: Float[np.ndarray, " n"],
    steps: Plan,
    input_times: Float[np.ndarray, " knots"],
    inputs: Float[np.ndarray, "knots inputs"],
) -> list[Grid]:
    """Output times (since `start`, in the model's units) in stretches, walked as planned.

    Times and knots are padded to `padded_length`: the last time is repeated, which takes no step.
    """
    if steps.substeps.sum() > MOST:
        raise ValueError(
            f"a forecast that far would take {steps.substeps.sum():.2g} solver steps. Ask for nearer times, or pass a larger "
            "max_step=."
        )
    in_last = (len(times) - 1) % STRETCH + 1
    more = padded_length(in_last) - in_last
    times, substeps = np.pad(times, (0, more), mode="edge"), np.pad(steps.substeps.astype(np.int32), (0, more))
    begins = np.pad(steps.begins, (0, more), constant_values=times[-1])
    lengths = times - begins  # in double: float32 does not resolve them far ahead
    if inputs.shape[1]:
        more = padded_length(len(input_times)) - len(input_times)
        input_times = np.concatenate([input_times, input_times[-1] + np.arange(1.0, more + 1)])
        inputs = np.pad(inputs, ((0, more), (0, 0)), mode="edge")
    taken = np.cumsum(substeps, dtype=np.int32) - substeps

    def stretch(first: int) -> Grid:
        inside = slice(first, first + STRETCH)
        progress = (begins[inside], lengths[inside], substeps[inside], taken[first])
        return Grid(*(jnp.asarray(part) for part in (np.float64(start), *progress, input_times, inputs)))

    return [stretch(first) for first in range(0, len(times), STRETCH)]


@compile_plainly
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
        begin, length, count = span
        h = length / jnp.maximum(count, 1)

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

    _, states = jax.lax.scan(leap, (initial.T, grid.taken), (grid.begins, grid.lengths, grid.substeps))
    return jnp.moveaxis(states, -1, 0)


def _fault(
    model: AbstractGenerative,
    scaling: Scaling,
    draws: Draw,
    states: Float[Array, "samples n_plus_1 latent"],
    grid: Grid,
) -> str | None:
    """Which function failed on the way of the first path that was lost, if one did."""
    finite = np.all(np.isfinite(np.asarray(states)), axis=2)
    path = int(np.argmin(np.all(finite, axis=1)))
    last = int(np.argmin(finite[path])) - 1
    if last < 0:
        return None
    span = float(grid.lengths[last]) / max(int(grid.substeps[last]), 1)
    since = grid.begins[last]
    inputs = interpolate_inputs(since, grid.input_times, grid.inputs)
    place = Places((grid.start + since)[None], states[path, last][None], inputs[None])
    return walk_to_fault(model, scaling, place, span, jax.tree.map(lambda leaf: leaf[path], draws.drift))


def walk(
    model: AbstractGenerative,
    draws: Draw,
    initial: Float[Array, "samples latent"],
    grids: list[Grid],
    scaling: Scaling,
    *,
    key: PRNGKeyArray,
) -> Iterator[Float[Array, "samples n latent"]]:
    """The paths stretch by stretch, or an error as soon as some of them leave the range of numbers.

    Some of the drifts that a posterior allows are unstable where there was no data; had the system been so, it would have left. So
    paths of a learned drift that run away make room for others, unless most do. A user's own equations may lead anywhere.
    """
    for grid in grids:
        before = initial
        states = paths(model, draws, initial, grid, key=key)
        away = np.asarray(~(jnp.max(jnp.abs(states), axis=(1, 2)) < AWAY))
        if not model.drift.believed and 0 < away.sum() <= len(away) / 2:
            stay = np.arange(len(away))
            stay[away] = np.resize(np.flatnonzero(~away), away.sum())
            states, draws = jax.tree.map(lambda leaf, stay=stay: leaf[stay], (states, draws))
        initial = states[:, -1]
        lost = int((~np.isfinite(np.asarray(initial))).any(axis=1).sum())
        if lost:
            fault = _fault(model, scaling, draws, jnp.concatenate([before[:, None], states], axis=1), grid)
            raise FloatingPointError(
                f"{lost} of {len(initial)} sample paths left the range of numbers: "
                + (f"{fault}. It must be finite wherever paths lead; change the function." if fault else UNSTABLE)
            )
        yield states
