"""Training on several devices, of one process or of many: each sees its places of every batch, gradients are averaged.

    arcta fit data.csv --devices all                 all devices of this machine; under Slurm, those of the whole job
    arcta.fit(model, data, devices="all")

Parameters are replicated. A batch is the same however many devices share it (`windows.Slots`), so the losses are those of one
device but for rounding; and each device holds only the windows that its places are filled from. Gradient and loss terms travel as
one flat vector once a step: left to itself, the compiler puts one exchange after another inside the backward pass.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
from collections.abc import Iterator
from typing import TypeVar

import equinox as eqx
import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.flatten_util import ravel_pytree
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, ArrayLike, PyTree

from ..data.batches import DEVICES, AbstractBatches, Slots, TrainingData, observed_entries
from ..data.windows import Window
from ..runtime.compile import compile_for
from ..runtime.sums import Terms
from .checkpoint import from_arrays, to_arrays
from .loop import Advance, Group, Loss, Optimised, State, take_steps
from .settings import Training

JOB_SIZES = ("SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE")
SILENCE = 30  # seconds after which a process that says nothing counts as lost; most losses are seen at once

B = TypeVar("B", bound=AbstractBatches)


class PeerLost(RuntimeError):
    """Another process of the job has ended."""


def connect() -> None:
    """Join the processes of a job, before anything else is done with JAX; without signs of a job, nothing happens.

    A job is known by JAX_COORDINATOR_ADDRESS (host:port of the first process), JAX_NUM_PROCESSES and JAX_PROCESS_ID, or by the
    variables that Slurm and Open MPI set for their tasks.
    """
    if jax.distributed.is_initialized():
        return
    address = os.environ.get("JAX_COORDINATOR_ADDRESS")
    if address is not None:
        count, rank = (os.environ.get(name) for name in ("JAX_NUM_PROCESSES", "JAX_PROCESS_ID"))
        if count is None or rank is None:
            raise ValueError(
                "JAX_COORDINATOR_ADDRESS is set: several processes need JAX_NUM_PROCESSES and JAX_PROCESS_ID (0, 1, …) too."
            )
        # By default the coordinator would listen on all interfaces.
        jax.distributed.initialize(
            address, int(count), int(rank), coordinator_bind_address=address, heartbeat_timeout_seconds=SILENCE
        )
    elif any(int(os.environ.get(name, "1")) > 1 for name in JOB_SIZES):
        jax.distributed.initialize(heartbeat_timeout_seconds=SILENCE)


def is_first() -> bool:
    """Whether this process is the one that writes what the job leaves."""
    return jax.process_index() == 0


def disconnect() -> None:
    """Let the other processes go, after training: the first one scores and reports alone."""
    if jax.distributed.is_initialized():
        jax.distributed.shutdown()


def _average(tree: PyTree) -> PyTree:
    flat, unravel = ravel_pytree(tree)
    return unravel(jax.lax.pmean(flat, DEVICES))


def _parts(state: State) -> tuple[PyTree, ...]:
    """A state but for its key."""
    return state.model, state.optimiser, state.step, state.memory


def _advance(
    mesh: Mesh, loss: Loss, training: Optimised, static: PyTree, same: PyTree, data: AbstractBatches
) -> tuple[PyTree, Terms, Terms]:
    def on_each(same: PyTree, data: AbstractBatches) -> tuple[PyTree, Terms, Terms]:
        parts, key, stop = same
        model, moments, step, memory = eqx.combine(parts, static)
        state = State(model, moments, step, jax.random.wrap_key_data(key), memory)
        state, means, last = take_steps(loss, training, state, data, stop, _average)
        return eqx.filter(_parts(state), eqx.is_array), means, last

    split = jax.shard_map(on_each, mesh=mesh, in_specs=(P(), _specs(data)), out_specs=P(), check_vma=False)
    return split(same, data)


def _specs(data: AbstractBatches) -> PyTree[P]:
    """How the leaves of a device's data lie over the devices: windows and places are split, the rest is the same on all."""
    split = P(*(None,) * data.place_axis, DEVICES)
    same = jax.tree.map(lambda _: P(), data)
    parts = jax.tree.map(lambda _: split, data.windows), jax.tree.map(lambda _: P(DEVICES), data.slots)
    return eqx.tree_at(lambda d: (d.windows, d.slots), same, parts)


@contextlib.contextmanager
def _peers() -> Iterator[None]:
    """An exchange with other processes: if one of them is gone, say so. (JAX waits for it for a minute and a half when this process
    ends; the command line does not let it.)"""
    try:
        yield
    except Exception as error:  # of several types, whichever call was waiting
        if jax.process_count() == 1:
            raise
        raise PeerLost(
            "another process of the job has ended, so this one stops too. Start the job again with --resume (resume=True): it "
            f"goes on from the last checkpoint. ({str(error)[:200]})"
        ) from error


