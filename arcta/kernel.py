"""Interpolation in time with a deep kernel, values and exact time derivatives from one Cholesky factor.

    v(t) = h̄ + k(t, T)ᵀ (k(T, T) + σ_n² I)⁻¹ (H − h̄),      φ(t) = t + net(t)
    k(t, t') = (1 − w) exp(−δ²/2ℓ²) + w exp(−|δ|/ℓ'),        δ = φ(t) − φ(t')

w = 0 is the paper's kernel, smooth everywhere. The rough part lets v bend at the nodes, as the posterior of a rough process
does: with w = 0 the bound on an Ornstein–Uhlenbeck process is looser and the learned noise too large.

t is rescaled to [−1, 1] over the window, ℓ is in units of its median node spacing, and deviations from the window's mean
h̄ are interpolated: so neither short windows nor gaps pull v to zero. (An amplitude σ_f would only rescale σ_n², so there
is none.) v̇ is v's forward-mode derivative.
"""

from __future__ import annotations

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from .host import array
from .nn import MLP

FAR = 1e3  # in half widths of a window: exp(−δ²/2ℓ²) is zero there


# jaxlib's batched LAPACK kernels wait, on a pool thread, for other threads of the same pool: on two cores two of them at
# once wait for ever (seen with jaxlib 0.10.2). Factoring matrix by matrix never waits.
@jax.custom_batching.sequential_vmap
def _factor(matrix: Float[Array, "n n"]) -> Float[Array, "n n"]:
    return jax.lax.linalg.cholesky(matrix, symmetrize_input=False)


@jax.custom_batching.sequential_vmap
def _solve_factored(factor: Float[Array, "n n"], right: Float[Array, "n k"]) -> Float[Array, "n k"]:
    return jax.scipy.linalg.cho_solve((factor, True), right)


@jax.custom_vjp
def solve_spd(matrix: Float[Array, "n n"], right: Float[Array, "n k"]) -> Float[Array, "n k"]:
    """matrix⁻¹ right for a symmetric positive definite matrix, with the derivative of the solve, not of the Cholesky.

    d(A⁻¹b) = A⁻¹(db − dA A⁻¹b) reuses the factor: two triangular solves backward instead of an O(n³) reverse sweep
    through the factorisation. The derivative to the matrix is symmetric, as the matrix is.
    """
    return _solve_factored(_factor(matrix), right)


def _solve_forward(matrix: Array, right: Array) -> tuple[Array, tuple[Array, Array]]:
    factor = _factor(matrix)
    solution = _solve_factored(factor, right)
    return solution, (factor, solution)


def _solve_backward(saved: tuple[Array, Array], slope: Array) -> tuple[Array, Array]:
    factor, solution = saved
    back = _solve_factored(factor, slope)
    left, right = jnp.concatenate([back, solution], axis=1), jnp.concatenate([solution, back], axis=1)
    return -0.5 * left @ right.T, back


solve_spd.defvjp(_solve_forward, _solve_backward)


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
        rng: np.random.Generator,
    ):
        self.net = MLP((1, *hidden_sizes, 1), activation, zero_last=True, rng=rng) if hidden_sizes else None
        self.log_lengthscale = array(np.log(lengthscale))
        self.log_noise = array(np.log(noise))
        self.roughness = array(np.log(roughness / (1 - roughness))) if roughness > 0 else None
        self.log_rough_lengthscale = array(np.log(2.0 * lengthscale)) if roughness > 0 else None

    def features(self, t: Float[Array, "*times"]) -> Float[Array, "*times"]:
        return t if self.net is None else t + self.net(t[None])[0]

    def scales(self, unit: Float[Array, ""]) -> list[Float[Array, ""]]:
        """ℓ, and ℓ' if there is a rough part; `unit` is the node spacing in the units of the features."""
        logs = (self.log_lengthscale, self.log_rough_lengthscale)
        return [jnp.exp(log) * unit for log in logs if log is not None]

    def correlation(self, scaled: Sequence[Float[Array, "*shape"]]) -> Float[Array, "*shape"]:
        """k for δ/ℓ, and δ/ℓ' if there is a rough part."""
        smooth = jnp.exp(-0.5 * scaled[0] ** 2)
        if self.roughness is None:
            return smooth
        share = jax.nn.sigmoid(self.roughness)
        return (1 - share) * smooth + share * jnp.exp(-jnp.abs(scaled[1]))

    def gram(self, features: Float[Array, " nodes"], unit: Float[Array, ""]) -> Float[Array, "nodes nodes"]:
        """k between all nodes, for a solve whose derivative is symmetric: twice the derivative of one side is then that of both,
        and one sum over columns does. (Kernel and solve of 256 nodes, forward and backward, in a throw-away profile on
        one core: 0.65 ms as plain differentiation does it, 0.50 ms so.)"""
        pairs = []
        for scale in self.scales(unit):
            held = jax.lax.stop_gradient(features / scale)
            pairs.append((2 * features / scale - held)[None, :] - held[:, None])
        return self.correlation(pairs)

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
        scales = self.kernel.scales(self.unit)
        nodes = [self.features / scale for scale in scales]

        def correlation(t: Array) -> Array:
            feature = self.kernel.features(2 * t / self.end - 1)
            return self.kernel.correlation([feature / scale - u for scale, u in zip(scales, nodes, strict=True)])

        k, k_rate = jax.jvp(correlation, (t,), (jnp.ones_like(t),))
        value, value_rate = jnp.stack([k, k_rate]) @ self.weights
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
    features = kernel.features(2 * times / end - 1)
    features = jnp.where(
        node, features, FAR * (1 + jnp.arange(len(times)))
    )  # correlated with nothing, not even each other
    unit = 2 * spacing / end
    mean = jnp.sum(jnp.where(node[:, None], h, 0), axis=0) / jnp.sum(node)
    deviation = jnp.where(node[:, None], h - mean, 0)
    noise = kernel.noise(len(times))
    weights = solve_spd(kernel.gram(features, unit) + noise * jnp.eye(len(times)), deviation)
    at_nodes = mean + deviation - noise * weights
    return Interpolant(kernel, end, unit, features, weights, mean, at_nodes)
