"""Sample paths of the prior SDE: diffrax's Heun steps, as many as asked for between two output times.

Training never comes here. Heun's scheme has order 2 in the drift and strong order 1 in additive noise. diffrax's own
outer loop is left out: it carries error callbacks, which keep the compiled program out of the persistent cache.
"""

from __future__ import annotations

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .model import Draw, Model
from .sde import interpolate_inputs


class Grid(eqx.Module):
    """Output times measured from `start`, the steps to take before each, and the known inputs on the way."""

    start: Float[Array, ""]
    times: Float[Array, " n"]
    substeps: Int[Array, " n"]
    input_times: Float[Array, " knots"]
    inputs: Float[Array, "knots inputs"]


def padded_length(count: int) -> int:
    """The next of 32, 48, 64, 96, 128, …: few lengths, so that asking for other times seldom compiles anew."""
    power = 32
    while power < count:
        power *= 2
    return 3 * power // 4 if 3 * power // 4 >= max(count, 32) else power


def make_grid(
    start: float,
    times: Float[np.ndarray, " n"],
    max_step: float,
    input_times: Float[np.ndarray, " knots"],
    inputs: Float[np.ndarray, "knots inputs"],
) -> Grid:
    """Output times (since `start`, in the model's units) with no step longer than `max_step`.

    Times and knots are padded to `padded_length`: the last time is repeated, which takes no step.
    """
    more = padded_length(len(times)) - len(times)
    times = np.concatenate([times, np.repeat(times[-1:], more)])
    substeps = np.ceil(np.diff(times, prepend=0.0) / max_step - 1e-6).astype(np.int32)
    if inputs.shape[1]:
        more = padded_length(len(input_times)) - len(input_times)
        input_times = np.concatenate([input_times, input_times[-1] + np.arange(1.0, more + 1)])
        inputs = np.concatenate([inputs, np.repeat(inputs[-1:], more, axis=0)])
    real = jnp.asarray(0.0).dtype
    return Grid(
        jnp.asarray(start, real),
        jnp.asarray(times, real),
        jnp.asarray(substeps),
        jnp.asarray(input_times, real),
        jnp.asarray(inputs, real),
    )


def path(
    model: Model, draw: Draw, initial: Float[Array, " latent"], grid: Grid, *, key: PRNGKeyArray
) -> Float[Array, "n latent"]:
    """One path z at the grid's times, from z = `initial` at its start."""

    def drift(t: Any, z: Array, _: Any) -> Array:
        u = interpolate_inputs(t, grid.input_times, grid.inputs)
        return model.drift(grid.start + t, z, u, draw.parameters)

    def dispersion(t: Any, z: Array, _: Any) -> Array:
        return jnp.diag(jnp.sqrt(model.diffusion(grid.start + t, draw.diffusion)))

    noise = diffrax.UnsafeBrownianPath(initial.shape, key)
    terms = diffrax.MultiTerm(diffrax.ODETerm(drift), diffrax.ControlTerm(dispersion, noise))
    solver = diffrax.Heun()

    def leap(z: Array, span: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        begin, end, count = span
        step = (end - begin) / jnp.maximum(count, 1)

        def one(i: Array, z: Array) -> Array:
            t = begin + i * step
            return solver.step(terms, t, t + step, z, None, None, made_jump=False)[0]

        z = jax.lax.fori_loop(0, count, one, z)
        return z, z

    before = jnp.concatenate([jnp.zeros(1, grid.times.dtype), grid.times[:-1]])
    return jax.lax.scan(leap, initial, (before, grid.times, grid.substeps))[1]
