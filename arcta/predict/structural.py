"""Forecasts and smoothing by a structure: the exact posterior of linear models, sampled, in the data's units."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from ..data.series import Series
from ..linear.components import Points
from ..linear.find import learn_again
from ..linear.learn import Normal
from ..linear.structure import Candidate, Structure, panel_of, remembered
from ..linear.together import Together
from ..model.reading import DataLayout
from ..runtime.host import ArrayLike
from ..runtime.threads import on_one_thread
from .forecast import Sampling, input_knots, times_ahead
from .prediction import Bands, Prediction, check_channels, join
from .smooth import IN_PARTS, smoothing_times

LOOKED_AT = 600  # observations of a channel
TOGETHER = 900  # observations of all channels
STRETCH = 240  # points that are drawn together
KEPT = 5_000_000  # numbers, before only quantiles are kept of them
MODELS, MOST_OF_ONE = 12, 6  # draws of the parameters: of all candidates together, of a single one
BEYOND = 0.2  # of the data's range, by which a root or a logarithm may leave it


@dataclasses.dataclass(frozen=True)
class _Told:
    """What a candidate says of a channel at some times, for some draws of its parameters: means and variances of the signal on its
    scale, the noise's variance, and draws of the signal."""

    candidate: Candidate
    mean: Float[np.ndarray, "parameters n"]
    variance: Float[np.ndarray, "parameters n"]
    noise: Float[np.ndarray, " parameters"]
    draws: Float[np.ndarray, "samples n"]
    owner: Int[np.ndarray, " samples"]


def _draw(normal: Normal, count: int, rng: np.random.Generator) -> Float[np.ndarray, "samples n"]:
    K = normal.covariance
    try:
        root = np.linalg.cholesky(K + 1e-9 * (1 + np.trace(K) / len(K)) * np.eye(len(K)))
    except np.linalg.LinAlgError:  # times that coincide, or a signal known exactly
        values, vectors = np.linalg.eigh(K)
        root = vectors * np.sqrt(np.maximum(values, 0.0))
    return normal.mean + rng.standard_normal((count, len(K))) @ root.T


def _tell(
    structure: Structure, candidate: Candidate, seen: tuple[Points, np.ndarray], asked: Points, count: int,
    rng: np.random.Generator,
) -> _Told:  # fmt: skip
    points, x = seen
    y = candidate.scale.forth(x)
    few = int(np.clip(round(MODELS * candidate.share), 1, MOST_OF_ONE))
    models = [model for _ in range(few) for model in candidate.model.draw_pair(rng)][:few]
    owner = np.sort(np.arange(count) % len(models))
    means, variances, draws = [], [], []
    before, near = [], np.zeros(0, int)
    for begin in range(0, len(asked.times), STRETCH):
        part = Points(asked.times[begin : begin + STRETCH], asked.inputs[begin : begin + STRETCH])
        wanted = _around(points.times, part.times, structure.longest)
        if not before or not np.array_equal(wanted, near):  # ahead of the data it is the same for all stretches
            near = wanted
            data = (Points(points.times[near], points.inputs[near]), y[near])
            before = [model.after(data) for model in models]
        normals = [known(part) for known in before]
        means.append(np.stack([normal.mean for normal in normals]))
        variances.append(np.stack([np.maximum(np.diag(normal.covariance), 0.0) for normal in normals]))
        draws.append(np.concatenate([_draw(normal, int((owner == k).sum()), rng) for k, normal in enumerate(normals)]))
    mean, variance, drawn = (np.concatenate(parts, axis=1) for parts in (means, variances, draws))
    if candidate.scale.form != "identity" and len(y):
        # What the data has never come near is not foreseen: the mean of a power of a wide normal distribution is that of its tail.
        reach = BEYOND * (y.max() - y.min())
        drawn = np.clip(drawn, y.min() - reach, y.max() + reach)
    return _Told(candidate, mean, variance, np.array([model.noise for model in models]), drawn, owner)


