"""Types and shapes are checked by beartype wherever the package is imported in a test.

The suite is mostly compilation; all of it, not only the training loop, is compiled as `arcta.compiled` does: a third less time.
"""

import os
from pathlib import Path

os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level=1"
).strip()

# Programs are kept from run to run and shared by the workers, but not with what the developer does elsewhere.
os.environ.setdefault("ARCTA_CACHE", str(Path(__file__).parents[1] / ".pytest_cache" / "arcta"))

from jaxtyping import install_import_hook

with install_import_hook("arcta", "beartype.beartype"):
    import arcta  # noqa: F401

import gc

import jax
import pytest

MAPS = Path("/proc/self/maps")


@pytest.fixture(autouse=True)
def few_programs():
    """A process may have 65,530 memory maps, and every compiled program takes some: old ones go before there are too many."""
    yield
    if MAPS.is_file() and MAPS.read_bytes().count(b"\n") > 40_000:
        jax.clear_caches()
        gc.collect()
