"""The approximate posterior: a Markov Gaussian process with marginals N(m(t), diag s(t)), and the drift it implies.

    drift(z, t) = ṁ + B (m − z) + G (z − m),      B = ½ (q/s − ℓ̇),   ℓ = log s

B keeps the marginals; G is the rotation term: any G with G S + S Gᵀ = 0 leaves them untouched, and

    G_ij = s_i (q_j J_ij − q_i J_ji) / (q_j s_i + q_i s_j),      J = ∂f/∂z at m

is the one that brings this drift closest to f. Deviations δ = z − m are handed on as √s ε, so no small difference is taken.

m and ℓ are interpolated between nodes. On top of the interpolated variance a bridge opens between two observations,

    s(t) = exp ℓ(t) + κ sinh(λa) sinh(λb) / (λ sinh(λ(a + b))),      a, b: time to the observation before, and after

the variance of an Ornstein–Uhlenbeck process of diffusion κ and rate λ pinned at both. Without it a smooth s cannot
follow a rough process between observations, the path KL charges q/8s per unit of time for that, and the learned
diffusion collapses.

This is the only file that knows that the covariance is diagonal.
"""

import abc
from functools import partial
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from ..data.windows import Window
from ..runtime.host import array
from ..runtime.small import eigh, factor, solve_lower, solve_upper
from .base import AbstractPart, LinearReading
from .kernel import DeepKernel, Interpolant, interpolate

G = TypeVar("G")
P = TypeVar("P")


class AbstractGaussian(AbstractPart):
    """A Gaussian over states; one, or many stacked along the leading axes of its arrays."""

    mean: eqx.AbstractVar[Float[Array, "*times latent"]]

    @abc.abstractmethod
    def deviation(self, noise: Float[Array, "*times latent"]) -> Float[Array, "*times latent"]:
        """δ = z − m for standard normal ε."""

    @abc.abstractmethod
    def covariance(self) -> Float[Array, "*times latent latent"]:
        """S."""

    @abc.abstractmethod
    def kl(self, other: "AbstractGaussian") -> Float[Array, ""]:
        """KL(this ‖ other)."""

    def concluded(
        self: G, count: Float[Array, ""], total: Float[Array, " latent"], squares: Float[Array, " latent"]
    ) -> G:
        """As a distribution of starts, after that number of them, with that sum and sum of squares; unless it is not learned so."""
        return self

    def state(self, noise: Float[Array, "*times latent"]) -> Float[Array, "*times latent"]:
        """z = m + δ."""
        return self.mean + self.deviation(noise)

    def sample(self, *, key: PRNGKeyArray) -> Float[Array, "*times latent"]:
        return self.state(jax.random.normal(key, self.mean.shape, self.mean.dtype))

    def at(self: G, index: Int[Array, "*shape"] | np.ndarray | int | tuple[np.ndarray, ...]) -> G:
        """Some of the stacked ones."""
        return jax.tree.map(lambda leaf: leaf[index], self)


class DiagonalNormal(AbstractGaussian):
    """N(mean, diag exp(log_variance)). Learned, or `known`, it is p(z0), what unconditional samples start from."""

    mean: Float[Array, "*times latent"]
    log_variance: Float[Array, "*times latent"]
    known: bool = eqx.field(static=True, default=False)

    @staticmethod
    def standard(latent_size: int) -> "DiagonalNormal":
        return DiagonalNormal(array(np.zeros(latent_size)), array(np.zeros(latent_size)))

    def concluded(
        self, count: Float[Array, ""], total: Float[Array, " latent"], squares: Float[Array, " latent"]
    ) -> "DiagonalNormal":
        """The most likely one for states whose number, sum and sum of squares are known, and one more of unit spread: the variance
        of a single start would shrink for ever."""
        if self.known:
            return self
        mean = total / jnp.maximum(count, 1e-3)
        variance = (squares - 2 * mean * total + count * mean**2 + 1) / (count + 1)
        return DiagonalNormal(mean, jnp.log(jnp.maximum(variance, 1e-6)))

    def deviation(self, noise: Float[Array, "*times latent"]) -> Float[Array, "*times latent"]:
        return jnp.exp(0.5 * self.log_variance) * noise

    def covariance(self) -> Float[Array, "*times latent latent"]:
        return jnp.exp(self.log_variance)[..., None] * jnp.eye(self.mean.shape[-1], dtype=self.mean.dtype)

    # A posterior and its prior are of one family.
    def kl(self, other: "DiagonalNormal") -> Float[Array, ""]:  # pyright: ignore[reportIncompatibleMethodOverride]
        other = jax.lax.stop_gradient(other) if other.known else other
        difference = self.log_variance - other.log_variance
        squared = (self.mean - other.mean) ** 2 * jnp.exp(-other.log_variance)
        return 0.5 * jnp.sum(jnp.exp(difference) + squared - 1 - difference)


