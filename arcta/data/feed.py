"""The windows of a file on disk, brought to training some steps at a time, read ahead while the steps before them run.

A step's windows are drawn uniformly over the whole file by generators seeded with (seed, piece of training, place in the batch):
a run that was stopped and resumed sees the same ones, and so do several machines that share the places of a batch.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import ClassVar

import jax
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .batches import AbstractBatches, Slots
from .scaling import Scaling
from .store import Store
from .windows import Window, WindowShape


class StreamedData(AbstractBatches):
    """The windows for some steps of training, `(steps, places, …)`, the first of them at step `first`."""

    windows: Window
    first: Int[Array, ""]
    observed: Float[Array, ""]
    slots: Slots  # pyright: ignore[reportIncompatibleVariableOverride]  (frozen)
    place_axis: ClassVar[int] = 1

    def pick(self, step: Int[Array, ""], batch_size: int, *, key: PRNGKeyArray) -> tuple[Window, Slots]:
        return jax.tree.map(lambda leaf: leaf[step - self.first], self.windows), self.slots

    def pick_pairs(self, batch_size: int, *, key: PRNGKeyArray) -> tuple[Window, Window, Array]:
        raise ValueError("windows of a file come without the ones that follow them; leave join_penalty out.")


class Feed:
    """The windows of a store, for `steps` steps of training at a time; a thread reads ahead while they are used.

    `slots` are the places of the batch, `places` those of them to read for, all by default; what is read for a place does not
    depend on the others. `observed` is the number of observed entries in the whole file.
    """

    def __init__(
        self,
        data: Store,
        scaling: Scaling,
        shape: WindowShape,
        slots: Slots,
        *,
        observed: float,
        seed: int,
        steps: int = 50,
        places: range | None = None,
    ):
        self.data, self.scaling, self.shape, self.slots = data, scaling, shape, slots
        self.observed, self.seed, self.steps = observed, seed, steps
        self.places = places or range(len(slots.low))
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="arcta-reader")
        self.pending: dict[int, Future[StreamedData]] = {}

    def read(self, piece: int) -> StreamedData:
        """The windows of one piece of training, drawn uniformly over the file; stretches without data are drawn again."""
        generators = [np.random.default_rng((self.seed, piece, place)) for place in self.places]
        low, width = (np.asarray(x)[self.places] for x in (self.slots.low, self.slots.width))
        chosen = np.stack(
            [rng.integers(a, a + n, self.steps) for rng, a, n in zip(generators, low, width, strict=True)], 1
        )
        for _ in range(100):
            windows, enough = self.data.windows(chosen.ravel(), self.scaling, self.shape)
            enough = enough.reshape(chosen.shape)
            if enough.all():
                break
            for place, rng in enumerate(generators):
                again = ~enough[:, place]
                chosen[again, place] = rng.integers(low[place], low[place] + width[place], again.sum())
        else:
            raise ValueError(f"'{self.data.name}' is missing nearly everywhere: few stretches hold two observations.")
        shaped = jax.tree.map(lambda leaf: leaf.reshape(*chosen.shape, *leaf.shape[1:]), windows)
        observed, first = np.asarray(self.observed, shaped.times.dtype), np.int32(piece * self.steps)
        return StreamedData(*jax.device_put((shaped, first, observed, Slots(low, width))))

    def at(self, step: int) -> StreamedData:
        """The windows for the piece of training that `step` is in; the next piece is being read."""
        piece = step // self.steps
        self.pending = {k: v for k, v in self.pending.items() if k in (piece, piece + 1)}
        for ahead in (piece, piece + 1):
            if ahead not in self.pending:
                self.pending[ahead] = self.thread.submit(self.read, ahead)
        return self.pending[piece].result()
