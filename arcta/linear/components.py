"""What a channel may be the sum of. Each component is a linear SDE, given by the covariance of its output at two times and by the
derivatives of that in the logarithms of its parameters.

    constant  dμ = 0
    level     dμ = √q dβ
    slope     dμ = ν dt,   dν = √q dβ
    damped    dμ = ν dt,   dν = −r ν dt + √(2 r v) dβ
    rough     du = −r u dt + √(2 r v) dβ                                   Ornstein–Uhlenbeck
    smooth    u̇ = w,   dw = −r² u dt − 2 r w dt + √(4 r³ v) dβ             a critically damped oscillator
    cycle     a turning pair of rate ω, damped at rate r                   what swings, and forgets its phase
    season    turning pairs of rates 2πk/P, k = 1, 2, …, damped at rate r  a shape of period P that may change slowly
    inputs    a linear and a smooth function of known inputs

Times are in steps of the data, since the first of those that are looked at; values have unit variance.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Callable
from types import EllipsisType
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

Covariance = Float[np.ndarray, "a b"]
Values = Float[np.ndarray, " parameters"]
Slopes = Callable[[], list[Covariance]]  # computed only if asked for: forecasts do without
FREE = 9.0  # the variance of a level that nothing is known of
ON_GRID = 1e-6  # steps that a time may be off


class Points(NamedTuple):
    """Times, and the known inputs there."""

    times: Float[np.ndarray, " n"]
    inputs: Float[np.ndarray, "n inputs"]

    def since(self, start: float) -> Points:
        return Points(self.times - start, self.inputs)


class Pairs:
    """Two sets of points, and what components ask of each pair of them, computed once."""

    def __init__(self, a: Points, b: Points) -> None:
        self.a, self.b = a, b

    @functools.cached_property
    def apart(self) -> Covariance:
        return np.abs(self.a.times[:, None] - self.b.times[None, :])

    @functools.cached_property
    def both(self) -> Covariance:
        """The time both have behind them."""
        return np.minimum(self.a.times[:, None], self.b.times[None, :])

    @functools.cached_property
    def lags(self) -> tuple[Float[np.ndarray, " *lags"], Int[np.ndarray, "a b"] | EllipsisType]:
        """How far apart pairs are, and which of these each is. On a regular grid that are as many as rows, not as many as pairs."""
        steps = np.rint(self.apart)
        few = steps.size > 0 and steps.max() < 0.5 * steps.size
        if few and np.abs(self.apart - steps).max() < ON_GRID:
            return np.arange(steps.max() + 1), steps.astype(np.intp)
        return self.apart, ...


@dataclasses.dataclass(frozen=True)
class Component(abc.ABC):
    """`span`: how long the data is, which says what is slow."""

    span: float

    @property
    @abc.abstractmethod
    def prior(self) -> tuple[tuple[float, float], ...]:
        """Mean and standard deviation of the logarithm of each parameter."""

    def detail(self, step: float) -> str:
        """What tells it from others of its kind; `step`: of the data, in its unit of time."""
        return ""

    @abc.abstractmethod
    def covariance(self, pairs: Pairs, θ: Values) -> tuple[Covariance, Slopes]:
        """Between the outputs at two sets of points, and its derivatives in the logarithms of the parameters, θ, if called."""


class Stationary(Component):
    """One that has no beginning: its covariance is a function of how far apart two times are."""

    def covariance(self, pairs: Pairs, θ: Values) -> tuple[Covariance, Slopes]:
        lags, which = pairs.lags
        K, slopes = self.of_lags(lags, θ)
        return K[which], lambda: [slope[which] for slope in slopes()]

    @abc.abstractmethod
    def of_lags(
        self, apart: Float[np.ndarray, " *lags"], θ: Values
    ) -> tuple[np.ndarray, Callable[[], list[np.ndarray]]]:
        """The covariance at such lags, and its derivatives if called."""


class Constant(Component):
    @property
    def prior(self) -> tuple[tuple[float, float], ...]:
        return ((0.0, 2.0),)

    def covariance(self, pairs: Pairs, θ: Values) -> tuple[Covariance, Slopes]:
        K = np.full((len(pairs.a.times), len(pairs.b.times)), np.exp(θ[0]))
        return K, lambda: [K]


class Level(Component):
    @property
    def prior(self) -> tuple[tuple[float, float], ...]:
        return ((-3.0, 3.0),)

    def covariance(self, pairs: Pairs, θ: Values) -> tuple[Covariance, Slopes]:
        K = np.exp(θ[0]) * pairs.both
        return K, lambda: [K]


class Slope(Component):
    @property
    def prior(self) -> tuple[tuple[float, float], ...]:
        return ((-9.0, 4.0),)

    def covariance(self, pairs: Pairs, θ: Values) -> tuple[Covariance, Slopes]:
        s = pairs.both
        K = np.exp(θ[0]) * (s * s * (s / 3 + pairs.apart / 2))
        # The slope at the start, of which nothing is known.
        return K + np.outer((6 / self.span) ** 2 * pairs.a.times, pairs.b.times), lambda: [K]


class Damped(Component):
    @property
    def prior(self) -> tuple[tuple[float, float], ...]:
        return ((-7.0, 3.0), (-2.5, 1.0))

    def covariance(self, pairs: Pairs, θ: Values) -> tuple[Covariance, Slopes]:
        v, r = np.exp(θ)
        x, y, both = r * pairs.a.times[:, None], r * pairs.b.times[None, :], r * pairs.both
        ex, ey, apart = np.exp(-x), np.exp(-y), r * pairs.apart
        e = np.exp(-apart)
        K = v / r**2 * (2 * both - 1 + ex + ey - e)
        return K, lambda: [K, v / r**2 * (2 * both - x * ex - y * ey + apart * e) - 2 * K]


class Rough(Stationary):
    @property
    def prior(self) -> tuple[tuple[float, float], ...]:
        return ((-2.0, 2.0), (-1.0, 1.5))

    def of_lags(self, apart: np.ndarray, θ: Values) -> tuple[np.ndarray, Callable[[], list[np.ndarray]]]:
        x = np.exp(θ[1]) * apart
        K = np.exp(θ[0] - x)
        return K, lambda: [K, -x * K]


class Smooth(Stationary):
    @property
    def prior(self) -> tuple[tuple[float, float], ...]:
        return ((-1.0, 2.0), (-1.0, 1.5))

    def of_lags(self, apart: np.ndarray, θ: Values) -> tuple[np.ndarray, Callable[[], list[np.ndarray]]]:
        x = np.exp(θ[1]) * apart
        e = np.exp(θ[0] - x)
        return (1 + x) * e, lambda: [(1 + x) * e, -(x**2) * e]


class Cycle(Stationary):
    @property
    def prior(self) -> tuple[tuple[float, float], ...]:
        return ((-2.0, 2.0), (-3.0, 1.5), (float(np.log(2 * np.pi / 10)), 0.7))

    def of_lags(self, apart: np.ndarray, θ: Values) -> tuple[np.ndarray, Callable[[], list[np.ndarray]]]:
        x, ωτ = np.exp(θ[1]) * apart, np.exp(θ[2]) * apart
        e = np.exp(θ[0] - x)
        K = e * np.cos(ωτ)
        return K, lambda: [K, -x * K, -ωτ * e * np.sin(ωτ)]


@dataclasses.dataclass(frozen=True)
class Season(Stationary):
    """All harmonics at once, exp(−2 sin²(πτ/P)/ℓ²): ℓ says how fast they fall off."""

    period: float = 1.0

    def detail(self, step: float) -> str:
        return f"{self.period * step:.4g}"

    @property
    def prior(self) -> tuple[tuple[float, float], ...]:
        return ((-3.0, 3.5), (0.0, 1.0), (float(-np.log(self.span)) - 1.0, 1.5))

    def of_lags(self, apart: np.ndarray, θ: Values) -> tuple[np.ndarray, Callable[[], list[np.ndarray]]]:
        x = np.exp(θ[2]) * apart
        bend = (1 - np.cos(2 * np.pi / self.period * apart)) * np.exp(-2 * θ[1])
        K = np.exp(θ[0] - bend - x)
        return K, lambda: [K, 2 * bend * K, -x * K]


class Inputs(Component):
    @property
    def prior(self) -> tuple[tuple[float, float], ...]:
        return ((-2.0, 2.0), (-3.0, 2.0), (1.0, 1.0))

    def covariance(self, pairs: Pairs, θ: Values) -> tuple[Covariance, Slopes]:
        a, b = pairs.a.inputs, pairs.b.inputs
        linear = np.exp(θ[0]) * (a @ b.T)
        squares = np.sum((a[:, None, :] - b[None, :, :]) ** 2, axis=2)
        far = 0.5 * squares * np.exp(-2 * θ[2])
        bent = np.exp(θ[1] - far)
        return linear + bent, lambda: [linear, bent, 2 * far * bent]
