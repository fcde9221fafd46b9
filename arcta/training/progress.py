"""What a user sees of long work, and how Ctrl-C ends it."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType

Row = dict[str, int | float]


def _line(row: Row) -> str:
    names = ("loss", "log_likelihood", "path_kl", "initial_kl", "parameter_kl", "join_kl", "validation")
    return "  ".join(f"{name} {row[name]:.4g}" for name in names if name in row)


class Progress:
    """A rich bar on a terminal, a plain line now and then elsewhere, nothing when not wanted."""

    def __init__(self, total: int, first: int, show: bool):
        self.total, self.first, self.began, self.bar, self.task = total, first, time.perf_counter(), None, None
        self.show, self.printed = show, 0.0
        if show and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (MofNCompleteColumn(), BarColumn(24), TextColumn("{task.fields[rate]}"), TimeRemainingColumn())
            self.bar = Progress(*columns, TextColumn("{task.description}"), console=Console(stderr=True))
            self.task = self.bar.add_task("compiling", total=total, completed=first, rate="")
            self.bar.start()
        elif show:
            print(f"arcta: compiling, then {total - first} steps", file=sys.stderr, flush=True)

    def compiled(self) -> None:
        self.began = time.perf_counter()

    def update(self, step: int, row: Row) -> None:
        seconds = time.perf_counter() - self.began
        rate = (step - self.first) / max(seconds, 1e-9)
        if self.bar is not None and self.task is not None:
            self.bar.update(self.task, completed=step, description=_line(row), rate=f"{rate:.0f} steps/s")
        elif self.show and (seconds - self.printed > 2.0 or step == self.total):
            self.printed = seconds
            left = (self.total - step) / max(rate, 1e-9)
            print(
                f"step {step}/{self.total}  {_line(row)}  {rate:.0f} steps/s  {left:.0f} s left",
                file=sys.stderr,
                flush=True,
            )

    def close(self) -> None:
        if self.bar is not None:
            self.bar.stop()


@contextlib.contextmanager
def on_interrupt() -> Iterator[list[int]]:
    """A list that Ctrl-C adds to. The first is obeyed between two calls of the compiled loop, where the state is whole; the second
    at once. Not in threads, where Python allows no handler."""
    caught: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        caught.append(number)
        if len(caught) > 1:
            raise KeyboardInterrupt
        print("arcta: stopping after these steps; Ctrl-C again stops at once", file=sys.stderr, flush=True)

    if threading.current_thread() is not threading.main_thread():
        yield caught
        return
    before = signal.signal(signal.SIGINT, note)
    try:
        yield caught
    finally:
        signal.signal(signal.SIGINT, before)
