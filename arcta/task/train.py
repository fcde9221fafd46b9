"""Training a task: one model or several, on one device or several, from memory or from disk, to a `Fit`."""

from __future__ import annotations

import dataclasses
import hashlib
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar, cast

import jax
import numpy as np
from jaxtyping import PRNGKeyArray, PyTree

from ..bound.elbo import drift_evaluations
from ..bound.objective import Objective, joins
from ..data.batches import AbstractBatches, Slots, TrainingData, observed_entries
from ..data.series import Series
from ..data.store import Feed, Store
from ..data.windows import Window
from ..model.reading import DataLayout, Reading
from ..model.spec import LatentSDE
from ..parts.model import Model
from ..predict.forecast import Sampling, forecast
from ..predict.prediction import Prediction, mix
from ..runtime.compile import compile_lightly
from ..training.ensemble import Members, member, stack
from ..training.loop import Alone, Best, Group, Hooks, Outcome, State, train
from ..training.parallel import Devices, is_first
from ..training.prepare import Prepared, prepare
from ..training.progress import Row
from ..training.recorder import Recorder
from ..training.settings import Training
from .fitted import Fit
from .run import carried, identity, tail_rows
from .use import Forecaster
from .validation import validation_pairs, validator

JOIN_WARNING = 1.0  # nats per join; a 1-D OU with 15 joins overshoots its log-likelihood by 15 nats
VALIDATION_SAMPLES = 64
T = TypeVar("T")
F = TypeVar("F", bound=Forecaster, covariant=True)
_joins = compile_lightly(joins)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """What is trained on what: one model, or several of one shape at once (an ensemble, the variants of a sweep)."""

    models: list[LatentSDE]
    trainings: list[Training]
    keys: list[PRNGKeyArray]
    whole: list[Series]
    series: list[Series]
    cuts: Mapping[str, float]
    read: tuple[DataLayout, Reading]
    held_out: list[Series]
    about: Mapping[str, object]
    store: Store | None = None
    devices: Devices | None = None

    @property
    def count(self) -> int:
        return len(self.models)

    @property
    def lead(self) -> bool:
        """Whether this process writes and speaks."""
        return self.devices is None or is_first()

    @property
    def sharing(self) -> Devices | None:
        """The devices that share each batch; members of an ensemble see all of it."""
        return self.devices if self.count == 1 else None

    def group(self) -> Group:
        """Who trains together."""
        if self.count > 1:
            return Members(self.trainings, () if self.devices is None else list(self.devices.mesh.devices.flat))
        return Alone() if self.devices is None else self.devices

    def pick(self, stacked: T, index: int) -> T:
        """A member of what was stacked."""
        return stacked if self.count == 1 else member(stacked, index)


def _begin(task: Task) -> tuple[Prepared, State]:
    """Everything up to the first step, and the state of all models."""
    first = prepare(task.models[0], task.series, task.trainings[0], key=task.keys[0], read=task.read)
    if task.count == 1:
        return first, first.state
    others = [
        prepare(spec, task.series, task.trainings[0], key=key, read=task.read, like=first).state
        for spec, key in zip(task.models[1:], task.keys[1:], strict=True)
    ]
    return first, stack([first.state, *others])


def _batches(task: Task, prepared: Prepared, key: PRNGKeyArray) -> AbstractBatches | Feed:
    """The windows to train on: all in memory, or read from a file for at most 256 steps at a time."""
    training, group, size = task.trainings[0], task.sharing, task.trainings[0].batch_size
    if task.store is None:
        return TrainingData(prepared.windows) if group is None else group.share(prepared.windows, size)
    seen = sum(item.mask.sum() for item in task.whole) / sum(item.mask.size for item in task.whole)
    slots = Slots.over(task.store.num_partitions(prepared.shape.size), size)
    if group is not None:
        group.check(len(slots.low))
    return Feed(
        task.store,
        prepared.layout.scaling,
        prepared.shape,
        slots,
        places=None if group is None else group.places(len(slots.low)),
        observed=float(seen) * len(task.store) * len(prepared.layout.channels),
        seed=int(jax.random.bits(key)),
        steps=min(training.log_every, 256),
    )


