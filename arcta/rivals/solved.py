"""Models whose paths come from a differential-equation solver: solves on diffrax, several windows in one, and their bound.

    loss = −Σ_i log p(x_i | z(t_i)) + KL(q(z(0)) ‖ p(z(0))) + ½ ∫ ‖u‖² dt          of a window, one path of the solver each

Gradients come from the adjoint equations (`gradient="adjoint"`) or from backpropagation through the solver's steps
(`"backprop"`, checkpointed). arcta's own training never comes here; the rivals in `baselines` do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, cast

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import lineax
from jaxtyping import Array, ArrayLike, Float, Int, PRNGKeyArray, PyTree

from ..data.windows import Window
from ..parts.decoders import AbstractDecoder
from ..parts.diffusion import AbstractDiffusion
from ..parts.generative import AbstractGenerative, Draw
from ..parts.likelihoods import AbstractLikelihood
from ..parts.networks import MLP
from ..parts.posterior import AbstractGaussian, DiagonalNormal
from ..parts.sde import AbstractDrift

Gradient = Literal["adjoint", "backprop"]


# Solving -------------------------------------------------------------------------------------------------------------


Field = Callable[..., Array]  # (t, z, args) → dz/dt


class Solution(NamedTuple):
    """States at the times asked for, and the calls of the field on the way (forward)."""

    states: Float[Array, ...]
    evaluations: Int[Array, ""]


def _options(
    times: Array,
    gradient: Gradient,
    solver: diffrax.AbstractSolver,
    backwards: diffrax.AbstractStepSizeController = diffrax.ConstantStepSize(),
) -> dict[str, Any]:
    """What every solve is told: where to stop and save, and how its adjoint equations are solved `backwards`."""
    adjoint = diffrax.RecursiveCheckpointAdjoint()
    if gradient == "adjoint":
        adjoint = diffrax.BacksolveAdjoint(solver=solver, stepsize_controller=backwards)
    span = {"t0": times[0], "t1": times[-1], "saveat": diffrax.SaveAt(ts=times)}
    return {"solver": solver, "adjoint": adjoint, "throw": False, **span}


def solve_ode(
    field: Field,
    initial: Float[Array, "*shape"],
    times: Float[Array, " n"],
    args: PyTree,
    *,
    tolerance: float = 1e-4,
    gradient: Gradient = "adjoint",
    max_steps: int = 4096,
) -> Solution:
    """ż = field(t, z, args) from z(times[0]) = `initial`, by Dormand–Prince 5(4) with adaptive steps.

    All that is to be differentiated must come in through `initial` and `args`. Where `max_steps` do not suffice, states are
    not finite.
    """
    forwards = diffrax.PIDController(rtol=tolerance, atol=tolerance)
    backwards = diffrax.PIDController(rtol=tolerance, atol=tolerance, norm=diffrax.adjoint_rms_seminorm)
    options = {"dt0": None, "stepsize_controller": forwards, "max_steps": max_steps}
    options |= _options(times, gradient, diffrax.Dopri5(), backwards)
    solved = diffrax.diffeqsolve(diffrax.ODETerm(field), y0=initial, args=args, **options)
    # Six fresh stages a step (the seventh is the next step's first), one to begin with and two to choose the first step.
    return Solution(jnp.asarray(solved.ys), 6 * jnp.asarray(solved.stats["num_steps"]) + 3)


def solve_sde(
    field_and_spread: tuple[Field, Field],
    initial: Float[Array, "*shape"],
    times: Float[Array, " n"],
    args: PyTree,
    *,
    step: float,
    gradient: Gradient = "adjoint",
    max_steps: int = 4096,
    key: PRNGKeyArray,
) -> Solution:
    """dz = field(t, z, args) dt + spread(t, z, args) dβ, entry by entry, by Heun's scheme with steps of `step` at most.

    The noise is additive, so Itô and Stratonovich agree and the stochastic adjoint may run the same scheme backwards along a
    virtual Brownian tree.
    """
    field, spread = field_and_spread
    noise = diffrax.VirtualBrownianTree(times[0], times[-1], tol=step / 2, shape=initial.shape, key=key)

    def control(t: ArrayLike, z: Array, args: PyTree) -> lineax.DiagonalLinearOperator:
        return lineax.DiagonalLinearOperator(spread(t, z, args))

    terms = diffrax.MultiTerm(diffrax.ODETerm(field), diffrax.ControlTerm(control, noise))
    options = {"dt0": step, "max_steps": max_steps, **_options(times, gradient, diffrax.Heun())}
    solved = diffrax.diffeqsolve(terms, y0=initial, args=args, **options)
    return Solution(jnp.asarray(solved.ys), 2 * jnp.asarray(solved.stats["num_steps"]))


# Models --------------------------------------------------------------------------------------------------------------


class Recognition(eqx.Module):
    """A GRU that runs over a window from its last row to its first: what is still to come, at every row."""

    cell: eqx.nn.GRUCell
    last: eqx.nn.Linear

    def __init__(self, num_channels: int, latent_size: int, hidden_size: int, *, key: PRNGKeyArray):
        first, second = jax.random.split(key)
        self.cell = eqx.nn.GRUCell(2 * num_channels + 1, hidden_size, key=first)
        self.last = eqx.nn.Linear(hidden_size, 2 * latent_size, key=second)

    def __call__(self, window: Window) -> tuple[Float[Array, "rows hidden"], DiagonalNormal]:
        """The hidden state at each row, and q(z) at the first."""
        times, values, mask, node = (jnp.asarray(x) for x in (window.times, window.values, window.mask, window.node))
        steps = jnp.diff(times, append=times[-1:])[:, None]
        rows = jnp.concatenate([jnp.where(mask, values, 0), mask.astype(values.dtype), steps], axis=1)

        def read(hidden: Array, row: tuple[Array, Array]) -> tuple[Array, Array]:
            hidden = jnp.where(row[1], self.cell(row[0], hidden), hidden)
            return hidden, hidden

        hidden = jax.lax.scan(read, jnp.zeros(self.cell.hidden_size), (rows, node), reverse=True)[1]
        mean, log_variance = jnp.split(self.last(hidden[0]), 2)
        return hidden, DiagonalNormal(mean, log_variance - 4.0)


class Clock(eqx.Module):
    """The times of several windows as functions of the row, t(r), so that one solve serves them all however they are spaced.

    Monotone cubics through the rows' times: t is smooth in r, so dz/dr = ṫ f is too, and any change of clock is exact. The
    numbers are kept as the integers with the same bits: the adjoint carries a derivative with respect to every float in its
    arguments, and would cost O(rows) a step for times that nobody learns.
    """

    times_bits: Int[Array, "windows rows"]
    rates_bits: Int[Array, "windows rows"]

    def __init__(self, windows: Window):
        times, rows = jnp.asarray(windows.times), jnp.arange(windows.times.shape[1])
        # Padding rows follow the last node closely; nothing is read from them.
        last = jax.vmap(Window.last_node)(windows)[:, None]
        end = jnp.take_along_axis(times, last, axis=1)
        times = jnp.where(rows <= last, times, end + 0.01 * jnp.asarray(windows.spacing)[:, None] * (rows - last))
        steps = jnp.diff(times, axis=1)
        inner = 2 * steps[:, 1:] * steps[:, :-1] / (steps[:, 1:] + steps[:, :-1])
        rates = jnp.concatenate([steps[:, :1], inner, steps[:, -1:]], axis=1)
        whole = jnp.int64 if times.dtype == jnp.float64 else jnp.int32
        self.times_bits, self.rates_bits = (jax.lax.bitcast_convert_type(x, whole) for x in (times, rates))

    @property
    def times(self) -> Float[Array, "windows rows"]:
        return self._floats(self.times_bits)

    @staticmethod
    def _floats(bits: Array) -> Array:
        return jax.lax.bitcast_convert_type(bits, jnp.float64 if bits.dtype == jnp.int64 else jnp.float32)

    def __call__(self, r: Float[Array, ""]) -> tuple[Float[Array, " windows"], Float[Array, " windows"]]:
        """t and dt/dr at row r."""
        i = jnp.clip(jnp.floor(r).astype(int), 0, self.times_bits.shape[1] - 2)
        x = r - i
        t0, t1, m0, m1 = (self._floats(b[:, j]) for b in (self.times_bits, self.rates_bits) for j in (i, i + 1))
        t = t0 + (t1 - t0) * x**2 * (3 - 2 * x) + m0 * x * (1 - x) ** 2 - m1 * x**2 * (1 - x)
        rate = 6 * (t1 - t0) * x * (1 - x) + m0 * (1 - x) * (1 - 3 * x) + m1 * x * (3 * x - 2)
        return t, rate


# The adjoint differentiates with respect to `args` alone, so nothing may come in by closure.
def _prior_field(r: Array, z: Array, args: PyTree) -> Array:
    """dz/dr of all windows, (windows, latent)."""
    drift, parameters, begin, clock = args
    t, rate = clock(r)
    none = jnp.zeros((0,), z.dtype)
    return rate[:, None] * jax.vmap(lambda t, z: drift(t, z, none, parameters))(begin + t, z)


def _posterior_field(r: Array, y: Array, args: PyTree) -> Array:
    """The posterior's drift, and the rate of the path's KL in the last column."""
    prior, control, q, context = args
    ahead = context[:, jnp.clip(jnp.ceil(r).astype(int), 0, context.shape[1] - 1)]
    u = jax.vmap(control)(jnp.concatenate([y[:, :-1], ahead], axis=1))
    rate = prior[3](r)[1][:, None]
    drift = _prior_field(r, y[:, :-1], prior) + rate * jnp.sqrt(q) * u
    return jnp.concatenate([drift, 0.5 * rate * jnp.sum(u**2, axis=1, keepdims=True)], axis=1)


def _posterior_spread(r: Array, y: Array, args: PyTree) -> Array:
    prior, _, q, _ = args
    return jnp.pad(jnp.sqrt(prior[3](r)[1][:, None] * q), ((0, 0), (0, 1)))


class Solved(AbstractGenerative):
    """A rival: arcta's own generative parts, and another way to a gradient.

    Without `recognition` the state at a window's start is its first observation; without `control` the state moves along an
    ODE.
    """

    drift: AbstractDrift
    diffusion: AbstractDiffusion
    initial: AbstractGaussian
    decoder: AbstractDecoder
    likelihood: AbstractLikelihood
    recognition: Recognition | None
    control: MLP | None
    gradient: Gradient = eqx.field(static=True, default="adjoint")
    tolerance: float = eqx.field(static=True, default=1e-4)
    substeps: int = eqx.field(static=True, default=2)
    max_steps: int = eqx.field(static=True, default=4096)

    @property
    def reach(self) -> tuple[int, int]:
        return 0, 0

    def begin(self, window: Window, key: PRNGKeyArray) -> tuple[Array, Array, Array]:
        """z at the window's start, KL(q ‖ p) of it, and the context of every row."""
        rows = len(window.times)
        if self.recognition is None:
            first = jnp.where(jnp.asarray(window.mask)[0], jnp.asarray(window.values)[0], 0)
            return first, jnp.zeros(()), jnp.zeros((rows, 0))
        context, normal = self.recognition(window)
        return normal.sample(key=key), normal.kl(cast(DiagonalNormal, self.initial)), context

    def through(self, windows: Window, draw: Draw, *, key: PRNGKeyArray) -> tuple[Solution, Float[Array, " windows"]]:
        """The posterior's paths at the rows of some windows, (rows, windows, latent), and the KL of each."""
        state_key, noise_key = jax.random.split(key)
        z, kl, context = jax.vmap(self.begin)(windows, jax.random.split(state_key, len(windows.first)))
        rows = jnp.arange(windows.times.shape[1], dtype=z.dtype)
        prior = (self.drift, draw.drift, jnp.asarray(windows.start), Clock(windows))
        shared = {"gradient": self.gradient, "max_steps": self.max_steps}
        if self.control is None:
            return solve_ode(_prior_field, z, rows, prior, tolerance=self.tolerance, **shared), kl
        args = (prior, self.control, draw.diffusion, context)
        start, fields = jnp.pad(z, ((0, 0), (0, 1))), (_posterior_field, _posterior_spread)
        solution = solve_sde(fields, start, rows, args, step=1 / self.substeps, **shared, key=noise_key)
        last = jax.vmap(Window.last_node)(windows)
        path_kl = solution.states[last, jnp.arange(len(last)), -1]
        return Solution(solution.states[..., :-1], solution.evaluations), kl + path_kl

    def terms(self, windows: Window, *, key: PRNGKeyArray) -> tuple[Array, Array, Array]:
        """log-likelihood and KL of each window in nats, from one path, and the calls of the drift one after the other."""
        draw_key, path_key = jax.random.split(key)
        θ = self.draw(key=draw_key)
        solution, kl = self.through(windows, θ, key=path_key)

        def total(window: Window, states: Array) -> Array:
            outputs = jax.vmap(self.decoder, in_axes=(0, None))(states, θ.decoder)
            densities = jax.vmap(self.likelihood.log_density, in_axes=(0, 0, None))
            mask = jnp.asarray(window.mask) & jnp.asarray(window.scored)[:, None]
            return jnp.sum(jnp.where(mask, densities(jnp.asarray(window.values), outputs, θ.likelihood), 0))

        return jax.vmap(total)(windows, jnp.moveaxis(solution.states, 0, 1)), kl, solution.evaluations

    def states_at(
        self, window: Window, node: Int[Array, ""], num_samples: int, *, key: PRNGKeyArray
    ) -> tuple[Float[Array, "samples latent"], Draw]:
        def one(key: PRNGKeyArray) -> tuple[Array, Draw]:
            draw_key, path_key = jax.random.split(key)
            θ = self.draw(key=draw_key)
            if self.recognition is None:
                return jnp.where(jnp.asarray(window.mask)[node], jnp.asarray(window.values)[node], 0), θ
            stacked = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], window)
            return self.through(stacked, θ, key=path_key)[0].states[node, 0], θ

        return jax.vmap(one)(jax.random.split(key, num_samples))
