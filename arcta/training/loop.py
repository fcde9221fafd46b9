"""One compiled training loop, generic in the loss; around it logging, validation, early stopping and checkpoints.

    loss(model, data, step, key=…) → (scalar, {term: scalar})

Steps run inside one `while_loop`, so any number of them costs one call and one compilation. Randomness is a function of
(key, step) alone: where a run was cut into calls, or stopped and resumed, does not change a bit of it. A step whose
numbers are not finite is not taken: the loop stops before it and says which number it was.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from typing import Literal, Protocol, cast, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, ArrayLike, Float, Int, PRNGKeyArray, PyTree

from ..runtime.compile import compile_for
from ..runtime.host import Held
from ..runtime.sums import Terms
from .progress import Progress, Row, on_interrupt
from .settings import Training

Slopes = tuple[tuple[Array, tuple[Terms, PyTree]], Array]
Advance = tuple["State", Terms, Terms]
Stopped = Literal["finished", "early", "interrupted"]


@runtime_checkable
class Loss(Protocol):
    """What is minimised, and its terms; compared by value, so that equal losses share one compilation."""

    def __call__(
        self, model: PyTree, data: PyTree, step: Int[Array, ""], /, *, key: PRNGKeyArray
    ) -> tuple[Float[Array, ""], PyTree]: ...


@runtime_checkable
class Optimised(Protocol):
    """Anything that says which optimiser to use: `Training`, or one whose numbers are traced."""

    def optimiser(self) -> optax.GradientTransformation: ...


@runtime_checkable
class Settling(Protocol):
    """A loss beside which some parts move by closed forms. It returns `(scalar, (terms, seen))`; the optimiser takes its step, then
    `settle` moves the model by what was seen and by what is remembered of earlier steps."""

    def __call__(
        self, model: PyTree, data: PyTree, step: Int[Array, ""], /, *, key: PRNGKeyArray
    ) -> tuple[Float[Array, ""], PyTree]: ...

    def remember(self, model: PyTree, /) -> PyTree:
        """What is remembered before the first step."""

    def settle(
        self, before: PyTree, model: PyTree, memory: PyTree, seen: PyTree, step: Int[Array, ""], /
    ) -> tuple[PyTree, PyTree]:
        """The model moved, from before the optimiser's step and after it, and what is remembered now."""
        ...


class State(eqx.Module):
    """All that the next step depends on."""

    model: PyTree
    optimiser: optax.OptState
    step: Int[Array, ""]
    key: PRNGKeyArray
    memory: PyTree = ()


@runtime_checkable
class Pieces(Protocol):
    """Data that comes for `steps` steps at a time, as that of a file too large for memory does."""

    steps: int

    def at(self, step: int) -> PyTree:
        """The data for the piece of training that `step` is in."""


class TrainingDiverged(RuntimeError):
    """A loss term or the gradient stopped being finite. `state` is the last good one; `fault`: which function it was, if that is
    known."""

    def __init__(self, message: str, state: State, fault: str | None = None):
        super().__init__(message)
        self.state, self.fault = state, fault


