"""Training a task: one model or several, on one device or several, from memory or from disk, to a `Fit`."""

from __future__ import annotations

import dataclasses
import hashlib
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar, cast

import jax
import numpy as np
from jaxtyping import PRNGKeyArray, PyTree

from ..bound.closed import ClosedForms
from ..bound.elbo import drift_evaluations
from ..bound.objective import Objective, joins
from ..bound.widths import with_joint_widths
from ..data.batches import AbstractBatches, Slots, observed_entries
from ..data.series import Series
from ..data.store import Feed, Store
from ..data.windows import Window
from ..model.fault import find_fault_in_training
from ..model.reading import DataLayout, Reading
from ..model.spec import LatentSDE
from ..parts.model import Model
from ..predict.forecast import Sampling, forecast
from ..predict.prediction import Prediction, mix
from ..runtime.compile import compile_lightly
from ..runtime.memory import return_memory
from ..training.checkpoint import Recorder, write_history
from ..training.ensemble import Members, member, stack
from ..training.loop import Alone, Best, Group, Hooks, Outcome, State, TrainingDiverged, train
from ..training.parallel import Devices, is_first
from ..training.prepare import Prepared, prepare
from ..training.progress import Row
from ..training.settings import Training
from .fitted import Fit
from .run import carried, identity, tail_rows
from .validation import validation_pairs, validator

JOIN_WARNING = 1.0  # nats per join, about what the sum over windows may then exceed the log-likelihood by
VALIDATION_SAMPLES = 64
T = TypeVar("T")
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
    about: Mapping[str, object]
    held_out: list[Series] = dataclasses.field(default_factory=list)
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
    others = [
        prepare(spec, task.series, task.trainings[0], key=key, read=task.read, like=first).state
        for spec, key in zip(task.models[1:], task.keys[1:], strict=True)
    ]
    return first, stack([first.state, *others]) if others else first.state


def _batches(task: Task, prepared: Prepared, key: PRNGKeyArray) -> AbstractBatches | Feed:
    """The windows to train on: all in memory, or read from a file for at most 256 steps at a time."""
    training, group = task.trainings[0], task.sharing
    if task.store is None:
        return prepared.data if group is None else group.share(prepared.windows, training.batch_size)
    seen = sum(item.mask.sum() for item in task.whole) / sum(item.mask.size for item in task.whole)
    slots = Slots.over(task.store.num_partitions(prepared.shape.size), training.batch_size)
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


def _measure(task: Task, prepared: Prepared) -> Callable[[PyTree, int], Row]:
    """Of the first model: drift evaluations so far, the KL weight, and now and then the posterior's jump at the joins."""
    training, windows = task.trainings[0], prepared.windows
    ends = np.flatnonzero(~np.asarray(windows.first)[1:])
    some = ends[np.unique(np.linspace(0, len(ends) - 1, 32).astype(int))] if len(ends) else ends
    before, after = (
        jax.tree.map(lambda leaf, at=at: jax.device_put(np.asarray(leaf)[at]), windows) for at in (some, some + 1)
    )
    meet = jax.device_put(np.ones(len(some), bool))
    weight = jax.jit(cast("Objective | ClosedForms", prepared.objective).weight)
    batch = min(training.batch_size, len(windows.first))

    def measure(stacked: PyTree, step: int) -> Row:
        model = task.pick(stacked, 0)
        values, derivatives = drift_evaluations(model, training.num_draws, training.num_times, windows.times.shape[1])
        row: Row = {
            "kl_weight": float(weight(np.int32(step - 1))),
            "drift_evaluations": values * batch * step,
            "drift_derivatives": derivatives * batch * step,
            "diffusion": float(np.exp(np.mean(np.log(model.diffusion.median())))),
        }
        if len(some) and (step % training.validate_every == 0 or step == training.steps):
            jumps = np.asarray(_joins(model, before, after, meet))
            row |= {"join_kl_mean": float(jumps.mean()), "join_kl_max": float(jumps.max())}
        return row

    return measure


