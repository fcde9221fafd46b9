"""The posterior by the model's own flow: a Kalman smoother along the linearised drift.

    e = z − m̄,   e_{i+1} = Φ_i e_i + ρ_i + w_i,   w ~ N(0, Q_i)            between neighbouring nodes, from f and J there
    log p(x_i | z) ≈ η_iᵀ e − ½ eᵀ Λ_i e                                   potentials of the observations

m̄ is the mean of the pass before, at first an encoder's; for a linear drift, a linear read-out and Gaussian noise one pass is exact.
A filter goes forward in covariances, (Λ⁺, η⁺) collects what is seen later, without an inverse of Q, which may be tiny:

    ṁ = f + Q (η⁺ − Λ⁺ e),      Ṡ = A S + S Aᵀ + Q,   A = J − Q Λ⁺          on either side of a node

Between nodes m and S are cubic in time with these slopes. Nodes without an observation fill gaps.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..runtime.small import factor
from .model import AbstractGenerative, Draw
from .posterior import AbstractPosterior, FullMarginal, FullNormal
from .sde import interpolate_inputs, value_and_jacobian

Vectors = Float[Array, "n latent"]
Matrices = Float[Array, "n latent latent"]


class Rows(NamedTuple):
    """What is observed at the nodes: times from `start`, values and mask (none where a node only fills a gap), and known inputs."""

    start: Float[Array, ""]
    times: Float[Array, " n"]
    values: Float[Array, "n channels"]
    mask: Bool[Array, "n channels"]
    first: Bool[Array, ""]
    input_times: Float[Array, " knots"]
    inputs: Float[Array, "knots inputs"]


BROAD = 1.0  # the variance of a state of which nothing is known: that of standardised data


class Steps(NamedTuple):
    """Φ, ρ and Q from each node to the next."""

    Φ: Float[Array, "n_less_1 latent latent"]
    ρ: Float[Array, "n_less_1 latent"]
    Q: Float[Array, "n_less_1 latent latent"]


class Information(NamedTuple):
    """Λ and η at each node."""

    Λ: Matrices
    η: Vectors


def _symmetric(matrix: Array) -> Array:
    return 0.5 * (matrix + jnp.swapaxes(matrix, -1, -2))


def _combine(P: Array, Λ: Array) -> Array:
    """(P⁻¹ + Λ)⁻¹ without an inverse of P."""
    return _symmetric(jnp.linalg.solve(jnp.eye(len(P), dtype=P.dtype) + P @ Λ, P))


def discretise(
    h: Float[Array, ""], m: Float[Array, "2 latent"], f: Float[Array, "2 latent"], J: Array, q: Array
) -> Steps:
    """Φ, ρ and Q over a step h from the mean, the drift and its Jacobian at both ends: fourth order, no other value of f."""
    X = 0.5 * h * (J[0] + J[1])
    X2 = X @ X
    Φ = jnp.eye(len(X), dtype=X.dtype) + X + X2 / 2 + X2 @ X / 6 + X2 @ X2 / 24
    defect = m[0] - m[1] + h / 2 * (f[0] + f[1]) + h**2 / 12 * (J[0] @ f[0] - J[1] @ f[1])
    # The residual f − m̄' vanishes at both ends; what is between reaches the end through Φ.
    ρ = defect + 0.5 * X @ defect + 0.15 * X2 @ defect
    term = h * jnp.diag(q)
    Q = term
    for order in range(2, 6):  # ∫ exp(Xs) Q exp(Xᵀs) ds, each term from the one before
        term = (X @ term + (X @ term).T) / order
        Q = Q + term
    return Steps(Φ, ρ, _symmetric(Q))


def potentials(model: AbstractGenerative, rows: Rows, m: Vectors) -> Information:
    """Λ and η of each node's observations at means m: exact for Gaussian noise and linear read-outs, Gauss–Newton otherwise."""
    θ = model.likelihood.median()

    def of_one(x: Array, mask: Array, m: Array) -> tuple[Array, Array]:
        output, H, doubt = model.decoder.linearise(m)

        def score(output: Array) -> Array:
            return jax.grad(lambda o: jnp.sum(jnp.where(mask, model.likelihood.log_density(x, o, θ), 0)))(output)

        slope, bend = jax.jvp(score, (output,), (jnp.ones_like(output),))
        weight = jnp.maximum(-bend, 0)
        uncertain = weight @ doubt
        return H.T @ (weight[:, None] * H) + jnp.diag(uncertain), slope @ H - uncertain * m

    return Information(*jax.vmap(of_one)(rows.values, rows.mask, m))


