"""What a window says of the parts of a model, given its posterior by the model's own flow: sums that closed forms are made of."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from ..data.windows import Window
from ..parts.chain import adjoints, information, information_of_noise, respond
from ..parts.decoders import decode_draws
from ..parts.model import Model
from ..parts.sde import AbstractDrift, interpolate_inputs, value_and_jacobian
from ..parts.smoother import Pass, Rows, SmoothedPosterior, drift_slopes, over_steps, rows_of, smooth_rows
from ..runtime.random import normal
from ..runtime.small import solve_lower, solve_upper

T = TypeVar("T")
FAR = 10.0  # standard deviations by which the last pass may move a state; a window where it does teaches nothing


class Drive(NamedTuple):
    """What windows say of the drift's coefficients: I, η, and the curvature at a fixed path; and what the doubt about them adds to
    the slope in log q and to E (x − output)²."""

    information: Float[Array, "coefficients coefficients"]
    pull: Float[Array, " coefficients"]
    hold: Float[Array, "coefficients coefficients"]
    roughness: Float[Array, " latent"]
    errors: Float[Array, " channels"]


class Spread(NamedTuple):
    """What windows say of log q: the information, and η = I log q + slope."""

    information: Float[Array, "latent latent"]
    pull: Float[Array, " latent"]


class Sums(NamedTuple):
    """Over all windows of the data, as one batch estimates them."""

    drift: Drive
    diffusion: Spread
    squares: Float[Array, "channels latent_and_1 latent_and_1"]
    products: Float[Array, "channels latent_and_1"]
    errors: Float[Array, " channels"]
    counts: Float[Array, " channels"]
    starts: tuple[Float[Array, ""], Float[Array, " latent"], Float[Array, " latent"]]
    windows: Float[Array, ""]
    usable: Float[Array, ""]


def fix(model: Model) -> Model:
    """The model, not to be differentiated."""
    arrays, rest = eqx.partition(model, eqx.is_inexact_array)
    return eqx.combine(jax.lax.stop_gradient(arrays), rest)


class Smooth(NamedTuple):
    """A window's smoothed posterior, its last pass, its rows, which rows of the window those are, which of them are scored; and
    whether the smoother found one, for something else stands there if it did not."""

    posterior: SmoothedPosterior
    last: Pass
    rows: Rows
    row: Int[Array, " nodes"]
    scored: Bool[Array, " nodes"]
    usable: Bool[Array, ""]

    def inside(self, of_nodes: T, margin: int) -> T:
        """What is said of all nodes, of those that are no margin."""
        begin, count = jnp.argmax(self.scored), len(self.scored) - 2 * margin
        return jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, begin, count), of_nodes)


def smooth_safely(model: Model, window: Window) -> Smooth:
    coded = model.encode(window).values
    rows, places = rows_of(window, len(coded))
    guess = coded[places.row, : len(model.initial.mean)]
    posterior, last = smooth_rows(model, rows, guess)
    finite = jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves((posterior, last))])
    usable = jnp.all(finite) & (posterior.change[-1] < FAR)
    still = jax.tree.map(jnp.zeros_like, (posterior, last))
    plain = eqx.tree_at(
        lambda p: (p[0].times, p[0].covariance, p[1].found.S, p[1].found.P),
        still,
        (rows.times, *(jnp.broadcast_to(jnp.eye(guess.shape[1]), posterior.covariance.shape),) * 3),
    )
    posterior, last = jax.tree.map(lambda found, other: jnp.where(usable, found, other), (posterior, last), plain)
    scored = jnp.asarray(window.scored)[places.row] & places.real
    return Smooth(posterior, last, rows, places.row, scored, usable)


class Path(NamedTuple):
    """½ ∫ E ‖r‖²/q dt, r the posterior's drift less f; and its slope in the coefficients."""

    kl: Float[Array, ""]
    pull: Float[Array, " coefficients"]


def path_of(model: Model, window: Window, smooth: Smooth, key: PRNGKeyArray) -> Path:
    """By a time in each step between nodes, and a pair of opposite points there. Differentiable in what no closed form moves."""
    fixed = fix(model)
    posterior, rows = smooth.posterior, smooth.rows
    time_key, noise_key = jax.random.split(key)
    times, scored = smooth.inside((rows.times, smooth.scored), window.margin)
    h = jnp.where(scored[:-1], jnp.diff(times), 0.0)
    ts = times[:-1] + h * jax.random.uniform(time_key, h.shape)
    ε = normal(noise_key, (len(h), len(model.initial.mean)))
    c, level = fixed.drift.coefficients().mean, fixed.diffusion.median()
    θ = model.drift.at_coefficients(c)

    def at(t: Array, ε: Array) -> Path:
        q_t = posterior(t)
        m, δ = q_t.normal.mean, q_t.normal.deviation(ε)
        when, u = rows.start + t, interpolate_inputs(t, rows.input_times, rows.inputs)
        f, J = value_and_jacobian(model.drift, when, m + δ, m, u, θ)
        q, steady = model.diffusion(when, level), fixed.diffusion(when, level)
        b = solve_upper(q_t.normal.factor, solve_lower(q_t.normal.factor, δ))
        a = q_t.drift(δ, steady, jax.lax.stop_gradient(J)) + 0.5 * steady * b - f
        r = a - 0.5 * q * b
        pull = jax.lax.stop_gradient(r / q) @ fixed.drift.slope(when, m + δ, u)
        return Path(0.5 * jnp.sum(r**2 / q), pull)

    both = [jax.vmap(at)(ts, sign * ε) for sign in (1, -1)]
    return jax.tree.map(lambda x, y: 0.5 * jnp.tensordot(h, x + y, axes=1), *both)


