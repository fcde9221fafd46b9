"""Means and deviations by column that neither overflow nor cancel, whatever the data's size and offset.

    mean = c + u ⟨(x − c)/u⟩,      deviation = u √⟨((x − mean)/u)²⟩

with c in the middle of the range and u the power of two near half of it, so that no digit is lost by either.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

STILL = 1e-6  # of a value that never changes: the unit in which it is nevertheless uncertain
LARGEST = 1e302  # a sum of some observations beyond that is no number
SMALLEST = np.finfo(np.float64).tiny


class Moments(NamedTuple):
    """Of each column: its mean, its standard deviation, whether it varies at all (by more than rounding), and how often it was
    seen."""

    mean: Float[np.ndarray, " columns"]
    deviation: Float[np.ndarray, " columns"]
    varies: Bool[np.ndarray, " columns"]
    times_seen: Int[np.ndarray, " columns"]

    @property
    def unit(self) -> Float[np.ndarray, " columns"]:
        """The deviation; where nothing varies, a small part of the mean, but all of it if it was seen once only."""
        still = np.where(self.times_seen > 1, STILL, 1.0) * np.where(self.mean == 0, 1.0, np.abs(self.mean))
        return np.where(self.varies, np.maximum(self.deviation, np.nextafter(0, 1)), np.maximum(still, SMALLEST))


def power_of_two(size: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
    """The power of two next to some sizes; one for zero. Division by it is exact."""
    return np.where(size > 0, np.ldexp(1.0, np.clip(np.frexp(size)[1], -1021, 1023)), 1.0)


def moments(values: Float[np.ndarray, "n columns"], seen: Bool[np.ndarray, "n columns"]) -> Moments:
    """Of the entries that were seen; 0 and 0 where there are none."""
    any_seen = seen.any(axis=0)
    low = np.where(any_seen, np.min(values, axis=0, where=seen, initial=np.inf), 0.0)
    high = np.where(any_seen, np.max(values, axis=0, where=seen, initial=-np.inf), 0.0)
    half = 0.5 * (high - low)
    middle, unit = low + half, power_of_two(half)
    count = np.maximum(seen.sum(axis=0), 1)
    near = np.where(seen, (values - middle) / unit, 0.0)
    shift = near.sum(axis=0) / count
    spread = np.sqrt(np.sum((near - shift) ** 2, axis=0, where=seen) / count)
    rounding = 2 * np.spacing(np.maximum(np.abs(low), np.abs(high)))
    varies = high - low > np.where(half < SMALLEST, 0.0, rounding)
    return Moments(np.where(varies, middle + unit * shift, middle), np.where(varies, unit * spread, 0.0), varies, count)


def average(samples: Float[np.ndarray, n * shape]) -> Float[np.ndarray, "*rest"]:
    """The mean along the first axis, however far from zero all are."""
    return samples[0] + np.mean(samples - samples[0], axis=0)


def deviation(samples: Float[np.ndarray, n * shape]) -> Float[np.ndarray, "*rest"]:
    """The standard deviation along the first axis."""
    centred = samples - average(samples)
    unit = power_of_two(np.max(np.abs(centred), axis=0))
    return unit * np.sqrt(np.mean((centred / unit) ** 2, axis=0))


def root_mean_square(errors: Float[np.ndarray, " n"]) -> float:
    """√⟨e²⟩; NaN if there are none."""
    if not len(errors):
        return float("nan")
    unit = float(power_of_two(np.max(np.abs(errors), keepdims=True))[0])
    return unit * float(np.sqrt(np.mean((errors / unit) ** 2)))