def _validator(task: Task) -> Callable[[PyTree], Row] | None:
    """The error of forecasts, those of several models mixed."""
    if not task.held_out:
        return None
    layout, sampling = task.read[0], Sampling(-(-VALIDATION_SAMPLES // task.count))

    def mixed(stacked: PyTree, context: Series, times: np.ndarray, **options: object) -> Prediction:
        models = (task.pick(stacked, i) for i in range(task.count))
        said = [forecast(model, layout, context, times, sampling=sampling, **options) for model in models]  # pyright: ignore[reportArgumentType]
        return mix(cast("list[Prediction]", said))

    return validator(validation_pairs(task.series, task.held_out), layout, mixed)


def _identity(task: Task, windows: Window) -> dict[str, object]:
    """What a checkpoint must agree on to go on from it."""
    observed = np.asarray(observed_entries(windows), windows.times.dtype)
    seen = (np.asarray(leaf).tobytes() for leaf in (*jax.tree.leaves(windows), observed))
    named = identity(task.models[0], *task.read, task.trainings[0])
    named["fingerprint"] = hashlib.sha256(b"".join(seen)).hexdigest()
    return named if task.count == 1 else {**named, "members": task.count}


def _finish(task: Task, prepared: Prepared, outcome: Outcome, before: list[Row]) -> Fit:
    """What was trained, with all it needs to be used."""
    best = task.trainings[0].select == "best" and outcome.best.model is not None
    chosen = cast(Model, outcome.best.model if best else outcome.state.model)
    model, *others = (task.pick(chosen, i) for i in range(task.count))
    if task.store is None:
        model, *others = (with_joint_widths(member, prepared.windows) for member in (model, *others))
    history = [*before, *outcome.history]
    jumps = [row["join_kl_mean"] for row in history if "join_kl_mean" in row]
    if jumps and jumps[-1] > JOIN_WARNING:
        cure = "use a larger partition_size" + (
            "" if model.refined else ", more lookahead, or Training(join_penalty=1.0)"
        )
        warnings.warn(
            f"the posterior jumps by {jumps[-1]:.2g} nats on average where windows meet, so the sum over windows may exceed "
            f"the true bound; {cure}.",
            stacklevel=4,
        )
    layout, reading = task.read
    store, shape = task.store, prepared.shape
    return Fit(
        spec=task.models[0],
        layout=layout,
        reading=reading,
        model=model,
        training=task.trainings[0],
        context=carried(task.whole, shape) if store is None else [store.tail(tail_rows(shape))],
        history=history,
        stopped=outcome.stopped,
        seconds=outcome.seconds,
        compile_seconds=outcome.compile_seconds,
        cuts=task.cuts,
        about=task.about,
        others=tuple(others),
        ended_by=outcome.signal,
    )


def _blamed(task: Task, prepared: Prepared, error: TrainingDiverged) -> TrainingDiverged:
    """The error with the name of the function that is to blame, if one of the user's own is: of arcta's, the step is to blame."""
    spec = task.models[0]
    if all(part is None or isinstance(part, str) for part in (spec.drift, spec.decoder, spec.encoder)):
        return error
    model, step = cast(Model, task.pick(error.state.model, 0)), int(np.max(error.state.step)) + 1
    fault = find_fault_in_training(model, prepared.layout.scaling, prepared.windows)
    if fault is None:
        return error
    message = (
        f"training stopped at step {step}: {fault}. The state after step {step - 1} is kept. It must be finite, its derivative "
        "too, at all states near the data; change the function, or what its parameters may be."
    )
    return TrainingDiverged(message, error.state, fault)


def train_task(
    task: Task, *, out: str | Path | None = None, resume: bool = False, progress: bool = True
) -> tuple[Fit, Group]:
    """Train the task's models: one `Fit` of them all, and who trained them."""
    if progress and task.lead and task.read[0].frame_shape:
        print("arcta: frames: reading levels and slopes of principal components first", file=sys.stderr, flush=True)
    prepared, state = _begin(task)
    group, hooks, best, before = task.group(), Hooks(), Best(), []
    if task.lead:
        hooks = Hooks(measure=_measure(task, prepared), validate=_validator(task))
    if task.lead and out is not None:
        recorder = Recorder(Path(out), _identity(task, prepared.windows))
        if resume:
            state, best, before = recorder.resume(state)
        else:
            recorder.start_anew()
        write_history(recorder.folder, before)
        alone = jax.process_count() == 1  # on SIGTERM a job of several processes ends by JAX's own agreement
        hooks = dataclasses.replace(hooks, on_row=recorder.row, on_checkpoint=recorder.checkpoint, terminable=alone)
    if task.sharing is not None:
        state = task.sharing.same(state)
    data = _batches(task, prepared, task.pick(state.key, 0))
    show = progress and task.lead
    try:
        outcome = train(
            prepared.objective, state, data, task.trainings[0], hooks=hooks, best=best, group=group, progress=show
        )
    except TrainingDiverged as error:
        raise _blamed(task, prepared, error) from None
    if outcome.history and outcome.history[-1].get("settled") == 0:  # no window has had a posterior to learn from
        error = _blamed(task, prepared, TrainingDiverged("", outcome.state))
        if error.fault:
            raise error
    return_memory()
    return _finish(task, prepared, outcome, before), group
