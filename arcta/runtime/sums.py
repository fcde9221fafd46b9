"""Sums over many items and their derivatives, on a CPU one item after the other.

What an item leaves for its derivative then stays in the cache, where `vmap` and a sum would write all items' to memory and
read them back. Forward-mode derivatives of such a sum raise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

Terms = dict[str, Float[Array, "*members"]]
M = TypeVar("M")
Item = TypeVar("Item")
R = TypeVar("R")


def _total(stacked: Array) -> Array:
    return jnp.sum(stacked, axis=0)


def sum_over(function: Callable[[M, Item], tuple[Array, R]], model: M, items: Item) -> tuple[Float[Array, ""], R]:
    """Σ_j function(model, items_j), of a number to differentiate by the model and of arrays that are only reported.

    The items are stacked along the first axes of the leaves of `items`.
    """
    if jax.tree.leaves(items)[0].shape[0] == 1:
        return function(model, jax.tree.map(lambda leaf: leaf[0], items))
    if jax.default_backend() != "cpu":
        return jax.tree.map(_total, jax.vmap(function, in_axes=(None, 0))(model, items))
    weights, static = eqx.partition(model, eqx.is_inexact_array)

    def of_one(weights: PyTree, item: Item) -> tuple[Array, R]:
        return function(eqx.combine(weights, static), item)

    @jax.custom_vjp
    def total(weights: PyTree, items: Item) -> tuple[Array, R]:
        return jax.tree.map(_total, jax.lax.map(lambda item: of_one(weights, item), items))

    def forward(weights: PyTree, items: Item) -> tuple[tuple[Array, R], PyTree]:
        def add(slopes: PyTree, item: Item) -> tuple[PyTree, tuple[Array, R]]:
            values, slope = jax.value_and_grad(of_one, has_aux=True)(weights, item)
            return jax.tree.map(jnp.add, slopes, slope), values

        slopes, values = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, weights), items)
        return jax.tree.map(_total, values), slopes

    def backward(slopes: PyTree, wanted: tuple[Array, R]) -> tuple[PyTree, None]:
        return jax.tree.map(lambda slope: wanted[0] * slope, slopes), None

    total.defvjp(forward, backward)
    return total(weights, items)
