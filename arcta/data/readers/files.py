"""Files as bytes: regular ones only, of a size that memory holds, not while somebody writes them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

LARGEST = 2 * 2**30  # bytes: of a text file, or of the arrays that a file says it holds
ADVICE = "Leave out what is not needed, or train from disk with arcta.store."


class TooLarge(ValueError):
    """A file that memory would not hold."""


def check_size(size: int, where: str) -> None:
    """Refuse what does not fit into memory, before any of it is read."""
    if size < 0:
        raise TooLarge(f"{where} says that it holds less than nothing. Write it again.")
    if size > LARGEST:
        raise TooLarge(f"{where} needs {size / 2**30:,.3g} GiB of memory, and read takes {LARGEST / 2**30:g}. {ADVICE}")


def kind_of_path(path: Path) -> str:
    """`"file"` or `"folder"`; an error for what is neither, such as a pipe, which might never end."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(f"nothing is at {path}. Check the path.") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"{str(path)[:200]!r} cannot be opened ({_reason(error)}). Check the path.") from None
    if stat.S_ISDIR(mode):
        return "folder"
    if not stat.S_ISREG(mode):
        raise ValueError(
            f"{path} is no regular file but a pipe, a socket or a device. Write its content to a file first."
        )
    return "file"


def read_bytes(path: Path) -> bytes:
    """The content of a regular file."""
    if kind_of_path(path) == "folder":
        raise ValueError(f"{path} is a folder where a file is needed. Give the path of the file.")
    try:
        with path.open("rb") as file:
            before = os.fstat(file.fileno())
            check_size(before.st_size, str(path))
            content = file.read(before.st_size + 1)
            after = os.fstat(file.fileno())
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({_reason(error)}). Check its permissions.") from None
    if len(content) != before.st_size or after.st_mtime_ns != before.st_mtime_ns:
        raise ValueError(f"{path} changed while it was read. Read it again when it is finished.")
    return content


def check_folder(path: Path) -> None:
    """Refuse a folder with pipes or devices below it, and one that cannot be listed."""

    def refuse(error: OSError) -> None:
        raise ValueError(f"{path} cannot be read ({_reason(error)}). Check its permissions.")

    for folder, _, names in os.walk(path, onerror=refuse):
        for name in names:
            kind_of_path(Path(folder) / name)


def _reason(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error)).lower()
