"""Training with the posterior by the model's own flow: closed forms for what enters the bound as it does in linear models.

The bound of a window is that of its smoothed posterior (`parts.smoother`), held fixed (variational EM). Sums over the windows, averaged
over the last steps, then say where each part belongs:

    drift       f = F c + …:  (Ī + τ⁻²) c = η̄,   η = Σ I c̄ + ∂bound/∂c,   I what the observations say of c, the path integrated out
    diffusion   with r = a − ½ q b, b = S⁻¹ δ:   E‖r‖²/q has its minimum at   q = 2 √(∫E a² / ∫E b²)
    noise       v = Σ E (x − output)² / count
    read-out    Bayesian linear regression of the observations on [z, 1]
    start       mean and variance of the states at the starts

and parts move there by a fraction of the way. The drift's I is what the filter's innovations say: with E‖F‖²/q in its place, the
curvature at a fixed path, a drift would hardly move where q is small, for the smoothed path follows the drift it was made with. Some of
that curvature is kept to hold what the data says nothing of. Gradients, by Adam, train the rest: features, other decoders and
likelihoods, and an encoder that imitates the smoothed posterior, whose guess the smoother starts from.
"""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from ..data.batches import AbstractBatches
from ..data.windows import Window
from ..parts.chain import information, respond
from ..parts.decoders import decode_draws
from ..parts.model import Model
from ..parts.posterior import imitation
from ..parts.sde import AbstractDrift, interpolate_inputs, value_and_jacobian
from ..parts.smoother import Pass, Rows, SmoothedPosterior, drift_slopes, over_steps, rows_of, smooth_rows
from ..runtime.random import normal
from ..runtime.small import solve_lower, solve_upper
from ..runtime.sums import Terms, sum_over
from .quadrature import stratified

SHARE = 0.5  # of the way to a closed form, at a step
HOLD = 0.03  # of the curvature at a fixed path: keeps what is not determined, the scale of a hidden axis for one, from wandering
DOUBT = 0.003  # of the same: what a window says nothing of is not drawn at random
EARLY = 20  # steps over which the share rises
FAR = 10.0  # standard deviations by which the last pass may move a state; a window where it does teaches nothing
LONG = (6, 64)  # the fewest and the most steps to average over; in between, a sweep of the windows
PACE = 0.05  # of the optimiser's steps, for features of a drift whose coefficients have a closed form
OWN = 0.75  # of what a path says of q, the part that the smoother put there itself: random walks, dense observations
COLUMNS = (
    150  # coefficients for which the drift's closed form costs little beside the rest of a step; it waits with more
)


class Drive(NamedTuple):
    """What windows say of the drift's coefficients: I, η, and the curvature at a fixed path; and what the doubt about them adds to
    ∫E a² and to E (x − output)²."""

    information: Float[Array, "coefficients coefficients"]
    pull: Float[Array, " coefficients"]
    hold: Float[Array, "coefficients coefficients"]
    misfit: Float[Array, " latent"]
    errors: Float[Array, " channels"]


class Sums(NamedTuple):
    """Over all windows of the data, as one batch estimates them."""

    drift: Drive
    misfit: Float[Array, " latent"]
    roughness: Float[Array, " latent"]
    log_q: Float[Array, " latent"]
    squares: Float[Array, "channels latent_and_1 latent_and_1"]
    products: Float[Array, "channels latent_and_1"]
    errors: Float[Array, " channels"]
    counts: Float[Array, " channels"]
    starts: tuple[Float[Array, ""], Float[Array, " latent"], Float[Array, " latent"]]
    windows: Float[Array, ""]
    usable: Float[Array, ""]


def _fix(model: Model) -> Model:
    """The model, not to be differentiated."""
    arrays, rest = eqx.partition(model, eqx.is_inexact_array)
    return eqx.combine(jax.lax.stop_gradient(arrays), rest)


class Smooth(NamedTuple):
    """A window's smoothed posterior, its last pass, its rows, which rows of the window those are, which of them are scored; and whether
    the smoother found one, for something else stands there if it did not."""

    posterior: SmoothedPosterior
    last: Pass
    rows: Rows
    row: Int[Array, " nodes"]
    scored: Bool[Array, " nodes"]
    usable: Bool[Array, ""]


