"""The posterior by the model's own flow: a Kalman smoother along the linearised drift.

    e = z − m̄,   e_{i+1} = Φ_i e_i + ρ_i + w_i          between neighbouring nodes, from f and J = ∂f/∂z there (`chain`)
    log p(x_i | z) ≈ η_iᵀ e − ½ eᵀ Λ_i e                 potentials of the observations

m̄ is the mean of the pass before, at first an encoder's; for a linear drift, a linear read-out and Gaussian noise one pass is exact.

    ṁ = f + J e + Q (η⁺ − Λ⁺ e),      Ṡ = A S + S Aᵀ + Q,   A = J − Q Λ⁺          on either side of a node

Between nodes m and S are cubic in time with these slopes. Nodes without an observation fill gaps. How m answers to the drift's
coefficients c, by M = ∂m/∂c, makes the posterior of both one: q(c) q(z | c) with mean m + M (c − c̄).
"""

import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ..data.windows import Window
from ..runtime.small import factor, solve_lower
from .chain import Information, Matrices, Smoothed, Steps, Vectors, discretise, respond, smooth, symmetric
from .generative import AbstractGenerative, Draw
from .posterior import AbstractPosterior, FullMarginal, FullNormal
from .sde import interpolate_inputs, value_and_jacobian

BROAD = 1.0  # the variance of a state of which nothing is known: that of standardised data
PASSES = 2
LONGEST = 0.4  # step between two nodes in the model's units of time, in which the dynamics turn by about one radian

LEFT = 0.05  # of a variance, at least, at the corners of its cubic
MEMORY = 3.0  # what is remembered across that much time is little, and across so many nodes
FEWEST, MOST = 32, 128  # nodes beyond either end of a window


def margin_for(step: float) -> int:
    """How many nodes of that step to smooth beyond either end of a window."""
    return int(min(max(math.ceil(MEMORY / step), FEWEST), MOST))


class Rows(NamedTuple):
    """What is observed at the nodes: times from `start`, values and mask (none where a node only fills a gap), and known inputs."""

    start: Float[Array, ""]
    times: Float[Array, " n"]
    values: Float[Array, "n channels"]
    mask: Bool[Array, "n channels"]
    first: Bool[Array, ""]
    input_times: Float[Array, " knots"]
    inputs: Float[Array, "knots inputs"]

    def inputs_at_nodes(self) -> Float[Array, "n inputs"]:
        return jax.vmap(lambda t: interpolate_inputs(t, self.input_times, self.inputs))(self.times)


def potentials(model: AbstractGenerative, rows: Rows, m: Vectors) -> Information:
    """Λ and η of each node's observations at means m: exact for Gaussian noise and linear read-outs, Gauss–Newton otherwise."""
    θ = model.likelihood.typical()

    def of_one(x: Array, mask: Array, m: Array) -> tuple[Array, Array]:
        output, H, doubt = model.decoder.linearise(m)

        def score(output: Array) -> Array:
            return jax.grad(lambda o: jnp.sum(jnp.where(mask, model.likelihood.log_density(x, o, θ), 0)))(output)

        slope, bend = jax.jvp(score, (output,), (jnp.ones_like(output),))
        weight = jnp.maximum(-bend, 0)
        uncertain = weight @ doubt
        return H.T @ (weight[:, None] * H) + jnp.diag(uncertain), slope @ H - uncertain * m

    return Information(*jax.vmap(of_one)(rows.values, rows.mask, m))


class Sides(NamedTuple):
    """Slopes of m and S right after each node and right before it."""

    mean_after: Vectors
    mean_before: Vectors
    covariance_after: Matrices
    covariance_before: Matrices


class Answer(NamedTuple):
    """∂/∂c of the mean at each node and of its slopes after and before."""

    mean: Float[Array, "n latent coefficients"]
    after: Float[Array, "n latent coefficients"]
    before: Float[Array, "n latent coefficients"]


