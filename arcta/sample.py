"""Sample: new trajectories from the prior,  z(t₀) ~ p(z0),  dz = f dt + √q dβ,  x ~ p(x | z)."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from .forecast import check_finite, default_step, input_knots
from .model import DataSummary, Draw, Model
from .prediction import Prediction, check_times, predict
from .solve import Grid, make_grid, path


@eqx.filter_jit
def prior_paths(
    model: Model, grid: Grid, num_samples: int, key: PRNGKeyArray
) -> tuple[Float[Array, "samples n latent"], Draw]:
    """Latent paths from p(z0) at the grid's start."""

    def one(key: PRNGKeyArray) -> tuple[Array, Draw]:
        draw_key, state_key, path_key = jax.random.split(key, 3)
        draw = model.draw(key=draw_key)
        return path(model, draw, model.initial.sample(key=state_key), grid, key=path_key), draw

    return jax.vmap(one)(jax.random.split(key, num_samples))


def sample(
    model: Model,
    summary: DataSummary,
    times: Any,
    *,
    inputs: Any = None,
    num_samples: int = 10,
    max_step: float | None = None,
    key: PRNGKeyArray,
) -> Prediction:
    """New trajectories at `times`; the first of them is when the initial state holds."""
    asked = check_times(times, summary.calendar)
    if num_samples < 1:
        raise ValueError(f"num_samples must be at least 1; got {num_samples}. Ask for one trajectory or more.")
    scaling = summary.scaling
    start = float(asked[0])
    knots = input_knots(summary, None, start, asked, inputs)
    step = default_step(summary) if max_step is None else max_step / scaling.time_scale
    grid = make_grid((start - scaling.origin) / scaling.time_scale, (asked - start) / scaling.time_scale, step, *knots)
    path_key, decode_key = jax.random.split(key)
    states, draws = prior_paths(model, grid, num_samples, path_key)
    check_finite(states)
    return predict(model, summary, "sample", np.asarray(asked), jnp.asarray(states), draws, key=decode_key)
