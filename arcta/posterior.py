"""The approximate posterior: a Markov Gaussian process with marginals N(m(t), diag s(t)), and the drift it implies.

    drift(z, t) = ṁ + B (m − z) + G (z − m),      B = ½ (q/s − ℓ̇),   ℓ = log s

B keeps the marginals; G is the rotation term: any G with G S + S Gᵀ = 0 leaves them untouched, and

    G_ij = s_i (q_j J_ij − q_i J_ji) / (q_j s_i + q_i s_j),      J = ∂f/∂z at m

is the one that brings this drift closest to f. With z = m + √s ε nothing is divided by a small difference.
"""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from .kernel import DeepKernel, Interpolant, interpolate
from .nn import WindowEncoder
from .windows import Window


class Marginal(NamedTuple):
    """m, ℓ = log s and their rates of change at one time."""

    mean: Float[Array, " latent"]
    log_variance: Float[Array, " latent"]
    mean_rate: Float[Array, " latent"]
    log_variance_rate: Float[Array, " latent"]

    def state(self, noise: Float[Array, " latent"]) -> Float[Array, " latent"]:
        """z = m + √s ε."""
        return self.mean + jnp.exp(0.5 * self.log_variance) * noise

    def drift(self, noise: Float[Array, " latent"], q: Float[Array, " latent"]) -> Float[Array, " latent"]:
        """ṁ + B (m − z) at z = m + √s ε, for diffusion q."""
        std = jnp.exp(0.5 * self.log_variance)
        return self.mean_rate + 0.5 * self.log_variance_rate * std * noise - 0.5 * q * noise / std


class Posterior(eqx.Module):
    """q(z(t) | window) for any t in the window, measured from its start."""

    interpolant: Interpolant

    def __call__(self, t: Float[Array, ""]) -> Marginal:
        value, rate = self.interpolant(t)
        size = len(value) // 2
        return Marginal(value[:size], value[size:], rate[:size], rate[size:])

    def at_nodes(self) -> tuple[Float[Array, "nodes latent"], Float[Array, "nodes latent"]]:
        """m and ℓ at the nodes."""
        mean, log_variance = jnp.split(self.interpolant.at_nodes, 2, axis=1)
        return mean, log_variance


def _visible(mask: Array, dropout: float, key: PRNGKeyArray) -> Array:
    """Hide the look-ahead of some nodes from a random neighbour on, as the end of a series hides it."""
    nodes, neighbours, _ = mask.shape
    uniform = jax.random.uniform(key, (nodes, 1))
    cut = 1 + jnp.floor(uniform / dropout * (neighbours - 1))  # 1 … K where uniform < dropout
    return mask & (jnp.arange(neighbours) < jnp.where(uniform < dropout, cut, neighbours))[..., None]


def encode(
    encoder: WindowEncoder, window: Window, *, dropout: float = 0.0, key: PRNGKeyArray | None = None
) -> Float[Array, "nodes two_latent"]:
    """h_i for every node of the window. With a key, the look-ahead of a fraction `dropout` of them is cut short."""
    ahead = window.lookahead
    count = len(window.times) - ahead

    def neighbours(rows: Array) -> Array:
        return jnp.stack([rows[k : k + count] for k in range(ahead + 1)], axis=1)

    times, values, mask = (neighbours(jnp.asarray(x)) for x in (window.times, window.values, window.mask))
    if key is not None and ahead > 0 and dropout > 0:
        mask = _visible(mask, dropout, key)
    present = jnp.any(mask[:, 1:], axis=-1)
    steps = jnp.where(present, jnp.diff(times, axis=1), 0)
    values, mask, steps = (jnp.moveaxis(x, 0, -1) for x in (values, mask, steps))  # examples last, see elbo.py
    return jax.vmap(encoder, in_axes=-1, out_axes=-1)(values, mask, steps).T


def infer(
    encoder: WindowEncoder,
    kernel: DeepKernel,
    window: Window,
    *,
    dropout: float = 0.0,
    key: PRNGKeyArray | None = None,
) -> Posterior:
    """Encode the window's nodes and interpolate between them."""
    h = encode(encoder, window, dropout=dropout, key=key)
    count = len(h)
    return Posterior(
        interpolate(
            kernel,
            jnp.asarray(window.times[:count]),
            h,
            node=jnp.asarray(window.node[:count]),
            end=jnp.asarray(window.end),
            spacing=jnp.asarray(window.spacing),
        )
    )


def rotation(
    jacobian: Float[Array, "latent latent"], variance: Float[Array, " latent"], q: Float[Array, " latent"]
) -> Float[Array, "latent latent"]:
    """G of the module's docstring: the skew part of the drift that the marginals leave free."""
    skew = jacobian * q[None, :] - (jacobian * q[None, :]).T
    weighted = q[None, :] * variance[:, None]
    return variance[:, None] * skew / (weighted + weighted.T)


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
    last = jnp.sum(jnp.asarray(window.node)) - 1
    next_mean, next_log_variance = after.at_nodes()
    return gaussian_kl(mean[last], log_variance[last], next_mean[0], next_log_variance[0])
