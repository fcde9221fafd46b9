"""How far a law's coefficients, the diffusion and the noise are known, together: what the filter's innovations say of them all.

    I = Σ ∂ν ∂νᵀ / s + ½ ∂s ∂sᵀ / s²,   ν the innovation of an entry, s its variance, ∂ in φ = (c, log q, log v)

In training each part has a width of its own, the noise that at a fixed path. But a path that follows the observations closely, with
more diffusion and less noise, explains them nearly as well: they are known less than each alone would be. At the end, where the
drift is a law of the user's own and the noise normal, the covariance of all is (I + prior)⁻¹. For linear systems I is what the
likelihood itself is expected to say; for others, that of the system linearised along the smoothed path.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..data.windows import Window
from ..parts.likelihoods import AbstractLikelihood
from ..parts.model import Model
from ..parts.prior import Coordinates, Parameter
from ..parts.sde import value_and_jacobian
from ..parts.smoother import chain_over
from ..runtime.compile import compile_lightly
from ..runtime.host import array
from .evidence import Smooth, count_channels, smooth_safely

MOST_WINDOWS = 256  # are asked, and speak for the others
MOST = 100  # numbers; a drift with more keeps the widths it has


class Innovations(NamedTuple):
    """Of each entry that is observed, given all before it: its distance from what the filter expects, and the variance of that."""

    ν: Float[Array, "nodes channels"]
    s: Float[Array, "nodes channels"]


def _split(model: Model, φ: Float[Array, " numbers"]) -> list[Array]:
    sizes = np.cumsum([len(model.drift.coefficients().mean), len(model.diffusion.median())])
    return jnp.split(φ, sizes)


def innovations(model: Model, smooth: Smooth, φ: Float[Array, " numbers"]) -> Innovations:
    """By a filter along the smoothed path, entry by entry, so that no matrix has to be inverted."""
    c, log_q, log_v = _split(model, φ)
    rows, m, level = smooth.rows, smooth.posterior.mean, jnp.exp(log_q)
    θ = model.drift.at_coefficients(c)
    flow = jax.vmap(lambda t, m, u: value_and_jacobian(model.drift, t, m, m, u, θ))
    f, J = flow(rows.start + rows.times, m, rows.inputs_at_nodes())
    steps = chain_over(rows, m, f, J, jax.vmap(lambda t: model.diffusion(t, level))(rows.start + rows.times))
    outputs, H, _ = jax.vmap(model.decoder.linearise)(m)
    x, v = model.likelihood.view(rows.values), jnp.exp(log_v) if len(log_v) else model.likelihood.typical()

    def see(state: tuple[Array, Array], entry: tuple[Array, ...]) -> tuple[tuple[Array, Array], Innovations]:
        (e, P), (away, h, v, seen) = state, entry
        ν, Ph = away - h @ e, P @ h
        s = h @ Ph + v
        gain = jnp.where(seen, Ph / s, 0.0)
        return (e + gain * ν, P - gain[:, None] * Ph), Innovations(ν, s)

    def node(state: tuple[Array, Array], item: tuple) -> tuple[tuple[Array, Array], Innovations]:
        (e, P), (over, away, H, seen) = state, item
        return jax.lax.scan(see, (over.Φ @ e + over.ρ, over.Φ @ P @ over.Φ.T + over.Q), (away, H, v, seen))

    d = m.shape[1]
    P = jnp.where(rows.first, model.initial.covariance(), jnp.eye(d, dtype=m.dtype))
    e = jnp.where(rows.first, model.initial.mean - m[0], 0.0)
    still = jax.tree.map(lambda leaf: jnp.zeros_like(leaf[:1]), steps)._replace(Φ=jnp.eye(d, dtype=m.dtype)[None])
    steps = jax.tree.map(lambda first, rest: jnp.concatenate([first, rest]), still, steps)
    return jax.lax.scan(node, (e, P), (steps, x - outputs, H, rows.mask))[1]


def _information(model: Model, window: Window, φ: Float[Array, " numbers"]) -> tuple[Array, Array]:
    """What a window says of φ; and whether it can."""
    smooth = smooth_safely(model, window)
    here = innovations(model, smooth, φ)
    ν, s = jax.jacfwd(lambda φ: innovations(model, smooth, φ))(φ)
    seen = jnp.where(smooth.rows.mask & smooth.scored[:, None], 1.0, 0.0) / here.s
    known = jnp.einsum("nc,nci,ncj->ij", seen, ν, ν) + 0.5 * jnp.einsum("nc,nci,ncj->ij", seen**2, s, s)
    usable = smooth.usable & jnp.all(jnp.isfinite(known))
    return jnp.where(usable, known, 0.0), usable


@compile_lightly
def _root(model: Model, windows: Window, more: Float[Array, ""]) -> tuple[Array, Array]:
    """R with R Rᵀ the covariance of φ, if there are so many times `more` windows; and the part of them that can be used."""
    numbers = coordinates(model)
    known, usable = jax.lax.map(lambda window: _information(model, window, numbers.mean), windows)
    precision = more * jnp.sum(known, axis=0) / jnp.mean(usable) + jnp.diag(numbers.prior_precision + 1e-6)
    scale = jax.lax.rsqrt(jnp.diagonal(precision))
    tiny = 10 * jnp.finfo(precision.dtype).eps * jnp.eye(len(scale))
    root = jnp.linalg.cholesky(precision * scale[:, None] * scale + tiny)
    return jax.scipy.linalg.solve_triangular(root, jnp.diag(scale), lower=True).T, jnp.mean(usable)


def _noises(likelihood: AbstractLikelihood) -> list[Parameter]:
    """The variances of the noise, by kind of channel, unless some are known."""
    found = [item.parameter for item in likelihood.shown()]
    return found if all(item.coordinates() is not None for item in found) else []


def _columns(model: Model) -> list[np.ndarray]:
    """Whose channels they are."""
    every = np.arange(count_channels(model))
    return [np.array(item.channels, int) if item.channels else every for item in model.likelihood.shown()]


def _all(parts: Iterable[Coordinates | None]) -> Coordinates:
    some = [part for part in parts if part is not None]
    return jax.tree.map(lambda *leaves: jnp.concatenate([jnp.ravel(leaf) for leaf in leaves]), *some)


def coordinates(model: Model) -> Coordinates:
    """Of φ, with its priors."""
    numbers, noises = (
        [Coordinates(*model.drift.coefficients()), model.diffusion.level.coordinates()],
        _noises(model.likelihood),
    )
    if noises:
        order = np.argsort(np.concatenate(_columns(model)))
        numbers.append(jax.tree.map(lambda leaf: leaf[order], _all(item.coordinates() for item in noises)))
    return _all(numbers)


def with_joint_widths(model: Model, windows: Window) -> Model:
    """The model with what is known of coefficients, diffusion and noise together in place of each for itself, if that applies."""
    if not (model.refined and model.drift.believed and model.decoder.affine and model.likelihood.all_normal):
        return model
    if model.diffusion.level.coordinates() is None or len(coordinates(model).mean) > MOST:
        return model
    count = len(windows.first)
    some = np.unique(np.linspace(0, count - 1, min(count, MOST_WINDOWS)).astype(int))
    chosen = jax.tree.map(lambda leaf: jax.device_put(np.asarray(leaf)[some]), windows)
    here = jax.tree.map(lambda leaf: jax.device_put(np.asarray(leaf)) if eqx.is_array(leaf) else leaf, model)
    root, usable = _root(here, chosen, array(count / len(some)))  # `here`: devices that shared the work leave it on all
    if not (float(usable) > 0 and bool(jnp.all(jnp.isfinite(root)))):
        return model
    return _concluded(model, root)


def _concluded(model: Model, root: Float[Array, "numbers numbers"]) -> Model:
    stds = _split(model, jnp.sqrt(jnp.sum(root**2, axis=1)))
    drift, level, size = model.drift, model.diffusion.level, len(stds[0])
    if size:
        own = jnp.linalg.qr(root[:size].T, mode="r").T
        drift = drift.concluded(drift.coefficients().mean, stds[0], jnp.zeros(())).joined(own)
    level = _with_std(level, stds[1])
    noises = _noises(model.likelihood)
    new = [_with_std(item, stds[2][at]) for item, at in zip(noises, _columns(model), strict=False)]
    likelihood = model.likelihood
    if noises:
        likelihood = eqx.tree_at(lambda x: [item.parameter for item in x.shown()], likelihood, new)
    return eqx.tree_at(lambda m: (m.drift, m.diffusion.level, m.likelihood), model, (drift, level, likelihood))


def _with_std(item: Parameter, std: Float[Array, " n"]) -> Parameter:
    here = item.coordinates()
    return item if here is None else item.moved(here.mean, std)
