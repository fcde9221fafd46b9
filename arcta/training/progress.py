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


SHOWN = ("loss", "log_likelihood", "path_kl", "initial_kl", "parameter_kl", "join_kl", "validation")


class Progress:
    """A rich bar on a terminal, a plain line now and then elsewhere, nothing when not wanted."""

    def __init__(self, total: int, first: int, show: bool):
        self.total, self.first, self.show = total, first, show
        self.began, self.printed, self.bar = time.perf_counter(), 0.0, None
        if show and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (MofNCompleteColumn(), BarColumn(24), TextColumn("{task.fields[rate]}"), TimeRemainingColumn())
            self.bar = Progress(*columns, TextColumn("{task.description}"), console=Console(stderr=True))
            self.bar.add_task("compiling", total=total, completed=first, rate="")
            self.bar.start()
        elif show:
            print(f"arcta: compiling, then {total - first} steps", file=sys.stderr, flush=True)

    def compiled(self) -> None:
        self.began = time.perf_counter()

    def update(self, step: int, row: Row) -> None:
        seconds = time.perf_counter() - self.began
        rate = (step - self.first) / max(seconds, 1e-9)
        terms = "  ".join(f"{name} {row[name]:.4g}" for name in SHOWN if name in row)
        if self.bar is not None:
            task = self.bar.task_ids[0]
            self.bar.update(task, completed=step, description=terms, rate=f"{rate:.0f} steps/s")
        elif self.show and (seconds - self.printed > 2.0 or step == self.total):
            self.printed = seconds
            pace = f"{rate:.0f} steps/s  {(self.total - step) / max(rate, 1e-9):.0f} s left"
            print(f"step {step}/{self.total}  {terms}  {pace}", file=sys.stderr, flush=True)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.stop()


@contextlib.contextmanager
def on_interrupt(*, terminable: bool = False) -> Iterator[list[int]]:
    """A list that Ctrl-C adds to, and SIGTERM if `terminable`. The first is obeyed between two calls of the compiled loop, where
    the state is whole; the second at once. Not in threads, where Python allows no handler; what is ignored stays ignored."""
    caught: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        caught.append(number)
        if len(caught) > 1:
            raise KeyboardInterrupt
        with contextlib.suppress(OSError):
            print("arcta: stopping after these steps; Ctrl-C again stops at once", file=sys.stderr, flush=True)

    if threading.current_thread() is not threading.main_thread():
        yield caught
        return
    numbers = (signal.SIGINT, signal.SIGTERM) if terminable else (signal.SIGINT,)
    # None: a handler that is not Python's, which could not be put back.
    before = {number: signal.getsignal(number) for number in numbers}
    before = {number: handler for number, handler in before.items() if handler not in (None, signal.SIG_IGN)}
    try:
        for number in before:
            signal.signal(number, note)
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
