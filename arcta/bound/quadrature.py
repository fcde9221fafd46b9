"""Random times for the integral over a window.

    ∫₀¹ g(t) dt ≈ (1/S) Σ_l g((l + U_l)/S),   l = 0 … S−1,   U_l ~ U(0, 1)

Stratified: one uniform time in each of S equal strata. Unbiased, and for smooth g its variance falls as S⁻³ where that
of plain Monte Carlo falls as S⁻¹.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray


def stratified(num_draws: int, num_times: int, *, key: PRNGKeyArray) -> Float[Array, "draws times"]:
    """`num_draws` independent sets of `num_times` stratified times in [0, 1)."""
    uniform = jax.random.uniform(key, (num_draws, num_times))
    return (jnp.arange(num_times) + uniform) / num_times


def uniform(num_draws: int, num_times: int, *, key: PRNGKeyArray) -> Float[Array, "draws times"]:
    """The same number of independent uniform times: plain Monte Carlo, to compare with."""
    return jax.random.uniform(key, (num_draws, num_times))
