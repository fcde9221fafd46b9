"""`Summary`: a fit on one screen: the data, what explains it, its parameters, its scores, and whether to believe it."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from ..data.series import Series
from ..linear.structure import Structure
from ..predict.metrics import Scores
from ..predict.trust import Trust
from ..training.progress import Row

if TYPE_CHECKING:
    import pandas as pd

WIDTH = 100  # columns of text
SHOWN = 40  # rows of a table
SETTLED, JUMP = 0.95, 1.0  # what is said if fewer windows settle, or the posterior jumps by more nats where they meet
UNMOVED = 0.9  # an interval that wide, as a part of the prior's, has learned nothing


@runtime_checkable
class Summarised(Protocol):
    """What a summary needs of a `Fit`."""

    @property
    def context(self) -> list[Series]: ...
    @property
    def history(self) -> list[Row]: ...
    @property
    def stopped(self) -> str: ...
    @property
    def cuts(self) -> Mapping[str, float]: ...
    @property
    def about(self) -> Mapping[str, Any]: ...
    @property
    def structure(self) -> Structure | None: ...
    @property
    def by_structure(self) -> bool: ...
    @property
    def smooths_by(self) -> str: ...
    def parameters(self) -> pd.DataFrame: ...


@dataclasses.dataclass(frozen=True)
class Summary:
    """A fit in words and tables; print it, or let a notebook show it.

    `data` and `model`: what is known, by name. `parameters`: medians and 90 % intervals beside their priors, noise and diffusion
    among them. `scores`: of what was held out, if anything was. `trust`: whether each series' posterior can be believed.
    `warnings`: what to look at.
    """

    title: str
    data: Mapping[str, str]
    model: Mapping[str, str]
    parameters: pd.DataFrame
    scores: Scores | None
    trust: Trust
    warnings: tuple[str, ...]

    def __str__(self) -> str:
        rule = "=" * WIDTH
        parts = [rule, self.title.center(WIDTH).rstrip(), rule]
        for heading, body in self._sections():
            parts += [heading, *(f"  {line}" for line in body.splitlines()), "-" * WIDTH]
        return "\n".join([*parts[:-1], rule])

    def _repr_html_(self) -> str:
        sections = [
            f"<h4>{html.escape(heading)}</h4><pre>{html.escape(body)}</pre>" for heading, body in self._sections()
        ]
        return f"<h3>{html.escape(self.title)}</h3>{''.join(sections)}"

    def _sections(self) -> list[tuple[str, str]]:
        table = self.parameters[:SHOWN].map("{:.4g}".format).replace("nan", "").rename_axis(None).to_string()
        more = f"\n… and {len(self.parameters) - SHOWN} more" if len(self.parameters) > SHOWN else ""
        told = [("Data", _aligned(self.data)), ("Model", _aligned(self.model))]
        told += [("Parameters, noise and diffusion: median, 90 % interval; prior", table + more)]
        if self.scores is not None:
            scores = {name: f"{value:.4g}" for name, value in self.scores.items()}
            told += [("Forecast of what was held out", _aligned(scores))]
        told += [("Is the posterior good enough to believe?", str(self.trust))]
        told += [("Warnings", "\n".join(self.warnings))] if self.warnings else []
        return told


def _aligned(rows: Mapping[str, str]) -> str:
    width = max(len(name) for name in rows) + 2
    return "\n".join(f"{name:<{width}}{value}" for name, value in rows.items())


def summarise(fit: Summarised, *, trust: Trust, scores: Scores | None) -> Summary:
    """The summary of a fit whose posterior was weighed and whose forecasts were scored."""
    parameters = fit.parameters()
    names = ", ".join(item.name for item in fit.context[:3]) + ", …" * (len(fit.context) > 3)
    title = f"arcta: dynamics of {names}"
    return Summary(title, _data(fit), _model(fit), parameters, scores, trust, tuple(_warnings(fit, parameters, trust)))


def _data(fit: Summarised) -> dict[str, str]:
    data, first = fit.context, fit.context[0]
    unit = f" {first.time_unit}" if first.time_unit else ""
    steps = np.concatenate([np.diff(item.times[item.mask.any(axis=1)]) for item in data])
    begin, end = min(item.times[0] for item in data), max(item.times[-1] for item in data)
    seen, entries = sum(int(item.mask.sum()) for item in data), sum(item.mask.size for item in data)
    names = ", ".join(first.channels[:8]) + ", …" * (len(first.channels) > 8)
    told = {
        "series": f"{len(data)}",
        "channels": "frames" if first.frame_shape else f"{len(first.channels)} ({names})",
        "observations": f"{seen:,} in {sum(len(item) for item in data):,} rows, {1 - seen / entries:.1%} missing",
        "span": f"{first.when(begin)} to {first.when(end)}{'' if first.calendar else unit}",
    }
    if len(steps):
        typical = float(np.median(steps))
        regular = "regular" if np.allclose(steps, typical, rtol=1e-3) else "irregular"
        wide = int(np.sum(steps > 5 * typical))
        gaps = f"{wide} longer than five of them, the longest {steps.max():.4g}{unit}" if wide else "none"
        told |= {"step": f"{typical:.4g}{unit}, {regular}", "gaps": gaps}
    if first.input_names:
        told["known inputs"] = ", ".join(first.input_names)
    return told | ({"held out": f"the ends of {len(fit.cuts)} series"} if fit.cuts else {})


def _model(fit: Summarised) -> dict[str, str]:
    last = fit.history[-1] if fit.history else {}
    told = {
        "forecasts by": "the linear structure of each channel" if fit.by_structure else "the latent SDE",
        "smooths by": fit.smooths_by,
        "training": f"{int(last.get('step', 0)):,} steps, {fit.stopped}",
    }
    evidence = fit.about.get("evidence", {})
    if evidence:
        each = ", ".join(f"{name} {value:.4g}" for name, value in evidence.items())
        told["evidence"] = f"{each} (nats per observation)"
    if fit.structure is not None:
        told["structure"] = "; ".join(fit.structure.words(fit.context[0].channels)[:8])
    return told


def _warnings(fit: Summarised, parameters: pd.DataFrame, trust: Trust) -> list[str]:
    last = fit.history[-1] if fit.history else {}
    told = [] if fit.stopped == "finished" else [f"training ended early: {fit.stopped}"]
    settled, jump = last.get("settled", 1.0), last.get("join_kl_mean", 0.0)
    if settled < SETTLED:
        told.append(f"the smoother settled in {settled:.0%} of the windows only")
    if jump > JUMP:
        told.append(f"the posterior jumps by {jump:.2g} nats where windows meet: the bound is not one")
    red = [light.name for light in trust.lights if light.colour == "red"]
    if red:
        told.append(f"the posterior of {len(red)} series cannot be relied on: {', '.join(red[:4])}")
    return told + _unlearned(parameters)


def _unlearned(parameters: pd.DataFrame) -> list[str]:
    """The user's parameters of which the data says little."""
    if "prior q95" not in parameters:
        return []
    rows = parameters.to_dict("index")
    own = {str(name): row for name, row in rows.items() if not str(name).startswith(("diffusion[", "noise["))}
    wide = [
        name for name, row in own.items() if row["q95"] - row["q5"] > UNMOVED * (row["prior q95"] - row["prior q5"])
    ]
    return [f"the data says little of {name}: its interval is about that of its prior" for name in wide]
