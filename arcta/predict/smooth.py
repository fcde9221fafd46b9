"""Smooth: the posterior of the state and of the signal at any times inside a series: denoise, fill gaps, super-resolve.

Each time belongs to the partition that covers it; one pass encodes each partition once, however many times fall into it.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ..data.series import Series
from ..data.windows import Window, partition, partition_starts
from ..model.reading import DataLayout
from ..parts.model import Model
from ..parts.posterior import AbstractGaussian
from ..runtime.compile import compile_lightly
from ..runtime.host import ArrayLike
from .forecast import Sampling
from .prediction import Bands, Prediction, check_channels, check_times, predict
from .solve import padded_length


@compile_lightly
def marginals(model: Model, windows: Window, times: Float[Array, "windows times"]) -> AbstractGaussian:
    """The posterior at some times of each window, measured from its start; stacked by windows and times."""

    def of_one(item: tuple[Window, Array]) -> AbstractGaussian:
        window, ts = item
        return jax.vmap(model.posterior(window))(ts).normal

    return jax.lax.map(of_one, (windows, times), batch_size=16)


def smooth(
    model: Model,
    layout: DataLayout,
    series: Series,
    times: ArrayLike | None = None,
    *,
    sampling: Sampling = Sampling(),
    key: PRNGKeyArray,
) -> Prediction | Bands:
    """The posterior at `times` (default: the series' own), all in the user's units.

    Samples at different times are drawn from the marginals, each on its own: means, quantiles and coverage are those of
    the posterior; a single sample is not a path.
    """
    check_channels(layout, series)
    scaling = layout.scaling
    observed = series.times[series.mask.any(axis=1)]
    inside = (series.times >= observed[0]) & (series.times <= observed[-1])
    asked = check_times(series.times[inside] if times is None else times, layout.calendar)
    if asked[0] < observed[0] or asked[-1] > observed[-1]:
        raise ValueError(
            f"smoothing works inside the data, from t={observed[0]:g} to t={observed[-1]:g} of '{series.name}'; got times "
            f"from {asked[0]:g} to {asked[-1]:g}. Use forecast for times after the last observation."
        )
    windows = partition(series, scaling, layout.window_shape(model))
    starts = observed[partition_starts(len(observed), layout.partition_size)]
    owner = np.clip(np.searchsorted(starts, asked, side="right") - 1, 0, len(starts) - 1)
    counts = np.bincount(owner, minlength=len(starts))
    slot = np.arange(len(asked)) - np.concatenate([[0], np.cumsum(counts)])[owner]
    padded = np.zeros((len(starts), padded_length(int(counts.max()))))
    padded[owner, slot] = (asked - starts[owner]) / scaling.time_scale
    windows = jax.tree.map(jnp.asarray, windows)
    normal = marginals(model, windows, jnp.asarray(padded, windows.times.dtype)).at((owner, slot))
    state_key, draw_key, decode_key = jax.random.split(key, 3)
    noise = jax.random.normal(state_key, (sampling.num_samples, *normal.mean.shape), normal.mean.dtype)
    draws = model.draws(sampling.num_samples, key=draw_key)
    states, levels = [normal.state(noise)], sampling.quantiles
    return predict(model, layout, series.name, asked, states, draws, quantiles=levels, key=decode_key)
