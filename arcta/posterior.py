"""The approximate posterior: a Markov Gaussian process with marginals N(m(t), diag s(t)), and the drift it implies.

    drift(z, t) = ṁ + B (m − z) + G (z − m),      B = ½ (q/s − ℓ̇),   ℓ = log s

B keeps the marginals; G is the rotation term: any G with G S + S Gᵀ = 0 leaves them untouched, and

    G_ij = s_i (q_j J_ij − q_i J_ji) / (q_j s_i + q_i s_j),      J = ∂f/∂z at m

is the one that brings this drift closest to f. With z = m + √s ε nothing is divided by a small difference.

m and ℓ are interpolated between nodes. On top of the interpolated variance a bridge opens between two observations,

    s(t) = exp ℓ(t) + κ sinh(λa) sinh(λb) / (λ sinh(λ(a + b))),      a, b: time to the observation before, and after

the variance of an Ornstein–Uhlenbeck process of diffusion κ and rate λ pinned at both. Without it a smooth s cannot
follow a rough process between observations, the path KL charges q/8s per unit of time for that, and the learned
diffusion collapses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from .host import array
from .kernel import DeepKernel, Interpolant, interpolate
from .nn import LocalEncoder, WindowEncoder
from .windows import Window


class Marginal(NamedTuple):
    """m, ℓ = log s and their rates of change at one time or many."""

    mean: Float[Array, "*times latent"]
    log_variance: Float[Array, "*times latent"]
    mean_rate: Float[Array, "*times latent"]
    log_variance_rate: Float[Array, "*times latent"]

    def state(self, noise: Float[Array, "*times latent"]) -> Float[Array, "*times latent"]:
        """z = m + √s ε."""
        return self.mean + jnp.exp(0.5 * self.log_variance) * noise

    def drift(
        self, noise: Float[Array, "*times latent"], q: Float[Array, "*#times latent"]
    ) -> Float[Array, "*times latent"]:
        """ṁ + B (m − z) at z = m + √s ε, for diffusion q."""
        std = jnp.exp(0.5 * self.log_variance)
        return self.mean_rate + 0.5 * self.log_variance_rate * std * noise - 0.5 * q * noise / std


class Bridge(eqx.Module):
    """The variance that opens between observations: κ and λ by latent axis."""

    log_diffusion: Float[Array, " latent"]
    log_rate: Float[Array, " latent"]

    def __init__(self, latent_size: int, diffusion: float = 1e-2, rate: float = 1.0):
        self.log_diffusion, self.log_rate = (array(np.full(latent_size, np.log(x))) for x in (diffusion, rate))

    def __call__(
        self, before: Float[Array, "*times"], after: Float[Array, "*times"]
    ) -> tuple[Float[Array, "*times latent"], Float[Array, "*times latent"]]:
        """The variance and its rate, `before` after one observation and `after` before the next."""
        rate, before, after = jnp.exp(self.log_rate), before[..., None], after[..., None]
        # sinh a sinh b / sinh(a+b) = (1 − e^{−2a})(1 − e^{−2b}) / 2(1 − e^{−2(a+b)}), which does not overflow.
        past, left = -jnp.expm1(-2 * rate * before), -jnp.expm1(-2 * rate * after)
        whole = jnp.maximum(-jnp.expm1(-2 * rate * (before + after)), 1e-12)
        scale = 0.5 * jnp.exp(self.log_diffusion) / whole
        return scale / rate * past * left, 2 * scale * ((1 - past) * left - past * (1 - left))


class Posterior(eqx.Module):
    """q(z(t) | window) for any t in the window, measured from its start."""

    interpolant: Interpolant
    bridge: Bridge | None = None
    node_times: Float[Array, " nodes"] | None = None

    def __call__(self, t: Float[Array, "*times"]) -> Marginal:
        t = jnp.asarray(t)
        value, rate = self.interpolant(t)
        (mean, log_variance), (mean_rate, log_rate) = (jnp.split(x, 2, axis=-1) for x in (value, rate))
        if self.bridge is None or self.node_times is None:
            return Marginal(mean, log_variance, mean_rate, log_rate)
        # Sums of comparisons instead of a search: they vectorise, and there are few nodes.
        times, past = jax.lax.stop_gradient(self.node_times), self.node_times <= t[..., None]
        before = t - jnp.max(jnp.where(past, times, -jnp.inf), axis=-1, initial=-1e6)
        after = jnp.min(jnp.where(past, jnp.inf, times), axis=-1, initial=1e6) - t
        opened, opened_rate = self.bridge(before, after)
        still = jnp.exp(log_variance)
        variance = still + opened
        return Marginal(mean, jnp.log(variance), mean_rate, (still * log_rate + opened_rate) / variance)

    def at_nodes(self) -> tuple[Float[Array, "nodes latent"], Float[Array, "nodes latent"]]:
        """m and ℓ at the nodes."""
        mean, log_variance = jnp.split(self.interpolant.at_nodes, 2, axis=1)
        return mean, log_variance


def _visible(mask: Array, dropout: float, key: PRNGKeyArray) -> Array:
    """Hide the look-ahead of a fraction `dropout` of the nodes from a random neighbour on, as the end of a series hides it."""
    nodes, neighbours, _ = mask.shape
    hidden = np.linspace(0, dropout, neighbours) * 2.0**32  # out of 2³²; the node itself never
    return mask & (jax.random.bits(key, (nodes, 1), jnp.uint32) >= hidden.astype(np.uint32))[..., None]


def _shortened(window: Window, dropout: float, key: PRNGKeyArray | None) -> tuple[Array, Array]:
    """Mask and nodes of a window, in training sometimes without what follows its partition."""
    mask, node = jnp.asarray(window.mask), jnp.asarray(window.node)
    if key is None or dropout == 0 or window.margin == 0:
        return mask, node
    kept = (jnp.arange(len(node)) <= window.shared_node()) | (jax.random.uniform(key) > dropout)
    return mask & kept[:, None], node & kept


def encode(
    encoder: Callable[..., Array], window: Window, *, dropout: float = 0.0, key: PRNGKeyArray | None = None
) -> Float[Array, "nodes two_latent"]:
    """h_i for every node of the window.

    With a key, what comes after is hidden from some: `WindowEncoder` loses the look-ahead of a fraction `dropout` of the
    nodes, `LocalEncoder` loses the rows after the partition with that probability, as at the end of a series.
    """
    if isinstance(encoder, LocalEncoder):
        return encoder(*(jnp.asarray(x) for x in (window.times, window.values, _shortened(window, dropout, key)[0])))
    ahead = window.lookahead
    count = len(window.times) - ahead

    def neighbours(rows: Array) -> Array:
        return jnp.stack([rows[k : k + count] for k in range(ahead + 1)], axis=1)

    rows = jnp.asarray(window.mask)
    if isinstance(encoder, WindowEncoder) and encoder.whole_rows:  # its own flags, once for each row
        rows = jnp.any(rows, axis=1, keepdims=True)
    times, values, mask = (neighbours(jnp.asarray(x)) for x in (window.times, window.values, rows))
    if key is not None and ahead > 0 and dropout > 0:
        mask = _visible(mask, dropout, key)
    present = jnp.any(mask[:, 1:], axis=-1)
    steps = jnp.where(present, jnp.diff(times, axis=1), 0)
    together = encoder if isinstance(encoder, WindowEncoder) else jax.vmap(encoder)  # a user's own sees one node
    return together(values, mask, steps)


def infer(
    encoder: Callable[..., Array],
    kernel: DeepKernel,
    window: Window,
    *,
    bridge: Bridge | None = None,
    dropout: float = 0.0,
    key: PRNGKeyArray | None = None,
) -> Posterior:
    """Encode the window's nodes and interpolate between them."""
    h = encode(encoder, window, dropout=dropout, key=key)
    count = len(h)
    local = isinstance(encoder, LocalEncoder)
    node = _shortened(window, dropout, key)[1][:count] if local else jnp.asarray(window.node[:count])
    times = jnp.asarray(window.times[:count])
    interpolant = interpolate(
        kernel, times, h, node=node, end=jnp.asarray(window.end), spacing=jnp.asarray(window.spacing)
    )
    return Posterior(interpolant, bridge, jnp.where(node, times, jnp.inf))


