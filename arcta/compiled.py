"""How training is compiled: for a short wait before the first step.

A model's loop is some five hundred small fusions, and XLA's usual ways spend 13 to 15 s on them. LLVM's lighter optimisation and
the older of XLA's two emitters for the CPU take 6 to 7 s; the steps of small models are as fast, MOCAP's take perhaps 10 %
longer. Sample paths, whose arrays are large, would take twice as long, so forecasts are compiled as usual. (Throw-away profiles
on one core of two busy ones; `make bench` times steps.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import equinox as eqx

P = ParamSpec("P")
R = TypeVar("R")
OPTIONS: dict[str, Any] = {"xla_backend_optimization_level": 1, "xla_cpu_use_fusion_emitters": False}


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """`equinox.filter_jit` with these options."""
    options: dict[str, Any] = {"compiler_options": OPTIONS}
    return eqx.filter_jit(function, **options)
