"""A sum of components and noise: its evidence on some observations, the parameters that are most probable, and what it says of
other points. Dense algebra: exact, whatever the times, gaps and missing values."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float

from .components import FREE, Component, Covariance, Pairs, Points, Slopes

NOISE_PRIOR = (-3.0, 3.0)
JITTER = 1e-8
FURTHEST = (
    2.0  # standard deviations that a draw of the parameters may be away: beyond, their posterior is no longer normal
)
Piece = tuple[Points, Float[np.ndarray, " n"]]


@dataclasses.dataclass(frozen=True)
class Normal:
    """A joint Gaussian: mean and covariance at some points, without the noise."""

    mean: Float[np.ndarray, " n"]
    covariance: Covariance


@dataclasses.dataclass(frozen=True)
class LinearModel:
    """Components, and the logarithms of their parameters, the noise's variance first; `root` R: their covariance is R Rᵀ."""

    components: tuple[Component, ...]
    θ: Float[np.ndarray, " parameters"]
    evidence: float = -np.inf
    root: Float[np.ndarray, "parameters parameters"] | None = None

    @property
    def noise(self) -> float:
        return float(np.exp(self.θ[0]))

    def draw_pair(self, rng: np.random.Generator) -> tuple[LinearModel, LinearModel]:
        """Two models with parameters from their posterior, on opposite sides of its mean."""
        if self.root is None:
            return self, self
        away = self.root @ np.clip(rng.standard_normal(len(self.θ)), -FURTHEST, FURTHEST)
        return dataclasses.replace(self, θ=self.θ + away), dataclasses.replace(self, θ=self.θ - away)

    def covariance(self, pairs: Pairs) -> tuple[Covariance, Slopes]:
        """Of the signal, and its derivatives."""
        total, slopes, at = np.full((len(pairs.a.times), len(pairs.b.times)), FREE), [], 1
        for component in self.components:
            count = len(component.prior)
            K, changes = component.covariance(pairs, self.θ[at : at + count])
            total += K
            at += count
            slopes.append(changes)
        return total, lambda: [slope for changes in slopes for slope in changes()]

    def parts_given(self, seen: Piece, asked: Points) -> list[Float[np.ndarray, " asked"]]:
        """The mean of each component at the points asked for, after some observations; the unknown constant is the first's."""
        from scipy.linalg import cho_solve

        points, y = seen
        start = points.times[0] - 1
        points, asked = points.since(start), asked.since(start)
        α = cho_solve((_root(self.covariance(Pairs(points, points))[0], self.noise), True), y)
        means, at, across = [], 1, Pairs(asked, points)
        for component in self.components:
            count = len(component.prior)
            means.append(component.covariance(across, self.θ[at : at + count])[0] @ α)
            at += count
        means[0] = means[0] + FREE * np.sum(α)
        return means

    def given(self, seen: Piece, asked: Points) -> Normal:
        """The signal at the points asked for, after some observations."""
        return self.after(seen)(asked)

    def after(self, seen: Piece) -> Callable[[Points], Normal]:
        """What is known of the signal at any points, after some observations."""
        from scipy.linalg import solve_triangular

        points, y = seen
        start = points.times[0] - 1 if len(y) else 0.0
        points = points.since(start)
        root = _root(self.covariance(Pairs(points, points))[0], self.noise)
        news = solve_triangular(root, y, lower=True)

        def at(asked: Points) -> Normal:
            asked = asked.since(start)
            across = solve_triangular(root, self.covariance(Pairs(points, asked))[0], lower=True)
            own = self.covariance(Pairs(asked, asked))[0] - across.T @ across
            return Normal(across.T @ news, own)

        return at


def _root(K: Covariance, noise: float) -> Covariance:
    from scipy.linalg import cholesky

    whole = K + (noise + JITTER * (1 + np.trace(K) / max(len(K), 1))) * np.eye(len(K))
    return cholesky(whole, lower=True)


