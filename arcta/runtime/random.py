"""Normal numbers that are computed once."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray


def normal(key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, ...]:
    """`jax.random.normal`, the same numbers.

    XLA takes the last of what makes them from random bits for cheap and, on a CPU, repeats it in every kernel that reads them, a
    dozen in the derivative of a residual. A loop that runs once, though the compiler cannot know that, ends in memory.
    (`optimization_barrier` does not hold: it is taken out before kernels are formed.)
    """
    if jax.default_backend() != "cpu":
        return jax.random.normal(key, shape)
    once = (jnp.ravel(jax.random.key_data(key))[0] | 1) != 0  # always, but only we know
    first = (once, jnp.zeros(shape))
    return jax.lax.while_loop(lambda c: c[0], lambda c: (~once, jax.random.normal(key, shape)), first)[1]
