"""Rivals trained by solving differential equations, behind the same `fit`, `forecast` and `score`.

    NeuralODE     ż = f(z) from the first observation of a window, x = z                                (Chen et al. 2018)
    LatentODE     z(0) ~ q(z | window), ż = f(z), x ~ p(x | z)                                       (Rubanova et al. 2019)
    SolvedSDE     dz = (f(z) + √q u(z, c)) dt + √q dβ as posterior, dz = f(z) dt + √q dβ as prior          (Li et al. 2020)

The generative half is arcta's own `Model` and the training loop arcta's own, so what differs is the way to a gradient.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ..data.batches import TrainingData, take
from ..data.series import Series, as_list
from ..model.build import build
from ..model.reading import DataLayout, Reading
from ..model.spec import LatentSDE
from ..parts.networks import MLP
from ..parts.prior import Known
from ..predict.forecast import Sampling, forecast
from ..predict.prediction import Prediction
from ..runtime.host import generator
from ..runtime.sums import Terms
from ..task.use import Forecaster, as_key
from ..task.validation import validation_pairs, validator
from ..training.loop import Hooks, train
from ..training.prepare import Recipe, prepare
from ..training.progress import Row
from ..training.settings import Training
from .solved import Gradient, Recognition, Solved


class Rival:
    """What all rivals can do. Settings that `LatentSDE` has too mean the same here."""

    hidden_size: int = 0
    solver: ClassVar[tuple[str, ...]] = ("gradient", "tolerance", "max_steps")
    stochastic: ClassVar[bool] = False

    def specification(self) -> LatentSDE:
        """The configuration of the parts that are arcta's own."""
        names = [field.name for field in dataclasses.fields(LatentSDE)]
        shared = {name: getattr(self, name) for name in names if hasattr(self, name)}
        return LatentSDE(encoder="window", lookahead=0, drift="plain", posterior="amortised", **shared)

    def fit(
        self,
        data: Series | Sequence[Series],
        *,
        key: int | PRNGKeyArray = 0,
        validation: Series | Sequence[Series] | None = None,
        training: Training = Training(batch_size=10),
        progress: bool = True,
    ) -> SolverFit:
        """What `arcta.fit` calls."""
        series = as_list(data)
        if series[0].input_names:
            raise ValueError(
                f"{type(self).__name__} takes no known inputs; the data has {', '.join(series[0].input_names)}."
            )
        build_key, train_key = jax.random.split(as_key(key))
        prepared = prepare(self.specification(), series, training, key=train_key, recipe=recipe(self, key=build_key))
        layout, held_out = prepared.layout, [] if validation is None else as_list(validation)

        def predict(model: Solved, context: Series, times: np.ndarray, *, key: PRNGKeyArray, **_: object) -> Prediction:
            return cast(Prediction, forecast(model, layout, context, times, sampling=Sampling(64), key=key))

        validate = validator(validation_pairs(series, held_out), layout, predict) if held_out else None
        hooks = Hooks(validate=validate)
        outcome = train(prepared.objective, prepared.state, prepared.data, training, hooks=hooks, progress=progress)
        best = training.select == "best" and outcome.best.model is not None
        return SolverFit(
            spec=self,
            layout=layout,
            solved=cast(Solved, outcome.best.model if best else outcome.state.model),
            training=training,
            context=series,
            history=_cumulative(outcome.history),
            stopped=outcome.stopped,
            seconds=outcome.seconds,
            compile_seconds=outcome.compile_seconds,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class NeuralODE(Rival):
    """A neural ODE in the data's own coordinates, trained on short windows from their first observation.

    !!! example

        >>> import arcta
        >>> train, test = arcta.split(arcta.datasets.lotka_volterra(), at=0.8)
        >>> rival = arcta.baselines.NeuralODE(drift_sizes=(16,))
        >>> fit = arcta.fit(rival, train, training=arcta.Training(steps=2), progress=False)
        >>> fit.forecast(test.times, num_samples=1)
        Prediction('lotka-volterra': 130 times from 52.1 to 65, 2 channels, 1 samples)
    """

    drift_sizes: tuple[int, ...] = (64, 64, 64)
    activation: str = "silu"
    noise: str | float = "learned"
    partition_size: int = 8
    gradient: Gradient = "adjoint"
    tolerance: float = 1e-4
    max_steps: int = 4096
    decoder: ClassVar[str] = "identity"


@dataclasses.dataclass(frozen=True, kw_only=True)
class LatentODE(Rival):
    """A latent ODE: a GRU reads a window backwards, its state at the start is solved forward and decoded."""

    latent_size: int | None = None
    decoder: str | Callable[..., Array] = "mlp"
    likelihood: str | Mapping[str, str] = "auto"
    drift_sizes: tuple[int, ...] = (64, 64)
    decoder_sizes: tuple[int, ...] = (32, 32)
    hidden_size: int = 32
    activation: str = "silu"
    noise: str | float = "learned"
    partition_size: int = 64
    gradient: Gradient = "adjoint"
    tolerance: float = 1e-4
    max_steps: int = 4096


@dataclasses.dataclass(frozen=True, kw_only=True)
class SolvedSDE(Rival):
    """A latent SDE trained through a solver: the stochastic adjoint, or backpropagation.

    A GRU reads a window backwards; its hidden state steers the posterior's drift. `substeps` steps of Heun's scheme are taken
    in the median step between observations.
    """

    latent_size: int | None = None
    decoder: str | Callable[..., Array] = "mlp"
    likelihood: str | Mapping[str, str] = "auto"
    drift_sizes: tuple[int, ...] = (64, 64)
    decoder_sizes: tuple[int, ...] = (32, 32)
    hidden_size: int = 32
    activation: str = "silu"
    noise: str | float = "learned"
    diffusion_start: float = 1e-2
    partition_size: int = 64
    gradient: Gradient = "adjoint"
    substeps: int = 2
    max_steps: int = 4096
    solver: ClassVar[tuple[str, ...]] = ("gradient", "substeps", "max_steps")
    stochastic: ClassVar[bool] = True


def assemble(rival: Rival, spec: LatentSDE, layout: DataLayout, reading: Reading, *, key: PRNGKeyArray) -> Solved:
    """The untrained module of a rival."""
    build_key, read_key, control_key = jax.random.split(key, 3)
    model = build(spec, layout, reading, key=build_key)
    diffusion, control, size, hidden = model.diffusion, None, reading.latent_size, rival.hidden_size
    if rival.stochastic:
        control = MLP((size + hidden, 32, size), spec.activation, zero_last=True, rng=generator(control_key))
    else:
        diffusion = eqx.tree_at(lambda d: d.level, diffusion, Known(np.zeros(size)))
    return Solved(
        drift=model.drift,
        diffusion=diffusion,
        initial=model.initial,
        decoder=model.decoder,
        likelihood=model.likelihood,
        recognition=Recognition(len(layout.channels), size, hidden, key=read_key) if hidden else None,
        control=control,
        **{name: getattr(rival, name) for name in rival.solver},
    )


def recipe(rival: Rival, *, key: PRNGKeyArray) -> Recipe:
    """How a rival is prepared for training; `key` is that of its first weights."""
    return Recipe(
        make=lambda spec, layout, reading, _: assemble(rival, spec, layout, reading, key=key),
        loss=lambda to: SolverObjective(to.batch_size, to.kl_weight, round(to.kl_ramp * to.steps)),
        warm=False,
    )


class SolverObjective(eqx.Module):
    """The loss of a rival: −(log-likelihood − weight · KL) of `batch_size` windows, per observed entry of the whole data."""

    batch_size: int = eqx.field(static=True, default=10)
    kl_weight: float = eqx.field(static=True, default=1.0)
    kl_ramp: int = eqx.field(static=True, default=0)

    def __call__(
        self, solved: Solved, data: TrainingData, step: Int[Array, ""], *, key: PRNGKeyArray
    ) -> tuple[Float[Array, ""], Terms]:
        total = len(data.windows.first)
        batch = min(self.batch_size, total)
        choose, estimate = jax.random.split(key)
        index = jax.random.randint(choose, (batch,), 0, total)
        fit, kl, calls = solved.terms(take(data.windows, index), key=estimate)
        scale = total / batch
        weight = self.kl_weight * jnp.clip((step + 1) / max(self.kl_ramp, 1), 0.0, 1.0)
        terms = {
            "log_likelihood": scale * jnp.sum(fit),
            "path_kl": scale * jnp.sum(kl),
            "parameter_kl": solved.parameter_kl(),
            # Values of the drift at single points, and calls one after the other: all windows of a batch go in one solve.
            "drift_evaluations": (batch * calls).astype(float),
            "sequential_evaluations": calls.astype(float),
        }
        bound = terms["log_likelihood"] - weight * (terms["path_kl"] + terms["parameter_kl"])
        return -bound / data.observed, terms


@dataclasses.dataclass(frozen=True, repr=False)
class SolverFit(Forecaster):
    """A trained rival: `forecast` and `score` as those of `Fit`; `history` with the drift's evaluations so far, forward only."""

    spec: Rival
    layout: DataLayout
    solved: Solved
    training: Training
    context: list[Series]
    history: list[Row]
    stopped: str
    seconds: float
    compile_seconds: float

    @property
    def members(self) -> tuple[Solved]:
        return (self.solved,)

    def __repr__(self) -> str:
        return f"SolverFit({type(self.spec).__name__}, {self.training.steps} steps, {self.stopped})"


def _cumulative(history: list[Row]) -> list[Row]:
    """Evaluations so far, from their means per step."""
    rows, last = [], 0
    total = {"drift_evaluations": 0.0, "sequential_evaluations": 0.0}
    for row in history:
        total = {name: total[name] + row[name] * (row["step"] - last) for name in total}
        rows.append({**row, **total})
        last = row["step"]
    return rows
