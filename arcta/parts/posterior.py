"""The approximate posterior: a Markov Gaussian process with marginals N(m(t), S(t)), and the drift it implies. For a diagonal S

    drift(z, t) = ṁ + B (m − z) + G (z − m),      B = ½ (q/s − ℓ̇),   ℓ = log s

B keeps the marginals; G is the rotation term: any G with G S + S Gᵀ = 0 leaves them untouched, and

    G_ij = s_i (q_j J_ij − q_i J_ji) / (q_j s_i + q_i s_j),      J = ∂f/∂z at m

is the one that brings this drift closest to f. Deviations δ = z − m are handed on as √s ε, so no small difference is taken.

m and ℓ are interpolated between nodes. On top of the interpolated variance a bridge opens between two observations,

    s(t) = exp ℓ(t) + κ sinh(λa) sinh(λb) / (λ sinh(λ(a + b))),      a, b: time to the observation before, and after

the variance of an Ornstein–Uhlenbeck process of diffusion κ and rate λ pinned at both. Without it a smooth s cannot
follow a rough process between observations, the path KL charges q/8s per unit of time for that, and the learned
diffusion collapses.

A full covariance S needs a lower triangle at each node, of which [m, ℓ] is followed by what is below the diagonal: S = Λ Λᵀ,
Λ = U diag(exp ½ℓ), U with ones on its diagonal. U is interpolated as m and ℓ are.

This is the only file that knows whether the covariance is diagonal.
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

    def held(self: G) -> G:
        """As the bound sees it: what is known is not learned."""
        return self

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

    def held(self) -> "DiagonalNormal":
        return jax.lax.stop_gradient(self) if self.known else self

    def deviation(self, noise: Float[Array, "*times latent"]) -> Float[Array, "*times latent"]:
        return jnp.exp(0.5 * self.log_variance) * noise

    def covariance(self) -> Float[Array, "*times latent latent"]:
        return jnp.exp(self.log_variance)[..., None] * jnp.eye(self.mean.shape[-1], dtype=self.mean.dtype)

    # A posterior and its prior are of one family.
    def kl(self, other: "DiagonalNormal") -> Float[Array, ""]:  # pyright: ignore[reportIncompatibleMethodOverride]
        other = other.held()
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
        other = other.held()
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

    Scaled by Q^−½ on both sides it solves  S K + K S = S C − Cᵀ S, by the eigenbasis of S. The derivative is that of the equation:
    eigenvectors have none where eigenvalues meet.
    """
    scale = 1 / jnp.sqrt(q[:, None] * q)
    C, S = C * scale, S * scale
    λ, V = eigh(jax.lax.stop_gradient(S))

    def solve(right: Float[Array, "latent latent"]) -> Float[Array, "latent latent"]:
        return V @ ((V.T @ right @ V) / (λ[:, None] + λ)) @ V.T

    right = S @ C
    right = right - right.T
    still = jax.lax.stop_gradient(solve(right))
    moved = (S - jax.lax.stop_gradient(S)) @ still  # zero, but for its derivative
    return solve(right - (moved - moved.T)) / scale


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
    """What an encoder says of the nodes, interpolated between them by a kernel, with or without a bridge; made by `infer`."""

    interpolant: Interpolant
    bridge: Bridge | None
    node_times: Float[Array, " nodes"]

    def opened(self, t: Float[Array, ""]) -> tuple[Float[Array, " latent"], Float[Array, " latent"]] | None:
        """The bridge's variance and its rate. Sums of comparisons find the nodes around t: they vectorise, and there are few."""
        if self.bridge is None:
            return None
        times, past = jax.lax.stop_gradient(self.node_times), self.node_times <= t
        before = t - jnp.max(jnp.where(past, times, -jnp.inf), initial=-1e6)
        return self.bridge(before, jnp.min(jnp.where(past, jnp.inf, times), initial=1e6) - t)