class Push(NamedTuple):
    """What is seen later says of the drift at the nodes, times the step: λ − Λ δ at m + δ, whose Σ E, times ∂f, is the slope of the
    log-likelihood. Points are pairs m ± δ, `shift` the δ."""

    times: Float[Array, " n"]
    mean: Float[Array, "n latent"]
    inputs: Float[Array, "n inputs"]
    shift: Float[Array, "n latent latent"]
    λ: Float[Array, "n latent"]
    Λ: Float[Array, "n latent latent"]


def slope_of_law(drift: AbstractDrift, push: Push) -> Float[Array, " coefficients"]:
    """That slope, in the drift's coefficients."""

    def work(c: Array) -> Array:
        θ = drift.at_coefficients(c)

        def at(node: Push) -> Array:
            def one(δ: Array) -> Array:
                return (node.λ - node.Λ @ δ) @ drift(node.times, node.mean + δ, node.inputs, θ)

            return jnp.mean(jax.vmap(one)(jnp.concatenate([node.shift, -node.shift])))

        return jnp.sum(jax.vmap(at)(push))

    return jax.grad(work)(drift.coefficients().mean)


def push_of(smooth: Smooth, margin: int) -> Push:
    """Points along the axes of each node's covariance."""
    rows, mean = smooth.rows, smooth.posterior.mean
    to, since = _halves(smooth)
    after, before = adjoints(smooth.last.seen, smooth.last.found)
    λ = to[:, None] * after.λ + since[:, None] * before.λ
    Λ = to[:, None, None] * after.Λ + since[:, None, None] * before.Λ
    shift = mean.shape[1] ** 0.5 * jnp.swapaxes(smooth.posterior.at_nodes().factor, 1, 2)
    push = Push(rows.start + rows.times, mean, rows.inputs_at_nodes(), shift, λ, Λ)
    return smooth.inside(push, margin)


def _halves(smooth: Smooth) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """Half of the step that follows each node, and of the one before it, where those begin at a scored node."""
    h = 0.5 * jnp.where(smooth.scored[:-1], jnp.diff(smooth.rows.times), 0.0)
    return jnp.append(h, 0.0), jnp.append(0.0, h)


def spread_of(model: Model, smooth: Smooth) -> Spread:
    """By the noise that is seen later, more of it or less than expected."""
    rows, last, level = smooth.rows, smooth.last, model.diffusion.median()
    q = jax.vmap(lambda t: model.diffusion(t, level))(rows.start + rows.times)
    to, since = _halves(smooth)
    more = [x.λ**2 - jnp.diagonal(x.N, axis1=1, axis2=2) for x in adjoints(last.seen, last.found)]
    slope = 0.5 * jnp.sum(q * (to[:, None] * more[0] + since[:, None] * more[1]), axis=0)
    roots = jnp.sqrt(q)[:, :, None] * jnp.eye(q.shape[1], dtype=q.dtype)
    begin, end = (jnp.einsum("nik,njk->nkij", x, x) for x in (last.steps.Φ @ roots[:-1], roots[1:]))
    changes = 0.5 * jnp.diff(rows.times)[:, None, None, None] * (begin + end)
    known = information_of_noise(last.steps, last.seen, last.found, changes, smooth.scored)
    return Spread(known, known @ jnp.log(level) + slope)


def drive_of(model: Model, window: Window, smooth: Smooth, pull: Float[Array, " coefficients"]) -> Drive:
    """What a window says of the drift's coefficients, given the slope of the bound, and what the doubt about them adds.

    A drift that is `believed` follows the slope of the likelihood instead: where q is almost nothing, f off the line that the
    smoother took it for weighs on the bound without end, and a user's equations are not to blame. Having priors, they need no hold.
    """
    drift, level = model.drift, model.diffusion.median()
    slopes = drift_slopes(model, smooth.rows, smooth.posterior.mean)
    answer = respond(
        smooth.last.steps, smooth.last.seen, smooth.last.found, over_steps(smooth.rows, smooth.last.J, slopes)
    )
    rows, last = smooth.rows, smooth.last
    times, mask, m, F, scored, answer, seen, found = smooth.inside(
        (rows.times, rows.mask, smooth.posterior.mean, slopes, smooth.scored, answer, last.seen, last.found),
        window.margin,
    )
    h = jnp.where(scored, jnp.diff(times, append=times[-1:]), 0.0)
    q = jax.vmap(lambda t: model.diffusion(t, level))(smooth.rows.start + times)
    known = information(answer.ahead, seen, found.P, scored)
    # Given c the mean is m + M (c − c̄), and λ moves by ∂η⁺ − Λ⁺ M.
    state, moved = (x @ drift.factor() for x in (answer.e, answer.η - found.later.Λ @ answer.e))
    _, H, _ = jax.vmap(model.decoder.linearise)(m)
    errors = jnp.sum(jnp.einsum("nci,nip->ncp", H, state) ** 2, axis=2) * (mask & scored[:, None])
    c = drift.coefficients().mean
    return Drive(
        information=known,
        pull=known @ c + (slope_of_law(drift, push_of(smooth, window.margin)) if drift.believed else pull),
        hold=jnp.zeros_like(known) if drift.believed else drift.gram(F, h[:, None] / q),
        roughness=0.5 * jnp.einsum("n,ni->i", h, q * jnp.sum(moved**2, axis=2)),
        errors=jnp.sum(errors, axis=0),
    )


