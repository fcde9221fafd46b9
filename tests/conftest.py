"""Types and shapes are checked by beartype wherever the package is imported in a test."""

from jaxtyping import install_import_hook

with install_import_hook("arcta", "beartype.beartype"):
    import arcta  # noqa: F401
