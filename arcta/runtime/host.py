"""Arrays made on the host, so that building a model compiles nothing: `jnp` compiles a program for each operation and shape."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar, runtime_checkable

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from jaxtyping import ArrayLike as NumberLike


@runtime_checkable
class HasArray(Protocol):
    """Anything that NumPy knows how to read, as the columns of a table are."""

    def __array__(self) -> np.ndarray: ...


M = TypeVar("M")
ArrayLike = NumberLike | Sequence[object] | HasArray


class Held(eqx.Module):
    """An array in a model that gradients leave alone."""

    value: Array


def array(values: ArrayLike) -> Float[Array, ...]:
    """Numbers as an array of JAX's default float."""
    return jax.device_put(np.asarray(values, jax.dtypes.canonicalize_dtype(float)))


def generator(key: PRNGKeyArray) -> np.random.Generator:
    """NumPy's random numbers, seeded by a key."""
    return np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel())


def uniform(rng: np.random.Generator, shape: tuple[int, ...], fan_in: int) -> Float[Array, ...]:
    """Weights for outputs of about the size of the inputs: uniform within ±1/√fan_in."""
    return array(rng.uniform(-1, 1, shape) / math.sqrt(fan_in))


def on_host(make: Callable[[PRNGKeyArray], M], fan_in: int, rng: np.random.Generator) -> M:
    """A library's layer with all its weights drawn here, uniform within ±1/√fan_in: its own would be compiled one by one."""
    shapes = eqx.filter_eval_shape(make, jax.eval_shape(lambda: jax.random.key(0)))

    def drawn(leaf: object) -> object:
        return uniform(rng, leaf.shape, fan_in) if isinstance(leaf, jax.ShapeDtypeStruct) else leaf

    return jax.tree.map(drawn, shapes)
