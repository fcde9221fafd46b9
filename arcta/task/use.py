"""What every trained model can do, arcta's own and its rivals: `forecast` and `score`, members mixed."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import cast, overload

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from ..data.read import Data, gather
from ..data.readers.source import Options
from ..data.series import Series
from ..data.spans import Moment, Span, is_date, is_span, times_after
from ..model.reading import DataLayout, has_whole_rows
from ..parts.generative import AbstractGenerative
from ..predict.forecast import InputTable, Sampling, forecast, inputs_at
from ..predict.metrics import Scores, score
from ..predict.prediction import Bands, Prediction, mix
from ..runtime.cache import keep_by_default
from ..runtime.compile import bound_programs
from ..runtime.host import ArrayLike
from ..runtime.process import check_not_forked

Times = ArrayLike | Mapping[str, ArrayLike]
Known = ArrayLike | InputTable | Mapping[str, ArrayLike | InputTable] | None


def key_of(seed: int | PRNGKeyArray) -> PRNGKeyArray:
    """A seed or a key, as a key."""
    return jax.random.key(seed) if isinstance(seed, int | np.integer) else seed


def as_key(key: int | PRNGKeyArray) -> PRNGKeyArray:
    """A seed or a key, as a key; all that computes begins with one."""
    check_not_forked()
    keep_by_default()
    bound_programs()
    return key_of(key)


def as_seed(key: PRNGKeyArray) -> int:
    """A key as a seed for NumPy."""
    return int(jax.random.bits(key))


class Forecaster:
    """A trained model, or several whose predictions are mixed, with the series it was trained on."""

    layout: DataLayout
    context: list[Series]

    @property
    def members(self) -> tuple[AbstractGenerative, ...]:
        """All models of an ensemble; else the one."""
        raise NotImplementedError

    def _mixed(
        self,
        verb: Callable[..., Prediction | Bands],
        *arguments: object,
        sampling: Sampling,
        key: PRNGKeyArray,
        **options: object,
    ) -> Prediction | Bands:
        """What each member says, an equal part of the samples each, as one."""
        members = self.members
        if len(members) == 1:
            return verb(members[0], self.layout, *arguments, sampling=sampling, key=key, **options)
        said = []
        for i, model in enumerate(members):
            share = sampling._replace(
                num_samples=(sampling.num_samples + i) // len(members),
                quantiles=None,
                copies=sampling.copies * len(members),
            )
            if share.num_samples > 0:
                own = jax.random.fold_in(key, i)
                said.append(verb(model, self.layout, *arguments, sampling=share, key=own, **options))
        together = mix(said)
        return together if sampling.quantiles is None else together.bands(sampling.quantiles)

    def _given(self, given: Data | None) -> list[Series]:
        if given is None:
            return self.context
        layout = self.layout
        options = Options(inputs=layout.input_names, channels=None if layout.frame_shape else layout.channels)
        series = [item.on(layout.calendar, layout.time_unit) for item in gather(given, options)]
        if self.members[0].whole_rows and not has_whole_rows(series):
            warnings.warn(
                "some rows lack single channels, which no row of the training data did: they count as the channel's mean. "
                "Train on data with such rows, or leave these rows out.",
                stacklevel=3,
            )
        return series

    def _ahead(self, item: Series, times: object, horizon: Span | None, origin: float | None) -> ArrayLike:
        """The times to forecast a series at: those given, or regular ones as far as a horizon goes."""
        if (times is None) == (horizon is None):
            got = "neither" if times is None else "both"
            raise ValueError(
                f"forecast needs times or a horizon; got {got}. Pass e.g. fit.forecast('14d') or forecast(24)."
            )
        asked = times[item.name] if isinstance(times, Mapping) else times
        if horizon is None and not is_span(asked):
            return [asked] if is_date(asked) else cast(ArrayLike, asked)
        span = cast(Span, asked if horizon is None else horizon)
        if isinstance(span, str) and re.match(r"\s*\d{4}-\d", span):
            raise ValueError(
                f"text alone is a horizon such as '14d'; got the date '{span}'. Pass a list of dates: forecast(['{span}'])."
            )
        start = item.last_observed if origin is None else origin
        return times_after(start, span, self.layout.time_unit, self.layout.step)

    def _asked(self, item: Series, times: ArrayLike, inputs: Known) -> tuple[ArrayLike, ArrayLike | None]:
        """The times to forecast a series at, and the inputs there."""
        known = inputs[item.name] if isinstance(inputs, Mapping) else inputs
        return times, inputs_at(self.layout, known, times) if isinstance(known, InputTable) else known

    def _forecast_one(
        self, item: Series, times: ArrayLike, inputs: Known, origin: float | None, sampling: Sampling, key: PRNGKeyArray
    ) -> Prediction | Bands:
        ahead, known = self._asked(item, times, inputs)
        return self._mixed(forecast, item, ahead, origin=origin, inputs=known, sampling=sampling, key=key)

    @overload
    def forecast(
        self,
        times: ArrayLike | Span | None = None,
        *,
        horizon: Span | None = None,
        given: Series | None = None,
        origin: Moment | None = None,
        inputs: Known = None,
        num_samples: int = 256,
        max_step: float | None = None,
        quantiles: None = None,
        refine: bool | None = None,
        key: int | PRNGKeyArray = 0,
    ) -> Prediction: ...

    @overload
    def forecast(
        self,
        times: ArrayLike | Span | None = None,
        *,
        horizon: Span | None = None,
        given: Series | None = None,
        origin: Moment | None = None,
        inputs: Known = None,
        num_samples: int = 256,
        max_step: float | None = None,
        quantiles: Sequence[float],
        refine: bool | None = None,
        key: int | PRNGKeyArray = 0,
    ) -> Bands: ...

    @overload
    def forecast(
        self,
        times: Times | Span | None = None,
        *,
        horizon: Span | None = None,
        given: Data | None = None,
        origin: Moment | None = None,
        inputs: Known = None,
        num_samples: int = 256,
        max_step: float | None = None,
        quantiles: Sequence[float] | None = None,
        refine: bool | None = None,
        key: int | PRNGKeyArray = 0,
    ) -> Prediction | Bands | dict[str, Prediction | Bands]: ...

    def forecast(
        self,
        times: object = None,
        *,
        horizon: Span | None = None,
        given: Data | None = None,
        origin: Moment | None = None,
        inputs: Known = None,
        num_samples: int = 256,
        max_step: float | None = None,
        quantiles: Sequence[float] | None = None,
        refine: bool | None = None,
        key: int | PRNGKeyArray = 0,
    ) -> Prediction | Bands | dict[str, Prediction | Bands]:
        """What comes after the training series, or after `given`, at any later times.

        **Arguments:**

        - `times`: after the last observation of the context: an array or a list of numbers or dates, or a float; with several
          series a mapping from name to times is allowed. A whole number, text or a Timedelta is no time but a horizon:
          `forecast(24)` is 24 steps of the data (months, if it counts in months), `forecast("14d")` its steps for 14 days.
        - `horizon`: the same by name; a float is a span in the data's unit of time.
        - `given`: other series to start from, also ones never seen in training: nothing is retrained (but of a structure that was
          learned from fewer observations than this series has, the few parameters follow it). A DataFrame will do.
        - `origin`: the time of an earlier observation of the context to start from instead of the last one; an encoder that
          looks ahead knows that state better, and how well the paths meet the rest of the context can be seen.
        - `inputs`: known inputs, if the model has any: at `times`, shape `(n, inputs)`; or a DataFrame with the inputs'
          columns and the time as index or in a column, interpolated to `times`.
        - `max_step`: the solver's longest step, in the data's unit of time.
        - `quantiles`: keep only these, the mean and the standard deviation, and no paths: memory then does not grow with
          the number of paths times the horizon.
        - `refine`: start from the state that the learned dynamics make of the context, not from the encoder's alone: slower, and
          closer where dynamics are clean.

        **Returns:** a `Prediction` (with `quantiles`: `Bands`); with several series a dictionary of them by name.
        """
        series, key = self._given(given), as_key(key)
        sampling = Sampling(num_samples, max_step, None if quantiles is None else tuple(quantiles), refine)
        sampling = sampling._replace(copies=len(series))
        said: dict[str, Prediction | Bands] = {}
        for i, item in enumerate(series):
            start = None if origin is None else item.time_of(origin, "origin")
            ahead, own = (
                self._ahead(item, times, horizon, start),
                key if len(series) == 1 else jax.random.fold_in(key, i),
            )
            said[item.name] = self._forecast_one(item, ahead, inputs, start, sampling, own)
        return said if len(said) > 1 else said[series[0].name]

    def held_out(self) -> list[tuple[Series, Series]]:
        """For each series with a held-out part: what the model was trained on, and what came after."""
        return []

    def score(
        self,
        test: Data | None = None,
        *,
        given: Data | None = None,
        num_samples: int = 256,
        refine: bool | None = None,
        key: int | PRNGKeyArray = 0,
    ) -> Scores:
        """Forecast `test` from the training series (or `given`) of the same name and compare: rmse, crps, log density,
        coverage. Without `test`, what `fit(…, holdout=)` held out is forecast from what came before it. `refine`: as in `forecast`.
        """
        if test is None:
            pairs = self.held_out()
            if not pairs:
                raise ValueError("nothing was held out in training; pass the series to score: fit.score(test).")
            given, test = [before for before, _ in pairs], [after for _, after in pairs]
        context = {item.name: item for item in self._given(given)}
        told, tested = [], self._given(test)
        for i, item in enumerate(tested):
            if given is not None and item.name not in context and len(context) == 1 == len(tested):
                context = {item.name: next(iter(context.values()))}
            if item.name not in context:
                raise ValueError(
                    f"score needs a context to forecast '{item.name}' from; known are {', '.join(list(context)[:5])}. "
                    "Pass given= with a series of that name that ends before it."
                )
            known = item.inputs if item.input_names else None
            sampling, k = Sampling(num_samples, refine=refine), jax.random.fold_in(as_key(key), i)
            ahead = self._forecast_one(context[item.name], item.times, known, None, sampling, k)
            told.append((cast(Prediction, ahead), item))
        return score(told)
