"""How training is compiled: for a short wait before the first step, unless the steps themselves will take long.

A model's loop is some four hundred small fusions, and XLA's usual ways spend 13 to 15 s on them. LLVM's lighter optimisation and
the older of XLA's two emitters for the CPU take 5 to 6 s; the steps of small models are about as fast. Those of convolutions on
frames are not (32 × 32 pixels: 88 ms, 73 ms by the newer emitter), so large models get that one. Sample paths, whose arrays are
large too, are compiled as usual. (Throw-away profiles on one core of two busy ones; `make bench` times steps.)
"""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

import equinox as eqx
import jax

P = ParamSpec("P")
R = TypeVar("R")
LARGE = 100_000  # weights
LIGHT: dict[str, Any] = {"xla_backend_optimization_level": 1, "xla_cpu_use_fusion_emitters": False}
THOROUGH: dict[str, Any] = {"xla_backend_optimization_level": 1}


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """No search for garbage while tracing, which makes much and leaves little: a tenth of its time (throw-away profile)."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


@functools.cache
def _compiled(function: Callable[..., Any], thorough: bool) -> Callable[..., Any]:
    options: dict[str, Any] = {"compiler_options": THOROUGH if thorough else LIGHT}
    return eqx.filter_jit(function, **options)


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """`equinox.filter_jit`, compiled lightly."""
    return _compiled(function, False)


def compiled_for(model: Any, function: Callable[P, R]) -> Callable[P, R]:
    """The same, compiled thoroughly if the model is large."""
    weights = jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array))
    return _compiled(function, sum(leaf.size for leaf in weights) >= LARGE)
