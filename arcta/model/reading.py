"""What the data says before there is a model: what building one needs (`Reading`), and what using it needs (`DataLayout`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..data.calendar import Calendar
from ..data.moments import kind_of, moments
from ..data.scaling import Scaling, noise_level
from ..data.series import Series, as_list, check_training_data
from ..data.windows import WindowShape, clip_partition_size
from ..parts.generative import AbstractGenerative
from ..parts.likelihoods import LIKELIHOODS, ChannelLikelihood
from .spec import LatentSDE
from .survey import latent_order, nugget, smoothing_bandwidth


class DataLayout(NamedTuple):
    """What using a model needs to know of the data it was trained on; saved with it."""

    channels: tuple[str, ...]
    units: tuple[str, ...]
    input_names: tuple[str, ...]
    time_unit: str
    calendar: Calendar | None
    frame_shape: tuple[int, ...] | None
    scaling: Scaling
    partition_size: int
    typical_step: float

    @property
    def step(self) -> float:
        """The typical step between observations, in the data's unit of time, without the rounding of the model's units."""
        return float(f"{self.typical_step * self.scaling.time_scale:.12g}")

    def window_shape(self, model: AbstractGenerative) -> WindowShape:
        """The windows that a model needs."""
        return WindowShape(self.partition_size, *model.reach)


class Reading(NamedTuple):
    """What building a model needs to know of the training data, in the model's units; saved with it."""

    kinds: tuple[str, ...]
    latent_size: int
    slope_axes: int
    smooth: bool
    bandwidth: float
    margin: int
    noise: tuple[float, ...]
    means: tuple[float, ...]
    span: float
    whole_rows: bool

    def likelihoods(self) -> list[tuple[type[ChannelLikelihood], np.ndarray]]:
        """Each kind of likelihood there is, and the columns of its channels."""
        kinds = np.array(self.kinds)
        return [(LIKELIHOODS[kind], np.flatnonzero(kinds == kind)) for kind in dict.fromkeys(self.kinds)]


def _kinds(spec: LatentSDE, data: Sequence[Series]) -> tuple[str, ...]:
    """The likelihood of each channel; `"auto"` takes counts for Poisson, or negative binomial if they scatter more, zeros and ones
    for Bernoulli, the rest for Gaussian."""
    channels = data[0].channels
    chosen = dict.fromkeys(channels, spec.likelihood) if isinstance(spec.likelihood, str) else dict(spec.likelihood)
    unknown = [name for name in chosen if name not in channels]
    if unknown:
        raise ValueError(
            f"likelihood names channel '{unknown[0]}', which the data does not have; its channels are "
            f"{', '.join(channels[:8])}. Use one of those names."
        )
    found = {"binary": "bernoulli", "counts": "poisson", "scattered counts": "negative-binomial", "real": "gaussian"}
    if data[0].frame_shape and spec.likelihood == "auto":  # pixels are all of one kind
        kind = kind_of([item.values.ravel() for item in data], [item.mask.ravel() for item in data])
        return ("bernoulli" if kind == "binary" else "gaussian",) * len(channels)

    def kind_at(column: int) -> str:
        wanted = chosen.get(channels[column], "gaussian")
        if wanted != "auto":
            return wanted
        return found[kind_of([item.values[:, column] for item in data], [item.mask[:, column] for item in data])]

    return tuple(kind_at(column) for column in range(len(channels)))


def _check_fits(kinds: Sequence[str], data: Sequence[Series]) -> None:
    """Refuse data that a channel's likelihood gives no density to."""
    for column, kind in enumerate(kinds):
        for series in data:
            fits = LIKELIHOODS[kind].accepts(series.values[:, column])
            bad = np.flatnonzero(series.mask[:, column] & ~fits)
            if bad.size:
                raise ValueError(
                    f"the {kind} likelihood needs values that are {LIKELIHOODS[kind].needs}; row {bad[0]}, channel "
                    f"'{series.channels[column]}' of series '{series.name}' is {series.values[bad[0], column]:g}. "
                    f"Use likelihood={{'{series.channels[column]}': 'gaussian'}}, or fix the data."
                )


