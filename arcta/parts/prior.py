"""Uncertain parameters: a prior, a variational posterior of the same family, reparametrised draws and the KL.

    KL(q ‖ p) = Σ log σ̃ − log σ − ½ + (σ² + (μ − μ̃)²) / 2σ̃²      (Normal in θ; LogNormal is Normal in log θ)

`Known` and `Learned` are the two degenerate cases (a constant, a point estimate), so that whoever needs a parameter asks
for `sample`, `kl` and `quantile` whatever it is.
"""

from __future__ import annotations

import abc
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ..runtime.host import ArrayLike, array

Numbers = ArrayLike
FALL = (
    0.1  # the longest step of `climb` downwards: a noise falls no faster than other parts learn to explain what it did
)
RISE = 1.0  # and upwards


class Parameter(eqx.Module):
    """What every parameter can do."""

    @abc.abstractmethod
    def sample(self, *, key: PRNGKeyArray) -> Float[Array, ...]:
        """A reparametrised draw."""

    @abc.abstractmethod
    def kl(self) -> Float[Array, ""]:
        """KL(q ‖ p)."""

    @abc.abstractmethod
    def quantile(self, probability: float | Array) -> Float[Array, ...]:
        """Of the posterior."""

    def prior_quantile(self, probability: float | Array) -> Float[Array, ...] | None:
        """Of the prior, if there is one that is fixed."""
        return None

    def harmonic(self) -> Float[Array, ...]:
        """1 / E (1/θ), of a positive one."""
        return self.quantile(0.5)

    def started_at(self, median: Float[np.ndarray, ...]) -> Parameter:
        """With its median there, if that is where a reading of the data may put it."""
        return self

    def coordinates(self) -> Coordinates | None:
        """The posterior in coordinates that range over all numbers; none if there is nothing to learn."""
        return None

    def moved(self, mean: Float[Array, ...], std: Float[Array, ...]) -> Parameter:
        """With that posterior in those coordinates."""
        return self

    def value_at(self, x: Float[Array, ...]) -> Float[Array, ...]:
        """The parameter at those coordinates."""
        return x

    def coordinates_of(self, value: Float[Array, ...]) -> Float[Array, ...]:
        """And back."""
        return value

    def approach(self, mean: Float[Array, ...], information: Float[Array, ...], rate: Float[Array, ...]) -> Parameter:
        """Moved by `rate` to the posterior that follows from what the data says in those coordinates, N(mean, 1/information), and
        the prior."""
        here = self.coordinates()
        if here is None:
            return self
        precision = information + here.prior_precision
        best = (information * mean + here.prior_precision * here.prior_mean) / jnp.maximum(precision, 1e-12)
        std = jax.lax.rsqrt(jnp.maximum(precision, 1e-12))
        return self.moved(here.mean + rate * (best - here.mean), std)

    def climb(self, slope: Float[Array, " n"], information: Float[Array, "n n"], rate: Float[Array, ""]) -> Parameter:
        """Moved by `rate` of a Newton step up a log-likelihood and the prior, some way at most; the posterior's width follows."""
        here = self.coordinates()
        if here is None:
            return self
        precision = information + jnp.diag(here.prior_precision + 1e-6)
        scale = jax.lax.rsqrt(jnp.diagonal(precision))
        inverse = jnp.linalg.inv(precision * scale[:, None] * scale)
        step = scale * (inverse @ (scale * (slope + here.prior_precision * (here.prior_mean - here.mean))))
        std = scale * jnp.sqrt(jnp.diagonal(inverse))
        return self.moved(here.mean + rate * jnp.clip(step, -FALL, RISE), std)


class Coordinates(NamedTuple):
    """A mean, and a prior's mean and precision (0: there is none)."""

    mean: Float[Array, ...]
    prior_mean: Float[Array, ...]
    prior_precision: Float[Array, ...]


