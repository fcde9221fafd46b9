"""Networks: MLPs, convolutional stacks for frames, the encoders and the decoders.

    h_i = ENC(observations around t_i) ∈ R^{2d}          DEC: z ∈ R^d → one output per channel

All but `LocalEncoder` see one example; the caller `vmap`s. Nothing here knows of time integrals or likelihoods.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "silu": jax.nn.silu,
    "relu": jax.nn.relu,
    "tanh": jnp.tanh,
    "softplus": jax.nn.softplus,
    "gelu": jax.nn.gelu,
}


class MLP(eqx.Module):
    """Linear layers of the given sizes with an activation between them.

    With `zero_last` the last layer starts at zero, so that the network starts as the constant 0.
    """

    layers: tuple[eqx.nn.Linear, ...]
    activation: Callable[[Array], Array] = eqx.field(static=True)

    def __init__(self, sizes: Sequence[int], activation: str = "silu", *, zero_last: bool = False, key: PRNGKeyArray):
        keys = jax.random.split(key, len(sizes) - 1)
        layers = [eqx.nn.Linear(a, b, key=k) for a, b, k in zip(sizes[:-1], sizes[1:], keys, strict=True)]
        if zero_last:
            last = layers[-1]
            layers[-1] = eqx.tree_at(
                lambda layer: (layer.weight, layer.bias), last, (0 * last.weight, jnp.zeros(last.out_features))
            )
        self.layers = tuple(layers)
        self.activation = ACTIVATIONS[activation]

    def __call__(self, x: Float[Array, " in_size"]) -> Float[Array, " out_size"]:
        for layer in self.layers[:-1]:
            x = self.activation(layer(x))
        return self.layers[-1](x)


class SkipMLP(eqx.Module):
    """A linear map plus an MLP that starts at zero: what is nearly linear is learned at once, the rest on top of it."""

    linear: eqx.nn.Linear
    net: MLP | None

    def __init__(self, sizes: Sequence[int], activation: str = "silu", *, correct: bool = True, key: PRNGKeyArray):
        linear, net = jax.random.split(key)
        self.linear = eqx.nn.Linear(sizes[0], sizes[-1], key=linear)
        self.net = MLP(sizes, activation, zero_last=True, key=net) if correct else None

    def __call__(self, x: Float[Array, " in_size"]) -> Float[Array, " out_size"]:
        return self.linear(x) if self.net is None else self.linear(x) + self.net(x)


def _image(frame_shape: tuple[int, ...]) -> tuple[int, int, int]:
    """(height, width[, colours]) as (colours, height, width)."""
    height, width, *colours = frame_shape
    if height % 4 or width % 4:
        raise ValueError(
            f"frames need a height and a width divisible by 4; got {height} x {width}. Crop or pad the frames."
        )
    return math.prod(colours), height, width


class ConvNet(eqx.Module):
    """Frames → vector: two stride-2 convolutions, each with a norm over the one example, then a linear layer."""

    convolutions: tuple[eqx.nn.Conv2d, ...]
    norms: tuple[eqx.nn.GroupNorm, ...]
    last: eqx.nn.Linear
    activation: Callable[[Array], Array] = eqx.field(static=True)

    def __init__(
        self, in_channels: int, height: int, width: int, out_size: int, activation: str = "silu", *, key: PRNGKeyArray
    ):
        first, second, last = jax.random.split(key, 3)
        self.convolutions = (
            eqx.nn.Conv2d(in_channels, 32, 4, stride=2, padding=1, key=first),
            eqx.nn.Conv2d(32, 64, 4, stride=2, padding=1, key=second),
        )
        self.norms = (eqx.nn.GroupNorm(8, 32), eqx.nn.GroupNorm(8, 64))
        self.last = eqx.nn.Linear(64 * (height // 4) * (width // 4), out_size, key=last)
        self.activation = ACTIVATIONS[activation]

    def __call__(self, x: Float[Array, "colours height width"]) -> Float[Array, " out_size"]:
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = self.activation(norm(convolution(x)))
        return self.last(x.reshape(-1))


class ConvDecoder(eqx.Module):
    """Vector → frame: a linear layer, then two transposed convolutions of stride 2, flattened as the data is."""

    first: eqx.nn.Linear
    norm: eqx.nn.GroupNorm
    convolutions: tuple[eqx.nn.ConvTranspose2d, eqx.nn.ConvTranspose2d]
    activation: Callable[[Array], Array] = eqx.field(static=True)
    small: tuple[int, int, int] = eqx.field(static=True)

    def __init__(self, in_size: int, frame_shape: tuple[int, ...], activation: str = "silu", *, key: PRNGKeyArray):
        colours, height, width = _image(frame_shape)
        first, second, third = jax.random.split(key, 3)
        self.small = (64, height // 4, width // 4)
        self.first = eqx.nn.Linear(in_size, math.prod(self.small), key=first)
        self.norm = eqx.nn.GroupNorm(8, 32)
        self.convolutions = (
            eqx.nn.ConvTranspose2d(64, 32, 4, stride=2, padding=1, key=second),
            eqx.nn.ConvTranspose2d(32, colours, 4, stride=2, padding=1, key=third),
        )
        self.activation = ACTIVATIONS[activation]

    def __call__(self, z: Float[Array, " in_size"]) -> Float[Array, " channels"]:
        up, out = self.convolutions
        x = self.activation(self.first(z)).reshape(self.small)
        frame = out(self.activation(self.norm(up(x))))
        return jnp.moveaxis(frame, 0, -1).reshape(-1)


class Identity(eqx.Module):
    """x = z: dynamics are learned in the data's own coordinates."""

    def __call__(self, z: Float[Array, " size"]) -> Float[Array, " size"]:
        return z


