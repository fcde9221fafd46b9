"""What a channel is made of, and what channels share: the linear models that were found, as they are used and saved."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import msgspec
import numpy as np
from jaxtyping import Float, Int
from msgspec import Meta

from ..data.seasons import Season as Period
from ..data.series import Series
from .components import Component, Constant, Cycle, Damped, Inputs, Level, Points, Rough, Season, Slope, Smooth
from .learn import LinearModel
from .scales import Scale
from .together import Panel, Together

Positive = Annotated[float, Meta(gt=0)]
KINDS: dict[str, type[Component]] = {
    "constant": Constant, "level": Level, "slope": Slope, "damped slope": Damped, "rough": Rough, "smooth": Smooth,
    "cycle": Cycle, "season": Season, "inputs": Inputs,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A sum of components on a scale, and its share of the mixture."""

    scale: Scale
    model: LinearModel
    share: float = 1.0

    def names(self, step: float) -> list[str]:
        """Of its components, seasons with their periods in units of the data's time."""
        return [f"{_name(part)} {part.detail(step)}".strip() for part in self.model.components]

    def words(self) -> str:
        names = [_name(component) for component in self.model.components]
        on = "" if self.scale.form == "identity" else f", on the scale of its {self.scale.form}"
        return " + ".join([*names, "noise"]) + on


def _name(component: Component) -> str:
    return next(name for name, kind in KINDS.items() if type(component) is kind)


@dataclasses.dataclass(frozen=True)
class Structure:
    """The candidates of each channel, the best first; `step`: the unit of the models' time; `evidence`: nats per observation by
    channel, in the data's units; `counts`: the observations that were there to learn from. `together`: what the channels share, if
    that explains them better than each for itself; on the scales of the best candidates."""

    channels: tuple[tuple[Candidate, ...], ...]
    step: float
    periods: tuple[Period, ...]
    input_shift: Float[np.ndarray, " inputs"]
    input_scale: Float[np.ndarray, " inputs"]
    evidence: Float[np.ndarray, " channels"]
    counts: Int[np.ndarray, " channels"]
    together: Together | None = None

    @property
    def longest(self) -> float:
        """Of the seasons, in steps; 0 if there is none."""
        return max((period.period for period in self.periods), default=0.0) / self.step

    @property
    def scales(self) -> list[Scale]:
        """On which each channel's best candidate is a sum."""
        return [candidates[0].scale for candidates in self.channels]

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


def panel_of(structure: Structure, item: Series, rows: Int[np.ndarray, " rows"]) -> Panel:
    """Rows of a series, on the channels' scales."""
    seen = item.mask[rows]
    columns = [scale.forth(item.values[rows, c]) for c, scale in enumerate(structure.scales)]
    values = np.where(seen, np.stack(columns, axis=1), 0.0)
    return Panel(structure.points(item.times[rows], item.inputs[rows]), values, seen)


class StoredComponent(msgspec.Struct, forbid_unknown_fields=True):
    """A component as JSON: its kind, and what a season has beside the span."""

    kind: Literal["constant", "level", "slope", "damped slope", "rough", "smooth", "cycle", "season", "inputs"]
    span: Positive
    period: Positive | None = None


class StoredScale(msgspec.Struct, forbid_unknown_fields=True):
    form: Literal["identity", "root", "log"]
    shift: float
    spread: Positive
    lowest: float | None
    least: Annotated[float, Meta(ge=0)]


class StoredCandidate(msgspec.Struct, forbid_unknown_fields=True):
    scale: StoredScale
    share: Annotated[float, Meta(ge=0)]
    evidence: float | None
    parameters: list[float]
    root: list[list[float]] | None
    components: list[StoredComponent]


class StoredTogether(msgspec.Struct, forbid_unknown_fields=True):
    components: list[StoredComponent]
    parameters: list[float]
    loadings: list[list[list[float]]]
    noise: list[float]
    evidence: float | None