class FullNormal(AbstractGaussian):
    """N(mean, S) with S = Λ Λᵀ, Λ a lower triangle."""

    mean: Float[Array, "*times latent"]
    factor: Float[Array, "*times latent latent"]

    def deviation(self, noise: Float[Array, "*times latent"]) -> Float[Array, "*times latent"]:
        return jnp.einsum("...ij,...j->...i", self.factor, noise)

    def covariance(self) -> Float[Array, "*times latent latent"]:
        return jnp.einsum("...ij,...kj->...ik", self.factor, self.factor)

    def kl(self, other: AbstractGaussian) -> Float[Array, ""]:
        theirs = factor(other.covariance())
        ratio = jax.vmap(partial(solve_lower, theirs), in_axes=1)(self.factor)
        away = solve_lower(theirs, other.mean - self.mean)
        logs = jnp.log(jnp.diagonal(theirs)) - jnp.log(jnp.diagonal(self.factor))
        return 0.5 * (jnp.sum(ratio**2) + jnp.sum(away**2) - len(away)) + jnp.sum(logs)


class AbstractMarginal(eqx.Module):
    """The posterior at one time t, with all that its drift there depends on."""

    normal: eqx.AbstractVar[AbstractGaussian]

    @abc.abstractmethod
    def drift(
        self,
        deviation: Float[Array, " latent"],
        q: Float[Array, " latent"],
        jacobian: Float[Array, "latent latent"] | None = None,
    ) -> Float[Array, " latent"]:
        """g at z = m + δ for diffusion q, with the turning part that brings it closest to a prior drift of that Jacobian at m."""


class AbstractPosterior(eqx.Module):
    """q(z(t) | window) for any t in the window, measured from its start."""

    @abc.abstractmethod
    def __call__(self, t: Float[Array, ""]) -> AbstractMarginal:
        """The marginal at one time."""

    @abc.abstractmethod
    def at_nodes(self) -> AbstractGaussian:
        """The marginals at the nodes, stacked."""

    def given(self: P, departure: Float[Array, " coefficients"]) -> P:
        """The posterior given how far the drift's coefficients are from their mean; the same, unless it depends on them."""
        return self


class DiagonalMarginal(AbstractMarginal):
    """N(m, diag s), and the rates of change of m and ℓ = log s; at one time, or stacked for `vmap`."""

    normal: DiagonalNormal  # pyright: ignore[reportIncompatibleVariableOverride]  (frozen)
    mean_rate: Float[Array, "*times latent"]
    log_variance_rate: Float[Array, "*times latent"]

    def drift(
        self,
        deviation: Float[Array, " latent"],
        q: Float[Array, " latent"],
        jacobian: Float[Array, "latent latent"] | None = None,
    ) -> Float[Array, " latent"]:
        """g = ṁ − B δ + G δ at z = m + δ, for diffusion q; without a Jacobian of the prior's drift there is no G."""
        δ, ṁ, ℓ̇ = deviation, self.mean_rate, self.log_variance_rate
        s = jnp.exp(self.normal.log_variance)
        B = 0.5 * (q / s - ℓ̇)
        g = ṁ - B * δ
        if jacobian is None:
            return g
        G = rotation(jacobian, s, q)
        return g + jnp.sum(G * δ, axis=1)


