"""From windows to the number that is minimised: the whole data's bound, estimated from b of its P windows.

    loss = −[ Σ_places width (log_likelihood − w (path_kl + initial_kl)) − w parameter_kl ] / (observed entries)

Each of the b places of a batch is filled from its own `width` ≈ P/b of the windows (`batches.Slots`): unbiased for any b.
Division by the number of observed entries makes learning rates and clipping independent of how much data there is; the terms
it reports are nats of the whole data.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from ..data.batches import AbstractBatches
from ..data.windows import Window
from ..parts.model import Model
from ..parts.posterior import join_kl
from ..runtime.sums import Terms, sum_over
from .elbo import elbo


def joins(model: Model, windows: Window, following: Window, meet: Bool[Array, " batch"]) -> Float[Array, " batch"]:
    """The posterior's jump (KL in nats) at the end of each window; 0 where it does not `meet` the following one."""

    def jump(pair: tuple[Window, Window]) -> Array:
        window, following = pair
        return join_kl(model.posterior(window), model.posterior(following), window)

    return jnp.where(meet, jax.lax.map(jump, (windows, following)), 0)


class Objective(eqx.Module):
    """The loss of a model on batches of windows at a step; a value to be compiled once, hence nearly all fields static.

    The KL weight rises linearly from 0 to `kl_weight` over `kl_ramp` steps. `join_penalty` times the jump of the
    posterior at the joins is added on request.
    """

    batch_size: int = eqx.field(static=True, default=1)
    num_draws: int = eqx.field(static=True, default=10)
    num_times: int = eqx.field(static=True, default=10)
    kl_weight: float | Float[Array, ""] = 1.0
    kl_ramp: int = eqx.field(static=True, default=0)
    join_penalty: float = eqx.field(static=True, default=0.0)
    num_decoded: int | None = eqx.field(static=True, default=None)

    def weight(self, step: Int[Array, ""]) -> Float[Array, ""]:
        """The KL weight at a step."""
        return self.kl_weight * jnp.clip((step + 1) / max(self.kl_ramp, 1), 0.0, 1.0)

    def __call__(
        self, model: Model, data: AbstractBatches, step: Int[Array, ""], *, key: PRNGKeyArray
    ) -> tuple[Float[Array, ""], Terms]:
        choose, estimate = jax.random.split(key)
        windows, slots = data.pick(step, self.batch_size, key=choose)
        scale, weight = slots.weights(), self.weight(step)
        counts = {"num_draws": self.num_draws, "num_times": self.num_times, "num_decoded": self.num_decoded}

        def bound_of(model: Model, place: tuple[Window, PRNGKeyArray, Array, Array]) -> tuple[Array, Terms]:
            window, key, scale, kl_scale = place
            terms = elbo(model, window, **counts, key=key)
            named = {name: scale * getattr(terms, name) for name in ("log_likelihood", "path_kl", "initial_kl")}
            return scale * terms.log_likelihood - kl_scale * (terms.path_kl + terms.initial_kl), named

        bound, terms = sum_over(bound_of, model, (windows, slots.keys(estimate), scale, scale * weight))
        terms["parameter_kl"] = model.parameter_kl()
        bound = bound - weight * terms["parameter_kl"]
        if self.join_penalty > 0:
            terms["join_kl"] = jnp.sum(scale * joins(model, *data.pick_pairs(self.batch_size, key=choose)))
            bound = bound - self.join_penalty * terms["join_kl"]
        return -bound / data.observed, terms
