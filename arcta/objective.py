"""From windows to the number that is minimised: the whole data's bound, estimated from b of its P windows.

    loss = −[ Σ_places width (log_likelihood − w (path_kl + initial_kl)) − w parameter_kl ] / (observed entries)

Each of the b places of a batch is filled from its own `width` ≈ P/b of the windows (`windows.Slots`): unbiased for any b.
Division by the number of observed entries makes learning rates and clipping independent of how much data there is; the terms
it reports are nats of the whole data.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .elbo import elbo
from .model import Model
from .posterior import join_kl
from .store import StreamedData
from .windows import Slots, Window


def at(windows: Window, index: Int[Array, "*batch"]) -> Window:
    """Some of the stacked windows, or one."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[index], windows)


def observed_entries(windows: Window) -> int:
    """The number of entries that are scored in some window: each observed entry of the data once."""
    return int(np.sum(np.asarray(windows.mask) & np.asarray(windows.scored)[..., None]))


def joins(model: Model, windows: Window, index: Int[Array, " batch"]) -> Float[Array, " batch"]:
    """The posterior's jump (KL in nats) at the end of each chosen window; 0 where its series ends."""
    count = len(windows.first)
    after = jnp.minimum(index + 1, count - 1)
    joined = (index + 1 < count) & ~jnp.asarray(windows.first)[after]

    def jump(window: Window, following: Window) -> Array:
        return join_kl(model.posterior(window), model.posterior(following), window)

    return jnp.where(joined, jax.vmap(jump)(at(windows, index), at(windows, after)), 0)


class TrainingData(eqx.Module):
    """All windows, stacked, and the number of observed entries in them (counted once, not at every step).

    `slots` says which windows a batch is drawn from; without them it is drawn from all.
    """

    windows: Window
    observed: Float[Array, ""]
    slots: Slots | None = None

    def __init__(self, windows: Window, observed: Float[Array, ""] | None = None, slots: Slots | None = None):
        self.windows, self.slots = jax.tree.map(jax.device_put, windows), slots
        counted = np.asarray(observed_entries(windows), windows.times.dtype) if observed is None else observed
        self.observed = jax.device_put(counted)

    def choose(self, batch_size: int) -> Slots:
        """The places of a batch of that size."""
        return Slots.over(len(self.windows.first), batch_size) if self.slots is None else self.slots

    def pick(self, step: Int[Array, ""], batch_size: int, *, key: PRNGKeyArray) -> tuple[Window, Slots]:
        """The windows of a step, and the places they fill."""
        slots = self.choose(batch_size)
        return at(self.windows, slots.draw(key=key)), slots


class Objective(eqx.Module):
    """The loss of a model on stacked windows at a step; a value to be compiled once, hence nearly all fields static.

    The KL weight rises linearly from 0 to `kl_weight` over `kl_ramp` steps. `join_penalty` times the jump of the
    posterior at the joins is added on request.
    """

    batch_size: int = eqx.field(static=True, default=1)
    num_draws: int = eqx.field(static=True, default=10)
    num_times: int = eqx.field(static=True, default=10)
    kl_weight: Any = 1.0
    kl_ramp: int = eqx.field(static=True, default=0)
    join_penalty: float = eqx.field(static=True, default=0.0)
    num_decoded: int | None = eqx.field(static=True, default=None)

    def weight(self, step: Int[Array, ""]) -> Float[Array, ""]:
        """The KL weight at a step."""
        return self.kl_weight * jnp.clip((step + 1) / max(self.kl_ramp, 1), 0.0, 1.0)

    def __call__(
        self, model: Model, data: TrainingData | StreamedData, step: Int[Array, ""], *, key: PRNGKeyArray
    ) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
        choose, estimate = jax.random.split(key)
        windows, slots = data.pick(step, self.batch_size, key=choose)
        keys, scale = slots.keys(estimate), slots.weights()

        def terms_of(window: Window, k: PRNGKeyArray):
            counts = {"num_draws": self.num_draws, "num_times": self.num_times, "num_decoded": self.num_decoded}
            return elbo(model, window, **counts, key=k)

        if len(keys) == 1:  # vmap over one window would copy its kernel matrix in and out of a loop
            per_window = jax.tree.map(
                lambda term: term[None], terms_of(jax.tree.map(lambda leaf: leaf[0], windows), keys[0])
            )
        else:
            per_window = jax.vmap(terms_of)(windows, keys)
        terms = {
            "log_likelihood": jnp.sum(scale * per_window.log_likelihood),
            "path_kl": jnp.sum(scale * per_window.path_kl),
            "initial_kl": jnp.sum(scale * per_window.initial_kl),
            "parameter_kl": per_window.parameter_kl[0],
        }
        kl = terms["path_kl"] + terms["initial_kl"] + terms["parameter_kl"]
        bound = terms["log_likelihood"] - self.weight(step) * kl
        if self.join_penalty > 0 and isinstance(data, TrainingData):
            chosen = slots.draw(key=choose)
            terms["join_kl"] = jnp.sum(scale * joins(model, data.windows, chosen))
            bound = bound - self.join_penalty * terms["join_kl"]
        return -bound / data.observed, terms