@dataclasses.dataclass(frozen=True)
class Best:
    """The best model by validation, its score, and how many validations came after it."""

    model: PyTree = None
    score: float = math.inf
    since: int = 0


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What training leaves: the last state, the best model by validation, how and how long it ran, and the signal that ended it."""

    state: State
    best: Best
    history: list[Row]
    stopped: Stopped
    compile_seconds: float
    seconds: float
    signal: int = 0


def _is_held(leaf: object) -> bool:
    return isinstance(leaf, Held)


def _trained(model: PyTree) -> tuple[PyTree, PyTree]:
    """What the optimiser moves, and the rest."""
    return eqx.partition(model, eqx.is_inexact_array, is_leaf=_is_held)


def start(model: PyTree, training: Training, loss: Loss | None = None, *, key: PRNGKeyArray) -> State:
    """The state before the first step, by way of the host: nothing to compile, and no weak types, for which the second call
    would compile once more."""
    model = jax.tree.map(lambda leaf: jax.device_put(np.asarray(leaf)) if eqx.is_array(leaf) else leaf, model)
    weights = jax.tree.leaves(_trained(model)[0])
    flat = np.zeros(sum(leaf.size for leaf in weights), np.result_type(*(leaf.dtype for leaf in weights)))
    moments = _zeros(jax.eval_shape(training.optimiser().init, flat))  # Adam's start at zero
    memory = _zeros(eqx.filter_eval_shape(loss.remember, model)) if isinstance(loss, Settling) else ()
    return State(model, moments, jax.device_put(np.int32(0)), key, memory)


def _zeros(shapes: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: jax.device_put(np.zeros(leaf.shape, leaf.dtype)), shapes)


def take_steps(
    loss: Loss,
    training: Optimised,
    state: State,
    data: PyTree,
    stop: Int[ArrayLike, ""],
    average: Callable[[Slopes], Slopes] = lambda slopes: slopes,
) -> Advance:
    """Run to step `stop`, or to the first step that is not finite. `average` is over devices that each see a part of the batch.

    **Returns:** the state, the mean of each term over the steps taken, and the terms of the last step tried.
    """
    optimiser, settling = training.optimiser(), loss if isinstance(loss, Settling) else None
    weights, rest = _trained(state.model)
    held, static = eqx.partition(rest, eqx.is_inexact_array)
    flat, unravel = ravel_pytree(weights)  # Adam on one vector is a handful of kernels, on the tree hundreds

    def whole(flat: Array, held: PyTree) -> PyTree:
        return eqx.combine(unravel(flat), held, static)

    def value(flat: Array, held: PyTree, step: Array) -> tuple[Array, tuple[Terms, PyTree]]:
        key = jax.random.fold_in(state.key, step)
        total, told = loss(whole(flat, held), data, step, key=key)
        return total, (told, ()) if settling is None else told

    def settle(
        before: Array, after: Array, held: PyTree, memory: PyTree, seen: PyTree, step: Array
    ) -> tuple[PyTree, ...]:
        if settling is None:
            return after, held, memory
        model, memory = settling.settle(whole(before, held), whole(after, held), memory, seen, step)
        weights, rest = _trained(model)
        return ravel_pytree(weights)[0], eqx.filter(rest, eqx.is_inexact_array), memory

    slope_of = jax.jit(jax.value_and_grad(value, has_aux=True))  # jit: traced once, for its shapes and in the loop

    def body(carry: tuple[PyTree, ...]) -> tuple[PyTree, ...]:
        flat, held, moments, memory, step, sums, _, _ = carry
        (total, (terms, seen)), slope = average(slope_of(flat, held, step))
        terms = {**terms, "loss": total, "gradient_norm": optax.tree.norm(slope)}
        finite = jnp.all(jnp.isfinite(jnp.stack(list(terms.values()))))
        updates, new_moments = optimiser.update(slope, moments, flat)
        after = cast(Array, optax.apply_updates(flat, updates))
        new_flat, new_held, new_memory = settle(flat, after, held, memory, seen, step)
        new = (new_flat, new_held, new_moments, new_memory, step + 1, jax.tree.map(jnp.add, sums, terms))
        return (*jax.lax.cond(finite, lambda: new, lambda: (flat, held, moments, memory, step, sums)), terms, finite)

    (total, (terms, _)), _ = jax.eval_shape(slope_of, flat, held, state.step)
    terms = {**terms, "loss": total, "gradient_norm": total}
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), terms)
    carry = (flat, held, state.optimiser, state.memory, state.step, zeros, zeros, jnp.array(True))
    carry = jax.lax.while_loop(lambda c: (c[4] < stop) & c[7], body, carry)
    flat, held, moments, memory, step, sums, last, _ = carry
    taken = jnp.maximum(step - state.step, 1)
    means = jax.tree.map(lambda total: total / taken, sums)
    return State(whole(flat, held), moments, step, state.key, memory), means, last


def advance(loss: Loss, training: Optimised, state: State, data: PyTree, stop: Int[ArrayLike, ""]) -> Advance:
    """`take_steps`, compiled."""
    return compile_for(state.model, take_steps)(loss, training, state, data, stop)


class Group(abc.ABC):
    """Who trains together: one model on one device (`Alone`), several devices (`parallel`), several models (`ensemble`)."""

    @abc.abstractmethod
    def advance(self, loss: Loss, training: Training, state: State, data: PyTree, stop: Array) -> Advance:
        """As `advance`, for all of them."""

    def agree(self, code: int) -> int:
        """The largest code that any process has."""
        return code

    def histories(self, rows: Sequence[Row]) -> list[list[Row]]:
        """Each model's log rows, from those of all together."""
        return [list(rows)]


class Alone(Group):
    """One model on one device."""

    def advance(self, loss: Loss, training: Training, state: State, data: PyTree, stop: Array) -> Advance:
        return advance(loss, training, state, data, stop)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hooks:
    """What happens between calls of the compiled loop.

    - `measure(model, step)`: further numbers for a log row.
    - `validate(model)`: `{"validation": score, …}`, lower is better.
    - `on_row`, `on_checkpoint`: called with every log row, and with the state and the best model.
    - `terminable`: whether SIGTERM ends training as Ctrl-C does.
    """

    measure: Callable[[PyTree, int], Row] | None = None
    validate: Callable[[PyTree], Row] | None = None
    on_row: Callable[[Row], None] = lambda row: None
    on_checkpoint: Callable[[State, Best], None] = lambda state, best: None
    terminable: bool = False


def _diagnosis(step: int, terms: Row, history: list[Row]) -> str:
    bad = [name for name, value in terms.items() if not math.isfinite(value) and name not in ("loss", "gradient_norm")]
    what = " and ".join(bad) if bad else "the gradient (all terms are finite)"
    before = f"; the mean loss before was {history[-1]['loss']:.4g}" if history else ""
    return (
        f"training stopped at step {step}: {what} is not finite{before}. The state after step {step - 1} is kept. "
        "Try a smaller learning_rate, a smaller clip, or a longer kl_ramp."
    )


