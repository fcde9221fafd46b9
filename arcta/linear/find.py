"""Which structure data has: scales and sums of components compete for each channel by their evidence, and those that come close are
mixed; what the channels share is learned after that."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from ..data.moments import moments
from ..data.seasons import Season as Period
from ..data.series import Series, typical_step
from ..runtime.threads import on_one_thread
from . import together
from .components import Component, Inputs, Points, Season
from .learn import LinearModel, Piece, conclude, evidence, learn, start
from .scales import Scale
from .structure import KINDS, Candidate, Structure, panel_of, remembered
from .together import Together

SUMS = (
    ("level",), ("slope", "level"), ("damped slope", "level"), ("rough",), ("smooth",), ("level", "rough"), ("level", "smooth"),
    ("slope", "rough"), ("smooth", "rough"), ("cycle",), ("cycle", "level"),
)  # fmt: skip
FIRST = 2  # sums that the scale is chosen with
LEARNED_FROM = 256  # observations of a channel
MOST_SERIES = 64  # however short they are
LONG = 4 * LEARNED_FROM  # from there on the whole past is looked at too:
EARLIER, LAST_OF_ALL, IN_AN_EARLIER = 5, 200, 64  # up to so many moments, up to the last, up to each of the others
STRETCH = 128  # observations in a row, on which the evidence is compared with that of other models
FEW, MANY = 12, 60  # steps of the optimiser: before the finalists are chosen, and after
FINALISTS, CLOSE = 6, 6.0  # of so many at most, and within so many nats of the best, a forecast is mixed
TEMPER = 0.2  # evidence is about the next observation; further ahead, candidates that it tells apart are better mixed
UNDECIDED = 1.0  # nats between scales: then both take part
FEWEST = 12  # observations of a channel, below which there is nothing to choose by
MOST_TOGETHER = 16  # channels; what more of them share grows with the square
IN_A_PANEL, CELLS = 400, 1200  # observations of all channels, and at most so many that might have been made
FOR_EACH = 20  # observations for each parameter of what the channels share
LIKELY = float(np.log(9.0))  # odds of a season that is suggested, before anything was seen
SAME = 0.02  # by which two periods that are one may differ
RETURNS = 1.9  # periods that must be seen of a season


@on_one_thread
def find_structure(
    data: Sequence[Series], periods: Sequence[Period], suggested: Mapping[str, float] = MappingProxyType({})
) -> Structure:
    """The structure of every channel, and of all together. `periods` take part in all candidates; those `suggested`, by name,
    unless the evidence is against them."""
    inputs = np.concatenate([item.inputs for item in data])
    known = moments(inputs, np.ones_like(inputs, bool))
    scale = np.where(known.varies, known.unit, 1.0)
    counts = np.sum([item.mask.sum(axis=0) for item in data], axis=0)
    blank = Structure((), typical_step(data), tuple(periods), known.mean, scale, np.zeros(len(counts)), counts)
    blank = _with_suggested(blank, data, suggested)
    found = [_find(blank, data, c) for c in range(len(data[0].channels))]
    structure = dataclasses.replace(
        blank,
        channels=tuple(candidates for candidates, _ in found),
        evidence=np.array([evidence for _, evidence in found]),
    )
    shared = _find_together(structure, data)
    alone = mean_evidence(structure, data)
    return dataclasses.replace(structure, together=shared if shared and shared.evidence > alone else None)


def _with_suggested(structure: Structure, data: Sequence[Series], suggested: Mapping[str, float]) -> Structure:
    """With the periods that the evidence is not against. Of few observations, or such with gaps, a spectrum says little."""
    if structure.counts.max() > LONG:
        return structure
    for name, period in sorted(suggested.items(), key=lambda pair: pair[1]):
        news = all(abs(period / known.period - 1) > SAME for known in structure.periods)
        if news and period > structure.step:
            more = dataclasses.replace(structure, periods=(*structure.periods, Period(period, 1, np.nan, name)))
            if _first_evidence(more, data) + LIKELY > _first_evidence(structure, data):
                structure = more
    return structure


def _first_evidence(structure: Structure, data: Sequence[Series]) -> float:
    """Of all channels, the best of the first candidates of each."""
    total = 0.0
    for c in range(len(structure.counts)):
        chosen = [data[i] for i in _affordable([int(item.mask[:, c].sum()) for item in data])]
        if chosen:
            total += max(candidate.model.evidence for candidate in _first(_observed(structure, chosen, c, 1)))
    return total


@on_one_thread
def learn_again(structure: Structure, series: Series) -> Structure:
    """The same candidates after a series that holds more observations than they were learned from, where those are few: it says
    more of their parameters. Of many observations a few more say little."""
    counts = series.mask.sum(axis=0)
    grown = (structure.counts < counts) & (counts <= LEARNED_FROM)
    channels = tuple(
        _again(structure, series, c, candidates) if grown[c] else candidates
        for c, candidates in enumerate(structure.channels)
    )
    return dataclasses.replace(structure, channels=channels)


def _again(
    structure: Structure, series: Series, channel: int, candidates: tuple[Candidate, ...]
) -> tuple[Candidate, ...]:
    observed = _observed(structure, [series], channel, 1)
    return _shares([observed.finish(candidate, FEW) for candidate in candidates])


def mean_evidence(
    structure: Structure, data: Sequence[Series], channels: Bool[np.ndarray, " channels"] | bool = True
) -> float:
    """Of some of the channels each for itself, per observation of any of them, in the data's units."""
    counts = np.sum([item.mask.sum(axis=0) for item in data], axis=0) * channels
    return float(np.sum(np.where(counts > 0, counts * structure.evidence, 0.0))) / max(counts.sum(), 1)


