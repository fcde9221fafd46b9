"""`Fit`: a trained model with all it needs to be used: forecasts, smooths, samples, scores, saves itself. `load` reads it back."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ..data.read import Data
from ..data.readers.source import list_names
from ..data.series import Series
from ..data.shown import small_table
from ..data.spans import Moment, Span, is_span, time_of, times_after
from ..data.windows import Window
from ..linear.structure import Structure, to_json
from ..model.build import build
from ..model.reading import DataLayout, Reading
from ..model.spec import LatentSDE
from ..parts.decoders import AbstractDecoder
from ..parts.model import Model
from ..parts.physics import DriftLike
from ..parts.prior import Parameter
from ..parts.sde import DriftFunction
from ..predict.components import parts_of_state, parts_of_structure
from ..predict.forecast import Sampling, sample
from ..predict.prediction import Bands, Prediction
from ..predict.smooth import smooth
from ..predict.structural import after, inside
from ..predict.trust import Trust, trust
from ..runtime.host import ArrayLike
from ..runtime.process import check_not_forked
from ..training.bundle import write_bundle
from ..training.checkpoint import from_arrays, read_history, to_arrays, write_history
from ..training.lock import lock
from ..training.progress import Row
from ..training.settings import Training
from .header import Header
from .run import identity, read_run, remove_pages, restore_spec, series_to_arrays
from .summary import Summary, summarise
from .use import Forecaster, Known, as_key, as_seed
from .window import window

if TYPE_CHECKING:
    import pandas as pd

COURSE = ("stopped", "seconds", "compile_seconds", "cuts", "about")  # of a `Fit`, saved as they are
EXACT = "nothing needs weighing: the linear structure forecasts and smooths, and its posterior, given its parameters, is exact"
QUANTILES = {"median": 0.5, "q5": 0.05, "q95": 0.95}


@dataclasses.dataclass(frozen=True, repr=False)
class Fit(Forecaster):
    """A trained latent SDE with all it needs to be used: made by `arcta.fit` or `arcta.load`.

    `model` is the trained module (in the model's units), `context` the series (what was held out included), `history` the
    log rows, `cuts` the time at which each series' held-out part begins, `about` what else is worth keeping (seed, command,
    notes). `structure` is what trends, seasons and cycles make of each channel, and what the channels share; where its evidence is
    better, forecasts are its (`by_structure`), and so is smoothing (`smooth_by_structure`). `ended_by` is the signal that ended
    training, if one did. Verbs: `summary`, `trust`,
    `forecast`, `smooth`, `sample`, `score`, `parameters`, `components`, `drift`, `save`.
    """

    spec: LatentSDE
    layout: DataLayout
    reading: Reading
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
    structure: Structure | None = None
    by_structure: bool = False
    smooth_by_structure: bool = False
    ended_by: int = 0

    @property
    def members(self) -> tuple[Model, ...]:
        return (self.model, *self.others)

    def __repr__(self) -> str:
        last = self.history[-1] if self.history else {}
        ensemble = f"{len(self.members)} members, " if self.others else ""
        return (
            f"Fit({ensemble}{len(self.layout.channels)} channels, {self.reading.latent_size} latent axes, "
            f"{int(last.get('step', 0))} steps, {int(last.get('drift_evaluations', 0))} drift values, {self.stopped})"
        )

    def _repr_html_(self) -> str:
        import pandas as pd

        layout, first = self.layout, self.context[0]
        several = f" and {len(self.context) - 1} more" if len(self.context) > 1 else ""
        rows = {
            "trained on": f"'{first.name}'{several}",
            "channels": list_names(layout.channels),
            "known inputs": list_names(layout.input_names) or "none",
            "step of the data": f"{layout.step:.4g} {layout.time_unit}".rstrip(),
            "forecasts by": "structure" if self.by_structure else "latent SDE",
            "smooths by": self.smooths_by,
            "held out": ", ".join(f"'{name}' from {first.when(cut)}" for name, cut in list(self.cuts.items())[:3])
            or "nothing",
            "training": f"{self.seconds:.3g} s and {self.compile_seconds:.3g} s of compilation",
        }
        return small_table(repr(self), pd.DataFrame({"": rows}), rows=len(rows))

    @property
    def smooths_by(self) -> str:
        """What fills gaps and removes noise: `latent SDE`, `channels together` or `structure`."""
        if self.structure is None or not self.smooth_by_structure:
            return "latent SDE"
        return "structure" if self.structure.together is None else "channels together"

    def held_out(self) -> list[tuple[Series, Series]]:
        return [
            (item.at_rows(item.times <= self.cuts[item.name]), item.at_rows(item.times > self.cuts[item.name]))
            for item in self.context
            if item.name in self.cuts
        ]

    def _forecast_one(
        self, item: Series, times: ArrayLike, inputs: Known, origin: float | None, sampling: Sampling, key: PRNGKeyArray
    ) -> Prediction | Bands:
        # Who asks for the recognition step asks for the latent SDE.
        if self.structure is None or not self.by_structure or sampling.refine is not None:
            return super()._forecast_one(item, times, inputs, origin, sampling, key)
        ahead, known = self._asked(item, times, inputs)
        return after(
            self.structure, self.layout, item, ahead, known, origin=origin, sampling=sampling, seed=as_seed(key)
        )

    def _one(self, data: Data | None, verb: str) -> Series:
        """The one series that a verb is for."""
        if data is None and len(self.context) > 1:
            raise ValueError(f"the model knows {len(self.context)} series; say which to {verb}: fit.{verb}(series).")
        found = self._given(data)
        if len(found) > 1:
            raise ValueError(f"{verb} takes one series; got {len(found)}. Call it for each: fit.{verb}(series).")
        return found[0]

    def smooth(
        self,
        data: Data | None = None,
        times: ArrayLike | None = None,
        *,
        num_samples: int = 256,
        refine: bool | None = None,
        key: int | PRNGKeyArray = 0,
    ) -> Prediction:
        """The posterior of state and signal at any times (numbers or dates) inside `data` (default: the training series); with
        `refine` as the learned dynamics smooth it, in one chain over the whole series, instead of the encoder's alone."""
        series, key = self._one(data, "smooth"), as_key(key)
        if self.structure is not None and self.smooth_by_structure and refine is None:
            return inside(self.structure, self.layout, series, times, num_samples=num_samples, seed=as_seed(key))
        sampling = Sampling(num_samples, refine=refine)
        return cast(Prediction, self._mixed(smooth, series, times, sampling=sampling, key=key))

    def refine(
        self,
        data: Data | None = None,
        times: ArrayLike | None = None,
        *,
        num_samples: int = 256,
        key: int | PRNGKeyArray = 0,
    ) -> Prediction:
        """`smooth` for those who ask for more: by the model's own flow whatever it was trained with, on nodes four times as close,
        until no state moves. Takes seconds where `smooth` takes a fraction of one."""
        series, sampling = self._one(data, "refine"), Sampling(num_samples, refine=True, thorough=True)
        return cast(Prediction, self._mixed(smooth, series, times, sampling=sampling, key=as_key(key)))

    def sample(
        self,
        times: ArrayLike | Span,
        *,
        inputs: ArrayLike | None = None,
        num_samples: int = 10,
        max_step: float | None = None,
        key: int | PRNGKeyArray = 0,
    ) -> Prediction:
        """New trajectories from the learned prior, starting at `times[0]`; a whole number of steps, or a span such as `"14d"`, is
        counted from where the training data starts."""
        sampling, layout = Sampling(num_samples, max_step), self.layout
        if is_span(times):
            start = layout.scaling.origin
            ahead = times_after(start, cast(Span, times), layout.time_unit, layout.step)
            times = np.concatenate([[start], ahead])
        return cast(Prediction, self._mixed(sample, times, inputs=inputs, sampling=sampling, key=as_key(key)))

    def trust(self, series: Data | None = None, *, num_paths: int = 1000, key: int | PRNGKeyArray = 0) -> Trust:
        """Whether the posterior of each series (default: the training series) is good enough to believe: a light and a sentence,
        from the importance weights of `num_paths` paths over stretches of it (docs/trust.md). Of an ensemble, that of the first
        member; the parameters are at their medians."""
        given, key = self._given(series), as_key(key)
        if self.structure is not None and self.by_structure and self.smooth_by_structure:
            return Trust((), EXACT)
        found = trust(self.model, self.layout, given, num_paths=num_paths, key=key)
        if self.by_structure != self.smooth_by_structure:
            used, exact = ("smoothing", "forecasting") if self.by_structure else ("forecasting", "smoothing")
            linear = f"the linear structure does the {exact}, exactly given its parameters"
            found = found.noting(f"the latent SDE does the {used} only; {linear}")
        return found

    def summary(self, *, key: int | PRNGKeyArray = 0) -> Summary:
        """The fit on one screen: data, model, parameters, the scores of what was held out, and whether to believe the posterior."""
        scores = self.score(key=key) if self.cuts else None
        return summarise(self, trust=self.trust(key=key), scores=scores)

    def parameters(self) -> pd.DataFrame:
        """Median and 90 % interval of every uncertain parameter, in the data's units, beside its prior where it has one.

        Rows: the drift's named parameters; `diffusion` q by latent axis (variance per unit of time, in the data's units
        if the decoder is the identity); `noise` by channel (a standard deviation).
        """
        import pandas as pd

        check_not_forked()
        members, channels, scaling = self.members, self.layout.channels, self.layout.scaling
        rows: list[dict[str, str | float]] = []
        for name, item in self.model.drift.named_parameters().items():
            size = np.size(item.quantile(0.5))
            labels = [name] if size == 1 else [f"{name}[{i}]" for i in range(size)]
            rows += _rows(labels, [m.drift.named_parameters()[name] for m in members], lambda x: x.reshape(-1))
        own = self.model.decoder.in_data_coordinates
        axes = channels if own else [f"z{i}" for i in range(len(self.model.initial.mean))]
        unit = (scaling.scale**2 if own else 1.0) / scaling.time_scale
        rows += _rows([f"diffusion[{axis}]" for axis in axes], [m.diffusion.level for m in members], lambda q: q * unit)
        for shown in zip(*(m.likelihood.shown() for m in members), strict=True):
            columns = list(shown[0].channels) or list(range(len(channels)))
            labels = [f"{shown[0].label}[{channels[c]}]" for c in columns]
            scale = scaling.scale[columns]
            rows += _rows(labels, [s.parameter for s in shown], lambda v, s=shown[0], scale=scale: s.in_units(v, scale))
        return pd.DataFrame(rows).set_index("parameter")

    def components(self, data: Data | None = None, times: ArrayLike | None = None) -> pd.DataFrame:
        """What each smoothed channel is made of: a table with times as index and columns (channel, part), parts being `trend`,
        `season P`, `dynamics`, `inputs`, `noise`. `arcta.predict.figures.components_over_time` draws it.

        Parts add up to the channel, without `noise` to its smoothed mean; where the structure is one of logarithms, they multiply
        (`trend` in the data's unit, the others factors), of roots, they add up to its root: `.attrs["scales"]` says which. Where
        the latent SDE forecasts, `dynamics z0`, … are what its axes contribute through the linear read-out.
        """
        series = self._one(data, "components")
        if self.structure is not None and self.by_structure:
            return parts_of_structure(self.structure, self.layout, series, times)
        if self.others:
            raise ValueError(
                "components of an ensemble differ, as its members' axes do. Train one model, or use smooth."
            )
        return parts_of_state(self.model, self.layout, self.reading.kinds, series, times)

    def window(self, data: Data | None = None, number: int | None = 0) -> Window:
        """A window of the training series, or of `data`, as the model sees it: see `arcta.window`."""
        return window(self, data, number)

    def drift(
        self, states: ArrayLike, *, time: Moment | None = None, inputs: ArrayLike | None = None
    ) -> Float[np.ndarray, "n latent"]:
        """The learned drift at some states `(n, latent)`, per unit of the data's time (median parameters).

        States are in the data's units if the decoder is the identity, latent otherwise. `time` defaults to the start.
        """
        check_not_forked()
        scaling, own = self.layout.scaling, self.model.decoder.in_data_coordinates
        z = np.atleast_2d(np.asarray(states, float))
        z = scaling.values(z) if own else z
        known = None if inputs is None else np.asarray(inputs, float).reshape(1, -1)
        u = 0 * scaling.input_shift if known is None else scaling.known_inputs(known)[0]
        t = 0.0 if time is None else scaling.times(time_of(time, self.layout.calendar, "time"))
        real = jnp.asarray(0.0).dtype

        def field(model: Model) -> np.ndarray:
            θ = model.drift.median()
            at = jax.vmap(lambda state: model.drift(jnp.asarray(t, real), state, jnp.asarray(u, real), θ))
            return np.asarray(at(jnp.asarray(z, real)))

        # Members' latent axes are their own; in the data's coordinates they can be averaged.
        members = self.members if own else self.members[:1]
        rate = np.mean([field(model) for model in members], axis=0) / scaling.time_scale
        return rate * scaling.scale if own else rate

    def save(self, folder: str | Path) -> Path:
        """Write the run: `model.json`, its arrays beside it, `history.jsonl`.

        A run that is there already is replaced in one step, and its report and figures are removed if they are of another model;
        what stays is the save before, which `load` falls back to if this one is damaged, and a checkpoint to resume from.
        """
        folder = Path(folder)
        with lock(folder):
            write_run(self, folder)
        return folder


