"""Partitions of a series as fixed-shape windows: the one place where ragged, irregular data becomes arrays and masks.

A series of N observed rows is cut into partitions of M. Partition j covers [t_1^(j), t_1^(j+1)], up to the FIRST row of
the next one, so that no stretch of time is lost. Its window has B + M + 1 + B + K rows:

    B rows         the margin before: nodes of the interpolation, not scored here
    M rows         scored observations (their likelihood counts here and nowhere else)
    1 row          the first row of the next partition: a node, not scored here
    B rows         the margin after: nodes, not scored here
    K rows         look-ahead, which the encoding of the last node needs

Two windows that meet see the same rows around the shared node if the margin is as wide as the smoothing is, and then
agree on the posterior there.
The last partition ends at the last observation. One observation left over is scored by the partition before it.
Rows in which every channel is missing carry no information and are left out; known inputs keep a grid of their own.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .scaling import Scaling
from .series import Series

_Array = Array | np.ndarray
MOST_FILLERS = 128  # of one gap: what is remembered across that many is nothing


class WindowShape(NamedTuple):
    """M scored observations in a window, the K after a node that its encoding sees, and the B nodes beyond either end. `longest`:
    the longest step between rows, in the model's units; empty rows fill gaps that are longer."""

    size: int
    lookahead: int = 0
    margin: int = 0
    longest: float | None = None

    @property
    def rows(self) -> int:
        return self.size + 1 + 2 * self.margin + self.lookahead


class Cuts(NamedTuple):
    """Where windows score: the observed rows from `begin` to before `after`; `first` says which of them begin a series."""

    begin: Int[np.ndarray, " windows"]
    after: Int[np.ndarray, " windows"]
    first: Bool[np.ndarray, " windows"]


class Rows(NamedTuple):
    """Rows that are observed, each in some channel, in the user's units."""

    times: Float[np.ndarray, " rows"]
    values: Float[np.ndarray, "rows channels"]
    mask: Bool[np.ndarray, "rows channels"]


class Window(eqx.Module):
    """One partition in the model's units, or several stacked; padding rows have a false mask and change nothing.

    `times` are relative to `start`, so that float32 resolves them however long the series is.
    """

    start: Float[_Array, "*windows"]
    end: Float[_Array, "*windows"]
    spacing: Float[_Array, "*windows"]
    first: Bool[_Array, "*windows"]
    times: Float[_Array, "*windows rows"]
    values: Float[_Array, "*windows rows channels"]
    mask: Bool[_Array, "*windows rows channels"]
    node: Bool[_Array, "*windows rows"]
    scored: Bool[_Array, "*windows rows"]
    input_times: Float[_Array, "*windows knots"]
    inputs: Float[_Array, "*windows knots inputs"]
    lookahead: int = eqx.field(static=True)
    margin: int = eqx.field(static=True, default=0)

    def last_node(self) -> Array:
        """The row of the last node."""
        return jnp.max(jnp.where(jnp.asarray(self.node), jnp.arange(self.node.shape[-1]), 0))

    def shared_node(self) -> Array:
        """The row of the first observation of the next partition."""
        return self.margin + jnp.sum(jnp.asarray(self.scored))


def partition_starts(num_rows: int, size: int) -> np.ndarray:
    """First rows of the partitions; a last one shorter than two rows is merged into its neighbour."""
    starts = np.arange(0, num_rows, size)
    return starts[:-1] if len(starts) > 1 and num_rows - starts[-1] < 2 else starts