class SmoothedPosterior(AbstractPosterior):
    """m and S at the nodes, cubic in between. `change`: by how many standard deviations each pass moved a state at most."""

    times: Float[Array, " n"]
    mean: Vectors
    covariance: Matrices
    sides: Sides
    change: Float[Array, " passes"]
    answer: Answer | None = None

    def __call__(self, t: Float[Array, ""]) -> FullMarginal:
        (i, h, a), s = self._where(t), self.sides
        m, ṁ = _cubic(a, h, self.mean[i], self.mean[i + 1], s.mean_after[i], s.mean_before[i + 1])
        ends = (self.covariance[i], self.covariance[i + 1], s.covariance_after[i], s.covariance_before[i + 1])
        S, Ṡ = _cubic(a, h, *ends)
        return FullMarginal(FullNormal(m, factor(symmetric(S))), ṁ, symmetric(Ṡ))

    def at_nodes(self) -> FullNormal:
        return FullNormal(self.mean, jax.vmap(factor)(self.covariance))

    def given(self, departure: Float[Array, " coefficients"]) -> "SmoothedPosterior":
        if self.answer is None:
            return self
        mean, after, before = (part @ departure for part in self.answer)
        s = self.sides
        moved = (self.mean + mean, s.mean_after + after, s.mean_before + before)
        return eqx.tree_at(lambda p: (p.mean, p.sides.mean_after, p.sides.mean_before), self, moved)

    def answer_at(self, t: Float[Array, ""]) -> Float[Array, "latent coefficients"]:
        """∂m/∂c at a time."""
        assert self.answer is not None
        (mean, after, before), (i, h, a) = self.answer, self._where(t)
        return _cubic(a, h, mean[i], mean[i + 1], after[i], before[i + 1])[0]

    def _where(self, t: Float[Array, ""]) -> tuple[Array, Array, Array]:
        """The node before t, the step from there, and the fraction of it that has passed."""
        i = jnp.clip(jnp.sum(self.times < t) - 1, 0, len(self.times) - 2)  # padding repeats a time
        step = self.times[i + 1] - self.times[i]
        h = jnp.where(step > 0, step, 1.0)
        return i, h, jnp.clip((t - self.times[i]) / h, 0, 1)

    def at_rows(self, row: Int[Array, " rows"]) -> "SmoothedPosterior":
        """With its nodes at those places."""
        change, placed = self.change, jax.tree.map(lambda leaf: leaf[row] if leaf.ndim else leaf, self)
        return eqx.tree_at(lambda p: p.change, placed, change)


def _cubic(a: Array, h: Array, begin: Array, end: Array, begin_slope: Array, end_slope: Array) -> tuple[Array, Array]:
    """Hermite's cubic at a fraction a of a step h, and its rate."""

    def value(a: Array) -> Array:
        up = a * a * (3 - 2 * a)
        return (1 - up) * begin + up * end + h * a * (1 - a) * ((1 - a) * begin_slope - a * end_slope)

    v, slope = jax.jvp(value, (a,), (1 / h,))
    return v, slope


class Pass(NamedTuple):
    """A pass of the smoother: the means it was linearised around, drift and Jacobian there, the chain and what it found."""

    m: Vectors
    f: Vectors
    J: Matrices
    steps: Steps
    seen: Information
    found: Smoothed


def _pairs(x: Array) -> Array:
    return jnp.stack([x[:-1], x[1:]], axis=1)


def chain_over(rows: Rows, m: Vectors, f: Vectors, J: Matrices, q: Vectors) -> Steps:
    """The steps between nodes, from means there, drift and Jacobian at those, and q."""
    return jax.vmap(discretise)(jnp.diff(rows.times), _pairs(m), _pairs(f), _pairs(J), 0.5 * (q[1:] + q[:-1]))


def smooth_once(model: AbstractGenerative, rows: Rows, q: Vectors, θ: Draw, m: Vectors) -> Pass:
    """One pass, linearised around means m."""
    flow = jax.vmap(lambda t, m, u: value_and_jacobian(model.drift, t, m, m, u, θ.drift))
    f, J = flow(rows.start + rows.times, m, rows.inputs_at_nodes())
    steps = chain_over(rows, m, f, J, q)
    seen = potentials(model, rows, m)
    unknown = BROAD * jnp.eye(m.shape[1], dtype=m.dtype)
    P = jnp.where(rows.first, model.initial.covariance(), unknown)
    e = jnp.where(rows.first, model.initial.mean - m[0], 0.0)
    return Pass(m, f, J, steps, seen, smooth(steps, seen, e, P))


def smooth_rows(
    model: AbstractGenerative, rows: Rows, guess: Vectors, *, passes: int = PASSES, stride: float = 1.0
) -> tuple[SmoothedPosterior, Pass]:
    """The posterior of the states behind some rows, linearised around `guess`, then around each pass's own means; and the last one.

    The first row is the start of a series (`first`), where p(z0) holds, or one where nothing is known before. With a stride below 1
    all passes but the last go that part of the way: where a drift bends much within a state's doubt, whole ones may go to and fro.
    """
    θ = model.median()
    q = jax.vmap(lambda t: model.diffusion(t, θ.diffusion))(rows.start + rows.times)

    def again(carry: tuple[Vectors, Pass | None], _: None) -> tuple[tuple[Vectors, Pass], Array]:
        one = smooth_once(model, rows, q, θ, carry[0])
        spread = jnp.sqrt(jnp.diagonal(one.found.S, axis1=1, axis2=2))
        return (one.m + stride * one.found.e, one), jnp.max(jnp.abs(one.found.e) / spread)

    blank = jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(again, (guess, None), None)[0][1]
    )
    (_, last), change = jax.lax.scan(again, (guess, blank), length=passes)
    sides = _bend_less(_slopes(last, q), last.found.S, jnp.diff(rows.times))
    return SmoothedPosterior(rows.times, last.m + last.found.e, last.found.S, sides, change), last


