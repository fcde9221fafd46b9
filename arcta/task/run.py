"""The files a run leaves: configuration, data layout and reading as JSON, and the series it carries.

    run/  model.json   weights-….safetensors   context-….safetensors   history.jsonl   checkpoint/latest.json …

The user's own code is named in the JSON, never stored: whoever loads such a run hands the code back.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ..data.series import Series
from ..data.windows import WindowShape
from ..linear.structure import Structure, from_json
from ..model.reading import DataLayout, Reading
from ..model.spec import LatentSDE
from ..parts.prior import Known, Learned, LogNormal, Normal, Parameter, TruncatedNormal
from ..training.bundle import holds_bundle, read_bundle
from ..training.files import remove
from ..training.settings import Training
from .header import Configuration, Header, Own, StoredParameter, check_sizes, restore

CONTEXT_ENTRIES = 2_000_000  # larger training data leaves only the last windows of each series in a saved run
FIGURES = (".png", ".gif", ".svg")
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
    for name in ("noise", "diffusion_prior"):
        if isinstance(fields[name], Parameter):
            fields[name] = _named(fields[name])
    if spec.initial is not None:
        fields["initial"] = [np.asarray(part, float).tolist() for part in spec.initial]
    return fields


def _named(item: Parameter) -> dict[str, object]:
    return {"kind": type(item).__name__, "shape": list(np.shape(item.quantile(0.5)))}


def _blank(stored: StoredParameter) -> Parameter:
    """A parameter of that kind and shape, for the weights of a run to fill."""
    return _BLANK[stored.kind](np.ones(stored.shape))


def restore_spec(stored: Configuration, code: Mapping[str, object]) -> LatentSDE:
    """The configuration as it was stored, and the user's own code."""
    fields = msgspec.structs.asdict(stored)
    for name in OWN_CODE:
        if isinstance(fields[name], Own):
            if code.get(name) is None:
                raise ValueError(
                    f"this run was trained with a {name} of your own, '{fields[name].user}'; nothing in the file is "
                    f"executed, so hand it back: arcta.load(…, {name}=…)."
                )
            fields[name] = code[name]
        elif code.get(name) is not None:
            raise ValueError(f"this run uses arcta's own {name}; leave {name}= out.")
    if fields["parameters"] is not None:
        fields["parameters"] = {name: _blank(item) for name, item in fields["parameters"].items()}
    for name in ("noise", "diffusion_prior"):
        if isinstance(fields[name], StoredParameter):
            fields[name] = _blank(fields[name])
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


class Stored(NamedTuple):
    """What a run's files say, every part of it checked; `weights` by member."""

    header: Header
    layout: DataLayout
    reading: Reading
    context: list[Series]
    structure: Structure | None
    weights: list[dict[str, np.ndarray]]


def read_run(folder: Path) -> Stored:
    """The files of a run, without building its model."""
    if not holds_bundle(folder, "model"):
        raise ValueError(
            f"there is no saved run at {folder}: it holds no model.json. Pass the folder of a run, or train one: "
            f"arcta fit DATA --out {folder}"
        )
    told, files = read_bundle(folder, "model")
    try:
        return _stored(told, files)
    except ValueError as error:
        raise ValueError(
            f"{folder / 'model.json'} is not that of a run: {error}. Restore it, or train again."
        ) from None


def _stored(told: Mapping[str, object], files: Mapping[str, dict[str, np.ndarray]]) -> Stored:
    header = msgspec.convert(told, Header)
    layout, reading = restore(header)
    members = ["weights", *(f"weights-{i}" for i in range(1, header.members))][: len(files) + 1]
    missing = [name for name in ("context", *members) if name not in files]
    if missing:
        raise ValueError(f"it names no file of {missing[0]}")
    weights = [files[name] for name in members]
    check_sizes(header, reading, weights[0])
    structure = None if header.structure is None else from_json(header.structure)
    sizes = (len(layout.channels), len(layout.input_names))
    if structure is not None and (len(structure.channels), structure.input_scale.size) != sizes:
        raise ValueError("its structure is one of other data")
    return Stored(
        header, layout, reading, series_from_arrays(files["context"], header.series, layout), structure, weights
    )


def holds_run(folder: Path) -> bool:
    """Whether there is a run, or a checkpoint of one."""
    return holds_bundle(folder, "model") or holds_bundle(folder / "checkpoint", "latest")


def remove_pages(folder: Path) -> None:
    """Remove the report and the figures that a run's folder has."""
    figures = folder / "figures"
    drawn = [] if figures.is_symlink() else [path for path in figures.glob("*") if path.suffix in FIGURES]
    for path in (folder / "report.html", *drawn):
        remove(path)


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
    return [_series(_parts(arrays, i, layout), name, layout) for i, name in enumerate(names)]


def _parts(arrays: Mapping[str, np.ndarray], i: int, layout: DataLayout) -> dict[str, np.ndarray]:
    """The arrays of a series, of the shapes and types that they were written with."""
    parts = {name: arrays.get(f"{i}/{name}", np.zeros(())) for name in ("times", "values", "mask", "inputs")}
    rows, columns = parts["times"].size, {"values": len(layout.channels), "inputs": len(layout.input_names)}
    shapes = {"times": (rows,), "mask": (rows, columns["values"])} | {k: (rows, n) for k, n in columns.items()}
    for name, part in parts.items():
        kind = "b" if name == "mask" else "f"
        if part.shape != shapes[name] or part.dtype.kind != kind:
            raise ValueError(f"its series {i} needs {name} of shape {shapes[name]}, found {part.dtype} of {part.shape}")
    return parts


def _series(parts: Mapping[str, np.ndarray], name: str, layout: DataLayout) -> Series:
    return Series(
        parts["times"],
        parts["values"].reshape(-1, *layout.frame_shape) if layout.frame_shape else parts["values"],
        mask=parts["mask"],
        channels=layout.channels,
        units=layout.units,
        inputs=parts["inputs"] if layout.input_names else None,
        input_names=layout.input_names or None,
        name=name,
        time_unit=layout.time_unit,
        calendar=layout.calendar,
    )
