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
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

Covariance = Float[np.ndarray, "a b"]
Values = Float[np.ndarray, " parameters"]
Slopes = Callable[[], list[Covariance]]  # computed only if asked for: forecasts do without
FREE = 9.0  # the variance of a level that nothing is known of


class Points(NamedTuple):
    """Times, and the known inputs there."""

    times: Float[np.ndarray, " n"]
    inputs: Float[np.ndarray, "n inputs"]

    def since(self, start: float) -> Points:
        return Points(self.times - start, self.inputs)


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
    def covariance(self, a: Points, b: Points, θ: Values) -> tuple[Covariance, Slopes]:
        """Between the outputs at two sets of points, and its derivatives in the logarithms of the parameters, θ, if called."""


def _apart(a: Points, b: Points) -> Covariance:
    return np.abs(a.times[:, None] - b.times[None, :])


def _both(a: Points, b: Points) -> Covariance:
    """The time both have behind them."""
    return np.minimum(a.times[:, None], b.times[None, :])


def _cosine(a: Points, b: Points, rate: float) -> Covariance:
    """cos(ω (a − b)), by the sums of angles: one sine for each time, not for each pair."""
    x, y = rate * a.times, rate * b.times
    return np.outer(np.cos(x), np.cos(y)) + np.outer(np.sin(x), np.sin(y))


class Constant(Component):
    @property
    def prior(self) -> tuple[tuple[float, float], ...]:
        return ((0.0, 2.0),)

    def covariance(self, a: Points, b: Points, θ: Values) -> tuple[Covariance, Slopes]:
        K = np.full((len(a.times), len(b.times)), np.exp(θ[0]))
        return K, lambda: [K]


class Level(Component):
    @property
    def prior(self) -> tuple[tuple[float, float], ...]:
        return ((-3.0, 3.0),)

    def covariance(self, a: Points, b: Points, θ: Values) -> tuple[Covariance, Slopes]:
        K = np.exp(θ[0]) * _both(a, b)
        return K, lambda: [K]


class Slope(Component):
    @property
    def prior(self) -> tuple[tuple[float, float], ...]:
        return ((-9.0, 4.0),)

    def covariance(self, a: Points, b: Points, θ: Values) -> tuple[Covariance, Slopes]:
        s = _both(a, b)
        K = np.exp(θ[0]) * (s**3 / 3 + s**2 * _apart(a, b) / 2)
        free = (
            (6 / self.span) ** 2 * a.times[:, None] * b.times[None, :]
        )  # a slope from the start that nothing is known of
        return K + free, lambda: [K]


class Damped(Component):
    @property
    def prior(self) -> tuple[tuple[float, float], ...]:
        return ((-7.0, 3.0), (-2.5, 1.0))

    def covariance(self, a: Points, b: Points, θ: Values) -> tuple[Covariance, Slopes]:
        v, r = np.exp(θ)
        x, y, both = r * a.times[:, None], r * b.times[None, :], r * _both(a, b)
        ex, ey, apart = np.exp(-x), np.exp(-y), np.abs(x - y)
        e = np.exp(-apart)
        K = v / r**2 * (2 * both - 1 + ex + ey - e)
        return K, lambda: [K, v / r**2 * (2 * both - x * ex - y * ey + apart * e) - 2 * K]


class Rough(Component):
    @property
    def prior(self) -> tuple[tuple[float, float], ...]:
        return ((-2.0, 2.0), (-1.0, 1.5))

    def covariance(self, a: Points, b: Points, θ: Values) -> tuple[Covariance, Slopes]:
        x = np.exp(θ[1]) * _apart(a, b)
        K = np.exp(θ[0] - x)
        return K, lambda: [K, -x * K]


class Smooth(Component):
    @property
    def prior(self) -> tuple[tuple[float, float], ...]:
        return ((-1.0, 2.0), (-1.0, 1.5))

    def covariance(self, a: Points, b: Points, θ: Values) -> tuple[Covariance, Slopes]:
        x = np.exp(θ[1]) * _apart(a, b)
        e = np.exp(θ[0] - x)
        return (1 + x) * e, lambda: [(1 + x) * e, -(x**2) * e]


class Cycle(Component):
    @property
    def prior(self) -> tuple[tuple[float, float], ...]:
        return ((-2.0, 2.0), (-3.0, 1.5), (float(np.log(2 * np.pi / 10)), 0.7))

    def covariance(self, a: Points, b: Points, θ: Values) -> tuple[Covariance, Slopes]:
        apart = _apart(a, b)
        x, ωτ = np.exp(θ[1]) * apart, np.exp(θ[2]) * apart
        e = np.exp(θ[0] - x)
        K = e * _cosine(a, b, float(np.exp(θ[2])))
        return K, lambda: [K, -x * K, -ωτ * e * np.sin(ωτ)]


@dataclasses.dataclass(frozen=True)
class Season(Component):
    """All harmonics at once, exp(−2 sin²(πτ/P)/ℓ²): ℓ says how fast they fall off."""

    period: float = 1.0

    def detail(self, step: float) -> str:
        return f"{self.period * step:.4g}"

    @property
    def prior(self) -> tuple[tuple[float, float], ...]:
        return ((-1.0, 2.0), (0.0, 1.0), (float(-np.log(self.span)) - 1.0, 1.5))

    def covariance(self, a: Points, b: Points, θ: Values) -> tuple[Covariance, Slopes]:
        apart = _apart(a, b)
        x = np.exp(θ[2]) * apart
        bend = (1 - _cosine(a, b, 2 * np.pi / self.period)) * np.exp(-2 * θ[1])
        K = np.exp(θ[0] - bend - x)
        return K, lambda: [K, 2 * bend * K, -x * K]


class Inputs(Component):
    @property
    def prior(self) -> tuple[tuple[float, float], ...]:
        return ((-2.0, 2.0), (-3.0, 2.0), (1.0, 1.0))

    def covariance(self, a: Points, b: Points, θ: Values) -> tuple[Covariance, Slopes]:
        linear = np.exp(θ[0]) * (a.inputs @ b.inputs.T)
        squares = np.sum((a.inputs[:, None, :] - b.inputs[None, :, :]) ** 2, axis=2)
        far = 0.5 * squares * np.exp(-2 * θ[2])
        bent = np.exp(θ[1] - far)
        return linear + bent, lambda: [linear, bent, 2 * far * bent]
