"""The posterior of a series' states at any times inside it: the encoder's (`amortised`), or that refined by the model's own flow.

The encoder sees a partition and its margins. The refined posterior is one chain over the whole series, linearised around the
encoder's means (`parts.smoother`): a state remembers as much of past and future as the learned dynamics do, there are no joins,
and gaps get nodes of their own.
"""

from __future__ import annotations

import warnings
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..data.series import Series
from ..data.windows import Window, fill_gaps, partition, partition_starts
from ..model.reading import DataLayout
from ..parts.generative import AbstractGenerative
from ..parts.model import Model
from ..parts.posterior import AbstractGaussian, AbstractPosterior
from ..parts.smoother import Rows, answer_of, rows_of, smooth_rows
from ..runtime.compile import compile_lightly
from ..runtime.host import array
from .solve import padded_length

LONGEST = (
    0.25  # step between two nodes in the model's units of time; shorter than in training, which visits them many times
)
PASSES = ((3, 1.0), (40, 0.3))  # how many, of what stride: at first, and where those do not settle
THOROUGH = (
    0.25,
    ((100, 0.5),),
)  # the same for those who ask for more: the part of a step, and passes until nothing moves
LARGEST = 20_000_000  # entries of ∂m/∂c at the nodes; beyond, states and coefficients are drawn on their own
MOST = 20_000  # nodes; a gap of more steps than that would be all there is to compute
SETTLED = 0.5  # the last pass may move no state by more than that many of its standard deviations


@compile_lightly
def marginals(model: AbstractGenerative, windows: Window, times: Float[Array, "windows times"]) -> AbstractGaussian:
    """The posterior at some times of each window, measured from its start; stacked by windows and times."""

    def of_one(item: tuple[Window, Array]) -> AbstractGaussian:
        window, ts = item
        return jax.vmap(model.amortised(window))(ts).normal

    return jax.lax.map(of_one, (windows, times), batch_size=16)


def amortised(
    model: AbstractGenerative, layout: DataLayout, series: Series, times: Float[np.ndarray, " n"]
) -> AbstractGaussian:
    """The encoder's posterior at increasing times, stacked. Each time belongs to the partition that covers it, and each partition
    is encoded once, however many times fall into it."""
    scaling, observed = layout.scaling, series.times[series.mask.any(axis=1)]
    starts = observed[partition_starts(len(observed), layout.partition_size)]
    owner = np.clip(np.searchsorted(starts, times, side="right") - 1, 0, len(starts) - 1)
    counts = np.bincount(owner, minlength=len(starts))
    slot = np.arange(len(times)) - np.concatenate([[0], np.cumsum(counts)])[owner]
    padded = np.zeros((len(starts), padded_length(int(counts.max()))))
    padded[owner, slot] = (times - starts[owner]) / scaling.time_scale
    windows = jax.tree.map(jnp.asarray, partition(series, scaling, layout.window_shape(model)))
    return marginals(model, windows, jnp.asarray(padded, windows.times.dtype)).at((owner, slot))


def _rows(layout: DataLayout, series: Series, nodes: Float[np.ndarray, " nodes"], first: bool) -> Rows:
    """What is observed at the nodes, padded by repeats of the last time, of which nothing more is seen."""
    scaling, seen = layout.scaling, series.mask.any(axis=1)
    length, start = padded_length(len(nodes)), nodes[0]
    at = np.searchsorted(nodes, series.times[seen])
    values, mask = np.zeros((length, len(layout.channels))), np.zeros((length, len(layout.channels)), bool)
    values[at], mask[at] = scaling.values(series.values[seen]), series.mask[seen]
    knots = (series.times if layout.input_names else nodes[:1]) - start
    knots = knots / scaling.time_scale
    known = scaling.known_inputs(series.inputs)[: len(knots)]
    more = padded_length(len(knots)) - len(knots)  # a program for a few lengths, not for each
    since = np.pad((nodes - start) / scaling.time_scale, (0, length - len(nodes)), mode="edge")
    return Rows(
        start=array(scaling.times(start)),
        times=array(since),
        values=array(np.where(mask, values, 0)),
        mask=jax.device_put(mask),
        first=jax.device_put(np.asarray(first)),
        input_times=array(np.append(knots, knots[-1] + np.arange(1.0, more + 1))),
        inputs=array(np.pad(known, ((0, more), (0, 0)), mode="edge")),
    )


