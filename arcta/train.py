"""One compiled training loop, generic in the loss; around it logging, validation, early stopping and the progress bar.

    loss(model, data, step, key=…) → (scalar, {term: scalar})

Steps run inside one `while_loop`, so any number of them costs one call and one compilation. Randomness is a function of
(key, step) alone: where a run was cut into calls, or stopped and resumed, does not change a bit of it. A step whose
numbers are not finite is not taken: the loop stops before it and says which number it was.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from typing import Any, Literal, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Int, PRNGKeyArray

from .compiled import compiled_for, uncollected
from .programs import kept

Row = dict[str, int | float]


def _shortened(longest: Any) -> optax.GradientTransformation:
    """Gradients no longer than that. `optax.clip_by_global_norm` with one factor instead of a choice between two arrays."""

    def shortened(slope: Any, _: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf * jnp.minimum(1.0, longest / optax.global_norm(slope)), slope)

    return optax.stateless(shortened)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """How to train. The loss sees `batch_size` windows a step, `num_draws` × `num_times` drift values in each, and decodes
    `num_decoded` of the draws (default: all) at every observation.

    **Arguments:**

    - `steps`, `learning_rate`: of Adam; `schedule`: `"cosine"` (to zero at the last step) or `"exponential"`
      (× 0.9 every 1000 steps, as the paper has it); `warmup`: the fraction of steps over which the rate first rises from 0.
    - `clip`: the largest gradient norm (of the loss per observed entry).
    - `kl_weight`: 1 is the true bound; `kl_ramp`: the fraction of steps over which it rises from 0.
    - `join_penalty`: weight of the posterior's jump between windows.
    - `log_every`, `validate_every`, `checkpoint_every`: in steps.
    - `patience`: stop after so many validations without a new best; `select`: keep the `"last"` or the `"best"` model.
    """

    steps: int = 2000
    batch_size: int = 1
    num_draws: int = 4
    num_times: int = 16
    learning_rate: float = 5e-3
    schedule: Literal["cosine", "exponential"] = "cosine"
    warmup: float = 0.0
    clip: float = 10.0
    kl_weight: float = 1.0
    kl_ramp: float = 0.05
    join_penalty: float = 0.0
    log_every: int = 50
    validate_every: int = 250
    checkpoint_every: int = 500
    patience: int | None = None
    select: Literal["last", "best"] = "last"
    num_decoded: int | None = None

    def __post_init__(self) -> None:
        whole = ("steps", "batch_size", "num_draws", "num_times", "log_every", "validate_every", "checkpoint_every")
        for name in whole:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1; got {getattr(self, name)}. Leave it out for a default.")
        for name, ok, wanted in (
            ("learning_rate", self.learning_rate > 0, "positive"),
            ("clip", self.clip > 0, "positive"),
            ("kl_weight", self.kl_weight >= 0, "0 or more"),
            ("kl_ramp", 0 <= self.kl_ramp <= 1, "a fraction of the steps between 0 and 1"),
            ("warmup", 0 <= self.warmup < 1, "a fraction of the steps below 1"),
            ("join_penalty", self.join_penalty >= 0, "0 or more"),
            ("num_decoded", self.num_decoded is None or 1 <= self.num_decoded <= self.num_draws, "from 1 to num_draws"),
            ("patience", self.patience is None or self.patience >= 1, "at least 1"),
            ("schedule", self.schedule in ("cosine", "exponential"), "'cosine' or 'exponential'"),
            ("select", self.select in ("last", "best"), "'last' or 'best'"),
        ):
            if not ok:
                raise ValueError(f"{name} must be {wanted}; got {getattr(self, name)!r}. Leave it out for a default.")

    def optimiser(self, learning_rate: Any = None, clip: Any = None) -> optax.GradientTransformation:
        """Clipping and Adam; with other numbers than these if given, traced ones too."""
        learning_rate = self.learning_rate if learning_rate is None else learning_rate
        if self.schedule == "cosine":
            rate = optax.cosine_decay_schedule(learning_rate, self.steps)
        else:
            rate = optax.exponential_decay(learning_rate, 1000, 0.9)
        if self.warmup > 0:
            rising = optax.linear_schedule(0.0, 1.0, round(self.warmup * self.steps))
            decaying = rate
            rate = lambda step: rising(step) * decaying(step)  # noqa: E731
        return optax.chain(_shortened(self.clip if clip is None else clip), optax.adam(rate))


class State(eqx.Module):
    """All that the next step depends on."""

    model: Any
    optimiser: Any
    step: Int[Array, ""]
    key: PRNGKeyArray


@runtime_checkable
class Pieces(Protocol):
    """Data that comes for `steps` steps at a time, as that of a file too large for memory does."""

    steps: int

    def at(self, step: int) -> Any:
        """The data for the piece of training that `step` is in."""
        ...


@runtime_checkable
class Group(Protocol):
    """Several devices or models that train together; see `parallel` and `ensemble`."""

    def advance(self, loss: Any, training: Any, state: State, data: Any, stop: Any) -> Any:
        """As `advance`, for all of them."""
        ...

    def agree(self, code: int) -> int:
        """The largest code that any process has."""
        ...


class TrainingDiverged(RuntimeError):
    """A loss term or the gradient stopped being finite. `state` is the last good one."""

    def __init__(self, message: str, state: State):
        super().__init__(message)
        self.state = state


@dataclasses.dataclass(frozen=True)
class Best:
    """The best model by validation, its score, and how many validations came after it."""

    model: Any = None
    score: float = math.inf
    since: int = 0


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What training leaves: the last state, the best model by validation, and how and how long it ran."""

    state: State
    best: Best
    history: list[Row]
    stopped: Literal["finished", "early", "interrupted"]
    compile_seconds: float
    seconds: float


