"""The evidence lower bound of one window.

    ELBO = Σ_i E log p(x_i | z(t_i))  −  ½ ∫ E ‖r‖²_{q⁻¹} dt  −  KL(q(z0) ‖ p(z0))  −  KL(q(θ) ‖ p(θ))

Only the posterior's marginals and their rates at single times enter, so all R·S values of the drift are independent of one another.
`elbo` returns a window's raw terms in nats; it knows nothing of how many windows there are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ..data.windows import Window
from ..parts.decoders import decode_draws
from ..parts.generative import Draw
from ..parts.model import Model
from ..parts.posterior import AbstractPosterior
from ..parts.sde import interpolate_inputs
from ..parts.smoother import PASSES
from ..runtime.random import normal
from .quadrature import stratified
from .residual import residual


class ELBO(NamedTuple):
    """The terms of a window's bound, in nats."""

    log_likelihood: Float[Array, ""]
    path_kl: Float[Array, ""]
    initial_kl: Float[Array, ""]
    parameter_kl: Float[Array, ""]

    def total(self, kl_weight: float | Array = 1.0) -> Float[Array, ""]:
        """log_likelihood − kl_weight · (path_kl + initial_kl + parameter_kl)."""
        return self.log_likelihood - kl_weight * (self.path_kl + self.initial_kl + self.parameter_kl)


def _path_kl(
    model: Model,
    window: Window,
    posterior: AbstractPosterior,
    θ: Draw,
    away: Float[Array, "draws coefficients"],
    times: Float[Array, "draws times"],
    ε: Float[Array, "draws times latent"],
) -> Float[Array, ""]:
    """½ ∫ E ‖r‖²_{q⁻¹} dt by nested Monte Carlo: R draws of θ, S times in [0, 1) for each, a fresh ε at each time."""
    start, end = jnp.asarray(window.start), jnp.asarray(window.end)
    knots = jnp.asarray(window.input_times), jnp.asarray(window.inputs)

    def rate(time: Array, ε: Array, θ: Draw, away: Array) -> Array:
        t = end * time
        r, q = residual(model, posterior.given(away)(t), start + t, interpolate_inputs(t, *knots), ε, θ)
        return jnp.sum(r**2 / q)

    rates = jax.vmap(jax.vmap(rate, in_axes=(0, 0, None, None)))(times, ε, θ, away)
    return 0.5 * end * jnp.sum(rates) / times.size


def _log_likelihood(
    model: Model,
    window: Window,
    posterior: AbstractPosterior,
    θ: Draw,
    away: Float[Array, "draws coefficients"],
    ε: Float[Array, "latent draws nodes"],
) -> Float[Array, ""]:
    """Σ_i E log p(x_i | z(t_i)) over scored rows and observed channels, by one ε at each node for each draw of θ.

    Nodes run along the last axis, as decoders of many states want them.
    """
    num_draws, count = ε.shape[1:]
    x, scored = jnp.asarray(window.values)[:count], jnp.asarray(window.scored)[:count]
    mask = jnp.asarray(window.mask)[:count] & scored[:, None]
    states = jax.vmap(lambda away, ε: posterior.given(away).at_nodes().state(ε))(away, jnp.moveaxis(ε, 0, -1))
    z = jnp.moveaxis(states, -1, 0)
    outputs = decode_draws(model.decoder, z, θ.decoder)
    # θ at every node, too: what is mapped along one axis, `vmap` does not transpose.
    noise = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf[..., None], (*leaf.shape, count)), θ.likelihood)
    at_nodes = jax.vmap(model.likelihood.log_density, in_axes=-1, out_axes=-1)
    densities = jax.vmap(at_nodes, in_axes=(None, 1, 0))(x.T, outputs, noise)
    return jnp.sum(jnp.where(mask.T, densities, 0)) / num_draws


def elbo(
    model: Model,
    window: Window,
    *,
    num_draws: int = 10,
    num_times: int = 10,
    num_decoded: int | None = None,
    draw_times: Callable[..., Array] = stratified,
    posterior: AbstractPosterior | None = None,
    key: PRNGKeyArray,
) -> ELBO:
    """Unbiased estimates of the terms of a window's evidence lower bound, in nats and in the model's units.

    **Arguments:**

    - `model`, `window`: unbatched; `vmap` over windows or models as you need.
    - `num_draws`: R, draws of the state's noise and of the uncertain parameters.
    - `num_times`: S, stratified times for each draw. The drift is evaluated R·S times.
    - `num_decoded`: how many of the R draws are decoded at every observation; all of them by default.
    - `draw_times`: how the times are drawn in [0, 1), `(num_draws, num_times, key=…)`.
    - `posterior`: q(z(t) | window) if you have it; by default the model infers it.
    - `key`: all randomness comes from it.

    **Returns:** `ELBO(log_likelihood, path_kl, initial_kl, parameter_kl)`. `initial_kl` is zero but for the first window
    of a series. `parameter_kl` is that of the whole model: count it once however many windows are summed.
    """
    keys = jax.random.split(key, 3 + num_draws)
    encode_key, time_key, noise_key = keys[:3]
    q = model.posterior(window, key=encode_key) if posterior is None else posterior
    θ = jax.vmap(lambda k: model.draw(key=k))(keys[3:])
    # What is learned of the drift and of the state may depend on each other; then the state is drawn given the drift.
    away = jax.vmap(model.drift.coefficients_of, axis_size=num_draws)(θ.drift) - model.drift.coefficients().mean
    decoded, near = jax.tree.map(lambda leaf: leaf[:num_decoded], (θ, away))
    times = draw_times(num_draws, num_times, key=time_key)
    path_noise, state_noise = _noise(q, num_draws, num_times, num_decoded or num_draws, key=noise_key)

    def start_kl(away: Array) -> Array:
        return q.given(away).at_nodes().at(window.margin).kl(model.initial)

    return ELBO(
        log_likelihood=_log_likelihood(model, window, q, decoded, near, state_noise),
        path_kl=_path_kl(model, window, q, θ, away, times, path_noise),
        initial_kl=jnp.where(window.first, jnp.mean(jax.vmap(start_kl)(away)), 0),
        parameter_kl=model.parameter_kl(),
    )


def _noise(
    posterior: AbstractPosterior, num_draws: int, num_times: int, num_decoded: int, *, key: PRNGKeyArray
) -> tuple[Float[Array, "draws times latent"], Float[Array, "latent decoded nodes"]]:
    """ε for the path and for the nodes, by one call of the generator."""
    count, latent = posterior.at_nodes().mean.shape
    on_path = num_draws * num_times * latent
    ε = normal(key, (on_path + latent * num_decoded * count,))
    return ε[:on_path].reshape(num_draws, num_times, latent), ε[on_path:].reshape(latent, num_decoded, count)


def drift_evaluations(model: Model, num_draws: int, num_times: int, num_rows: int = 0) -> tuple[int, int]:
    """How often a window of so many rows evaluates the drift at single points (NFE), and how many forward derivatives it takes
    besides: along the path; where the posterior follows the model's own flow, at every row in each pass, at a pair of points in
    each step between nodes and, for the slopes of a user's parameters, at pairs around the nodes."""
    size = len(model.initial.mean)
    if not model.smoothed:
        values = num_draws * num_times
        return values, values * size if model.rotation and size > 1 else 0
    passes, inside = PASSES * num_rows, num_rows - 2 * model.reach[1]
    around = 2 * size * inside if model.drift.believed else 0
    return passes + 2 * inside + around, (passes + 2 * inside) * size
