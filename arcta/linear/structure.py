"""Which structure a channel has: scales and sums of components compete by their evidence, and those that come close are mixed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from ..data.seasons import Season as Period
from ..data.series import Series
from .components import Component, Cycle, Damped, Inputs, Level, Points, Rough, Season, Slope, Smooth
from .learn import LinearModel, Piece, conclude, evidence, learn, start
from .scales import Scale

KINDS: dict[str, type[Component]] = {
    "level": Level, "slope": Slope, "damped slope": Damped, "rough": Rough, "smooth": Smooth, "cycle": Cycle,
    "season": Season, "inputs": Inputs,
}  # fmt: skip
SUMS = (
    ("level",), ("slope", "level"), ("damped slope", "level"), ("rough",), ("smooth",), ("level", "rough"), ("level", "smooth"),
    ("slope", "rough"), ("smooth", "rough"), ("cycle",), ("cycle", "level"),
)  # fmt: skip
FIRST = 2  # sums that the scale is chosen with
LEARNED_FROM = 256  # observations
STRETCH = 128  # observations in a row, on which the evidence is compared with that of other models
FEW, MANY = 12, 60  # steps of the optimiser: before the finalists are chosen, and after
FINALISTS, CLOSE = 6, 6.0  # of so many at most, and within so many nats of the best, a forecast is mixed
TEMPER = 0.2  # evidence is about the next observation; further ahead, candidates that it tells apart are better mixed
UNDECIDED = 1.0  # nats between scales: then both take part
FEWEST = 12  # observations of a channel, below which there is nothing to choose by


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A sum of components on a scale, and its share of the mixture."""

    scale: Scale
    model: LinearModel
    share: float = 1.0

    def names(self, step: float) -> list[str]:
        """Of its components, seasons with their periods in units of the data's time."""
        periods = [f" {part.period * step:.4g}" if isinstance(part, Season) else "" for part in self.model.components]
        return [_name(part) + period for part, period in zip(self.model.components, periods, strict=True)]

    def words(self) -> str:
        names = [_name(component) for component in self.model.components]
        on = "" if self.scale.form == "identity" else f", on the scale of its {self.scale.form}"
        return " + ".join([*names, "noise"]) + on


def _name(component: Component) -> str:
    return next(name for name, kind in KINDS.items() if type(component) is kind)


@dataclasses.dataclass(frozen=True)
class Structure:
    """The candidates of each channel, the best first; `step`: the unit of the models' time; `evidence`: nats per observation by
    channel, in the data's units."""

    channels: tuple[tuple[Candidate, ...], ...]
    step: float
    periods: tuple[Period, ...]
    input_shift: Float[np.ndarray, " inputs"]
    input_scale: Float[np.ndarray, " inputs"]
    evidence: Float[np.ndarray, " channels"]

    def points(self, times: Float[np.ndarray, " n"], inputs: Float[np.ndarray, "n inputs"]) -> Points:
        return Points(np.asarray(times, float) / self.step, (inputs - self.input_shift) / self.input_scale)

    def words(self, channels: Sequence[str]) -> list[str]:
        """Channel by channel: what its best candidate is made of."""
        return [f"{name}: {candidates[0].words()}" for name, candidates in zip(channels, self.channels, strict=True)]


def remembered(times: Float[np.ndarray, " n"], count: int, longest: float) -> Int[np.ndarray, " kept"]:
    """Which of many observations to look at: the last ones all, and of those before, as far as a few periods go, some."""
    n = len(times)
    if n <= count:
        return np.arange(n)
    near = int(0.6 * count)
    step = (times[-1] - times[0]) / (n - 1)
    reach = int(min(n, max(4 * count, 8 * longest / step)))
    before = np.random.default_rng(0).choice(np.arange(n - reach, n - near), count - near, replace=False)
    return np.concatenate([np.sort(before), np.arange(n - near, n)])


def typical_step(data: Sequence[Series]) -> float:
    """The median step between observed rows."""
    steps = np.concatenate([np.diff(item.times[item.mask.any(axis=1)]) for item in data])
    return float(np.median(steps)) if len(steps) else 1.0


def find_structure(data: Sequence[Series], periods: Sequence[Period]) -> Structure:
    """The structure of every channel, from the longest of the series."""
    step = typical_step(data)
    inputs = np.concatenate([item.inputs for item in data])
    spread = inputs.std(axis=0)
    blank = Structure((), step, tuple(periods), inputs.mean(axis=0), np.where(spread > 0, spread, 1.0), np.zeros(0))
    found = [_find(blank, sorted(data, key=len)[-4:], c) for c in range(len(data[0].channels))]
    return dataclasses.replace(
        blank,
        channels=tuple(candidates for candidates, _ in found),
        evidence=np.array([evidence for _, evidence in found]),
    )


