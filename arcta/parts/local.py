"""The default encoder: lines through the observations around each node, from both sides, and what oscillates in its own frame."""

import math
from collections.abc import Sequence
from typing import ClassVar, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from ..data.windows import Window
from ..runtime.host import array
from .base import LinearReading
from .encoders import AbstractEncoder, hide_future
from .networks import MLP
from .posterior import Nodes, encode, encoding_size

Numbers = Array | np.ndarray


class Lines(NamedTuple):
    """Level a and slope c (per bandwidth) at each time and for each channel, and their variances per unit of noise variance."""

    level: Float[Numbers, "n channels"]
    slope: Float[Numbers, "n channels"]
    level_variance: Float[Numbers, "n channels"]
    slope_variance: Float[Numbers, "n channels"]


def local_lines(
    times: Float[Numbers, " n"],
    values: Float[Numbers, "n channels"],
    mask: Bool[Numbers, "n channels"],
    bandwidth: Float[Array, ""] | float,
    ridge: Float[Numbers, " channels"] | float,
    *,
    leave_out: bool = False,
) -> Lines:
    """At each time and for each channel a weighted line through the observations around it, from both sides.

        min over a, c   Σ_j w_j (x_j − a − c τ_j)² + ridge (a² + c²),      τ_j = (t_j − t)/bandwidth,   w_j = exp(−τ_j²/2)

    The variances are those of a and c given observations of variance 1/w_j: a far observation says little of the line here. Where
    nothing is near, a = c = 0 with variance 1/ridge. `leave_out` predicts each observation from the others. Arrays of either
    library, NumPy's or JAX's.
    """
    xp = times.__array_namespace__()
    tau = (times[None, :] - times[:, None]) / bandwidth
    weight = xp.exp(-0.5 * tau**2)
    weight = weight * (1 - xp.eye(len(times), dtype=weight.dtype)) if leave_out else weight
    seen = mask.astype(values.dtype)
    x = xp.where(mask, values, 0)
    s0, s1, s2 = (w @ seen for w in (weight, weight * tau, weight * tau**2))
    t0, t1 = weight @ x, (weight * tau) @ x
    s0, s2 = s0 + ridge, s2 + ridge
    determinant = s0 * s2 - s1**2
    level, slope = (s2 * t0 - s1 * t1) / determinant, (s0 * t1 - s1 * t0) / determinant
    return Lines(level, slope, s2 / determinant, s0 / determinant)


BANDWIDTHS = (1.0, 2.5)  # of the lines through the observations, in units of the first


