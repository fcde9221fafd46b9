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

from ..runtime.host import array
from .networks import MLP

FAR = 1e3  # in half widths of a window: exp(−δ²/2ℓ²) is zero there


# jaxlib's batched LAPACK kernels wait, on a pool thread, for other threads of the same pool: on two cores two of them at
# once wait for ever (seen with jaxlib 0.10.2). Factoring matrix by matrix never waits.
@jax.custom_batching.sequential_vmap
def _factor(matrix: Float[Array, "n n"]) -> Float[Array, "n n"]:
    return jax.lax.linalg.cholesky(matrix, symmetrize_input=False)


@jax.custom_batching.sequential_vmap
def _solve_factored(factor: Float[Array, "n n"], right: Float[Array, "n k"]) -> Float[Array, "n k"]:
    return jax.scipy.linalg.cho_solve((factor, True), right)


def _parts(scaled: Sequence[Array]) -> list[Array]:
    """exp(−δ²/2), and exp(−|δ|) if there is a second δ: the correlations that k mixes."""
    smooth, rough = (lambda gap: jnp.exp(-0.5 * gap**2)), (lambda gap: jnp.exp(-jnp.abs(gap)))
    return [part(gap) for part, gap in zip((smooth, rough), scaled, strict=False)]


def _mixed(parts: Sequence[Array], share: Array | None) -> Array:
    """(1 − share) smooth + share rough."""
    return parts[0] if share is None else (1 - share) * parts[0] + share * parts[1]


def _gaps(points: Float[Array, " n"]) -> Float[Array, "n n"]:
    """u_j − u_i."""
    return points[None, :] - points[:, None]


@jax.custom_vjp
def solve_kernel(
    scaled: tuple[Float[Array, " n"], ...],
    share: Float[Array, ""] | None,
    noise: Float[Array, ""],
    right: Float[Array, "n k"],
) -> Float[Array, "n k"]:
    """A⁻¹ right for A = k(T, T) + noise I, given u = φ(T)/ℓ, and φ(T)/ℓ' and the rough part's share if there is one.

    The derivative is that of the solve: with W = A⁻¹ right and back = A⁻¹ slope it is −back Wᵀ to A, and the sums over its rows
    that u needs are products of k' with back and W: two triangular solves and one product, no O(n³) sweep back through the
    factorisation.
    """
    return _solve_forward(scaled, share, noise, right)[0]


Saved = tuple[tuple[Array, ...], Array | None, list[Array], Array, Array]


def _solve_forward(scaled: tuple[Array, ...], share: Array | None, noise: Array, right: Array) -> tuple[Array, Saved]:
    parts = _parts([_gaps(points) for points in scaled])
    factor = _factor(_mixed(parts, share) + noise * jnp.eye(len(right)))
    solution = _solve_factored(factor, right)
    return solution, (scaled, share, parts, factor, solution)


def _solve_backward(saved: Saved, slope: Array) -> tuple[tuple[Array, ...], Array | None, Array, Array]:
    scaled, share, parts, factor, solution = saved
    back = _solve_factored(factor, slope)
    both, swapped = jnp.concatenate([back, solution], axis=1), jnp.concatenate([solution, back], axis=1)
    shares = (1.0,) if share is None else (1 - share, share)
    rates = (lambda gap: gap, jnp.sign)
    # The parts are symmetric, and so laid out that their transpose is what the product reads row by row.
    to_scaled = tuple(
        -weight * jnp.sum(swapped * ((part.T * rate(_gaps(points))) @ both), axis=1)
        for points, part, rate, weight in zip(scaled, parts, rates, shares, strict=False)
    )
    to_share = None if share is None else -jnp.sum(back * ((parts[1] - parts[0]) @ solution))
    return to_scaled, to_share, -jnp.sum(back * solution), back


solve_kernel.defvjp(_solve_forward, _solve_backward)


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

    def features_and_rates(self, t: Float[Array, ""]) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """φ and φ' at one time."""
        if self.net is None:
            return t, jnp.ones_like(t)
        ((change,),), ((slope,),) = self.net.push_forward(t[None, None], jnp.ones((1, 1), t.dtype))
        return t + change, 1 + slope

    def scales(self, unit: Float[Array, ""]) -> list[Float[Array, ""]]:
        """ℓ, and ℓ' if there is a rough part; `unit` is the node spacing in the units of the features."""
        logs = (self.log_lengthscale, self.log_rough_lengthscale)
        return [jnp.exp(log) * unit for log in logs if log is not None]

    def share(self) -> Float[Array, ""] | None:
        """w, the rough part's."""
        return None if self.roughness is None else jax.nn.sigmoid(self.roughness)

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
        features, rates = self.kernel.features_and_rates(2 * jnp.asarray(t) / self.end - 1)

        def correlation(features: Array) -> Array:
            gaps = [features / scale - u for scale, u in zip(scales, nodes, strict=True)]
            return _mixed(_parts(gaps), self.kernel.share())

        k, k_rate = jax.jvp(correlation, (features,), (2 / self.end * rates,))
        return self.mean + k @ self.weights, k_rate @ self.weights


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
    weights = solve_kernel(tuple(features / scale for scale in kernel.scales(unit)), kernel.share(), noise, deviation)
    at_nodes = mean + deviation - noise * weights
    return Interpolant(kernel, end, unit, features, weights, mean, at_nodes)
