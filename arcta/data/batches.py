"""Which windows a step of training sees: the places of a batch, and the data that fills them.

Each of the b places of a batch is filled from its own `width` ≈ P/b of the P windows, so the sum over places of width · term is an
unbiased estimate of the sum over all windows for any b.
"""

import abc
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PRNGKeyArray

from .windows import Window

STRIDE = 7919
DEVICES = "devices"  # the name of the mesh axis over which places are shared


def take(windows: Window, index: Int[Array, "*batch"]) -> Window:
    """Some of the stacked windows, or one."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[index], windows)


def observed_entries(windows: Window) -> int:
    """The number of entries that are scored in some window: each observed entry of the data once."""
    return int(np.sum(np.asarray(windows.mask) & np.asarray(windows.scored)[..., None]))


class Slots(eqx.Module):
    """The places of a batch. Place j is filled from a stretch of windows of its own, `low[j]` … `low[j] + width[j] − 1`, uniformly.

    Unbiased with weights `width`, of lower variance than draws from all windows at once; each device knows which windows it will
    ever need, and what is drawn does not depend on how many devices there are. `shards` > 1: these are the places of one of so many
    devices, inside `jax.shard_map` over the axis `DEVICES`.
    """

    low: Int[Array | np.ndarray, " places"]
    width: Int[Array | np.ndarray, " places"]
    shards: int = eqx.field(static=True, default=1)

    @staticmethod
    def over(num_windows: int, batch_size: int) -> "Slots":
        """As many stretches as there are places, of nearly the same length; all windows if there are no more than places."""
        count = min(batch_size, num_windows)
        bounds = np.arange(count + 1, dtype=np.int64) * num_windows // count
        return Slots(bounds[:-1], np.diff(bounds))

    def _own(self, of_all: Array) -> Array:
        if self.shards == 1:
            return of_all
        places = len(self.low)
        return jax.lax.dynamic_slice_in_dim(of_all, jax.lax.axis_index(DEVICES) * places, places)

    def draw(self, *, key: PRNGKeyArray) -> Int[Array, " places"]:
        """A window for each place, uniform to within width/2³², by one generator call (`randint` makes three)."""
        bits = self._own(jax.random.bits(key, (self.shards * len(self.low),), jnp.uint32))
        low, width = (jnp.asarray(x, jnp.uint32) for x in (self.low, self.width))
        return (low + bits % width).astype(jnp.int32)

    def turn(self, step: Int[Array, ""]) -> Int[Array, " places"]:
        """A window for each place, all of them in turn, early and late ones mixed: a prime shares no divisor with a width."""
        low, width = (jnp.asarray(x, jnp.uint32) for x in (self.low, self.width))
        return (low + (step.astype(jnp.uint32) % width) * (STRIDE % width) % width).astype(jnp.int32)

    def keys(self, key: PRNGKeyArray) -> Key[Array, " places"]:
        """A key for each place."""
        total = self.shards * len(self.low)
        return key[None] if total == 1 else self._own(jax.random.split(key, total))

    def weights(self) -> Float[Array, " places"]:
        """How many windows of the data each place stands for; averaged over devices, hence times their number."""
        return self.shards * jnp.asarray(self.width, float)


class AbstractBatches(eqx.Module):
    """Windows to train on; `observed` entries in all the data, whether or not it is all here.

    `place_axis` is the axis of the windows' arrays along which windows of different places lie.
    """

    windows: eqx.AbstractVar[Window]
    observed: eqx.AbstractVar[Float[Array, ""]]
    slots: eqx.AbstractVar[Slots | None]
    place_axis: ClassVar[int]

    @abc.abstractmethod
    def pick(self, step: Int[Array, ""], batch_size: int, *, key: PRNGKeyArray) -> tuple[Window, Slots]:
        """The windows of a step, and the places they fill."""

    def pick_in_turn(self, step: Int[Array, ""], batch_size: int, *, key: PRNGKeyArray) -> tuple[Window, Slots]:
        """The same, but all windows in turn, so that averages over steps weigh them alike; if they are at hand."""
        return self.pick(step, batch_size, key=key)

    @abc.abstractmethod
    def pick_pairs(self, batch_size: int, *, key: PRNGKeyArray) -> tuple[Window, Window, Array]:
        """The windows that `pick` gives, the ones that follow them, and whether those belong to the same series."""


class TrainingData(AbstractBatches):
    """All windows, stacked, and the number of observed entries in them (counted once, not at every step).

    `slots` says which windows the places of a batch are filled from; by default all, for whatever batch is asked for.
    """

    windows: Window
    observed: Float[Array, ""]
    slots: Slots | None
    place_axis: ClassVar[int] = 0

    def __init__(self, windows: Window, observed: Float[Array, ""] | None = None, slots: Slots | None = None):
        self.windows, self.slots = jax.tree.map(jax.device_put, windows), slots
        counted = np.asarray(observed_entries(windows), windows.times.dtype) if observed is None else observed
        self.observed = jax.device_put(counted)

    def _places(self, batch_size: int) -> Slots:
        return Slots.over(len(self.windows.first), batch_size) if self.slots is None else self.slots

    def pick(self, step: Int[Array, ""], batch_size: int, *, key: PRNGKeyArray) -> tuple[Window, Slots]:
        slots = self._places(batch_size)
        return take(self.windows, slots.draw(key=key)), slots

    def pick_in_turn(self, step: Int[Array, ""], batch_size: int, *, key: PRNGKeyArray) -> tuple[Window, Slots]:
        slots = self._places(batch_size)
        return take(self.windows, slots.turn(step)), slots

    def pick_pairs(self, batch_size: int, *, key: PRNGKeyArray) -> tuple[Window, Window, Array]:
        return pairs(self.windows, self._places(batch_size).draw(key=key))


def pairs(windows: Window, index: Int[Array, " batch"]) -> tuple[Window, Window, Array]:
    """Some of the stacked windows, those that follow them, and whether the two meet (they do not where a series ends)."""
    count = len(windows.first)
    after = jnp.minimum(index + 1, count - 1)
    meet = (index + 1 < count) & ~jnp.asarray(windows.first)[after]
    return take(windows, index), take(windows, after), meet
