"""What the data says before there is a model: how noisy, how smooth, how wide to smooth, how many latent axes.

All in the model's units, on a sample of the rows, in NumPy. These readings choose sizes and starting values, nothing
else: whatever they get wrong, training can still put right.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from ..data.scaling import Scaling, is_near
from ..data.series import Series
from ..parts.local import local_lines

MAX_LATENT = 8
RIDGE = 0.01
RESOLUTION = 1e-6  # of the largest variance: an axis with less has none, only rounding
# `local_lines` gives the variance of a slope if observations have variances 1/w. They all have the same: then slopes scatter by
# Σ w²τ² / (Σ wτ²)² instead of 1 / Σ wτ², which for w = exp(−τ²/2) is less by 2^(−3/2).
SCATTER = 2**-1.5


def nugget(data: Sequence[Series], scale: Float[np.ndarray, " channels"]) -> Float[np.ndarray, " channels"]:
    """The noise by channel in units of `scale`: what observations differ by at no distance in time.

    ½ E|x(t+h) − x(t)|² at one and at two observations' distance, continued to h = 0 by a straight line. Exact for rough
    dynamics (Ornstein–Uhlenbeck), low for smooth ones; 0 where the line falls below.
    """
    sums = np.zeros((2, 3, len(scale)))  # by distance: number, time, half squared increment
    for item in data:
        for column in range(len(scale)):
            seen = item.mask[:, column]
            t, x = item.times[seen], item.values[seen, column] / scale[column]
            for lag in (1, 2):
                if len(t) > lag:
                    near = is_near(t[lag:] - t[:-lag])
                    step, half = (t[lag:] - t[:-lag])[near], 0.5 * (x[lag:] - x[:-lag])[near] ** 2
                    sums[lag - 1, :, column] += (len(step), step.sum(), half.sum())
    count = np.maximum(sums[:, 0], 1)
    (close, far), (low, high) = sums[:, 1] / count, sums[:, 2] / count
    apart = far > close
    slope = np.where(apart, high - low, 0.0) / np.where(apart, far - close, 1.0)
    return np.sqrt(np.maximum(low - slope * close, 0.0))


def _chunks(data: Sequence[Series], rows: int, count: int) -> list[Series]:
    """Up to `count` stretches of `rows` observed rows, spread evenly over all series."""
    starts = [(item, i) for item in data for i in range(0, max(len(item) - rows // 2, 1), rows)]
    chosen = np.unique(np.linspace(0, len(starts) - 1, min(count, len(starts))).astype(int))
    pieces = [(item, slice(i, i + rows)) for item, i in (starts[k] for k in chosen)]
    return [item.at_rows(where) for item, where in pieces if item.mask[where].any()]


def smoothing_bandwidth(data: Sequence[Series], scaling: Scaling) -> tuple[float, Float[np.ndarray, " channels"]]:
    """The bandwidth of local lines that best predict each observation from the others, and the error by channel.

    Leave-one-out cross-validation over bandwidths from 0.7 to 25 median spacings, on up to 8 stretches of 256 rows and
    up to 32 channels, in the model's units. The error's square is the noise variance plus what smoothing costs.
    """
    chosen = np.unique(np.linspace(0, len(scaling.scale) - 1, 32).astype(int))
    pieces = _chunks(data, 256, 8)
    gaps = np.concatenate([np.diff(item.times[item.mask[:, i]]) for item in pieces for i in chosen])
    if not len(gaps):
        return 1.0, np.full(len(scaling.scale), 0.3)
    candidates = float(np.median(gaps)) / scaling.time_scale * np.array([0.7, 1, 1.5, 2.2, 3.3, 5, 7.5, 11, 16, 25])
    total, count = np.zeros((len(candidates), len(chosen))), np.zeros(len(chosen))
    for item in pieces:
        x, seen = scaling.values(item.values)[:, chosen], item.mask[:, chosen]
        count += seen.sum(axis=0)
        for k, bandwidth in enumerate(candidates):
            lines = local_lines(scaling.times(item.times), x, seen, bandwidth, RIDGE, leave_out=True)
            total[k] += np.sum((x - lines.level) ** 2 * seen, axis=0)
    best = int(np.argmin(total.sum(axis=1)))
    error = np.sqrt(total[best] / np.maximum(count, 1))
    every = np.interp(np.arange(len(scaling.scale)), chosen, error)
    return float(candidates[best]), every


class Order(NamedTuple):
    """How many axes the levels span, whether the data is smooth, and whether slopes are needed beside the levels."""

    levels: int
    smooth: bool
    second: bool

    @property
    def latent_size(self) -> int:
        return min(self.levels + self.slopes, MAX_LATENT)

    @property
    def slopes(self) -> int:
        """How many of the latent axes start as slopes."""
        return min(self.levels, MAX_LATENT // 2) if self.second else 0


def _projected(x: np.ndarray, seen: np.ndarray, axes: np.ndarray) -> np.ndarray:
    """Rows on the axes; where many channels are known, by least squares over those of them that were observed."""
    plain = (x * seen) @ axes
    if len(axes) < 8 or seen.all():
        return plain
    gram = np.einsum("ca,cb,nc->nab", axes, axes, seen, optimize=True) + 0.01 * np.eye(axes.shape[1])
    return np.linalg.solve(gram, plain[..., None])[..., 0]


def _smooth(data: Sequence[Series], scaling: Scaling, axes: Float[np.ndarray, "channels count"]) -> bool:
    """Whether differences along the axes grow like h² (smooth) rather than like h (rough) at short lags, noise set aside."""
    gaps, halves = [], []
    for item in data:
        rows = item.mask.any(axis=1)
        t = scaling.times(item.times[rows])
        z = _projected(scaling.values(item.values[rows]), item.mask[rows] * 1.0, axes)
        for lag in range(1, min(9, len(t))):
            gaps.append(t[lag:] - t[:-lag])
            halves.append(0.5 * np.sum((z[lag:] - z[:-lag]) ** 2, axis=1))
    gap, half = np.concatenate(gaps), np.concatenate(halves)
    if not len(half) or not half.max() > 0:
        return False
    near = gap <= max(
        1.0, float(np.unique(gap.round(6))[:3][-1]) * (1 + 1e-6)
    )  # half is forgotten after one unit of time
    order = np.argsort(gap[near], kind="stable")
    bins = np.array_split(order, min(12, max(len(order) // 20, 1)))
    h, y = (np.array([values[near][bin].mean() for bin in bins]) for values in (gap, half))
    if len(h) < 3 or h[-1] < 1.5 * h[0]:
        return False
    y = np.maximum(y, RESOLUTION * y.max())

    def misfit(power: float) -> float:
        design = np.stack([np.ones(len(h)), h**power], axis=1) / y[:, None]
        noise, slope = np.linalg.lstsq(design, np.ones(len(h)), rcond=None)[0]
        if noise < 0:
            noise, slope = 0.0, float((design[:, 1]).sum() / (design[:, 1] ** 2).sum())
        return float(np.sum((design @ np.array([noise, slope]) - 1) ** 2))

    return misfit(1.9) < misfit(1.0)


def latent_order(data: Sequence[Series], scaling: Scaling, bandwidth: float, noise: np.ndarray) -> Order:
    """Axes of the levels: principal components above the noise. Slopes are needed where the data is smooth and a quadratic
    in the levels explains less than 70 % of them, or less than half along some axis (noise set aside): a pendulum's angle
    does not say where it swings."""
    levels, slopes, doubts = [], [], []
    for item in _chunks(data, 256, 8):
        lines = local_lines(scaling.times(item.times), scaling.values(item.values), item.mask, bandwidth, RIDGE)
        levels.append(lines.level)
        slopes.append(lines.slope / bandwidth)
        doubts.append(SCATTER * lines.slope_variance / bandwidth**2 * noise**2)
    level, slope, doubt = (np.concatenate(part) for part in (levels, slopes, doubts))
    level = level - level.mean(axis=0)
    channels = level.shape[1]
    eigenvalues, vectors = np.linalg.eigh(level.T @ level / len(level))
    eigenvalues, vectors = eigenvalues[::-1], vectors[:, ::-1]
    quiet = float(np.median(eigenvalues)) if channels >= 8 else 0.0  # many channels: most axes hold noise alone
    count = int(np.clip((eigenvalues > max(4 * quiet, 0.02 * eigenvalues[0])).sum(), 1, MAX_LATENT))
    if channels < 8:
        count = int(np.clip((eigenvalues > RESOLUTION * eigenvalues[0]).sum(), 1, MAX_LATENT))
    if eigenvalues[0] <= 0 or len(level) < 30 or not _smooth(data, scaling, vectors[:, :count]):
        return Order(count, False, False)
    z = level @ vectors[:, :count] / np.sqrt(eigenvalues[:count])
    i, j = np.triu_indices(count)
    design = np.concatenate([np.ones((len(z), 1)), z, z[:, i] * z[:, j]], axis=1)
    rate = slope @ vectors[:, :count]
    blur = np.mean(doubt @ vectors[:, :count] ** 2, axis=0)
    fitted = design @ np.linalg.lstsq(design, rate, rcond=None)[0]
    moving = np.maximum(np.var(rate, axis=0) - blur, RESOLUTION * max(float(np.var(rate, axis=0).max()), RESOLUTION))
    explained = np.var(fitted, axis=0) / moving
    hidden = (explained < 0.5) & (moving > 1e-3 * moving.max())
    return Order(count, True, bool(hidden.any() or np.var(fitted, axis=0).sum() < 0.7 * moving.sum()))
