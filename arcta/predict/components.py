"""What a smoothed channel is made of, part by part, as a table: trend, seasons, dynamics, noise.

structure     x = trend + season P + … + dynamics + inputs + noise, on the scale on which the channel is a sum
latent SDE    x = level + Σ_i C_i z_i + noise, where outputs are linear in the state
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ..data.calendar import time_index
from ..data.series import Series
from ..linear.structure import Structure
from ..model.reading import DataLayout
from ..parts.model import Model
from ..runtime.host import ArrayLike
from .prediction import check_channels
from .recognise import posterior_at
from .smooth import smoothing_times
from .structural import decompose

if TYPE_CHECKING:
    import pandas as pd

AT_ONCE = 1200  # observations of a channel
PARTS = {"constant": "trend", "level": "trend", "slope": "trend", "damped": "trend", "rough": "dynamics", "smooth": "dynamics",
         "cycle": "dynamics"}  # fmt: skip
ADDITIVE = ("gaussian", "student-t")
Parts = dict[str, Float[np.ndarray, " n"]]


def _stretches(seen: Float[np.ndarray, " rows"], times: Float[np.ndarray, " n"]) -> list[np.ndarray]:
    """Which times are looked at together: those among so many observations."""
    owner = np.searchsorted(seen, times) // AT_ONCE
    return [np.flatnonzero(owner == one) for one in np.unique(owner)]


def _of_channel(structure: Structure, series: Series, channel: int, times: Float[np.ndarray, " n"]) -> Parts:
    """The parts of one channel on its scale, those of one kind together."""
    found: Parts = {}
    for rows in _stretches(series.times[series.mask[:, channel]], times):
        for name, values in decompose(structure, series, channel, times[rows]).items():
            part = PARTS.get(name.split(" ")[0], name)
            found.setdefault(part, np.zeros(len(times)))[rows] += values
    return found


def _with_noise(parts: Parts, series: Series, channel: int, times: Float[np.ndarray, " n"], form: str) -> Parts:
    """And what is left of the observations, where there are any; on a logarithm's scale all are factors."""
    observed = np.full(len(times), np.nan)
    place = np.clip(np.searchsorted(series.times, times), 0, len(series) - 1)
    here = (series.times[place] == times) & series.mask[place, channel]
    observed[here] = series.values[place[here], channel]
    if form == "root":
        observed = np.sqrt(np.maximum(observed, 0.0))
    total = np.sum(list(parts.values()), axis=0)
    if form != "log":
        return {**parts, "noise": observed - total}
    return {**{name: np.exp(values) for name, values in parts.items()}, "noise": observed / np.exp(total)}


def _table(
    layout: DataLayout, times: Float[np.ndarray, " n"], parts: Sequence[Parts], scales: Sequence[str]
) -> pd.DataFrame:
    import pandas as pd

    columns = {(c, p): x for c, of_c in zip(layout.channels, parts, strict=True) for p, x in of_c.items()}
    frame = pd.DataFrame(columns, index=time_index(times, layout.calendar, layout.time_unit))
    frame.columns = pd.MultiIndex.from_tuples(list(columns), names=["channel", "part"])
    frame.attrs["scales"] = dict(zip(layout.channels, scales, strict=True))
    return frame


def parts_of_structure(
    structure: Structure, layout: DataLayout, series: Series, times: ArrayLike | None
) -> pd.DataFrame:
    """The components of each channel's best linear structure."""
    check_channels(layout, series)
    asked, forms = smoothing_times(series, times, layout.calendar), [scale.form for scale in structure.scales]
    parts = [
        _with_noise(_of_channel(structure, series, c, asked), series, c, asked, form) for c, form in enumerate(forms)
    ]
    return _table(layout, asked, parts, forms)


def parts_of_state(
    model: Model, layout: DataLayout, kinds: Sequence[str], series: Series, times: ArrayLike | None
) -> pd.DataFrame:
    """The contributions of the latent axes to each channel, through the linear read-out."""
    odd = [(name, kind) for name, kind in zip(layout.channels, kinds, strict=True) if kind not in ADDITIVE]
    if odd or not model.decoder.affine:
        got = f"the {odd[0][1]} likelihood of '{odd[0][0]}'" if odd else "a decoder that is not linear"
        raise ValueError(
            f"components of the latent SDE need channels that are sums over its state; got {got}. Use fit.smooth() for the whole, "
            "or train with decoder='linear' and likelihood='gaussian', or structure='linear'."
        )
    check_channels(layout, series)
    asked, scaling = smoothing_times(series, times, layout.calendar), layout.scaling
    known = posterior_at(model, layout, series, asked, refine=model.refined)
    states = np.asarray(known.normal.mean, float)
    level, slope, _ = (np.asarray(x, float) for x in model.decoder.linearise(jnp.zeros(states.shape[1])))
    parts = []
    for c in range(len(layout.channels)):
        each = {f"dynamics z{i}": scaling.scale[c] * slope[c, i] * states[:, i] for i in range(states.shape[1])}
        if model.decoder.in_data_coordinates:
            each = {"dynamics": scaling.scale[c] * states[:, c]}
        trend = np.full(len(asked), scaling.scale[c] * level[c] + scaling.shift[c])
        parts.append(_with_noise({"trend": trend, **each}, series, c, asked, "identity"))
    return _table(layout, asked, parts, ["identity"] * len(parts))