def _forward(steps: Steps, seen: Information, e: Array, P: Array) -> tuple[Vectors, Matrices]:
    """Means and covariances given all up to each node, from N(e, P) before the first."""

    def update(state: tuple[Array, Array], seen: Information) -> tuple[Array, Array]:
        e, P = state
        P = _combine(P, seen.Λ)
        return e + P @ (seen.η - seen.Λ @ e), P

    def step(state: tuple[Array, Array], item: tuple[Steps, Information]) -> tuple[tuple, tuple]:
        (e, P), (over, seen) = state, item
        state = update((over.Φ @ e + over.ρ, _symmetric(over.Φ @ P @ over.Φ.T + over.Q)), seen)
        return state, state

    begin = update((e, P), jax.tree.map(lambda leaf: leaf[0], seen))
    _, rest = jax.lax.scan(step, begin, (steps, jax.tree.map(lambda leaf: leaf[1:], seen)))
    return jax.tree.map(lambda first, rest: jnp.concatenate([first[None], rest]), begin, rest)


def _backward(steps: Steps, seen: Information) -> Information:
    """Λ⁺ and η⁺: what later nodes say of each."""
    size = seen.η.shape[1]
    one, nothing = jnp.eye(size, dtype=seen.η.dtype), jax.tree.map(lambda leaf: jnp.zeros_like(leaf[0]), seen)

    def step(later: Information, item: tuple[Steps, Information]) -> tuple[Information, Information]:
        over, seen = item
        Λ, η = later.Λ + seen.Λ, later.η + seen.η
        back = jnp.linalg.solve(one + Λ @ over.Q, jnp.concatenate([Λ, (η - Λ @ over.ρ)[:, None]], axis=1))
        back = over.Φ.T @ back
        later = Information(_symmetric(back[:, :size] @ over.Φ), back[:, size])
        return later, later

    _, rest = jax.lax.scan(step, nothing, (steps, jax.tree.map(lambda leaf: leaf[1:], seen)), reverse=True)
    return jax.tree.map(lambda rest, last: jnp.concatenate([rest, last[None]]), rest, nothing)


class Sides(NamedTuple):
    """Slopes of m and S right after each node and right before it."""

    mean_after: Vectors
    mean_before: Vectors
    covariance_after: Matrices
    covariance_before: Matrices


class SmoothedPosterior(AbstractPosterior):
    """m and S at the nodes, cubic in between. `change`: by how many standard deviations each pass moved a state at most."""

    times: Float[Array, " n"]
    mean: Vectors
    covariance: Matrices
    sides: Sides
    change: Float[Array, " passes"]

    def __call__(self, t: Float[Array, ""]) -> FullMarginal:
        i = jnp.clip(jnp.sum(self.times < t) - 1, 0, len(self.times) - 2)  # padding repeats the last time
        h = self.times[i + 1] - self.times[i]
        a = jnp.clip((t - self.times[i]) / h, 0, 1)
        s = self.sides
        m, ṁ = _cubic(a, h, self.mean[i], self.mean[i + 1], s.mean_after[i], s.mean_before[i + 1])
        ends = (self.covariance[i], self.covariance[i + 1], s.covariance_after[i], s.covariance_before[i + 1])
        S, Ṡ = _cubic(a, h, *ends)
        return FullMarginal(FullNormal(m, factor(_symmetric(S))), ṁ, _symmetric(Ṡ))

    def at_nodes(self) -> FullNormal:
        return FullNormal(self.mean, jax.vmap(factor)(self.covariance))


