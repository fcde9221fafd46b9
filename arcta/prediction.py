"""What `forecast`, `smooth` and `sample` give back: sampled paths that know their times, channels and units."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from .figures import INK, MUTED, SECOND, draw_bands, draw_points, label, new_figure
from .model import DataSummary, Draw, Model
from .nn import Identity
from .series import Calendar, Series, time_index

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclasses.dataclass(frozen=True, repr=False)
class Prediction:
    """A distribution over paths, as samples in the data's own units.

    - `observations`: samples of x with observation noise, shape `(samples, n, channels)`;
    - `signal`: the same paths without observation noise, E[x | z];
    - `states`: the latent paths z, shape `(samples, n, latent)` (in the data's units if the decoder is the identity).
    """

    name: str
    times: Float[np.ndarray, " n"]
    observations: Float[np.ndarray, "samples n channels"]
    signal: Float[np.ndarray, "samples n channels"]
    states: Float[np.ndarray, "samples n latent"]
    channels: tuple[str, ...]
    units: tuple[str, ...]
    time_unit: str
    calendar: Calendar | None
    _log_density: Callable[[np.ndarray], np.ndarray]

    def __repr__(self) -> str:
        return (
            f"Prediction('{self.name}': {len(self.times)} times from {self.times[0]:g} to {self.times[-1]:g}, "
            f"{len(self.channels)} channels, {len(self.signal)} samples)"
        )

    @property
    def mean(self) -> Float[np.ndarray, "n channels"]:
        """E[x] at each time."""
        return self.signal.mean(axis=0)

    def quantile(self, probability: float, *, noise: bool = True) -> Float[np.ndarray, "n channels"]:
        """A quantile of x at each time; with `noise=False` that of the noise-free signal."""
        if not 0 <= probability <= 1:
            raise ValueError(
                f"a quantile's probability lies in [0, 1]; got {probability}. Use 0.9 for the 90 % quantile."
            )
        return np.quantile(self.observations if noise else self.signal, probability, axis=0)

    def log_density(self, values: Float[np.ndarray, "n channels"]) -> Float[np.ndarray, "n channels"]:
        """The marginal predictive log density of observed values, entry by entry, in the data's units."""
        return self._log_density(np.asarray(values))

    def to_frame(self, quantiles: Sequence[float] = (0.05, 0.5, 0.95)) -> pd.DataFrame:
        """A table: the time as index; for each channel its mean, its standard deviation and quantiles, noise included."""
        import pandas as pd

        columns: dict[str, np.ndarray] = {}
        levels = {q: self.quantile(q) for q in quantiles}
        for i, channel in enumerate(self.channels):
            columns[f"{channel} mean"] = self.mean[:, i]
            columns[f"{channel} std"] = self.observations[..., i].std(axis=0)
            columns |= {f"{channel} q{100 * q:g}": level[:, i] for q, level in levels.items()}
        return pd.DataFrame(columns, index=time_index(self.times, self.calendar, self.time_unit))

    def to_xarray(self) -> Any:
        """An xarray Dataset: `observations`, `signal` (sample, time, channel) and `states` (sample, time, axis)."""
        try:
            import xarray as xr
        except ImportError:
            raise ValueError("to_xarray needs xarray. Install it: pip install 'arcta[xarray]'.") from None
        times = self.calendar.dates(self.times).tz_localize(None) if self.calendar else self.times
        dims = ("sample", "time", "channel")
        return xr.Dataset(
            {
                "observations": (dims, self.observations),
                "signal": (dims, self.signal),
                "states": (("sample", "time", "axis"), self.states),
            },
            coords={"time": np.asarray(times), "channel": list(self.channels)},
            attrs={"series": self.name, "time_unit": self.time_unit},
        )

    def plot(
        self,
        *,
        truth: Series | None = None,
        context: Series | None = None,
        channels: Sequence[str] | None = None,
        num_paths: int = 3,
    ) -> Figure:
        """Mean, 50 % and 90 % bands (noise included) and a few sample paths, with observations over them.

        **Arguments:** `truth`: observations to compare with; `context`: what the prediction was made from; `channels`:
        which to draw (default: the first six).
        """
        shown = list(channels or self.channels[:6])
        unknown = [name for name in shown if name not in self.channels]
        if unknown:
            raise ValueError(f"there is no channel '{unknown[0]}'; the channels are {', '.join(self.channels[:8])}.")
        figure, axes = new_figure(len(shown))
        levels = {p: self.quantile(p) for p in (0.05, 0.25, 0.75, 0.95)}
        for axis, name in zip(axes[:, 0], shown, strict=True):
            i = self.channels.index(name)
            for series, color, title in ((context, MUTED, "given"), (truth, SECOND if context else INK, "observed")):
                if series is not None:
                    seen = series.mask[:, i]
                    points = self._shown(series.times[seen])
                    draw_points(axis, points, series.values[seen, i], color=color, name=title)
            bands = [(0.9, levels[0.05][:, i], levels[0.95][:, i]), (0.5, levels[0.25][:, i], levels[0.75][:, i])]
            draw_bands(axis, self._shown(self.times), self.mean[:, i], bands, self.signal[:num_paths, :, i])
            axis.set_ylabel(label(name, self.units[i]))
        axes[0, 0].legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=8)
        axes[-1, 0].set_xlabel("" if self.calendar else label("time", self.time_unit))
        return figure

    def _shown(self, times: np.ndarray) -> Any:
        """Times as a plot shows them."""
        return self.calendar.dates(times).tz_localize(None) if self.calendar else times


