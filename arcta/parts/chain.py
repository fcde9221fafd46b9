"""A chain of linear Gaussian steps between nodes, and what is seen at them: filter, smoother, and how both answer to the steps.

    e_{i+1} = Φ_i e_i + ρ_i + Ψ_i c + w_i,   w ~ N(0, Q_i)                  c: numbers that all steps share
    log p(x_i | e_i) = η_iᵀ e_i − ½ e_iᵀ Λ_i e_i + const

The filter goes forward in covariances; (Λ⁺, η⁺) collects what is seen later, going back; neither takes an inverse of Q, which may
be tiny. e depends linearly on c: D = ∂e/∂c, and what all observations together say of c is Σ D⁻ᵀ U D⁻, where D⁻ is what the filter
expects of a node before it is seen and U = Λ (I + P⁻ Λ)⁻¹ the precision of an observation given those before it.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..runtime.small import combine

Vectors = Float[Array, "n latent"]
Matrices = Float[Array, "n latent latent"]
DOUBLINGS = 3


class Steps(NamedTuple):
    """Φ, ρ and Q from each node to the next."""

    Φ: Float[Array, "n_less_1 latent latent"]
    ρ: Float[Array, "n_less_1 latent"]
    Q: Float[Array, "n_less_1 latent latent"]


class Information(NamedTuple):
    """Λ and η at each node."""

    Λ: Matrices
    η: Vectors


class Smoothed(NamedTuple):
    """e and S given everything, and given all up to a node (`past`, P); and what later nodes say of it."""

    e: Vectors
    S: Matrices
    past: Vectors
    P: Matrices
    later: Information


class Response(NamedTuple):
    """∂/∂c of what the filter expects of a node, of e, and of η⁺."""

    ahead: Float[Array, "n latent coefficients"]
    e: Float[Array, "n latent coefficients"]
    η: Float[Array, "n latent coefficients"]


def symmetric(matrix: Array) -> Array:
    return 0.5 * (matrix + jnp.swapaxes(matrix, -1, -2))


def discretise(
    h: Float[Array, ""], m: Float[Array, "2 latent"], f: Float[Array, "2 latent"], J: Array, q: Array
) -> Steps:
    """Φ, ρ and Q over a step h from the mean, the drift and its Jacobian at both ends: fourth order, no other value of f.

    Φ and Q are those of an eighth of the step, doubled three times: a Taylor series alone would let fast decay explode.
    """
    X = 0.5 * h * (J[0] + J[1])
    defect = m[0] - m[1] + h / 2 * (f[0] + f[1]) + h**2 / 12 * (J[0] @ f[0] - J[1] @ f[1])
    # The residual f − m̄' vanishes at both ends; what is between reaches the end through Φ.
    ρ = defect + 0.5 * X @ defect + 0.15 * X @ (X @ defect)
    part = X / 2**DOUBLINGS
    square = part @ part
    Φ = jnp.eye(len(X), dtype=X.dtype) + part + square / 2 + square @ part / 6 + square @ square / 24
    term = Q = h / 2**DOUBLINGS * jnp.diag(q)
    for order in range(2, 6):  # ∫ exp(Xs) Q exp(Xᵀs) ds, each term from the one before
        term = (part @ term + (part @ term).T) / order
        Q = Q + term
    for _ in range(DOUBLINGS):
        Φ, Q = Φ @ Φ, Q + Φ @ Q @ Φ.T
    return Steps(Φ, ρ, symmetric(Q))


def _forward(steps: Steps, seen: Information, e: Array, P: Array) -> tuple[Vectors, Matrices]:
    """Means and covariances given all up to each node, from N(e, P) before the first."""

    def update(state: tuple[Array, Array], seen: Information) -> tuple[Array, Array]:
        e, P = state
        P = combine(P, seen.Λ)
        return e + P @ (seen.η - seen.Λ @ e), P

    def step(state: tuple[Array, Array], item: tuple[Steps, Information]) -> tuple[tuple, tuple]:
        (e, P), (over, seen) = state, item
        state = update((over.Φ @ e + over.ρ, symmetric(over.Φ @ P @ over.Φ.T + over.Q)), seen)
        return state, state

    begin = update((e, P), jax.tree.map(lambda leaf: leaf[0], seen))
    _, rest = jax.lax.scan(step, begin, (steps, jax.tree.map(lambda leaf: leaf[1:], seen)))
    return jax.tree.map(lambda first, rest: jnp.concatenate([first[None], rest]), begin, rest)


def _backward(steps: Steps, seen: Information) -> Information:
    """Λ⁺ and η⁺."""
    nothing = jax.tree.map(lambda leaf: jnp.zeros_like(leaf[0]), seen)

    def step(later: Information, item: tuple[Steps, Information]) -> tuple[Information, Information]:
        over, seen = item
        Λ, v = later.Λ + seen.Λ, later.η + seen.η
        v = v - Λ @ over.ρ
        before = combine(Λ, over.Q)  # (Λ⁻¹ + Q)⁻¹, and (I + Λ Q)⁻¹ = I − before Q
        later = Information(symmetric(over.Φ.T @ before @ over.Φ), over.Φ.T @ (v - before @ (over.Q @ v)))
        return later, later

    _, rest = jax.lax.scan(step, nothing, (steps, jax.tree.map(lambda leaf: leaf[1:], seen)), reverse=True)
    return jax.tree.map(lambda rest, last: jnp.concatenate([rest, last[None]]), rest, nothing)


class Stretch(NamedTuple):
    """Some nodes in a row: given the state e before them, that at the last is N(A e + b, C), and what is seen at them says Λ and
    η of e. Two stretches that follow each other make one, in whatever order that is done (Särkkä and García-Fernández, 2021)."""

    A: Matrices
    b: Vectors
    C: Matrices
    seen: Information


def _join(first: Stretch, then: Stretch) -> Stretch:
    inner = jnp.linalg.inv(jnp.eye(first.b.shape[-1], dtype=first.b.dtype) + first.C @ then.seen.Λ)
    turn, back = then.A @ inner, jnp.swapaxes(inner @ first.A, -1, -2)
    apply = lambda M, v: jnp.einsum("...ij,...j->...i", M, v)  # noqa: E731
    seen = Information(
        symmetric(back @ then.seen.Λ @ first.A) + first.seen.Λ,
        apply(back, then.seen.η - apply(then.seen.Λ, first.b)) + first.seen.η,
    )
    b = apply(turn, first.b + apply(first.C, then.seen.η)) + then.b
    return Stretch(turn @ first.A, b, symmetric(turn @ first.C @ jnp.swapaxes(then.A, -1, -2)) + then.C, seen)


def _in_parallel(steps: Steps, seen: Information, e: Array, P: Array) -> tuple[Vectors, Matrices, Information]:
    """`_forward` and `_backward` in a logarithm of as many rounds, for machines that do much at once."""

    def of_step(over: Steps, seen: Information) -> Stretch:
        C, Λ = combine(over.Q, seen.Λ), combine(seen.Λ, over.Q)
        back = over.Φ - C @ (seen.Λ @ over.Φ)
        ahead = over.ρ + C @ (seen.η - seen.Λ @ over.ρ)
        known = seen.η - Λ @ (over.Q @ seen.η) - Λ @ over.ρ
        return Stretch(back, ahead, C, Information(symmetric(over.Φ.T @ Λ @ over.Φ), over.Φ.T @ known))

    rest = jax.vmap(of_step)(steps, jax.tree.map(lambda leaf: leaf[1:], seen))
    begun = combine(P, seen.Λ[0])
    nothing = jax.tree.map(jnp.zeros_like, Information(P, e))
    begin = Stretch(jnp.zeros_like(P), e + begun @ (seen.η[0] - seen.Λ[0] @ e), begun, nothing)
    whole = jax.tree.map(lambda first, rest: jnp.concatenate([first[None], rest]), begin, rest)
    past = jax.lax.associative_scan(_join, whole)
    later = jax.lax.associative_scan(lambda a, b: _join(b, a), rest, reverse=True).seen
    return past.b, past.C, jax.tree.map(lambda rest, last: jnp.concatenate([rest, last[None]]), later, nothing)


def smooth(
    steps: Steps,
    seen: Information,
    e: Float[Array, " latent"],
    P: Float[Array, "latent latent"],
    *,
    parallel: bool | None = None,
) -> Smoothed:
    """The chain given everything that is seen, from N(e, P) before the first node is. `parallel`: by default on all but CPUs, which
    are done sooner node by node."""
    if parallel or (parallel is None and jax.default_backend() != "cpu"):
        means, covariances, later = _in_parallel(steps, seen, e, P)
    else:
        means, covariances = _forward(steps, seen, e, P)
        later = _backward(steps, seen)
    S = jax.lax.map(lambda pair: combine(*pair), (covariances, later.Λ))
    pull = later.η - jnp.einsum("nij,nj->ni", later.Λ, means)
    return Smoothed(means + jnp.einsum("nij,nj->ni", S, pull), S, means, covariances, later)


def expect(
    steps: Steps, seen: Information, P: Matrices, Ψ: Float[Array, "n_less_1 latent coefficients"]
) -> tuple[Float[Array, "n latent coefficients"], Float[Array, "n latent coefficients"]]:
    """∂/∂c of what the filter expects of each node, and of what it makes of it."""
    nothing = jnp.zeros(Ψ.shape[1:], Ψ.dtype)
    keep = jnp.eye(P.shape[1], dtype=P.dtype) - P @ seen.Λ  # (I + P⁻ Λ)⁻¹

    def step(D: Array, item: tuple[Array, Array, Array]) -> tuple[Array, tuple[Array, Array]]:
        Φ, Ψ, keep = item
        ahead = Φ @ D + Ψ
        D = keep @ ahead
        return D, (ahead, D)

    _, rest = jax.lax.scan(step, nothing, (steps.Φ, Ψ, keep[1:]))
    ahead, filtered = (jnp.concatenate([nothing[None], part]) for part in rest)
    return ahead, filtered


def respond(
    steps: Steps, seen: Information, found: Smoothed, Ψ: Float[Array, "n_less_1 latent coefficients"]
) -> Response:
    """How the smoothed chain answers to c."""
    ahead, filtered = expect(steps, seen, found.P, Ψ)
    Λ = found.later.Λ

    def step(η: Array, item: tuple[Array, ...]) -> tuple[Array, Array]:
        Φ, Q, Ψ, Λ = item
        v = η - Λ @ Ψ
        η = Φ.T @ (v - combine(Λ, Q) @ (Q @ v))
        return η, η

    nothing = jnp.zeros_like(filtered[0])
    _, η = jax.lax.scan(step, nothing, (steps.Φ, steps.Q, Ψ, (Λ + seen.Λ)[1:]), reverse=True)
    η = jnp.concatenate([η, nothing[None]])
    return Response(ahead, filtered + found.S @ (η - Λ @ filtered), η)


def information(
    ahead: Float[Array, "n latent coefficients"], seen: Information, P: Matrices, counted: Bool[Array, " n"]
) -> Float[Array, "coefficients coefficients"]:
    """What the nodes that count say of c: Σ D⁻ᵀ U D⁻."""
    U = symmetric(seen.Λ - seen.Λ @ P @ seen.Λ) * counted[:, None, None]
    size = ahead.shape[2]
    return symmetric(ahead.reshape(-1, size).T @ (U @ ahead).reshape(-1, size))


class Adjoint(NamedTuple):
    """λ = Q⁻¹ E w and its variance N, of the noise that reaches a node or leaves it; E λ at z is λ − Λ (z − e)."""

    λ: Vectors
    N: Matrices
    Λ: Matrices


def adjoints(seen: Information, found: Smoothed) -> tuple[Adjoint, Adjoint]:
    """Right after each node and right before it."""

    def of(later: Information) -> Adjoint:
        return Adjoint(
            later.η - jnp.einsum("nij,nj->ni", later.Λ, found.e),
            symmetric(later.Λ - later.Λ @ found.S @ later.Λ),
            later.Λ,
        )

    return of(found.later), of(jax.tree.map(jnp.add, found.later, seen))


def information_of_noise(
    steps: Steps,
    seen: Information,
    found: Smoothed,
    changes: Float[Array, "n_less_1 k latent latent"],
    counted: Bool[Array, " n"],
) -> Float[Array, "k k"]:
    """What the nodes that count say of numbers that Q depends on, by ∂Q."""
    d, k = found.e.shape[1], changes.shape[1]
    keep = jnp.eye(d, dtype=found.P.dtype) - found.P @ seen.Λ
    U = symmetric(seen.Λ - seen.Λ @ found.P @ seen.Λ) * counted[:, None, None]
    ahead = jnp.einsum("nij,nj->ni", steps.Φ, found.past[:-1]) + steps.ρ
    news = seen.η[1:] - jnp.einsum("nij,nj->ni", seen.Λ[1:], ahead)

    def step(state: tuple[Array, Array, Array], item: tuple[Array, ...]) -> tuple[tuple[Array, Array, Array], None]:
        dP, de, known = state
        Φ, dQ, keep, U, news = item
        dP = Φ @ dP @ Φ.T + dQ
        de = de @ Φ.T
        flat = (U @ dP).reshape(k, -1)
        across = jnp.swapaxes(U @ dP, 1, 2).reshape(k, -1)
        known = known + 0.5 * flat @ across.T + de @ U @ de.T
        dP = keep @ dP @ keep.T
        de = de @ keep.T + dP @ news
        return (dP, de, known), None

    nothing = (jnp.zeros((k, d, d), U.dtype), jnp.zeros((k, d), U.dtype), jnp.zeros((k, k), U.dtype))
    (_, _, known), _ = jax.lax.scan(step, nothing, (steps.Φ, changes, keep[1:], U[1:], news))
    return symmetric(known)