def rotation(
    jacobian: Float[Array, "*times latent latent"],
    variance: Float[Array, "*times latent"],
    q: Float[Array, "*#times latent"],
) -> Float[Array, "*times latent latent"]:
    """G of the module's docstring: the skew part of the drift that the marginals leave free."""
    scaled, weighted = jacobian * q[..., None, :], q[..., None, :] * variance[..., None]
    return variance[..., None] * (scaled - scaled.mT) / (weighted + weighted.mT)


def gaussian_kl(
    mean: Float[Array, " latent"],
    log_variance: Float[Array, " latent"],
    other_mean: Float[Array, " latent"],
    other_log_variance: Float[Array, " latent"],
) -> Float[Array, ""]:
    """KL(N(mean, variance) ‖ N(other_mean, other_variance)), diagonal."""
    difference = log_variance - other_log_variance
    squared = (mean - other_mean) ** 2 * jnp.exp(-other_log_variance)
    return 0.5 * jnp.sum(jnp.exp(difference) + squared - 1 - difference)


def join_kl(before: Posterior, after: Posterior, window: Window) -> Float[Array, ""]:
    """The jump of the posterior where `window` (seen by `before`) meets the next: nothing in the bound pays for it."""
    mean, log_variance = before.at_nodes()
    shared, first = window.shared_node(), window.margin
    next_mean, next_log_variance = after.at_nodes()
    return gaussian_kl(mean[shared], log_variance[shared], next_mean[first], next_log_variance[first])