def rotation(
    jacobian: Float[Array, "latent latent"], variance: Float[Array, " latent"], q: Float[Array, " latent"]
) -> Float[Array, "latent latent"]:
    """G of the module's docstring: the skew part of the drift that the marginals leave free."""
    scaled, weighted = jacobian * q, q * variance[:, None]
    return variance[:, None] * (scaled - scaled.T) / (weighted + weighted.T)


class FullMarginal(AbstractMarginal):
    """N(m, S), and the rates of change of m and S, at one time:  g = ṁ + (½ (Ṡ − Q) + K) S⁻¹ δ, for any skew K."""

    normal: FullNormal  # pyright: ignore[reportIncompatibleVariableOverride]  (frozen)
    mean_rate: Float[Array, " latent"]
    covariance_rate: Float[Array, "latent latent"]

    def drift(
        self,
        deviation: Float[Array, " latent"],
        q: Float[Array, " latent"],
        jacobian: Float[Array, "latent latent"] | None = None,
    ) -> Float[Array, " latent"]:
        """g at z = m + δ, with the K that brings it closest to a prior drift of that Jacobian; without one K is zero."""
        spread = 0.5 * (self.covariance_rate - jnp.diag(q))
        Λ = self.normal.factor
        if jacobian is not None:
            spread = spread + turning(jacobian @ self.normal.covariance() - spread, self.normal.covariance(), q)
        return self.mean_rate + spread @ solve_upper(Λ, solve_lower(Λ, deviation))


def turning(
    C: Float[Array, "latent latent"], S: Float[Array, "latent latent"], q: Float[Array, " latent"]
) -> Float[Array, "latent latent"]:
    """The skew K that minimises tr[(K − C) S⁻¹ (K − C)ᵀ Q⁻¹], where C = J S − ½ (Ṡ − Q).

    Scaled by Q^−½ on both sides and in the eigenbasis λ of the scaled S,  K_ij = (λ_i C_ij − λ_j C_ji)/(λ_i + λ_j). At the minimum
    the bound does not change with K to first order, so nothing is differentiated through it.
    """
    C, S, q = jax.lax.stop_gradient((C, S, q))
    scale = 1 / jnp.sqrt(q[:, None] * q)
    λ, V = eigh(S * scale)
    rotated = λ[:, None] * (V.T @ (C * scale) @ V)
    return V @ ((rotated - rotated.T) / (λ[:, None] + λ)) @ V.T / scale


class Bridge(AbstractPart):
    """The variance that opens between observations: κ and λ by latent axis."""

    log_diffusion: Float[Array, " latent"]
    log_rate: Float[Array, " latent"]

    def __init__(self, latent_size: int, diffusion: float = 1e-2, rate: float = 1.0):
        self.log_diffusion, self.log_rate = (array(np.full(latent_size, np.log(x))) for x in (diffusion, rate))

    def __call__(
        self, before: Float[Array, ""], after: Float[Array, ""]
    ) -> tuple[Float[Array, " latent"], Float[Array, " latent"]]:
        """The variance and its rate, `before` after one observation and `after` before the next."""
        rate = jnp.exp(self.log_rate)
        # sinh a sinh b / sinh(a+b) = (1 − e^{−2a})(1 − e^{−2b}) / 2(1 − e^{−2(a+b)}), which does not overflow.
        past, left = -jnp.expm1(-2 * rate * before), -jnp.expm1(-2 * rate * after)
        whole = jnp.maximum(-jnp.expm1(-2 * rate * (before + after)), 1e-12)
        scale = 0.5 * jnp.exp(self.log_diffusion) / whole
        return scale / rate * past * left, 2 * scale * ((1 - past) * left - past * (1 - left))

    def started_from(self, reading: LinearReading) -> "Bridge":
        return eqx.tree_at(lambda b: b.log_diffusion, self, array(np.log(reading.bridge)))


