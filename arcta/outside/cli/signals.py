"""How the command line ends on Ctrl-C and SIGTERM: one line, exit code 130 or 143, and soon.

While the package is imported the process ends there and then; afterwards by an exception, so that what is open is closed. A library
may swallow that, or be busy outside of Python: then, and the second time, a thread ends the process. The training loop has a way of
its own (`training/progress.py`), to which the first time is left. Nothing but the standard library is imported here.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn

NUMBERS = (signal.SIGINT, signal.SIGTERM)
GRACE = 3.0  # seconds for an exception to end the process
LINES = {signal.SIGINT: b"arcta: interrupted\n", signal.SIGTERM: b"arcta: terminated\n"}


class Ended(KeyboardInterrupt):
    """One of the signals came."""

    def __init__(self, number: int):
        super().__init__(number)
        self.number = number


def _end(number: int, frame: FrameType | None = None) -> NoReturn:
    with contextlib.suppress(OSError):
        os.write(2, LINES[signal.Signals(number)])
    os._exit(128 + number)


def _raise(number: int, frame: FrameType | None) -> NoReturn:
    raise Ended(number)


def _is_command() -> bool:
    """Whether this process was started as `arcta …` or `python -m arcta …`."""
    words = sys.orig_argv
    module = words[words.index("-m") + 1 : words.index("-m") + 2] if "-m" in words else []
    first = sys.argv[0] if sys.argv else ""
    return module == ["arcta"] if first == "-m" else Path(first).stem == "arcta"


def while_starting() -> None:
    """If this is the command line, end at once on a signal: until `main` runs there is nothing to close."""
    if _is_command() and threading.current_thread() is threading.main_thread():
        for number in NUMBERS:
            if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                signal.signal(number, _end)


def _watch(pipe: int) -> None:
    """End the process at the second signal, or when the first one's exception has not ended it."""
    count = 0
    while told := os.read(pipe, 1):
        number = told[0]
        if number not in NUMBERS:
            continue
        count += 1
        if count > 1:
            _end(number)
        if signal.getsignal(number) is _raise:
            timer = threading.Timer(GRACE, _end, [number])
            timer.daemon = True
            timer.start()
    os.close(pipe)


@contextlib.contextmanager
def ending() -> Iterator[None]:
    """The signals as exceptions `Ended`, with a thread that sees to it that they end the process."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {n: handler for n in NUMBERS if (handler := signal.getsignal(n)) not in (None, signal.SIG_IGN)}
    seen, told = os.pipe()
    os.set_blocking(told, False)
    threading.Thread(target=_watch, args=[seen], daemon=True).start()
    woken = signal.set_wakeup_fd(told, warn_on_full_buffer=False)
    try:
        for number in before:
            signal.signal(number, _raise)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(woken)
        os.close(told)


def exit_after(interrupt: KeyboardInterrupt) -> NoReturn:
    """End the process, in one line."""
    number = interrupt.number if isinstance(interrupt, Ended) else signal.SIGINT
    sys.stderr.write(LINES[signal.Signals(number)].decode())
    raise SystemExit(128 + number) from None
