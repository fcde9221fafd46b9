"""The command line as a whole. What `import arcta` does not bring in, pandas and matplotlib above all, waits until a command runs.

Exit codes: 0 done, 1 training diverged or the machine failed, 2 something the user can fix, 130 Ctrl-C, 143 SIGTERM. Results go
to standard output or to a file, everything else to standard error.
"""

from __future__ import annotations

import os
import sys
import warnings
from typing import NoReturn

from ...training.loop import TrainingDiverged
from ...training.parallel import PeerLost
from . import runs as runs
from . import train as train
from . import use as use
from .options import app
from .signals import ending, exit_after


def _note(message: Warning | str, *_: object, **__: object) -> None:
    print(f"arcta: note: {message}", file=sys.stderr)


def _stop(message: str, code: int) -> NoReturn:
    print(f"arcta: {message}", file=sys.stderr)
    raise SystemExit(code) from None


def main() -> None:
    """Entry point: one sentence and exit code 2 for what the user can fix, 1 for divergence or a lost process, 130 for Ctrl-C,
    143 for SIGTERM."""
    warnings.showwarning = _note
    try:
        with ending():
            app()
    except (ValueError, FloatingPointError) as error:
        _stop(" ".join(str(error).split()), 2)
    except OSError as error:
        _stop(f"{error.strerror or error}: {error.filename or ''}. Check the path and the space left.", 2)
    except KeyboardInterrupt as interrupt:
        exit_after(interrupt)
    except TrainingDiverged as error:
        _stop(str(error), 1)
    except PeerLost as error:
        print(f"arcta: {error}", file=sys.stderr, flush=True)
        sys.stdout.flush()
        os._exit(1)  # at once: JAX would wait for the lost process for a minute and a half