class Normal(Parameter):
    """A real parameter, posterior N(μ, σ²) against a prior N(μ̃, σ̃²).

    **Arguments:** the prior's `mean` and `std`; where the posterior starts (default: at the prior's mean, with a tenth
    of its standard deviation).
    """

    mean: Float[Array, ...]
    log_std: Float[Array, ...]
    prior_mean: Float[Array, ...]
    prior_std: Float[Array, ...]

    def __init__(self, mean: Numbers, std: Numbers, *, start: Numbers | None = None, start_std: Numbers | None = None):
        prior_mean, prior_std = np.broadcast_arrays(np.asarray(mean, float), np.asarray(std, float))
        self.prior_mean, self.prior_std = array(prior_mean), array(prior_std)
        self.mean = array(np.broadcast_to(np.asarray(mean if start is None else start), prior_mean.shape))
        spread = 0.1 * prior_std if start_std is None else start_std
        self.log_std = array(np.broadcast_to(np.log(np.asarray(spread)), prior_mean.shape))

    def sample(self, *, key: PRNGKeyArray) -> Float[Array, ...]:
        return self.mean + jnp.exp(self.log_std) * jax.random.normal(key, self.mean.shape, self.mean.dtype)

    def kl(self) -> Float[Array, ""]:
        prior_mean, prior_std = jax.lax.stop_gradient((self.prior_mean, self.prior_std))
        distance = (jnp.exp(2 * self.log_std) + (self.mean - prior_mean) ** 2) / (2 * prior_std**2)
        return jnp.sum(jnp.log(prior_std) - self.log_std - 0.5 + distance)

    def quantile(self, probability: float | Array) -> Float[Array, ...]:
        return self.mean + jnp.exp(self.log_std) * jax.scipy.stats.norm.ppf(probability)

    def prior_quantile(self, probability: float | Array) -> Float[Array, ...]:
        return self.prior_mean + self.prior_std * jax.scipy.stats.norm.ppf(probability)

    def coordinates(self) -> Coordinates:
        return Coordinates(self.mean, self.prior_mean, self.prior_std**-2)

    def moved(self, mean: Float[Array, ...], std: Float[Array, ...]) -> Normal:
        return eqx.tree_at(lambda p: (p.mean, p.log_std), self, (mean, jnp.log(std)))


class LogNormal(Parameter):
    """A positive parameter:  log θ ~ N(μ, σ²), against a prior of the same form.

    **Arguments:** the prior's `median`, and `spread`, the standard deviation of log θ; where the posterior starts
    (default: at the prior's median, with a tenth of its spread).

    !!! example

        >>> import arcta
        >>> float(arcta.LogNormal(median=10.0, spread=1.0, start=10.0, start_spread=1.0).kl())
        0.0
    """

    log: Normal

    def __init__(
        self,
        median: Numbers,
        spread: Numbers,
        *,
        start: Numbers | None = None,
        start_spread: Numbers | None = None,
    ):
        log_start = None if start is None else np.log(np.asarray(start, float))
        self.log = Normal(np.log(np.asarray(median, float)), spread, start=log_start, start_std=start_spread)

    def sample(self, *, key: PRNGKeyArray) -> Float[Array, ...]:
        return jnp.exp(self.log.sample(key=key))

    def kl(self) -> Float[Array, ""]:
        return self.log.kl()

    def quantile(self, probability: float | Array) -> Float[Array, ...]:
        return jnp.exp(self.log.quantile(probability))

    def prior_quantile(self, probability: float | Array) -> Float[Array, ...]:
        return jnp.exp(self.log.prior_quantile(probability))

    def harmonic(self) -> Float[Array, ...]:
        return jnp.exp(self.log.mean - 0.5 * jnp.exp(2 * self.log.log_std))

    def started_at(self, median: Float[np.ndarray, ...]) -> LogNormal:
        return eqx.tree_at(lambda p: p.log.mean, self, array(np.log(median)))

    def coordinates(self) -> Coordinates:
        return self.log.coordinates()

    def moved(self, mean: Float[Array, ...], std: Float[Array, ...]) -> LogNormal:
        return eqx.tree_at(lambda p: p.log, self, self.log.moved(mean, std))

    def value_at(self, x: Float[Array, ...]) -> Float[Array, ...]:
        return jnp.exp(x)

    def coordinates_of(self, value: Float[Array, ...]) -> Float[Array, ...]:
        return jnp.log(value)


class TruncatedNormal(LogNormal):
    """A positive parameter with a prior N(mean, std²) that is cut off at zero; the posterior is log-normal.

    !!! example

        >>> import arcta
        >>> round(float(arcta.TruncatedNormal(mean=1.0, std=0.5).prior_quantile(0.5)), 2)
        1.01
    """

    prior_mean: Float[Array, ...]
    prior_std: Float[Array, ...]

    def __init__(self, mean: Numbers, std: Numbers, *, start: Numbers | None = None):
        centre, spread = np.broadcast_arrays(np.asarray(mean, float), np.asarray(std, float))
        begin = np.where(centre > 0, centre, spread) if start is None else start
        super().__init__(begin, 1.0)
        self.prior_mean, self.prior_std = array(centre), array(spread)

    def _prior(self) -> tuple[Array, Array]:
        return jax.lax.stop_gradient((self.prior_mean, self.prior_std))

    def _moments(self) -> tuple[Array, Array]:
        """E θ and E θ²."""
        variance = jnp.exp(2 * self.log.log_std)
        return jnp.exp(self.log.mean + 0.5 * variance), jnp.exp(2 * (self.log.mean + variance))

    def kl(self) -> Float[Array, ""]:
        (mean, std), (first, second) = self._prior(), self._moments()
        distance = 0.5 * (second - 2 * mean * first + mean**2) / std**2
        logs = jnp.log(std) + jax.scipy.stats.norm.logcdf(mean / std) - self.log.log_std - self.log.mean - 0.5
        return jnp.sum(distance + logs)

    def prior_quantile(self, probability: float | Array) -> Float[Array, ...]:
        mean, std = self._prior()
        below = jax.scipy.stats.norm.cdf(-mean / std)
        return mean + std * jax.scipy.stats.norm.ppf(below + probability * (1 - below))

    def coordinates(self) -> Coordinates:
        """The prior of log θ as a parabola, where the posterior is; bent no less than where θ is the prior's mean."""
        (mean, std), (first, second) = self._prior(), self._moments()
        slope = 1 - (second - mean * first) / std**2
        precision = jnp.maximum(2 * second - mean * first, second) / std**2
        return Coordinates(self.log.mean, self.log.mean + slope / precision, precision)