@dataclasses.dataclass
class _Run:
    """A run of training on its way: where it is, and what to do at each stop."""

    loss: Loss
    data: PyTree | Pieces
    training: Training
    hooks: Hooks
    group: Group
    state: State
    best: Best
    history: list[Row] = dataclasses.field(default_factory=list)
    seconds: float = 0.0

    def steps_to(self, target: int) -> Advance:
        """What the steps up to `target` lead to; with no step to take, the program is compiled."""
        data = self.data.at(int(self.state.step)) if isinstance(self.data, Pieces) else self.data
        stop = jax.device_put(np.int32(target))
        return jax.block_until_ready(self.group.advance(self.loss, self.training, self.state, data, stop))

    def take(self) -> Row:
        """Train to the next stop; the log row of it."""
        training, step = self.training, int(self.state.step)
        piece = self.data.steps if isinstance(self.data, Pieces) else training.steps
        every = (training.log_every, training.validate_every, training.checkpoint_every, piece)
        target = min(training.steps, *((step // n + 1) * n for n in every))
        clock = time.perf_counter()
        self.state, means, last = self.steps_to(target)
        self.seconds += time.perf_counter() - clock
        step = int(self.state.step)
        if step < target:
            terms = {name: float(value) for name, value in last.items()}
            raise TrainingDiverged(_diagnosis(step + 1, terms, self.history), self.state)
        return {"step": step, "seconds": self.seconds, **{name: float(value) for name, value in means.items()}}

    def note(self, row: Row) -> None:
        """Measure, validate, log and, where it is due, checkpoint."""
        hooks, training, step = self.hooks, self.training, int(row["step"])
        if hooks.measure is not None:
            row |= hooks.measure(self.state.model, step)
        if hooks.validate is not None and (step % training.validate_every == 0 or step == training.steps):
            row |= hooks.validate(self.state.model)
            better = row["validation"] < self.best.score
            worse = dataclasses.replace(self.best, since=self.best.since + 1)
            self.best = Best(self.state.model, row["validation"]) if better else worse
        self.history.append(row)
        hooks.on_row(row)
        if step % training.checkpoint_every == 0:
            hooks.on_checkpoint(self.state, self.best)

    def verdict(self, interrupted: bool) -> Stopped:
        """Whether to stop here; all processes of a job agree on it."""
        early = self.training.patience is not None and self.best.since >= self.training.patience
        verdicts: tuple[Stopped, ...] = ("finished", "early", "interrupted")
        verdict = verdicts[self.group.agree(2 if interrupted else int(early))]
        last = int(self.state.step) == self.training.steps
        return "finished" if last and verdict == "interrupted" else verdict


def train(
    loss: Loss,
    state: State,
    data: PyTree | Pieces,
    training: Training,
    *,
    hooks: Hooks = Hooks(),
    best: Best = Best(),
    group: Group = Alone(),
    progress: bool = True,
) -> Outcome:
    """Take the steps from `state.step` to `training.steps`.

    **Arguments:** `loss` and `data`, see the module's docstring (or `Pieces` of data); `hooks`: what happens on the way; `best`:
    the best model so far, when resuming; `group`: several devices that share each batch, or several models, that stop together.

    On Ctrl-C, and on SIGTERM if `hooks.terminable`, a last checkpoint is made and what was reached is returned; when training
    diverges one is made before the error. A second Ctrl-C, and one before the first step, is a KeyboardInterrupt.
    """
    run = _Run(loss, data, training, hooks, group, state, best)
    began = time.perf_counter()
    with contextlib.closing(Progress(training.steps, int(state.step), progress)) as bar:
        run.steps_to(int(state.step))
        compile_seconds = time.perf_counter() - began
        bar.compiled()
        with on_interrupt(terminable=hooks.terminable) as caught:
            stopped = _take_all(run, bar, caught)
    if len(caught) > 1:
        raise KeyboardInterrupt
    number = caught[0] if caught else 0
    return Outcome(run.state, run.best, run.history, stopped, compile_seconds, run.seconds, number)


def _take_all(run: _Run, bar: Progress, caught: list[int]) -> Stopped:
    """Train until there is a reason to stop; a checkpoint is made whatever the reason."""
    stopped: Stopped = "finished"
    try:
        while stopped == "finished" and int(run.state.step) < run.training.steps:
            row = run.take()
            run.note(row)
            bar.update(int(row["step"]), row)
            stopped = run.verdict(bool(caught))
    except KeyboardInterrupt:
        stopped = "interrupted"
    except TrainingDiverged:
        run.hooks.on_checkpoint(run.state, run.best)
        raise
    run.hooks.on_checkpoint(run.state, run.best)
    return stopped
