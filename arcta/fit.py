"""`fit` and `sweep`: from series to trained models.

A thin layer: data → windows → `Objective` → `train`, and the verbs of the files before this one. No mathematics here.
"""

from __future__ import annotations

import dataclasses
import hashlib
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, overload, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from .compiled import compiled
from .elbo import drift_evaluations
from .ensemble import KNOBS, Members, member, stack
from .fitted import Fit, as_key
from .forecast import forecast
from .model import DataSummary, LatentSDE, Model, build, has_whole_rows, summarise
from .objective import Objective, TrainingData, joins, observed_entries
from .parallel import Devices, is_first
from .parallel import devices as devices_of
from .prediction import Prediction, mix
from .run import Recorder, carried, identity
from .series import Series, as_list, split
from .start import warm_start
from .store import Feed, Store
from .train import Best, Row, Training, start, train
from .windows import Window, windows_of

JOIN_WARNING = 1.0  # nats per join; a 1-D OU with 15 joins overshoots its log-likelihood by 15 nats
_compiled_joins = compiled(joins)


def hold_out(series: list[Series], fraction: float) -> tuple[list[Series], dict[str, float]]:
    """The series without the last `fraction` of their spans, and where each was cut. A series too short to be cut (fewer
    than four observations before, or none after) is kept whole."""
    if not 0 <= fraction < 1:
        raise ValueError(f"holdout must lie between 0 and 1; got {fraction}. Use 0.2 to hold out the last fifth.")
    kept, cuts = [], {}
    for item in series:
        cut = float(item.times[0] + (1 - fraction) * (item.times[-1] - item.times[0]))
        before = item.times <= cut
        if fraction > 0 and item.mask[before].any(axis=1).sum() >= 4 and item.mask[~before].any():
            cuts[item.name] = cut
            item = item.at_rows(before)
        kept.append(item)
    return kept, cuts


def validation_pairs(train_data: list[Series], validation: Sequence[Series]) -> list[tuple[Series, Series]]:
    """(context, target): the tail of a training series is forecast from it, a new series' second half from its first."""
    known = {item.name: item for item in train_data}
    pairs = []
    for item in validation:
        before = known.get(item.name)
        tail = before is not None and item.times[0] > before.times[-1]
        pairs.append((before, item) if tail else split(item, at=0.5))
    return pairs


def validator(
    pairs: list[tuple[Series, Series]], summary: DataSummary, predict: Callable[..., Prediction]
) -> Callable[[Any], Row]:
    """RMSE of the mean forecast over all observed entries: in units of each channel's scale, and in the data's."""

    def validate(model: Any) -> Row:
        squares, raw, count = 0.0, 0.0, 0
        for before, after in pairs:
            known = after.inputs if after.input_names else None
            try:
                ahead = predict(
                    model, summary, before, after.times, inputs=known, num_samples=64, key=jax.random.key(0)
                )
            except FloatingPointError:
                return {"validation": float("inf"), "validation_rmse": float("inf")}
            error = ahead.mean - after.values
            squares += float(np.sum((error / summary.scaling.scale)[after.mask] ** 2))
            raw += float(np.sum(error[after.mask] ** 2))
            count += int(after.mask.sum())
        return {
            "validation": float(np.sqrt(squares / max(count, 1))),
            "validation_rmse": float(np.sqrt(raw / max(count, 1))),
        }

    return validate


