"""The files a run leaves: configuration and data summary as JSON, the series it carries, its history and checkpoints.

    run/  model.json   weights.safetensors   context.safetensors   history.jsonl   checkpoint/latest.*

The user's own code is named in the JSON, never stored: whoever loads such a run hands the code back.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from .checkpoint import from_arrays, read_bundle, to_arrays, write_bundle
from .model import DataSummary, LatentSDE
from .prior import Known, Learned, LogNormal, Normal
from .scaling import Scaling
from .series import Calendar, Series
from .train import Best, Row, State, Training

CONTEXT_ENTRIES = 2_000_000  # larger training data leaves only the last windows of each series in a saved run
_PARAMETER_KINDS: dict[str, Callable[..., Any]] = {kind.__name__: kind for kind in (LogNormal, Normal, Known, Learned)}


def _describe(spec: LatentSDE) -> dict[str, Any]:
    """The configuration as JSON; the user's own code is named, not stored."""
    fields = {field.name: getattr(spec, field.name) for field in dataclasses.fields(spec)}
    for name in ("drift", "decoder", "encoder"):
        value = fields[name]
        if value is not None and not isinstance(value, str):
            fields[name] = {"user": getattr(value, "__name__", type(value).__name__)}
    if spec.parameters is not None:
        fields["parameters"] = {
            name: {"kind": type(item).__name__, "shape": list(np.shape(item.quantile(0.5)))}
            for name, item in spec.parameters.items()
        }
    return json.loads(json.dumps(fields))


def restore_spec(stored: Mapping[str, Any], code: Mapping[str, Any]) -> LatentSDE:
    fields: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in stored.items()
    }
    for name in ("drift", "decoder", "encoder"):
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
        fields["parameters"] = {
            name: _blank_parameter(item["kind"], tuple(item["shape"])) for name, item in fields["parameters"].items()
        }
    return LatentSDE(**fields)


def _blank_parameter(kind: str, shape: tuple[int, ...]) -> Any:
    ones, make = np.ones(shape), _PARAMETER_KINDS[kind]
    return make(ones, ones) if kind in ("LogNormal", "Normal") else make(ones)


def _summary_to_json(summary: DataSummary) -> dict[str, Any]:
    scaling = {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in vars(summary.scaling).items()}
    calendar = None if summary.calendar is None else dataclasses.asdict(summary.calendar)
    return {**summary._asdict(), "scaling": scaling, "calendar": calendar}


def summary_from_json(stored: Mapping[str, Any]) -> DataSummary:
    scaling: dict[str, Any] = {
        k: np.array(v, float) if isinstance(v, list) else v for k, v in stored["scaling"].items()
    }
    fields = {k: tuple(v) if isinstance(v, list) else v for k, v in stored.items()}
    calendar = None if stored["calendar"] is None else Calendar(**stored["calendar"])
    return DataSummary(**{**fields, "scaling": Scaling(**scaling), "calendar": calendar})


def carried(data: list[Series], summary: DataSummary, lookahead: int) -> list[Series]:
    if sum(item.values.size for item in data) <= CONTEXT_ENTRIES:
        return data
    rows = summary.partition_size + 1 + lookahead
    return [item.at_rows(slice(np.flatnonzero(item.mask.any(axis=1))[-rows:][0], None)) for item in data]


def series_to_arrays(data: list[Series]) -> dict[str, np.ndarray]:
    return {
        f"{i}/{name}": np.ascontiguousarray(getattr(item, name))
        for i, item in enumerate(data)
        for name in ("times", "values", "mask", "inputs")
    }


def series_from_arrays(arrays: Mapping[str, np.ndarray], names: Sequence[str], summary: DataSummary) -> list[Series]:
    return [
        Series(
            arrays[f"{i}/times"],
            arrays[f"{i}/values"].reshape(-1, *summary.frame_shape) if summary.frame_shape else arrays[f"{i}/values"],
            mask=arrays[f"{i}/mask"],
            channels=summary.channels,
            units=summary.units,
            inputs=arrays[f"{i}/inputs"] if summary.input_names else None,
            input_names=summary.input_names or None,
            name=name,
            time_unit=summary.time_unit,
            calendar=summary.calendar,
        )
        for i, name in enumerate(names)
    ]


def identity(spec: LatentSDE, summary: DataSummary, training: Training) -> dict[str, Any]:
    return {
        "configuration": _describe(spec),
        "data": json.loads(json.dumps(_summary_to_json(summary))),
        "training": msgspec.to_builtins(training),
    }


def write_history(folder: Path, rows: Sequence[Row]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "history.jsonl").open("w") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def read_history(folder: Path, until: int | None = None) -> list[Row]:
    path = folder / "history.jsonl"
    rows = []
    for line in path.read_text().splitlines() if path.is_file() else []:
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:  # a kill in the middle of a line; the rows before it are whole
            break
    return [row for row in rows if until is None or row["step"] <= until]


class Recorder:
    """Writes history and checkpoints below a run's folder, or nothing without one; finds them again to resume."""

    def __init__(self, out: str | Path | None, identity: dict[str, Any]):
        self.folder = None if out is None else Path(out)
        self.identity = identity

    def resume(self, state: State) -> tuple[State, Best, list[Row]]:
        if self.folder is None:
            raise ValueError("resume=True needs out=, the folder of the run to continue. Pass out='run/'.")
        header, files = read_bundle(self.folder / "checkpoint", "latest")
        for name, value in self.identity.items():
            if header.get(name) != value:
                raise ValueError(
                    f"the checkpoint in {self.folder} belongs to another {name}; resume with the same one, or start anew in "
                    "another folder."
                )
        where = str(self.folder / "checkpoint")
        state = from_arrays(state, files["latest"], where=where)
        best = Best()
        if "best" in files:
            best = Best(
                from_arrays(state.model, files["best"], where=where), header["best_score"], header["since_best"]
            )
        return state, best, read_history(self.folder, int(state.step))

    def begin(self, rows: Sequence[Row]) -> None:
        if self.folder is not None:
            write_history(self.folder, rows)

    def row(self, row: Row) -> None:
        if self.folder is not None:
            with (self.folder / "history.jsonl").open("a") as file:
                file.write(json.dumps(row) + "\n")

    def checkpoint(self, state: State, best: Best) -> None:
        if self.folder is None:
            return
        header = {**self.identity, "step": int(state.step), "since_best": best.since}
        files = {"latest": to_arrays(state)}
        if best.model is not None:
            header["best_score"] = best.score
            files["best"] = to_arrays(best.model)
        write_bundle(self.folder / "checkpoint", "latest", header, files)