def invert(root: Covariance) -> Covariance:
    """(R Rᵀ)⁻¹, R lower triangular."""
    from scipy.linalg import get_lapack_funcs

    (potri,) = get_lapack_funcs(("potri",), (root,))
    half = np.tril(potri(root, lower=1)[0])
    return half + np.tril(half, -1).T


def evidence(model: LinearModel, piece: Piece) -> tuple[float, Float[np.ndarray, " parameters"]]:
    """log p(y) and its slope."""
    points, y = piece
    points = points.since(points.times[0] - 1)
    return _evidence(model, Pairs(points, points), y)


def _evidence(
    model: LinearModel, pairs: Pairs, y: Float[np.ndarray, " n"]
) -> tuple[float, Float[np.ndarray, " parameters"]]:
    K, slopes = model.covariance(pairs)
    root = _root(K, model.noise)
    inverse = invert(root)
    α = inverse @ y
    value = -0.5 * float(y @ α) - float(np.sum(np.log(np.diag(root)))) - 0.5 * len(y) * np.log(2 * np.pi)
    pull = np.outer(α, α) - inverse
    return value, np.array([0.5 * model.noise * np.trace(pull), *(0.5 * np.vdot(pull, slope) for slope in slopes())])


class _Posterior:
    """−log p(θ, y) and its slope, all pieces and the prior."""

    def __init__(self, components: Sequence[Component], pieces: Sequence[Piece]):
        self.components = tuple(components)
        early = [points.since(points.times[0] - 1) for points, _ in pieces]
        self.pieces = [(Pairs(points, points), y) for points, (_, y) in zip(early, pieces, strict=True)]
        prior = np.array([NOISE_PRIOR, *(pair for component in components for pair in component.prior)])
        self.mean, self.spread = prior.T

    def __call__(self, θ: Float[np.ndarray, " parameters"]) -> tuple[float, Float[np.ndarray, " parameters"]]:
        from scipy.linalg import LinAlgError

        model, away = LinearModel(self.components, θ), (θ - self.mean) / self.spread
        try:
            found = [_evidence(model, pairs, y) for pairs, y in self.pieces]
        except LinAlgError:
            return 1e10, np.zeros_like(θ)
        value, slope = sum(v for v, _ in found), sum(s for _, s in found)
        return 0.5 * float(away @ away) - value, away / self.spread - slope

    def curvature(self, θ: Float[np.ndarray, " parameters"]) -> Float[np.ndarray, "parameters parameters"]:
        """By differences of the slope."""
        h = 1e-3
        rows = [(self(θ + h * e)[1] - self(θ - h * e)[1]) / (2 * h) for e in np.eye(len(θ))]
        return 0.5 * (np.array(rows) + np.array(rows).T)


def start(components: Sequence[Component]) -> LinearModel:
    """The model before anything was seen."""
    return LinearModel(tuple(components), _Posterior(components, ()).mean)


def learn(model: LinearModel, pieces: Sequence[Piece], steps: int) -> LinearModel:
    """Closer to the most probable parameters given all pieces, each a stretch of observations of unit variance."""
    from scipy.optimize import minimize

    posterior = _Posterior(model.components, pieces)
    mean, spread = posterior.mean, posterior.spread
    bounds = list(zip(mean - 5 * spread, mean + 5 * spread, strict=True))
    best = minimize(posterior, model.θ, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": steps})
    return dataclasses.replace(model, θ=best.x, evidence=-float(best.fun) - len(mean))


def conclude(model: LinearModel, pieces: Sequence[Piece]) -> LinearModel:
    """With the posterior of the parameters, a normal distribution around the most probable ones, and the evidence that goes with it
    (Laplace)."""
    posterior = _Posterior(model.components, pieces)
    values, vectors = np.linalg.eigh(posterior.curvature(model.θ))
    values = np.maximum(values, posterior.spread.max() ** -2)  # no parameter is known less than before
    volume = -0.5 * float(np.sum(np.log(values))) - float(np.sum(np.log(posterior.spread)))
    return dataclasses.replace(model, evidence=float(volume - posterior(model.θ)[0]), root=vectors / np.sqrt(values))