class InterpolatedPosterior(AbstractPosterior):
    """m and ℓ interpolated between nodes by a kernel, with or without a bridge; made by `infer`."""

    interpolant: Interpolant
    bridge: Bridge | None
    node_times: Float[Array, " nodes"]

    def __call__(self, t: Float[Array, ""]) -> DiagonalMarginal:
        t = jnp.asarray(t)
        value, rate = self.interpolant(t)
        (mean, log_variance), (mean_rate, log_rate) = jnp.split(value, 2), jnp.split(rate, 2)
        if self.bridge is None:
            return DiagonalMarginal(DiagonalNormal(mean, log_variance), mean_rate, log_rate)
        opened, opened_rate = self.bridge(*self._around(t))
        still = jnp.exp(log_variance)
        variance = still + opened
        return DiagonalMarginal(
            DiagonalNormal(mean, jnp.log(variance)), mean_rate, (still * log_rate + opened_rate) / variance
        )

    def _around(self, t: Float[Array, ""]) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """The time since the node before and to the node after. Sums of comparisons: they vectorise, and there are few nodes."""
        times, past = jax.lax.stop_gradient(self.node_times), self.node_times <= t
        before = t - jnp.max(jnp.where(past, times, -jnp.inf), initial=-1e6)
        return before, jnp.min(jnp.where(past, jnp.inf, times), initial=1e6) - t

    def at_nodes(self) -> DiagonalNormal:
        mean, log_variance = jnp.split(self.interpolant.at_nodes, 2, axis=1)
        return DiagonalNormal(mean, log_variance)


class Nodes(eqx.Module):
    """What an encoder says of a window: [m, ℓ] at each of its first rows, and which of them are nodes to interpolate between."""

    values: Float[Array, "nodes encoding"]
    node: Bool[Array, " nodes"]


def encoding_size(latent_size: int) -> int:
    """How many numbers an encoder says of a node."""
    return 2 * latent_size


def encode(
    h: Float[Array, "nodes encoding"],
    mean: Float[Array, "#nodes #latent"],
    log_variance: Float[Array, "#nodes #latent"],
) -> Float[Array, "nodes encoding"]:
    """The encoding whose mean and log-variance differ by what a network says, `h`, from those given."""
    change, log_change = jnp.split(h, 2, axis=1)
    return jnp.concatenate([mean + change, log_variance + log_change], axis=1)


def imitation(
    values: Float[Array, "nodes encoding"], mean: Float[Array, "nodes latent"], variance: Float[Array, "nodes latent"]
) -> Float[Array, " nodes"]:
    """KL(N(mean, diag variance) ‖ what the encoding says) at each node, but for a constant: how far an encoder is from that."""
    m, log_variance = jnp.split(values, 2, axis=1)
    return 0.5 * jnp.sum((variance + (m - mean) ** 2) * jnp.exp(-log_variance) + log_variance, axis=1)


def infer(nodes: Nodes, kernel: DeepKernel, bridge: Bridge | None, window: Window) -> InterpolatedPosterior:
    """Interpolate between the encoded nodes of a window."""
    count = len(nodes.values)
    times = jnp.asarray(window.times[:count])
    end, spacing = jnp.asarray(window.end), jnp.asarray(window.spacing)
    interpolant = interpolate(kernel, times, nodes.values, node=nodes.node, end=end, spacing=spacing)
    return InterpolatedPosterior(interpolant, bridge, jnp.where(nodes.node, times, jnp.inf))


def join_kl(before: AbstractPosterior, after: AbstractPosterior, window: Window) -> Float[Array, ""]:
    """The jump of the posterior where `window` (seen by `before`) meets the next: nothing in the bound pays for it."""
    return before.at_nodes().at(window.shared_node()).kl(after.at_nodes().at(window.margin))
