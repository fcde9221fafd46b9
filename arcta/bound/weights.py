"""Whether a posterior of the path can be believed: importance weights along its own SDE,

    dz = g dt + √q dβ,   z(0) ~ q(z0),   log w = log p(z0)/q(z0) + Σ_i log p(x_i | z(t_i)) − ∫ r·dβ/√q − ½ ∫ r²/q dt

with r = g − f (Girsanov). Their mean is p(x), whatever the posterior; the mean of their logarithms is the bound; of the true
posterior all are equal. The heavier their tail, the less of the true posterior was visited: k, the shape of the generalised Pareto
distribution that fits the largest ones (Vehtari, Simpson, Gelman, Yao, Gabry 2024), above 0.7 means that no average over these
paths can be relied on.

A stretch from the inside of a series is weighed against what comes before and after it. A posterior's drift says what it takes
from later observations, g − f = Q ∇ log h, so that at either end

    F = q / h  (normalised),    log w = log F(z_a)/q(z_a) + Σ log p(x_i | z(t_i)) − … + log q(z_b)/F(z_b)

where F is the state given what was seen before. If the posterior is the true one all weights are p(x_a+1 … x_b-1 | x_1 … x_a).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from ..parts.generative import AbstractGenerative
from ..parts.posterior import AbstractGaussian, AbstractMarginal, AbstractPosterior
from ..parts.sde import interpolate_inputs
from ..parts.smoother import Rows
from ..runtime.small import eigh, factor, solve_lower

BELIEVED = 0.7  # k above which averages over the weights do not converge in practice
BESIDE = 1e-3  # of a step: what lies right before a node differs from what lies right after it
SHORT = 0.05  # of the time in which the posterior pulls a path back: how long a step may be
FEWEST, MOST = 4, 512  # steps between two nodes
WIDEST = 1e3  # how much wider than the posterior, in variance, the state given the past alone may be


class Belief(NamedTuple):
    """`k`: the tail of the weights; `bound`: the mean of their logarithms, `tightened`: the logarithm of their mean, in nats."""

    k: float
    bound: float
    tightened: float

    @property
    def believed(self) -> bool:
        return self.k < BELIEVED


def log_weights(
    model: AbstractGenerative,
    rows: Rows,
    posterior: AbstractPosterior,
    *,
    num_paths: int,
    closed: bool | Bool[Array, ""] = True,
    rotation: bool = True,
    key: PRNGKeyArray,
) -> Float[Array, " paths"]:
    """log w of paths over some rows; the parameters are at their medians.

    **Arguments:** `rows`: the first is where p(z0) holds (`first`), or inside a series; the mask leaves out what is not to be
    weighed, which includes the ends inside a series. `closed`: whether nothing comes after the last row. `rotation`: whether the
    posterior's drift turns as the prior's does.
    """
    θ, times = model.median(), rows.times
    start_key, path_key = jax.random.split(key)
    start = posterior(times[0]).normal
    z = jax.vmap(start.state)(jax.random.normal(start_key, (num_paths, *start.mean.shape), start.mean.dtype))

    def log_likelihood(z: Array, x: Array, mask: Array) -> Array:
        outputs = jax.vmap(model.decoder, in_axes=(0, None))(z, θ.decoder)
        densities = jax.vmap(lambda output: model.likelihood.log_density(x, output, θ.likelihood))(outputs)
        return jnp.sum(jnp.where(mask, densities, 0), axis=1)

    def interval(carry: tuple[Array, Array], at: tuple[Array, ...]) -> tuple[tuple[Array, Array], None]:
        begin, end, x, mask, steps, key = at
        h = (end - begin) / steps

        def step(i: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
            (z, log_w), now = carry, _Now.at(model, rows, posterior, begin + h * i, BESIDE * h)
            jacobian = now.jacobian() if rotation and z.shape[1] > 1 else None
            f = jax.vmap(now.drift)(z)
            g = jax.vmap(lambda δ: now.marginal.drift(δ, now.q, jacobian))(z - now.marginal.normal.mean)
            dβ = jnp.sqrt(h) * jax.random.normal(jax.random.fold_in(key, i), z.shape, z.dtype)
            log_w = log_w - jnp.sum((g - f) * dβ / jnp.sqrt(now.q) + 0.5 * h * (g - f) ** 2 / now.q, axis=1)
            return z + h * g + jnp.sqrt(now.q) * dβ, log_w

        z, log_w = jax.lax.fori_loop(0, steps, step, carry)
        return (z, log_w + log_likelihood(z, x, mask)), None

    steps = jnp.diff(times)
    first = jax.vmap(lambda z: _log_density(model.initial, z) - _log_density(start, z))(z)
    after = _Now.at(model, rows, posterior, times[0], BESIDE * steps[0])
    log_w = jnp.where(rows.first, first, after.log_past(start, z)) + log_likelihood(z, rows.values[0], rows.mask[0])
    keys = jax.random.split(path_key, len(steps))
    between = (times[:-1], times[1:], rows.values[1:], rows.mask[1:], steps_for(model, rows, posterior), keys)
    z, log_w = jax.lax.scan(interval, (z, log_w), between)[0]
    last = jnp.max(jnp.where(steps > 0, jnp.arange(len(steps)), 0))  # rows after it are repeats
    before = _Now.at(model, rows, posterior, times[-1], -BESIDE * steps[last])
    return log_w - jnp.where(closed, 0.0, before.log_past(posterior(times[-1] - BESIDE * steps[last]).normal, z))


class _Now(NamedTuple):
    """A model and its posterior at one time."""

    model: AbstractGenerative
    marginal: AbstractMarginal
    t: Float[Array, ""]
    u: Float[Array, " inputs"]
    q: Float[Array, " latent"]

    @staticmethod
    def at(model: AbstractGenerative, rows: Rows, posterior: AbstractPosterior, since: Array, beside: Array) -> _Now:
        """`beside`: how far from there the posterior is looked at."""
        t, u = rows.start + since, interpolate_inputs(since, rows.input_times, rows.inputs)
        return _Now(model, posterior(since + beside), t, u, model.diffusion(t, model.median().diffusion))

    def drift(self, z: Float[Array, " latent"]) -> Float[Array, " latent"]:
        return self.model.drift(self.t, z, self.u, self.model.median().drift)

    def jacobian(self) -> Float[Array, "latent latent"]:
        return jax.jacfwd(self.drift)(self.marginal.normal.mean)

    def log_past(self, normal: AbstractGaussian, z: Float[Array, "paths latent"]) -> Float[Array, " paths"]:
        """log F(z) − log q(z) for the marginal q = `normal`. In its own coordinates y, in which q is a standard normal, log h is
        η·y − ½ yᵀ W y; where a posterior is not that of any such h, W is bounded, so that F is a distribution."""
        J, zero, m = self.jacobian(), jnp.zeros_like(self.q), self.marginal.normal.mean
        pull = jax.jacfwd(lambda δ: self.marginal.drift(δ, self.q, J))(zero) - J
        L = factor(normal.covariance())
        W = -L.T @ (pull / self.q[:, None]) @ L
        λ, V = eigh(0.5 * (W + W.T))
        precision = 1 - jnp.minimum(λ, 1 - 1 / WIDEST)
        η = V.T @ (L.T @ ((self.marginal.drift(zero, self.q, J) - self.drift(m)) / self.q))
        y = jax.vmap(lambda z: V.T @ solve_lower(L, z - normal.mean))(z)
        return 0.5 * jnp.sum(jnp.log(precision) + y**2 - precision * (y + η / precision) ** 2, axis=1)


def _log_density(normal: AbstractGaussian, z: Float[Array, " latent"]) -> Float[Array, ""]:
    Λ = factor(normal.covariance())
    away = solve_lower(Λ, z - normal.mean)
    return -0.5 * jnp.sum(away**2) - jnp.sum(jnp.log(jnp.diagonal(Λ))) - 0.5 * len(z) * math.log(2 * math.pi)


def steps_for(model: AbstractGenerative, rows: Rows, posterior: AbstractPosterior) -> Int[Array, " intervals"]:
    """Into how many steps to cut what lies between two nodes; none where padding repeats one."""
    q = jax.vmap(lambda t: model.diffusion(t, model.median().diffusion))(rows.start + rows.times)
    variance = jax.vmap(lambda t: jnp.diagonal(posterior(t).normal.covariance()))(rows.times)
    pull = jnp.max(q / variance, axis=1)
    wanted = jnp.diff(rows.times) * jnp.maximum(pull[1:], pull[:-1]) / SHORT
    count = jnp.clip(jnp.ceil(jnp.nan_to_num(wanted)), FEWEST, MOST).astype(int)
    return jnp.where(jnp.diff(rows.times) > 0, count, 0)


def belief(log_w: Float[np.ndarray, " paths"]) -> Belief:
    """What weights say; a path that left the range of numbers has none."""
    log_w = np.where(np.isfinite(log_w), np.asarray(log_w, float), -np.inf)
    if not np.isfinite(log_w).all():
        return Belief(np.inf, -np.inf, -np.inf)
    top = log_w.max()
    return Belief(tail_shape(log_w), float(log_w.mean()), float(top + np.log(np.mean(np.exp(log_w - top)))))


def tail_shape(log_w: Float[np.ndarray, " paths"]) -> float:
    """k of the largest weights, by the estimator of Zhang and Stephens (2009), drawn a little towards ½; −∞ if all are equal."""
    count = math.ceil(min(0.2 * len(log_w), 3 * math.sqrt(len(log_w))))
    ordered = np.sort(log_w - log_w.max())
    x = np.exp(ordered[-count:]) - np.exp(ordered[-count - 1])
    if ordered[-count - 1] > -1e-9:
        return -np.inf
    if x[0] <= 0:  # less than a tail carries all the weight
        return np.inf
    grid = 30 + math.isqrt(count)
    b = 1 / x[-1] + (1 - np.sqrt(grid / (np.arange(1, grid + 1) - 0.5))) / (3 * x[(count - 1) // 4])
    shape = np.mean(np.log1p(-b[:, None] * x), axis=1)
    likelihood = count * (np.log(-b / shape) - shape - 1)
    weight = np.exp(likelihood - likelihood.max())
    k = float(np.mean(np.log1p(-np.sum(b * weight) / weight.sum() * x)))
    return (count * k + 5) / (count + 10)