class Fitted(NamedTuple):
    """E log p(x | z) of a window, and by channel Σ E y yᵀ, Σ E x y, Σ E (x − output)², for noise and read-out with closed forms."""

    log_likelihood: Float[Array, ""]
    squares: Float[Array, "channels latent_and_1 latent_and_1"]
    products: Float[Array, "channels latent_and_1"]
    errors: Float[Array, " channels"]
    counts: Float[Array, " channels"]


def closed_variance(model: Model, num_channels: int) -> Float[Array, " channels"]:
    """Of the noise of the channels with closed forms; 0 for others."""
    return model.likelihood.normal_noise(num_channels)[0] if model.decoder.affine else jnp.zeros(num_channels)


def _draw_densities(model: Model, smooth: Smooth, num_draws: int, key: PRNGKeyArray) -> Float[Array, "nodes channels"]:
    """E log p(x | z) by entry, from a few draws."""
    draw_key, noise_key = jax.random.split(key)
    θ, normals = model.draws(num_draws, key=draw_key), smooth.posterior.at_nodes()
    z = normals.state(normal(noise_key, (num_draws, *normals.mean.shape)))
    outputs = decode_draws(model.decoder, jnp.moveaxis(z, -1, 0), θ.decoder)
    densities = jax.vmap(jax.vmap(model.likelihood.log_density, in_axes=(0, 0, None)), in_axes=(None, 0, 0))
    return jnp.mean(densities(smooth.rows.values, jnp.moveaxis(outputs, 0, -1), θ.likelihood), axis=0)


def observe(model: Model, smooth: Smooth, num_draws: int, key: PRNGKeyArray) -> Fitted:
    """What is seen, explained by the posterior: exactly where that is a matter of two moments, by draws elsewhere."""
    fixed, rows = fix(model), smooth.rows
    m, S = smooth.posterior.mean, smooth.posterior.covariance
    count, size = rows.values.shape[1], m.shape[1]
    variance, mask = closed_variance(fixed, count), rows.mask & smooth.scored[:, None]
    closed, seen = variance > 0, jnp.where(mask, 1.0, 0.0)
    y = jnp.concatenate([m, jnp.ones((len(m), 1), m.dtype)], axis=1)
    yy = (y[:, :, None] * y[:, None, :]).at[:, :size, :size].add(S)
    x = jnp.where(mask, fixed.likelihood.view(rows.values), 0)
    errors = jnp.zeros_like(seen)
    densities = jnp.zeros_like(seen)
    if model.decoder.affine:
        outputs, H, vague = jax.vmap(fixed.decoder.linearise)(m)
        spread = jnp.einsum("nci,nij,ncj->nc", H, S, H) + jnp.einsum(
            "nci,ni->nc", vague, jnp.diagonal(yy, axis1=1, axis2=2)[:, :size]
        )
        errors = seen * ((x - outputs) ** 2 + spread)
        density = jax.vmap(fixed.likelihood.log_density, in_axes=(0, 0, None))
        at_mean = density(rows.values, outputs, fixed.likelihood.typical())
        doubt = fixed.likelihood.normal_noise(count)[1]
        densities = at_mean - 0.5 * (spread / jnp.where(closed, variance, 1.0) + doubt)
    if not (model.decoder.affine and model.likelihood.all_normal):
        densities = jnp.where(closed, densities, _draw_densities(model, smooth, num_draws, key))
    return Fitted(
        jnp.sum(jnp.where(mask, densities, 0)),
        jnp.einsum("nc,nij->cij", seen, yy),
        (seen * x).T @ y,
        jnp.sum(errors, axis=0),
        jnp.sum(seen, axis=0),
    )


def no_drive(model: Model) -> Drive:
    size, latent = len(model.drift.coefficients().mean), len(model.initial.mean)
    none = jnp.zeros((size, size))
    return Drive(none, jnp.zeros(size), none, jnp.zeros(latent), jnp.zeros(count_channels(model)))


def count_channels(model: Model) -> int:
    return jax.eval_shape(lambda: model.decoder.linearise(model.initial.mean)[0]).shape[0]
