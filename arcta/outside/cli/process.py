"""What the command line does to its own process when it is one of a job's (`--devices`): a library must not."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import NoReturn


def run_as_batch_work() -> None:
    """Run as batch work: the exchange's own thread spins when it wakes while the computing one holds its lock, and as batch work it
    is not put first when it wakes."""
    if hasattr(os, "sched_setscheduler"):
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


@contextlib.contextmanager
def results_apart() -> Iterator[None]:
    """What the library under the first exchange prints goes to standard error, not among a command's results."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def leave(code: int) -> NoReturn:
    """End the process at once: JAX would wait for a lost one for a minute and a half."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