def write_run(fit: Fit, folder: Path) -> None:
    """`Fit.save` for who holds the lock."""
    header = {
        **identity(fit.spec, fit.layout, fit.reading, fit.training),
        "series": [item.name for item in fit.context],
        **{name: getattr(fit, name) for name in COURSE},
        "members": len(fit.members),
        "structure": None if fit.structure is None else to_json(fit.structure),
        "by_structure": fit.by_structure,
        "smooth_by_structure": fit.smooth_by_structure,
        "history": fit.history,
    }
    files = {"weights": to_arrays(fit.model), "context": series_to_arrays(fit.context)}
    files |= {f"weights-{i}": to_arrays(model) for i, model in enumerate(fit.others, 1)}
    write_bundle(folder, "model", header, files, if_other=lambda: remove_pages(folder))
    write_history(folder, fit.history)


def _pooled(quantiles: Sequence[Callable[[float | Array], Array | None]], p: float) -> np.ndarray:
    """A quantile of the equal mixture of some distributions, each given by its own."""
    if len(quantiles) == 1:
        return np.asarray(quantiles[0](p))
    grid = jnp.asarray((np.arange(200) + 0.5) / 200)
    return np.quantile(np.concatenate([np.asarray(jax.vmap(quantile)(grid)) for quantile in quantiles]), p, axis=0)


