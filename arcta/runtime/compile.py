"""How programs are compiled on a CPU: for a short wait before the first step, unless the steps themselves will take long.

A model's training loop is some hundreds of small fusions, on which XLA's usual ways spend many seconds. LLVM's lighter optimisation
and the older of XLA's two emitters for the CPU take a fraction of that, and the steps of small models are about as fast. Those of
convolutions on frames are not, so large models get the newer emitter. Other backends keep their own ways.

A program is made for each shape it meets, and JAX keeps them all, some ten megabytes each. Here they are counted, and after so many
all are forgotten (`bound_programs`), between two verbs: those that are needed again come back from the disk or are made anew.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree

from .memory import return_memory

P = ParamSpec("P")
R = TypeVar("R")
LARGE = 100_000  # weights
MOST_PROGRAMS = 60
_PROGRAMS = [0]  # made since all were forgotten
LIGHT: dict[str, str | bool] = {"xla_backend_optimization_level": "1", "xla_cpu_use_fusion_emitters": False}
THOROUGH: dict[str, str | bool] = {"xla_backend_optimization_level": "1"}


def _accepts(options: dict[str, str | bool]) -> bool:
    """Whether this jaxlib knows the options: a program of nothing is compiled with them."""
    try:
        jax.jit(lambda: 0, compiler_options=options).lower().compile()
    except Exception:  # of whatever type this version raises for a flag it does not have
        return False
    return True


@functools.cache
def compiler_options(*, thorough: bool) -> dict[str, str | bool] | None:
    """Those of the options above that this backend has."""
    wanted = THOROUGH if thorough else LIGHT
    if jax.default_backend() != "cpu":
        return None
    if _accepts(wanted):
        return wanted
    return {name: value for name, value in wanted.items() if _accepts({name: value})}


def _counted(function: Callable[P, R]) -> Callable[P, R]:
    """The same, counted each time it is traced."""

    @functools.wraps(function)
    def call(*arguments: P.args, **options: P.kwargs) -> R:
        _PROGRAMS[0] += 1
        return function(*arguments, **options)

    return call


def bound_programs() -> None:
    """Forget all compiled programs if they have become too many. Not to be called while one runs."""
    if _PROGRAMS[0] > MOST_PROGRAMS:
        _PROGRAMS[0] = 0
        jax.clear_caches()
        return_memory()


@functools.cache
def _jit(function: Callable[P, R], thorough: bool) -> Callable[P, R]:
    return eqx.filter_jit(_counted(function), compiler_options=compiler_options(thorough=thorough))  # pyright: ignore[reportCallIssue]


def compile_plainly(function: Callable[P, R]) -> Callable[P, R]:
    """`equinox.filter_jit`, for what runs long and is compiled soon."""
    return eqx.filter_jit(_counted(function))


def compile_lightly(function: Callable[P, R]) -> Callable[P, R]:
    """`equinox.filter_jit` with the light options. They are looked up at the first call: a decorator must not start a backend."""

    @functools.wraps(function)
    def call(*arguments: P.args, **options: P.kwargs) -> R:
        return _jit(function, False)(*arguments, **options)

    return call


def compile_for(model: PyTree, function: Callable[P, R]) -> Callable[P, R]:
    """The same, compiled thoroughly if the model is large."""
    sizes = (leaf.size for leaf in jax.tree.leaves(model) if isinstance(leaf, jax.Array | np.ndarray))
    return _jit(function, sum(sizes) >= LARGE)
