"""Along the prior SDE and through the decoder: `forecast` from the posterior at the last observation of a context, `sample`
from the prior.

    z(t_N) ~ q(z(t_N) | last window)   or   z(t₀) ~ p(z0);        θ ~ q(θ),   dz = f dt + √q dβ,   x ~ p(x | z)
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ..data.series import Series
from ..data.windows import Window, last_window
from ..model.reading import DataLayout
from ..parts.generative import AbstractGenerative, Draw
from ..runtime.host import ArrayLike
from .prediction import Bands, Prediction, check_channels, check_times, predict
from .recognise import Recognised, posterior_at
from .solve import make_grids, walk


@runtime_checkable
class InputTable(Protocol):
    """A DataFrame of known inputs: a column for each, the time as index."""

    @property
    def columns(self) -> ArrayLike: ...

    @property
    def index(self) -> ArrayLike: ...

    def __getitem__(self, names: list[str], /) -> ArrayLike: ...


class Sampling(NamedTuple):
    """How many paths, the solver's longest step (in the user's units), whether only quantiles are kept of them, and whether states
    are first refined by the model's own flow (`recognise`), by default as the model was trained; and if so, how thoroughly."""

    num_samples: int = 256
    max_step: float | None = None
    quantiles: tuple[float, ...] | None = None
    refine: bool | None = None
    thorough: bool = False

    def refines(self, model: AbstractGenerative) -> bool:
        return model.refined if self.refine is None else self.refine

    def step(self, layout: DataLayout) -> float:
        """The longest step in the model's units; by default a fortieth of its time scale, or the data's own if shorter."""
        if self.max_step is None:
            return min(1 / 40, layout.typical_step)
        return self.max_step / layout.scaling.time_scale


@eqx.filter_jit
def prior_states(
    model: AbstractGenerative, num_samples: int, key: PRNGKeyArray
) -> tuple[Float[Array, "samples latent"], Draw]:
    """Draws of z0 ~ p(z0), and with each one of the parameters."""
    state_key, draw_key = jax.random.split(key)
    initial = jax.vmap(lambda k: model.initial.sample(key=k))(jax.random.split(state_key, num_samples))
    return initial, model.draws(num_samples, key=draw_key)


@eqx.filter_jit
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


def inputs_at(layout: DataLayout, table: InputTable, times: ArrayLike) -> Float[np.ndarray, "n inputs"]:
    """The model's inputs at `times` from a table with the time as index, straight lines between its rows."""
    columns = [str(name) for name in np.asarray(table.columns)]
    for name in layout.input_names:
        if name not in columns:
            raise ValueError(
                f"the model needs the future input '{name}'; the table has {', '.join(columns)}. Add that column."
            )
    ahead, known = check_times(times, layout.calendar), check_times(table.index, layout.calendar)
    values = np.asarray(table[list(layout.input_names)], float)
    bad = np.argwhere(~np.isfinite(values))
    if len(bad):
        row, column = bad[0]
        name, when = layout.input_names[column], np.asarray(table.index)[row]
        raise ValueError(f"future inputs must be known at every time; '{name}' is missing at {when}. Fill it in.")
    slack = 1e-9 * max(abs(ahead[-1]), 1.0)
    if known[-1] < ahead[-1] - slack:
        end, asked = (layout.calendar.show(t) if layout.calendar else f"{t:g}" for t in (known[-1], ahead[-1]))
        raise ValueError(
            f"future inputs ({', '.join(layout.input_names)}) end at {end}; the forecast goes to {asked}. Give them up to "
            "there, or forecast less far."
        )
    return np.stack([np.interp(ahead, known, values[:, i]) for i in range(values.shape[1])], axis=1)


def start_node(window: Window, series: Series, origin: float) -> int:
    """The row of the last `window` of a series that holds the observation at `origin`."""
    rows = series.times[series.mask.any(axis=1)][-(int(window.last_node()) + 1) :]
    nearest = int(np.argmin(np.abs(rows - origin)))
    if abs(rows[nearest] - origin) > 1e-9 * max(abs(rows[-1]), 1.0):
        raise ValueError(
            f"origin must be the time of an observation among the last {len(rows)} of '{series.name}'; got {origin:g}, the "
            f"nearest is {rows[nearest]:g}. Use that, or leave origin out."
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
    start = float(series.times[series.mask.any(axis=1)][-1]) if origin is None else origin
    if ahead[0] < start or (origin is None and ahead[0] == start):
        raise ValueError(
            f"a forecast goes forward from the last observation of '{series.name}' at t={start:g}; got t={ahead[0]:g}. "
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
    window = last_window(series, scaling, layout.window_shape(model))
    node = start_node(window, series, start)
    # Nodes near the end do not see the whole look-ahead; they would only blur an earlier state that does.
    informed = np.arange(len(window.node)) <= max(node, int(window.last_node()) - window.lookahead)
    window = eqx.tree_at(lambda w: w.node, window, window.node & informed)
    knots = input_knots(layout, series, start, ahead, inputs)
    grids = make_grids(scaling.times(start), (ahead - start) / scaling.time_scale, sampling.step(layout), *knots)
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
    pieces = walk(model, draws, initial, grids, key=path_key)
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
    start = float(asked[0])
    knots = input_knots(layout, None, start, asked, inputs)
    grids = make_grids(scaling.times(start), (asked - start) / scaling.time_scale, sampling.step(layout), *knots)
    start_key, path_key, decode_key = jax.random.split(key, 3)
    initial, draws = prior_states(model, sampling.num_samples, start_key)
    pieces = walk(model, draws, initial, grids, key=path_key)
    return predict(model, layout, "sample", asked, pieces, draws, quantiles=sampling.quantiles, key=decode_key)
