"""Rivals trained by solving differential equations, behind the same `fit`, `forecast` and `score`.

    NeuralODE     ż = f(z) from the first observation of a window, x = z                                (Chen et al. 2018)
    LatentODE     z(0) ~ q(z | window), ż = f(z), x ~ p(x | z)                                       (Rubanova et al. 2019)
    SolvedSDE     dz = (f(z) + √q u(z, c)) dt + √q dβ as posterior, dz = f(z) dt + √q dβ as prior          (Li et al. 2020)

The generative half is arcta's own `Model` and the training loop arcta's own, so what differs is the way to a gradient.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .fit import validation_pairs, validator
from .fitted import as_key
from .forecast import default_step
from .host import generator
from .metrics import Scores, score
from .model import DataSummary, Draw, LatentSDE, build, summarise
from .nn import MLP
from .objective import TrainingData, at
from .prediction import Prediction, check_channels, check_times, predict
from .prior import Known
from .series import Series, as_list
from .solve import make_grids, walk
from .solved import Gradient, Recognition, Solved
from .train import Row, Training, start, train
from .windows import Window, last_window, windows_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class NeuralODE:
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

    def fit(self, data: Series | Sequence[Series], **options: Any) -> SolverFit:
        return _fit(
            self, LatentSDE(decoder="identity", **_shared(self)), data, stochastic=False, encode=False, **options
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class LatentODE:
    """A latent ODE: a GRU reads a window backwards, its state at the start is solved forward and decoded."""

    latent_size: int | None = None
    decoder: Any = "mlp"
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

    def fit(self, data: Series | Sequence[Series], **options: Any) -> SolverFit:
        return _fit(self, _latent(self), data, stochastic=False, encode=True, **options)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SolvedSDE:
    """A latent SDE trained through a solver: the stochastic adjoint, or backpropagation.

    A GRU reads a window backwards; its hidden state steers the posterior's drift. `substeps` steps of Heun's scheme are taken
    in the median step between observations.
    """

    latent_size: int | None = None
    decoder: Any = "mlp"
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

    def fit(self, data: Series | Sequence[Series], **options: Any) -> SolverFit:
        spec = dataclasses.replace(_latent(self), diffusion_start=self.diffusion_start)
        return _fit(self, spec, data, stochastic=True, encode=True, **options)


Rival = NeuralODE | LatentODE | SolvedSDE


def _shared(rival: Rival) -> dict[str, Any]:
    names = ("drift_sizes", "activation", "noise", "partition_size")
    return {"encoder": "window", "lookahead": 0, "drift": "plain", **{name: getattr(rival, name) for name in names}}


def _latent(rival: LatentODE | SolvedSDE) -> LatentSDE:
    names = ("latent_size", "decoder", "likelihood", "decoder_sizes")
    return LatentSDE(**_shared(rival), **{name: getattr(rival, name) for name in names})


def assemble(
    rival: Rival, spec: LatentSDE, summary: DataSummary, *, stochastic: bool, encode: bool, key: PRNGKeyArray
) -> Solved:
    """The untrained module of a rival."""
    build_key, read_key, control_key = jax.random.split(key, 3)
    model = build(spec, summary, key=build_key)
    model = eqx.tree_at(lambda m: (m.encoder, m.kernel), model, (None, None))
    if not stochastic:
        model = eqx.tree_at(lambda m: m.diffusion.level, model, Known(np.zeros(summary.latent_size)))
    size, hidden = summary.latent_size, getattr(rival, "hidden_size", 0)
    own = {
        name: getattr(rival, name)
        for name in ("gradient", "tolerance", "substeps", "max_steps")
        if hasattr(rival, name)
    }
    return Solved(
        model,
        Recognition(len(summary.channels), size, hidden, key=read_key) if encode else None,
        MLP((size + hidden, 32, size), spec.activation, zero_last=True, rng=generator(control_key))
        if stochastic
        else None,
        **own,
    )


class SolverObjective(eqx.Module):
    """The loss of a rival: −(log-likelihood − weight · KL) of `batch_size` windows, per observed entry of the whole data."""

    batch_size: int = eqx.field(static=True, default=10)
    kl_weight: float = eqx.field(static=True, default=1.0)
    kl_ramp: int = eqx.field(static=True, default=0)

    def __call__(
        self, solved: Solved, data: TrainingData, step: Int[Array, ""], *, key: PRNGKeyArray
    ) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
        total = len(data.windows.first)
        batch = min(self.batch_size, total)
        choose, estimate = jax.random.split(key)
        index = jax.random.randint(choose, (batch,), 0, total)
        fit, kl, calls = solved.terms(at(data.windows, index), key=estimate)
        scale = total / batch
        weight = self.kl_weight * jnp.clip((step + 1) / max(self.kl_ramp, 1), 0.0, 1.0)
        terms = {
            "log_likelihood": scale * jnp.sum(fit),
            "path_kl": scale * jnp.sum(kl),
            "parameter_kl": solved.model.parameter_kl(),
            # Values of the drift at single points, and calls one after the other: all windows of a batch go in one solve.
            "drift_evaluations": (batch * calls).astype(float),
            "sequential_evaluations": calls.astype(float),
        }
        bound = terms["log_likelihood"] - weight * (terms["path_kl"] + terms["parameter_kl"])
        return -bound / data.observed, terms


@eqx.filter_jit
def _start_states(solved: Solved, window: Window, num_samples: int, key: PRNGKeyArray) -> tuple[Array, Draw]:
    def one(key: PRNGKeyArray) -> tuple[Array, Draw]:
        draw_key, state_key = jax.random.split(key)
        draw = solved.model.draw(key=draw_key)
        return solved.end_state(window, draw, key=state_key), draw

    return jax.vmap(one)(jax.random.split(key, num_samples))


def _forecast(
    solved: Solved,
    summary: DataSummary,
    series: Series,
    times: Any,
    *,
    inputs: None = None,
    num_samples: int = 256,
    key: PRNGKeyArray,
) -> Prediction:
    check_channels(summary, series)
    ahead, scaling = check_times(times, summary.calendar), summary.scaling
    last = float(series.times[series.mask.any(axis=1)][-1])
    if ahead[0] <= last:
        raise ValueError(f"a forecast goes forward from t={last:g}; got t={ahead[0]:g}. Ask for later times.")
    begin, since = (last - scaling.origin) / scaling.time_scale, (ahead - last) / scaling.time_scale
    grids = make_grids(begin, since, default_step(summary), np.zeros(0), np.zeros((0, 0)))
    window = jax.tree.map(jnp.asarray, last_window(series, scaling, size=summary.partition_size, lookahead=0))
    start_key, path_key, decode_key = jax.random.split(key, 3)
    initial, draws = _start_states(solved, window, num_samples, start_key)
    pieces = walk(solved.model, draws, initial, grids, key=path_key)
    return predict(solved.model, summary, series.name, ahead, pieces, draws, key=decode_key)


@dataclasses.dataclass(frozen=True, repr=False)
class SolverFit:
    """A trained rival: `forecast` and `score` as those of `Fit`; `history` with the drift's evaluations so far, forward only."""

    spec: Rival
    summary: DataSummary
    solved: Solved
    training: Training
    context: list[Series]
    history: list[Row]
    stopped: str
    seconds: float
    compile_seconds: float

    def __repr__(self) -> str:
        return f"SolverFit({type(self.spec).__name__}, {self.training.steps} steps, {self.stopped})"

    def forecast(
        self,
        times: Any,
        *,
        given: Series | Sequence[Series] | None = None,
        num_samples: int = 256,
        key: int | PRNGKeyArray = 0,
    ) -> Any:
        """What comes after the training series, or after `given`; several series give a dictionary by name."""
        series = self.context if given is None else as_list(given)

        def one(i: int, item: Series) -> Prediction:
            k = jax.random.fold_in(as_key(key), i)
            return _forecast(self.solved, self.summary, item, times, num_samples=num_samples, key=k)

        found = {item.name: one(i, item) for i, item in enumerate(series)}
        return found if len(series) > 1 else next(iter(found.values()))

    def score(self, test: Series | Sequence[Series], *, given: Any = None, key: int | PRNGKeyArray = 0) -> Scores:
        """Forecast `test` from the training series (or `given`) of the same name and compare."""
        context = {item.name: item for item in (self.context if given is None else as_list(given))}
        pairs = []
        for item in as_list(test):
            if item.name not in context:
                raise ValueError(f"score needs a context to forecast '{item.name}' from. Pass given= with that name.")
            pairs.append((_forecast(self.solved, self.summary, context[item.name], item.times, key=as_key(key)), item))
        return score(pairs)