def _cubic(a: Array, h: Array, begin: Array, end: Array, begin_slope: Array, end_slope: Array) -> tuple[Array, Array]:
    """Hermite's cubic at a fraction a of a step h, and its rate."""

    def value(a: Array) -> Array:
        up = a * a * (3 - 2 * a)
        return (1 - up) * begin + up * end + h * a * (1 - a) * ((1 - a) * begin_slope - a * end_slope)

    v, slope = jax.jvp(value, (a,), (1 / h,))
    return v, slope


class Pass(NamedTuple):
    """A smoother's pass: drift and Jacobian at the means it was linearised around, how far the new means are from those, their
    covariances, and what is seen at each node and after it."""

    f: Vectors
    J: Matrices
    e: Vectors
    S: Matrices
    seen: Information
    later: Information


def _smooth(model: AbstractGenerative, rows: Rows, q: Vectors, θ: Draw, m: Vectors) -> Pass:
    """One pass, linearised around means m."""
    u = jax.vmap(lambda t: interpolate_inputs(t, rows.input_times, rows.inputs))(rows.times)
    flow = jax.vmap(lambda t, m, u: value_and_jacobian(model.drift, t, m, m, u, θ.drift))
    f, J = flow(rows.start + rows.times, m, u)

    def pairs(x: Array) -> Array:
        return jnp.stack([x[:-1], x[1:]], axis=1)

    steps = jax.vmap(discretise)(jnp.diff(rows.times), pairs(m), pairs(f), pairs(J), 0.5 * (q[1:] + q[:-1]))
    seen = potentials(model, rows, m)
    unknown = BROAD * jnp.eye(m.shape[1], dtype=m.dtype)
    P = jnp.where(rows.first, model.initial.covariance(), unknown)
    e, P = _forward(steps, seen, jnp.where(rows.first, model.initial.mean - m[0], 0.0), P)
    later = _backward(steps, seen)
    S = jax.lax.map(lambda pair: _combine(*pair), (P, later.Λ))
    e = e + jnp.einsum("nij,nj->ni", S, later.η - jnp.einsum("nij,nj->ni", later.Λ, e))
    return Pass(f, J, e, S, seen, later)


def smooth_rows(model: AbstractGenerative, rows: Rows, guess: Vectors, *, passes: int = 3) -> SmoothedPosterior:
    """The posterior of the states behind some rows, linearised around `guess`, then around each pass's own means.

    The first row is the start of a series (`first`), where p(z0) holds, or one where nothing is known before.
    """
    θ = model.median()
    q = jax.vmap(lambda t: model.diffusion(t, θ.diffusion))(rows.start + rows.times)

    def again(m: Vectors, _: None) -> tuple[Vectors, tuple[Pass, Array]]:
        found = _smooth(model, rows, q, θ, m)
        spread = jnp.sqrt(jnp.diagonal(found.S, axis1=1, axis2=2))
        return m + found.e, (found, jnp.max(jnp.abs(found.e) / spread))

    m, (every, change) = jax.lax.scan(again, guess, length=passes)
    last: Pass = jax.tree.map(lambda leaf: leaf[-1], every)
    return SmoothedPosterior(rows.times, m, last.S, _slopes(last, q), change)


def _slopes(last: Pass, q: Vectors) -> Sides:
    """The rates of m and S on both sides of each node, given what is seen after it, itself left out or counted in."""

    def at(f: Array, J: Array, e: Array, S: Array, q: Array, Λ: Array, η: Array) -> tuple[Array, Array]:
        A = J - q[:, None] * Λ
        return f + J @ e + q * (η - Λ @ e), A @ S + (A @ S).T + jnp.diag(q)

    after, seen = last.later, last.seen
    right, grows = jax.vmap(at)(*last[:4], q, *after)
    left, grew = jax.vmap(at)(*last[:4], q, after.Λ + seen.Λ, after.η + seen.η)
    return Sides(right, left, grows, grew)
