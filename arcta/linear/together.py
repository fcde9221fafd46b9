"""Channels that go together: y(t) = Σⱼ Lⱼ uⱼ(t) + noise, where uⱼ are independent copies of component j, one for each channel; the
matrices Lⱼ say how much of them the channels share. What is seen of one channel then tells of the others, at the same time and at
times nearby. A linear SDE like its components; dense algebra over the cells (row, channel) that were observed."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, Int

from .components import Component, Constant, Covariance, Inputs, Pairs, Points, Rough, Season, Slopes, Smooth
from .learn import Normal, invert

JITTER = 1e-6
STEPS = 60  # of the optimiser
NOISE_PRIOR = (-4.0, 3.0)
RATES = ((Rough, 0.0), (Smooth, -1.5), (Rough, -4.0))  # fast, smooth, slow: where learning starts
Cells = tuple[Int[np.ndarray, " _"], Int[np.ndarray, " _"]]  # row and channel of each


@dataclasses.dataclass(frozen=True)
class Panel:
    """Rows of all channels, on their scales; `seen` marks the cells that were observed."""

    points: Points
    values: Float[np.ndarray, "rows channels"]
    seen: Bool[np.ndarray, "rows channels"]

    @functools.cached_property
    def pairs(self) -> Pairs:
        return Pairs(self.points, self.points)

    def cells(self) -> tuple[Int[np.ndarray, " cells"], Int[np.ndarray, " cells"], Float[np.ndarray, " cells"]]:
        """Row, channel and value of each observation."""
        row, channel = np.nonzero(self.seen)
        return row, channel, self.values[row, channel]


@dataclasses.dataclass(frozen=True)
class Together:
    """Components of unit variance with the logarithms of their other parameters, one after the other, in `θ`; `loadings`: Lⱼ;
    `noise`: the logarithms of the channels' noise variances; `evidence`: per observation it was learned from, less a nat for each
    parameter."""

    components: tuple[Component, ...]
    θ: Float[np.ndarray, " parameters"]
    loadings: Float[np.ndarray, "components channels channels"]
    noise: Float[np.ndarray, " channels"]
    evidence: float = -np.inf

    def over_time(self, pairs: Pairs) -> tuple[list[Covariance], list[Slopes]]:
        """The covariance of each component between two sets of points, and its derivatives in the logarithms of all its
        parameters, the variance first."""
        kernels, slopes, at = [], [], 0
        for component in self.components:
            count = len(component.prior) - 1
            K, changes = component.covariance(pairs, np.concatenate([[0.0], self.θ[at : at + count]]))
            kernels.append(K)
            slopes.append(changes)
            at += count
        return kernels, slopes

    @property
    def shared(self) -> Float[np.ndarray, "components channels channels"]:
        """Bⱼ = Lⱼ Lⱼᵀ: how the channels go together in each component."""
        return self.loadings @ self.loadings.transpose(0, 2, 1)

    def given(self, panel: Panel, asked: Points) -> Normal:
        """The signals of all channels at the points asked for, row by row, after what was seen."""
        from scipy.linalg import solve_triangular

        row, channel, y = panel.cells()
        everywhere = np.arange(len(self.noise))
        rows, channels = np.repeat(np.arange(len(asked.times)), len(everywhere)), np.tile(everywhere, len(asked.times))
        own = self.between(Pairs(asked, asked), (rows, channels), (rows, channels))
        if not len(y):
            return Normal(np.zeros(len(own)), own)
        across = self.between(Pairs(asked, panel.points), (rows, channels), (row, channel))
        root = _root(self.between(panel.pairs, (row, channel), (row, channel)), np.exp(self.noise)[channel])
        known = solve_triangular(root, np.column_stack([across.T, y]), lower=True)
        own = own - known[:, :-1].T @ known[:, :-1]
        return Normal(known[:, :-1].T @ known[:, -1], 0.5 * (own + own.T))

    def between(self, pairs: Pairs, one: Cells, other: Cells) -> Covariance:
        """The covariance between cells at some points and cells at others."""
        kernels = self.over_time(pairs)[0]
        parts = (
            k[np.ix_(one[0], other[0])] * B[np.ix_(one[1], other[1])] for k, B in zip(kernels, self.shared, strict=True)
        )
        return functools.reduce(np.add, parts)


def _root(K: Covariance, noise: Float[np.ndarray, " cells"]) -> Covariance:
    from scipy.linalg import cholesky

    return cholesky(K + np.diag(noise + JITTER * (1 + np.trace(K) / len(K))), lower=True)


def likelihood(model: Together, panel: Panel) -> tuple[float, Together]:
    """log p(y) and its slope, in the shape of a model. The covariance of all cells is one matrix product, and so are the slopes;
    cells that were not seen are left out in between."""
    _, channel, y = panel.cells()
    kernels, changes = model.over_time(panel.pairs)
    over_time = np.stack([k.ravel() for k in kernels])
    over_channels = model.shared.reshape(len(kernels), -1)
    seen = np.ix_(*2 * [np.flatnonzero(panel.seen)])
    noise = np.exp(model.noise)[channel]
    root = _root(_by_cells(over_time.T @ over_channels, panel.seen.shape)[seen], noise)
    inverse = invert(root)
    α = inverse @ y
    value = -0.5 * float(y @ α) - float(np.sum(np.log(np.diag(root)))) - 0.5 * len(y) * np.log(2 * np.pi)
    pull = 0.5 * (np.outer(α, α) - inverse)
    everywhere = np.zeros(2 * [panel.seen.size])
    everywhere[seen] = pull
    pulls = _by_pairs(everywhere, panel.seen.shape)
    loadings = 2 * (over_time @ pulls).reshape(model.loadings.shape) @ model.loadings
    in_time = pulls @ over_channels.T
    θ = [in_time[:, j] @ change.ravel() for j, slopes in enumerate(changes) for change in slopes()[1:]]
    level = np.bincount(channel, np.diag(pull) * noise, minlength=len(model.noise))
    return value, Together(model.components, np.array(θ), loadings, level)


def _by_cells(M: Float[np.ndarray, "pairs couples"], shape: tuple[int, ...]) -> Covariance:
    """From (row, row) × (channel, channel) to (row, channel) × (row, channel)."""
    rows, channels = shape
    return M.reshape(rows, rows, channels, channels).transpose(0, 2, 1, 3).reshape(rows * channels, -1)


def _by_pairs(M: Covariance, shape: tuple[int, ...]) -> Float[np.ndarray, "pairs couples"]:
    """And back."""
    rows, channels = shape
    return M.reshape(rows, channels, rows, channels).transpose(0, 2, 1, 3).reshape(rows**2, -1)


def components_for(span: float, periods: Sequence[float], inputs: int) -> tuple[Component, ...]:
    """A constant, something fast, something smooth, something slow, and the seasons and inputs there are."""
    always = [Constant(span), *(kind(span) for kind, _ in RATES)]
    return (*always, *(Season(span, period) for period in periods), *([Inputs(span)] if inputs else []))


def size_of(components: Sequence[Component], channels: int) -> int:
    """How many parameters there are to learn."""
    return sum(len(component.prior) - 1 for component in components) + len(components) * channels**2 + channels


def _start(components: tuple[Component, ...], panels: Sequence[Panel]) -> Together:
    """Before learning: every component shares what the channels' covariance says, in equal parts."""
    θ = [rate for _, rate in RATES]
    θ += [mean for component in components[1 + len(RATES) :] for mean, _ in component.prior[1:]]
    values, vectors = np.linalg.eigh(_covariance_of_channels(panels))
    root = vectors * np.sqrt(np.maximum(values, 1e-3) / len(components))
    return Together(components, np.array(θ), np.stack([root] * len(components)), np.full(len(root), NOISE_PRIOR[0]))


