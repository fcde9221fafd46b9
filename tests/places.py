"""Where test data that is not in the repository may be."""

from __future__ import annotations

import os
from pathlib import Path


def mocap_path() -> Path | None:
    """The MOCAP file, if it is at $ARCTA_MOCAP or beside the clone."""
    for path in (os.environ.get("ARCTA_MOCAP"), Path(__file__).parents[2] / "shared" / "data" / "mocap35.mat"):
        if path and Path(path).is_file():
            return Path(path)
    return None