class StoredStructure(msgspec.Struct, forbid_unknown_fields=True):
    """A `Structure` as JSON: plain numbers and words; None stands for numbers that are not finite."""

    channels: list[Annotated[list[StoredCandidate], Meta(min_length=1)]]
    step: Positive
    periods: list[tuple[Positive, int, float | None, str]]
    inputs: tuple[list[float], list[float]]
    evidence: list[float | None]
    together: StoredTogether | None
    counts: list[Annotated[int, Meta(ge=0)]] | None = None  # runs of format version 2 have none


def to_json(structure: Structure) -> dict[str, object]:
    """All there is to a structure, in the form of a `StoredStructure`."""
    return {
        "channels": [[_candidate_to_json(c) for c in candidates] for candidates in structure.channels],
        "step": structure.step,
        "periods": [list(period) for period in structure.periods],
        "inputs": [structure.input_shift.tolist(), structure.input_scale.tolist()],
        "evidence": structure.evidence.tolist(),
        "counts": structure.counts.tolist(),
        "together": None if structure.together is None else _together_to_json(structure.together),
    }


def _candidate_to_json(candidate: Candidate) -> dict[str, object]:
    return {
        "scale": dataclasses.asdict(candidate.scale),
        "share": candidate.share,
        "evidence": candidate.model.evidence,
        "parameters": candidate.model.θ.tolist(),
        "root": None if candidate.model.root is None else candidate.model.root.tolist(),
        "components": [_told(part) for part in candidate.model.components],
    }


def _together_to_json(together: Together) -> dict[str, object]:
    return {
        "components": [_told(part) for part in together.components],
        "parameters": together.θ.tolist(),
        "loadings": together.loadings.tolist(),
        "noise": together.noise.tolist(),
        "evidence": together.evidence,
    }


def _told(component: Component) -> dict[str, object]:
    return {"kind": _name(component), **dataclasses.asdict(component)}


def from_json(stored: Mapping[str, object]) -> Structure:
    """What `to_json` wrote, if all its parts agree."""
    told = msgspec.convert(stored, StoredStructure)
    channels, inputs = len(told.channels), len(told.inputs[0])
    shift, scale = (_array(part, inputs) for part in told.inputs)
    return Structure(
        tuple(tuple(map(_candidate, candidates)) for candidates in told.channels),
        told.step,
        tuple(Period(period, n, np.nan if share is None else share, name) for period, n, share, name in told.periods),
        shift,
        scale,
        _array([-np.inf if number is None else number for number in told.evidence], channels),
        np.full(channels, np.iinfo(int).max) if told.counts is None else _array(told.counts, channels).astype(int),
        None if told.together is None else _together(told.together, channels),
    )


def _array(numbers: Sequence[object], *shape: int) -> np.ndarray:
    """Numbers as an array, if they have that shape."""
    try:
        found = np.array(numbers, float)
    except ValueError:  # lists of different lengths
        found = np.zeros(())
    if found.shape != shape and not (found.size == 0 == math.prod(shape)):
        raise ValueError(f"its structure needs an array of shape {shape} where it has another")
    return found.reshape(shape)


def _component(told: StoredComponent) -> Component:
    kind = KINDS[told.kind]
    if (told.period is not None) != (kind is Season):
        raise ValueError(f"its structure has a {told.kind} {'without' if kind is Season else 'with'} a period")
    return kind(told.span) if told.period is None else Season(told.span, told.period)


def _candidate(told: StoredCandidate) -> Candidate:
    parts = tuple(map(_component, told.components))
    count = 1 + sum(len(part.prior) for part in parts)
    root = None if told.root is None else _array(told.root, count, count)
    evidence = -np.inf if told.evidence is None else told.evidence
    scale = Scale(told.scale.form, told.scale.shift, told.scale.spread, told.scale.lowest, told.scale.least)
    return Candidate(scale, LinearModel(parts, _array(told.parameters, count), evidence, root), told.share)


def _together(told: StoredTogether, num_channels: int) -> Together:
    parts = tuple(map(_component, told.components))
    θ = _array(told.parameters, sum(len(part.prior) - 1 for part in parts))
    loadings = _array(told.loadings, len(parts), num_channels, num_channels)
    evidence = -np.inf if told.evidence is None else told.evidence
    return Together(parts, θ, loadings, _array(told.noise, num_channels), evidence)
