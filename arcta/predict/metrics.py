"""Scores of a prediction against observations, over observed entries only and in the data's own units.

rmse         root mean square of (mean − x)
crps         E|X − x| − ½ E|X − X'|, from samples with observation noise (its unbiased form)
log_density  mean log predictive density of an entry, log-mean-exp over samples
coverage_c   the fraction of entries inside the central band of level c (noise included)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from ..data.moments import root_mean_square
from ..data.series import Series
from .prediction import Prediction

if TYPE_CHECKING:
    import pandas as pd

LEVELS = (0.5, 0.9, 0.95)


def crps(samples: Float[np.ndarray, "samples ..."], values: Float[np.ndarray, ...]) -> Float[np.ndarray, ...]:
    """The continuous ranked probability score of each entry from samples; O(samples log samples)."""
    count = len(samples)
    distance = np.abs(samples - values).mean(axis=0)
    if count == 1:
        return distance
    weights = (2 * np.arange(1, count + 1) - count - 1).reshape(-1, *([1] * values.ndim))
    spread = (weights * np.sort(samples, axis=0)).sum(axis=0) / (count * (count - 1))
    return distance - spread


class Scores(dict[str, float]):
    """Scores by name over all entries; `by_channel` has the same for each channel."""

    by_channel: pd.DataFrame

    def __repr__(self) -> str:
        return "Scores(" + ", ".join(f"{name}={value:.4g}" for name, value in self.items()) + ")"


def entry_scores(prediction: Prediction, series: Series) -> dict[str, Float[np.ndarray, "n channels"]]:
    """Each score's contribution, entry by entry; the `error` itself in place of the rmse."""
    values = series.values
    bands = {c: (prediction.quantile((1 - c) / 2), prediction.quantile((1 + c) / 2)) for c in LEVELS}
    return {
        "error": prediction.mean - values,
        "crps": crps(prediction.observations, values),
        "log_density": prediction.log_density(values),
        **{f"coverage_{100 * c:g}": ((low <= values) & (values <= high)) * 1.0 for c, (low, high) in bands.items()},
    }


def score(pairs: Sequence[tuple[Prediction, Series]]) -> Scores:
    """Scores pooled over all observed entries of all pairs of a prediction and what was observed at its times."""
    import pandas as pd

    mask = np.concatenate([series.mask for _, series in pairs])
    parts = [entry_scores(*pair) for pair in pairs]
    entries = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def average(where: np.ndarray) -> dict[str, float]:
        means = {name: float(values[where].mean()) if where.any() else np.nan for name, values in entries.items()}
        return {"rmse": root_mean_square(entries["error"][where]), **{n: x for n, x in means.items() if n != "error"}}

    channels = pairs[0][0].channels
    columns = [mask & (np.arange(len(channels)) == i) for i in range(len(channels))]
    scores = Scores(average(mask))
    scores.by_channel = pd.DataFrame([average(where) for where in columns], index=list(channels))
    return scores
