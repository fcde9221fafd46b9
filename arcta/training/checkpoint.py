"""What training leaves on its way, and what it goes on from: states as arrays, the log of rows, checkpoints.

run/  history.jsonl   checkpoint/latest.*
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import warnings
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, TypeVar

import equinox as eqx
import jax
import msgspec
import numpy as np
from jaxtyping import Array, PyTree

from .bundle import Arrays, read_bundle, remove_bundle, write_bundle
from .files import append, make_folder, make_own_folder, read_plain, write_atomically
from .loop import Best, State
from .progress import Row

HISTORY, HISTORY_BYTES = "history.jsonl", 2**30
T = TypeVar("T")


class Progressed(msgspec.Struct):
    """What the header of a checkpoint says beside whose it is."""

    step: Annotated[int, msgspec.Meta(ge=0)]
    since_best: Annotated[int, msgspec.Meta(ge=0)] = 0
    best_score: float = math.inf


def _is_key(leaf: Array) -> bool:
    return jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def to_arrays(tree: PyTree) -> dict[str, np.ndarray]:
    """The array leaves of a pytree by their paths; typed PRNG keys as their raw data."""
    leaves = jax.tree_util.tree_leaves_with_path(eqx.filter(tree, eqx.is_array))
    plain = ((path, jax.random.key_data(leaf) if _is_key(leaf) else leaf) for path, leaf in leaves)
    return {jax.tree_util.keystr(path): np.asarray(leaf, order="C") for path, leaf in plain}


def from_arrays(like: T, arrays: Arrays, *, where: str | Path) -> T:
    """`like` with its array leaves replaced by the stored ones of the same path, shape and type."""

    def stored(path: tuple[object, ...], leaf: object) -> object:
        if not isinstance(leaf, jax.Array):
            return leaf
        name = jax.tree_util.keystr(path)
        expected = jax.eval_shape(jax.random.key_data, leaf) if _is_key(leaf) else leaf
        array = arrays.get(name)
        if array is None or array.shape != expected.shape or array.dtype.kind != expected.dtype.kind:
            found = "nothing" if array is None else f"shape {array.shape} of {array.dtype}"
            raise ValueError(
                f"{where} does not fit this model: {name} needs shape {expected.shape} of {expected.dtype}, found {found}. "
                "Load it with the code and configuration it was saved with."
            )
        placed = jax.device_put(np.asarray(array, expected.dtype))
        return jax.random.wrap_key_data(placed) if _is_key(leaf) else placed

    return jax.tree_util.tree_map_with_path(stored, like)


def _line(row: Row) -> bytes:
    """A log row as a line of JSON that ends in the checksum of all before it."""
    body = json.dumps(row).removesuffix("}")
    return f'{body}, "check": "{zlib.crc32(body.encode()):08x}"}}\n'.encode()


def _row(line: bytes) -> Row | None:
    """What `_line` wrote, or an earlier version without a checksum; None if it is damaged."""
    checked = re.fullmatch(rb'(.*), "check": "([0-9a-f]{8})"}', line)
    if checked and f"{zlib.crc32(checked[1]):08x}" != checked[2].decode():
        return None
    try:
        return msgspec.convert(json.loads(checked[1] + b"}" if checked else line), Row)
    except (ValueError, RecursionError):
        return None


def write_history(folder: Path, rows: Sequence[Row]) -> None:
    make_folder(folder)
    write_atomically(folder / HISTORY, b"".join(map(_line, rows)))


def read_history(folder: Path) -> list[Row]:
    """The log rows of a run; lines that are damaged are left out, with a warning."""
    path = folder / HISTORY
    if not path.exists():
        return []
    try:
        lines = read_plain(path, HISTORY_BYTES).split(b"\n")
    except ValueError as error:
        warnings.warn(f"{error} The run was loaded without its history.", stacklevel=3)
        return []
    rows = [_row(line) for line in lines if line]
    whole = [row for row in rows if row is not None and "step" in row]
    if len(whole) < len(rows):
        warnings.warn(f"{path}: {len(rows) - len(whole)} of {len(rows)} lines are damaged and left out.", stacklevel=3)
    return whole


@dataclasses.dataclass(frozen=True)
class Recorder:
    """Writes history and checkpoints below a run's folder; finds those of the same identity again to resume."""

    folder: Path
    identity: Mapping[str, object]

    def start_anew(self) -> None:
        """An earlier training's checkpoint is not gone on from."""
        remove_bundle(self.folder / "checkpoint", "latest")

    def resume(self, state: State) -> tuple[State, Best, list[Row]]:
        where = self.folder / "checkpoint"
        header, files = read_bundle(where, "latest")
        for name, value in self.identity.items():
            if header.get(name) != value:
                raise ValueError(
                    f"the checkpoint in {self.folder} belongs to another {name}; resume with the same one, or start anew in "
                    "another folder."
                )
        told = msgspec.convert(header, Progressed)
        state, best = from_arrays(state, files.get("latest", {}), where=where), Best()
        if "best" in files:
            model = from_arrays(state.model, files["best"], where=where)
            best = Best(model, told.best_score, told.since_best)
        return state, best, [row for row in read_history(self.folder) if row["step"] <= int(state.step)]

    def row(self, row: Row) -> None:
        append(self.folder / HISTORY, _line(row))

    def checkpoint(self, state: State, best: Best) -> None:
        header: dict[str, object] = {**self.identity, "step": int(state.step), "since_best": best.since}
        files = {"latest": to_arrays(state)}
        if best.model is not None:
            header["best_score"] = best.score
            files["best"] = to_arrays(best.model)
        make_own_folder(self.folder / "checkpoint")
        write_bundle(self.folder / "checkpoint", "latest", header, files)