@eqx.filter_jit
def _decode(model: Model, states: Array, draws: Draw, key: PRNGKeyArray) -> tuple[Array, Array, Array]:
    """Decoder outputs, their means and samples around them, for paths `(samples, n, latent)`."""

    def one(z: Array, draw: Draw, k: PRNGKeyArray) -> tuple[Array, Array, Array]:
        output = model.decode(z, draw)
        return output, model.likelihood.mean(output), model.likelihood.sample(output, draw.likelihood, key=k)

    along = jax.vmap(one, in_axes=(0, None, 0))
    keys = jax.random.split(key, states.shape[:2])
    return jax.vmap(along)(states, draws, keys)


@eqx.filter_jit
def _mixture_log_density(model: Model, outputs: Array, draws: Draw, values: Array) -> Array:
    """log (1/K) Σ_k p(x | path k), for each entry of `values` (n, channels)."""

    def one(output: Array, draw: Draw) -> Array:
        return jax.vmap(lambda x, o: model.likelihood.log_density(x, o, draw.likelihood))(values, output)

    return jax.scipy.special.logsumexp(jax.vmap(one)(outputs, draws), axis=0) - np.log(len(outputs))


def predict(
    model: Model,
    summary: DataSummary,
    name: str,
    times: Float[np.ndarray, " n"],
    states: Float[Array, "samples padded latent"],
    draws: Draw,
    *,
    key: PRNGKeyArray,
) -> Prediction:
    """Decode latent paths and bring everything back to the user's units. States beyond the last time are padding."""
    scaling, count = summary.scaling, len(times)
    outputs, *sampled = _decode(model, states, draws, key)
    signal, observations, states = (part[:, :count] for part in (*sampled, states))

    def log_density(values: np.ndarray) -> np.ndarray:
        scaled = np.zeros((outputs.shape[1], values.shape[1]))
        scaled[:count] = scaling.values(values)
        density = _mixture_log_density(model, outputs, draws, jax.numpy.asarray(scaled, outputs.dtype))
        return np.asarray(density)[:count] - np.log(scaling.scale)

    own = isinstance(model.decoder, Identity)
    return Prediction(
        name=name,
        times=np.asarray(times),
        observations=scaling.undo(np.asarray(observations)),
        signal=scaling.undo(np.asarray(signal)),
        states=scaling.undo(np.asarray(states)) if own else np.asarray(states),
        channels=summary.channels,
        units=summary.units,
        time_unit=summary.time_unit,
        calendar=summary.calendar,
        _log_density=log_density,
    )


def check_times(times: Any, calendar: Calendar | None = None) -> Float[np.ndarray, " n"]:
    """Times to predict at: finite numbers that increase; dates too, where the data has dates."""
    try:
        kind = np.asarray(times).dtype.kind if not hasattr(times, "tz") else "M"
        if calendar is not None and kind in "MOUS":
            times = calendar.numbers(times)
        array = np.array(times, dtype=np.float64).reshape(-1)
    except (TypeError, ValueError):
        wanted = "numbers or dates" if calendar else "numbers"
        raise ValueError(
            f"prediction times must be {wanted}; got {times!r}. Pass a list or an array of times."
        ) from None
    if array.size == 0 or not np.isfinite(array).all() or (np.diff(array) <= 0).any():
        raise ValueError(
            "prediction times must be finite and increase; sort them, drop repeats, and pass at least one."
        )
    return array


def check_channels(summary: DataSummary, series: Series) -> None:
    """A series to condition on must look like the training data."""
    if series.channels != summary.channels or series.input_names != summary.input_names:
        raise ValueError(
            f"the model was trained on channels {list(summary.channels)} and inputs {list(summary.input_names)}; series "
            f"'{series.name}' has {list(series.channels)} and {list(series.input_names)}. Rename, reorder or fill them in."
        )
