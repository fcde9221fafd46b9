"""Traced programs kept between processes, beside JAX's compiled ones.

JAX's cache spares a second run the compiler, but the key to it is the program, and tracing a training loop takes longer than
reading what was compiled. So the traced program is kept too, under a name made of all that it was traced from: arcta's own files,
the libraries' versions, JAX's settings, the shapes of the arrays and everything else in the arguments. An argument with code
that is none of these (a drift of the user's own, say) cannot be named so, and is traced anew every time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import os
import sys
import tempfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np

KNOWN = ("arcta", "jax", "equinox", "optax")


class _Foreign(Exception):
    """Something whose code is not known."""


def _place(thing: Any) -> str:
    """Where a class or function of the known libraries is defined."""
    module, name = getattr(thing, "__module__", None) or "", getattr(thing, "__qualname__", "")
    found = sys.modules.get(module) if module.split(".")[0] in KNOWN else None
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is not thing:
        raise _Foreign
    return f"{module}.{name}"


def _account(thing: Any) -> Any:
    """All that a trace can depend on, as nested tuples of text."""
    if isinstance(thing, jax.Array):
        kind = jax.typeof(thing)
        return ("array", str(kind.shape), str(kind.dtype), str(kind.weak_type))
    if isinstance(thing, np.ndarray | np.generic):
        return ("numbers", str(thing.shape), str(thing.dtype), hashlib.sha256(thing.tobytes()).hexdigest())
    if thing is None or type(thing) in (bool, int, float, str):
        return (type(thing).__name__, repr(thing))
    if type(thing) in (tuple, list):
        return (type(thing).__name__, *(_account(item) for item in thing))
    if type(thing) is dict:
        return ("dict", *((_account(name), _account(value)) for name, value in thing.items()))
    if isinstance(thing, tuple):
        return (_place(type(thing)), *(_account(item) for item in thing))
    if dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        fields = ((field.name, getattr(thing, field.name, None)) for field in dataclasses.fields(thing))
        return (_place(type(thing)), *((name, _account(value)) for name, value in fields))
    return _place(thing)


@functools.cache
def _code() -> str:
    """The code that is traced: arcta's files and the versions of what they call."""
    files = (path.name.encode() + path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
    versions = (metadata.version(library) for library in ("jax", "jaxlib", "equinox", "optax", "diffrax", "numpy"))
    return hashlib.sha256(b"".join(files) + repr((sys.version, *versions)).encode()).hexdigest()


def _name(function: Callable[..., Any], arguments: tuple[Any, ...]) -> str:
    """A name that two calls share only if they trace to the same program."""
    settings = sorted((key, repr(value)) for key, value in jax.config.values.items() if "cache" not in key)
    machine = (jax.default_backend(), jax.device_count())
    told = repr((_code(), settings, machine, _place(function), _account(arguments)))
    return f"arcta-{hashlib.sha256(told.encode()).hexdigest()}.trace"


def _write(path: Path, content: bytes | bytearray) -> None:
    """Whole or not at all; a cache that cannot be written is none."""
    with contextlib.suppress(OSError):
        handle, part = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(part).replace(path)


def kept(function: Callable[..., tuple[Any, ...]], arguments: tuple[Any, ...], like: Any) -> tuple[Any, ...]:
    """`function(*arguments)`, traced in an earlier process if JAX's compilation cache is on and the arguments can be named.

    To be called where JAX is tracing. The function's first result is of the structure of `like`, the others are arrays in dicts.
    """
    folder = jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]
    try:
        path = Path(folder or "") / _name(function, arguments)
    except _Foreign:
        return function(*arguments)
    if not folder:
        return function(*arguments)
    from jax import export

    arrays, static = eqx.partition(arguments, eqx.is_array)
    leaves, structure = jax.tree.flatten(arrays)

    def flat(*leaves: Any) -> Any:
        first, *others = function(*eqx.combine(jax.tree.unflatten(structure, leaves), static))
        return jax.tree.leaves(eqx.filter(first, eqx.is_array)), others

    try:
        program = export.deserialize(bytearray(path.read_bytes()))
    except Exception:  # none, or not whole: of whatever type its reader raises
        shapes = (jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, weak_type=leaf.weak_type) for leaf in leaves)
        try:
            program = export.export(jax.jit(flat))(*shapes)
            _write(path, program.serialize())
        except NotImplementedError:  # it calls back into Python, as solvers do to raise errors
            return function(*arguments)
    first, others = program.call(*leaves)
    parts, rest = eqx.partition(like, eqx.is_array)
    return eqx.combine(jax.tree.unflatten(jax.tree.structure(parts), first), rest), *others
