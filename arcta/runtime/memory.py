"""How much memory there is, asked before something large is made; and memory given back."""

from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path

SHARE = 0.8  # of what is free, that one result may take
GIGABYTE = 1e9


def _limit(group: Path) -> float:
    """What a control group leaves; no end if it sets no limit."""
    for most, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
        try:
            return float((group / most).read_text()) - float((group / used).read_text())
        except (OSError, ValueError):
            continue
    return float("inf")


def return_memory() -> None:
    """Give what was freed back to the system, where the C library keeps it for later."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def free_memory() -> float:
    """Bytes that this process may still take, as far as the system tells; no end if it does not."""
    found = [_limit(Path("/sys/fs/cgroup")), _limit(Path("/sys/fs/cgroup/memory"))]
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        found += [1024.0 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable")]
    except (OSError, ValueError):
        names = getattr(os, "sysconf_names", {})
        if {"SC_PHYS_PAGES", "SC_PAGE_SIZE"} <= names.keys():
            found.append(float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")))
    return min(found)


def check_room(needed: int | float, what: str, cure: str) -> None:
    """Refuse what would take more than there is."""
    free = free_memory()
    if needed > SHARE * free:
        raise ValueError(
            f"{what} would take {needed / GIGABYTE:.3g} GB of memory, of which {free / GIGABYTE:.3g} GB are free. {cure}"
        )
