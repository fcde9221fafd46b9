"""Several models trained together: members of an ensemble, or the variants of a sweep.

    arcta.fit(model, data, ensemble=8)                                    eight seeds, one program; forecasts mix them
    arcta.sweep({"slow": (model, training), "fast": …}, data)             variants of one shape in one program

A member is trained exactly as it would be alone, but for rounding: its own start, its own random numbers, its own clipping. One
that diverges stops the rest at the step before, so that the state which is kept is whole. (From a file that stays on disk all
members see the windows that the first one draws.)

On a GPU they are one program by `vmap`. On a CPU a batch of small matrix products is slower than the products one by one, so each
core takes a member at a time through the program of one. With several devices each takes its share of the members.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PyTree

from ..bound.objective import Objective
from ..runtime.compile import compile_lightly
from .loop import Advance, Group, Loss, Optimised, State, advance, take_steps
from .progress import Row
from .settings import Training

T = TypeVar("T")
Device = Any  # `jax.Device` is a variable to a type checker


def stack(states: list[State]) -> State:
    """Members' states as one: every array with a leading axis, but for the step, which they share."""
    arrays, statics = zip(*(eqx.partition(state, eqx.is_array) for state in states), strict=True)
    return eqx.combine(
        eqx.tree_at(lambda s: s.step, jax.tree.map(lambda *x: jnp.stack(x), *arrays), states[0].step), statics[0]
    )


def member(tree: T, index: int | np.ndarray) -> T:
    """One member of stacked arrays, or, by an array of indices, some of them."""
    return jax.tree.map(lambda leaf: leaf[index] if eqx.is_array(leaf) else leaf, tree)


@compile_lightly
def _advance(loss: Loss, training: Optimised, state: State, data: PyTree, stop: Int[Array, ""]) -> Advance:
    arrays, static = eqx.partition(state, eqx.is_array)
    axes = eqx.tree_at(lambda s: s.step, jax.tree.map(lambda _: 0, arrays), None)
    # Numbers in which the variants of a sweep differ come as arrays, one for each; all else is the same for all.
    varied, common = eqx.partition((loss, training), eqx.is_array)

    def one(arrays: PyTree, varied: PyTree) -> Advance:
        loss, training = eqx.combine(varied, common)
        state, means, last = take_steps(loss, training, eqx.combine(arrays, static), data, stop)
        return eqx.filter(state, eqx.is_array), means, last

    return jax.vmap(one, in_axes=(axes, 0), axis_size=len(state.key))(arrays, varied)


KNOBS = ("learning_rate", "clip", "kl_weight")  # in these the variants of one program may differ


class Varied(eqx.Module):
    """A `Training` with a learning rate and a clip for each member."""

    training: Training = eqx.field(static=True)
    learning_rate: Float[Array, "*members"]
    clip: Float[Array, "*members"]

    def optimiser(self) -> optax.GradientTransformation:
        return self.training.optimiser(self.learning_rate, self.clip)


class Members(Group):
    """Trains several models at once.

    `terms` keeps what `train` sees the mean of: each member's loss terms, call by call.
    """

    def __init__(self, trainings: Sequence[Training], devices: Sequence[Device] = ()):
        self.trainings = trainings
        self.terms: list[dict[str, np.ndarray]] = []
        self.devices = list(devices[: len(trainings)]) or jax.devices()[:1]
        self._sent: tuple[PyTree, list[PyTree]] = (None, [])

    def _varied(self, loss: Loss) -> tuple[Loss, Optimised]:
        first = self.trainings[0]
        if all(training == first for training in self.trainings):
            return loss, first
        rates, clips, weights = (
            jnp.asarray([getattr(training, name) for training in self.trainings], float) for name in KNOBS
        )
        varied = eqx.tree_at(lambda o: o.kl_weight, loss, weights) if isinstance(loss, Objective) else loss
        return varied, Varied(first, rates, clips)

    def advance(self, loss: Loss, training: Training, state: State, data: PyTree, stop: Array) -> Advance:
        """As `train.advance`, for all members; terms are the members' means, and the last ones those of the first that failed."""
        varied, optimised = self._varied(loss)
        arrays, means, last = self._run(varied, optimised, state, data, stop)
        steps = np.asarray(arrays.step)
        reached = jnp.asarray(steps.min(), jnp.int32)
        if steps.min() < int(stop):
            last = member(last, int(steps.argmin()))
            if steps.max() > steps.min():
                arrays, means, _ = self._run(varied, optimised, state, data, reached)
        else:
            last = jax.tree.map(jnp.mean, last)
        if steps.min() > int(state.step):
            self.terms.append(jax.tree.map(np.asarray, means))
        whole = eqx.combine(eqx.tree_at(lambda s: s.step, arrays, reached), state)
        return whole, jax.tree.map(jnp.mean, means), last

    def _copies(self, data: PyTree) -> list[PyTree]:
        """The data on each device, sent there once."""
        if len(self.devices) == 1:
            return [data]
        if self._sent[0] is not data:
            self._sent = data, [jax.device_put(data, device) for device in self.devices]
        return self._sent[1]

    def _run(self, loss: Loss, training: Optimised, state: State, data: PyTree, stop: Array) -> Advance:
        count, cpu, copies = len(state.key), jax.default_backend() == "cpu", self._copies(data)
        shares = list(range(count)) if cpu else np.array_split(np.arange(count), len(self.devices))
        whole = (state.model, state.optimiser, state.memory)
        if cpu:  # NumPy's arrays share the memory of JAX's there, and are sooner taken apart
            whole = jax.tree.map(lambda x: np.asarray(x) if eqx.is_array(x) else x, whole)

        def one(turn: int) -> Advance:
            share, place = shares[turn], turn % len(self.devices)
            model, moments, memory = member(whole, share)
            own = State(model, moments, state.step, state.key[share], memory)
            if len(self.devices) > 1:
                arrays, static = eqx.partition(own, eqx.is_array)
                own = eqx.combine(jax.device_put(arrays, self.devices[place]), static)
            steps_to = advance if cpu else _advance
            return jax.block_until_ready(
                steps_to(member(loss, share), member(training, share), own, copies[place], stop)
            )

        if cpu and int(stop) == int(state.step):
            done = [one(0)] * count  # no step is asked for: all that matters is that the program is there
        else:
            with ThreadPoolExecutor(max(os.cpu_count() or 1, len(self.devices))) as pool:
                done = list(pool.map(one, range(len(shares))))
        arrays = [eqx.filter(each, eqx.is_array) for each in done]
        if cpu:
            parts = (((own.model, own.optimiser, own.step, own.memory), *terms) for own, *terms in arrays)
            joined, *terms = jax.tree.map(lambda *leaves: jax.device_put(np.stack(leaves)), *parts)
            blank = eqx.filter(state, eqx.is_array)
            return eqx.tree_at(lambda s: (s.model, s.optimiser, s.step, s.memory), blank, joined), *terms
        if len(self.devices) > 1:
            arrays = jax.device_put(arrays, self.devices[0])
        return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *arrays)

    def histories(self, rows: Sequence[Row]) -> list[list[Row]]:
        return [
            [
                {**row, **{name: float(values[i]) for name, values in terms.items()}}
                for row, terms in zip(rows, self.terms, strict=False)
            ]
            for i in range(len(self.trainings))
        ]
