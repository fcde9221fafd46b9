"""Sample: new trajectories from the prior,  z(t₀) ~ p(z0),  dz = f dt + √q dβ,  x ~ p(x | z)."""

from __future__ import annotations

import equinox as eqx
import jax
from jaxtyping import Array, Float, PRNGKeyArray

from ..model.reading import DataLayout
from ..parts.model import AbstractGenerative, Draw
from ..runtime.host import ArrayLike
from .forecast import Sampling, input_knots
from .prediction import Bands, Prediction, check_times, predict
from .solve import make_grids, walk


@eqx.filter_jit
def start_states(
    model: AbstractGenerative, num_samples: int, key: PRNGKeyArray
) -> tuple[Float[Array, "samples latent"], Draw]:
    """Draws of z0 ~ p(z0), and with each one of the parameters."""
    state_key, draw_key = jax.random.split(key)
    initial = jax.vmap(lambda k: model.initial.sample(key=k))(jax.random.split(state_key, num_samples))
    return initial, model.draws(num_samples, key=draw_key)


def sample(
    model: AbstractGenerative,
    layout: DataLayout,
    times: ArrayLike,
    *,
    inputs: ArrayLike | None = None,
    sampling: Sampling = Sampling(10),
    key: PRNGKeyArray,
) -> Prediction | Bands:
    """New trajectories at `times`; the first of them is when the initial state holds."""
    asked, scaling = check_times(times, layout.calendar), layout.scaling
    if sampling.num_samples < 1:
        raise ValueError(f"num_samples must be at least 1; got {sampling.num_samples}. Ask for one trajectory or more.")
    start = float(asked[0])
    knots = input_knots(layout, None, start, asked, inputs)
    grids = make_grids(scaling.times(start), (asked - start) / scaling.time_scale, sampling.step(layout), *knots)
    start_key, path_key, decode_key = jax.random.split(key, 3)
    initial, draws = start_states(model, sampling.num_samples, start_key)
    pieces = walk(model, draws, initial, grids, key=path_key)
    return predict(model, layout, "sample", asked, pieces, draws, quantiles=sampling.quantiles, key=decode_key)
