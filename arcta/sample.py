"""Sample: new trajectories from the prior,  z(t₀) ~ p(z0),  dz = f dt + √q dβ,  x ~ p(x | z)."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array, Float, PRNGKeyArray

from .forecast import default_step, input_knots
from .model import DataSummary, Draw, Model
from .prediction import Prediction, check_times, predict
from .solve import make_grids, walk


@eqx.filter_jit
def start_states(model: Model, num_samples: int, key: PRNGKeyArray) -> tuple[Float[Array, "samples latent"], Draw]:
    """Draws of z0 ~ p(z0), and with each one of the parameters."""
    state_key, draw_key = jax.random.split(key)
    initial = jax.vmap(lambda k: model.initial.sample(key=k))(jax.random.split(state_key, num_samples))
    return initial, jax.vmap(lambda k: model.draw(key=k))(jax.random.split(draw_key, num_samples))


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
    since = (asked - start) / scaling.time_scale
    grids = make_grids((start - scaling.origin) / scaling.time_scale, since, step, *knots)
    start_key, path_key, decode_key = jax.random.split(key, 3)
    initial, draws = start_states(model, num_samples, start_key)
    return predict(
        model, summary, "sample", asked, walk(model, draws, initial, grids, key=path_key), draws, key=decode_key
    )
