"""The files a run leaves: configuration, data layout and reading as JSON, and the series it carries.

    run/  model.json   weights.safetensors   context.safetensors   history.jsonl   checkpoint/latest.*

The user's own code is named in the JSON, never stored: whoever loads such a run hands the code back.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np

from ..data.series import Series
from ..data.windows import WindowShape
from ..model.reading import DataLayout, Reading
from ..model.spec import LatentSDE
from ..parts.prior import Known, Learned, LogNormal, Normal, Parameter, TruncatedNormal
from ..training.settings import Training

T = TypeVar("T", DataLayout, Reading)
CONTEXT_ENTRIES = 2_000_000  # larger training data leaves only the last windows of each series in a saved run
OWN_CODE = ("drift", "decoder", "encoder")
_BLANK: dict[str, Callable[[np.ndarray], Parameter]] = {
    "LogNormal": lambda ones: LogNormal(ones, ones),
    "Normal": lambda ones: Normal(ones, ones),
    "TruncatedNormal": lambda ones: TruncatedNormal(ones, ones),
    "Known": Known,
    "Learned": Learned,
}


def describe(spec: LatentSDE) -> dict[str, object]:
    """The configuration as JSON; the user's own code is named, not stored."""
    fields = {field.name: getattr(spec, field.name) for field in dataclasses.fields(spec)}
    for name in OWN_CODE:
        value = fields[name]
        if value is not None and not isinstance(value, str):
            fields[name] = {"user": getattr(value, "__name__", type(value).__name__)}
    if spec.parameters is not None:
        fields["parameters"] = {name: _named(item) for name, item in spec.parameters.items()}
    if isinstance(spec.noise, Parameter):
        fields["noise"] = _named(spec.noise)
    if spec.initial is not None:
        fields["initial"] = [np.asarray(part, float).tolist() for part in spec.initial]
    return fields


def _named(item: Parameter) -> dict[str, object]:
    return {"kind": type(item).__name__, "shape": list(np.shape(item.quantile(0.5)))}


def _blank(stored: Mapping[str, Any]) -> Parameter:
    """A parameter of that kind and shape, for the weights of a run to fill."""
    return _BLANK[stored["kind"]](np.ones(tuple(stored["shape"])))


def restore_spec(stored: Mapping[str, Any], code: Mapping[str, object]) -> LatentSDE:
    """The configuration from JSON and the user's own code."""
    fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in stored.items()}
    fields.setdefault("posterior", "amortised")  # all there was before it had a choice
    for name in OWN_CODE:
        if isinstance(fields[name], dict):
            if code.get(name) is None:
                raise ValueError(
                    f"this run was trained with a {name} of your own, '{fields[name]['user']}'; nothing in the file is "
                    f"executed, so hand it back: arcta.load(…, {name}=…)."
                )
            fields[name] = code[name]
        elif code.get(name) is not None:
            raise ValueError(f"this run uses arcta's own {name}; leave {name}= out.")
    if fields["parameters"] is not None:
        fields["parameters"] = {name: _blank(item) for name, item in fields["parameters"].items()}
    if isinstance(fields["noise"], dict):
        fields["noise"] = _blank(fields["noise"])
    return LatentSDE(**fields)


def identity(spec: LatentSDE, layout: DataLayout, reading: Reading, training: Training) -> dict[str, Any]:
    """What makes a run this run and no other, as JSON."""
    told = {
        "configuration": describe(spec),
        "data": layout._asdict(),
        "reading": reading._asdict(),
        "training": training,
    }
    return json.loads(json.dumps(msgspec.to_builtins(told, enc_hook=lambda numbers: numbers.tolist())))


def restore(kind: type[T], stored: Mapping[str, object]) -> T:
    """What `identity` wrote of the layout, or of the reading."""
    fields = [stored[name] for name in kind._fields]
    return msgspec.convert(fields, kind, dec_hook=lambda _, numbers: np.array(numbers, float))


def carried(data: list[Series], shape: WindowShape) -> list[Series]:
    """The series that a saved run takes along: all of them, or the ends of large ones."""
    if sum(item.values.size for item in data) <= CONTEXT_ENTRIES:
        return data
    return [item.at_rows(slice(np.flatnonzero(item.mask.any(axis=1))[-tail_rows(shape) :][0], None)) for item in data]


def tail_rows(shape: WindowShape) -> int:
    """How many observed rows a forecast may look at."""
    return shape.size + 1 + shape.lookahead + shape.margin


def series_to_arrays(data: list[Series]) -> dict[str, np.ndarray]:
    return {
        f"{i}/{name}": np.ascontiguousarray(getattr(item, name))
        for i, item in enumerate(data)
        for name in ("times", "values", "mask", "inputs")
    }


def series_from_arrays(arrays: Mapping[str, np.ndarray], names: Sequence[str], layout: DataLayout) -> list[Series]:
    return [
        Series(
            arrays[f"{i}/times"],
            arrays[f"{i}/values"].reshape(-1, *layout.frame_shape) if layout.frame_shape else arrays[f"{i}/values"],
            mask=arrays[f"{i}/mask"],
            channels=layout.channels,
            units=layout.units,
            inputs=arrays[f"{i}/inputs"] if layout.input_names else None,
            input_names=layout.input_names or None,
            name=name,
            time_unit=layout.time_unit,
            calendar=layout.calendar,
        )
        for i, name in enumerate(names)
    ]