def _as_seen(kinds: Sequence[str], series: Series) -> Series:
    """A series with its values as an encoder sees them."""
    views = {kind: LIKELIHOODS[kind].view_of(series.values) for kind in dict.fromkeys(kinds)}
    if all(view is series.values for view in views.values()):
        return series
    values = np.stack([views[kind][:, i] for i, kind in enumerate(kinds)], axis=1)
    values = np.where(series.mask, values, np.nan)
    return series.replace(values=values.reshape(len(series), *(series.frame_shape or (-1,))))


def _latent_size(spec: LatentSDE, num_channels: int, found: int) -> int:
    if spec.decoder != "identity":
        return spec.latent_size or found
    if spec.latent_size not in (None, num_channels):
        raise ValueError(
            f"the identity decoder needs latent_size equal to the number of channels ({num_channels}); got "
            f"{spec.latent_size}. Leave latent_size out, or use decoder='mlp'."
        )
    return num_channels


def encoder_kind(spec: LatentSDE, frame_shape: tuple[int, ...] | None) -> str:
    """The name of the encoder: the one asked for, or the default; `"own"` for one of the user's."""
    if not isinstance(spec.encoder, str | None):
        return "own"
    return spec.encoder or ("window" if frame_shape else "local")


def has_whole_rows(series: Sequence[Series]) -> bool:
    """Whether no row lacks single channels."""
    return all(bool(np.all(item.mask.all(axis=1) == item.mask.any(axis=1))) for item in series)


def read_data(spec: LatentSDE, data: Series | Sequence[Series]) -> tuple[DataLayout, Reading]:
    """Check the data against the configuration and read off what the model's defaults depend on."""
    series = as_list(data)
    check_training_data(series)
    first = series[0]
    kinds = _kinds(spec, series)
    _check_fits(kinds, series)
    seen = [_as_seen(kinds, item) for item in series]
    scaling = Scaling.fit(seen, np.array([LIKELIHOODS[kind].standardised for kind in kinds]))
    steps = np.concatenate([np.diff(item.times[item.mask.any(axis=1)]) for item in series])
    typical_step = float(np.median(steps)) / scaling.time_scale
    wide = encoder_kind(spec, first.frame_shape) in ("local", "gru", "transformer")
    bandwidth, noise = typical_step, noise_level(seen, scaling.scale)
    latent_size, smooth, slopes = min(max(len(first.channels), 2), 8), True, 0
    if wide:
        bandwidth, misfit = smoothing_bandwidth(seen, scaling)
        order = latent_order(seen, scaling, bandwidth, misfit)
        noise = misfit if order.smooth else np.clip(nugget(seen, scaling.scale), 0.3 * misfit, misfit)
        latent_size, smooth, slopes = order.latent_size, order.smooth, order.slopes
    means = moments(*(np.concatenate([getattr(item, name) for item in seen]) for name in ("values", "mask"))).mean
    layout = DataLayout(
        channels=first.channels,
        units=first.units,
        input_names=first.input_names,
        time_unit=first.time_unit,
        calendar=first.calendar,
        frame_shape=first.frame_shape,
        scaling=scaling,
        partition_size=clip_partition_size(spec.partition_size, series),
        typical_step=typical_step,
    )
    return layout, Reading(
        kinds=kinds,
        latent_size=_latent_size(spec, len(first.channels), latent_size),
        slope_axes=slopes,
        smooth=smooth,
        bandwidth=bandwidth,
        margin=int(np.clip(np.ceil(8 * bandwidth / typical_step), 4, 32)) if wide else 0,
        noise=tuple(np.clip(noise, 1e-3, 1.0).tolist()),
        means=tuple(scaling.values(means).tolist()),
        span=float(max(item.times[-1] - scaling.origin for item in series) / scaling.time_scale),
        whole_rows=has_whole_rows(series),
    )
