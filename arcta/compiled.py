"""How training is compiled: for a short wait before the first step, unless the steps themselves will take long.

A model's loop is some four hundred small fusions, and XLA's usual ways spend 13 to 15 s on them. LLVM's lighter optimisation and
the older of XLA's two emitters for the CPU take 5 to 6 s; the steps of small models are about as fast. Those of convolutions on
frames are not (32 × 32 pixels: 88 ms, 73 ms by the newer emitter), so large models get that one. Sample paths, whose arrays are
large too, are compiled as usual. (Throw-away profiles on one core of two busy ones; `make bench` times steps.)
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

import jax
import numpy as np

P = ParamSpec("P")
R = TypeVar("R")
LARGE = 100_000  # weights
LIGHT: dict[str, Any] = {"xla_backend_optimization_level": 1, "xla_cpu_use_fusion_emitters": False}
THOROUGH: dict[str, Any] = {"xla_backend_optimization_level": 1}
_ARRAY = "an array stands here"


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


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class _Rest:
    """What is left of a tree when its arrays are taken out; compared by value."""

    structure: Any
    leaves: tuple[Any, ...]


def _taken_apart(tree: Any) -> tuple[list[Any], _Rest]:
    leaves, structure = jax.tree.flatten(tree)
    traced = [isinstance(leaf, jax.Array | np.ndarray | np.generic) for leaf in leaves]
    arrays = [leaf for leaf, is_array in zip(leaves, traced, strict=True) if is_array]
    return arrays, _Rest(structure, tuple(_ARRAY if a else x for x, a in zip(leaves, traced, strict=True)))


def _put_together(arrays: list[Any], rest: _Rest) -> Any:
    left = iter(arrays)
    return jax.tree.unflatten(rest.structure, [next(left) if leaf is _ARRAY else leaf for leaf in rest.leaves])


@functools.cache
def _compiled(function: Callable[..., Any], thorough: bool) -> Callable[..., Any]:
    def on_arrays(arrays: list[Any], rest: _Rest) -> tuple[list[Any], _Rest]:
        arguments, options = _put_together(arrays, rest)
        return _taken_apart(function(*arguments, **options))

    on_arrays.__name__ = function.__name__  # what JAX calls it in logs and profiles
    program = jax.jit(on_arrays, compiler_options=THOROUGH if thorough else LIGHT)

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        return _put_together(*program(*_taken_apart((arguments, options))))

    return call


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """What `equinox.filter_jit` does (arrays are traced, all else is compared by value), compiled lightly.

    A tree is taken apart once a call, not four times: a call of the training loop costs 0.4 ms of its own instead of 0.9 (Lotka–
    Volterra, where 50 steps take 13 ms; one core, throw-away profile).
    """
    return _compiled(function, False)


def compiled_for(model: Any, function: Callable[P, R]) -> Callable[P, R]:
    """The same, compiled thoroughly if the model is large."""
    sizes = (leaf.size for leaf in jax.tree.leaves(model) if isinstance(leaf, jax.Array | np.ndarray))
    return _compiled(function, sum(sizes) >= LARGE)
