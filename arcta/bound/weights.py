"""Whether a posterior of the path can be believed: importance weights along its own SDE,

    dz = g dt + √q dβ,   z(0) ~ q(z0),   log w = log p(z0)/q(z0) + Σ_i log p(x_i | z(t_i)) − ∫ r·dβ/√q − ½ ∫ r²/q dt

with r = g − f (Girsanov). Their mean is p(x), whatever the posterior; the mean of their logarithms is the bound; of the true
posterior all are equal. The heavier their tail, the less of the true posterior was visited: k, the shape of the generalised Pareto
distribution that fits the largest ones (Vehtari, Simpson, Gelman, Yao, Gabry 2024), above 0.7 means that no average over these
paths can be relied on.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ..parts.generative import AbstractGenerative
from ..parts.posterior import AbstractGaussian, AbstractPosterior
from ..parts.sde import interpolate_inputs
from ..parts.smoother import Rows
from ..runtime.small import factor, solve_lower

BELIEVED = 0.7  # k above which averages over the weights do not converge in practice
JUST_AFTER = 1e-3  # of a step: at a node itself the posterior is still that before it
SHORT = 0.1  # of the time in which the posterior pulls a path back: how long a step may be
FEWEST, MOST = 8, 512  # steps between two nodes


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
    substeps: int,
    rotation: bool = True,
    key: PRNGKeyArray,
) -> Float[Array, " paths"]:
    """log w of paths over some rows, the first of which is where p(z0) holds; the parameters are at their medians. `rotation`:
    whether the posterior's drift turns as the prior's does."""
    θ = model.median()
    start_key, path_key = jax.random.split(key)
    start = posterior.at_nodes().at(0)
    noise = jax.random.normal(start_key, (num_paths, *start.mean.shape), start.mean.dtype)
    z = jax.vmap(start.state)(noise)
    turns = rotation and z.shape[1] > 1

    def log_likelihood(z: Array, x: Array, mask: Array) -> Array:
        outputs = jax.vmap(model.decoder, in_axes=(0, None))(z, θ.decoder)
        densities = jax.vmap(lambda output: model.likelihood.log_density(x, output, θ.likelihood))(outputs)
        return jnp.sum(jnp.where(mask, densities, 0), axis=1)

    def step(carry: tuple[Array, Array], at: tuple[Array, Array, Array]) -> tuple[tuple[Array, Array], None]:
        (z, log_w), (since, h, key) = carry, at
        t, u = rows.start + since, interpolate_inputs(since, rows.input_times, rows.inputs)
        q_t = posterior(since + JUST_AFTER * h)
        m, q = q_t.normal.mean, model.diffusion(t, θ.diffusion)
        f = jax.vmap(lambda z: model.drift(t, z, u, θ.drift))(z)
        jacobian = jax.jacfwd(lambda z: model.drift(t, z, u, θ.drift))(m) if turns else None
        g = jax.vmap(lambda δ: q_t.drift(δ, q, jacobian))(z - m)
        dβ = jnp.sqrt(h) * jax.random.normal(key, z.shape, z.dtype)
        log_w = log_w - jnp.sum((g - f) * dβ / jnp.sqrt(q) + 0.5 * h * (g - f) ** 2 / q, axis=1)
        return (z + h * g + jnp.sqrt(q) * dβ, log_w), None

    def interval(carry: tuple[Array, Array], at: tuple[Array, ...]) -> tuple[tuple[Array, Array], None]:
        begin, end, x, mask, key = at
        h = (end - begin) / substeps
        steps = (begin + h * jnp.arange(substeps), jnp.full(substeps, h), jax.random.split(key, substeps))
        (z, log_w), _ = jax.lax.scan(step, carry, steps)
        return (z, log_w + log_likelihood(z, x, mask)), None

    log_w = jax.vmap(lambda z: _log_density(model.initial, z) - _log_density(start, z))(z)
    log_w = log_w + log_likelihood(z, rows.values[0], rows.mask[0])
    keys = jax.random.split(path_key, len(rows.times) - 1)
    between = (rows.times[:-1], rows.times[1:], rows.values[1:], rows.mask[1:], keys)
    return jax.lax.scan(interval, (z, log_w), between)[0][1]


def _log_density(normal: AbstractGaussian, z: Float[Array, " latent"]) -> Float[Array, ""]:
    Λ = factor(normal.covariance())
    away = solve_lower(Λ, z - normal.mean)
    return -0.5 * jnp.sum(away**2) - jnp.sum(jnp.log(jnp.diagonal(Λ))) - 0.5 * len(z) * math.log(2 * math.pi)


def steps_for(model: AbstractGenerative, rows: Rows, posterior: AbstractPosterior) -> int:
    """Into how many steps to cut what lies between two nodes: a power of two, so that few programs are compiled."""
    q = jax.vmap(lambda t: model.diffusion(t, model.median().diffusion))(rows.start + rows.times)
    variance = jnp.diagonal(posterior.at_nodes().covariance(), axis1=1, axis2=2)[: len(rows.times)]
    pull = np.asarray(jnp.max(q / variance, axis=1))
    wanted = np.max(np.diff(np.asarray(rows.times)) * np.maximum(pull[1:], pull[:-1])) / SHORT
    return int(2 ** math.ceil(math.log2(min(max(float(wanted), FEWEST), MOST))))


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