class LocalEncoder(AbstractEncoder):
    """All nodes of a window at once, each from lines through the observations around it, at two bandwidths.

    Level and slope of every channel (`local_lines`) are projected on a few fixed components of the channels; these go
    through a linear map plus an MLP to the state's mean. The variances of the lines, through the squares of the maps, set
    the state's variance, which the MLP corrects. So missing entries, gaps and the end of a series widen the posterior as
    they should before anything is learned.

    What oscillates is smoothed further in its own rotating frame: the encodings are written in modes, each mode is turned
    back by its frequency, averaged over a wider stretch, and turned forth again,

        m_i = h_i + K (V e^{iωt_i} Σ_j w_ij e^{−iωt_j} V⁻¹ h_j − h_i),      Σ_j w_ij = 1

    so that averaging over half a period costs no amplitude. V, ω start at the modes of the linear dynamics; V is fixed, ω,
    the width of w and K are learned.
    """

    project: Float[Array, "channels components"]
    linear: Float[Array, "latent features"]
    net: MLP
    log_bandwidth: Float[Array, " bandwidths"]
    modes: Float[Array, "4 latent latent"]
    frequency: Float[Array, " latent"]
    log_width: Float[Array, ""]
    gain: Float[Array, "latent latent"]
    log_scale: Float[Array, " latent"]
    ridge: Float[Array, " channels"]
    shift: Float[Array, " channels"]
    scale: Float[Array, " channels"]
    margin: int = eqx.field(static=True)
    dropout: float = eqx.field(static=True)
    lookahead: int = eqx.field(static=True, default=0)
    whole_rows: bool = eqx.field(static=True, default=False)
    bridged: ClassVar[bool] = True
    start: ClassVar[Literal["reading", "imitation", "as built"]] = "reading"

    def __init__(
        self,
        num_channels: int,
        latent_size: int,
        *,
        bandwidth: float,
        noise: Float[np.ndarray, " channels"],
        hidden_sizes: Sequence[int] = (32, 32),
        activation: str = "silu",
        reach: tuple[int, float] = (0, 0.0),
        full: bool = False,
        rng: np.random.Generator,
    ):
        """`noise`: of each channel, a standard deviation; `reach`: the margin, and how often what follows is hidden in training;
        `full`: what the posterior's covariance is."""
        components = min(num_channels, max(latent_size, 8))
        num_features = 2 * len(BANDWIDTHS) * components
        self.project = array(np.eye(num_channels, components))
        self.linear = array(rng.standard_normal((latent_size, num_features)) / math.sqrt(num_features))
        sizes = (num_features + components + 1, *hidden_sizes, encoding_size(latent_size, full=full))
        self.net = MLP(sizes, activation, zero_last=True, rng=rng)
        self.log_bandwidth = array(np.log(bandwidth * np.array(BANDWIDTHS)))
        one, none = np.eye(latent_size), np.zeros((latent_size, latent_size))
        self.modes = array([one, none, one, none])  # V and V⁻¹, real and imaginary
        self.frequency = array(np.zeros(latent_size))
        self.log_width = array(np.log(3.0 * bandwidth))
        self.gain = array(0.5 * one)
        self.log_scale = array(np.zeros(latent_size))
        self.ridge = array(np.square(noise))
        self.shift, self.scale = array(np.zeros(num_channels)), array(np.ones(num_channels))
        self.margin, self.dropout = reach
        self.lookahead, self.whole_rows = 0, False

    def features(
        self, times: Float[Array, " n"], values: Float[Array, "n channels"], mask: Bool[Array, "n channels"]
    ) -> tuple[Float[Array, "n features"], Float[Array, "n features"]]:
        """Levels and slopes of the components, bandwidth by bandwidth, and the variances that the noise gives them."""
        fixed = (self.ridge, self.shift, self.scale, self.project)
        ridge, shift, scale, project = jax.lax.stop_gradient(fixed)
        x = (values - shift) / scale
        fits = [local_lines(times, x, mask, jnp.exp(b), ridge) for b in self.log_bandwidth]
        lines = [part @ project for fit in fits for part in (fit.level, fit.slope)]
        squares = ridge[:, None] * project**2
        variances = [part @ squares for fit in fits for part in (fit.level_variance, fit.slope_variance)]
        return jnp.concatenate(lines, axis=1), jnp.concatenate(variances, axis=1)

    def _averaged(self, times: Array, h: Array, log_variance: Array, seen: Array) -> tuple[Array, Array]:
        """Σ_j w_ij of the encodings in the rotating frame, and log Σ_j before the weights are made to sum to one."""
        real, imaginary, inverse_real, inverse_imaginary = jax.lax.stop_gradient(self.modes)
        trust = jnp.where(
            seen, jnp.mean(log_variance, axis=1), jnp.inf
        )  # rows without an observation count for nothing
        near = jnp.exp(-0.5 * ((times[:, None] - times[None, :]) / jnp.exp(self.log_width)) ** 2)
        weight = near * jnp.exp(jnp.min(trust) - trust)
        total = jnp.maximum(jnp.sum(weight, axis=1, keepdims=True), 1e-12)
        a, b = h @ inverse_real.T, h @ inverse_imaginary.T
        cos, sin = jnp.cos(times[:, None] * self.frequency), jnp.sin(times[:, None] * self.frequency)
        back = weight @ (cos * a + sin * b) / total, weight @ (cos * b - sin * a) / total
        forth = cos * back[0] - sin * back[1], cos * back[1] + sin * back[0]
        return forth[0] @ real.T - forth[1] @ imaginary.T, jnp.log(total)

    def __call__(self, window: Window, *, key: PRNGKeyArray | None = None) -> Nodes:
        mask, node = hide_future(window, self.dropout, key)
        times, values = jnp.asarray(window.times), jnp.asarray(window.values)
        lines, variances = self.features(times, values, mask)
        components = self.project.shape[1]
        h = lines @ self.linear.T
        variance = variances @ jax.lax.stop_gradient(self.linear**2).T
        base = jnp.log(variance + 1e-6)
        averaged, count = self._averaged(times, h, jax.lax.stop_gradient(base), jnp.any(mask, axis=1))
        seen = jnp.concatenate([lines, jnp.log(variances[:, :components]), count], axis=1)
        mean = h + (averaged - h) @ self.gain.T
        return Nodes(encode(self.net(seen.T).T, mean, base + self.log_scale, len(self.linear)), node)

    def started_from(self, reading: LinearReading) -> "LocalEncoder":
        """Levels and slopes at the narrowest bandwidth alone give the state, to begin with."""
        linear = np.zeros(self.linear.shape)
        linear[:, : reading.axes.shape[1]] = reading.axes
        start = (array(reading.shift), array(reading.scale), array(reading.components), array(linear))
        started = eqx.tree_at(lambda e: (e.shift, e.scale, e.project, e.linear), self, start)
        return started._in_modes(reading.dynamics)

    def _in_modes(self, A: Float[np.ndarray, "latent latent"]) -> "LocalEncoder":
        """This encoder averaging in the modes of linear dynamics, if those are well apart."""
        values, vectors = np.linalg.eig(A)
        if np.linalg.cond(vectors) > 100:
            return self
        inverse = np.linalg.inv(vectors)
        modes = np.stack([np.real(vectors), np.imag(vectors), np.real(inverse), np.imag(inverse)])
        return eqx.tree_at(lambda e: (e.modes, e.frequency), self, (array(modes), array(np.imag(values))))