class DiagonalPosterior(InterpolatedPosterior):
    """m and ℓ, interpolated."""

    def __call__(self, t: Float[Array, ""]) -> DiagonalMarginal:
        t = jnp.asarray(t)
        value, rate = self.interpolant(t)
        (mean, log_variance), (mean_rate, log_rate) = jnp.split(value, 2), jnp.split(rate, 2)
        opened = self.opened(t)
        if opened is not None:
            still = jnp.exp(log_variance)
            variance = still + opened[0]
            log_variance, log_rate = jnp.log(variance), (still * log_rate + opened[1]) / variance
        return DiagonalMarginal(DiagonalNormal(mean, log_variance), mean_rate, log_rate)

    def at_nodes(self) -> DiagonalNormal:
        mean, log_variance = jnp.split(self.interpolant.at_nodes, 2, axis=1)
        return DiagonalNormal(mean, log_variance)


class FullPosterior(InterpolatedPosterior):
    """m, ℓ and U, interpolated."""

    latent_size: int = eqx.field(static=True)

    def __call__(self, t: Float[Array, ""]) -> FullMarginal:
        t = jnp.asarray(t)
        value, rate = self.interpolant(t)
        mean_rate = rate[: self.latent_size]
        normal, turn = jax.jvp(self._normal, (value,), (rate,))
        half = turn.factor @ normal.factor.T
        spread_rate = half + half.T
        opened = self.opened(t)
        if opened is not None:
            normal = FullNormal(normal.mean, factor(normal.covariance() + jnp.diag(opened[0])))
            spread_rate = spread_rate + jnp.diag(opened[1])
        return FullMarginal(normal, mean_rate, spread_rate)

    def _normal(self, value: Float[Array, " encoding"]) -> FullNormal:
        size = self.latent_size
        unit = jnp.eye(size, dtype=value.dtype).at[np.tril_indices(size, -1)].set(value[2 * size :])
        return FullNormal(value[:size], unit * jnp.exp(0.5 * value[size : 2 * size]))

    def at_nodes(self) -> FullNormal:
        return jax.vmap(self._normal)(self.interpolant.at_nodes)


class Nodes(eqx.Module):
    """What an encoder says of a window at each of its first rows, and which of them are nodes to interpolate between."""

    values: Float[Array, "nodes encoding"]
    node: Bool[Array, " nodes"]


def encoding_size(latent_size: int, *, full: bool = False) -> int:
    """How many numbers an encoder says of a node: [m, ℓ], and what is below the diagonal of U if the covariance is full."""
    return 2 * latent_size + (latent_size * (latent_size - 1) // 2 if full else 0)


def encode(
    h: Float[Array, "nodes encoding"],
    mean: Float[Array, "#nodes #latent"],
    log_variance: Float[Array, "#nodes #latent"],
    latent_size: int,
) -> Float[Array, "nodes encoding"]:
    """The encoding whose mean and log-variance differ by what a network says, `h`, from those given."""
    change, log_change, rest = jnp.split(h, [latent_size, 2 * latent_size], axis=1)
    return jnp.concatenate([mean + change, log_variance + log_change, rest], axis=1)


def imitation(
    values: Float[Array, "nodes encoding"], mean: Float[Array, "nodes latent"], variance: Float[Array, "nodes latent"]
) -> Float[Array, " nodes"]:
    """KL(N(mean, diag variance) ‖ what the encoding says) at each node, but for a constant: how far an encoder is from that."""
    m, log_variance = jnp.split(values, 2, axis=1)
    return 0.5 * jnp.sum((variance + (m - mean) ** 2) * jnp.exp(-log_variance) + log_variance, axis=1)


def infer(
    nodes: Nodes, latent_size: int, kernel: DeepKernel, bridge: Bridge | None, window: Window
) -> InterpolatedPosterior:
    """Interpolate between the encoded nodes of a window; the covariance is full if they say more than [m, ℓ]."""
    count, size = nodes.values.shape
    times = jnp.asarray(window.times[:count])
    end, spacing = jnp.asarray(window.end), jnp.asarray(window.spacing)
    interpolant = interpolate(kernel, times, nodes.values, node=nodes.node, end=end, spacing=spacing)
    node_times = jnp.where(nodes.node, times, jnp.inf)
    if size == encoding_size(latent_size):
        return DiagonalPosterior(interpolant, bridge, node_times)
    return FullPosterior(interpolant, bridge, node_times, latent_size)


def join_kl(before: AbstractPosterior, after: AbstractPosterior, window: Window) -> Float[Array, ""]:
    """The jump of the posterior where `window` (seen by `before`) meets the next: nothing in the bound pays for it."""
    return before.at_nodes().at(window.shared_node()).kl(after.at_nodes().at(window.margin))