def _measure(objective: Objective, windows: Window, training: Training) -> Callable[[Model, int], Row]:
    """Drift evaluations so far, the KL weight, and now and then the posterior's jump at the joins."""
    ends = np.flatnonzero(~np.asarray(windows.first)[1:])
    some = ends[np.unique(np.linspace(0, len(ends) - 1, 32).astype(int))] if len(ends) else ends
    before, after = (
        jax.tree.map(lambda leaf, at=at: jax.device_put(np.asarray(leaf)[at]), windows) for at in (some, some + 1)
    )
    meet = jax.device_put(np.ones(len(some), bool))
    weight = jax.jit(objective.weight)
    batch = min(training.batch_size, len(windows.first))

    def measure(model: Model, step: int) -> Row:
        values, derivatives = drift_evaluations(model, training.num_draws, training.num_times)
        row: Row = {
            "kl_weight": float(weight(np.int32(step - 1))),
            "drift_evaluations": values * batch * step,
            "drift_derivatives": derivatives * batch * step,
        }
        if len(some) and (step % training.validate_every == 0 or step == training.steps):
            jumps = np.asarray(_joins(model, before, after, meet))
            row |= {"join_kl_mean": float(jumps.mean()), "join_kl_max": float(jumps.max())}
        return row

    return measure


def _validator(task: Task) -> Callable[[PyTree], Row] | None:
    """The error of forecasts, those of several models mixed."""
    if not task.held_out or not task.lead:
        return None
    layout = task.read[0]
    sampling = Sampling(-(-VALIDATION_SAMPLES // task.count))

    def mixed(stacked: PyTree, context: Series, times: np.ndarray, **options: object) -> Prediction:
        models = (task.pick(stacked, i) for i in range(task.count))
        said = [forecast(model, layout, context, times, sampling=sampling, **options) for model in models]  # pyright: ignore[reportArgumentType]
        return mix(cast("list[Prediction]", said))

    return validator(validation_pairs(task.series, task.held_out), layout, mixed)


def _recorder(task: Task, windows: Window, out: str | Path | None) -> Recorder:
    """Writes history and checkpoints of this task and no other."""
    observed = np.asarray(observed_entries(windows), windows.times.dtype)
    seen = (np.asarray(leaf).tobytes() for leaf in (*jax.tree.leaves(windows), observed))
    named = {
        **identity(task.models[0], *task.read, task.trainings[0]),
        "fingerprint": hashlib.sha256(b"".join(seen)).hexdigest(),
    }
    return Recorder(out if task.lead else None, named if task.count == 1 else {**named, "members": task.count})


def _hooks(task: Task, prepared: Prepared, recorder: Recorder) -> Hooks:
    measure = _measure(cast(Objective, prepared.objective), prepared.windows, task.trainings[0])
    return Hooks(
        measure=(lambda model, step: measure(task.pick(model, 0), step)) if task.lead else None,
        validate=_validator(task),
        on_row=recorder.row,
        on_checkpoint=recorder.checkpoint,
    )


def _warn_of_joins(history: Sequence[Row]) -> None:
    jumps = [row["join_kl_mean"] for row in history if "join_kl_mean" in row]
    if jumps and jumps[-1] > JOIN_WARNING:
        warnings.warn(
            f"the posterior jumps by {jumps[-1]:.2g} nats on average where windows meet, so the sum over windows may exceed "
            "the true bound; use a larger partition_size, more lookahead, or Training(join_penalty=1.0).",
            stacklevel=5,
        )


def _finish(task: Task, prepared: Prepared, outcome: Outcome, before: list[Row]) -> Fit:
    """What was trained, with all it needs to be used."""
    training = task.trainings[0]
    best = training.select == "best" and outcome.best.model is not None
    chosen = cast(Model, outcome.best.model if best else outcome.state.model)
    history = [*before, *outcome.history]
    _warn_of_joins(history)
    store, shape = task.store, prepared.shape
    return Fit(
        spec=task.models[0],
        layout=prepared.layout,
        reading=prepared.reading,
        model=task.pick(chosen, 0),
        training=training,
        context=carried(task.whole, shape) if store is None else [store.tail(tail_rows(shape))],
        history=history,
        stopped=outcome.stopped,
        seconds=outcome.seconds,
        compile_seconds=outcome.compile_seconds,
        cuts=task.cuts,
        about=task.about,
        others=tuple(task.pick(chosen, i) for i in range(1, task.count)),
    )


def train_task(
    task: Task, *, out: str | Path | None = None, resume: bool = False, progress: bool = True
) -> tuple[Fit, Group]:
    """Train the task's models: one `Fit` of them all, and who trained them."""
    if progress and task.lead and task.read[0].frame_shape:
        print("arcta: frames: reading levels and slopes of principal components first", file=sys.stderr, flush=True)
    prepared, state = _begin(task)
    recorder, group = _recorder(task, prepared.windows, out), task.group()
    best, before = Best(), []
    if resume and task.lead:
        state, best, before = recorder.resume(state)
    recorder.begin(before)
    if task.sharing is not None:
        state = task.sharing.same(state)
    outcome = train(
        prepared.objective,
        state,
        _batches(task, prepared, task.pick(state.key, 0)),
        task.trainings[0],
        hooks=_hooks(task, prepared, recorder),
        best=best,
        group=group,
        progress=progress and task.lead,
    )
    return _finish(task, prepared, outcome, before), group
