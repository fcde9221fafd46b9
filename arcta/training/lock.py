"""One writer for each run: a lock on its folder, which the system takes back when the process ends, however it ends."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from .files import NO_LINK, make_folder, read_plain, remove

NAME = ".lock"


def _fcntl() -> ModuleType | None:
    try:
        import fcntl
    except ImportError:  # not on Windows
        return None
    return fcntl


def _holder(path: Path) -> str:
    """Who holds a lock, in words."""
    try:
        told = json.loads(read_plain(path, 1000))
        return f"process {told['pid']} on {told['host']} since {told['since']}"
    except (ValueError, TypeError, KeyError, RecursionError):
        return "another process"


def _take(path: Path, fcntl: ModuleType) -> int:
    """A handle to the locked file at `path`, which nobody else has."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | NO_LINK, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Who held it before may have removed the file since it was opened here.
            if path.exists() and os.path.samestat(os.fstat(handle), path.stat(follow_symlinks=False)):
                return handle
        except BlockingIOError:
            os.close(handle)
            raise ValueError(
                f"{path.parent} is being written by {_holder(path)}. Wait until it has finished, end it, or use another folder."
            ) from None
        except FileNotFoundError:
            pass
        except OSError:  # a file system that knows no locks
            return handle
        os.close(handle)


@contextlib.contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Keep other processes from writing to a run; refuse if one does already. Readers need no lock."""
    make_folder(folder)
    path, fcntl = folder / NAME, _fcntl()
    if path.is_symlink():
        raise ValueError(f"{path} is a symbolic link, which arcta neither makes nor follows. Remove it.")
    if fcntl is None:
        yield
        return
    handle = _take(path, fcntl)
    try:
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        told = json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": since})
        os.ftruncate(handle, 0)
        os.write(handle, told.encode())
        yield
    finally:
        try:
            remove(path)
        finally:
            os.close(handle)
