"""Interpolation in time with a deep kernel, values and exact time derivatives from one Cholesky factor.

    v(t) = h̄ + k(t, T)ᵀ (k(T, T) + σ_n² I)⁻¹ (H − h̄),      φ(t) = t + net(t)
    k(t, t') = (1 − w) exp(−δ²/2ℓ²) + w exp(−|δ|/ℓ'),        δ = φ(t) − φ(t')

w = 0 is the paper's kernel, smooth everywhere. The rough part lets v bend at the nodes, as the posterior of a rough process
does: with w = 0 the bound on an Ornstein–Uhlenbeck process is looser and the learned noise too large.

t is rescaled to [−1, 1] over the window, ℓ is in units of its median node spacing, and deviations from the window's mean
h̄ are interpolated: so neither short windows nor gaps pull v to zero. (An amplitude σ_f would only rescale σ_n², so there
is none.) v̇ is closed-form in the kernel and forward-mode through the small network.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from .nn import MLP


# jaxlib's batched LAPACK kernels wait, on a pool thread, for other threads of the same pool: on two cores two of them at
# once wait for ever (seen with jaxlib 0.10.2). Factoring matrix by matrix never waits.
@jax.custom_batching.sequential_vmap
def _factor(matrix: Float[Array, "n n"]) -> Float[Array, "n n"]:
    return jax.lax.linalg.cholesky(matrix, symmetrize_input=False)


@jax.custom_batching.sequential_vmap
def _solve_factored(factor: Float[Array, "n n"], right: Float[Array, "n k"]) -> Float[Array, "n k"]:
    return jax.scipy.linalg.cho_solve((factor, True), right)


def solve_spd(matrix: Float[Array, "n n"], right: Float[Array, "n k"]) -> Float[Array, "n k"]:
    """matrix⁻¹ right for a symmetric positive definite matrix, with the derivative of the solve, not of the Cholesky.

    d(A⁻¹b) = A⁻¹(db − dA A⁻¹b) reuses the factor: two triangular solves backward instead of an O(n³) reverse sweep
    through the factorisation.
    """
    factor = _factor(jax.lax.stop_gradient(matrix))
    return jax.lax.custom_linear_solve(
        lambda x: matrix @ x, right, lambda _, b: _solve_factored(factor, b), symmetric=True
    )


class DeepKernel(eqx.Module):
    """The squared exponential kernel of φ(t) = t + net(t); the network starts at zero, as a plain kernel.

    Without hidden layers there is no network: φ(t) = t.
    """

    net: MLP | None
    log_lengthscale: Float[Array, ""]
    log_noise: Float[Array, ""]
    roughness: Float[Array, ""] | None
    log_rough_lengthscale: Float[Array, ""] | None

    def __init__(
        self,
        *,
        hidden_sizes: tuple[int, ...] = (32, 32),
        activation: str = "silu",
        lengthscale: float = 9.0,
        noise: float = 1e-3,
        roughness: float = 0.0,
        key: PRNGKeyArray,
    ):
        self.net = MLP((1, *hidden_sizes, 1), activation, zero_last=True, key=key) if hidden_sizes else None
        self.log_lengthscale = jnp.log(jnp.asarray(lengthscale))
        self.log_noise = jnp.log(jnp.asarray(noise))
        self.roughness = jnp.log(jnp.asarray(roughness / (1 - roughness))) if roughness > 0 else None
        self.log_rough_lengthscale = jnp.log(jnp.asarray(2.0 * lengthscale)) if roughness > 0 else None

    def features(self, t: Float[Array, ""]) -> Float[Array, ""]:
        return t if self.net is None else t + self.net(t[None])[0]

    def correlation(
        self, difference: Float[Array, "*shape"], unit: Float[Array, ""]
    ) -> tuple[Float[Array, "*shape"], Float[Array, "*shape"]]:
        """k and dk/dδ for differences δ, with `unit` the node spacing in the units of δ."""
        scaled = difference / (jnp.exp(self.log_lengthscale) * unit)
        smooth = jnp.exp(-0.5 * scaled**2)
        slope = -smooth * scaled / (jnp.exp(self.log_lengthscale) * unit)
        if self.roughness is None or self.log_rough_lengthscale is None:
            return smooth, slope
        share, length = jax.nn.sigmoid(self.roughness), jnp.exp(self.log_rough_lengthscale) * unit
        rough = jnp.exp(-jnp.abs(difference) / length)
        return (
            (1 - share) * smooth + share * rough,
            (1 - share) * slope - share * rough * jnp.sign(difference) / length,
        )

    def noise(self, num_nodes: int) -> Float[Array, ""]:
        """σ_n² above the floor that a float32 Cholesky needs (it breaks at 1e-6 from 512 nodes on)."""
        return jnp.exp(self.log_noise) + 1e-5 * num_nodes / 256


class Interpolant(eqx.Module):
    """v(t) over one window; made by `interpolate`."""

    kernel: DeepKernel
    end: Float[Array, ""]
    unit: Float[Array, ""]
    features: Float[Array, " nodes"]
    weights: Float[Array, "nodes size"]
    mean: Float[Array, " size"]
    at_nodes: Float[Array, "nodes size"]

    def __call__(self, t: Float[Array, ""]) -> tuple[Float[Array, " size"], Float[Array, " size"]]:
        """v(t) and v̇(t), t measured from the start of the window."""
        rescaled = 2 * t / self.end - 1
        feature, rate = jax.jvp(self.kernel.features, (rescaled,), (2 / self.end,))
        k, slope = self.kernel.correlation(feature - self.features, self.unit)
        value, value_rate = jnp.stack([k, slope * rate]) @ self.weights
        return self.mean + value, value_rate


def interpolate(
    kernel: DeepKernel,
    times: Float[Array, " nodes"],
    h: Float[Array, "nodes size"],
    *,
    node: Bool[Array, " nodes"],
    end: Float[Array, ""],
    spacing: Float[Array, ""],
) -> Interpolant:
    """Fit v to the encodings `h` at the node times; rows that are no nodes (padding) change nothing.

    Values at the nodes come without a second kernel product:  K A⁻¹ H = H − σ_n² A⁻¹ H  for  A = K + σ_n² I.
    """
    end = jnp.where(end > 0, end, 1.0)  # a lone observation: any width will do
    features = jax.vmap(kernel.features)(2 * times / end - 1)
    unit = 2 * spacing / end
    mean = jnp.sum(jnp.where(node[:, None], h, 0), axis=0) / jnp.sum(node)
    deviation = jnp.where(node[:, None], h - mean, 0)
    k, _ = kernel.correlation(features[:, None] - features[None, :], unit)
    gram = jnp.where(node[:, None] & node[None, :], k, 0)
    noise = kernel.noise(len(times))
    weights = solve_spd(gram + jnp.diag(jnp.where(node, noise, 1.0)), deviation)
    at_nodes = mean + deviation - noise * weights
    return Interpolant(kernel, end, unit, features, weights, mean, at_nodes)
