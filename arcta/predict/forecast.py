"""Along the prior SDE and through the decoder: `forecast` from the posterior at the last observation of a context, `sample`
from the prior.

    z(t_N) ~ q(z(t_N) | last window)   or   z(t₀) ~ p(z0);        θ ~ q(θ),   dz = f dt + √q dβ,   x ~ p(x | z)
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import NamedTuple, Protocol, cast, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ..data.readers.columns import tidy_table
from ..data.readers.source import Options, Table
from ..data.readers.times import find_time
from ..data.series import Series
from ..data.windows import Window, last_window
from ..model.reading import DataLayout
from ..parts.generative import AbstractGenerative, Draw
from ..runtime.compile import compile_plainly
from ..runtime.host import ArrayLike
from ..runtime.memory import check_room
from .prediction import Bands, Prediction, check_channels, check_times, predict
from .recognise import Recognised, posterior_at
from .solve import AFFORDABLE, BELIEVED, COARSEST, FINEST, STRETCH, Plan, make_grids, plan, walk

BY_CHANNEL, BY_STATE = 44, 16  # bytes of a sample at a time, while it is made
FEWER = "Pass quantiles=, which keeps no paths, or ask for fewer samples or times."


@runtime_checkable
class InputTable(Protocol):
    """A DataFrame of known inputs: a column for each, the time as index or in a column of its own."""

    @property
    def columns(self) -> ArrayLike: ...

    @property
    def index(self) -> ArrayLike: ...

    def __getitem__(self, names: list[str], /) -> ArrayLike: ...


class Sampling(NamedTuple):
    """How many paths, the solver's longest step (in the user's units), whether only quantiles are kept of them, and whether states
    are first refined by the model's own flow (`recognise`), by default as the model was trained; and if so, how thoroughly.
    `copies`: how many predictions like this are kept at once."""

    num_samples: int = 256
    max_step: float | None = None
    quantiles: tuple[float, ...] | None = None
    refine: bool | None = None
    thorough: bool = False
    copies: int = 1

    def refines(self, model: AbstractGenerative) -> bool:
        return model.refined if self.refine is None else self.refine

    def step(self, layout: DataLayout) -> float:
        """The longest step in the model's units; by default a fortieth of its time scale, or the data's own if shorter, though not
        by more than ten times."""
        if self.max_step is None:
            return max(min(COARSEST, layout.typical_step), FINEST)
        return self.max_step / layout.scaling.time_scale

    def check_room(self, layout: DataLayout, count: int, latent: int, cure: str = FEWER) -> None:
        """Refuse so many times if their samples would not fit into memory."""
        at_once = count if self.quantiles is None else min(count, STRETCH)
        cells = self.num_samples * at_once * (BY_CHANNEL * len(layout.channels) + BY_STATE * latent)
        kept = 0 if self.quantiles is None else 8 * count * len(layout.channels) * (2 + len(self.quantiles))
        what = f"a prediction of {self.num_samples:,} samples at {count:,} times"
        check_room(self.copies * (cells + kept), what, cure if self.quantiles is None else "Ask for fewer samples.")

    def plan(self, model: AbstractGenerative, layout: DataLayout, since: Float[np.ndarray, " n"]) -> Plan:
        """The steps to some times since the start, in the model's units; said, or refused, if they are too many."""
        step, unit = self.step(layout), layout.scaling.time_scale
        most = np.inf if self.max_step else BELIEVED if model.drift.believed else AFFORDABLE
        found = plan(since, step, most)
        if found.longest is None:
            return found
        asked, time = since[-1] / step, f" {layout.time_unit}".rstrip()
        walked = f"{found.longest * unit:.3g}{time}"
        if model.drift.believed:
            raise ValueError(
                f"a forecast over {since[-1] * unit:.3g}{time} takes {asked:.2g} steps of your own drift, one each "
                f"{step * unit:.2g}{time}. Pass max_step= (as long as the drift allows) to take them, or ask for nearer times."
            )
        warnings.warn(
            f"to walk {since[-1] * unit:.3g}{time} takes {asked:.2g} solver steps; of longer gaps only the last {walked} "
            f"({found.longest:.3g} time scales of the model) are walked, for what lay before is forgotten by then. Pass "
            "max_step= to walk all.",
            stacklevel=6,
        )
        return found


@compile_plainly
def prior_states(
    model: AbstractGenerative, num_samples: int, key: PRNGKeyArray
) -> tuple[Float[Array, "samples latent"], Draw]:
    """Draws of z0 ~ p(z0), and with each one of the parameters."""
    state_key, draw_key = jax.random.split(key)
    initial = jax.vmap(lambda k: model.initial.sample(key=k))(jax.random.split(state_key, num_samples))
    return initial, model.draws(num_samples, key=draw_key)