def _smooth(model: Model, window: Window) -> Smooth:
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
    """½ ∫ E ‖r‖²/q dt, and with r = a − ½ q b the integrals of E a² and E b² by axis, a level of the diffusion apart, and ∂/∂c."""

    kl: Float[Array, ""]
    misfit: Float[Array, " latent"]
    roughness: Float[Array, " latent"]
    pull: Float[Array, " coefficients"]


def _path(model: Model, window: Window, smooth: Smooth, num_draws: int, num_times: int, key: PRNGKeyArray) -> Path:
    """By stratified times, and normal numbers, of an even number of draws in pairs of opposite sign. Differentiable in what no closed
    form moves."""
    fixed = _fix(model)
    posterior, rows = smooth.posterior, smooth.rows
    time_key, noise_key = jax.random.split(key)
    signs = jnp.ones(1) if num_draws % 2 else jnp.array([1.0, -1.0])
    end, sets = jnp.asarray(window.end), num_draws // len(signs)
    ts = end * jnp.tile(stratified(sets, num_times, key=time_key).ravel(), len(signs))
    ε = normal(noise_key, (sets * num_times, len(model.initial.mean)))
    θ = model.drift.at_coefficients(fixed.drift.coefficients().mean)
    level = fixed.diffusion.median()

    def at(t: Array, ε: Array) -> tuple[Array, ...]:
        q_t = posterior(t)
        m, δ = q_t.normal.mean, q_t.normal.deviation(ε)
        when, u = rows.start + t, interpolate_inputs(t, rows.input_times, rows.inputs)
        f, J = value_and_jacobian(model.drift, when, m + δ, m, u, θ)
        q = model.diffusion(when, level)
        b = solve_upper(q_t.normal.factor, solve_lower(q_t.normal.factor, δ))
        steady = jax.lax.stop_gradient(q)
        a = q_t.drift(δ, steady, jax.lax.stop_gradient(J)) + 0.5 * steady * b - f
        r = a - 0.5 * q * b
        pull = jax.lax.stop_gradient(r / q) @ fixed.drift.slope(when, m + δ, u)
        shape = steady / level
        return jnp.sum(r**2 / q), a**2 / shape, b**2 * shape, pull

    kl, misfit, roughness, pull = jax.tree.map(
        lambda x: end * jnp.mean(x, axis=0), jax.vmap(at)(ts, jnp.concatenate([sign * ε for sign in signs]))
    )
    return Path(0.5 * kl, misfit, roughness, pull)


def _drive(model: Model, window: Window, smooth: Smooth, pull: Float[Array, " coefficients"]) -> Drive:
    """What a window says of the drift's coefficients, and what the doubt about them adds."""
    drift, level = model.drift, model.diffusion.median()
    slopes = drift_slopes(model, smooth.rows, smooth.posterior.mean)
    answer = respond(
        smooth.last.steps, smooth.last.seen, smooth.last.found, over_steps(smooth.rows, smooth.last.J, slopes)
    )
    begin, count = jnp.argmax(smooth.scored), len(smooth.scored) - 2 * window.margin  # the rest is margin

    def inside(x: Array) -> Array:
        return jax.lax.dynamic_slice_in_dim(x, begin, count)

    times, mask, m = (inside(x) for x in (smooth.rows.times, smooth.rows.mask, smooth.posterior.mean))
    F, scored = inside(slopes), inside(smooth.scored)
    answer, seen, found = jax.tree.map(inside, (answer, smooth.last.seen, smooth.last.found))
    h = jnp.where(scored, jnp.diff(times, append=times[-1:]), 0.0)
    q = jax.vmap(lambda t: model.diffusion(t, level))(smooth.rows.start + times)
    known = information(answer.ahead, seen, found.P, scored)
    # Given c the mean is m + M (c − c̄), and its residual moves by q (∂η⁺ − Λ⁺ M).
    moved = q[..., None] * (answer.η - found.later.Λ @ answer.e)
    state, residual = (x @ drift.factor() for x in (answer.e, moved))
    _, H, _ = jax.vmap(model.decoder.linearise)(m)
    errors = jnp.sum(jnp.einsum("nci,nip->ncp", H, state) ** 2, axis=2) * (mask & scored[:, None])
    return Drive(
        information=known,
        pull=known @ drift.coefficients().mean + pull,
        hold=drift.gram(F, h[:, None] / q),
        misfit=jnp.einsum("n,ni->i", h, jnp.sum(residual**2, axis=2) * level / q),
        errors=jnp.sum(errors, axis=0),
    )


