"""What is kept from training to judge it by: held-out ends of series, and forecasts of validation series along the way."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import numpy as np
from jaxtyping import PyTree

from ..data.moments import root_mean_square
from ..data.series import Series
from ..data.split import split
from ..model.reading import DataLayout
from ..predict.prediction import Prediction
from ..training.progress import Row


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
    pairs: list[tuple[Series, Series]], layout: DataLayout, predict: Callable[..., Prediction]
) -> Callable[[PyTree], Row]:
    """RMSE of the mean forecast over all observed entries: in units of each channel's scale, and in the data's.

    `predict(model, context, times, inputs=…, key=…)` forecasts.
    """

    def validate(model: PyTree) -> Row:
        errors: list[np.ndarray] = []
        scaled: list[np.ndarray] = []
        for before, after in pairs:
            known = after.inputs if after.input_names else None
            try:
                ahead = predict(model, before, after.times, inputs=known, key=jax.random.key(0))
            except FloatingPointError:
                return {"validation": float("inf"), "validation_rmse": float("inf")}
            error = ahead.mean - after.values
            errors.append(error[after.mask])
            scaled.append((error / layout.scaling.scale)[after.mask])
        validation, rmse = (root_mean_square(np.concatenate(parts)) for parts in (scaled, errors))
        return {"validation": validation, "validation_rmse": rmse}

    return validate
