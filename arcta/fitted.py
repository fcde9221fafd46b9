"""`Fit`: a trained model with all it needs to be used: forecasts, smooths, samples, scores, saves itself. `load` reads it back."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
from jaxtyping import Float, PRNGKeyArray

from .checkpoint import from_arrays, read_bundle, to_arrays, write_bundle
from .forecast import forecast, inputs_at
from .metrics import Scores, score
from .model import DataSummary, LatentSDE, Model, build, has_whole_rows
from .nn import Identity, WindowEncoder
from .prediction import Prediction, mix
from .run import (
    identity,
    read_history,
    restore_spec,
    series_from_arrays,
    series_to_arrays,
    summary_from_json,
    write_history,
)
from .sample import sample
from .series import Series, as_list
from .smooth import smooth
from .train import Row, Training

if TYPE_CHECKING:
    import pandas as pd


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
        series = [item.on(self.summary.calendar, self.summary.time_unit) for item in as_list(given)]
        encoder = self.model.encoder
        if isinstance(encoder, WindowEncoder) and encoder.whole_rows and not has_whole_rows(series):
            warnings.warn(
                "some rows lack single channels, which no row of the training data did: they count as the channel's mean. "
                "Train on data with such rows, or leave these rows out.",
                stacklevel=3,
            )
        return series

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
