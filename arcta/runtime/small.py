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


def _inverse(matrix: Matrix) -> Matrix:
    """By cofactors, of one to three rows."""
    if len(matrix) == 1:
        return 1 / matrix
    if len(matrix) == 2:
        (a, b), (c, d) = matrix
        return jnp.stack([jnp.stack([d, -b]), jnp.stack([-c, a])]) / (a * d - b * c)
    x, y, z = matrix
    columns = jnp.stack([jnp.cross(y, z), jnp.cross(z, x), jnp.cross(x, y)], axis=1)
    return columns / (x @ columns[:, 0])


def combine(P: Matrix, Λ: Matrix) -> Matrix:
    """(P⁻¹ + Λ)⁻¹ = (I + P Λ)⁻¹ P for two symmetric, positive semidefinite matrices, without an inverse of either."""
    whole = jnp.eye(len(P), dtype=P.dtype) + P @ Λ
    both = _inverse(whole) @ P if len(P) <= 3 else jnp.linalg.solve(whole, P)
    return 0.5 * (both + both.T)