def _find(structure: Structure, data: Sequence[Series], channel: int) -> tuple[tuple[Candidate, ...], float]:
    """A channel's candidates, and its evidence."""
    stretches: list[tuple[Points, np.ndarray]] = []
    longest = max((period.period for period in structure.periods), default=0.0)
    for item in data:
        seen = np.flatnonzero(item.mask[:, channel])
        if len(seen) >= FEWEST:
            kept = seen[remembered(item.times[seen], LEARNED_FROM // len(data), longest)]
            stretches.append((structure.points(item.times[kept], item.inputs[kept]), item.values[kept, channel]))
    if not stretches:
        plain = Scale("identity", 0.0, 1.0)
        return (Candidate(plain, LinearModel((), np.zeros(1))),), -np.inf
    x = np.concatenate([values for _, values in stretches])
    span = max(float(points.times[-1] - points.times[0]) for points, _ in stretches)
    always: list[Component] = [
        Season(span, period.period / structure.step)
        for period in structure.periods
        if span > 1.9 * period.period / structure.step
    ]
    if stretches[0][0].inputs.shape[1]:
        always.append(Inputs(span))

    def compete(form: str, sums: Sequence[tuple[str, ...]]) -> list[Candidate]:
        """After a few steps each."""
        scale = Scale.fit(form, x)
        pieces, slope = pieces_on(scale), float(np.sum(scale.log_slope(x)))
        made = [learn(start([*(KINDS[name](span) for name in names), *always]), pieces, FEW) for names in sums]
        return [Candidate(scale, dataclasses.replace(m, evidence=m.evidence + slope)) for m in made]

    def pieces_on(scale: Scale) -> list[Piece]:
        return [(points, scale.forth(values)) for points, values in stretches]

    def finish(candidate: Candidate) -> Candidate:
        """After many steps, with the posterior of its parameters."""
        pieces, slope = pieces_on(candidate.scale), float(np.sum(candidate.scale.log_slope(x)))
        model = conclude(learn(candidate.model, pieces, MANY), pieces)
        return dataclasses.replace(candidate, model=dataclasses.replace(model, evidence=model.evidence + slope))

    def per_observation(candidate: Candidate) -> float:
        """The evidence on stretches without holes, as others give it: what lies far apart is harder to foresee."""
        total, count = -float(len(candidate.model.θ)), 0
        for item in data:
            seen = np.flatnonzero(item.mask[:, channel])
            for rows in _stretches(len(seen)):
                at, values = seen[rows], item.values[seen[rows], channel]
                piece = structure.points(item.times[at], item.inputs[at]), candidate.scale.forth(values)
                total += evidence(candidate.model, piece)[0] + float(np.sum(candidate.scale.log_slope(values)))
                count += len(rows)
        return total / max(count, 1)

    first = [candidate for form in Scale.possible(x) for candidate in compete(form, SUMS[:FIRST])]
    best = max(candidate.model.evidence for candidate in first)
    forms = dict.fromkeys(c.scale.form for c in first if c.model.evidence > best - UNDECIDED)
    every = [c for form in forms for c in ([f for f in first if f.scale.form == form] + compete(form, SUMS[FIRST:]))]
    top = sorted(every, key=lambda c: -c.model.evidence)[:FINALISTS]
    mixed = _shares([finish(c) for c in top if c.model.evidence > top[0].model.evidence - CLOSE])
    return mixed, per_observation(mixed[0])


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


def to_json(structure: Structure) -> dict[str, object]:
    """All there is to a structure, as plain numbers and words."""
    return {
        "channels": [
            [
                {
                    "scale": dataclasses.asdict(c.scale),
                    "share": c.share,
                    "evidence": c.model.evidence,
                    "parameters": c.model.θ.tolist(),
                    "root": None if c.model.root is None else c.model.root.tolist(),
                    "components": [{"kind": _name(part), **dataclasses.asdict(part)} for part in c.model.components],
                }
                for c in candidates
            ]
            for candidates in structure.channels
        ],
        "step": structure.step,
        "periods": [list(period) for period in structure.periods],
        "inputs": [structure.input_shift.tolist(), structure.input_scale.tolist()],
        "evidence": structure.evidence.tolist(),
    }


def from_json(stored: Mapping[str, Any]) -> Structure:
    """What `to_json` wrote."""

    def component(told: Mapping[str, Any]) -> Component:
        return KINDS[told["kind"]](**{name: value for name, value in told.items() if name != "kind"})

    def candidate(told: Mapping[str, Any]) -> Candidate:
        parts = tuple(component(part) for part in told["components"])
        root = None if told["root"] is None else np.array(told["root"], float)
        model = LinearModel(parts, np.array(told["parameters"], float), told["evidence"], root)
        return Candidate(Scale(**told["scale"]), model, told["share"])

    shift, scale = (np.array(part, float) for part in stored["inputs"])
    return Structure(
        tuple(tuple(candidate(c) for c in candidates) for candidates in stored["channels"]),
        stored["step"],
        tuple(Period(*period) for period in stored["periods"]),
        shift,
        scale,
        np.array(stored["evidence"], float),
    )
