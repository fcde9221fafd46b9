"""One thread for the algebra of small matrices: what several gain on a few hundred rows they lose by waiting for each other, the
more so where other programs share the machine."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from threadpoolctl import ThreadpoolController

P = ParamSpec("P")
R = TypeVar("R")


@functools.cache
def _libraries() -> ThreadpoolController:
    import scipy.linalg  # noqa: F401  only what is loaded can be limited

    return ThreadpoolController()


def on_one_thread(function: Callable[P, R]) -> Callable[P, R]:
    """`function`, with BLAS and LAPACK on one thread while it runs."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with _libraries().limit(limits=1, user_api="blas"):
            return function(*args, **kwargs)

    return run
