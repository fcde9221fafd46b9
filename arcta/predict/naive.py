"""The simplest forecasts: training mean, last value, last season, drift. And what they share with the others to beat: a series on a
regular grid, and its moments.

A forecaster is made from training series and forecasts after a context: a mean, a standard deviation of an observation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from ..data.moments import moments, root_mean_square
from ..data.seasons import Season, find_seasons
from ..data.series import Series, typical_step

FURTHEST = 10_000  # steps
LEAST = 1e-9  # of a channel's deviation, that a forecast is uncertain by


class Grid(NamedTuple):
    """A series on a regular grid from `start` on: the mean of what falls into each cell, NaN where nothing does."""

    start: float
    step: float
    values: Float[np.ndarray, "n channels"]

    def steps_ahead(self, times: Float[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """How many cells after the last one, at least none; beyond `FURTHEST` a forecast stays as it is there."""
        return np.clip(np.rint((times - self.start) / self.step) - (len(self.values) - 1), 0, FURTHEST).astype(int)


def to_grid(series: Series, step: float, max_rows: int = 2000) -> Grid:
    """The last `max_rows` cells of a series."""
    seen = series.times[series.mask.any(axis=1)]
    span = seen[-1] - max(seen[0], seen[-1] - (max_rows - 1) * step)
    count = int(np.floor(span / step + 1e-6)) + 1
    start = seen[-1] - (count - 1) * step
    rows = series.times >= start - 0.5 * step
    cell = np.rint((series.times[rows] - start) / step).astype(int)
    inside = (cell >= 0) & (cell < count)
    total, number = np.zeros((2, count, len(series.channels)))
    np.add.at(total, cell[inside], series.values[rows][inside])
    np.add.at(number, cell[inside], series.mask[rows][inside])
    return Grid(float(start), step, np.where(number > 0, total / np.maximum(number, 1), np.nan))


def filled(values: np.ndarray) -> np.ndarray:
    """Gaps filled by straight lines, zeros where a channel has nothing."""
    rows, result = np.arange(len(values)), np.zeros_like(values)
    for c in range(values.shape[1]):
        seen = np.isfinite(values[:, c])
        if seen.any():
            result[:, c] = np.interp(rows, rows[seen], values[seen, c])
    return result


Forecast = tuple[Float[np.ndarray, "n channels"], Float[np.ndarray, "n channels"]]
Forecaster = Callable[[Series, Float[np.ndarray, " n"]], Forecast]


def standards(train: Sequence[Series]) -> tuple[np.ndarray, np.ndarray]:
    """The mean and the unit of each channel."""
    mask, values = np.concatenate([s.mask for s in train]), np.concatenate([s.values for s in train])
    found = moments(values, mask)
    return found.mean, found.unit


def deviations(train: Sequence[Series]) -> Float[np.ndarray, " channels"]:
    """The standard deviation of each channel, the unit of errors that are compared over channels: the value itself if it never
    varies, that of all pixels together if they are frames."""
    mask, values = np.concatenate([s.mask for s in train]), np.concatenate([s.values for s in train])
    found = moments(values, mask)
    if train[0].frame_shape:
        return np.full(len(found.unit), root_mean_square(found.unit))
    return np.where(found.varies, found.unit, np.where(found.mean == 0, 1.0, np.abs(found.mean)))


def training_mean(train: Sequence[Series]) -> Forecaster:
    """The mean and the spread of the training data, whatever came last."""
    mean, spread = standards(train)
    return lambda context, times: (np.tile(mean, (len(times), 1)), np.tile(spread, (len(times), 1)))


def last_value(train: Sequence[Series]) -> Forecaster:
    """The last observed value of each channel; the spread is that of a random walk with the training data's steps, at most
    √2 times the training data's own."""
    step = typical_step(train)
    mean, spread = standards(train)
    grids = [to_grid(item, step).values for item in train]
    with np.errstate(all="ignore"):
        steps = np.concatenate([np.diff(g, axis=0) for g in grids]) / spread
        jumps = spread * np.sqrt(np.nan_to_num(np.nanmean(steps**2, axis=0)))

    def forecast(context: Series, times: np.ndarray) -> Forecast:
        held = np.array(
            [context.values[seen, c][-1] if (seen := context.mask[:, c]).any() else mean[c] for c in range(len(mean))]
        )
        walk = jumps * np.sqrt(np.maximum(times - context.times[-1], step) / step)[:, None]
        return np.tile(held, (len(times), 1)), np.clip(walk, LEAST * spread, 1.41 * spread)

    return forecast


def drift(train: Sequence[Series]) -> Forecaster | None:
    """The last value, carried on by the mean slope of the context; the spread is the last value's."""
    stay = last_value(train)

    def forecast(context: Series, times: np.ndarray) -> Forecast:
        held, spread = stay(context, times)
        slopes = np.zeros(held.shape[1])
        for c in range(held.shape[1]):
            t, x = context.times[context.mask[:, c]], context.values[context.mask[:, c], c]
            slopes[c] = (x[-1] - x[0]) / (t[-1] - t[0]) if len(t) > 1 else 0.0
        return held + (times - context.times[-1])[:, None] * slopes, spread

    return forecast


def last_season(train: Sequence[Series], seasons: Sequence[Season] | None = None) -> Forecaster | None:
    """What was observed one period before (or two, …), the period that does best in training; None if nothing repeats. `seasons`:
    those of the training data, if they are known."""
    found = find_seasons(train) if seasons is None else seasons
    made = [_seasonal(train, season.period) for season in found]
    return min(made, key=lambda pair: pair[1])[0] if made else None


def _seasonal(train: Sequence[Series], period: float) -> tuple[Forecaster, float]:
    """The forecaster of one period, and its error in training in units of the channels' spreads."""
    mean, spread = standards(train)

    def before(context: Series, times: np.ndarray) -> np.ndarray:
        result = np.tile(mean, (len(times), 1))
        for c in range(len(mean)):
            seen = context.mask[:, c]
            t, x = context.times[seen], context.values[seen, c]
            if len(t):
                back = times - period * np.ceil(np.maximum(times - t[-1], 0) / period)
                result[:, c] = np.interp(back, t, x)
        return result

    errors = []
    for item in train:
        inside = item.times > item.times[0] + period
        if inside.any():
            shifted = Series(item.times + period, np.where(item.mask, item.values, np.nan))
            miss = before(shifted, item.times[inside]) - item.values[inside]
            errors.append(np.where(item.mask[inside], miss / spread, np.nan))
    with np.errstate(all="ignore"):
        scatter = (
            np.sqrt(np.nan_to_num(np.nanmean(np.concatenate(errors) ** 2, axis=0))) if errors else np.ones_like(mean)
        )
    scatter = np.where(scatter > 0, scatter, 1.0)
    error = float(np.mean(scatter**2))
    return lambda context, times: (before(context, times), np.tile(spread * scatter, (len(times), 1))), error


NAIVE = ("training mean", "last value", "last season", "drift")