class _Channel(NamedTuple):
    """A channel's observations in some series, and what every candidate of it contains."""

    pieces: list[tuple[Points, Float[np.ndarray, " n"]]]
    span: float
    always: list[Component]

    @property
    def values(self) -> Float[np.ndarray, " all"]:
        return np.concatenate([values for _, values in self.pieces])

    def on(self, scale: Scale) -> list[Piece]:
        return [(points, scale.forth(values)) for points, values in self.pieces]

    def compete(self, form: str, sums: Sequence[tuple[str, ...]]) -> list[Candidate]:
        """After a few steps each."""
        x = self.values
        scale = Scale.fit(form, x)
        pieces, slope = self.on(scale), float(np.sum(scale.log_slope(x)))
        made = [
            learn(start([*(KINDS[name](self.span) for name in names), *self.always]), pieces, FEW) for names in sums
        ]
        return [Candidate(scale, dataclasses.replace(m, evidence=m.evidence + slope)) for m in made]

    def finish(self, candidate: Candidate, steps: int = MANY) -> Candidate:
        """After more steps, with the posterior of its parameters."""
        pieces, slope = self.on(candidate.scale), float(np.sum(candidate.scale.log_slope(self.values)))
        model = conclude(learn(candidate.model, pieces, steps), pieces)
        return dataclasses.replace(candidate, model=dataclasses.replace(model, evidence=model.evidence + slope))


def _find(structure: Structure, data: Sequence[Series], channel: int) -> tuple[tuple[Candidate, ...], float]:
    """A channel's candidates, and its evidence. Where the past is long, what was learned from all of it is mixed with what was
    learned from the last of it: nobody knows which of them the future will be like."""
    chosen = [data[i] for i in _affordable([int(item.mask[:, channel].sum()) for item in data])]
    if not chosen:
        seen = [item.values[item.mask[:, channel], channel] for item in data]
        plain = Scale.fit("identity", np.concatenate(seen))
        return (Candidate(plain, LinearModel((), np.zeros(1))),), -np.inf
    long = len(chosen) == 1 and chosen[0].mask[:, channel].sum() > LONG
    views = [_best(_observed(structure, chosen, channel, ends)) for ends in ((1, EARLIER) if long else (1,))]
    mixed = tuple(dataclasses.replace(c, share=c.share / len(views)) for view in views for c in view)
    return mixed, _per_observation(structure, mixed[0], chosen, channel)


def _first(observed: _Channel) -> list[Candidate]:
    """A few sums on every scale."""
    return [c for form in Scale.possible(observed.values) for c in observed.compete(form, SUMS[:FIRST])]


def _best(observed: _Channel) -> tuple[Candidate, ...]:
    """The candidates that come close to the best, with their shares."""
    first = _first(observed)
    best = max(candidate.model.evidence for candidate in first)
    forms = dict.fromkeys(c.scale.form for c in first if c.model.evidence > best - UNDECIDED)
    every = [c for c in first if c.scale.form in forms]
    every += [c for form in forms for c in observed.compete(form, SUMS[FIRST:])]
    top = sorted(every, key=lambda c: -c.model.evidence)[:FINALISTS]
    return _shares([observed.finish(c) for c in top if c.model.evidence > top[0].model.evidence - CLOSE])


def _affordable(counts: Sequence[int]) -> list[int]:
    """The series to learn a channel from: the longest, as many as cost no more than a single one that is long; none if there are
    too few observations in all."""
    order = [int(i) for i in np.argsort(counts)[::-1][:MOST_SERIES] if counts[i] > 1]
    kept = [i for k, i in enumerate(order) if k < 4 or (k + 1) * counts[i] ** 3 <= LEARNED_FROM**3]
    return kept if sum(counts[i] for i in kept) >= FEWEST else []