def _slopes(last: Pass, q: Vectors) -> Sides:
    """The rates of m and S on both sides of each node, given what is seen after it, itself left out or counted in."""
    e, S, after = last.found.e, last.found.S, last.found.later

    def at(f: Array, J: Array, e: Array, S: Array, q: Array, Λ: Array, η: Array) -> tuple[Array, Array]:
        A = J - q[:, None] * Λ
        return f + J @ e + q * (η - Λ @ e), A @ S + (A @ S).T + jnp.diag(q)

    right, grows = jax.vmap(at)(last.f, last.J, e, S, q, *after)
    left, grew = jax.vmap(at)(last.f, last.J, e, S, q, after.Λ + last.seen.Λ, after.η + last.seen.η)
    return Sides(right, left, grows, grew)


def _bend_less(sides: Sides, S: Matrices, h: Float[Array, " n_less_1"]) -> Sides:
    """The same with slopes of S under which its cubics are covariances.

    A cubic is a mean of S, S + h Ṡ⁺/3 at its beginning and S, S − h Ṡ⁻/3 at its end, with positive weights (Bernstein): if all
    four are positive definite it is. Where nodes are too far apart for what happens between them they need not be; then the slope
    is made smaller, by the norm of what it adds to S in units of S.
    """

    def limit(S: Array, change: Array) -> Array:
        triangle = factor(S)
        half = jax.vmap(lambda column: solve_lower(triangle, column))(change.T)
        M = symmetric(jax.vmap(lambda column: solve_lower(triangle, column))(half.T))
        roots = jnp.diagonal(factor(jnp.eye(len(S), dtype=S.dtype) + M))  # of the pivots; negative where those are
        size = jnp.sqrt(jnp.sum(M**2))
        return jnp.where(jnp.min(roots) > LEFT**0.5, 1.0, (1 - LEFT) / jnp.maximum(size, 1 - LEFT))

    third = h[:, None, None] / 3
    after = jax.vmap(limit)(S[:-1], third * sides.covariance_after[:-1])[:, None, None]
    before = jax.vmap(limit)(S[1:], -third * sides.covariance_before[1:])[:, None, None]
    return sides._replace(
        covariance_after=sides.covariance_after.at[:-1].multiply(after),
        covariance_before=sides.covariance_before.at[1:].multiply(before),
    )


def drift_slopes(model: AbstractGenerative, rows: Rows, m: Vectors) -> Float[Array, "n latent coefficients"]:
    """F = ∂f/∂c at the nodes."""
    return jax.vmap(model.drift.slope)(rows.start + rows.times, m, rows.inputs_at_nodes())


def over_steps(
    rows: Rows, J: Matrices, F: Float[Array, "n latent coefficients"]
) -> Float[Array, "n_less_1 latent coefficients"]:
    """Ψ: what the coefficients add over each step."""
    h = jnp.diff(rows.times)[:, None, None]
    Ψ = 0.5 * h * (F[:-1] + F[1:])
    return Ψ + 0.25 * h * (J[:-1] + J[1:]) @ Ψ


def answer_of(model: AbstractGenerative, rows: Rows, last: Pass) -> Answer:
    """How the posterior answers to the drift's coefficients."""
    m = last.m + last.found.e
    F = drift_slopes(model, rows, m)
    response = respond(last.steps, last.seen, last.found, over_steps(rows, last.J, F))
    θ = model.median()
    q = jax.vmap(lambda t: model.diffusion(t, θ.diffusion))(rows.start + rows.times)[..., None]
    M, Λ = response.e, last.found.later.Λ
    moving = F + last.J @ M
    after, before = moving + q * (response.η - Λ @ M), moving + q * (response.η - (Λ + last.seen.Λ) @ M)
    return Answer(M, after, before)


class Places(NamedTuple):
    """Of the nodes of a window, the last one repeated: which row each is, whether it is no repeat; and which node each row is."""

    row: Int[Array, " nodes"]
    real: Bool[Array, " nodes"]
    node: Int[Array, " rows"]


def rows_of(window: Window, count: int) -> tuple[Rows, Places]:
    """The nodes among the first rows of a window."""
    node, places = jnp.asarray(window.node)[:count], jnp.arange(count)
    first, last = jnp.argmax(node), count - 1 - jnp.argmax(node[::-1])
    row, real = jnp.minimum(first + places, last), first + places <= last
    rows = Rows(
        start=jnp.asarray(window.start),
        times=jnp.asarray(window.times)[row],
        values=jnp.asarray(window.values)[row],
        mask=jnp.asarray(window.mask)[row] & real[:, None],
        first=jnp.asarray(window.first),
        input_times=jnp.asarray(window.input_times),
        inputs=jnp.asarray(window.inputs),
    )
    return rows, Places(row, real, jnp.clip(places - first, 0, count - 1))


def smooth_window(model: AbstractGenerative, window: Window, coded: Float[Array, "rows encoding"]) -> SmoothedPosterior:
    """The posterior of a window from what an encoder says of its rows, and how it answers to the drift's coefficients."""
    rows, places = rows_of(window, len(coded))
    posterior, last = smooth_rows(model, rows, coded[places.row, : len(model.initial.mean)])
    if len(model.drift.coefficients().mean):
        answer = answer_of(model, rows, last)
        posterior = eqx.tree_at(lambda p: p.answer, posterior, answer, is_leaf=lambda x: x is None)
    return posterior.at_rows(places.node)
