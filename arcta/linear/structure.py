"""What a channel is made of, and what channels share: the linear models that were found, as they are used and saved."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from ..data.seasons import Season as Period
from ..data.series import Series
from .components import Component, Constant, Cycle, Damped, Inputs, Level, Points, Rough, Season, Slope, Smooth
from .learn import LinearModel
from .scales import Scale
from .together import Panel, Together

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
    channel, in the data's units. `together`: what the channels share, if that explains them better than each for itself; on the
    scales of the best candidates."""

    channels: tuple[tuple[Candidate, ...], ...]
    step: float
    periods: tuple[Period, ...]
    input_shift: Float[np.ndarray, " inputs"]
    input_scale: Float[np.ndarray, " inputs"]
    evidence: Float[np.ndarray, " channels"]
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
                    "components": [_told(part) for part in c.model.components],
                }
                for c in candidates
            ]
            for candidates in structure.channels
        ],
        "step": structure.step,
        "periods": [list(period) for period in structure.periods],
        "inputs": [structure.input_shift.tolist(), structure.input_scale.tolist()],
        "evidence": structure.evidence.tolist(),
        "together": None if structure.together is None else _together_to_json(structure.together),
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


def from_json(stored: Mapping[str, Any]) -> Structure:
    """What `to_json` wrote."""

    def component(told: Mapping[str, Any]) -> Component:
        return KINDS[told["kind"]](**{name: value for name, value in told.items() if name != "kind"})

    def candidate(told: Mapping[str, Any]) -> Candidate:
        parts = tuple(component(part) for part in told["components"])
        root = None if told["root"] is None else np.array(told["root"], float)
        model = LinearModel(parts, np.array(told["parameters"], float), told["evidence"], root)
        return Candidate(Scale(**told["scale"]), model, told["share"])

    def together(told: Mapping[str, Any]) -> Together:
        parts = tuple(component(part) for part in told["components"])
        θ, loadings, noise = (np.array(told[name], float) for name in ("parameters", "loadings", "noise"))
        return Together(parts, θ, loadings, noise, told["evidence"])

    shift, scale = (np.array(part, float) for part in stored["inputs"])
    return Structure(
        tuple(tuple(candidate(c) for c in candidates) for candidates in stored["channels"]),
        stored["step"],
        tuple(Period(*period) for period in stored["periods"]),
        shift,
        scale,
        np.array(stored["evidence"], float),
        None if stored["together"] is None else together(stored["together"]),
    )