class WindowEncoder(eqx.Module):
    """One observation and its K successors → [mean, log-variance] of the latent state there.

    The network sees values × mask, the mask and the time steps between the observations; what is missing (a channel, or
    the successors at the end of a series) is masked, so every observation can be encoded. With `residual` the
    observation itself is added to the mean, for learning in the data's own coordinates.
    """

    net: MLP | ConvNet
    log_variance: Float[Array, ""]
    frame_shape: tuple[int, ...] | None = eqx.field(static=True)
    lookahead: int = eqx.field(static=True)
    latent_size: int = eqx.field(static=True)
    residual: bool = eqx.field(static=True)
    typical_step: float = eqx.field(static=True)

    def __init__(
        self,
        num_channels: int,
        latent_size: int,
        *,
        lookahead: int,
        hidden_sizes: Sequence[int] = (32, 32),
        activation: str = "silu",
        frame_shape: tuple[int, ...] | None = None,
        residual: bool = False,
        start_variance: float = 1e-2,
        typical_step: float = 1.0,
        key: PRNGKeyArray,
    ):
        if frame_shape is None:
            in_size = (lookahead + 1) * 2 * num_channels + lookahead
            sizes = (in_size, *hidden_sizes, 2 * latent_size)
            self.net = MLP(sizes, activation, zero_last=residual, key=key)
        else:
            colours, height, width = _image(frame_shape)
            self.net = ConvNet((lookahead + 1) * 2 * colours, height, width, 2 * latent_size, activation, key=key)
        self.log_variance = jnp.log(jnp.asarray(start_variance))
        self.frame_shape = frame_shape
        self.lookahead, self.latent_size = lookahead, latent_size
        self.residual, self.typical_step = residual, typical_step

    def _features(self, values: Array, mask: Array, steps: Array) -> Array:
        both = jnp.concatenate([values, mask.astype(values.dtype)])
        if self.frame_shape is None:
            return jnp.concatenate([both.reshape(-1), steps])
        height, width, *colours = self.frame_shape
        frames = both.reshape(-1, height, width, math.prod(colours))
        return jnp.moveaxis(frames, -1, 1).reshape(-1, height, width)

    def __call__(
        self,
        values: Float[Array, "neighbours channels"],
        mask: Bool[Array, "neighbours channels"],
        steps: Float[Array, " lookahead"],
    ) -> Float[Array, " two_latent"]:
        values = jnp.where(mask, values, 0)
        h = self.net(self._features(values, mask, steps / self.typical_step))
        mean, log_variance = h[: self.latent_size], h[self.latent_size :] + self.log_variance
        if self.residual:
            mean = mean + values[0]
        return jnp.concatenate([mean, log_variance])


