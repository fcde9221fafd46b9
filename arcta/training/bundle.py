"""A store of arrays in which the newest whole save is always found: a header in JSON beside arrays named by their content.

    NAME.json              what the arrays mean, the sha256 of each file of them, and last its own
    NAME.previous.json     the header of the save before
    STEM-HASH.safetensors  arrays, under the first 32 digits of their sha256

Saving writes the arrays under names that no header knows yet, then the header in one rename, and only then removes what no header
names any more: at every instant both headers match arrays that are there. Loading takes the newest save that is whole and says so
when it is the previous one. Nothing is ever executed.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import safetensors
from safetensors.numpy import load as parse_safetensors
from safetensors.numpy import save as to_safetensors

from .files import clean, make_folder, put, read_plain, remove, sync_folder

VERSION = 3
HEADER_BYTES, ARRAY_BYTES = 2**28, 2**40
STEM = r"[a-z0-9][a-z0-9-]{0,63}"
Stem = Annotated[str, msgspec.Meta(pattern=rf"^{STEM}\Z")]
SEAL = re.compile(rb',\n "checksum": "([0-9a-f]{64})"\n}\n')
SEAL_BYTES = 84
ATTEMPTS = 5  # at reading a save while another is being written
CURE = "Restore it, or train again."

Arrays = Mapping[str, np.ndarray]
Header = dict[str, Any]
Saved = tuple[Header, dict[str, dict[str, np.ndarray]]]


def _newest(folder: Path, name: str) -> Path:
    return folder / f"{name}.json"


def _previous(folder: Path, name: str) -> Path:
    return folder / f"{name}.previous.json"


def _filename(stem: str, checksum: str) -> str:
    return f"{stem}-{checksum[:32]}.safetensors"


def holds_bundle(folder: Path, name: str) -> bool:
    """Whether there is a save of that name, whole or not."""
    return any(path.exists() or path.is_symlink() for path in (_newest(folder, name), _previous(folder, name)))


def write_bundle(
    folder: Path,
    name: str,
    header: Mapping[str, object],
    files: Mapping[str, Arrays],
    *,
    if_other: Callable[[], None] = lambda: None,
) -> None:
    """Save `header` as `NAME.json` and each of `files` beside it. One writer at a time, one bundle in a folder.

    `if_other` is called before the save takes the place of one with other arrays.
    """
    make_folder(folder)
    clean(folder)
    before = _whole_header(folder, name)
    named = {}
    for stem, arrays in files.items():
        content = to_safetensors(dict(arrays))
        named[stem] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        put(folder / _filename(stem, named[stem]["sha256"]), content)
    sync_folder(folder)
    if before is None or json.loads(before).get("files") != named:
        if_other()
    if before is not None:
        put(_previous(folder, name), before)
    put(_newest(folder, name), _seal({"format": "arcta", "version": VERSION, **header, "files": named}))
    sync_folder(folder)
    _sweep(folder, name, set(files))


def remove_bundle(folder: Path, name: str) -> None:
    """Remove a save and the one before it, headers first."""
    if not folder.is_dir() or folder.is_symlink():
        return
    clean(folder)
    for path in (_previous(folder, name), _newest(folder, name)):
        remove(path)
    sync_folder(folder)
    _sweep(folder, name, set())


def _seal(header: Mapping[str, object]) -> bytes:
    """A header as JSON that ends in the checksum of all before it."""
    body = json.dumps(_plain(header), indent=1, allow_nan=False).encode().removesuffix(b"\n}")
    return body + b',\n "checksum": "' + hashlib.sha256(body).hexdigest().encode() + b'"\n}\n'


def _plain(value: object) -> object:
    """`value` as JSON can hold it: what is not finite is null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _whole_header(folder: Path, name: str) -> bytes | None:
    """The newest header, if it and all it names are whole: what is not must not take the place of the save before."""
    path = _newest(folder, name)
    try:
        content = read_plain(path, HEADER_BYTES)
        _read_files(folder, _parse(path, content))
    except ValueError:
        return None
    return content


def _sweep(folder: Path, name: str, stems: set[str]) -> None:
    """Remove arrays that no header names; of files that are not named by content, those of the stems."""
    try:
        paths = [path for path in (_newest(folder, name), _previous(folder, name)) if path.exists()]
        named = b"".join(read_plain(path, HEADER_BYTES) for path in paths)
    except ValueError:
        return
    for path in folder.glob("*.safetensors"):
        match = re.fullmatch(rf"{STEM}-([0-9a-f]{{32}})\.safetensors", path.name)
        stem = re.sub(r"(\.previous)?\.safetensors$", "", path.name)
        if match[1].encode() not in named if match else stem in stems and f'"{stem}.safetensors"'.encode() not in named:
            remove(path)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is too large")
    return number