def _observed(structure: Structure, data: Sequence[Series], channel: int, ends: int) -> _Channel:
    """A channel up to the end of each series or, with more `ends`, also up to earlier moments, fewer of its observations each."""
    pieces: list[tuple[Points, np.ndarray]] = []
    for item in data:
        seen = np.flatnonzero(item.mask[:, channel])
        last = max(LEARNED_FROM // min(len(data), 4), FEWEST) if ends == 1 else LAST_OF_ALL
        for end in np.linspace(len(seen) / ends, len(seen), ends).astype(int):
            most = last if end == len(seen) else IN_AN_EARLIER
            kept = seen[:end][remembered(item.times[seen[:end]], most, structure.longest * structure.step)]
            pieces.append((structure.points(item.times[kept], item.inputs[kept]), item.values[kept, channel]))
    span = max(float(points.times[-1] - points.times[0]) for points, _ in pieces)
    always: list[Component] = [Season(span, period) for period in _returning(structure, span)]
    return _Channel(pieces, span, always + ([Inputs(span)] if pieces[0][0].inputs.shape[1] else []))


def _returning(structure: Structure, span: float) -> list[float]:
    """The periods, in steps, that come back within a span."""
    periods = [period.period / structure.step for period in structure.periods]
    return [period for period in periods if span > RETURNS * period]


def _per_observation(structure: Structure, candidate: Candidate, data: Sequence[Series], channel: int) -> float:
    """The evidence on stretches without holes, as other models give it: what lies far apart is harder to foresee."""
    total, count = -float(len(candidate.model.θ)), 0
    for item in data:
        seen = np.flatnonzero(item.mask[:, channel])
        for rows in _stretches(len(seen)):
            at, values = seen[rows], item.values[seen[rows], channel]
            piece = structure.points(item.times[at], item.inputs[at]), candidate.scale.forth(values)
            total += evidence(candidate.model, piece)[0] + float(np.sum(candidate.scale.log_slope(values)))
            count += len(rows)
    return total / max(count, 1)


def _stretches(count: int) -> list[Int[np.ndarray, " rows"]]:
    """All of few observations; of many, four stretches."""
    if count <= 4 * STRETCH:
        return [np.arange(count)] if count else []
    return [np.arange(begin, begin + STRETCH) for begin in np.linspace(0, count - STRETCH, 4).astype(int)]


def _shares(finalists: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """The best first, each with what its evidence gives it."""
    ranked = sorted(finalists, key=lambda candidate: -candidate.model.evidence)
    behind = np.array([candidate.model.evidence - ranked[0].model.evidence for candidate in ranked])
    weights = np.exp(TEMPER * behind)
    return tuple(
        dataclasses.replace(candidate, share=float(weight / weights.sum()))
        for candidate, weight in zip(ranked, weights, strict=True)
    )


def _find_together(structure: Structure, data: Sequence[Series]) -> Together | None:
    """What the channels share, from panels all over the data; None if there is too little of it."""
    channels = len(structure.channels)
    if not 2 <= channels <= MOST_TOGETHER:
        return None
    tiles = _tiles(data)
    span = max(float(data[i].times[rows[-1]] - data[i].times[rows[0]]) for i, rows in tiles) / structure.step
    components = together.components_for(span, _returning(structure, span), len(data[0].input_names))
    size, total = together.size_of(components, channels), sum(int(item.mask.sum()) for item in data)
    if total < size:
        return None
    count = int(np.ceil(FOR_EACH * size / total * len(tiles)))
    chosen = [tiles[k] for k in np.unique(np.linspace(0, len(tiles) - 1, count).astype(int))]
    learned = together.learn(components, [panel_of(structure, data[i], rows) for i, rows in chosen])
    slopes = [
        scale.log_slope(data[i].values[rows, c][data[i].mask[rows, c]])
        for i, rows in chosen
        for c, scale in enumerate(structure.scales)
    ]
    return dataclasses.replace(learned, evidence=learned.evidence + float(np.mean(np.concatenate(slopes))))


def _tiles(data: Sequence[Series]) -> list[tuple[int, Int[np.ndarray, " rows"]]]:
    """Stretches of rows that cover the data, each with the series it is of."""
    observed = [np.flatnonzero(item.mask.any(axis=1)) for item in data]
    in_a_row = sum(int(item.mask.sum()) for item in data) / sum(len(rows) for rows in observed)
    length = int(np.ceil(min(IN_A_PANEL / in_a_row, CELLS / len(data[0].channels))))
    return [
        (i, rows[at : at + length])
        for i, rows in enumerate(observed)
        for at in range(0, max(len(rows) - length // 2, 1) if len(rows) else 0, length)
    ]