def _knots(series: Series, scaling: Scaling, starts: np.ndarray, stops: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each window, the input knots that cover it, padded by repeats of the last (times go on increasing)."""
    low = np.searchsorted(series.times, starts, side="right") - 1
    high = np.searchsorted(series.times, stops, side="left")
    width = int((high - low).max()) + 1
    index = low[:, None] + np.arange(width)
    kept = np.minimum(index, high[:, None])
    beyond = (index - kept) * scaling.time_scale
    times = (series.times[kept] + beyond - starts[:, None]) / scaling.time_scale
    return times, scaling.known_inputs(series.inputs)[kept]


def fill_gaps(observed: Float[np.ndarray, " n"], longest: float) -> Float[np.ndarray, " nodes"]:
    """The observed times, and evenly spaced ones in between where two of them are further apart than `longest`; some at most."""
    parts = np.clip(np.ceil(np.diff(observed) / longest - 1e-9), 1, MOST_FILLERS).astype(int)
    ends = zip(observed[:-1], observed[1:], parts, strict=True)
    return np.concatenate([*(np.linspace(a, b, count, endpoint=False) for a, b, count in ends), observed[-1:]])


def with_fillers(shape: WindowShape, data: Sequence[Series], scaling: Scaling, longest: float) -> WindowShape:
    """A shape for gaps that are filled, with room for as many observations as before."""
    shape = shape._replace(longest=longest)
    observed = sum(int(item.mask.any(axis=1).sum()) for item in data)
    filled = sum(len(_rows(item, scaling, shape).times) for item in data)
    return shape._replace(size=min(-(-shape.size * filled // observed), shape.size + MOST_FILLERS))


def _rows(series: Series, scaling: Scaling, shape: WindowShape) -> Rows:
    """The observed rows of a series, and empty ones in its gaps."""
    observed = series.mask.any(axis=1)
    rows = Rows(series.times[observed], series.values[observed], series.mask[observed])
    if shape.longest is None or len(rows.times) < 2:
        return rows
    times = fill_gaps(rows.times, shape.longest * scaling.time_scale)
    at = np.searchsorted(times, rows.times)
    values, mask = np.zeros((len(times), rows.values.shape[1])), np.zeros((len(times), rows.mask.shape[1]), bool)
    values[at], mask[at] = rows.values, rows.mask
    return Rows(times, values, mask)


def partition(series: Series, scaling: Scaling, shape: WindowShape) -> Window:
    """All windows of one series, stacked along a leading axis, in order of time; `scaling` takes it to the model's units."""
    count = len(_rows(series, scaling, shape).times)
    begin = partition_starts(count, shape.size)
    return cut(series, scaling, Cuts(begin, np.append(begin[1:], count), begin == 0), shape)


def cut(series: Series, scaling: Scaling, cuts: Cuts, shape: WindowShape) -> Window:
    """The windows of a series at some cuts, counted in rows that are observed or fill a gap, stacked."""
    rows = _rows(series, scaling, shape)
    last_node = np.minimum(cuts.after, len(rows.times) - 1)
    knots = _knots(series, scaling, rows.times[cuts.begin], rows.times[last_node]) if series.input_names else None
    return cut_rows(rows, scaling, cuts, knots, shape)


def cut_rows(
    rows: Rows, scaling: Scaling, cuts: Cuts, knots: tuple[np.ndarray, np.ndarray] | None, shape: WindowShape
) -> Window:
    """The windows at some cuts, with their input knots (times and values). Rows that no window reaches may lie between them."""
    input_times, inputs = knots or (np.zeros((len(cuts.begin), 0)), np.zeros((len(cuts.begin), 0, 0)))
    size, lookahead, margin, _ = shape
    begin, after, first = cuts
    t, count = rows.times, len(rows.times)
    last_node = np.minimum(after, count - 1)
    row = begin[:, None] + np.arange(-margin, size + 1 + margin + lookahead)
    valid = (row >= 0) & (row < count)
    kept = np.clip(row, 0, count - 1)
    seconds = t[kept] - t[begin][:, None] + (row - kept) * scaling.time_scale
    inside = np.arange(size) < (last_node - begin)[:, None]
    steps = np.where(inside, np.diff(seconds[:, margin : margin + size + 1]), np.nan)
    steps[last_node <= begin] = scaling.time_scale
    mask = rows.mask[kept] & valid[..., None]
    dtype = jax.dtypes.canonicalize_dtype(np.float64)
    return Window(
        start=scaling.times(t[begin]).astype(dtype),
        end=((t[last_node] - t[begin]) / scaling.time_scale).astype(dtype),
        spacing=(np.nanmedian(steps, axis=1) / scaling.time_scale).astype(dtype),
        first=first,
        times=(seconds / scaling.time_scale).astype(dtype),
        values=np.where(mask, scaling.values(rows.values[kept]), 0.0).astype(dtype),
        mask=mask,
        node=valid & (row <= last_node[:, None] + margin),
        scored=valid & (row >= begin[:, None]) & (row < after[:, None]),
        input_times=input_times.astype(dtype),
        inputs=inputs.astype(dtype),
        lookahead=lookahead,
        margin=margin,
    )


def _widen(window: Window, knots: int) -> Window:
    """Pad the input knots of stacked windows to a common number."""
    missing = knots - window.input_times.shape[1]
    later = window.input_times[:, -1:] + np.arange(1, missing + 1, dtype=window.times.dtype)
    held = np.repeat(window.inputs[:, -1:], missing, axis=1)
    return eqx.tree_at(
        lambda w: (w.input_times, w.inputs),
        window,
        (np.concatenate([window.input_times, later], axis=1), np.concatenate([window.inputs, held], axis=1)),
    )


def windows_of(data: Sequence[Series], scaling: Scaling, shape: WindowShape) -> Window:
    """The windows of all series, stacked along one leading axis: series by series, in order of time."""
    parts = [partition(item, scaling, shape) for item in data]
    knots = max(part.input_times.shape[1] for part in parts)
    parts = [_widen(part, knots) for part in parts]
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)


def clip_partition_size(size: int | None, data: Sequence[Series]) -> int:
    """`size` (default 128), but no longer than the longest series, with a warning where that changes what was asked for."""
    longest = max(int(item.mask.any(axis=1).sum()) for item in data)
    if size is not None and size > longest:
        warnings.warn(
            f"partition_size {size} is beyond the longest series ({longest} observations); clipped to {longest}.",
            stacklevel=3,
        )
    return max(min(size or 128, longest), 2)


def last_window(series: Series, scaling: Scaling, shape: WindowShape) -> Window:
    """One window over the last observations of a series, unbatched: where a forecast starts from.

    It holds up to M + 1 nodes, has no margin and ends at the last observation, so its nodes are masked at the edge just as those
    at the end of a training series are.
    """
    rows = np.flatnonzero(series.mask.any(axis=1))[-(shape.size + 1) :]
    tail = series.at_rows(slice(rows[0], None))
    tail = partition(tail, scaling, WindowShape(shape.size + 1, shape.lookahead))
    return jax.tree.map(lambda leaf: leaf[0], tail)
