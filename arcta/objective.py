"""From windows to the number that is minimised: the whole data's bound, estimated from b of its P windows.

    loss = −[ Σ_places width (log_likelihood − w (path_kl + initial_kl)) − w parameter_kl ] / (observed entries)

Each of the b places of a batch is filled from its own `width` ≈ P/b of the windows (`windows.Slots`): unbiased for any b.
Division by the number of observed entries makes learning rates and clipping independent of how much data there is; the terms
it reports are nats of the whole data.
"""

from __future__ import annotations

from collections.abc import Callable
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


def summed(function: Callable[..., tuple[Array, Any]], model: Any, each: Any) -> tuple[Array, Any]:
    """Σ_j function(model, each_j) of a number to differentiate by the model, and of others that are only reported.

    On a CPU one after the other, with the derivatives summed on the way: what a window leaves for its derivative then stays in the
    cache. (Sixteen windows of MOCAP, one core, in a throw-away profile: 39 ms a step by `vmap`, 24 ms so.) Elsewhere all at once.
    """
    if jax.tree.leaves(each)[0].shape[0] == 1:
        return function(model, jax.tree.map(lambda leaf: leaf[0], each))
    if jax.default_backend() != "cpu":
        return jax.tree.map(jnp.sum, jax.vmap(function, in_axes=(None, 0))(model, each))
    parts, static = eqx.partition(model, eqx.is_inexact_array)

    def one(parts: Any, item: Any) -> tuple[Array, Any]:
        return function(eqx.combine(parts, static), item)

    @jax.custom_vjp
    def total(parts: Any, each: Any) -> tuple[Array, Any]:
        return jax.tree.map(jnp.sum, jax.lax.map(lambda item: one(parts, item), each))

    def forward(parts: Any, each: Any) -> tuple[tuple[Array, Any], Any]:
        def add(slopes: Any, item: Any) -> tuple[Any, tuple[Array, Any]]:
            values, slope = jax.value_and_grad(one, has_aux=True)(parts, item)
            return jax.tree.map(jnp.add, slopes, slope), values

        slopes, values = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, parts), each)
        return jax.tree.map(jnp.sum, values), slopes

    def backward(slopes: Any, wanted: tuple[Array, Any]) -> tuple[Any, None]:
        return jax.tree.map(lambda slope: wanted[0] * slope, slopes), None

    total.defvjp(forward, backward)
    return total(parts, each)


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
        keys, scale, weight = slots.keys(estimate), slots.weights(), self.weight(step)

        def bound_of(model: Model, each: tuple[Window, PRNGKeyArray, Array, Array]) -> tuple[Array, dict[str, Array]]:
            window, key, scale, kl_scale = each
            counts = {"num_draws": self.num_draws, "num_times": self.num_times, "num_decoded": self.num_decoded}
            terms = elbo(model, window, **counts, key=key)
            named = {name: scale * getattr(terms, name) for name in ("log_likelihood", "path_kl", "initial_kl")}
            return scale * terms.log_likelihood - kl_scale * (terms.path_kl + terms.initial_kl), named

        bound, terms = summed(bound_of, model, (windows, keys, scale, scale * weight))
        terms["parameter_kl"] = model.parameter_kl()
        bound = bound - weight * terms["parameter_kl"]
        if self.join_penalty > 0 and isinstance(data, TrainingData):
            chosen = slots.draw(key=choose)
            terms["join_kl"] = jnp.sum(scale * joins(model, data.windows, chosen))
            bound = bound - self.join_penalty * terms["join_kl"]
        return -bound / data.observed, terms
