"""Files that change whole or not at all: written under a name of their own, forced to disk, renamed; read only if plain files.

Whatever changes the disk is a call of `os` in this file, so that a test can make each of them fail. Nothing here follows a symbolic
link that stands where a file should.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
from pathlib import Path

# Not every platform has all of them.
NO_LINK, NO_WAIT, BINARY = (getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"))
TEMPORARY = re.compile(r"\.arcta-(\d+)-[0-9a-f]{16}")
NOT_FOR_FOLDERS = (errno.EINVAL, errno.ENOTSUP)  # what some file systems say to fsync of a folder


def write_atomically(path: Path, content: bytes) -> None:
    """Put `content` at `path`: whatever happens meanwhile, the old file stands there or the new one, whole."""
    put(path, content)
    sync_folder(path.parent)


def put(path: Path, content: bytes) -> None:
    """`write_atomically`, but for the rename: it is on disk after the next `sync_folder`."""
    temporary = path.with_name(f".arcta-{os.getpid()}-{secrets.token_hex(8)}")
    try:
        _write(temporary, os.O_CREAT | os.O_EXCL, content)
        os.replace(temporary, path)
    except BaseException:
        remove(temporary)
        raise


def append(path: Path, content: bytes) -> None:
    """Add to the end of a file. A crash may leave part of it."""
    _write(path, os.O_CREAT | os.O_APPEND, content)


def _write(path: Path, how: int, content: bytes) -> None:
    handle = os.open(path, os.O_WRONLY | NO_LINK | BINARY | how, 0o666)
    try:
        left = memoryview(content)
        while left:
            left = left[os.write(handle, left) :]
        if how & os.O_EXCL:
            os.fsync(handle)
    finally:
        os.close(handle)


def remove(path: Path) -> None:
    """Remove a file, if it is there and can be: what is left over does no harm."""
    with contextlib.suppress(OSError):
        os.unlink(path)


def sync_folder(folder: Path) -> None:
    """Force to disk which files a folder has."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in NOT_FOR_FOLDERS:
            raise
    finally:
        os.close(handle)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, so that they outlast a crash."""
    for path in reversed([path for path in (folder, *folder.parents) if not path.exists()]):
        with contextlib.suppress(FileExistsError):
            os.mkdir(path)
        sync_folder(path.parent)
    if not folder.is_dir():
        raise ValueError(f"{folder} is needed as a folder, and something else is there. Name another one.")


def make_own_folder(folder: Path) -> None:
    """`make_folder` for one inside a run, which is no link to elsewhere."""
    if folder.is_symlink():
        raise ValueError(f"{folder} is a symbolic link, which arcta neither makes nor follows. Remove it.")
    make_folder(folder)


def clean(folder: Path) -> None:
    """Remove what processes that are no more left half-written."""
    for path in folder.iterdir():
        match = TEMPORARY.fullmatch(path.name)
        if match and not _is_another(int(match[1])):
            remove(path)


def _is_another(process: int) -> bool:
    """Whether a process other than this one lives."""
    if process == os.getpid() or os.name != "posix":
        return False
    try:
        os.kill(process, 0)
    except OSError as error:
        return error.errno == errno.EPERM
    except OverflowError:
        return False
    return True


def read_plain(path: Path, limit: int) -> bytes:
    """What a file holds, if it is one, not a link to one, and not larger than `limit` bytes."""
    try:
        handle = os.open(path, os.O_RDONLY | NO_LINK | NO_WAIT | BINARY)
        with os.fdopen(handle, "rb") as file:
            state = os.fstat(handle)
            if not stat.S_ISREG(state.st_mode):
                raise ValueError(f"{path} is not a plain file. Put the file that arcta wrote in its place.")
            content = file.read(state.st_size + 1) if state.st_size <= limit else b""
    except OSError as error:
        link = " (it is a symbolic link, and links are not followed)" if path.is_symlink() else ""
        raise ValueError(
            f"{path} is missing or cannot be read: {error.strerror}{link}. Restore it, or train again."
        ) from None
    except MemoryError:
        raise ValueError(f"{path} does not fit into memory. Restore it, or train again.") from None
    if state.st_size > limit or len(content) > limit:
        raise ValueError(f"{path} is larger than the {limit:,} bytes it may have. Restore it, or train again.")
    return content
