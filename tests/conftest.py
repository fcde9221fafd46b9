"""Types and shapes are checked by beartype wherever the package is imported in a test.

The suite is mostly compilation; all of it, not only the training loop, is compiled as `arcta.compiled` does: a third less time.
"""

import os

os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level=1"
).strip()

from jaxtyping import install_import_hook

with install_import_hook("arcta", "beartype.beartype"):
    import arcta  # noqa: F401
