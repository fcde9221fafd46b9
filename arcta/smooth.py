"""Smooth: the posterior of the state and of the signal at any times inside a series: denoise, fill gaps, super-resolve.

Each time belongs to the partition that covers it; one pass encodes each partition once, however many times fall into it.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from .compiled import compiled
from .model import DataSummary, Model
from .prediction import Prediction, check_channels, check_times, predict
from .series import Series
from .solve import padded_length
from .windows import Window, partition, partition_starts


@compiled
def marginals(
    model: Model, windows: Window, times: Float[Array, "windows times"]
) -> tuple[Float[Array, "windows times latent"], Float[Array, "windows times latent"]]:
    """m and log s at some times of each window, measured from its start."""

    def one(item: tuple[Window, Array]) -> tuple[Array, Array]:
        window, ts = item
        posterior = model.posterior(window)
        marginal = jax.vmap(posterior)(ts)
        return marginal.mean, marginal.log_variance

    return jax.lax.map(one, (windows, times), batch_size=16)


def smooth(
    model: Model, summary: DataSummary, series: Series, times: Any = None, *, num_samples: int = 256, key: PRNGKeyArray
) -> Prediction:
    """The posterior at `times` (default: the series' own), all in the user's units.

    Samples at different times are drawn from the marginals, each on its own: means, quantiles and coverage are those of
    the posterior; a single sample is not a path.
    """
    check_channels(summary, series)
    scaling = summary.scaling
    observed = series.times[series.mask.any(axis=1)]
    inside = (series.times >= observed[0]) & (series.times <= observed[-1])
    asked = check_times(series.times[inside] if times is None else times, summary.calendar)
    if asked[0] < observed[0] or asked[-1] > observed[-1]:
        raise ValueError(
            f"smoothing works inside the data, from t={observed[0]:g} to t={observed[-1]:g} of '{series.name}'; got times "
            f"from {asked[0]:g} to {asked[-1]:g}. Use forecast for times after the last observation."
        )
    shape = {"size": summary.partition_size, "lookahead": model.encoder.lookahead, "margin": summary.margin}
    windows = partition(series, scaling, **shape)
    starts = observed[partition_starts(len(observed), summary.partition_size)]
    owner = np.clip(np.searchsorted(starts, asked, side="right") - 1, 0, len(starts) - 1)
    counts = np.bincount(owner, minlength=len(starts))
    slot = np.arange(len(asked)) - np.concatenate([[0], np.cumsum(counts)])[owner]
    padded = np.zeros((len(starts), padded_length(int(counts.max()))))
    padded[owner, slot] = (asked - starts[owner]) / scaling.time_scale
    mean, log_variance = marginals(model, jax.tree.map(jnp.asarray, windows), jnp.asarray(padded, windows.times.dtype))
    mean, log_variance = mean[owner, slot], log_variance[owner, slot]
    state_key, draw_key, decode_key = jax.random.split(key, 3)
    noise = jax.random.normal(state_key, (num_samples, *mean.shape), mean.dtype)
    draws = jax.vmap(lambda k: model.draw(key=k))(jax.random.split(draw_key, num_samples))
    states = mean + jnp.exp(0.5 * log_variance) * noise
    return predict(model, summary, series.name, asked, [states], draws, key=decode_key)