def start(model: Any, training: Training, *, key: PRNGKeyArray) -> State:
    """The state before the first step, by way of the host: nothing to compile, and no weak types, for which the second call
    would compile once more."""
    model = jax.tree.map(lambda leaf: jax.device_put(np.asarray(leaf)) if eqx.is_array(leaf) else leaf, model)
    weights = jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array))
    flat = np.zeros(sum(leaf.size for leaf in weights), np.result_type(*(leaf.dtype for leaf in weights)))
    moments = jax.eval_shape(training.optimiser().init, flat)  # Adam's start at zero
    moments = jax.tree.map(lambda leaf: jax.device_put(np.zeros(leaf.shape, leaf.dtype)), moments)
    return State(model, moments, jax.device_put(np.int32(0)), key)


def take_steps(
    loss: Callable[..., Any],
    training: Hashable,
    state: State,
    data: Any,
    stop: Int[Array, ""],
    average: Callable[[Any], Any] = lambda slope_and_terms: slope_and_terms,
) -> tuple[State, dict[str, Array], dict[str, Array]]:
    """Run to step `stop`, or to the first step that is not finite. `average` is over devices that each see a part of the batch.

    **Returns:** the state, the mean of each term over the steps taken, and the terms of the last step tried.
    """
    optimiser = training.optimiser()  # pyright: ignore[reportAttributeAccessIssue]
    parameters, static = eqx.partition(state.model, eqx.is_inexact_array)
    # One flat vector: Adam on it is a handful of kernels, on the tree hundreds.
    flat, unravel = ravel_pytree(parameters)

    def value(flat: Array, step: Array) -> tuple[Array, dict[str, Array]]:
        return loss(eqx.combine(unravel(flat), static), data, step, key=jax.random.fold_in(state.key, step))

    slope_of = jax.jit(jax.value_and_grad(value, has_aux=True))  # jit: traced once, for its shapes and in the loop

    def body(carry: Any) -> Any:
        flat, moments, step, sums, _, _ = carry
        (total, terms), slope = average(slope_of(flat, step))
        terms = {**terms, "loss": total, "gradient_norm": jnp.linalg.norm(slope)}
        finite = jnp.all(jnp.isfinite(jnp.stack(list(terms.values()))))
        updates, new_moments = optimiser.update(slope, moments, flat)
        new = (flat + updates, new_moments, step + 1, jax.tree.map(jnp.add, sums, terms))
        # `cond`, not `where`: a Lotka–Volterra step of 0.39 ms instead of 0.41 (throw-away profile, one core).
        return (*jax.lax.cond(finite, lambda: new, lambda: (flat, moments, step, sums)), terms, finite)

    (total, terms), _ = jax.eval_shape(slope_of, flat, state.step)
    terms = {**terms, "loss": total, "gradient_norm": total}
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), terms)
    carry = (flat, state.optimiser, state.step, zeros, zeros, jnp.array(True))
    flat, moments, step, sums, last, _ = jax.lax.while_loop(lambda c: (c[2] < stop) & c[5], body, carry)
    taken = jnp.maximum(step - state.step, 1)
    means = jax.tree.map(lambda total: total / taken, sums)
    return State(eqx.combine(unravel(flat), static), moments, step, state.key), means, last


