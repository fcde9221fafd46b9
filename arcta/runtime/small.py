"""Algebra of small matrices, unrolled over their size: mapped over many of them it is elementwise, where LAPACK takes them one by
one, and derivatives come for free. No pivots: for symmetric positive definite matrices, and triangles of them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Matrix = Float[Array, "n n"]


def factor(matrix: Matrix) -> Matrix:
    """The lower triangle Λ with Λ Λᵀ = matrix, by outer products. A pivot that rounding made negative counts as tiny."""
    rows, columns = jnp.arange(len(matrix)), []
    tiny = jnp.finfo(matrix.dtype).tiny ** 0.5
    for j in range(len(matrix)):
        column = jnp.where(rows >= j, matrix[:, j], 0) * jax.lax.rsqrt(jnp.maximum(matrix[j, j], tiny))
        matrix = matrix - column[:, None] * column[None, :]
        columns.append(column)
    return jnp.stack(columns, axis=1)


def solve_lower(triangle: Matrix, right: Float[Array, " n"]) -> Float[Array, " n"]:
    """Λ⁻¹ right."""
    found = []
    for j in range(len(triangle)):
        found.append(right[j] / triangle[j, j])
        right = right - triangle[:, j] * found[-1]
    return jnp.stack(found)


def solve_upper(triangle: Matrix, right: Float[Array, " n"]) -> Float[Array, " n"]:
    """Λ⁻ᵀ right."""
    return solve_lower(triangle[::-1, ::-1].T, right[::-1])[::-1]


@jax.custom_batching.sequential_vmap
def eigh(matrix: Matrix) -> tuple[Float[Array, " n"], Matrix]:
    """Eigenvalues and vectors by LAPACK, one matrix after the other: batches of its calls wait for one another for ever."""
    values, vectors = jnp.linalg.eigh(matrix)
    return values, vectors


def combine(P: Matrix, Λ: Matrix) -> Matrix:
    """(P⁻¹ + Λ)⁻¹ for two symmetric, positive semidefinite matrices, without an inverse of either."""
    one = jnp.eye(len(P), dtype=P.dtype)
    if len(P) > 3:  # larger ones compile sooner and run as fast by LAPACK
        both = jnp.linalg.solve(one + P @ Λ, P)
        return 0.5 * (both + both.T)
    G = factor(P)
    L = factor(one + G.T @ Λ @ G)
    X = jax.vmap(lambda column: solve_lower(L, column), in_axes=1, out_axes=1)(G.T)
    return X.T @ X