def local_lines(
    times: Float[Array, " n"],
    values: Float[Array, "n channels"],
    mask: Bool[Array, "n channels"],
    bandwidth: Float[Array, ""],
    ridge: Float[Array, " channels"],
) -> tuple[Float[Array, "n channels"], Float[Array, "n channels"], Float[Array, "n channels"], Float[Array, "n channels"]]:
    """At each time and for each channel a weighted line through the observations around it, from both sides.

        min over a, c   Σ_j w_j (x_j − a − c τ_j)² + ridge (a² + c²),      τ_j = (t_j − t)/bandwidth,   w_j = exp(−τ_j²/2)

    **Returns:** level a, slope c (per bandwidth) and the variances of both per unit of noise variance; where nothing is
    near, a = c = 0 with variance 1/ridge.
    """
    tau = (times[None, :] - times[:, None]) / bandwidth
    weight = jnp.exp(-0.5 * tau**2)
    seen = mask.astype(values.dtype)
    x = jnp.where(mask, values, 0)
    s0, s1, s2 = (w @ seen for w in (weight, weight * tau, weight * tau**2))
    t0, t1 = weight @ x, (weight * tau) @ x
    s0, s2 = s0 + ridge, s2 + ridge
    determinant = s0 * s2 - s1**2
    return (
        (s2 * t0 - s1 * t1) / determinant,
        (s0 * t1 - s1 * t0) / determinant,
        s2 / determinant,
        s0 / determinant,
    )


class LocalEncoder(eqx.Module):
    """All nodes of a window at once, each from lines through the observations around it, at two bandwidths.

    Level and slope of every channel (`local_lines`) go through a linear map plus an MLP to the state's mean; the
    variances of the lines, through the squares of the linear map, set the state's variance, which the MLP corrects. So
    missing entries, gaps and the end of a series widen the posterior as they should before anything is learned.
    """

    linear: Float[Array, "latent features"]
    net: MLP
    log_bandwidth: Float[Array, " 2"]
    log_scale: Float[Array, " latent"]
    ridge: Float[Array, " channels"]
    shift: Float[Array, " channels"]
    scale: Float[Array, " channels"]
    lookahead: int = eqx.field(static=True, default=0)

    def __init__(
        self,
        num_channels: int,
        latent_size: int,
        *,
        bandwidth: float,
        noise: Float[Array, " channels"],
        hidden_sizes: Sequence[int] = (32, 32),
        activation: str = "silu",
        key: PRNGKeyArray,
    ):
        first, second = jax.random.split(key)
        self.linear = jax.random.normal(first, (latent_size, 4 * num_channels)) / math.sqrt(4 * num_channels)
        self.net = MLP((5 * num_channels, *hidden_sizes, 2 * latent_size), activation, zero_last=True, key=second)
        self.log_bandwidth = jnp.log(jnp.array([bandwidth, 2.5 * bandwidth]))
        self.log_scale = jnp.zeros(latent_size)
        self.ridge = jnp.asarray(noise, float) ** 2
        self.shift, self.scale = jnp.zeros(num_channels), jnp.ones(num_channels)

    def features(
        self, times: Float[Array, " n"], values: Float[Array, "n channels"], mask: Bool[Array, "n channels"]
    ) -> tuple[Float[Array, "n features"], Float[Array, "n features"]]:
        """Levels and slopes at both bandwidths, and their variances per unit of noise variance."""
        ridge, shift, scale = jax.lax.stop_gradient((self.ridge, self.shift, self.scale))
        x = (values - shift) / scale
        narrow, wide = (local_lines(times, x, mask, jnp.exp(b), ridge) for b in self.log_bandwidth)
        lines = jnp.concatenate([narrow[0], narrow[1], wide[0], wide[1]], axis=1)
        return lines, jnp.concatenate([narrow[2], narrow[3], wide[2], wide[3]], axis=1)

    def __call__(
        self, times: Float[Array, " n"], values: Float[Array, "n channels"], mask: Bool[Array, "n channels"]
    ) -> Float[Array, "n two_latent"]:
        lines, variances = self.features(times, values, mask)
        channels = values.shape[1]
        correction = jax.vmap(self.net)(jnp.concatenate([lines, jnp.log(variances[:, :channels])], axis=1))
        change, log_change = jnp.split(correction, 2, axis=1)
        noise = jnp.tile(jax.lax.stop_gradient(self.ridge), 4)
        variance = variances @ jax.lax.stop_gradient((self.linear**2 * noise).T)
        log_variance = jnp.log(variance + 1e-6) + self.log_scale + log_change
        return jnp.concatenate([lines @ self.linear.T + change, log_variance], axis=1)