def advance(
    loss: Callable[..., Any], training: Hashable, state: State, data: Any, stop: Int[Array, ""]
) -> tuple[State, dict[str, Array], dict[str, Array]]:
    """`take_steps`, compiled."""
    return compiled_for(state.model, _kept_steps)(loss, training, state, data, stop)


def _kept_steps(
    loss: Callable[..., Any], training: Hashable, state: State, data: Any, stop: Int[Array, ""]
) -> tuple[Any, ...]:
    return kept(take_steps, (loss, training, state, data, stop), like=state)


def _diagnosis(step: int, terms: Row, history: list[Row]) -> str:
    bad = [name for name, value in terms.items() if not math.isfinite(value) and name not in ("loss", "gradient_norm")]
    what = " and ".join(bad) if bad else "the gradient (all terms are finite)"
    before = f"; the mean loss before was {history[-1]['loss']:.4g}" if history else ""
    return (
        f"training stopped at step {step}: {what} is not finite{before}. The state after step {step - 1} is kept. "
        "Try a smaller learning_rate, a smaller clip, or a longer kl_ramp."
    )


def _line(row: Row) -> str:
    names = ("loss", "log_likelihood", "path_kl", "initial_kl", "parameter_kl", "join_kl", "validation")
    return "  ".join(f"{name} {row[name]:.4g}" for name in names if name in row)


class _Progress:
    """A rich bar on a terminal, a plain line now and then elsewhere, nothing when not wanted."""

    def __init__(self, total: int, first: int, show: bool):
        self.total, self.first, self.began, self.bar, self.task = total, first, time.perf_counter(), None, None
        self.show, self.printed = show, 0.0
        if show and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (MofNCompleteColumn(), BarColumn(24), TextColumn("{task.fields[rate]}"), TimeRemainingColumn())
            self.bar = Progress(*columns, TextColumn("{task.description}"), console=Console(stderr=True))
            self.task = self.bar.add_task("compiling", total=total, completed=first, rate="")
            self.bar.start()
        elif show:
            print(f"arcta: compiling, then {total - first} steps", file=sys.stderr, flush=True)

    def compiled(self) -> None:
        self.began = time.perf_counter()

    def update(self, step: int, row: Row) -> None:
        seconds = time.perf_counter() - self.began
        rate = (step - self.first) / max(seconds, 1e-9)
        if self.bar is not None and self.task is not None:
            self.bar.update(self.task, completed=step, description=_line(row), rate=f"{rate:.0f} steps/s")
        elif self.show and (seconds - self.printed > 2.0 or step == self.total):
            self.printed = seconds
            left = (self.total - step) / max(rate, 1e-9)
            print(
                f"step {step}/{self.total}  {_line(row)}  {rate:.0f} steps/s  {left:.0f} s left",
                file=sys.stderr,
                flush=True,
            )

    def close(self) -> None:
        if self.bar is not None:
            self.bar.stop()


@contextlib.contextmanager
def _on_interrupt() -> Iterator[list[int]]:
    """A list that Ctrl-C adds to. The first is obeyed between two calls of the compiled loop, where the state is whole; the second
    at once. Not in threads, where Python allows no handler."""
    caught: list[int] = []

    def note(number: int, frame: Any) -> None:
        caught.append(number)
        if len(caught) > 1:
            raise KeyboardInterrupt
        print("arcta: stopping after these steps; Ctrl-C again stops at once", file=sys.stderr, flush=True)

    if threading.current_thread() is not threading.main_thread():
        yield caught
        return
    before = signal.signal(signal.SIGINT, note)
    try:
        yield caught
    finally:
        signal.signal(signal.SIGINT, before)