def _rows(
    names: Sequence[str], items: Sequence[Parameter], convert: Callable[[np.ndarray], np.ndarray]
) -> list[dict[str, str | float]]:
    """The rows of one parameter, from each member's posterior of it."""
    found: dict[str, np.ndarray] = {}
    for prefix, quantiles in (("", [i.quantile for i in items]), ("prior ", [i.prior_quantile for i in items])):
        if quantiles[0](0.5) is not None:
            found |= {prefix + name: np.atleast_1d(convert(_pooled(quantiles, p))) for name, p in QUANTILES.items()}
    return [{"parameter": name, **{k: float(v[i]) for k, v in found.items()}} for i, name in enumerate(names)]


def load(
    folder: str | Path,
    *,
    drift: DriftFunction | DriftLike | None = None,
    decoder: AbstractDecoder | Callable[..., Array] | None = None,
    encoder: Callable[..., object] | None = None,
) -> Fit:
    """A saved run, ready to forecast without the data file.

    **Arguments:** `folder` as given to `save` or `out=`; the user's own `drift`, `decoder` or `encoder` if the run was
    trained with one (code is never read from the file; the saved structure is checked against it).
    """
    check_not_forked()
    folder = Path(folder)
    header, layout, reading, context, structure, weights = read_run(folder)
    spec = restore_spec(header.configuration, {"drift": drift, "decoder": decoder, "encoder": encoder})
    blank = build(spec, layout, reading, key=jax.random.key(0))
    model, *others = (from_arrays(blank, arrays, where=folder) for arrays in weights)
    return Fit(
        spec=spec,
        layout=layout,
        reading=reading,
        model=model,
        training=header.training,
        context=context,
        history=_history(folder, header),
        others=tuple(others),
        structure=structure,
        by_structure=header.by_structure,
        smooth_by_structure=header.smooth_by_structure,
        **{name: getattr(header, name) for name in COURSE},
    )


def _history(folder: Path, header: Header) -> list[Row]:
    """The log rows in the header; runs of before version 3 have them in a file of their own."""
    if header.history is None:
        return read_history(folder)
    return [{k: math.nan if v is None else v for k, v in row.items()} for row in header.history]