@dataclasses.dataclass(frozen=True)
class Devices(Group):
    """Some devices as one; made by `devices`."""

    mesh: Mesh
    calls: Iterator[int] = dataclasses.field(default_factory=itertools.count, compare=False)

    def __len__(self) -> int:
        return self.mesh.size

    def check(self, batch_size: int) -> None:
        """Refuse a batch that cannot be shared evenly."""
        if batch_size % len(self):
            raise ValueError(
                f"a batch is shared by the devices: batch_size must be a multiple of {len(self)}; got {batch_size}. "
                f"Use Training(batch_size={len(self) * -(-batch_size // len(self))})."
            )

    def places(self, batch_size: int) -> range:
        """The places of a batch that this process fills."""
        each, ranks = batch_size // len(self), self._ranks()
        return range(each * ranks[0], each * (ranks[-1] + 1))

    def share(self, windows: Window, batch_size: int) -> TrainingData:
        """Of all windows, those that this process's places are filled from, each device's with as many rows as any has."""
        slots = Slots.over(len(windows.first), batch_size)
        self.check(len(slots.low))
        each = len(slots.low) // len(self)
        low, high = slots.low[::each], (slots.low + slots.width)[each - 1 :: each]
        longest = int(np.max(high - low))
        rows = np.minimum(low[:, None] + np.arange(longest), len(windows.first) - 1)[self._ranks()].ravel()
        local = slots.low - np.repeat(low, each)
        mine = np.array(self.places(len(slots.low)))
        own = Slots(local[mine].astype(np.int32), slots.width[mine].astype(np.int32), len(self))
        part = jax.tree.map(lambda leaf: np.asarray(leaf)[rows], windows)
        observed = jax.device_put(np.asarray(observed_entries(windows), windows.times.dtype))
        return self._place(TrainingData(part, observed, own))

    def same(self, state: State) -> State:
        """The first process's state, on all."""
        if jax.process_count() == 1:
            return state
        with _peers():
            told = multihost_utils.broadcast_one_to_all(to_arrays(state))
        return from_arrays(state, told, where="the first process's state")

    def advance(self, loss: Loss, training: Training, state: State, data: AbstractBatches, stop: Array) -> Advance:
        """As `train.advance`, each device on its places of the batch."""
        if data.slots is not None and data.slots.shards != len(self):  # windows fresh from a file
            shared = Slots(data.slots.low, data.slots.width, len(self))
            data = self._place(eqx.tree_at(lambda d: d.slots, data, shared))
        parts, static = eqx.partition(_parts(state), eqx.is_array)
        with _peers():
            same = self._replicate((parts, jax.random.key_data(state.key), stop))
            out = compile_for(state.model, _advance)(self.mesh, loss, training, static, same, data)
            parts, means, last = jax.tree.map(lambda leaf: leaf.addressable_data(0), jax.block_until_ready(out))
        model, moments, step, memory = eqx.combine(parts, static)
        return State(model, moments, step, state.key, memory), means, last

    def agree(self, code: int) -> int:
        """The largest code that any process has, so that all stop after the same step. SIGTERM on any of them counts as 2."""
        if jax.process_count() == 1:
            return code
        with _peers():
            ending = multihost_utils.reached_preemption_sync_point(next(self.calls))
            codes = multihost_utils.process_allgather(np.asarray(2 if ending else code, np.int32))
            return int(np.max(codes))

    def _ranks(self) -> list[int]:
        return [i for i, device in enumerate(self.mesh.devices.flat) if device.process_index == jax.process_index()]

    def _place(self, data: B) -> B:
        """Arrays of this process as parts of arrays over all devices."""

        def put(leaf: ArrayLike, spec: P) -> Array:
            return jax.make_array_from_process_local_data(NamedSharding(self.mesh, spec), np.asarray(leaf))

        return jax.tree.map(put, data, _specs(data))

    def _replicate(self, tree: PyTree) -> PyTree:
        """The same arrays on all devices, made from those that this process has on one."""
        everywhere = NamedSharding(self.mesh, P())

        def joined(*copies: Array) -> Array:
            return jax.make_array_from_single_device_arrays(copies[0].shape, everywhere, list(copies))

        return jax.tree.map(joined, *(jax.device_put(tree, device) for device in self.mesh.local_devices))


def devices(which: str | int = "all") -> Devices:
    """All devices of all processes of the job (`"all"`), or the first so many of this process.

    A CPU counts as one device, which uses all its cores; for several set XLA_FLAGS=--xla_force_host_platform_device_count=N, or
    start several processes.
    """
    connect()
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices("arcta")
    found = jax.devices()
    if which != "all":
        if int(which) > len(found) or int(which) < 1:
            raise ValueError(f"devices must be 'all' or from 1 to {len(found)}; got {which}. Use 'all'.")
        if jax.process_count() > 1:
            raise ValueError("several processes train on all their devices; use devices='all'.")
        found = found[: int(which)]
    return Devices(Mesh(np.array(found), (DEVICES,), axis_types=(AxisType.Auto,)))
