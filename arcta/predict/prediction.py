"""What `forecast`, `smooth` and `sample` give back: sampled paths that know their times, channels and units."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ..data.calendar import Calendar, time_index
from ..data.moments import average, deviation, power_of_two
from ..data.series import Series
from ..data.shown import small_table
from ..data.spans import is_date
from ..model.reading import DataLayout
from ..parts.generative import AbstractGenerative, Draw
from ..runtime.compile import compile_plainly
from ..runtime.host import ArrayLike
from .figures import INK, MUTED, SECOND, draw_bands, draw_points, label, new_figure

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from matplotlib.figure import Figure


QUANTILES = (0.05, 0.5, 0.95)


def _plain_times(times: np.ndarray, calendar: Calendar | None) -> np.ndarray | pd.DatetimeIndex:
    """Times as plots and xarray take them: numbers, or dates without their zone."""
    return calendar.dates(times).tz_localize(None) if calendar else times


def _about(name: str, times: np.ndarray, calendar: Calendar | None) -> str:
    """Of what, and when, in words."""
    first, last = (calendar.show(t) if calendar else f"{t:g}" for t in times[[0, -1]])
    return f"'{name}': {len(times)} times from {first} to {last}"


@dataclasses.dataclass(frozen=True, repr=False)
class Bands:
    """Mean, standard deviation and some quantiles of x over time, noise included: a prediction whose paths were not kept."""

    name: str
    times: Float[np.ndarray, " n"]
    mean: Float[np.ndarray, "n channels"]
    std: Float[np.ndarray, "n channels"]
    levels: dict[float, Float[np.ndarray, "n channels"]]
    channels: tuple[str, ...]
    units: tuple[str, ...]
    time_unit: str
    calendar: Calendar | None

    def __repr__(self) -> str:
        levels = ", ".join(f"{q:g}" for q in self.levels)
        return (
            f"Bands({_about(self.name, self.times, self.calendar)}, {len(self.channels)} channels, quantiles {levels})"
        )

    def _repr_html_(self) -> str:
        return small_table(repr(self), self.to_frame())

    def quantile(self, probability: float) -> Float[np.ndarray, "n channels"]:
        """A quantile of x at each time, one of those that were kept."""
        if probability not in self.levels:
            kept = ", ".join(f"{q:g}" for q in self.levels)
            raise ValueError(
                f"the quantiles kept are {kept}; got {probability:g}. Forecast with quantiles= that has it."
            )
        return self.levels[probability]

    def to_frame(self) -> pd.DataFrame:
        """A table: the time as index; for each channel its mean, its standard deviation and quantiles, noise included."""
        import pandas as pd

        columns: dict[str, np.ndarray] = {}
        for i, channel in enumerate(self.channels):
            columns[f"{channel} mean"] = self.mean[:, i]
            columns[f"{channel} std"] = self.std[:, i]
            columns |= {f"{channel} q{100 * q:g}": level[:, i] for q, level in self.levels.items()}
        return pd.DataFrame(columns, index=time_index(self.times, self.calendar, self.time_unit))

    def plot(
        self,
        *,
        truth: Series | None = None,
        context: Series | None = None,
        channels: Sequence[str] | None = None,
        paths: Float[np.ndarray, "paths n channels"] | None = None,
    ) -> Figure:
        """Mean and bands (noise included) between the quantiles kept, with observations, and some paths, over them.

        **Arguments:** `truth`: observations to compare with; `context`: what the prediction was made from; `channels`:
        which to draw (default: the first six); `paths`: to draw besides.
        """
        shown = list(channels or self.channels[:6])
        unknown = [name for name in shown if name not in self.channels]
        if unknown:
            raise ValueError(f"there is no channel '{unknown[0]}'; the channels are {', '.join(self.channels[:8])}.")
        figure, axes = new_figure(len(shown))
        pairs = [(p, q) for p in self.levels for q in self.levels if p < 0.5 and abs(p + q - 1) < 1e-9]
        for axis, name in zip(axes[:, 0], shown, strict=True):
            i = self.channels.index(name)
            for series, color, title in ((context, MUTED, "given"), (truth, SECOND if context else INK, "observed")):
                if series is not None:
                    seen = series.mask[:, i]
                    points = _plain_times(series.times[seen], self.calendar)
                    draw_points(axis, points, series.values[seen, i], color=color, name=title)
            bands = [(q - p, self.levels[p][:, i], self.levels[q][:, i]) for p, q in pairs]
            drawn = [] if paths is None else paths[:, :, i]
            draw_bands(axis, _plain_times(self.times, self.calendar), self.mean[:, i], bands, drawn)
            axis.set_ylabel(label(name, self.units[i]))
        axes[0, 0].legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=8)
        axes[-1, 0].set_xlabel("" if self.calendar else label("time", self.time_unit))
        return figure


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
    member: Int[np.ndarray, " samples"] | None = None

    def __repr__(self) -> str:
        about = _about(self.name, self.times, self.calendar)
        return f"Prediction({about}, {len(self.channels)} channels, {len(self.signal)} samples)"

    def _repr_html_(self) -> str:
        ends = np.unique(np.clip([0, 1, 2, -3, -2, -1], -len(self.times), len(self.times) - 1) % len(self.times))
        arrays = {name: getattr(self, name)[:, ends] for name in ("observations", "signal", "states")}
        return small_table(repr(self), dataclasses.replace(self, times=self.times[ends], **arrays).to_frame())

    @property
    def mean(self) -> Float[np.ndarray, "n channels"]:
        """E[x] at each time."""
        return average(self.signal)

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

    def spreads(self) -> tuple[Float[np.ndarray, "n channels"], Float[np.ndarray, "n channels"]]:
        """The two kinds of uncertainty of an ensemble's prediction, as standard deviations: within a member (the noise, the
        dynamics, the uncertain parameters), and between the members' means (what the data did not decide)."""
        if self.member is None:
            raise ValueError("only an ensemble has both kinds of uncertainty; train one: arcta.fit(…, ensemble=8).")
        near = self.observations - average(self.observations)
        unit = power_of_two(np.max(np.abs(near), axis=0))
        near = near / unit
        groups = [near[self.member == i] for i in np.unique(self.member)]
        within = np.mean([group.var(axis=0, ddof=1) for group in groups], axis=0)
        # Means of finite samples differ by chance too.
        chance = np.mean([group.var(axis=0, ddof=1) / len(group) for group in groups], axis=0)
        between = np.var([group.mean(axis=0) for group in groups], axis=0, ddof=1)
        return unit * np.sqrt(within), unit * np.sqrt(np.maximum(between - chance, 0))

    def bands(self, quantiles: Sequence[float] = QUANTILES) -> Bands:
        """Mean, standard deviation and quantiles, without the paths."""
        levels = {q: self.quantile(q) for q in quantiles}
        about = (self.channels, self.units, self.time_unit, self.calendar)
        return Bands(self.name, self.times, self.mean, deviation(self.observations), levels, *about)

    def to_frame(self, quantiles: Sequence[float] = QUANTILES) -> pd.DataFrame:
        """A table: the time as index; for each channel its mean, its standard deviation and quantiles, noise included."""
        return self.bands(quantiles).to_frame()

    def to_xarray(self) -> xr.Dataset:
        """An xarray Dataset: `observations`, `signal` (sample, time, channel) and `states` (sample, time, axis)."""
        try:
            import xarray as xr
        except ImportError:
            raise ValueError("to_xarray needs xarray. Install it: pip install 'arcta[xarray]'.") from None
        dims = ("sample", "time", "channel")
        return xr.Dataset(
            {
                "observations": (dims, self.observations),
                "signal": (dims, self.signal),
                "states": (("sample", "time", "axis"), self.states),
            },
            coords={"time": np.asarray(_plain_times(self.times, self.calendar)), "channel": list(self.channels)},
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
        bands = self.bands((0.05, 0.25, 0.75, 0.95))
        return bands.plot(truth=truth, context=context, channels=channels, paths=self.signal[:num_paths])


@compile_plainly
def _decode(
    model: AbstractGenerative, states: Array, draws: Draw, first: Int[Array, ""], key: PRNGKeyArray
) -> tuple[Array, Array, Array]:
    """Decoder outputs, their means and samples around them, for paths `(samples, n, latent)`; the noise of a row depends on
    (key, number of the row) alone, `first` being that of the first."""

    def noisy(output: Array, i: Array) -> Array:
        return model.likelihood.sample(output, draws.likelihood, key=jax.random.fold_in(key, i))

    outputs = jax.vmap(jax.vmap(model.decoder, in_axes=(0, None)))(states, draws.decoder)
    signal = jax.vmap(jax.vmap(model.likelihood.mean, in_axes=(0, None)))(outputs, draws.likelihood)
    rows = first + jnp.arange(states.shape[1])
    return outputs, signal, jax.vmap(noisy, in_axes=(1, 0), out_axes=1)(outputs, rows)


@compile_plainly
def _mixture_log_density(model: AbstractGenerative, outputs: Array, draws: Draw, values: Array) -> Array:
    """log (1/K) Σ_k p(x | path k), for each entry of `values` (n, channels)."""

    over_times = jax.vmap(model.likelihood.log_density, in_axes=(0, 0, None))
    densities = jax.vmap(over_times, in_axes=(None, 0, 0))(values, outputs, draws.likelihood)
    return jax.scipy.special.logsumexp(densities, axis=0) - np.log(len(outputs))


def predict(
    model: AbstractGenerative,
    layout: DataLayout,
    name: str,
    times: Float[np.ndarray, " n"],
    pieces: Iterable[Float[Array, "samples padded latent"]],
    draws: Draw,
    *,
    quantiles: Sequence[float] | None = None,
    key: PRNGKeyArray,
) -> Prediction | Bands:
    """Decode latent paths, stretch by stretch, and bring everything back to the user's units: a `Prediction`, or the `Bands`
    alone if only `quantiles` are asked for. States beyond the last time are padding."""
    scaling = layout.scaling
    about = (layout.channels, layout.units, layout.time_unit, layout.calendar)
    kept: list[tuple[np.ndarray, ...]] = []
    outputs: list[Array] = []
    first = 0
    for states in pieces:
        output, *sampled = _decode(model, states, draws, jnp.asarray(first), key)
        signal, observed = (scaling.undo(np.asarray(part)[:, : len(times) - first]) for part in sampled)
        if quantiles is None:
            outputs.append(output)
            kept.append((observed, signal, np.asarray(states)[:, : len(times) - first]))
        else:
            levels = np.quantile(observed, quantiles, axis=0)
            kept.append((average(signal)[None], deviation(observed)[None], levels))
        first += states.shape[1]
    joined = [np.concatenate(parts, axis=1) for parts in zip(*kept, strict=True)]
    if quantiles is not None:
        mean, std, levels = joined
        return Bands(name, np.asarray(times), mean[0], std[0], dict(zip(quantiles, levels, strict=True)), *about)

    def log_density(values: np.ndarray) -> np.ndarray:
        ends = np.cumsum([output.shape[1] for output in outputs])
        padded = np.pad(scaling.values(values), ((0, ends[-1] - len(times)), (0, 0)))
        found = [
            _mixture_log_density(model, output, draws, jnp.asarray(part, output.dtype))
            for output, part in zip(outputs, np.split(padded, ends[:-1]), strict=True)
        ]
        return np.concatenate(found)[: len(times)] - np.log(scaling.scale)

    observations, signal, states = joined
    states = scaling.undo(states) if model.decoder.in_data_coordinates else states
    return Prediction(name, np.asarray(times), observations, signal, states, *about, log_density)


def join(parts: Sequence[Bands]) -> Bands:
    """Bands that follow one another as one."""
    times, mean, std = (np.concatenate([getattr(part, name) for part in parts]) for name in ("times", "mean", "std"))
    levels = {q: np.concatenate([part.levels[q] for part in parts]) for q in parts[0].levels}
    return dataclasses.replace(parts[0], times=times, mean=mean, std=std, levels=levels)


def mix(parts: Sequence[Prediction]) -> Prediction:
    """The members' predictions as one: an equal mixture, samples in turns. `member` says whose each is."""
    if len(parts) == 1:
        return parts[0]
    order = np.argsort(np.concatenate([np.arange(len(part.signal)) for part in parts]), kind="stable")
    owner = np.repeat(np.arange(len(parts)), [len(part.signal) for part in parts])[order]

    def log_density(values: np.ndarray) -> np.ndarray:
        return np.logaddexp.reduce([part.log_density(values) for part in parts], axis=0) - np.log(len(parts))

    names = ("observations", "signal", "states")
    arrays = {name: np.concatenate([getattr(part, name) for part in parts])[order] for name in names}
    return dataclasses.replace(parts[0], **arrays, _log_density=log_density, member=owner)


def check_times(times: ArrayLike, calendar: Calendar | None = None) -> Float[np.ndarray, " n"]:
    """Times to predict at: finite numbers that increase; dates too, where the data has dates."""
    times = [times] if is_date(times) else times
    try:
        kind = np.asarray(times).dtype.kind if not hasattr(times, "tz") else "M"
        if calendar is not None and kind in "MOUS":
            times = calendar.numbers(times)
        array = np.array(times, dtype=np.float64).reshape(-1)
    except (TypeError, ValueError) as error:
        wanted = "numbers or dates" if calendar else "numbers"
        raise ValueError(
            f"prediction times must be {wanted}; got {str(times)[:60]} ({str(error).splitlines()[0].rstrip('.')}). "
            "Pass a list or an array of times."
        ) from None
    if array.size == 0 or not np.isfinite(array).all() or (np.diff(array) <= 0).any():
        raise ValueError(
            f"prediction times must be finite and increase; got {str(np.asarray(times))[:60]}. Sort them, drop repeats, and pass "
            "at least one."
        )
    return array


def check_channels(layout: DataLayout, series: Series) -> None:
    """A series to condition on must look like the training data."""
    if series.channels != layout.channels or series.input_names != layout.input_names:
        raise ValueError(
            f"the model was trained on channels {list(layout.channels)} and inputs {list(layout.input_names)}; series "
            f"'{series.name}' has {list(series.channels)} and {list(series.input_names)}. Rename, reorder or fill them in."
        )
