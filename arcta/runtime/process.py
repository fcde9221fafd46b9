"""A process forked off one that had used JAX: its threads did not come along, and it would wait for them for ever."""

from __future__ import annotations

import os

from jax._src import xla_bridge

_ORPHANS: set[int] = set()


def _note_fork() -> None:
    if xla_bridge.backends_are_initialized():
        _ORPHANS.add(os.getpid())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


def check_not_forked() -> None:
    """Refuse to compute where nothing would ever be computed."""
    if os.getpid() in _ORPHANS:
        raise RuntimeError(
            "this process was forked after JAX had been used, and JAX does not survive a fork: it would hang. Start processes with "
            "multiprocessing.get_context('spawn') (or 'forkserver'), or fork before anything is fitted or loaded."
        )