class Fitted(NamedTuple):
    """E log p(x | z) of a window, and by channel, where noise and read-out have closed forms, Σ E y yᵀ, Σ E x y, Σ E (x − output)²."""

    log_likelihood: Float[Array, ""]
    squares: Float[Array, "channels latent_and_1 latent_and_1"]
    products: Float[Array, "channels latent_and_1"]
    errors: Float[Array, " channels"]
    counts: Float[Array, " channels"]


def _variance(model: Model, num_channels: int) -> Float[Array, " channels"]:
    """Of the noise of the channels with closed forms; 0 for others."""
    return model.likelihood.normal_variance(num_channels) if model.decoder.affine else jnp.zeros(num_channels)


def _draw_densities(model: Model, smooth: Smooth, num_draws: int, key: PRNGKeyArray) -> Float[Array, "nodes channels"]:
    """E log p(x | z) by entry, from a few draws."""
    draw_key, noise_key = jax.random.split(key)
    θ, normals = model.draws(num_draws, key=draw_key), smooth.posterior.at_nodes()
    z = normals.state(normal(noise_key, (num_draws, *normals.mean.shape)))
    outputs = decode_draws(model.decoder, jnp.moveaxis(z, -1, 0), θ.decoder)
    densities = jax.vmap(jax.vmap(model.likelihood.log_density, in_axes=(0, 0, None)), in_axes=(None, 0, 0))
    return jnp.mean(densities(smooth.rows.values, jnp.moveaxis(outputs, 0, -1), θ.likelihood), axis=0)


def _observe(model: Model, smooth: Smooth, num_draws: int, key: PRNGKeyArray) -> Fitted:
    """What is seen, explained by the posterior: exactly where that is a matter of two moments, by draws elsewhere."""
    fixed, rows = _fix(model), smooth.rows
    m, S = smooth.posterior.mean, smooth.posterior.covariance
    count, size = rows.values.shape[1], m.shape[1]
    variance, mask = _variance(fixed, count), rows.mask & smooth.scored[:, None]
    closed, seen = variance > 0, jnp.where(mask, 1.0, 0.0)
    y = jnp.concatenate([m, jnp.ones((len(m), 1), m.dtype)], axis=1)
    yy = (y[:, :, None] * y[:, None, :]).at[:, :size, :size].add(S)
    x = jnp.where(mask, fixed.likelihood.view(rows.values), 0)
    errors = jnp.zeros_like(seen)
    densities = jnp.zeros_like(seen)
    if model.decoder.affine:
        outputs, H, doubt = jax.vmap(fixed.decoder.linearise)(m)
        spread = jnp.einsum("nci,nij,ncj->nc", H, S, H) + jnp.einsum(
            "nci,ni->nc", doubt, jnp.diagonal(yy, axis1=1, axis2=2)[:, :size]
        )
        errors = seen * ((x - outputs) ** 2 + spread)
        density = jax.vmap(fixed.likelihood.log_density, in_axes=(0, 0, None))
        at_mean = density(rows.values, outputs, fixed.likelihood.median())
        densities = at_mean - 0.5 * spread / jnp.where(closed, variance, 1.0)
    if not (model.decoder.affine and model.likelihood.all_normal):
        densities = jnp.where(closed, densities, _draw_densities(model, smooth, num_draws, key))
    return Fitted(
        jnp.sum(jnp.where(mask, densities, 0)),
        jnp.einsum("nc,nij->cij", seen, yy),
        (seen * x).T @ y,
        jnp.sum(errors, axis=0),
        jnp.sum(seen, axis=0),
    )


