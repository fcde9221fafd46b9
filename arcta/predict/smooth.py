"""Smooth: the posterior of the state and of the signal at any times inside a series: denoise, fill gaps, super-resolve."""

from __future__ import annotations

import jax
import numpy as np
from jaxtyping import Float, PRNGKeyArray

from ..data.calendar import Calendar
from ..data.series import Series
from ..model.reading import DataLayout
from ..parts.model import Model
from ..runtime.host import ArrayLike
from .forecast import Sampling, draw_states
from .prediction import Bands, Prediction, check_channels, check_times, predict
from .recognise import posterior_at

IN_PARTS = "Ask for fewer samples, or for a part of the times at once."


def smoothing_times(
    series: Series, times: ArrayLike | None, calendar: Calendar | None, *, empty_rows: bool = False
) -> Float[np.ndarray, " n"]:
    """The times asked for, by default the series' own, if they lie inside the data; with `empty_rows` also at rows before the first
    observation and after the last."""
    observed = series.times[series.mask.any(axis=1)]
    inside = (series.times >= observed[0]) & (series.times <= observed[-1])
    asked = check_times(series.times[inside] if times is None else times, calendar)
    first, last = series.times[[0, -1]] if empty_rows else observed[[0, -1]]
    if asked[0] < first or asked[-1] > last:
        raise ValueError(
            f"smoothing works inside the data, from t={series.when(first)} to t={series.when(last)} of '{series.name}'; got times "
            f"from {series.when(asked[0])} to {series.when(asked[-1])}. Use forecast for times after the last observation."
        )
    return asked


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
    asked = smoothing_times(series, times, layout.calendar)
    sampling.check_room(layout, len(asked), len(model.initial.mean), IN_PARTS)
    known = posterior_at(model, layout, series, asked, refine=sampling.refines(model), thorough=sampling.thorough)
    state_key, decode_key = jax.random.split(key)
    states, draws = draw_states(model, known, sampling.num_samples, state_key)
    levels = sampling.quantiles
    return predict(model, layout, series.name, asked, [states], draws, quantiles=levels, key=decode_key)