class Weights(Parameter):
    """A matrix of weights N(μ, σ²) against N(0, τ²), with τ learned beside them (one, or one for each column), so that what
    the data does not ask for goes back to zero at no cost."""

    mean: Float[Array, "out_size in_size"]
    log_std: Float[Array, "out_size in_size"]
    log_prior_std: Float[Array, ...]

    def __init__(
        self, out_size: int, in_size: int, *, prior_std: float = 0.1, start_std: float = 0.01, by_column: bool = False
    ):
        self.mean = array(np.zeros((out_size, in_size)))
        self.log_std = array(np.full((out_size, in_size), np.log(start_std)))
        self.log_prior_std = array(np.full((in_size,) if by_column else (), np.log(prior_std)))

    def sample(self, *, key: PRNGKeyArray) -> Float[Array, "out_size in_size"]:
        return self.mean + jnp.exp(self.log_std) * jax.random.normal(key, self.mean.shape, self.mean.dtype)

    def kl(self) -> Float[Array, ""]:
        distance = 0.5 * (jnp.exp(2 * self.log_std) + self.mean**2) * jnp.exp(-2 * self.log_prior_std)
        return jnp.sum(self.log_prior_std - self.log_std - 0.5 + distance)

    def quantile(self, probability: float | Array) -> Float[Array, "out_size in_size"]:
        return self.mean + jnp.exp(self.log_std) * jax.scipy.stats.norm.ppf(probability)

    def concluded(
        self,
        mean: Float[Array, "out_size in_size"],
        std: Float[Array, "out_size in_size"],
        rate: Float[Array, ""] | float,
    ) -> Weights:
        """With that posterior, and τ moved by `rate` to where it is most likely given that:  τ² = E θ²."""
        second = mean**2 + std**2
        best = 0.5 * jnp.log(jnp.mean(second, axis=0 if self.log_prior_std.ndim else None) + 1e-12)
        τ = self.log_prior_std + rate * (best - self.log_prior_std)
        return eqx.tree_at(lambda w: (w.mean, w.log_std, w.log_prior_std), self, (mean, jnp.log(std), τ))


class Known(Parameter):
    """A constant: never trained, no KL."""

    value: Float[Array, ...]

    def __init__(self, value: Numbers):
        self.value = array(value)

    def sample(self, *, key: PRNGKeyArray) -> Float[Array, ...]:
        return jax.lax.stop_gradient(self.value)

    def kl(self) -> Float[Array, ""]:
        return jnp.zeros(())

    def quantile(self, probability: float | Array) -> Float[Array, ...]:
        return self.value


class Learned(Parameter):
    """A positive point estimate exp(log_value), no KL."""

    log_value: Float[Array, ...]

    def __init__(self, start: Numbers):
        self.log_value = array(np.log(np.asarray(start, float)))

    def sample(self, *, key: PRNGKeyArray) -> Float[Array, ...]:
        return jnp.exp(self.log_value)

    def kl(self) -> Float[Array, ""]:
        return jnp.zeros(())

    def quantile(self, probability: float | Array) -> Float[Array, ...]:
        return jnp.exp(self.log_value)

    def coordinates(self) -> Coordinates:
        none = jnp.zeros_like(self.log_value)
        return Coordinates(self.log_value, none, none)

    def moved(self, mean: Float[Array, ...], std: Float[Array, ...]) -> Learned:
        return eqx.tree_at(lambda p: p.log_value, self, mean)

    def value_at(self, x: Float[Array, ...]) -> Float[Array, ...]:
        return jnp.exp(x)

    def coordinates_of(self, value: Float[Array, ...]) -> Float[Array, ...]:
        return jnp.log(value)