def _covariance_of_channels(panels: Sequence[Panel]) -> Float[np.ndarray, "channels channels"]:
    """From the rows that both of a pair were seen in."""
    values = np.concatenate([np.where(panel.seen, panel.values, 0.0) for panel in panels])
    seen = np.concatenate([panel.seen for panel in panels]).astype(float)
    return (values.T @ values) / np.maximum(seen.T @ seen, 1.0)


def learn(components: tuple[Component, ...], panels: Sequence[Panel]) -> Together:
    """The most probable parameters given all panels."""
    from scipy.linalg import LinAlgError
    from scipy.optimize import minimize

    model = _start(components, panels)
    shape, channels = model.loadings.shape, len(model.noise)
    prior = np.array([pair for component in components for pair in component.prior[1:]]).reshape(-1, 2)
    centre = np.concatenate([prior[:, 0], np.zeros(model.loadings.size), np.full(channels, NOISE_PRIOR[0])])
    # All elements of L together give every channel a variance of about one; each may be twice as large as that needs.
    loading = 2 / np.sqrt(len(components) * channels)
    spread = np.concatenate([prior[:, 1], np.full(model.loadings.size, loading), np.full(channels, NOISE_PRIOR[1])])
    observations = sum(int(panel.seen.sum()) for panel in panels)

    def unpack(flat: Float[np.ndarray, " all"]) -> Together:
        θ, loadings, noise = np.split(flat, [len(prior), len(prior) + model.loadings.size])
        return Together(components, θ, loadings.reshape(shape), noise)

    def pack(one: Together) -> Float[np.ndarray, " all"]:
        return np.concatenate([one.θ, one.loadings.ravel(), one.noise])

    def loss(flat: Float[np.ndarray, " all"]) -> tuple[float, Float[np.ndarray, " all"]]:
        away = (flat - centre) / spread
        try:
            found = [likelihood(unpack(flat), panel) for panel in panels]
        except LinAlgError:
            return 1e10, np.zeros_like(flat)
        value, slope = sum(v for v, _ in found), sum(pack(s) for _, s in found)
        return (0.5 * float(away @ away) - value) / observations, (away / spread - slope) / observations

    bounds = list(zip(centre - 5 * spread, centre + 5 * spread, strict=True))
    best = minimize(loss, pack(model), jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": STEPS})
    return dataclasses.replace(unpack(best.x), evidence=-float(best.fun) - len(best.x) / observations)