@compile_plainly
def draw_states(
    model: AbstractGenerative, known: Recognised, num_samples: int, key: PRNGKeyArray
) -> tuple[Float[Array, "samples times latent"], Draw]:
    """Draws of the states at some times, each time on its own, and with each one of the parameters."""
    state_key, draw_key = jax.random.split(key)
    mean = known.normal.mean
    noise, draws = (
        jax.random.normal(state_key, (num_samples, *mean.shape), mean.dtype),
        model.draws(num_samples, key=draw_key),
    )
    away = jax.vmap(model.drift.coefficients_of, axis_size=num_samples)(draws.drift) - model.drift.coefficients().mean
    return known.states(noise, away), draws


def _tail(series: Series, layout: DataLayout) -> Series:
    """The last four partitions' worth of rows: what the state at the end remembers, and always as many windows."""
    rows = np.flatnonzero(series.mask.any(axis=1))
    return (
        series
        if len(rows) <= 4 * layout.partition_size
        else series.at_rows(slice(rows[-4 * layout.partition_size], None))
    )


def input_knots(
    layout: DataLayout, series: Series | None, start: float, times: np.ndarray, inputs: ArrayLike | None
) -> tuple[np.ndarray, np.ndarray]:
    """Times since `start` and values, both in the model's units, of the inputs known from `start` on."""
    names = layout.input_names
    if not names:
        if inputs is not None:
            raise ValueError("this model was trained without inputs; leave inputs= out.")
        return np.zeros(0), np.zeros((0, 0))
    if inputs is None:
        raise ValueError(
            f"the model was trained with inputs {', '.join(names)}, so predicting needs them at the times asked for. "
            f"Pass inputs= with shape ({len(times)}, {len(names)})."
        )
    values = np.asarray(inputs, float).reshape(len(np.asarray(inputs)), -1)
    if values.shape != (len(times), len(names)) or not np.isfinite(values).all():
        raise ValueError(
            f"inputs must be finite, of shape ({len(times)}, {len(names)}) for the inputs {', '.join(names)}; got shape "
            f"{values.shape}. Give one row for each time."
        )
    if series is not None:
        # What is handed in goes before what the context knows of the same time.
        known = series.times >= start
        values = np.concatenate([values, series.inputs[known]])
        times, first = np.unique(np.concatenate([times, series.times[known]]), return_index=True)
        values = values[first]
    return (times - start) / layout.scaling.time_scale, layout.scaling.known_inputs(values)


def _slack(layout: DataLayout, time: float) -> float:
    """By how much times may differ that are the same: a small part of a step, and rounding."""
    return 1e-6 * layout.typical_step * layout.scaling.time_scale + 4 * float(np.spacing(abs(time)))


def _by_time(table: InputTable, names: Sequence[str]) -> InputTable:
    """The table with its time as index: of one whose rows are merely numbered, the column that is the time if there is one."""
    import pandas as pd

    if not isinstance(table, pd.DataFrame) or not isinstance(table.index, pd.RangeIndex):
        return table
    others = tidy_table(Table(table.drop(columns=list(names)), "the table of inputs", np.arange(len(table)), []))
    if others.frame.columns.empty:
        return table
    return cast(InputTable, table.set_index(find_time(others, Options(), None)))


def inputs_at(layout: DataLayout, table: InputTable, times: ArrayLike) -> Float[np.ndarray, "n inputs"]:
    """The model's inputs at `times` from a table with its times, straight lines between its rows."""
    columns = [str(name) for name in np.asarray(table.columns)]
    for name in layout.input_names:
        if name not in columns:
            raise ValueError(
                f"the model needs the future input '{name}'; the table has {', '.join(columns)}. Add that column."
            )
    table = _by_time(table, layout.input_names)
    ahead, known = check_times(times, layout.calendar), check_times(table.index, layout.calendar)
    values = np.asarray(table[list(layout.input_names)], float)
    bad = np.argwhere(~np.isfinite(values))
    if len(bad):
        row, column = bad[0]
        name, when = layout.input_names[column], np.asarray(table.index)[row]
        raise ValueError(f"future inputs must be known at every time; '{name}' is missing at {when}. Fill it in.")
    slack = _slack(layout, ahead[-1])
    if known[-1] < ahead[-1] - slack:
        end, asked = (layout.calendar.show(t) if layout.calendar else f"{t:g}" for t in (known[-1], ahead[-1]))
        raise ValueError(
            f"future inputs ({', '.join(layout.input_names)}) end at {end}; the forecast goes to {asked}. Give them up to "
            "there, or forecast less far."
        )
    return np.stack([np.interp(ahead, known, values[:, i]) for i in range(values.shape[1])], axis=1)


