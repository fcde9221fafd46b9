"""Training with the posterior by the model's own flow: closed forms for what enters the bound as it does in linear models.

The bound of a window is that of its smoothed posterior (`parts.smoother`), held fixed (variational EM). Sums over the windows,
averaged over the last steps, then say where each part belongs:

    drift       f = F c + …:  (Ī + τ⁻²) c = η̄,   η = Σ I c̄ + ∂bound/∂c,   I what the observations say of c, the path integrated out
    diffusion   Newton's step in log q:  slope ½ q ∫ (λ² − N) dt, λ the smoothed noise over q, N its variance; I as for the drift
    noise       v = Σ E (x − output)² / count
    read-out    Bayesian linear regression of the observations on [z, 1]
    start       mean and variance of the states at the starts

and parts move there by a fraction of the way. I is what the filter's innovations say: with E‖F‖²/q in its place, the curvature at a
fixed path, a drift would hardly move where q is small, for the smoothed path follows the drift it was made with. Some of that
curvature is kept to hold what the data says nothing of. ∂bound/∂c is taken along the path; of a user's own equations it is the
slope of the likelihood, with no random number in it. The posterior of c and of the state is one, q(c) q(z | c), and the doubt about
c counts in noise and diffusion. Gradients, by Adam, train the rest: features, other decoders and likelihoods, and an encoder that
imitates the smoothed posterior, whose guess the smoother starts from.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ..data.batches import AbstractBatches
from ..data.windows import Window
from ..parts.model import Model
from ..parts.posterior import imitation
from ..parts.sde import AbstractDrift
from ..runtime.sums import Terms, sum_over
from .evidence import (
    Drive,
    Spread,
    Sums,
    closed_variance,
    count_channels,
    drive_of,
    fix,
    no_drive,
    observe,
    path_of,
    smooth_safely,
    spread_of,
)

SHARE = 0.5  # of the way to a closed form, at a step
HOLD = 0.3  # of the curvature at a fixed path: keeps what is not determined, the scale of a hidden axis for one, from wandering
DOUBT = 0.003  # of the same: what a window says nothing of is not drawn at random
EARLY = 20  # steps over which the share rises
LONG = (6, 64)  # the fewest and the most steps to average over; in between, a sweep of the windows
PACE = 0.05  # of the optimiser's steps, for features of a drift whose coefficients have a closed form
COLUMNS = (
    100  # coefficients; a drift with more waits some steps for its closed form, which then costs little beside the rest
)


class ClosedForms(eqx.Module):
    """The loss of a model whose posterior follows its own flow, and the closed forms that go with it."""

    batch_size: int = eqx.field(static=True, default=1)
    num_draws: int = eqx.field(static=True, default=4)
    steps: int = eqx.field(static=True, default=1000)

    def _every(self, model: Model) -> int:
        """How many steps the drift waits for its closed form."""
        return max(1, -(-len(model.drift.coefficients().mean) // COLUMNS))

    def __call__(
        self, model: Model, data: AbstractBatches, step: Int[Array, ""], *, key: PRNGKeyArray
    ) -> tuple[Float[Array, ""], tuple[Terms, Sums]]:
        choose, estimate = jax.random.split(key)
        windows, slots = data.pick_in_turn(step, self.batch_size, key=choose)
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
        fixed = fix(model)
        path_key, draw_key, hide_key = jax.random.split(key, 3)
        smooth = smooth_safely(fixed, window)
        path = path_of(model, window, smooth, path_key)
        fitted = observe(model, smooth, max(self.num_draws // 2, 1), draw_key)
        variance = jnp.diagonal(smooth.posterior.covariance, axis1=1, axis2=2)
        coded = model.encode(window, key=hide_key).values[smooth.row]
        miss = jnp.sum(jnp.where(smooth.scored, imitation(coded, smooth.posterior.mean, variance), 0))
        first = jnp.asarray(window.first)
        start = smooth.posterior.at_nodes().at(0)
        initial_kl = jnp.where(first, start.kl(fixed.initial), 0)
        one = jnp.where(first, 1.0, 0.0)
        drive = no_drive(fixed)
        if len(drive.pull):
            drive = jax.lax.cond(due, lambda: drive_of(fixed, window, smooth, path.pull), lambda: drive)
        starts = (one, one * start.mean, one * (start.mean**2 + variance[0]))
        sums = Sums(drive, spread_of(fixed, smooth), *fitted[1:], starts, jnp.ones(()), jnp.ones(()))
        used = jnp.where(smooth.usable, scale, 0.0)
        terms = {"log_likelihood": fitted.log_likelihood, "path_kl": path.kl, "initial_kl": initial_kl}
        # The encoder's term is there for its gradient; the value is that of the bound.
        bound = fitted.log_likelihood - path.kl - initial_kl - (miss - jax.lax.stop_gradient(miss))
        told = jax.tree.map(lambda x: used * jax.lax.stop_gradient(x), (terms, sums))
        return used * bound, (told[0], told[1]._replace(windows=scale))

    def remember(self, model: Model) -> Sums:
        """What is known before the first step: nothing."""
        d, channels = len(model.initial.mean), count_channels(model)
        zeros = lambda *shape: jnp.zeros(shape)  # noqa: E731
        return Sums(
            no_drive(model), Spread(zeros(d, d), zeros(d)), zeros(channels, d + 1, d + 1), zeros(channels, d + 1),
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
        variance = closed_variance(model, len(memory.counts))
        decoder = model.decoder.concluded(memory.squares, memory.products, variance, rate)
        counts = jnp.where(variance > 0, memory.counts, 0.0)
        likelihood = model.likelihood.concluded(memory.errors + memory.drift.errors, counts, rate)
        here = jnp.log(model.diffusion.median())
        known, pull = memory.diffusion
        slope = pull - known @ here + memory.drift.roughness
        known = known + jnp.diag(jnp.maximum(-slope, 0.0))
        diffusion = model.diffusion.climb(slope, known, rate)
        return decoder, likelihood, diffusion, model.initial.concluded(*memory.starts)


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
