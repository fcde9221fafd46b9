"""What may stand in the header of a run, as types with ranges: whatever else stands there is refused before anything is built."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import numpy as np
from msgspec import Meta

from ..data.calendar import MONTHS, SECONDS
from ..model.reading import DataLayout, Reading
from ..parts.likelihoods import LIKELIHOODS
from ..training.settings import Training

T = TypeVar("T", DataLayout, Reading)
LARGEST = 10**7  # of anything that is counted, and of an array that a model may have beside those in the file
Count = Annotated[int, Meta(ge=0, le=LARGEST)]
Size = Annotated[int, Meta(ge=1, le=10**6)]
Sizes = Annotated[tuple[Size, ...], Meta(max_length=64)]
Numbers = float | tuple[float, ...]


class Own(msgspec.Struct, forbid_unknown_fields=True):
    """The user's own code, by name."""

    user: str


class StoredParameter(msgspec.Struct, forbid_unknown_fields=True):
    """What kind of posterior a parameter has; its numbers are among the weights."""

    kind: Literal["LogNormal", "Normal", "TruncatedNormal", "Known", "Learned"]
    shape: Annotated[tuple[Count, ...], Meta(max_length=8)]


class Configuration(msgspec.Struct, forbid_unknown_fields=True):
    """A `LatentSDE` as `describe` writes it; the fields with defaults came later than the others."""

    latent_size: Size | None
    decoder: str | Own | None
    likelihood: str | dict[str, str]
    noise: str | float | StoredParameter
    initial: tuple[Numbers, Numbers] | None
    encoder: str | Own | None
    lookahead: Count
    drift: str | Own | None
    parameters: dict[str, StoredParameter] | None
    time_dependent: bool
    diffusion: str
    diffusion_start: float | None
    partition_size: Size | None
    rotation: bool
    lookahead_dropout: float
    encoder_sizes: Sizes
    decoder_sizes: Sizes
    drift_sizes: Sizes
    kernel_sizes: Sizes
    activation: str
    lengthscale: float | None
    interpolation_noise: float | None
    diffusion_prior: tuple[float, float] | StoredParameter | None = None
    posterior: str = "amortised"  # all there was before it had a choice
    structure: str = "auto"
    season: str | float | tuple[float, ...] | None = "auto"


class Header(msgspec.Struct):
    """All that `Fit.save` writes; the layout and the reading are checked by `restore`."""

    configuration: Configuration
    data: dict[str, Any]
    reading: dict[str, Any]
    training: Training
    series: tuple[str, ...]
    stopped: str
    seconds: Annotated[float, Meta(ge=0)]
    compile_seconds: Annotated[float, Meta(ge=0)]
    cuts: dict[str, float]
    about: dict[str, Any]
    members: Size = 1
    structure: dict[str, Any] | None = None
    by_structure: bool = False
    smooth_by_structure: bool = False
    history: tuple[dict[str, int | float | None], ...] | None = None


def restore(header: Header) -> tuple[DataLayout, Reading]:
    """The layout and the reading, whose numbers agree with one another."""
    layout, reading = _convert(header.data, DataLayout), _convert(header.reading, Reading)
    _check("data", _faults_of_layout(layout))
    _check("reading", _faults_of_reading(reading, len(layout.channels)))
    return layout, reading


def _convert(told: Mapping[str, Any], kind: type[T]) -> T:
    missing = [name for name in kind._fields if name not in told]
    if missing:
        raise ValueError(f"it lacks {missing[0]}")
    values = [told[name] for name in kind._fields]
    return msgspec.convert(values, kind, dec_hook=lambda _, numbers: np.array(numbers, float))


def _check(part: str, found: Mapping[str, bool]) -> None:
    """Refuse a part of the header for the first thing that is not as it must be."""
    wrong = [name for name, right in found.items() if not right]
    if wrong:
        raise ValueError(f"its {part} has a {wrong[0]} that cannot be")


def _faults_of_layout(layout: DataLayout) -> dict[str, bool]:
    scaling, count, inputs = layout.scaling, len(layout.channels), len(layout.input_names)
    frame, calendar = layout.frame_shape, layout.calendar
    return {
        "number of channels": 1 <= count == len(set(layout.channels)),
        "list of units": len(layout.units) == count,
        "list of inputs": len(set(layout.input_names)) == inputs,
        "scaling of values": all(np.shape(x) == (count,) for x in (scaling.shift, scaling.scale)),
        "scaling of inputs": all(np.shape(x) == (inputs,) for x in (scaling.input_shift, scaling.input_scale)),
        "scale": bool(np.all(scaling.scale > 0) and np.all(scaling.input_scale > 0)) and scaling.time_scale > 0,
        "shape of frames": frame is None or (len(frame) in (2, 3) and min(frame) > 0 and math.prod(frame) == count),
        "partition size": 1 <= layout.partition_size <= LARGEST,
        "typical step": layout.typical_step > 0,
        "calendar": calendar is None or (calendar.unit in {**SECONDS, **MONTHS} and _is_date(calendar.origin)),
    }


def _is_date(text: str) -> bool:
    try:
        return not np.isnat(np.datetime64(text))
    except ValueError:
        return False


def _faults_of_reading(reading: Reading, count: int) -> dict[str, bool]:
    return {
        "list of likelihoods": len(reading.kinds) == count and set(reading.kinds) <= set(LIKELIHOODS),
        "latent size": 1 <= reading.latent_size <= 10**6,
        "number of slopes": 0 <= reading.slope_axes <= reading.latent_size,
        "bandwidth": reading.bandwidth > 0,
        "margin": 0 <= reading.margin <= LARGEST,
        "list of noises": len(reading.noise) == count and min(reading.noise) > 0,
        "list of means": len(reading.means) == count,
        "span": reading.span >= 0,
    }


def check_sizes(header: Header, reading: Reading, arrays: Mapping[str, np.ndarray]) -> None:
    """Refuse a model with larger arrays than the file of its weights holds, before they are made."""
    told, size = header.configuration, reading.latent_size
    layers = (told.encoder_sizes, told.decoder_sizes, told.drift_sizes, told.kernel_sizes)
    largest = [size * size, *(a * b for sizes in layers for a, b in zip((size, *sizes), sizes, strict=False))]
    largest.append((told.lookahead + 1) * len(reading.kinds) * max(told.encoder_sizes, default=1))
    largest += [math.prod(item.shape) for item in (told.parameters or {}).values()]
    if told.drift == "neural" and told.posterior in ("auto", "smoother"):  # its coefficients have a full covariance
        largest.append(((told.drift_sizes or (1,))[-1] * size) ** 2)
    there = max((array.size for array in arrays.values()), default=0)
    if max(largest) > max(there, LARGEST):
        raise ValueError(f"it speaks of an array of {max(largest):.3g} numbers; the largest in the file has {there}")