def _around(times: Float[np.ndarray, " n"], asked: Float[np.ndarray, " m"], longest: float) -> np.ndarray:
    """The observations that say most of some times: the last before them or, inside the data, those around them."""
    if asked[0] > times[-1]:
        return remembered(times, LOOKED_AT, longest)
    first, last = np.searchsorted(times, asked[[0, -1]])
    inside = max(LOOKED_AT - (last - first), LOOKED_AT // 2)
    begin, end = max(first - inside // 2, 0), min(last + inside // 2, len(times))
    return np.arange(begin, end)


@on_one_thread
def tell(
    structure: Structure,
    layout: DataLayout,
    series: Series,
    times: Float[np.ndarray, " n"],
    inputs: Float[np.ndarray, "n inputs"],
    *,
    num_samples: int,
    seed: int,
) -> Prediction:
    """What the structure says of a series at some times, inside it or after it."""
    rng = np.random.default_rng(seed)
    asked = structure.points(times, inputs)
    signal = np.empty((num_samples, len(times), len(layout.channels)))
    observed, states = np.empty_like(signal), np.empty_like(signal)
    told: list[list[_Told]] = []
    for c, candidates in enumerate(structure.channels):
        seen = series.mask[:, c]
        data = structure.points(series.times[seen], series.inputs[seen]), series.values[seen, c]
        counts = _counts([candidate.share for candidate in candidates], num_samples)
        of_channel, order = [], rng.permutation(num_samples)
        begin = 0
        for candidate, count in zip(candidates, counts, strict=True):
            said = _tell(structure, candidate, data, asked, count, rng)
            rows = order[begin : begin + count]
            noise = np.sqrt(said.noise)[said.owner, None] * rng.standard_normal(said.draws.shape)
            states[rows, :, c] = said.draws
            signal[rows, :, c] = candidate.scale.back(said.draws)
            observed[rows, :, c] = candidate.scale.back(said.draws + noise)
            of_channel.append(said)
            begin += count
        told.append(of_channel)
    about = (layout.channels, layout.units, layout.time_unit, layout.calendar)
    return Prediction(
        series.name, np.asarray(times), observed, signal, states, *about, lambda values: _log_density(told, values)
    )


def after(
    structure: Structure,
    layout: DataLayout,
    series: Series,
    times: ArrayLike,
    inputs: ArrayLike | None,
    *,
    origin: float | None,
    sampling: Sampling,
    seed: int,
) -> Prediction | Bands:
    """What the structure says of what follows a series, or one of its observations."""
    ahead, start = times_ahead(layout, series, times, origin, sampling)
    input_knots(layout, series, start, ahead, inputs)  # refuses what does not fit
    known = np.zeros((len(ahead), 0)) if inputs is None else np.asarray(inputs, float).reshape(len(ahead), -1)
    before = series.at_rows(series.times <= start)
    structure = learn_again(structure, before)
    sampling.check_room(layout, len(ahead), len(layout.channels))
    if sampling.quantiles is None:
        return tell(structure, layout, before, ahead, known, num_samples=sampling.num_samples, seed=seed)
    cells = sampling.num_samples * len(layout.channels)
    length = max(STRETCH, KEPT // cells // STRETCH * STRETCH)
    parts = [
        tell(
            structure, layout, before, ahead[at : at + length], known[at : at + length],
            num_samples=sampling.num_samples, seed=seed + at,
        ).bands(sampling.quantiles)
        for at in range(0, len(ahead), length)
    ]  # fmt: skip
    return join(parts)


def inside(
    structure: Structure, layout: DataLayout, series: Series, times: ArrayLike | None, *, num_samples: int, seed: int
) -> Prediction:
    """What the structure says of a series at any times inside it."""
    check_channels(layout, series)
    asked = smoothing_times(series, times, layout.calendar, empty_rows=True)
    Sampling(num_samples).check_room(layout, len(asked), len(layout.channels), IN_PARTS)
    known = _inputs_at(series, asked)
    if structure.together is not None:
        return _tell_together(structure, structure.together, layout, series, asked, known, num_samples, seed)
    return tell(structure, layout, series, asked, known, num_samples=num_samples, seed=seed)


@on_one_thread
def _tell_together(
    structure: Structure, together: Together, layout: DataLayout, series: Series, times: Float[np.ndarray, " n"],
    inputs: Float[np.ndarray, "n inputs"], num_samples: int, seed: int,
) -> Prediction:  # fmt: skip
    """What all channels say of each other and of themselves, at times inside the data."""
    rng, channels = np.random.default_rng(seed), len(layout.channels)
    asked = structure.points(times, inputs)
    rows = np.flatnonzero(series.mask.any(axis=1))
    size = np.cumsum(series.mask[rows].sum(axis=1))
    at = np.searchsorted(series.times[rows], times)
    means, variances, draws = [], [], []
    stretch = max(1, STRETCH // channels)
    for begin in range(0, len(times), stretch):
        part = slice(begin, begin + stretch)
        panel = panel_of(structure, series, rows[_rows_around(size, at[part])])
        normal = together.given(panel, Points(asked.times[part], asked.inputs[part]))
        shape = (-1, channels)
        means.append(normal.mean.reshape(shape))
        variances.append(np.maximum(np.diag(normal.covariance), 0.0).reshape(shape))
        draws.append(_draw(normal, num_samples, rng).reshape(num_samples, *means[-1].shape))
    mean, variance, drawn = np.concatenate(means), np.concatenate(variances), np.concatenate(draws, axis=1)
    noise = np.exp(together.noise)
    noisy = drawn + np.sqrt(noise) * rng.standard_normal(drawn.shape)
    signal, observed = (
        np.stack([scale.back(y[:, :, c]) for c, scale in enumerate(structure.scales)], axis=2) for y in (drawn, noisy)
    )
    whole, owner = (
        [dataclasses.replace(candidates[0], share=1.0) for candidates in structure.channels],
        np.zeros(num_samples, int),
    )
    told = [
        [_Told(candidate, mean[None, :, c], variance[None, :, c], noise[c, None], drawn[:, :, c], owner)]
        for c, candidate in enumerate(whole)
    ]
    about = (layout.channels, layout.units, layout.time_unit, layout.calendar)
    return Prediction(
        series.name, np.asarray(times), observed, signal, drawn, *about, lambda values: _log_density(told, values)
    )


def _rows_around(size: Int[np.ndarray, " rows"], asked: Int[np.ndarray, " m"]) -> slice:
    """The rows between those asked for, and as many around them as can be looked at; `size`: observations up to each row."""
    first, last = int(asked[0]), min(int(asked[-1]) + 1, len(size))
    inside = size[last - 1] - (size[first - 1] if first else 0)
    margin = max(TOGETHER - inside, TOGETHER // 3) / 2
    begin = np.searchsorted(size, (size[first - 1] if first else 0) - margin)
    end = np.searchsorted(size, size[last - 1] + margin)
    return slice(int(begin), int(end) + 1)


def _inputs_at(series: Series, times: Float[np.ndarray, " n"]) -> Float[np.ndarray, "n inputs"]:
    """The known inputs at any times inside a series, straight lines between its rows."""
    known = np.zeros((len(times), series.inputs.shape[1]))
    for i in range(known.shape[1]):
        known[:, i] = np.interp(times, series.times, series.inputs[:, i])
    return known


@on_one_thread
def decompose(
    structure: Structure, series: Series, channel: int, times: Float[np.ndarray, " n"]
) -> dict[str, Float[np.ndarray, " n"]]:
    """What the components of a channel's best candidate are at some times inside the data, on its scale: the parts of a sum, or of
    a product if the scale is a logarithm. Seasons are named by their periods."""
    candidate = structure.channels[channel][0]
    seen = np.flatnonzero(series.mask[:, channel])
    asked = structure.points(times, _inputs_at(series, times))
    kept = seen[_around(series.times[seen] / structure.step, asked.times, 0.0)]
    data = (
        structure.points(series.times[kept], series.inputs[kept]),
        candidate.scale.forth(series.values[kept, channel]),
    )
    means = candidate.model.parts_given(data, asked)
    names = candidate.names(structure.step)
    told: dict[str, np.ndarray] = {}
    for name, mean in zip(names, means, strict=True):
        told[name] = candidate.scale.spread * mean
    told[names[0]] = told[names[0]] + candidate.scale.shift
    return told


def _counts(shares: Sequence[float], count: int) -> list[int]:
    """How many of some samples each gets."""
    ends = np.round(np.cumsum(shares) * count).astype(int)
    return np.diff(ends, prepend=0).tolist()


def _log_density(
    told: Sequence[Sequence[_Told]], values: Float[np.ndarray, "n channels"]
) -> Float[np.ndarray, "n channels"]:
    """Of a mixture of Gaussians on their scales."""
    columns = []
    for c, said in enumerate(told):
        parts = []
        for one in said:
            scale, variance = one.candidate.scale, one.variance + one.noise[:, None]
            z = scale.forth(values[:, c]) - one.mean
            density = np.logaddexp.reduce(-0.5 * (z**2 / variance + np.log(2 * np.pi * variance)), axis=0)
            parts.append(density - np.log(len(variance)) + scale.log_slope(values[:, c]) + np.log(one.candidate.share))
        columns.append(np.logaddexp.reduce(parts, axis=0))
    return np.stack(columns, axis=1)