def _measure(objective: Objective, windows: Window, training: Training) -> Callable[[Model, int], Row]:
    """Drift evaluations so far, the KL weight, and now and then the posterior's jump at the joins."""
    ends = np.flatnonzero(~np.asarray(windows.first)[1:])
    some = ends[np.unique(np.linspace(0, len(ends) - 1, 32).astype(int))] if len(ends) else ends
    pairs = jax.tree.map(lambda leaf: jax.device_put(np.asarray(leaf)[np.stack([some, some + 1], 1).ravel()]), windows)
    batch = min(training.batch_size, len(windows.first))

    def measure(model: Model, step: int) -> Row:
        values, derivatives = drift_evaluations(model, training.num_draws, training.num_times)
        row: Row = {
            "kl_weight": float(objective.weight(jnp.array(step - 1))),
            "drift_evaluations": values * batch * step,
            "drift_derivatives": derivatives * batch * step,
        }
        if len(some) and (step % training.validate_every == 0 or step == training.steps):
            jumps = np.asarray(_compiled_joins(model, pairs, jnp.arange(0, 2 * len(some), 2)))
            row |= {"join_kl_mean": float(jumps.mean()), "join_kl_max": float(jumps.max())}
        return row

    return measure


def _feed(
    data: Store,
    read: list[Series],
    summary: DataSummary,
    shape: Mapping[str, int],
    training: Training,
    key: PRNGKeyArray,
    group: Devices | None,
) -> Feed:
    """Windows from all over a file, for at most 256 steps at a time."""
    seen = sum(item.mask.sum() for item in read) / sum(item.mask.size for item in read)
    count = min(training.batch_size, data.num_partitions(shape["size"]))
    if group is not None:
        group.check(count)
    return Feed(
        data,
        summary.scaling,
        size=shape["size"],
        lookahead=shape["lookahead"],
        margin=shape["margin"],
        places=None if group is None else group.places(count),
        batch_size=training.batch_size,
        observed=float(seen) * len(data) * len(summary.channels),
        seed=int(jax.random.bits(key)),
        steps=min(training.log_every, 256),
    )


