"""Files that survive: JSON + raw arrays (safetensors), checksummed, replaced atomically, the previous pair kept; of them a run's
history and checkpoints are made.

A *bundle* is `NAME.json` (the header) beside array files whose sha256 the header holds. Saving writes everything new
under temporary names and renames arrays first, header last, so at every instant one header on disk matches the arrays
beside it; loading takes the newest pair that matches and says so when it is the previous one. Nothing is ever executed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import equinox as eqx
import jax
import numpy as np
import safetensors
from jaxtyping import Array, PyTree
from safetensors.numpy import load as parse_safetensors
from safetensors.numpy import save as to_safetensors

from .loop import Best, State
from .progress import Row

VERSION = 2
Arrays = Mapping[str, np.ndarray]
T = TypeVar("T")


def _previous(path: Path) -> Path:
    return path.with_name(f"{path.stem}.previous{path.suffix}")


def _is_key(leaf: Array) -> bool:
    return jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def write_atomically(path: Path, content: bytes) -> None:
    """Put `content` at `path` so that a crash leaves the old file or the new one; the old one stays as `*.previous.*`."""
    temporary = path.with_name(f".{path.name}.new")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    if path.exists():
        path.replace(_previous(path))
    temporary.replace(path)
    if os.name == "posix":
        folder = os.open(path.parent, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)


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
        if name not in arrays or arrays[name].shape != expected.shape:
            found = f"shape {arrays[name].shape}" if name in arrays else "nothing"
            raise ValueError(
                f"{where} does not fit this model: {name} needs shape {expected.shape}, found {found}. "
                "Load it with the code and configuration it was saved with."
            )
        array = jax.device_put(np.asarray(arrays[name], expected.dtype))
        return jax.random.wrap_key_data(array) if _is_key(leaf) else array

    return jax.tree_util.tree_map_with_path(stored, like)


def write_bundle(folder: Path, name: str, header: Mapping[str, object], files: Mapping[str, Arrays]) -> None:
    """Save `header` as `NAME.json` and each of `files` as `FILE.safetensors`."""
    folder.mkdir(parents=True, exist_ok=True)
    checksums = {}
    for stem, arrays in files.items():
        content = to_safetensors(dict(arrays))
        checksums[f"{stem}.safetensors"] = hashlib.sha256(content).hexdigest()
        write_atomically(folder / f"{stem}.safetensors", content)
    whole = {"format": "arcta", "version": VERSION, **header, "sha256": checksums}
    write_atomically(folder / f"{name}.json", json.dumps(whole, indent=1, ensure_ascii=False).encode())


def _read_header(path: Path) -> dict[str, Any]:
    try:
        header = json.loads(path.read_bytes())
    except (UnicodeDecodeError, json.JSONDecodeError):
        raise ValueError(f"{path} is damaged: it is not whole JSON. Restore it, or train again.") from None
    if not isinstance(header, dict) or header.get("format") != "arcta":
        raise ValueError(f"{path} was not written by arcta. Pass the folder that fit.save wrote.")
    if header.get("version") != VERSION:
        raise ValueError(
            f"{path} has format version {header.get('version')}; this arcta reads version {VERSION}. "
            "Train again with this arcta, or load it with the one that wrote it."
        )
    return header


def _read_arrays(folder: Path, filename: str, checksum: str) -> dict[str, np.ndarray]:
    for path in (folder / filename, _previous(folder / filename)):
        if path.is_file():
            content = path.read_bytes()
            if hashlib.sha256(content).hexdigest() == checksum:
                try:
                    return parse_safetensors(content)
                except safetensors.SafetensorError as error:
                    raise ValueError(f"{path} is not a safetensors file ({error}). Restore it.") from None
    raise ValueError(
        f"{folder / filename} is missing or damaged (its checksum is not the one in the header). "
        "Restore it, or train again."
    )


def read_bundle(folder: Path, name: str) -> tuple[dict[str, Any], dict[str, dict[str, np.ndarray]]]:
    """The header and the arrays of the newest whole bundle; falls back to the previous one with a warning."""
    newest = folder / f"{name}.json"
    candidates = [path for path in (newest, _previous(newest)) if path.is_file()]
    if not candidates:
        raise ValueError(f"{folder} holds no {name}.json. Pass the folder of a saved run.")
    failures: list[ValueError] = []
    for path in candidates:
        try:
            header = _read_header(path)
            files = {
                filename.removesuffix(".safetensors"): _read_arrays(folder, filename, checksum)
                for filename, checksum in header.get("sha256", {}).items()
            }
        except ValueError as error:
            failures.append(error)
            continue
        if failures:
            warnings.warn(f"{failures[0]} The previous save was loaded instead.", stacklevel=3)
        return header, files
    raise failures[0]


def write_history(folder: Path, rows: Sequence[Row]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "history.jsonl").open("w") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def read_history(folder: Path) -> list[Row]:
    path = folder / "history.jsonl"
    rows = []
    for line in path.read_text().splitlines() if path.is_file() else []:
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:  # a kill in the middle of a line; the rows before it are whole
            break
    return rows


@dataclasses.dataclass(frozen=True)
class Recorder:
    """Writes history and checkpoints below a run's folder; finds those of the same identity again to resume."""

    folder: Path
    identity: Mapping[str, object]

    def resume(self, state: State) -> tuple[State, Best, list[Row]]:
        where = self.folder / "checkpoint"
        header, files = read_bundle(where, "latest")
        for name, value in self.identity.items():
            if header.get(name) != value:
                raise ValueError(
                    f"the checkpoint in {self.folder} belongs to another {name}; resume with the same one, or start anew in "
                    "another folder."
                )
        state, best = from_arrays(state, files["latest"], where=where), Best()
        if "best" in files:
            model = from_arrays(state.model, files["best"], where=where)
            best = Best(model, header["best_score"], header["since_best"])
        return state, best, [row for row in read_history(self.folder) if row["step"] <= int(state.step)]

    def row(self, row: Row) -> None:
        with (self.folder / "history.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")

    def checkpoint(self, state: State, best: Best) -> None:
        header: dict[str, object] = {**self.identity, "step": int(state.step), "since_best": best.since}
        files = {"latest": to_arrays(state)}
        if best.model is not None:
            header["best_score"] = best.score
            files["best"] = to_arrays(best.model)
        write_bundle(self.folder / "checkpoint", "latest", header, files)