class ClosedForms(eqx.Module):
    """The loss of a model whose posterior follows its own flow, and the closed forms that go with it."""

    batch_size: int = eqx.field(static=True, default=1)
    num_draws: int = eqx.field(static=True, default=4)
    num_times: int = eqx.field(static=True, default=16)
    steps: int = eqx.field(static=True, default=1000)

    def _every(self, model: Model) -> int:
        """How many steps the drift waits for its closed form."""
        return max(1, -(-len(model.drift.coefficients().mean) // COLUMNS))

    def __call__(
        self, model: Model, data: AbstractBatches, step: Int[Array, ""], *, key: PRNGKeyArray
    ) -> tuple[Float[Array, ""], tuple[Terms, Sums]]:
        choose, estimate = jax.random.split(key)
        windows, slots = data.pick(step, self.batch_size, key=choose)
        due = step % self._every(model) == 0

        def of_one(model: Model, place: tuple[Window, PRNGKeyArray, Array]) -> tuple[Array, tuple[Terms, Sums]]:
            window, key, scale = place
            return self._window(model, window, scale, due, key)

        bound, (terms, sums) = sum_over(of_one, model, (windows, slots.keys(estimate), slots.weights()))
        terms["parameter_kl"] = jax.lax.stop_gradient(model.parameter_kl())
        terms["settled"] = sums.usable / sums.windows
        return (terms["parameter_kl"] - bound) / data.observed, (terms, sums)

    def _window(
        self, model: Model, window: Window, scale: Float[Array, ""], due: Array, key: PRNGKeyArray
    ) -> tuple[Array, tuple[Terms, Sums]]:
        """A window's share of the bound, its terms, and what it says of the parts; all times the windows it stands for."""
        fixed = _fix(model)
        path_key, draw_key, hide_key = jax.random.split(key, 3)
        smooth = _smooth(fixed, window)
        path = _path(model, window, smooth, self.num_draws, self.num_times, path_key)
        fitted = _observe(model, smooth, max(self.num_draws // 2, 1), draw_key)
        variance = jnp.diagonal(smooth.posterior.covariance, axis1=1, axis2=2)
        coded = model.encode(window, key=hide_key).values[smooth.row]
        miss = jnp.sum(jnp.where(smooth.scored, imitation(coded, smooth.posterior.mean, variance), 0))
        first = jnp.asarray(window.first)
        start = smooth.posterior.at_nodes().at(0)
        initial_kl = jnp.where(first, start.kl(fixed.initial), 0)
        one = jnp.where(first, 1.0, 0.0)
        drive = _no_drive(fixed)
        if len(path.pull):
            drive = jax.lax.cond(due, lambda: _drive(fixed, window, smooth, path.pull), lambda: drive)
        starts = (one, one * start.mean, one * (start.mean**2 + variance[0]))
        log_q = jnp.log(fixed.diffusion.median())
        sums = Sums(drive, path.misfit, path.roughness, log_q, *fitted[1:], starts, jnp.ones(()), jnp.ones(()))
        used = jnp.where(smooth.usable, scale, 0.0)
        terms = {"log_likelihood": fitted.log_likelihood, "path_kl": path.kl, "initial_kl": initial_kl}
        # The encoder's term is there for its gradient; the value is that of the bound.
        bound = fitted.log_likelihood - path.kl - initial_kl - (miss - jax.lax.stop_gradient(miss))
        told = jax.tree.map(lambda x: used * jax.lax.stop_gradient(x), (terms, sums))
        return used * bound, (told[0], told[1]._replace(windows=scale))

    def remember(self, model: Model) -> Sums:
        """What is known before the first step: nothing."""
        d, channels = len(model.initial.mean), _num_channels(model)
        zeros = lambda *shape: jnp.zeros(shape)  # noqa: E731
        return Sums(
            _no_drive(model), zeros(d), zeros(d), zeros(d), zeros(channels, d + 1, d + 1), zeros(channels, d + 1),
            zeros(channels), zeros(channels), (zeros(), zeros(d), zeros(d)), zeros(), zeros(),
        )  # fmt: skip

    def weight(self, step: Int[Array, ""]) -> Float[Array, ""]:
        """The KL weight at a step."""
        return jnp.ones(())

    def settle(self, before: Model, model: Model, memory: Sums, sums: Sums, step: Int[Array, ""]) -> tuple[Model, Sums]:
        """The closed forms move: the averages with what a step has seen, and the parts a share of the way to where those put them.

        A drift's features move by a small part of the optimiser's step: what is remembered was seen through the features of then.
        """
        every = self._every(model)
        if len(model.drift.coefficients().mean):
            (old, _), (new, rest) = (eqx.partition(m.drift, eqx.is_inexact_array) for m in (before, model))
            paced = eqx.combine(jax.tree.map(lambda old, new: old + PACE * (new - old), old, new), rest)
            model = eqx.tree_at(lambda m: m.drift, model, paced)
        length = jnp.clip(sums.windows / self.batch_size, *LONG)
        usable = sums.usable / sums.windows  # of the batch; what the rest stands for is told by these
        sums = jax.tree.map(lambda x: x / jnp.maximum(usable, 1e-6), sums)
        calm = 0.02 + 0.49 * (1 + jnp.cos(jnp.pi * step / self.steps))
        calm = calm * usable
        fresh = calm / jnp.minimum(step + 1.0, length)
        rate = SHARE * jnp.minimum(1.0, (step + 1) / EARLY)
        due = step % every == 0
        slow = jnp.where(due, calm / jnp.minimum(step // every + 1.0, length), 0.0)
        drift = jax.tree.map(lambda old, new: old + slow * (new - old), memory.drift, sums.drift)
        memory = jax.tree.map(lambda old, new: old + fresh * (new - old), memory, sums)._replace(drift=drift)
        moved = eqx.tree_at(
            lambda m: (m.decoder, m.likelihood, m.diffusion, m.initial), model, self._others(model, memory, rate)
        )
        if len(model.drift.coefficients().mean) == 0:
            return moved, memory
        arrays, static = eqx.partition(model.drift, eqx.is_inexact_array)
        arrays = jax.lax.cond(
            due, lambda: eqx.filter(_solve(model.drift, memory.drift, rate), eqx.is_inexact_array), lambda: arrays
        )
        return eqx.tree_at(lambda m: m.drift, moved, eqx.combine(arrays, static)), memory

    def _others(self, model: Model, memory: Sums, rate: Float[Array, ""]) -> tuple[eqx.Module, ...]:
        """Decoder, likelihood, diffusion and start."""
        variance = _variance(model, len(memory.counts))
        decoder = model.decoder.concluded(memory.squares, memory.products, variance, rate)
        counts = jnp.where(variance > 0, memory.counts, 0.0)
        likelihood = model.likelihood.concluded(memory.errors + memory.drift.errors, counts, rate)
        misfit = jnp.maximum(memory.misfit + memory.drift.misfit, 1e-12)
        roughness = jnp.maximum(memory.roughness, 1e-12)
        # The averages were made with the q of then: what they ask for is a change from that.
        then, now = memory.log_q / jnp.maximum(memory.usable, 1e-6), jnp.log(model.diffusion.median())
        best = now + jnp.log(2 * jnp.sqrt(misfit / roughness)) - then
        known = 0.5 * jnp.sqrt(misfit * roughness)  # the curvature in log q, there
        diffusion = model.diffusion.approach(best, known, rate, 1 / (1 - OWN))
        return decoder, likelihood, diffusion, model.initial.concluded(*memory.starts)


def _no_drive(model: Model) -> Drive:
    size, latent = len(model.drift.coefficients().mean), len(model.initial.mean)
    none = jnp.zeros((size, size))
    return Drive(none, jnp.zeros(size), none, jnp.zeros(latent), jnp.zeros(_num_channels(model)))


def _num_channels(model: Model) -> int:
    return jax.eval_shape(lambda: model.decoder.linearise(model.initial.mean)[0]).shape[0]


def _root(precision: Float[Array, "n n"]) -> tuple[Float[Array, "n n"], Float[Array, " n"]]:
    """Cholesky factor of a precision with unit diagonal, and the scale that gives it one: entries differ by orders of magnitude."""
    scale = jax.lax.rsqrt(jnp.diagonal(precision))
    tiny = 10 * jnp.finfo(precision.dtype).eps
    return jnp.linalg.cholesky(precision * scale[:, None] * scale + tiny * jnp.eye(len(scale))), scale


def _inverse_root(root: Float[Array, "n n"], scale: Float[Array, " n"]) -> Float[Array, "n n"]:
    """R with Rᵀ R the covariance."""
    return jax.scipy.linalg.solve_triangular(root, jnp.diag(scale), lower=True)


def _solve(drift: AbstractDrift, seen: Drive, rate: Float[Array, ""]) -> AbstractDrift:
    """The drift moved towards its closed form; what is learned of its prior, more slowly."""
    c = drift.coefficients()
    precision, hold = seen.information + jnp.diag(c.prior_precision), HOLD * seen.hold
    root, scale = _root(precision + hold)
    wanted = seen.pull + c.prior_precision * c.prior_mean + hold @ c.mean
    best = scale * jax.scipy.linalg.cho_solve((root, True), scale * wanted)
    spread = _inverse_root(*_root(precision + DOUBT * seen.hold)).T
    std = jnp.sqrt(jnp.sum(spread**2, axis=1))
    return drift.concluded(c.mean + rate * (best - c.mean), std, 0.2 * rate).joined(spread)