def _next_stop(step: int, training: Training, piece: int) -> int:
    every = (training.log_every, training.validate_every, training.checkpoint_every, piece)
    return min(training.steps, *((step // n + 1) * n for n in every))


def train(
    loss: Callable[..., Any],
    state: State,
    data: Any,
    training: Training,
    *,
    measure: Callable[[Any, int], Row] | None = None,
    validate: Callable[[Any], Row] | None = None,
    best: Best = Best(),
    on_row: Callable[[Row], None] | None = None,
    on_checkpoint: Callable[[State, Best], None] | None = None,
    group: Group | None = None,
    progress: bool = True,
) -> Outcome:
    """Take the steps from `state.step` to `training.steps`.

    **Arguments:**

    - `loss`: see the module's docstring; compared by value, so that equal losses share one compilation.
    - `data`: what the loss takes, or `Pieces` of it.
    - `measure(model, step)`: further numbers for a log row; `validate(model)`: `{"validation": score, …}`, lower is
      better.
    - `best`: the best model so far, when resuming.
    - `on_row`, `on_checkpoint`: called with every log row, and with the state and the best model. On Ctrl-C a last
      checkpoint is made and what was reached is returned; when training diverges one is made before the error.
    - `group`: several devices that share each batch, or several models; they stop together.
    """
    history: list[Row] = []
    stopped: Literal["finished", "early", "interrupted"] = "finished"
    compile_seconds = seconds = 0.0
    bar = _Progress(training.steps, int(state.step), progress)

    def checkpoint() -> None:
        if on_checkpoint is not None:
            on_checkpoint(state, best)

    if group is None:
        # A kept program (`programs`) leaves its state bound to a device: bound from the start, the loop is compiled once.
        bound = lambda leaf: jax.device_put(leaf, leaf.device) if isinstance(leaf, jax.Array) else leaf  # noqa: E731
        state = jax.tree.map(bound, state)
    steps_to = advance if group is None else group.advance
    at, piece = (data.at, data.steps) if isinstance(data, Pieces) else (lambda step: data, training.steps)
    began = time.perf_counter()
    handler = contextlib.ExitStack()
    interrupted = handler.enter_context(_on_interrupt())
    try:
        with uncollected():  # no step, but the program is compiled
            here = jax.device_put(np.int32(state.step))
            jax.block_until_ready(steps_to(loss, training, state, at(int(here)), here)[1])
        compile_seconds = time.perf_counter() - began
        bar.compiled()
        while int(state.step) < training.steps:
            target = _next_stop(int(state.step), training, piece)
            clock = time.perf_counter()
            state, means, last = jax.block_until_ready(
                steps_to(loss, training, state, at(int(state.step)), jax.device_put(np.int32(target)))
            )
            seconds += time.perf_counter() - clock
            step = int(state.step)
            if step < target:
                raise TrainingDiverged(_diagnosis(step + 1, {k: float(v) for k, v in last.items()}, history), state)
            row: Row = {"step": step, "seconds": seconds, **{name: float(value) for name, value in means.items()}}
            if measure is not None:
                row |= measure(state.model, step)
            if validate is not None and (step % training.validate_every == 0 or step == training.steps):
                row |= validate(state.model)
                better = row["validation"] < best.score
                best = (
                    Best(state.model, row["validation"]) if better else dataclasses.replace(best, since=best.since + 1)
                )
            history.append(row)
            if on_row is not None:
                on_row(row)
            bar.update(step, row)
            if step % training.checkpoint_every == 0:
                checkpoint()
            early = training.patience is not None and best.since >= training.patience
            code = 2 if interrupted else int(early)
            code = code if group is None else group.agree(code)
            if code and (step < training.steps or code == 1):
                stopped = "interrupted" if code == 2 else "early"
                break
    except KeyboardInterrupt:
        stopped = "interrupted"
    except TrainingDiverged:
        checkpoint()
        raise
    finally:
        handler.close()
        bar.close()
    checkpoint()
    return Outcome(state, best, history, stopped, compile_seconds, seconds)