def _warn_of_joins(history: Sequence[Row]) -> None:
    jumps = [row["join_kl_mean"] for row in history if "join_kl_mean" in row]
    if jumps and jumps[-1] > JOIN_WARNING:
        warnings.warn(
            f"the posterior jumps by {jumps[-1]:.2g} nats on average where windows meet, so the sum over windows may exceed "
            "the true bound; use a larger partition_size, more lookahead, or Training(join_penalty=1.0).",
            stacklevel=4,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Task:
    """What is trained on what: one model, or several of one shape at once (an ensemble, the variants of a sweep)."""

    models: list[LatentSDE]
    trainings: list[Training]
    keys: list[PRNGKeyArray]
    whole: list[Series]
    series: list[Series]
    cuts: Mapping[str, float]
    summary: DataSummary
    held_out: list[Series]
    about: Mapping[str, Any]
    store: Store | None = None
    group: Devices | None = None

    @property
    def count(self) -> int:
        return len(self.models)

    @property
    def lead(self) -> bool:
        """Whether this process writes and speaks."""
        return self.group is None or is_first()

    @property
    def sharing(self) -> Devices | None:
        """The devices that share each batch; members of an ensemble see all of it."""
        return self.group if self.count == 1 else None

    def of(self, stacked: Any, index: int) -> Any:
        """A member of what was stacked."""
        return stacked if self.count == 1 else member(stacked, index)


def _objective(training: Training) -> Objective:
    return Objective(
        batch_size=training.batch_size,
        num_draws=training.num_draws,
        num_times=training.num_times,
        kl_weight=training.kl_weight,
        kl_ramp=round(training.kl_ramp * training.steps),
        join_penalty=training.join_penalty,
        num_decoded=training.num_decoded,
    )


def _validator(task: _Task) -> Callable[[Any], Row] | None:
    """The error of forecasts, those of several models mixed."""
    if not task.held_out or not task.lead:
        return None

    def mixed(*arguments: Any, num_samples: int, key: PRNGKeyArray, **options: Any) -> Prediction:
        stacked, *rest = arguments
        share = -(-num_samples // task.count)
        several = (task.of(stacked, i) for i in range(task.count))
        return mix([forecast(each, *rest, num_samples=share, key=key, **options) for each in several])

    return validator(validation_pairs(task.series, task.held_out), task.summary, mixed)


def _recorder(task: _Task, windows: Window, out: str | Path | None) -> Recorder:
    """Writes history and checkpoints of this task and no other."""
    observed = np.asarray(observed_entries(windows), windows.times.dtype)
    seen = (np.asarray(leaf).tobytes() for leaf in (*jax.tree.leaves(windows), observed))
    named = {
        **identity(task.models[0], task.summary, task.trainings[0]),
        "fingerprint": hashlib.sha256(b"".join(seen)).hexdigest(),
    }
    return Recorder(out if task.lead else None, named if task.count == 1 else {**named, "members": task.count})


def _train(
    task: _Task, *, out: str | Path | None = None, resume: bool = False, progress: bool = True
) -> tuple[Fit, Members | None]:
    """Train the task's models: one `Fit` of them all, and, if there are several, how each of them went."""
    training, summary, group = task.trainings[0], task.summary, task.sharing
    # NumPy hashes a key before it draws the first weights, so they have nothing in common with the steps' random numbers.
    modules = [build(spec, summary, key=key) for spec, key in zip(task.models, task.keys, strict=True)]
    lookahead = modules[0].encoder.lookahead
    shape = {"size": summary.partition_size, "lookahead": lookahead, "margin": summary.margin}
    windows = windows_of(task.series, summary.scaling, **shape)
    if progress and summary.frame_shape:
        print("arcta: frames: reading levels and slopes of principal components first", file=sys.stderr, flush=True)
    states = []
    for spec, module, key in zip(task.models, modules, task.keys, strict=True):
        module = warm_start(module, summary, windows, diffusion=spec.diffusion_start is None)
        states.append(start(module, training, key=key))
    state, best, before = states[0] if task.count == 1 else stack(states), Best(), []
    recorder = _recorder(task, windows, out)
    if resume and task.lead:
        state, best, before = recorder.resume(state)
    recorder.begin(before)
    if group is not None:
        state = group.same(state)
    if task.store is not None:
        drawn = _feed(task.store, task.whole, summary, shape, training, task.of(state.key, 0), group)
    else:
        drawn = TrainingData(windows) if group is None else group.share(windows, training.batch_size)
    objective = _objective(training)
    measure = _measure(objective, windows, training)
    several = () if task.group is None else list(task.group.mesh.devices.flat)
    members = None if task.count == 1 else Members(task.trainings, several)
    outcome = train(
        objective,
        state,
        drawn,
        training,
        measure=(lambda model, step: measure(task.of(model, 0), step)) if task.lead else None,
        validate=_validator(task),
        best=best,
        on_row=recorder.row,
        on_checkpoint=recorder.checkpoint,
        group=group if members is None else members,
        progress=progress and task.lead,
    )
    chosen = outcome.best.model if training.select == "best" and outcome.best.model is not None else outcome.state.model
    history = [*before, *outcome.history]
    _warn_of_joins(history)
    reach = lookahead + summary.margin
    fitted = Fit(
        spec=task.models[0],
        summary=summary,
        model=task.of(chosen, 0),
        training=training,
        context=carried(task.whole, summary, reach)
        if task.store is None
        else [task.store.tail(summary.partition_size + 1 + reach)],
        history=history,
        stopped=outcome.stopped,
        seconds=outcome.seconds,
        compile_seconds=outcome.compile_seconds,
        cuts=task.cuts,
        about=task.about,
        others=tuple(task.of(chosen, i) for i in range(1, task.count)),
    )
    return fitted, members


@runtime_checkable
class Fits(Protocol):
    """A model with a way of training of its own, as those in `arcta.baselines`."""

    def fit(self, data: Series | Sequence[Series], **options: Any) -> Any: ...


@overload
def fit(
    model: LatentSDE,
    data: Series | Sequence[Series] | Store,
    *,
    key: int | PRNGKeyArray = 0,
    validation: Series | Sequence[Series] | None = None,
    holdout: float = 0.0,
    training: Training = Training(),
    out: str | Path | None = None,
    resume: bool = False,
    devices: str | int | None = None,
    ensemble: int = 1,
    progress: bool = True,
    about: Mapping[str, Any] | None = None,
) -> Fit: ...


@overload
def fit(
    model: Fits,
    data: Series | Sequence[Series],
    *,
    key: int | PRNGKeyArray = 0,
    validation: Series | Sequence[Series] | None = None,
    training: Training = Training(),
    progress: bool = True,
) -> Any: ...


def fit(
    model: LatentSDE | Fits,
    data: Series | Sequence[Series] | Store,
    *,
    key: int | PRNGKeyArray = 0,
    validation: Series | Sequence[Series] | None = None,
    holdout: float = 0.0,
    training: Training = Training(),
    out: str | Path | None = None,
    resume: bool = False,
    devices: str | int | None = None,
    ensemble: int = 1,
    progress: bool = True,
    about: Mapping[str, Any] | None = None,
) -> Any:
    """Learn a latent SDE from one series or several.

    **Arguments:**

    - `model`: the configuration; `LatentSDE()` derives everything from the data. A rival from `arcta.baselines` is trained
      its own way and takes `key`, `validation`, `training` and `progress` alone.
    - `data`: training series, in your own units; or an `arcta.store`, which stays on disk.
    - `key`: a seed; the same seed on the same machine gives the same model.
    - `validation`: later parts of training series (same name), or new series; their forecast error is logged, decides
      which model is best, and stops training early if `training.patience` is set.
    - `holdout`: the last part of each series' time span that is kept from training, to score and report on; forecasts start
      from the end of the whole series all the same.
    - `out`: a folder for history, checkpoints and, at the end, the saved run; with `resume=True` training goes on from
      the checkpoint there, bit for bit.
    - `devices`: `"all"`, or how many, to share each batch among them; with several processes all of them call `fit` alike, and
      the first one writes (docs/scale.md).
    - `ensemble`: train so many models from as many seeds at once, and mix what they predict; with `devices`, each device takes its
      share of them.
    - `progress`: show it (a bar on a terminal, lines elsewhere). `about`: further JSON to keep with the run.

    **Returns:** a `Fit`. Ctrl-C ends training and returns what was reached; `TrainingDiverged` is raised when numbers
    stop being finite, after the last good state was saved.

    !!! example

        >>> import arcta
        >>> train, test = arcta.split(arcta.datasets.lotka_volterra(), at=0.8)
        >>> model = arcta.LatentSDE(decoder="identity", partition_size=32)
        >>> fit = arcta.fit(model, train, training=arcta.Training(steps=10), progress=False)
        >>> fit.forecast(test.times, num_samples=8)
        Prediction('lotka-volterra': 130 times from 52.1 to 65, 2 channels, 8 samples)
    """
    if not isinstance(model, LatentSDE):
        given = {"holdout": holdout, "out": out, "resume": resume, "devices": devices, "ensemble": ensemble > 1}
        unused = [name for name, value in given.items() if value]
        if unused:
            raise ValueError(f"{type(model).__name__} does not know {unused[0]}=; leave it out.")
        if isinstance(data, Store):
            raise ValueError(f"{type(model).__name__} needs its data in memory; an arcta.store is for LatentSDE.")
        return model.fit(data, key=key, validation=validation, training=training, progress=progress)
    if isinstance(data, Store) and (holdout or training.join_penalty):
        raise ValueError("data on disk is trained on whole, window by window: leave holdout= and join_penalty out.")
    if ensemble < 1:
        raise ValueError(f"ensemble must be 1 or more; got {ensemble}. Leave it out for one model.")
    group = None if devices is None else devices_of(devices)
    if ensemble > 1 and jax.process_count() > 1:
        raise ValueError(
            "an ensemble is trained by one process on all its devices; start one process, or leave ensemble= out."
        )
    if group is not None and ensemble == 1:
        group.check(training.batch_size)
        if training.join_penalty:
            raise ValueError("join_penalty needs neighbouring windows on one device; leave it, or devices=, out.")
    whole = data.sample() if isinstance(data, Store) else as_list(data)
    series, cuts = hold_out(whole, holdout)
    summary = summarise(model, series)
    held_out = [] if validation is None else as_list(validation)
    if isinstance(data, Store) or not has_whole_rows([*whole, *held_out]):  # of a file only a sample has been seen
        summary = summary._replace(whole_rows=False)
    for item in held_out:
        if item.channels != summary.channels:
            raise ValueError(
                f"validation series '{item.name}' needs the channels {list(summary.channels)}; it has others."
            )
    keys = [as_key(key)] if ensemble == 1 else list(jax.random.split(as_key(key), ensemble))
    rows = {"rows": len(data)} if isinstance(data, Store) else {}
    task = _Task(
        models=[model] * ensemble, trainings=[training] * ensemble, keys=keys, whole=whole, series=series, cuts=cuts,
        summary=summary, held_out=held_out, about={"seed": key if isinstance(key, int) else None, **rows, **(about or {})},
        store=data if isinstance(data, Store) else None, group=group,
    )  # fmt: skip
    fitted, _ = _train(task, out=out, resume=resume, progress=progress)
    if out is not None and task.lead:
        fitted.save(out)
    return fitted


def sweep(
    variants: Mapping[str, tuple[LatentSDE, Training]],
    data: Series | Sequence[Series],
    *,
    key: int | PRNGKeyArray = 0,
    holdout: float = 0.0,
    progress: bool = True,
) -> dict[str, Fit]:
    """Train variants of a model, those of one shape in one program: settings that differ only in where the model starts
    (`lengthscale`, `diffusion_start`, `interpolation_noise`), `learning_rate`, `clip` or `kl_weight` cost little more than one.

    **Returns:** a `Fit` for each name; compare them by `fit.score()` on what was held out.

    !!! example

        >>> import arcta
        >>> model = arcta.LatentSDE(decoder="identity", partition_size=32)
        >>> rates = {f"{rate:g}": (model, arcta.Training(steps=10, learning_rate=rate)) for rate in (1e-3, 1e-2)}
        >>> fits = arcta.sweep(rates, arcta.datasets.lotka_volterra(), progress=False)
        >>> sorted(fits)
        ['0.001', '0.01']
    """
    if not variants:
        raise ValueError("a sweep needs at least one variant: {'name': (LatentSDE(…), Training(…))}.")
    whole = as_list(data)
    series, cuts = hold_out(whole, holdout)
    usual = {name: getattr(Training(), name) for name in KNOBS}
    programs: dict[Any, list[str]] = {}
    summaries: dict[str, DataSummary] = {}
    for name, (spec, training) in variants.items():
        summaries[name] = summarise(spec, series)
        shapes = jax.tree.map(np.shape, build(spec, summaries[name], key=as_key(0)))
        code = tuple(x if isinstance(x, str | None) else id(x) for x in (spec.drift, spec.decoder, spec.encoder))
        alike = (str(shapes), code, repr(summaries[name]), dataclasses.replace(training, **usual))
        programs.setdefault(alike, []).append(name)
    found: dict[str, Fit] = {}
    for names in programs.values():
        models, trainings = (list(column) for column in zip(*(variants[name] for name in names), strict=True))
        task = _Task(
            models=models, trainings=trainings, keys=[as_key(key)] * len(names), whole=whole, series=series,
            cuts=cuts, summary=summaries[names[0]], held_out=[], about={"sweep": names},
        )  # fmt: skip
        together, members = _train(task, progress=progress)
        histories = [together.history] if members is None else members.histories(together.history)
        for name, spec, training, model, rows in zip(
            names, models, trainings, together.members, histories, strict=True
        ):
            own = {"spec": spec, "training": training, "model": model, "history": rows, "others": ()}
            found[name] = dataclasses.replace(together, **own)
    return {name: found[name] for name in variants}
