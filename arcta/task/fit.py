"""`fit` and `sweep`: from series to trained models. A thin layer: checks, a reading of the data, `train_task`."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypedDict, TypeGuard, overload, runtime_checkable

import jax
import numpy as np
from jaxtyping import PRNGKeyArray
from typing_extensions import TypeVar, Unpack

from ..data.read import Data, gather
from ..data.series import Series
from ..data.store import Store
from ..model.build import build
from ..model.reading import DataLayout, Reading, has_whole_rows, read_data
from ..model.spec import LatentSDE
from ..training.ensemble import KNOBS
from ..training.lock import lock
from ..training.loop import Group, TrainingDiverged
from ..training.parallel import Devices
from ..training.parallel import devices as devices_of
from ..training.settings import Training
from .compete import with_structure
from .fitted import Fit, write_run
from .run import holds_run, remove_pages
from .train import Task, train_task
from .use import Forecaster, as_key
from .validation import hold_out

F = TypeVar("F", bound=Forecaster, covariant=True, default=Fit)
# Of the windows at the end of training: where as many settle, the smoother's posterior is the one to have; where fewer, it is not.
SURE, HELD = 0.95, 0.5


@runtime_checkable
class Fits(Protocol[F]):
    """A model with a way of training of its own, as those in `arcta.baselines`."""

    def fit(
        self,
        data: Series | Sequence[Series],
        *,
        key: int | PRNGKeyArray,
        validation: Series | Sequence[Series] | None,
        training: Training,
        progress: bool,
    ) -> F: ...


def _check(training: Training, store: Store | None, holdout: float, ensemble: int, devices: Devices | None) -> None:
    """Refuse what does not go together."""
    if store is not None and (holdout or training.join_penalty):
        raise ValueError("data on disk is trained on whole, window by window: leave holdout= and join_penalty out.")
    if ensemble < 1:
        raise ValueError(f"ensemble must be 1 or more; got {ensemble}. Leave it out for one model.")
    if ensemble > 1 and jax.process_count() > 1:
        raise ValueError(
            "an ensemble is trained by one process on all its devices; start one process, or leave ensemble= out."
        )
    if devices is not None and ensemble == 1:
        devices.check(training.batch_size)
        if training.join_penalty:
            raise ValueError("join_penalty needs neighbouring windows on one device; leave it, or devices=, out.")


def _with_posterior(model: LatentSDE, training: Training) -> LatentSDE:
    """The configuration with a posterior that goes with the training: closed forms are those of the bound itself."""
    bent = training.kl_weight != 1 or training.join_penalty > 0
    if bent and model.posterior == "smoother":
        raise ValueError(
            "posterior='smoother' learns by closed forms of the bound itself; got another kl_weight than 1, or a join_penalty. "
            "Leave them out, or use posterior='amortised'."
        )
    return dataclasses.replace(model, posterior="amortised") if bent and model.posterior == "auto" else model


def _train(task: Task, *, out: str | Path | None, resume: bool, progress: bool) -> tuple[Fit, Group]:
    """Train the task's models; those that may choose their posterior, with the encoder's too where the smoother's is in doubt:
    the better bound decides, and it is said."""
    free = all(model.posterior == "auto" for model in task.models) and not task.read[0].frame_shape
    found, settled = None, 0.0
    try:
        found = train_task(task, out=out, resume=resume, progress=progress)
        settled = found[0].history[-1].get("settled", 1.0) if found[0].history else 1.0
        if not free or settled >= SURE or found[0].stopped == "interrupted":
            return found
        failure = f"the smoother settled in {100 * settled:.0f} % of the windows only."
    except TrainingDiverged as error:
        if not free or error.fault:
            raise
        failure = str(error)
    plain = dataclasses.replace(task, models=[dataclasses.replace(m, posterior="amortised") for m in task.models])
    # In the folder stays what the smoother reached: whoever goes on from there comes here again.
    other = train_task(plain, out=None if found else out, progress=progress)
    found = found and (dataclasses.replace(found[0], ended_by=other[0].ended_by), found[1])
    if found is None or settled < HELD:
        warnings.warn(f"{failure} Trained anew with posterior='amortised'.", stacklevel=4)
        return other
    # Windows that did not settle are not in the smoother's bound.
    ours, theirs = found[0].history[-1]["loss"] / settled, other[0].history[-1]["loss"]
    better = "smoother" if ours <= theirs else "amortised"
    warnings.warn(
        f"{failure} By the bound, {-ours:.4g} nats per observation against the encoder's {-theirs:.4g}, posterior='{better}' "
        "is used.",
        stacklevel=4,
    )
    return found if better == "smoother" else other


def _read(
    model: LatentSDE, store: Store | None, whole: list[Series], series: list[Series], held: list[Series]
) -> tuple[DataLayout, Reading]:
    """What the data says; rows count as whole only if all that will ever be seen in training are."""
    layout, reading = read_data(model, series)
    for item in held:
        if item.channels != layout.channels:
            raise ValueError(
                f"validation series '{item.name}' needs the channels {list(layout.channels)}; it has others."
            )
    # Of a file only a sample has been seen.
    known = store is None and has_whole_rows([*whole, *held])
    return layout, reading if known else reading._replace(whole_rows=False)


class FitOptions(TypedDict, total=False):
    """What `fit` takes besides a model and data."""

    key: int | PRNGKeyArray
    validation: Data | None
    holdout: float
    training: Training
    out: str | Path | None
    resume: bool
    overwrite: bool
    devices: str | int | None
    ensemble: int
    progress: bool
    about: Mapping[str, object] | None


def _is_model(thing: object) -> TypeGuard[LatentSDE | Fits[Forecaster]]:
    if isinstance(thing, type) and (thing is LatentSDE or isinstance(thing, Fits)):
        raise ValueError(
            f"a model is needed; got the class {thing.__name__}. Make one of it: {thing.__name__}(), with brackets."
        )
    return isinstance(thing, LatentSDE | Fits)


def _model_and_data(first: object, second: object, model: object) -> tuple[LatentSDE | Fits[Forecaster], object]:
    """Which argument is the model, by default `LatentSDE()`, and which the data."""
    if _is_model(first):
        if second is None or model is not None or _is_model(second):
            got = "a model alone" if second is None else "two models"
            raise ValueError(f"fit needs a model and data; got {got}. Write arcta.fit(model, data) or arcta.fit(data).")
        return first, second
    if second is not None:
        order = "the data before the model" if _is_model(second) else f"{type(first).__name__} in place of a model"
        raise ValueError(
            f"fit needs a model and then data; got {order}. Write arcta.fit(model, data) or arcta.fit(data, model=model); several "
            "series go into one list."
        )
    chosen = LatentSDE() if model is None else model
    if not _is_model(chosen):
        raise ValueError(
            f"model= needs a LatentSDE or a rival; got {type(chosen).__name__}. Write arcta.fit(data, model=arcta.LatentSDE(…))."
        )
    return chosen, first


@overload
def fit(model: LatentSDE, data: Data | Store, /, **options: Unpack[FitOptions]) -> Fit: ...


@overload
def fit(model: Fits[F], data: Data, /, **options: Unpack[FitOptions]) -> F: ...


@overload
def fit(data: Data | Store, /, *, model: LatentSDE | None = None, **options: Unpack[FitOptions]) -> Fit: ...


@overload
def fit(data: Data, /, *, model: Fits[F], **options: Unpack[FitOptions]) -> F: ...


def fit(
    first: object,
    second: object = None,
    /,
    *,
    model: object = None,
    key: int | PRNGKeyArray = 0,
    validation: Data | None = None,
    holdout: float = 0.0,
    training: Training = Training(),
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    devices: str | int | None = None,
    ensemble: int = 1,
    progress: bool = True,
    about: Mapping[str, object] | None = None,
) -> Forecaster:
    """Learn a latent SDE from one series or several: `fit(data)`, `fit(data, model=…)` or `fit(model, data)` give a `Fit`.

    - `data`: training series in your own units, or what `arcta.read` makes series of: a DataFrame (wide, long, or with a
      MultiIndex), a pandas Series, an array, a path, a list of them; or an `arcta.store`, which stays on disk.
    - `model`: `LatentSDE()` derives everything from the data; a rival from `arcta.baselines` takes fewer of these options.
    - `key`: a seed; the same seed on the same machine gives the same model.
    - `validation`: later parts of training series (same name), or new series; their forecast error is logged, decides
      which model is best, and stops training early if `training.patience` is set.
    - `holdout`: the last part of each series' time span that is kept from training, to score and report on.
    - `out`: a folder for history, checkpoints and the saved run; `resume=True` goes on from the checkpoint there, bit for bit;
      `overwrite=True` starts anew where another run is: it stays until this one is saved, its checkpoint does not.
    - `devices`: `"all"`, or how many, to share each batch among them (docs/scale.md).
    - `ensemble`: train so many models from as many seeds at once, and mix what they predict.
    - `progress`: show it. `about`: further JSON to keep with the run.

    Ctrl-C ends training and returns what was reached, and with `out` so does SIGTERM; before the first step, and the second time,
    it is a KeyboardInterrupt. `TrainingDiverged` is raised, after the last good state was saved, when numbers stop being finite.

        >>> import arcta
        >>> train, test = arcta.split(arcta.datasets.lotka_volterra(), at=0.8)
        >>> model = arcta.LatentSDE(decoder="identity", partition_size=32)
        >>> fit = arcta.fit(train, model=model, training=arcta.Training(steps=10), progress=False)
        >>> fit.forecast(24, num_samples=8)
        Prediction('lotka-volterra': 24 times from 52.1 to 54.4, 2 channels, 8 samples)
    """
    chosen, data = _model_and_data(first, second, model)
    options = FitOptions(
        key=key, validation=validation, holdout=holdout, training=training, out=out, resume=resume, overwrite=overwrite,
        devices=devices, ensemble=ensemble, progress=progress, about=about,
    )  # fmt: skip
    return _fit(chosen, data, options) if isinstance(chosen, LatentSDE) else _fit_rival(chosen, data, options)


def _fit_rival(model: Fits[Forecaster], data: object, options: FitOptions) -> Forecaster:
    """Refused if an option is given that the rival does not know."""
    name, many = type(model).__name__, options.get("ensemble", 1) > 1
    known = ("holdout", "out", "resume", "overwrite", "devices")
    for option in [*(o for o in known if options.get(o)), *(["ensemble"] if many else [])]:
        raise ValueError(f"{name} does not know {option}=; leave it out.")
    if isinstance(data, Store):
        raise ValueError(f"{name} needs its data in memory; an arcta.store is for LatentSDE.")
    held, key, training = options.get("validation"), options.get("key", 0), options.get("training", Training())
    validation = None if held is None else gather(held)
    return model.fit(
        gather(data), key=key, validation=validation, training=training, progress=options.get("progress", True)
    )


def _fit(model: LatentSDE, data: object, options: FitOptions) -> Fit:
    key, training, out = options.get("key", 0), options.get("training", Training()), options.get("out")
    resume, anew, ensemble = options.get("resume", False), options.get("overwrite", False), options.get("ensemble", 1)
    holdout, asked, about = options.get("holdout", 0.0), options.get("devices"), options.get("about")
    _check_folder(out, resume, anew, about)
    store, found = data if isinstance(data, Store) else None, None if asked is None else devices_of(asked)
    _check(training, store, holdout, ensemble, found)
    whole = store.sample() if store is not None else gather(data)
    series, cuts = hold_out(whole, holdout)
    held = [] if options.get("validation") is None else gather(options.get("validation"))
    task = Task(
        models=[_with_posterior(model, training)] * ensemble, trainings=[training] * ensemble, cuts=cuts, whole=whole,
        series=series, keys=[as_key(key)] if ensemble == 1 else list(jax.random.split(as_key(key), ensemble)),
        read=_read(model, store, whole, series, held), held_out=held, store=store, devices=found,
        about={"seed": key if isinstance(key, int) else None, **({"rows": len(store)} if store else {}), **(about or {})},
    )  # fmt: skip
    with lock(Path(out)) if out is not None and task.lead else contextlib.nullcontext():
        return _run(task, model, out=out, resume=resume, progress=options.get("progress", True), anew=anew)


def _check_folder(out: str | Path | None, resume: bool, overwrite: bool, about: Mapping[str, object] | None) -> None:
    """Refuse to go on from nothing, to write over a run unless told to, and what could not be saved after training."""
    _check_about(about)
    if (resume or overwrite) and out is None:
        option = "resume" if resume else "overwrite"
        raise ValueError(f"{option}=True needs out=, the folder of a run. Pass out='run/'.")
    if resume and overwrite:
        raise ValueError("resume=True goes on from a run, overwrite=True starts anew. Pass one of them.")
    if out is not None and not resume and not overwrite and holds_run(Path(out)):
        raise ValueError(
            f"{out} holds a run already. Go on from its checkpoint with resume=True (--resume), replace it with overwrite=True "
            "(--force), or use another folder."
        )


def _check_about(about: Mapping[str, object] | None) -> None:
    """Refuse now what could not be saved after training."""
    try:
        json.dumps(about)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"about= must be what JSON can hold ({error}). Convert it to text and plain numbers."
        ) from None


def _run(task: Task, model: LatentSDE, *, out: str | Path | None, resume: bool, progress: bool, anew: bool) -> Fit:
    """Train, compete with the structure of the data, save: before that too, since it takes a while. `anew`: without the pages of
    the run that is there."""
    fitted, _ = _train(task, out=out, resume=resume, progress=progress)
    folder = Path(out) if out is not None and task.lead else None
    if folder is not None:
        if anew:
            remove_pages(folder)
        write_run(fitted, folder)
    whole = with_structure(fitted, model, [] if task.store is not None else task.series)
    if folder is not None and whole is not fitted:
        write_run(whole, folder)
    return whole


def _programs(
    variants: Mapping[str, tuple[LatentSDE, Training]], read: Mapping[str, tuple[DataLayout, Reading]]
) -> list[list[str]]:
    """The names of the variants that share a program: of one shape, with the same code, data and settings but for the knobs."""
    usual = {name: getattr(Training(), name) for name in KNOBS}
    programs: dict[object, list[str]] = {}
    for name, (spec, training) in variants.items():
        shapes = jax.tree.map(np.shape, build(spec, *read[name], key=as_key(0)))
        code = tuple(x if isinstance(x, str | None) else id(x) for x in (spec.drift, spec.decoder, spec.encoder))
        alike = (str(shapes), code, repr(read[name]), dataclasses.replace(training, **usual))
        programs.setdefault(alike, []).append(name)
    return list(programs.values())


def sweep(
    variants: Mapping[str, tuple[LatentSDE, Training]],
    data: Data,
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
    variants = {name: (_with_posterior(spec, training), training) for name, (spec, training) in variants.items()}
    whole = gather(data)
    series, cuts = hold_out(whole, holdout)
    read = {name: read_data(spec, series) for name, (spec, _) in variants.items()}
    found: dict[str, Fit] = {}
    for names in _programs(variants, read):
        models, trainings = (list(column) for column in zip(*(variants[name] for name in names), strict=True))
        task = Task(
            models=models, trainings=trainings, keys=[as_key(key)] * len(names), whole=whole, series=series,
            cuts=cuts, read=read[names[0]], about={"sweep": names},
        )  # fmt: skip
        together, group = _train(task, out=None, resume=False, progress=progress)
        histories = group.histories(together.history)
        for name, *own in zip(names, models, trainings, together.members, histories, strict=True):
            spec, training, model, history = own
            found[name] = dataclasses.replace(
                together, spec=spec, training=training, model=model, history=history, others=()
            )
    return {name: found[name] for name in variants}
