"""`fit`: from series to a trained model; and `Fit`, which forecasts, smooths, samples, scores and saves itself.

A thin layer: data → windows → `Objective` → `train`, and the verbs of the files before this one. No mathematics here.
"""

from __future__ import annotations

import dataclasses
import hashlib
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, overload, runtime_checkable

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
from jaxtyping import Float, PRNGKeyArray

from .checkpoint import from_arrays, read_bundle, to_arrays, write_bundle
from .compiled import compiled
from .elbo import drift_evaluations
from .ensemble import KNOBS, Members, member, stack
from .forecast import forecast, inputs_at
from .metrics import Scores, score
from .model import DataSummary, LatentSDE, Model, build, summarise
from .nn import Identity
from .objective import Objective, TrainingData, joins, observed_entries
from .parallel import Devices, is_first
from .parallel import devices as several
from .prediction import Prediction, mix
from .run import (
    Recorder,
    carried,
    identity,
    read_history,
    restore_spec,
    series_from_arrays,
    series_to_arrays,
    summary_from_json,
    write_history,
)
from .sample import sample
from .series import Series, as_list, split
from .smooth import smooth
from .start import warm_start
from .store import Feed, Store
from .train import Best, Outcome, Row, Training, start, train
from .windows import Window, windows_of

if TYPE_CHECKING:
    import pandas as pd

JOIN_WARNING = 1.0  # nats per join; a 1-D OU with 15 joins overshoots its log-likelihood by 15 nats
_compiled_joins = compiled(joins)


def as_key(key: int | PRNGKeyArray) -> PRNGKeyArray:
    """A seed or a key, as a key."""
    return jax.random.key(key) if isinstance(key, int) else key