class Recognised(NamedTuple):
    """The posterior at some times, stacked, and how its means answer to the drift's coefficients (if that is known): ∂m/∂c."""

    normal: AbstractGaussian
    answer: Float[Array, "times latent coefficients"] | None = None

    def states(
        self, noise: Float[Array, "samples times latent"], away: Float[Array, "samples coefficients"]
    ) -> Float[Array, "samples times latent"]:
        """Draws of the states, given how far each draw of the coefficients is from their mean."""
        states = self.normal.state(noise)
        return states if self.answer is None else states + jnp.einsum("tlc,sc->stl", self.answer, away)

    def at(self, index: np.ndarray) -> Recognised:
        return Recognised(self.normal.at(index), None if self.answer is None else self.answer[index])


@compile_lightly
def _refine(
    model: AbstractGenerative,
    rows: Rows,
    guess: Float[Array, "nodes latent"],
    times: Float[Array, " n"],
    *,
    respond: bool,
    passes: int,
    stride: float,
) -> tuple[Recognised, Float[Array, ""]]:
    found, last = smooth_rows(model, rows, guess, passes=passes, stride=stride)
    normal = jax.vmap(lambda t: found(t).normal)(times)
    if not respond:
        return Recognised(normal), found.change[-1]
    found = eqx.tree_at(lambda p: p.answer, found, answer_of(model, rows, last), is_leaf=lambda x: x is None)
    return Recognised(normal, jax.vmap(found.answer_at)(times)), found.change[-1]


def refined(
    model: AbstractGenerative,
    layout: DataLayout,
    series: Series,
    times: Float[np.ndarray, " n"],
    *,
    first: bool = True,
    thorough: bool = False,
) -> Recognised | str:
    """The refined posterior at times inside a series; or why there is none. `first`: the series starts where p(z0) holds, and is
    not the end of a longer one. `thorough`: with shorter steps, until nothing moves."""
    observed = series.times[series.mask.any(axis=1)]
    part, tries = THOROUGH if thorough else (1.0, PASSES)
    longest = part * LONGEST * layout.scaling.time_scale
    if len(observed) < 2:
        return "has one observation"
    if len(observed) + np.sum(np.diff(observed) / longest) > MOST:
        return f"is longer, gaps included, than {MOST} steps of {longest:g}"
    nodes = fill_gaps(observed, longest)
    rows = _rows(layout, series, nodes, first)
    guess = amortised(model, layout, series, nodes).mean
    guess = jnp.pad(guess, ((0, len(rows.times) - len(nodes)), (0, 0)), mode="edge")
    asked = np.pad(times, (0, padded_length(len(times)) - len(times)), mode="edge")
    size = len(model.drift.coefficients().mean)
    respond = model.refined and 0 < size * max(guess.size, guess.shape[1] * len(asked)) <= LARGEST
    since = array((asked - nodes[0]) / layout.scaling.time_scale)
    for passes, stride in tries:
        found, change = _refine(model, rows, guess, since, respond=respond, passes=passes, stride=stride)
        finite = all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(found))
        if float(change) < SETTLED and finite:
            return found.at(np.arange(len(times)))
    return "does not settle"


@compile_lightly
def _smoothed_window(
    model: Model, window: Window, *, passes: int, stride: float
) -> tuple[AbstractPosterior, Float[Array, ""]]:
    coded = model.encode(window).values
    rows, places = rows_of(window, len(coded))
    guess = coded[places.row, : len(model.initial.mean)]
    posterior, _ = smooth_rows(model, rows, guess, passes=passes, stride=stride)
    return posterior.at_rows(places.node), posterior.change[-1]


@compile_lightly
def _encoded_window(model: Model, window: Window) -> AbstractPosterior:
    return model.amortised(window)


def posterior_in(model: Model, window: Window, *, refined: bool) -> AbstractPosterior | None:
    """The posterior of a window as a function of time, at the parameters' medians: by the model's own flow, or None if that does
    not settle; or the encoder's."""
    if not refined:
        return _encoded_window(model, window)
    for passes, stride in PASSES:
        found, change = _smoothed_window(model, window, passes=passes, stride=stride)
        if float(change) < SETTLED:
            return found
    return None


def posterior_at(
    model: AbstractGenerative,
    layout: DataLayout,
    series: Series,
    times: Float[np.ndarray, " n"],
    *,
    refine: bool,
    first: bool = True,
    thorough: bool = False,
) -> Recognised:
    """The posterior at increasing times inside a series."""
    if not refine:
        return Recognised(amortised(model, layout, series, times))
    found = refined(model, layout, series, times, first=first, thorough=thorough)
    if isinstance(found, str):
        warnings.warn(f"'{series.name}' {found}; its states are the encoder's, not refined.", stacklevel=4)
        return Recognised(amortised(model, layout, series, times))
    return found
