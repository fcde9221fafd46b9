"""Scales on which a channel may be additive: as it is, its root, its logarithm. Exact there and back, with the Jacobian that makes
likelihoods on different scales comparable."""

from __future__ import annotations

import dataclasses

import numpy as np
from jaxtyping import Float

from ..data.moments import moments

Values = Float[np.ndarray, "*shape"]


@dataclasses.dataclass(frozen=True)
class Scale:
    """y = (g(x) − shift)/spread, g the `form`: identity, root or log. `lowest`: what the channel is never below (None: there is
    none). `least`: what counts as zero, half of the smallest positive value that was seen: at zero itself g is infinitely steep."""

    form: str
    shift: float
    spread: float
    lowest: float | None = None
    least: float = 0.0

    @staticmethod
    def fit(form: str, x: Float[np.ndarray, " n"]) -> Scale:
        positive = x[x > 0]
        least = max(0.5 * float(positive.min()), float(np.nextafter(0, 1))) if positive.size else 1.0
        plain = Scale(form, 0.0, 1.0, 0.0 if x.min() >= 0 else None, least)
        found = moments(plain.forth(x)[:, None], np.ones((len(x), 1), bool))
        return dataclasses.replace(plain, shift=float(found.mean[0]), spread=float(found.unit[0]))

    @staticmethod
    def possible(x: Float[np.ndarray, " n"]) -> list[str]:
        """The forms that fit such values, where they differ enough to tell."""
        if x.min() < 0 or x.max() <= 1.3 * x.min():
            return ["identity"]
        return ["identity", "root", "log"] if x.min() > 0 else ["identity", "root"]

    def forth(self, x: Values) -> Values:
        """Values that do not fit (a zero, where a logarithm was chosen before there was one) count as the least that does."""
        x = np.asarray(x, float)
        g = x if self.form == "identity" else np.sqrt(np.maximum(x, 0.0))
        g = np.log(np.maximum(x, self.least)) if self.form == "log" else g
        return (g - self.shift) / self.spread

    def back(self, y: Values) -> Values:
        g = self.shift + self.spread * np.asarray(y, float)
        if self.form == "log":
            return np.exp(np.minimum(g, 700.0))
        x = g if self.form == "identity" else np.maximum(g, 0.0) ** 2
        return x if self.lowest is None else np.maximum(x, self.lowest)

    def log_slope(self, x: Values) -> Values:
        """log dy/dx."""
        if self.form == "identity":
            return np.full(np.shape(x), -np.log(self.spread))
        x = np.maximum(np.asarray(x, float), self.least)
        steep = np.log(x) if self.form == "log" else np.log(2 * np.sqrt(x))
        return -steep - np.log(self.spread)