@dataclasses.dataclass(frozen=True, repr=False)
class Fit:
    """A trained latent SDE with all it needs to be used: made by `arcta.fit` or `arcta.load`.

    `model` is the trained module (in the model's units), `context` the series (what was held out included), `history` the
    log rows, `cuts` the time at which each series' held-out part begins, `about` what else is worth keeping (seed, command,
    notes). Verbs: `forecast`, `smooth`, `sample`, `score`, `parameters`, `drift`, `save`.
    """

    spec: LatentSDE
    summary: DataSummary
    model: Model
    training: Training
    context: list[Series]
    history: list[Row]
    stopped: str = "finished"
    seconds: float = 0.0
    compile_seconds: float = 0.0
    cuts: Mapping[str, float] = dataclasses.field(default_factory=dict)
    about: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    others: tuple[Model, ...] = ()

    @property
    def members(self) -> tuple[Model, ...]:
        """All models of an ensemble; else the one."""
        return (self.model, *self.others)

    def _mixed(
        self, verb: Callable[..., Any], *arguments: Any, num_samples: int, key: PRNGKeyArray, **options: Any
    ) -> Any:
        """What each member says, an equal part of the samples each, as one."""
        count = len(self.members)
        if count == 1:
            return verb(self.model, self.summary, *arguments, num_samples=num_samples, key=key, **options)
        quantiles = options.pop("quantiles", None)
        shares = [(num_samples + i) // count for i in range(count)]
        said = [
            verb(model, self.summary, *arguments, num_samples=share, key=jax.random.fold_in(key, i), **options)
            for i, (model, share) in enumerate(zip(self.members, shares, strict=True))
            if share > 0
        ]
        return mix(said) if quantiles is None else mix(said).bands(quantiles)

    def __repr__(self) -> str:
        last = self.history[-1] if self.history else {}
        ensemble = f"{len(self.members)} members, " if self.others else ""
        return (
            f"Fit({ensemble}{len(self.summary.channels)} channels, {self.summary.latent_size} latent axes, "
            f"{int(last.get('step', 0))} steps, {int(last.get('drift_evaluations', 0))} drift values, {self.stopped})"
        )

    def held_out(self) -> list[tuple[Series, Series]]:
        """For each series with a held-out part: what the model was trained on, and what came after."""
        return [
            (item.at_rows(item.times <= self.cuts[item.name]), item.at_rows(item.times > self.cuts[item.name]))
            for item in self.context
            if item.name in self.cuts
        ]

    def _given(self, given: Series | Sequence[Series] | None) -> list[Series]:
        if given is None:
            return self.context
        return [item.on(self.summary.calendar, self.summary.time_unit) for item in as_list(given)]

    def forecast(
        self,
        times: Any,
        *,
        given: Series | Sequence[Series] | None = None,
        origin: float | None = None,
        inputs: Any = None,
        num_samples: int = 256,
        max_step: float | None = None,
        quantiles: Sequence[float] | None = None,
        key: int | PRNGKeyArray = 0,
    ) -> Any:
        """What comes after the training series, or after `given`, at any later times.

        **Arguments:**

        - `times`: after the last observation of the context; with several series, a mapping from name to times is
          allowed.
        - `given`: other series to start from, also ones never seen in training: nothing is retrained.
        - `origin`: the time of an earlier observation of the context to start from instead of the last one; an encoder that
          looks ahead knows that state better, and how well the paths meet the rest of the context can be seen.
        - `inputs`: known inputs, if the model has any: at `times`, shape `(n, inputs)`; or a DataFrame with the inputs'
          columns and the time as index, interpolated to `times`.
        - `max_step`: the solver's longest step, in the data's unit of time.
        - `quantiles`: keep only these, the mean and the standard deviation, and no paths: memory then does not grow with
          the number of paths times the horizon.

        **Returns:** a `Prediction` (with `quantiles`: `Bands`); with several series a dictionary of them by name.
        """
        series, key = self._given(given), as_key(key)

        def one(item: Series, k: PRNGKeyArray) -> Any:
            ahead = times[item.name] if isinstance(times, Mapping) else times
            known = inputs[item.name] if isinstance(inputs, Mapping) else inputs
            if hasattr(known, "columns"):
                known = inputs_at(self.summary, known, ahead)
            options = {"origin": origin, "inputs": known, "num_samples": num_samples, "max_step": max_step}
            return self._mixed(forecast, item, ahead, **options, quantiles=quantiles, key=k)

        if len(series) == 1:
            return one(series[0], key)
        return {item.name: one(item, jax.random.fold_in(key, i)) for i, item in enumerate(series)}

    def smooth(
        self,
        data: Series | None = None,
        times: Any = None,
        *,
        num_samples: int = 256,
        key: int | PRNGKeyArray = 0,
    ) -> Prediction:
        """The posterior of state and signal at any times inside `data` (default: the training series)."""
        if data is None and len(self.context) > 1:
            raise ValueError(f"the model knows {len(self.context)} series; say which to smooth: fit.smooth(series).")
        series = self._given(data)[0]
        return self._mixed(smooth, series, times, num_samples=num_samples, key=as_key(key))

    def sample(
        self,
        times: Any,
        *,
        inputs: Any = None,
        num_samples: int = 10,
        max_step: float | None = None,
        key: int | PRNGKeyArray = 0,
    ) -> Prediction:
        """New trajectories from the learned prior, starting at `times[0]`."""
        options = {"inputs": inputs, "num_samples": num_samples, "max_step": max_step}
        return self._mixed(sample, times, **options, key=as_key(key))

    def score(
        self,
        test: Series | Sequence[Series] | None = None,
        *,
        given: Series | Sequence[Series] | None = None,
        num_samples: int = 256,
        key: int | PRNGKeyArray = 0,
    ) -> Scores:
        """Forecast `test` from the training series (or `given`) of the same name and compare: rmse, crps, log density,
        coverage. Without `test`, what `fit(…, holdout=)` held out is forecast from what came before it."""
        if test is None:
            pairs = self.held_out()
            if not pairs:
                raise ValueError("nothing was held out in training; pass the series to score: fit.score(test).")
            given, test = [before for before, _ in pairs], [after for _, after in pairs]
        context = {item.name: item for item in self._given(given)}
        pairs = []
        for i, item in enumerate(self._given(test)):
            if given is not None and item.name not in context and len(context) == 1 == len(as_list(test)):
                context = {item.name: next(iter(context.values()))}
            if item.name not in context:
                raise ValueError(
                    f"score needs a context to forecast '{item.name}' from; known are {', '.join(list(context)[:5])}. "
                    "Pass given= with a series of that name that ends before it."
                )
            known = item.inputs if item.input_names else None
            k = jax.random.fold_in(as_key(key), i)
            before = context[item.name]
            ahead = self._mixed(forecast, before, item.times, inputs=known, num_samples=num_samples, key=k)
            pairs.append((ahead, item))
        return score(pairs)

    def parameters(self) -> pd.DataFrame:
        """Median and 90 % interval of every uncertain parameter, in the data's units, beside its prior where it has one.

        Rows: the drift's named parameters; `diffusion` q by latent axis (variance per unit of time, in the data's units
        if the decoder is the identity); `noise` by channel (a standard deviation).
        """
        import pandas as pd

        return pd.DataFrame(_parameter_rows(self.members, self.summary)).set_index("parameter")

    def drift(self, states: Any, *, time: float | None = None, inputs: Any = None) -> Float[np.ndarray, "n latent"]:
        """The learned drift at some states `(n, latent)`, per unit of the data's time (median parameters).

        States are in the data's units if the decoder is the identity, latent otherwise. `time` defaults to the start.
        """
        scaling, own = self.summary.scaling, isinstance(self.model.decoder, Identity)
        z = np.atleast_2d(np.asarray(states, float))
        z = scaling.values(z) if own else z
        u = (
            scaling.known_inputs(np.asarray(inputs, float).reshape(1, -1))[0]
            if inputs is not None
            else scaling.input_shift * 0
        )
        t = 0.0 if time is None else (time - scaling.origin) / scaling.time_scale
        real = jnp.asarray(0.0).dtype

        def field(model: Model) -> np.ndarray:
            medians = model.drift.median()
            at = jax.vmap(lambda state: model.drift(jnp.asarray(t, real), state, jnp.asarray(u, real), medians))
            return np.asarray(at(jnp.asarray(z, real)))

        # Members' latent axes are their own; in the data's coordinates they can be averaged.
        rate = (
            np.mean([field(model) for model in (self.members if own else self.members[:1])], axis=0)
            / scaling.time_scale
        )
        return rate * scaling.scale if own else rate

    def save(self, folder: str | Path) -> Path:
        """Write the run: `model.json`, `weights.safetensors`, `context.safetensors`, `history.jsonl`."""
        folder = Path(folder)
        header = {
            **identity(self.spec, self.summary, self.training),
            "series": [item.name for item in self.context],
            "stopped": self.stopped,
            "seconds": self.seconds,
            "compile_seconds": self.compile_seconds,
            "cuts": dict(self.cuts),
            "about": dict(self.about),
            "members": len(self.members),
        }
        files = {"weights": to_arrays(self.model), "context": series_to_arrays(self.context)}
        files |= {f"weights-{i}": to_arrays(model) for i, model in enumerate(self.others, 1)}
        write_bundle(folder, "model", header, files)
        write_history(folder, self.history)
        return folder


def _pooled(quantiles: Sequence[Callable[[Any], Any]], p: float) -> np.ndarray:
    """A quantile of the equal mixture of some distributions, each given by its own."""
    if len(quantiles) == 1:
        return np.asarray(quantiles[0](p))
    grid = jnp.asarray((np.arange(200) + 0.5) / 200)
    return np.quantile(np.concatenate([np.asarray(jax.vmap(quantile)(grid)) for quantile in quantiles]), p, axis=0)


def _parameter_rows(members: Sequence[Model], summary: DataSummary) -> list[dict[str, Any]]:
    model = members[0]
    scaling, own = summary.scaling, isinstance(model.decoder, Identity)
    rows: list[dict[str, Any]] = []

    def add(names: Sequence[str], find: Callable[[Model], Any], convert: Callable[[np.ndarray], np.ndarray]) -> None:
        items = [find(each) for each in members]
        columns = {"median": ("quantile", 0.5), "q5": ("quantile", 0.05), "q95": ("quantile", 0.95)}
        if hasattr(items[0], "prior_quantile"):
            prior = "prior_quantile"
            columns |= {"prior median": (prior, 0.5), "prior q5": (prior, 0.05), "prior q95": (prior, 0.95)}
        found = {name: _pooled([getattr(item, f) for item in items], p) for name, (f, p) in columns.items()}
        table = {name: np.atleast_1d(convert(value)) for name, value in found.items()}
        rows.extend({"parameter": name, **{k: float(v[i]) for k, v in table.items()}} for i, name in enumerate(names))

    for name, item in getattr(model.drift, "parameters", {}).items():
        size = np.size(item.quantile(0.5))
        labels = [name] if size == 1 else [f"{name}[{i}]" for i in range(size)]
        add(labels, lambda m, name=name: m.drift.parameters[name], lambda x: x.reshape(-1))
    axes = summary.channels if own else [f"z{i}" for i in range(summary.latent_size)]
    unit = (scaling.scale**2 if own else 1.0) / scaling.time_scale
    add([f"diffusion[{axis}]" for axis in axes], lambda m: m.diffusion.level, lambda q: q * unit)
    groups = getattr(model.likelihood, "channels", (tuple(range(len(summary.channels))),))

    def part(m: Model, i: int) -> Any:
        return getattr(m.likelihood, "parts", (m.likelihood,))[i]

    for i, columns in enumerate(groups):
        if hasattr(part(model, i), "variance"):
            scale = scaling.scale[list(columns)]
            labels = [f"noise[{summary.channels[c]}]" for c in columns]
            add(labels, lambda m, i=i: part(m, i).variance, lambda v, s=scale: np.sqrt(v) * s)
    return rows


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
    pairs: list[tuple[Series, Series]], summary: DataSummary, predict: Callable[..., Prediction] = forecast
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
    - `ensemble`: train so many models from as many seeds at once, and mix what they predict.
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
    if ensemble < 1 or (ensemble > 1 and devices is not None):
        raise ValueError(
            f"ensemble must be 1 or more, and is trained on one device; got {ensemble}. Leave devices= out."
        )
    group = None if devices is None else several(devices)
    if group is not None:
        group.check(training.batch_size)
        if training.join_penalty:
            raise ValueError("join_penalty needs neighbouring windows on one device; leave it, or devices=, out.")
    whole = data.sample() if isinstance(data, Store) else as_list(data)
    series, cuts = hold_out(whole, holdout)
    summary = summarise(model, series)
    held_out = [] if validation is None else as_list(validation)
    for item in held_out:
        if item.channels != summary.channels:
            raise ValueError(
                f"validation series '{item.name}' needs the channels {list(summary.channels)}; it has others."
            )
    keys = [as_key(key)] if ensemble == 1 else list(jax.random.split(as_key(key), ensemble))
    return _fit_members(
        [model] * ensemble, [training] * ensemble, keys, data=data, whole=whole, series=series, cuts=cuts, held_out=held_out,
        summary=summary, out=out, resume=resume, group=group, progress=progress,
        about={"seed": key if isinstance(key, int) else None, **(about or {})}, mixed=True,
    )[0]  # fmt: skip


def _fit_members(
    models: list[LatentSDE],
    trainings: list[Training],
    keys: list[PRNGKeyArray],
    *,
    data: Any,
    whole: list[Series],
    series: list[Series],
    cuts: Mapping[str, float],
    held_out: list[Series],
    summary: DataSummary,
    out: str | Path | None,
    resume: bool,
    group: Devices | None,
    progress: bool,
    about: Mapping[str, Any],
    mixed: bool,
) -> list[Fit]:
    """Train one model, or several at once: one `Fit` that mixes them, or, for the variants of a sweep, one of each."""
    training, count, lead = trainings[0], len(models), group is None or is_first()
    modules = [build(spec, summary, key=key) for spec, key in zip(models, keys, strict=True)]
    lookahead = modules[0].encoder.lookahead
    shape = {"size": summary.partition_size, "lookahead": lookahead, "margin": summary.margin}
    windows = windows_of(series, summary.scaling, **shape)
    if progress and summary.frame_shape:
        print("arcta: frames: reading levels and slopes of principal components first", file=sys.stderr, flush=True)
    states = []
    for spec, module, key in zip(models, modules, keys, strict=True):
        module = warm_start(module, summary, windows, diffusion=spec.diffusion_start is None)
        states.append(start(module, training, key=key))
    objective = Objective(
        batch_size=training.batch_size,
        num_draws=training.num_draws,
        num_times=training.num_times,
        kl_weight=training.kl_weight,
        kl_ramp=round(training.kl_ramp * training.steps),
        join_penalty=training.join_penalty,
        num_decoded=training.num_decoded,
    )
    observed = np.asarray(observed_entries(windows), windows.times.dtype)
    seen = (np.asarray(leaf).tobytes() for leaf in (*jax.tree.leaves(windows), observed))
    named = {**identity(models[0], summary, training), "fingerprint": hashlib.sha256(b"".join(seen)).hexdigest()}
    recorder = Recorder(out if lead else None, named if count == 1 else {**named, "members": count})
    state, best, before = states[0] if count == 1 else stack(states), Best(), []
    if resume and lead:
        state, best, before = recorder.resume(state)
    recorder.begin(before)
    if isinstance(data, Store):
        drawn = _feed(data, whole, summary, shape, training, states[0].key, group)
    else:
        drawn = TrainingData(windows) if group is None else group.share(windows, training.batch_size)
    team = group if count == 1 else Members(trainings)

    def together(*arguments: Any, num_samples: int, key: PRNGKeyArray, **options: Any) -> Prediction:
        stacked, *rest = arguments
        several = [stacked] if count == 1 else [member(stacked, i) for i in range(count)]
        share = -(-num_samples // count)
        return mix([forecast(each, *rest, num_samples=share, key=key, **options) for each in several])

    measure = _measure(objective, windows, training)
    outcome: Outcome = train(
        objective,
        state if group is None else group.same(state),
        drawn,
        training,
        measure=(lambda model, step: measure(model if count == 1 else member(model, 0), step)) if lead else None,
        validate=validator(validation_pairs(series, held_out), summary, together) if held_out and lead else None,
        best=best,
        on_row=recorder.row,
        on_checkpoint=recorder.checkpoint,
        group=team,
        progress=progress and lead,
    )
    chosen = outcome.best.model if training.select == "best" and outcome.best.model is not None else outcome.state.model
    history = [*before, *outcome.history]
    _warn_of_joins(history)
    fitted = Fit(
        spec=models[0],
        summary=summary,
        model=chosen if count == 1 else member(chosen, 0),
        training=training,
        context=[data.tail(summary.partition_size + 1 + lookahead + summary.margin)]
        if isinstance(data, Store)
        else carried(whole, summary, lookahead + summary.margin),
        history=history,
        stopped=outcome.stopped,
        seconds=outcome.seconds,
        compile_seconds=outcome.compile_seconds,
        cuts=cuts,
        about=about,
        others=tuple(member(chosen, i) for i in range(1, count)),
    )
    if isinstance(team, Members) and not mixed:
        rows = [
            [
                {**row, **{k: float(v[i]) for k, v in terms.items()}}
                for row, terms in zip(history, team.terms, strict=True)
            ]
            for i in range(count)
        ]
        return [
            dataclasses.replace(
                fitted, spec=models[i], training=trainings[i], model=member(chosen, i), history=rows[i], others=()
            )
            for i in range(count)
        ]
    if out is not None and lead:
        fitted.save(out)
    return [fitted]


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
        alike = (str(shapes), repr(summaries[name]), dataclasses.replace(training, **usual))
        programs.setdefault(alike, []).append(name)
    found: dict[str, Fit] = {}
    for names in programs.values():
        models, trainings = (list(column) for column in zip(*(variants[name] for name in names), strict=True))
        fits = _fit_members(
            models, trainings, [as_key(key)] * len(names), data=series, whole=whole, series=series, cuts=cuts, held_out=[],
            summary=summaries[names[0]], out=None, resume=False, group=None, progress=progress, about={"sweep": names},
            mixed=False,
        )  # fmt: skip
        found |= dict(zip(names, fits, strict=True))
    return {name: found[name] for name in variants}


def load(folder: str | Path, *, drift: Any = None, decoder: Any = None, encoder: Any = None) -> Fit:
    """A saved run, ready to forecast without the data file.

    **Arguments:** `folder` as given to `save` or `out=`; the user's own `drift`, `decoder` or `encoder` if the run was
    trained with one (code is never read from the file; the saved structure is checked against it).
    """
    folder = Path(folder)
    header, files = read_bundle(folder, "model")
    spec = restore_spec(header["configuration"], {"drift": drift, "decoder": decoder, "encoder": encoder})
    summary = summary_from_json(header["data"])
    blank = build(spec, summary, key=jax.random.key(0))

    def restored(name: str) -> Model:
        return from_arrays(blank, files[name], where=str(folder / f"{name}.safetensors"))

    return Fit(
        spec=spec,
        summary=summary,
        model=restored("weights"),
        training=msgspec.convert(header["training"], Training),
        context=series_from_arrays(files["context"], header["series"], summary),
        history=read_history(folder),
        stopped=header["stopped"],
        seconds=header["seconds"],
        compile_seconds=header["compile_seconds"],
        cuts=header["cuts"],
        about=header["about"],
        others=tuple(restored(f"weights-{i}") for i in range(1, header.get("members", 1))),
    )
