"""The one way from a configuration and series to a state that can be trained.

series → reading → model → windows → linear start → training data, objective, state
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

from jaxtyping import PRNGKeyArray, PyTree

from ..bound.closed import ClosedForms
from ..bound.objective import Objective
from ..data.batches import TrainingData
from ..data.series import Series, as_list
from ..data.windows import Window, WindowShape, windows_of, with_fillers
from ..model.build import build
from ..model.fault import check_start
from ..model.reading import DataLayout, Reading, read_data
from ..model.spec import LatentSDE
from ..model.start import warm_start
from ..parts.smoother import LONGEST
from .loop import Loss, State, start
from .settings import Training

Make = Callable[[LatentSDE, DataLayout, Reading, PRNGKeyArray], PyTree]


def objective_of(training: Training, *, smoothed: bool = False) -> Objective | ClosedForms:
    """The loss that the settings mean, for a posterior that is the encoder's or follows the model's own flow."""
    if smoothed:
        return ClosedForms(training.batch_size, training.num_draws, training.steps)
    return Objective(
        batch_size=training.batch_size,
        num_draws=training.num_draws,
        num_times=training.num_times,
        kl_weight=training.kl_weight,
        kl_ramp=round(training.kl_ramp * training.steps),
        join_penalty=training.join_penalty,
        num_decoded=training.num_decoded,
    )


@dataclasses.dataclass(frozen=True)
class Prepared:
    """All that training starts from; `windows` are on the host, `data` where they are trained on."""

    layout: DataLayout
    shape: WindowShape
    windows: Window
    objective: Loss
    state: State

    @property
    def data(self) -> TrainingData:
        return TrainingData(self.windows)


class Recipe(NamedTuple):
    """How a model is made, what it is trained on, and whether its parts start from a linear reading of the windows."""

    make: Make = lambda spec, layout, reading, key: build(spec, layout, reading, key=key)
    loss: Callable[[Training], Loss] | None = None
    warm: bool = True


def prepare(
    spec: LatentSDE,
    data: Series | Sequence[Series],
    training: Training,
    *,
    key: PRNGKeyArray,
    recipe: Recipe = Recipe(),
    read: tuple[DataLayout, Reading] | None = None,
    like: Prepared | None = None,
) -> Prepared:
    """Everything up to the first step.

    **Arguments:** `recipe`: for rivals, and for benchmarks that need no start; `read`: what was read off the data, if that is
    known; `like`: another model's preparation on the same data, whose windows serve this one too.
    """
    series = as_list(data)
    layout, reading = read_data(spec, series) if read is None else read
    # NumPy hashes a key before it draws the first weights, so they have nothing in common with the steps' random numbers.
    model = recipe.make(spec, layout, reading, key)
    shape = layout.window_shape(model)
    if model.refined:
        shape = with_fillers(shape, series, layout.scaling, LONGEST)
    windows = windows_of(series, layout.scaling, shape) if like is None else like.windows
    if recipe.warm:
        check_start(model, layout.scaling, windows)
    model = warm_start(model, spec, layout, reading, windows) if recipe.warm else model
    loss = objective_of(training, smoothed=model.refined) if recipe.loss is None else recipe.loss(training)
    return Prepared(layout, shape, windows, loss, start(model, training, loss, key=key))
