"""A disk that fails: `os` for arcta's files, which counts the calls that change something and makes one of them go wrong.

What a crash may leave is played too: contents that were not forced to disk before a rename are empty after it, and renames and
removals that no fsync of their folder followed may never have happened. Nothing is forced to the disk below, which takes long.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

CALLS = ("open", "write", "fsync", "replace", "unlink", "mkdir")
ERRORS = {"ENOSPC": errno.ENOSPC, "EIO": errno.EIO}
FAULTS = ("kill", "torn write, then kill", "ENOSPC", "EIO", "short write", "power cut", "power cut, removals kept")


class Killed(BaseException):
    """The process is no more: every further call raises it again."""


class Disk:
    """`os`, but for its `at`-th changing call, which goes wrong as `fault` says. `calls` counts them."""

    def __init__(self, fault: str = "", at: int = -1):
        self.fault, self.at, self.calls, self.dead = fault, at, 0, False
        self.unsynced: set[tuple[int, int]] = set()
        self.undo: list[tuple[str, Path, Callable[[], None]]] = []
        self.paths: dict[int, Path] = {}

    def __getattr__(self, name: str) -> object:
        real = getattr(os, name)
        if name not in CALLS:
            return real
        own = getattr(self, f"_{name}", real)

        def call(*arguments: object, **options: object) -> object:
            if self.dead:
                raise Killed
            if name == "open" and not int(arguments[1]) & os.O_CREAT:  # pyright: ignore[reportArgumentType]
                return own(*arguments, **options)
            self.calls += 1
            if self.calls - 1 == self.at:
                self._go_wrong(name, arguments)
            return own(*arguments, **options)

        return call

    def _go_wrong(self, name: str, arguments: tuple[object, ...]) -> None:
        if self.fault in ERRORS:
            raise OSError(ERRORS[self.fault], os.strerror(ERRORS[self.fault]), "disk")
        if self.fault == "short write":
            return
        if self.fault == "torn write, then kill" and name == "write":
            handle, content = arguments
            os.write(handle, bytes(content)[: len(content) // 2])  # pyright: ignore[reportArgumentType]
        self.dead = True
        if self.fault.startswith("power cut"):
            self.cut()
        raise Killed

    def cut(self) -> None:
        """The power goes: what was not forced to disk is lost."""
        for kind, _, undo in reversed(self.undo):
            if not ("kept" in self.fault and kind == "unlink"):
                undo()
        for path in {path for paths in self.paths.values() for path in paths.parent.glob("**/*")}:
            if path.is_file() and _identity(path) in self.unsynced:
                path.write_bytes(b"")

    def _open(self, path: Path, how: int, mode: int = 0o777) -> int:
        handle = os.open(path, how, mode)
        self.paths[handle] = Path(path)
        return handle

    def _write(self, handle: int, content: memoryview) -> int:
        self.unsynced.add(_identity(handle))
        short = self.fault == "short write" and self.calls - 1 == self.at
        return os.write(handle, content[: max(1, len(content) // 3)] if short else content)

    def _fsync(self, handle: int) -> None:
        self.unsynced.discard(_identity(handle))
        folder = Path(os.readlink(f"/proc/self/fd/{handle}"))
        if folder.is_dir():
            self.undo = [item for item in self.undo if item[1] != folder]

    def _replace(self, source: Path, target: Path) -> None:
        before = target.read_bytes() if target.is_file() else None
        known = before is not None and _identity(target) in self.unsynced
        os.replace(source, target)

        def undo() -> None:
            target.unlink(missing_ok=True)
            if before is not None:
                target.write_bytes(b"" if known else before)

        self.undo.append(("replace", target.parent.resolve(), undo))

    def _unlink(self, path: Path) -> None:
        before = path.read_bytes()
        os.unlink(path)
        self.undo.append(("unlink", path.parent.resolve(), lambda: path.write_bytes(before) and None))

    def _mkdir(self, path: Path, mode: int = 0o777) -> None:
        os.mkdir(path, mode)
        self.undo.append(("mkdir", path.parent.resolve(), lambda: shutil.rmtree(path, ignore_errors=True)))


def _identity(place: Path | int) -> tuple[int, int]:
    state = os.stat(place)
    return state.st_dev, state.st_ino
