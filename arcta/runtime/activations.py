"""tanh that stays fast under light compilation."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


@jax.custom_jvp
def tanh(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """tanh whose derivative also reads x, if only to see where floats have reached ±1. So x stays in memory: where tanh is written
    over its argument, XLA's older emitter (`compile`) does not vectorise it."""
    return jnp.tanh(x)


@tanh.defjvp
def _tanh_slope(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    y = tanh(*primals)
    return y, tangents[0] * jnp.where(jnp.abs(primals[0]) >= 20, 0, 1 - y * y)
