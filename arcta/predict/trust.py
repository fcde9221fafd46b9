"""Whether the posterior of each series can be believed: the importance weights of `bound.weights`, stretch by stretch.

The weights of a whole series of thousands of rows always degenerate: the logarithm of a path's weight is a sum over the series,
and its spread grows with the length however good the posterior is. What a state is inferred from is what the model remembers,
some tens of rows; so a path is weighed over a stretch of that many, given what the posterior takes from before and after it.

    k of a series = the middle one of its stretches',      bound, tightened = their sums

A fault of the model, of training or of the form of the posterior is everywhere, so the middle says it, and the more stretches the
surer; the largest of many would be an alarm sooner or later whatever the posterior. That one is told as where to be careful.
Stretches are of one shape, so that one program weighs all of them, and of a long series, or of many, some are weighed, spread
evenly.

A smoother's nodes are put closer for this than for its use: marginals at the nodes are right to a thousandth of their spread on
either, but between them they are interpolated, and where the diffusion is small a path is so precise that its weight would tell
of the interpolation alone.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from ..bound.weights import BELIEVED, belief, log_weights
from ..data.series import Series
from ..data.windows import Window, WindowShape, partition
from ..model.reading import DataLayout
from ..parts.model import Model
from ..parts.posterior import AbstractPosterior
from ..parts.smoother import LONGEST, Rows
from ..runtime.compile import compile_lightly
from .recognise import posterior_in

if TYPE_CHECKING:
    import pandas as pd

STRETCH = 32  # rows: as many as a state remembers at least (`parts.smoother.FEWEST`)
CLOSER, FINE = 4, 0.02  # nodes to a row, where the step between them is not below that in the model's units of time
PER_SERIES, IN_ALL = 8, 32  # stretches that are weighed, to bound the time
DEARER = 4  # times as much as a smoother's costs a stretch of the encoder's posterior, which is interpolated anew at each step
EASY = 0.5  # k below which the weights have a variance
WORDS = {
    "green": "believe it",
    "amber": "usable: means and bands hold, far tails may be off",
    "red": "do not rely on it: the model's true posterior is another",
}


@dataclasses.dataclass(frozen=True)
class Light:
    """What the weights say of one series' posterior.

    `ks`: the tail of each stretch, and `starts`, when they begin. `bound` and `tightened` are nats in the data's units, of the
    `weighed` of its `observations`; on a linear system the second is their log-likelihood. `settled`: whether the smoother's
    passes did.
    """

    name: str
    ks: tuple[float, ...]
    starts: tuple[float, ...]
    bound: float
    tightened: float
    weighed: int
    observations: int
    when: str  # the worst stretch begins, as a date if there are dates
    settled: bool = True

    @property
    def k(self) -> float:
        """The middle one of the stretches', of an even number the upper."""
        return sorted(self.ks)[len(self.ks) // 2]

    @property
    def worst(self) -> float:
        return max(self.ks)

    @property
    def colour(self) -> str:
        if self.k >= BELIEVED:
            return "red"
        return "green" if self.k < EASY and self.worst < BELIEVED else "amber"

    @property
    def verdict(self) -> str:
        """In words."""
        bad = sum(k >= BELIEVED for k in self.ks)
        words = [WORDS["green" if self.k < EASY else self.colour]]
        if bad and self.colour == "amber":
            words[0] += f", but not in {bad} of the {len(self.ks)} stretches weighed, the worst from {self.when}"
        words += [] if self.settled else ["the smoother did not settle, states are the encoder's"]
        return "; ".join(words)


@dataclasses.dataclass(frozen=True)
class Trust:
    """Whether the posterior of each series can be believed, the worst first. `why`: what was not weighed, and for what reason."""

    lights: tuple[Light, ...]
    why: str = ""

    def noting(self, words: str) -> Trust:
        """The same with one more thing to know."""
        return dataclasses.replace(self, why="; ".join(filter(None, [self.why, words])))

    def words(self) -> str:
        """One sentence on all of them."""
        if not self.lights:
            return self.why
        counts = Counter(light.colour for light in self.lights)
        told = ", ".join(f"{counts[colour]} {colour}" for colour in WORDS if counts[colour])
        return f"{told}{f'; {self.why}' if self.why else ''}"

    def to_frame(self) -> pd.DataFrame:
        """A row for each series: k, that of the worst stretch, the bounds, how much of it was weighed, and the verdict."""
        import pandas as pd

        columns = ("k", "worst", "bound", "tightened", "weighed", "observations", "colour", "verdict")
        rows = [{name: getattr(light, name) for name in columns} for light in self.lights]
        index = pd.Index([light.name for light in self.lights], name="series")
        return pd.DataFrame(rows, index=index, columns=list(columns))

    def __str__(self) -> str:
        lines = [f"{light.colour:>5}  {light.name}: k {light.k:.2f}, {light.verdict}" for light in self.lights[:8]]
        more = [f"       … and {len(self.lights) - 8} that are better"] if len(self.lights) > 8 else []
        return "\n".join([self.words(), *lines, *more])


class _Stretch(NamedTuple):
    """Rows of a window: nodes begin … end; `closed`: the last of them is the series' last."""

    window: Window
    begin: int
    end: int
    first: bool
    closed: bool

    def counts(self) -> tuple[int, int]:
        """The rows whose observations are weighed: from, to before."""
        return self.begin + (not self.first), self.end + self.closed

    def rows(self, length: int) -> Rows:
        """So many, padded by repeats of the last, with times from the window's start."""
        window, (low, high) = self.window, self.counts()
        at = np.minimum(np.arange(self.begin, self.begin + length), self.end)
        real = (np.arange(len(at)) + self.begin >= low) & (np.arange(len(at)) + self.begin < high)
        return Rows(
            start=jnp.asarray(window.start),
            times=jnp.asarray(window.times[at]),
            values=jnp.asarray(window.values[at]),
            mask=jnp.asarray(window.mask[at] & real[:, None]),
            first=jnp.asarray(self.first),
            input_times=jnp.asarray(window.input_times),
            inputs=jnp.asarray(window.inputs),
        )

    def start(self, layout: DataLayout) -> float:
        """When it begins, in the data's units."""
        since = float(self.window.start) + float(self.window.times[self.begin])
        return layout.scaling.origin + layout.scaling.time_scale * since

    def observed(self) -> Int[np.ndarray, " channels"]:
        """How many observations of each channel are weighed."""
        return np.sum(self.window.mask[slice(*self.counts())], axis=0)


def _stretches(windows: Window, length: int, share: int) -> Iterator[_Stretch]:
    """At most `share` of the stretches of a series' windows, spread evenly. Each is weighed from after its first node to before
    its last, and the next one begins a node before it ends; where a window ends, and sees no further, one observation is lost."""
    places: list[tuple[int, int, int]] = []
    for j, scored in enumerate(np.asarray(windows.scored).sum(axis=1)):
        nodes = int(scored) - (j == len(windows.scored) - 1)  # the last scored row of a series ends it
        cuts = np.linspace(0, nodes, -(-nodes // length) + 1).astype(int)
        places += [(j, int(a), int(b)) for a, b in pairwise(cuts)]
    chosen = np.unique(np.linspace(0, len(places) - 1, min(share, len(places))).round().astype(int))
    for j, a, b in (places[i] for i in chosen):
        window = jax.tree.map(lambda leaf, j=j: leaf[j], windows)
        begin, end = windows.margin + a, windows.margin + b
        closed = j == len(windows.scored) - 1 and end == int(np.flatnonzero(window.scored)[-1])
        beyond = not closed and end + 1 < len(window.node) and bool(window.node[end + 1])
        yield _Stretch(window, begin, end + beyond, bool(window.first) and a == 0, closed)


@compile_lightly
def _weigh(
    model: Model,
    rows: Rows,
    posterior: AbstractPosterior,
    closed: Bool[Array, ""],
    key: PRNGKeyArray,
    *,
    num_paths: int,
    rotation: bool,
) -> Float[Array, " paths"]:
    return log_weights(model, rows, posterior, num_paths=num_paths, closed=closed, rotation=rotation, key=key)


class _Plan(NamedTuple):
    """How series are cut: the windows a posterior is made for, and how many of their nodes are a stretch."""

    shape: WindowShape
    length: int

    @staticmethod
    def of(model: Model, layout: DataLayout, *, refined: bool) -> _Plan:
        shape = layout.window_shape(model)
        if not refined:
            return _Plan(shape, STRETCH)
        longest = max(min(LONGEST, layout.typical_step) / CLOSER, FINE)
        return _Plan(WindowShape(CLOSER * STRETCH, shape.lookahead, CLOSER * shape.margin, longest), CLOSER * STRETCH)


def weigh(
    model: Model,
    layout: DataLayout,
    series: Series,
    *,
    refined: bool,
    share: int = PER_SERIES,
    num_paths: int,
    key: PRNGKeyArray,
) -> Light | None:
    """The light of one series of two observed rows or more, from at most `share` stretches of it. `refined`: of the posterior by
    the model's own flow, not of the encoder's; None where that does not settle."""
    plan, found, counts = _Plan.of(model, layout, refined=refined), [], np.zeros(len(layout.channels), int)
    starts: list[float] = []
    share = share if refined else max(1, share // DEARER)
    windows = partition(series, layout.scaling, plan.shape)
    for i, stretch in enumerate(_stretches(windows, plan.length, share)):
        posterior = posterior_in(model, jax.tree.map(jnp.asarray, stretch.window), refined=refined)
        if posterior is None:
            return None
        weights = _weigh(
            model, stretch.rows(plan.length + 2), posterior, jnp.asarray(stretch.closed), jax.random.fold_in(key, i),
            num_paths=num_paths, rotation=model.rotation or refined,
        )  # fmt: skip
        found.append(belief(np.asarray(weights)))
        starts.append(stretch.start(layout))
        counts = counts + stretch.observed()
    units = float(counts @ np.log(layout.scaling.scale))  # densities in the model's units → in the data's
    return Light(
        series.name,
        tuple(one.k for one in found),
        tuple(starts),
        sum(one.bound for one in found) - units,
        sum(one.tightened for one in found) - units,
        int(counts.sum()),
        int(series.mask.sum()),
        series.when(starts[int(np.argmax([one.k for one in found]))]),
        settled=refined or not model.refined,
    )


def trust(model: Model, layout: DataLayout, data: Sequence[Series], *, num_paths: int, key: PRNGKeyArray) -> Trust:
    """The lights of several series, the worst first; of more than `IN_ALL`, some are weighed, spread evenly."""
    able = [i for i, series in enumerate(data) if series.mask.any(axis=1).sum() > 1]
    chosen = [able[i] for i in np.unique(np.linspace(0, len(able) - 1, min(len(able), IN_ALL)).round().astype(int))]
    if not chosen:
        return Trust((), "no series has two observed rows, so there is no path to weigh")
    share = min(PER_SERIES, max(1, IN_ALL // len(chosen)))

    def light(i: int) -> Light:
        ways = [True, False] if model.refined else [False]
        options = {"share": share, "num_paths": num_paths, "key": jax.random.fold_in(key, i)}
        found = (weigh(model, layout, data[i], refined=refined, **options) for refined in ways)
        return next(one for one in found if one is not None)

    lights = [light(i) for i in chosen]
    few = len(data) - len(able)
    left = [f"{few} of one observation, which has no path"] * bool(few)
    left += [f"{len(able) - len(chosen)} of {len(data)} series, to bound the time"] * (len(chosen) < len(able))
    why = f"not weighed: {', '.join(left)}" if left else ""
    return Trust(tuple(sorted(lights, key=lambda light: (-light.k, -light.worst))), why)
