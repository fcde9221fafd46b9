"""The command line as a whole. Heavy imports wait until a command runs.

Exit codes: 0 done, 1 training diverged or the machine failed, 2 something the user can fix, 130 Ctrl-C. Results go to standard
output or to a file, everything else to standard error.
"""

from __future__ import annotations

import sys
import warnings
from typing import TextIO

from . import runs as runs
from . import train as train
from . import use as use
from .options import app


def _plain(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    print(f"arcta: note: {message}", file=sys.stderr)


def main() -> None:
    """Entry point: one sentence and exit code 2 for what the user can fix, 1 for divergence or a lost process, 130 for Ctrl-C."""
    warnings.showwarning = _plain
    try:
        app()
    except (ValueError, FloatingPointError) as error:
        print(f"arcta: {' '.join(str(error).split())}", file=sys.stderr)
        raise SystemExit(2) from None
    except OSError as error:
        print(
            f"arcta: {error.strerror or error}: {error.filename or ''}. Check the path and the space left.",
            file=sys.stderr,
        )
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except Exception as error:
        if type(error).__name__ not in ("TrainingDiverged", "PeerLost"):
            raise
        print(f"arcta: {error}", file=sys.stderr)
        if type(error).__name__ == "PeerLost":
            from .process import leave

            leave(1)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
