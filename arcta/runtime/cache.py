"""Compiled programs kept between processes, in a folder that nobody else can write to: JAX runs what it finds there.

An entry is the sha256 of a program and the program. JAX's own cache warns of a damaged one each time anew and does not replace it.
"""

from __future__ import annotations

import functools
import hashlib
import os
import secrets
import stat
import warnings
from pathlib import Path

import jax
from jax._src import compilation_cache

DIGEST = hashlib.sha256().digest_size


class Programs:
    """Entries in a folder, which come back as they were put or not at all."""

    def __init__(self, folder: Path):
        self._path = folder  # what JAX looks at

    def _entry(self, key: str) -> Path:
        return self._path / f"{key}-program"

    def get(self, key: str) -> bytes | None:
        path = self._entry(key)
        try:
            content = path.read_bytes()
        except OSError:
            return None
        if hashlib.sha256(content[DIGEST:]).digest() != content[:DIGEST]:
            path.unlink(missing_ok=True)
            return None
        return content[DIGEST:]

    def put(self, key: str, value: bytes) -> None:
        temporary = self._path / f".{secrets.token_hex(8)}"
        try:
            with temporary.open("xb") as file:
                file.write(hashlib.sha256(value).digest() + value)
            temporary.replace(self._entry(key))
        finally:
            temporary.unlink(missing_ok=True)


def fault_of(folder: Path) -> str:
    """Why a folder must not hold programs, in words; empty if it may."""
    state, above = folder.stat(follow_symlinks=False), folder.parent.stat()
    if not stat.S_ISDIR(state.st_mode):
        return "is a link or a file, not a folder"
    if os.name != "posix":
        return ""
    if state.st_uid != os.geteuid() or above.st_uid not in (0, os.geteuid()):
        return "belongs to another user"
    open_above = (
        above.st_mode & 0o022 and not above.st_mode & stat.S_ISVTX
    )  # then others may put another folder in its place
    return "can be written to by others" if state.st_mode & 0o022 or open_above else ""


def keep_programs(folder: Path) -> bool:
    """Keep compiled programs in a folder that is made if need be; if it is not safe, say so and do without."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        if not folder.is_symlink():
            folder.mkdir(mode=0o700, exist_ok=True)
        fault = fault_of(folder)
        if not fault:
            folder.chmod(0o700)
    except OSError as error:
        fault = f"cannot be used ({error.strerror})"
    if fault:
        warnings.warn(
            f"compiled programs are not kept: {folder} {fault}. Remove it, or set ARCTA_CACHE to a folder of your own.",
            stacklevel=3,
        )
        jax.config.update("jax_compilation_cache_dir", None)
        return False
    # Of what JAX has for this, only the making of a cache knows of a folder and nothing else.
    compilation_cache.get_file_cache = lambda path: (Programs(Path(path)), path)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    compilation_cache.reset_cache()  # what was compiled before has settled that there is none
    return True


def default_folder() -> Path | None:
    """Where programs are kept: in `ARCTA_CACHE`, else below the user's caches; None if that is "off"."""
    told = os.environ.get("ARCTA_CACHE", "")
    if told == "off":
        return None
    base = told or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "arcta"
    return Path(base) / "compiled"


@functools.cache
def keep_by_default() -> None:
    """Keep programs from now on, unless the user has said where JAX is to keep them, or that nothing is to be kept. Once in a
    process: who switches it off later is not overruled."""
    folder, values = default_folder(), jax.config.values
    if folder is not None and values["jax_compilation_cache_dir"] is None and values["jax_enable_compilation_cache"]:
        keep_programs(folder)
