"""Networks: linear layers and MLPs. They take one example, or many along the last axes, features first.

(Features first: activations and the derivatives of biases then run along the examples, many at a time.)
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..runtime.activations import tanh
from ..runtime.host import array, uniform

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "silu": jax.nn.silu,
    "relu": jax.nn.relu,
    "tanh": tanh,
    "softplus": jax.nn.softplus,
    "gelu": jax.nn.gelu,
}


def along(values: Float[Array, " channels"], x: Float[Array, ...]) -> Float[Array, "channels ..."]:
    """`values` by channel, to be added to x or multiplied with it."""
    return values.reshape(-1, *(1,) * (x.ndim - 1))


def mix(weight: Float[Array, "out_size in_size"], x: Float[Array, "in_size ..."]) -> Float[Array, "out_size ..."]:
    """W x over all that follows the first axis, as a product of two matrices: XLA would transpose the derivatives of others."""
    return (weight @ x.reshape(len(x), -1)).reshape(-1, *x.shape[1:])


class Linear(eqx.Module):
    """W x + b for one example, or for many along the last axes."""

    weight: Float[Array, "out_size in_size"]
    bias: Float[Array, " out_size"]

    def __init__(self, in_size: int, out_size: int, *, zero: bool = False, rng: np.random.Generator):
        shapes = ((out_size, in_size), (out_size,))
        self.weight, self.bias = (array(np.zeros(s)) if zero else uniform(rng, s, in_size) for s in shapes)

    def __call__(self, x: Float[Array, "in_size ..."]) -> Float[Array, "out_size ..."]:
        if x.ndim == 1:  # a row: `vmap` stacks rows without a transpose
            return x @ self.weight.T + self.bias
        return mix(self.weight, x) + along(self.bias, x)


def push_through(
    activation: Callable[[Array], Array], x: Float[Array, "k size"], dx: Float[Array, "d size"]
) -> tuple[Float[Array, "k size"], Float[Array, "d size"]]:
    """The activation at k points, and its derivatives along d directions at the first of them."""
    first, others = x[:1], x[1:]
    value, slope = jax.jvp(activation, (first,), (jnp.ones_like(first),))
    return jnp.concatenate([value, activation(others)]), slope * dx


class MLP(eqx.Module):
    """Linear layers of the given sizes with an activation between them.

    With `zero_last` the last layer starts at zero, so that the network starts as the constant 0.
    """

    layers: tuple[Linear, ...]
    activation: Callable[[Array], Array] = eqx.field(static=True)

    def __init__(
        self, sizes: Sequence[int], activation: str = "silu", *, zero_last: bool = False, rng: np.random.Generator
    ):
        *hidden, last = itertools.pairwise(sizes)
        self.layers = (*(Linear(*pair, rng=rng) for pair in hidden), Linear(*last, zero=zero_last, rng=rng))
        self.activation = ACTIVATIONS[activation]

    def __call__(self, x: Float[Array, "in_size ..."]) -> Float[Array, "out_size ..."]:
        for layer in self.layers[:-1]:
            x = self.activation(layer(x))
        return self.layers[-1](x)

    def push_forward(
        self, x: Float[Array, "k in_size"], dx: Float[Array, "d in_size"]
    ) -> tuple[Float[Array, "k out_size"], Float[Array, "d out_size"]]:
        """The network at k points, and its derivatives along d directions at the first of them, as rows.

        What `jax.jvp` gives, but points and directions go through each layer in one matrix product.
        """
        for i, layer in enumerate(self.layers):
            if i > 0:
                x, dx = push_through(self.activation, x, dx)
            rows = jnp.concatenate([x, dx]) @ layer.weight.T
            x, dx = rows[: len(x)] + layer.bias, rows[len(x) :]
        return x, dx