def start_node(layout: DataLayout, window: Window, series: Series, origin: float) -> int:
    """The row of the last `window` of a series that holds the observation at `origin`."""
    rows = series.times[series.mask.any(axis=1)][-(int(window.last_node()) + 1) :]
    nearest = int(np.argmin(np.abs(rows - origin)))
    if abs(rows[nearest] - origin) > _slack(layout, rows[-1]):
        raise ValueError(
            f"origin must be the time of an observation among the last {len(rows)} of '{series.name}'; got {series.when(origin)}, "
            f"the nearest is {series.when(rows[nearest])}. Use that, or leave origin out."
        )
    return nearest


def times_ahead(
    layout: DataLayout, series: Series, times: ArrayLike, origin: float | None, sampling: Sampling
) -> tuple[Float[np.ndarray, " n"], float]:
    """The times to forecast a series at, and the time to start from; refused if they are no forecast."""
    check_channels(layout, series)
    if sampling.num_samples < 1:
        raise ValueError(f"num_samples must be at least 1; got {sampling.num_samples}. 256 gives usable 90 % bands.")
    ahead = check_times(times, layout.calendar)
    start = series.last_observed if origin is None else origin
    if ahead[0] < start or (origin is None and ahead[0] == start):
        raise ValueError(
            f"a forecast goes forward from the last observation of '{series.name}' at t={series.when(start)}; got "
            f"t={series.when(float(ahead[0]))}. "
            "Ask for later times, or use smooth for times inside the data."
        )
    return ahead, start


def forecast(
    model: AbstractGenerative,
    layout: DataLayout,
    series: Series,
    times: ArrayLike,
    *,
    origin: float | None = None,
    inputs: ArrayLike | None = None,
    sampling: Sampling = Sampling(),
    key: PRNGKeyArray,
) -> Prediction | Bands:
    """Forecast what follows `series` at `times`, all in the user's units: a `Prediction`, or with quantiles the `Bands`."""
    ahead, start = times_ahead(layout, series, times, origin, sampling)
    scaling = layout.scaling
    sampling.check_room(layout, len(ahead), len(model.initial.mean))
    window = last_window(series, scaling, layout.window_shape(model))
    node = start_node(layout, window, series, start)
    # Nodes near the end do not see the whole look-ahead; they would only blur an earlier state that does.
    informed = np.arange(len(window.node)) <= max(node, int(window.last_node()) - window.lookahead)
    window = eqx.tree_at(lambda w: w.node, window, window.node & informed)
    knots = input_knots(layout, series, start, ahead, inputs)
    since = (ahead - start) / scaling.time_scale
    grids = make_grids(scaling.times(start), since, sampling.plan(model, layout, since), *knots)
    start_key, path_key, decode_key = jax.random.split(key, 3)
    window = jax.tree.map(jnp.asarray, window)
    if sampling.refines(model):
        tail = _tail(series, layout)
        whole = len(tail) == len(series)
        known = posterior_at(model, layout, tail, np.array([start]), refine=True, first=whole)
        states, draws = draw_states(model, known, sampling.num_samples, start_key)
        initial = states[:, 0]
    else:
        initial, draws = eqx.filter_jit(model.states_at)(window, jnp.asarray(node), sampling.num_samples, key=start_key)
    pieces = walk(model, draws, initial, grids, scaling, key=path_key)
    return predict(model, layout, series.name, ahead, pieces, draws, quantiles=sampling.quantiles, key=decode_key)


def sample(
    model: AbstractGenerative,
    layout: DataLayout,
    times: ArrayLike,
    *,
    inputs: ArrayLike | None = None,
    sampling: Sampling = Sampling(10),
    key: PRNGKeyArray,
) -> Prediction | Bands:
    """New trajectories at `times`; the first of them is when the initial state holds."""
    asked, scaling = check_times(times, layout.calendar), layout.scaling
    if sampling.num_samples < 1:
        raise ValueError(f"num_samples must be at least 1; got {sampling.num_samples}. Ask for one trajectory or more.")
    sampling.check_room(layout, len(asked), len(model.initial.mean), "Ask for fewer trajectories or times.")
    start = float(asked[0])
    knots = input_knots(layout, None, start, asked, inputs)
    since = (asked - start) / scaling.time_scale
    grids = make_grids(scaling.times(start), since, sampling.plan(model, layout, since), *knots)
    start_key, path_key, decode_key = jax.random.split(key, 3)
    initial, draws = prior_states(model, sampling.num_samples, start_key)
    pieces = walk(model, draws, initial, grids, scaling, key=path_key)
    return predict(model, layout, "sample", asked, pieces, draws, quantiles=sampling.quantiles, key=decode_key)
