"""Forecast: from the posterior at the last observation of a context, along the prior SDE, through the decoder.

z(t_N) ~ q(z(t_N) | last window),   θ ~ q(θ),   dz = f dt + √q dβ,   x ~ p(x | z)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .model import DataSummary, Draw, Model
from .prediction import check_channels, check_times, predict
from .series import Series
from .solve import make_grids, walk
from .windows import Window, last_window


def default_step(summary: DataSummary) -> float:
    """The longest solver step in the model's units: a fortieth of its time scale, or the data's own step if shorter."""
    return min(1 / 40, summary.typical_step)


@eqx.filter_jit
def start_states(
    model: Model, window: Window, node: Int[Array, ""], num_samples: int, key: PRNGKeyArray
) -> tuple[Float[Array, "samples latent"], Draw]:
    """Draws of the state at a node of `window`, and with each one of the parameters."""
    mean, log_variance = (at_nodes[node] for at_nodes in model.posterior(window).at_nodes())
    state_key, draw_key = jax.random.split(key)
    noise = jax.random.normal(state_key, (num_samples, *mean.shape), mean.dtype)
    draws = jax.vmap(lambda k: model.draw(key=k))(jax.random.split(draw_key, num_samples))
    return mean + jnp.exp(0.5 * log_variance) * noise, draws


def input_knots(
    summary: DataSummary, series: Series | None, start: float, times: np.ndarray, inputs: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Times since `start` and values, both in the model's units, of the inputs known from `start` on."""
    names = summary.input_names
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
    return (times - start) / summary.scaling.time_scale, summary.scaling.known_inputs(values)


def inputs_at(summary: DataSummary, table: Any, times: Any) -> Float[np.ndarray, "n inputs"]:
    """The model's inputs at `times` from a table with the time as index, straight lines between its rows."""
    for name in summary.input_names:
        if name not in table.columns:
            raise ValueError(
                f"the model needs the future input '{name}'; the table has {', '.join(map(str, table.columns))}. Add that column."
            )
    ahead, known = check_times(times, summary.calendar), check_times(table.index, summary.calendar)
    values = np.asarray(table[list(summary.input_names)], float)
    bad = np.argwhere(~np.isfinite(values))
    if len(bad):
        row, column = bad[0]
        raise ValueError(
            f"future inputs must be known at every time; '{summary.input_names[column]}' is missing at {table.index[row]}. "
            "Fill it in."
        )
    slack = 1e-9 * max(abs(ahead[-1]), 1.0)
    if known[-1] < ahead[-1] - slack:
        end = summary.calendar.show(known[-1]) if summary.calendar else f"{known[-1]:g}"
        asked = summary.calendar.show(ahead[-1]) if summary.calendar else f"{ahead[-1]:g}"
        raise ValueError(
            f"future inputs ({', '.join(summary.input_names)}) end at {end}; the forecast goes to {asked}. Give them up to "
            "there, or forecast less far."
        )
    return np.stack([np.interp(ahead, known, values[:, i]) for i in range(values.shape[1])], axis=1)


def start_node(window: Window, series: Series, last: float, origin: float | None) -> int:
    """The row of `window` that a forecast starts from: the last node, or the observation at `origin`."""
    final = int(window.last_node())
    if origin is None:
        return final
    rows = series.times[series.mask.any(axis=1)][-(final + 1) :]
    nearest = int(np.argmin(np.abs(rows - origin)))
    if abs(rows[nearest] - origin) > 1e-9 * max(abs(last), 1.0):
        raise ValueError(
            f"origin must be the time of an observation among the last {len(rows)} of '{series.name}'; got {origin:g}, the "
            f"nearest is {rows[nearest]:g}. Use that, or leave origin out."
        )
    return nearest


def forecast(
    model: Model,
    summary: DataSummary,
    series: Series,
    times: Any,
    *,
    origin: float | None = None,
    inputs: Any = None,
    num_samples: int = 256,
    max_step: float | None = None,
    quantiles: Sequence[float] | None = None,
    key: PRNGKeyArray,
) -> Any:
    """Forecast what follows `series` at `times`, all in the user's units: a `Prediction`, or with `quantiles` the `Bands`."""
    check_channels(summary, series)
    if num_samples < 1:
        raise ValueError(f"num_samples must be at least 1; got {num_samples}. 256 gives usable 90 % bands.")
    ahead = check_times(times, summary.calendar)
    scaling = summary.scaling
    last = float(series.times[series.mask.any(axis=1)][-1])
    window = last_window(series, scaling, size=summary.partition_size, lookahead=model.encoder.lookahead)
    node = start_node(window, series, last, origin)
    if origin is not None:
        # Nodes near the end do not see the whole look-ahead; they would only blur a state that does.
        informed = np.arange(len(window.node)) <= max(node, int(window.last_node()) - window.lookahead)
        window = eqx.tree_at(lambda w: w.node, window, window.node & informed)
    start = last if origin is None else origin
    if ahead[0] < start or (origin is None and ahead[0] == last):
        raise ValueError(
            f"a forecast goes forward from the last observation of '{series.name}' at t={start:g}; got t={ahead[0]:g}. "
            "Ask for later times, or use smooth for times inside the data."
        )
    knots = input_knots(summary, series, start, ahead, inputs)
    step = default_step(summary) if max_step is None else max_step / scaling.time_scale
    since = (ahead - start) / scaling.time_scale
    grids = make_grids((start - scaling.origin) / scaling.time_scale, since, step, *knots)
    start_key, path_key, decode_key = jax.random.split(key, 3)
    initial, draws = start_states(model, jax.tree.map(jnp.asarray, window), jnp.asarray(node), num_samples, start_key)
    pieces = walk(model, draws, initial, grids, key=path_key)
    return predict(model, summary, series.name, ahead, pieces, draws, quantiles=quantiles, key=decode_key)