def _cumulative(history: list[Row]) -> list[Row]:
    """Evaluations so far, from their means per step."""
    rows, before = [], {"drift_evaluations": 0.0, "sequential_evaluations": 0.0}
    last = 0
    for row in history:
        before = {name: before[name] + row[name] * (row["step"] - last) for name in before}
        rows.append({**row, **before})
        last = row["step"]
    return rows


def _fit(
    rival: Rival,
    spec: LatentSDE,
    data: Series | Sequence[Series],
    *,
    stochastic: bool,
    encode: bool,
    key: int | PRNGKeyArray = 0,
    validation: Series | Sequence[Series] | None = None,
    training: Training = Training(batch_size=10),
    progress: bool = True,
) -> SolverFit:
    series = as_list(data)
    summary = summarise(spec, series)
    if summary.input_names:
        raise ValueError(
            f"{type(rival).__name__} takes no known inputs; the data has {', '.join(summary.input_names)}."
        )
    build_key, train_key = jax.random.split(as_key(key))
    solved = assemble(rival, spec, summary, stochastic=stochastic, encode=encode, key=build_key)
    windows = TrainingData(windows_of(series, summary.scaling, size=summary.partition_size, lookahead=0))
    held_out = [] if validation is None else as_list(validation)
    outcome = train(
        SolverObjective(training.batch_size, training.kl_weight, round(training.kl_ramp * training.steps)),
        start(solved, training, key=train_key),
        windows,
        training,
        validate=validator(validation_pairs(series, held_out), summary, _forecast) if held_out else None,
        progress=progress,
    )
    best = training.select == "best" and outcome.best.model is not None
    return SolverFit(
        spec=rival,
        summary=summary,
        solved=cast(Solved, outcome.best.model if best else outcome.state.model),
        training=training,
        context=series,
        history=_cumulative(outcome.history),
        stopped=outcome.stopped,
        seconds=outcome.seconds,
        compile_seconds=outcome.compile_seconds,
    )
