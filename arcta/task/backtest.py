"""Backtest: forecasts from several origins in the past, against what happened and against the forecasts to beat.

At each origin o the model sees the data up to o and forecasts (o, o + horizon]; nothing is refitted unless asked. The
baselines are fitted once on the same training data and see the same contexts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import jax
import numpy as np
from jaxtyping import Float, Int, PRNGKeyArray

from ..data.read import Data
from ..data.seasons import find_seasons
from ..data.series import Series, typical_step
from ..data.shown import small_table
from ..data.spans import Moment, Span, span_of
from ..model.reading import DataLayout
from ..predict.classical import BASELINES, SEASONAL
from ..predict.metrics import entry_scores
from ..predict.naive import NAIVE, Forecaster, deviations
from ..predict.prediction import Prediction
from .fitted import Fit
from .use import as_key

if TYPE_CHECKING:
    import pandas as pd

MODEL = "latent SDE"
Entries = dict[str, np.ndarray]
SLACK = 1.05
SCORED = 400  # rows of a horizon, at most
NOTHING = 1e-6  # of a channel's deviation: errors that differ by less are the same


def gaussian_scores(
    mean: Float[np.ndarray, "n channels"], std: Float[np.ndarray, "n channels"], values: Float[np.ndarray, "n channels"]
) -> dict[str, Float[np.ndarray, "n channels"]]:
    """Entry by entry, for a Gaussian forecast: error, CRPS in closed form, and whether the 90 % band covers."""
    from scipy.special import ndtr, ndtri  # slow to import, rarely needed

    z = (values - mean) / std
    crps = std * (z * (2 * ndtr(z) - 1) + 2 * np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi) - 1 / np.sqrt(np.pi))
    return {"error": mean - values, "crps": crps, "coverage_90": (np.abs(z) < ndtri(0.95)) * 1.0}


@dataclasses.dataclass(frozen=True, repr=False)
class Backtest:
    """Scores of the model and of the baselines over all origins.

    `table` has a row for each method (rmse, crps, coverage of the 90 % band; errors in units of each channel's standard
    deviation in training), `by_lead` the rmse in four parts of the horizon, `by_channel` the rmse of each channel in its own units.
    `entries` holds every forecast entry.
    """

    table: pd.DataFrame
    by_lead: pd.DataFrame
    by_channel: pd.DataFrame
    origins: list[float]
    horizon: float
    entries: dict[str, Entries]
    units: tuple[str, ...] = ()
    time_unit: str = ""

    def __repr__(self) -> str:
        rivals = ", ".join(f"'{name}'" for name in self.table.index.drop(MODEL)[:4])
        time = f" {self.time_unit}".rstrip()
        return (
            f"Backtest({len(self.origins)} origins, {self.horizon:.4g}{time} ahead, {self.by_channel.shape[1]} channels, against "
            f"{rivals or 'nothing'}{', …' * (len(self.table) > 5)})"
        )

    def _repr_html_(self) -> str:
        return small_table(repr(self), self.table)

    @property
    def best_naive(self) -> str:
        """The naive forecast with the smallest error."""
        present = [name for name in NAIVE if name in self.table.index]
        return str(self.table.loc[present, "rmse"].idxmin())

    @property
    def beats_naive(self) -> bool:
        return bool(self.table.loc[MODEL, "rmse"] < self.table.loc[self.best_naive, "rmse"])

    def usable(self) -> dict[str, float]:
        """How far each channel's forecast is to be used: to the end of the last quarter of the horizon in which, and up to which,
        no simpler one is better; a rival picked from several after the fact may be better by a few percent by chance."""
        found = {}
        for i, channel in enumerate(self.by_channel):
            rival = self._rival(channel)
            slack = 1.0 if rival in NAIVE else SLACK

            def good(begin: float, end: float, i: int = i, rival: str = rival, slack: float = slack) -> bool:
                return self._error(MODEL, i, begin, end) <= slack * self._error(rival, i, begin, end) + NOTHING

            reached = [end for end in (0.25, 0.5, 0.75, 1.0) if good(0.0, end) and good(end - 0.25, end)]
            found[channel] = max(reached, default=0.0) * self.horizon
        return found

    def _rival(self, channel: str) -> str:
        return str(self.by_channel[channel].drop(index=MODEL).idxmin())

    def _error(self, name: str, channel: int, begin: float, end: float) -> float:
        """Over a part of the horizon; NaN, which is never good, where nothing was observed in it."""
        entry = self.entries[name]
        here = (entry["channel"] == channel) & (entry["lead"] > begin) & (entry["lead"] <= end * (1 + 1e-9))
        return _rmse(entry["squared_error"][here])

    def verdicts(self) -> dict[str, str]:
        """For each channel, in its units: use the forecast, up to where, or what to use instead."""
        told = {}
        for (channel, reach), unit in zip(
            self.usable().items(), self.units or [""] * len(self.by_channel), strict=False
        ):
            rival, time = self._rival(channel), f" {self.time_unit}".rstrip()
            ours, theirs = self.by_channel.loc[MODEL, channel], self.by_channel.loc[rival, channel]
            errors = f"error {ours:.3g} against {theirs:.3g}{f' {unit}' * bool(unit)} of '{rival}'"
            if reach == 0:
                told[channel] = f"do NOT use the model, use '{rival}' instead: {errors}"
            elif reach < self.horizon:
                told[channel] = f"use it up to {reach:.3g}{time} ahead, '{rival}' beyond: {errors}"
            else:
                told[channel] = f"use it, {self.horizon:.3g}{time} ahead: {errors}"
        return told

    def verdict(self) -> str:
        """One sentence: for which channels, and how far, is this the forecast to use?"""
        reach, told = self.usable(), self.verdicts()
        if len(told) == 1:
            return f"{next(iter(told.values()))}."
        whole = [name for name, r in reach.items() if r == self.horizon]
        part = {name: r for name, r in reach.items() if 0 < r < self.horizon}
        never = [name for name, r in reach.items() if r == 0]
        ours, theirs = self.table.loc[MODEL, "rmse"], self.table.loc[self.best_naive, "rmse"]
        parts = [f"use it for {len(whole)} of {len(told)} channels"] if whole else []
        parts += (
            [f"only up to a part of the horizon for {', '.join(list(part)[:4])}{', …' * (len(part) > 4)}"]
            if part
            else []
        )
        parts += [f"do NOT use it for {', '.join(never[:4])}{', …' * (len(never) > 4)}"] if never else []
        return f"{'; '.join(parts)}. Over all, its error is {ours / theirs:.0%} of the best naive forecast's ({self.best_naive})."


def _first_origin(series: Series, start: Moment | None) -> float:
    if start is None:
        return series.times[0] + 0.8 * (series.times[-1] - series.times[0])
    return series.time_of(start, "start")


def choose_origins(series: Series, first: float, horizon: float, count: int) -> np.ndarray:
    """Up to `count` origins from `first` on, evenly spaced, that leave a whole horizon of observations after them."""
    seen = series.times[series.mask.any(axis=1)]
    last = seen[-1] - horizon
    if last < first:
        raise ValueError(
            f"a backtest needs a whole horizon after its first origin; series '{series.name}' ends {seen[-1] - first:.4g} after "
            f"it, the horizon is {horizon:g}. Use a shorter horizon or an earlier origin."
        )
    origins = np.unique(np.linspace(first, last, count))
    return np.array([o for o in origins if ((seen > o) & (seen <= o + horizon)).any()])


def backtest(
    fit: Fit,
    data: Data,
    *,
    horizon: Span,
    start: Moment | None = None,
    num_origins: int = 8,
    refit: Callable[[list[Series]], Fit] | None = None,
    baselines: Sequence[str] | None = None,
    num_samples: int = 256,
    key: int | PRNGKeyArray = 0,
) -> Backtest:
    """Rolling-origin evaluation of a fit, and of the baselines on the same data.

    **Arguments:**

    - `data`: whole series, the training part included; `start`: the end of the training part, where the first origin lies, a
      number or a date (default: 80 % of each series' span). The baselines are fitted on what lies before it.
    - `horizon`: how far each forecast goes: a float in the data's unit of time, a whole number of its steps, or a span such as
      `"14d"`. Of more than 400 rows in it, 400 spread over it are scored.
    - `refit`: a function from the series up to an origin to a new `Fit`, if the model should be trained anew at each.

        >>> import arcta
        >>> data = arcta.datasets.lotka_volterra()
        >>> before, _ = arcta.split(data, at=0.8)
        >>> fit = arcta.fit(arcta.LatentSDE(), before, training=arcta.Training(steps=5), progress=False)
        >>> result = arcta.backtest(fit, data, horizon=5.0, num_origins=2, baselines=["last value"], num_samples=8)
        >>> list(result.table.index)
        ['latent SDE', 'last value']
    """
    horizon = span_of(horizon, fit.layout.time_unit, fit.layout.step)
    series = fit._given(data)
    pairs = [(item, _first_origin(item, start)) for item in series]
    usable = [(item, first) for item, first in pairs if _long_enough(item, first, horizon)]
    if not usable:
        choose_origins(*pairs[0], horizon, num_origins)  # says what is missing
        raise ValueError("a backtest needs observations before its first origin. Use a later start.")
    before = [item.at_rows(item.times <= first) for item, first in pairs if item.mask[item.times <= first].any()]
    rivals = _rivals(before, fit, baselines)
    per_series = max(1, num_origins // len(usable)) if len(usable) > 1 else num_origins
    scale = deviations(before)
    entries: dict[str, list[Entries]] = {name: [] for name in (MODEL, *rivals)}
    origins: list[float] = []
    for i, (item, first) in enumerate(usable[: max(num_origins, 1)]):
        for j, origin in enumerate(choose_origins(item, first, horizon, per_series)):
            context = item.at_rows(item.times <= origin)
            after = item.at_rows(_some(np.flatnonzero((item.times > origin) & (item.times <= origin + horizon)), item))
            known = after.inputs if after.input_names else None
            used = fit if refit is None else refit([context])
            k = jax.random.fold_in(as_key(key), 1000 * i + j)
            ahead = used.forecast(after.times, given=context, inputs=known, num_samples=num_samples, key=k)
            rows = {MODEL: {**entry_scores(ahead, after), "pit": _ranks(ahead, after)}}
            rows |= {n: gaussian_scores(*rival(context, after.times), after.values) for n, rival in rivals.items()}
            for name, row in rows.items():
                entries[name].append(_observed(row, after, (after.times - origin) / horizon, scale))
            origins.append(float(origin))
    pooled = {n: {k: np.concatenate([p[k] for p in parts]) for k in parts[0]} for n, parts in entries.items()}
    return _conclude(pooled, fit.layout, scale, origins, horizon)


def backtest_held_out(fit: Fit, *, horizon: float | None = None, num_origins: int = 8, key: int = 1) -> Backtest:
    """Forecasts of what `fit(…, holdout=)` held out, from several origins in it; by default half as far as it reaches."""
    names = {before.name for before, _ in fit.held_out()}
    data = [item for item in fit.context if item.name in names]
    longest = max(data, key=len)
    cut = fit.cuts[longest.name]
    reach = horizon or default_horizon([longest], cut)
    start = cut if len(data) == 1 else None
    return backtest(fit, data, horizon=reach, start=start, num_origins=num_origins, key=key)


def _rivals(before: Sequence[Series], fit: Fit, wanted: Sequence[str] | None) -> dict[str, Forecaster]:
    """The forecasts to beat, of those wanted the ones that there are."""
    known = {"seasons": find_seasons(before) if fit.structure is None else fit.structure.periods}
    made = {
        name: make(before, **(known if name in SEASONAL else {}))
        for name, make in BASELINES.items()
        if wanted is None or name in wanted
    }
    return {name: forecaster for name, forecaster in made.items() if forecaster is not None}


def _some(rows: Int[np.ndarray, " n"], item: Series) -> Int[np.ndarray, " m"]:
    """Up to `SCORED` of the rows, one at random from each of as many equal parts, so that none of a season's phases is preferred.

    Neighbours of a long horizon have nearly the same error: scoring them all costs time and tells little. All are kept where there
    are known inputs, which a model needs at every row.
    """
    if len(rows) <= SCORED or item.input_names:
        return rows
    width = len(rows) / SCORED
    picks = (np.arange(SCORED) + np.random.default_rng(0).random(SCORED)) * width
    return rows[np.unique(picks.astype(int))]


def _ranks(ahead: Prediction, after: Series) -> np.ndarray:
    """Where each observation falls among the forecast's samples, from 0 to 1."""
    below, equal = ahead.observations < after.values, ahead.observations == after.values
    return np.mean(below, axis=0) + 0.5 * np.mean(equal, axis=0)


def _observed(
    row: Entries, after: Series, lead: Float[np.ndarray, " n"], scale: Float[np.ndarray, " channels"]
) -> Entries:
    """The observed entries of a forecast's scores, errors in units of each channel's scale, with their leads and channels."""
    kept = {k: v for k, v in row.items() if k.startswith(("coverage", "pit"))}
    kept |= {"squared_error": (row["error"] / scale) ** 2, "crps": row["crps"] / scale}
    kept |= {"lead": np.broadcast_to(lead[:, None], after.mask.shape)}
    place = np.zeros(len(scale), int) if after.frame_shape else np.arange(len(scale))  # a frame is judged as one
    kept |= {"channel": np.broadcast_to(place, after.mask.shape)}
    return {k: v[after.mask] for k, v in kept.items()}


def _long_enough(series: Series, first: float, horizon: float) -> bool:
    """Whether there are observations up to the first origin, in the horizon after it, and as far as that."""
    seen = series.times[series.mask.any(axis=1)]
    return bool(seen[0] <= first <= seen[-1] - horizon and ((seen > first) & (seen <= first + horizon)).any())


def _conclude(
    pooled: dict[str, Entries],
    layout: DataLayout,
    scale: Float[np.ndarray, " channels"],
    origins: list[float],
    horizon: float,
) -> Backtest:
    import pandas as pd

    own: dict[str, dict[str, float]] = {}
    channels = ("frames",) if layout.frame_shape else layout.channels
    for i, (channel, unit) in enumerate(zip(channels, scale, strict=False)):
        own[channel] = {n: _rmse(e["squared_error"][e["channel"] == i]) * unit for n, e in pooled.items()}
    by_channel = pd.DataFrame(own).dropna(axis=1)
    return Backtest(*_tables(pooled), by_channel, origins, float(horizon), pooled, layout.units, layout.time_unit)


def _rmse(squares: Float[np.ndarray, " n"]) -> float:
    return float(np.sqrt(squares.mean())) if len(squares) else np.nan


def _tables(pooled: dict[str, Entries]) -> tuple[pd.DataFrame, pd.DataFrame]:
    import pandas as pd

    rows, leads = {}, {}
    for name, entry in pooled.items():
        squares, part = entry["squared_error"], np.minimum((entry["lead"] * 4).astype(int), 3)
        means = {score: float(entry[score].mean()) for score in ("crps", "coverage_90")}
        rows[name] = {"rmse": _rmse(squares), **means}
        leads[name] = {f"{25 * p}–{25 * (p + 1)} %": _rmse(squares[part == p]) for p in range(4)}
    return pd.DataFrame.from_dict(rows, orient="index"), pd.DataFrame.from_dict(leads, orient="index")


def default_horizon(data: Sequence[Series], start: Moment | None = None) -> float:
    """Half of the held-out span of the longest series, and at least three typical steps."""
    longest = max(data, key=lambda item: item.times[-1] - item.times[0])
    span = longest.times[-1] - _first_origin(longest, start)
    return float(max(0.5 * span, min(3 * typical_step(data), span)))
