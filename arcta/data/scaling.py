"""From the user's units to the model's and back:  x̃ = (x − shift)/scale,  t̃ = (t − origin)/time_scale.

Fitted on training data only. In the model's units channels vary by about one and the dynamics turn by about one
radian per unit of time, so that one set of initial values serves most data. `noise_level` and `time_scale` are the two
rough readings of the data that such initial values need.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from jaxtyping import Bool, Float

from .moments import moments, root_mean_square
from .series import Series

FAR = 30.0  # typical steps
T = TypeVar("T", float, np.ndarray)


def is_near(steps: Float[np.ndarray, " n"]) -> Bool[np.ndarray, " n"]:
    """Which steps are not gaps that would outweigh all others."""
    return steps <= FAR * np.median(steps) if len(steps) else np.ones(0, bool)


def _variogram(data: Sequence[Series], scale: np.ndarray, varying: np.ndarray) -> tuple[list[float], list[float]]:
    """Mean lags, doubling in rows, and ½ E|x̃(t+h) − x̃(t)|² at each."""
    lags, means, lag = [], [], 1
    while data := [item for item in data if len(item) > lag]:
        steps, halves, weights = [], 0.0, 0
        for item in data:
            step, increment = item.times[lag:] - item.times[:-lag], item.values[lag:] - item.values[:-lag]
            both = item.mask[lag:] & item.mask[:-lag] & varying & is_near(step)[:, None]
            steps.append(step[both.any(axis=1)])
            halves += 0.5 * np.sum(np.where(both, increment / scale, 0.0) ** 2)
            weights += int(both.sum())
        if weights:
            lags.append(float(np.mean(np.concatenate(steps))))
            means.append(float(halves / weights))
        lag *= 2
    return lags, means


def time_scale(data: Sequence[Series], spread: Float[np.ndarray, " channels"]) -> float:
    """The lag at which half of the signal's variance is forgotten: 1/ω for a sine, 0.7 τ for an OU.

    ½ E|x̃(t+h) − x̃(t)|² starts at the noise's share ν and must reach ν + ½(1 − ν).
    Lags double in rows, so the cost is O(n log n) and irregular times are no special case; between two lags the crossing
    is interpolated linearly. Data that never cross (a trend) or have no pairs get their time span.
    """
    steps = [np.diff(item.times) for item in data if len(item) > 1]
    spans = [float(np.sum(step[is_near(step)])) for step in steps]
    if not spans:
        return 1.0
    varying = spread > 0
    scale = np.where(varying, spread, 1.0)
    lags, halves = _variogram(data, scale, varying)
    if not lags:
        return float(max(spans))
    # What two rows differ by even at no distance is noise; it is read off the first two lags by a straight line.
    slope = (halves[1] - halves[0]) / (lags[1] - lags[0]) if len(lags) > 1 and lags[1] > lags[0] else np.inf
    noise = float(np.clip(halves[0] - slope * lags[0], 0.0, 0.9)) if np.isfinite(slope) else 0.0
    level = noise + 0.5 * (1 - noise)
    before = (0.0, noise)
    for here in zip(lags, halves, strict=True):
        if here[1] >= level:
            fraction = (level - before[1]) / max(here[1] - before[1], 1e-12)
            crossing = before[0] + fraction * (here[0] - before[0])
            # A crossing below one row is noise or under-sampling, not dynamics.
            return max(crossing, lags[0])
        before = here
    return float(max(spans))


def noise_level(data: Sequence[Series], scale: Float[np.ndarray, " channels"]) -> Float[np.ndarray, " channels"]:
    """A rough standard deviation of the observation noise by channel, in units of `scale`.

    Each value is compared with the line between its two neighbours; for white noise the difference has variance
    (1 + w² + (1 − w)²) σ². Rough dynamics count as noise here: it is a start, the noise is learned afterwards.
    """
    total, count = np.zeros(len(scale)), np.zeros(len(scale))
    for item in data:
        t, x, seen = item.times, item.values / scale, item.mask
        w = ((t[1:-1] - t[:-2]) / (t[2:] - t[:-2]))[:, None]
        miss = x[1:-1] - (1 - w) * x[:-2] - w * x[2:]
        triple = seen[1:-1] & seen[:-2] & seen[2:]
        total += np.sum(np.where(triple, miss**2 / (1 + w**2 + (1 - w) ** 2), 0.0), axis=0)
        count += triple.sum(axis=0)
    level = np.sqrt(total / np.maximum(count, 1))
    return np.where(count > 0, np.clip(level, 1e-3, 1.0), 0.3)


@dataclasses.dataclass(frozen=True)
class Scaling:
    """The affine maps between the user's units and the model's, by channel and by input."""

    origin: float
    time_scale: float
    shift: Float[np.ndarray, " channels"]
    scale: Float[np.ndarray, " channels"]
    input_shift: Float[np.ndarray, " inputs"]
    input_scale: Float[np.ndarray, " inputs"]

    @staticmethod
    def fit(data: Sequence[Series], standardise: Bool[np.ndarray, " channels"]) -> Scaling:
        """Means and standard deviations of the observed entries; channels not to be standardised keep 0 and 1."""
        seen = np.concatenate([item.mask for item in data])
        found = moments(np.concatenate([item.values for item in data]), seen)
        if not found.varies.all():
            names = [data[0].channels[i] for i in np.flatnonzero(~found.varies)]
            warnings.warn(
                f"{len(names)} of {len(found.varies)} channels never vary ({', '.join(names[:5])}): they are forecast to stay as "
                "they are, and tell nothing of the others.",
                stacklevel=3,
            )
        unit = found.unit
        if data[0].frame_shape:  # a pixel that was still may yet be passed: it is counted as the others are
            unit = np.where(found.varies, unit, root_mean_square(unit[found.varies]) if found.varies.any() else 1.0)
        inputs = np.concatenate([item.inputs for item in data])
        known = moments(inputs, np.ones_like(inputs, bool))
        return Scaling(
            origin=float(min(item.times[0] for item in data)),
            time_scale=time_scale(data, found.deviation),
            shift=np.where(standardise, found.mean, 0.0),
            scale=np.where(standardise, unit, 1.0),
            input_shift=known.mean,
            input_scale=np.where(known.varies, known.unit, 1.0),
        )

    def times(self, times: T) -> T:
        """User's times → model's times."""
        return (times - self.origin) / self.time_scale

    def values(self, values: Float[np.ndarray, "... channels"]) -> Float[np.ndarray, "... channels"]:
        """User's values → model's values."""
        return (values - self.shift) / self.scale

    def undo(self, values: Float[np.ndarray, "... channels"]) -> Float[np.ndarray, "... channels"]:
        """Model's values → user's values."""
        return values * self.scale + self.shift

    def known_inputs(self, inputs: Float[np.ndarray, "n inputs"]) -> Float[np.ndarray, "n inputs"]:
        """User's inputs → model's inputs."""
        return (inputs - self.input_shift) / self.input_scale