def _parse(path: Path, content: bytes) -> Header:
    """A header whose checksum is right; those of version 2 had none, and numbers that are not finite, which come back as None."""
    constants: list[str] = []
    try:
        header = json.loads(content, parse_float=_finite, parse_constant=constants.append)
    except (ValueError, RecursionError):
        raise ValueError(f"{path} is damaged: it is not whole JSON. {CURE}") from None
    if not isinstance(header, dict) or header.get("format") != "arcta":
        raise ValueError(f"{path} was not written by arcta. Pass the folder that fit.save wrote.")
    version = header.get("version")
    if not isinstance(version, int) or version not in (2, VERSION):
        raise ValueError(
            f"{path} has format version {str(version)[:20]}; this arcta reads versions 2 and {VERSION}. "
            "Train again with this arcta, or load it with the one that wrote it."
        )
    seal = SEAL.fullmatch(content[-SEAL_BYTES:])
    if seal is None and version == 2 and "checksum" not in header:
        return header
    if seal is None or constants or hashlib.sha256(content[:-SEAL_BYTES]).hexdigest() != seal[1].decode():
        raise ValueError(f"{path} is damaged: its checksum is not that of what it says. {CURE}")
    return header


class _Named(msgspec.Struct):
    """A file of arrays as a header names it."""

    sha256: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
    bytes: Annotated[int, msgspec.Meta(ge=0, le=ARRAY_BYTES)] = ARRAY_BYTES


def _named_files(header: Header) -> dict[str, _Named]:
    """The files of arrays that a header names, by their stems, which lead nowhere out of the folder."""
    if header["version"] == 2:
        told = msgspec.convert(header.get("sha256"), dict[str, str])
        found = {name.removesuffix(".safetensors"): _Named(checksum) for name, checksum in told.items()}
        return msgspec.convert(msgspec.to_builtins(found), dict[Stem, _Named])
    return msgspec.convert(header.get("files"), dict[Stem, _Named])


def _read_files(folder: Path, header: Header) -> dict[str, dict[str, np.ndarray]]:
    old = header["version"] == 2
    found = {}
    for stem, named in _named_files(header).items():
        present = [f"{stem}.safetensors", f"{stem}.previous.safetensors"]
        found[stem] = _read_arrays(folder, present if old else [_filename(stem, named.sha256)], named)
    return found


def _read_arrays(folder: Path, names: list[str], named: _Named) -> dict[str, np.ndarray]:
    """The arrays of the first of some files that has the checksum."""
    reason = ""
    for path in (folder / name for name in names):
        try:
            content = read_plain(path, named.bytes)
        except ValueError as error:
            reason = reason or f" ({error})"
            continue
        if hashlib.sha256(content).hexdigest() == named.sha256:
            return _parse_arrays(path, content)
    raise ValueError(
        f"{folder / names[0]} is missing or damaged: its checksum is not the one in the header{reason}. {CURE}"
    )


def _parse_arrays(path: Path, content: bytes) -> dict[str, np.ndarray]:
    try:
        return parse_safetensors(content)
    # Beside its own error the library lets through those of the types and shapes that NumPy does not have.
    except (safetensors.SafetensorError, KeyError, ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"{path} is not a file of arrays ({str(error)[:100]}). {CURE}") from None


def _read_save(folder: Path, path: Path) -> Saved:
    header = _parse(path, read_plain(path, HEADER_BYTES))
    try:
        return header, _read_files(folder, header)
    except msgspec.ValidationError as error:
        raise ValueError(f"{path} is damaged: in its list of files, {error}. {CURE}") from None


def read_bundle(folder: Path, name: str) -> Saved:
    """The header and the arrays of the newest whole save; falls back to the previous one with a warning."""
    if not holds_bundle(folder, name):
        raise ValueError(f"{folder} holds no {name}.json. Pass the folder of a saved run.")
    failure: ValueError | None = None
    for _ in range(ATTEMPTS):
        seen = _glance(_newest(folder, name))
        try:
            return _read_save(folder, _newest(folder, name))
        except ValueError as error:
            failure = error
        if seen == _glance(_newest(folder, name)):  # no other save has come meanwhile
            break
    assert failure is not None
    try:
        saved = _read_save(folder, _previous(folder, name))
    except ValueError:
        raise failure from None
    warnings.warn(f"{failure} The previous save was loaded instead.", stacklevel=3)
    return saved


def _glance(path: Path) -> tuple[int, int] | None:
    """What changes when a file is replaced."""
    try:
        state = path.stat(follow_symlinks=False)
    except OSError:
        return None
    return state.st_ino, state.st_mtime_ns
