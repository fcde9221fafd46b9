"""Networks: MLPs, convolutional stacks for frames, the encoders and the decoders.

    h_i = ENC(observations around t_i) ∈ R^{2d}          DEC: z ∈ R^d → one output per channel

Networks take one example, or many along the last axes; encoders all nodes of a window. Nothing here knows of time integrals or
likelihoods.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from .host import array, uniform


@jax.custom_jvp
def tanh(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """tanh whose derivative also reads x, if only to see where floats have reached ±1. So x stays in memory: where tanh is written
    over its argument, XLA's light compilation (`compiled`) does not vectorise it (30 × 299 numbers in 31 µs instead of 6)."""
    return jnp.tanh(x)


@tanh.defjvp
def _tanh_slope(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    y = tanh(*primals)
    return y, tangents[0] * jnp.where(jnp.abs(primals[0]) >= 20, 0, 1 - y * y)


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "silu": jax.nn.silu,
    "relu": jax.nn.relu,
    "tanh": tanh,
    "softplus": jax.nn.softplus,
    "gelu": jax.nn.gelu,
}


def _along(values: Float[Array, " channels"], x: Array) -> Float[Array, "channels ..."]:
    """`values` by channel, to be added to x or multiplied with it."""
    return values.reshape(-1, *(1,) * (x.ndim - 1))


def _mix(weight: Float[Array, "out_size in_size"], x: Float[Array, "in_size ..."]) -> Float[Array, "out_size ..."]:
    """W x over all that follows the first axis, as a product of two matrices: XLA would transpose the derivatives of others."""
    return (weight @ x.reshape(len(x), -1)).reshape(-1, *x.shape[1:])


def _padded(x: Float[Array, "channels height width ..."]) -> Float[Array, "channels more_height more_width ..."]:
    return jnp.pad(x, ((0, 0), (1, 1), (1, 1), *((0, 0),) * (x.ndim - 3)))


class Linear(eqx.Module):
    """W x + b for one example, or for many along the last axes.

    (`vmap` would transpose before adding b; activation and the bias' derivative then run along the features, few at a time.
    MOCAP step, all ten draws decoded: 6.8 ms with it, 5.1 ms without.)
    """

    weight: Float[Array, "out_size in_size"]
    bias: Float[Array, " out_size"]

    def __init__(self, in_size: int, out_size: int, *, zero: bool = False, rng: np.random.Generator):
        shapes = ((out_size, in_size), (out_size,))
        self.weight, self.bias = (array(np.zeros(s)) if zero else uniform(rng, s, in_size) for s in shapes)

    def __call__(self, x: Float[Array, "in_size ..."]) -> Float[Array, "out_size ..."]:
        return _mix(self.weight, x) + _along(self.bias, x)


def pushed(
    activation: Callable[[Array], Array], x: Float[Array, "k *points size"], dx: Float[Array, "d *points size"]
) -> tuple[Float[Array, "k *points size"], Float[Array, "d *points size"]]:
    """The activation at k points, and its derivatives along d directions at the first of them."""
    first, others = jnp.split(x, [1])
    value, slope = jax.jvp(activation, (first,), (jnp.ones_like(first),))
    return jnp.concatenate([value, activation(others)]), slope * dx


class MLP(eqx.Module):
    """Linear layers of the given sizes with an activation between them.

    With `zero_last` the last layer starts at zero, so that the network starts as the constant 0.
    """

    layers: tuple[Linear, ...]
    activation: Callable[[Array], Array] = eqx.field(static=True)

    def __init__(
        self, sizes: Sequence[int], activation: str = "silu", *, zero_last: bool = False, rng: np.random.Generator
    ):
        *hidden, last = itertools.pairwise(sizes)
        self.layers = (*(Linear(*pair, rng=rng) for pair in hidden), Linear(*last, zero=zero_last, rng=rng))
        self.activation = ACTIVATIONS[activation]

    def __call__(self, x: Float[Array, "in_size ..."]) -> Float[Array, "out_size ..."]:
        for layer in self.layers[:-1]:
            x = self.activation(layer(x))
        return self.layers[-1](x)

    def tangents(
        self, x: Float[Array, "k *points in_size"], dx: Float[Array, "d *points in_size"]
    ) -> tuple[Float[Array, "k *points out_size"], Float[Array, "d *points out_size"]]:
        """The network at k points, and its derivatives along d directions at the first of them; features are the last axis here.

        What `jax.jvp` gives, but points and directions go through each layer in one matrix product. (Rotation term of our Lotka–
        Volterra model, one core, in a throw-away profile: a step of 0.28 ms instead of 0.31.)
        """
        for i, layer in enumerate(self.layers):
            if i > 0:
                x, dx = pushed(self.activation, x, dx)
            x, dx = jnp.split(jnp.concatenate([x, dx]) @ layer.weight.T, [len(x)])
            x = x + layer.bias
        return x, dx


class SkipMLP(eqx.Module):
    """A linear map plus an MLP that starts at zero: what is nearly linear is learned at once, the rest on top of it."""

    linear: Linear
    net: MLP

    def __init__(self, sizes: Sequence[int], activation: str = "silu", *, rng: np.random.Generator):
        self.linear = Linear(sizes[0], sizes[-1], rng=rng)
        self.net = MLP(sizes, activation, zero_last=True, rng=rng)

    def __call__(self, x: Float[Array, "in_size ..."]) -> Float[Array, "out_size ..."]:
        return self.linear(x) + self.net(x)


def _image(frame_shape: tuple[int, ...]) -> tuple[int, int, int]:
    """(height, width[, colours]) as (colours, height, width)."""
    height, width, *colours = frame_shape
    if height % 4 or width % 4:
        raise ValueError(
            f"frames need a height and a width divisible by 4; got {height} x {width}. Crop or pad the frames."
        )
    return math.prod(colours), height, width


def _shifted(
    x: Float[Array, "channels height width ..."], down: int, right: int
) -> Float[Array, "channels height width ..."]:
    """x[:, i + down, j + right] at (i, j), zero beyond the edges."""
    still = ((0, 0, 0),)
    padding = (*still, (-down, down, 0), (-right, right, 0), *still * (x.ndim - 3))
    return jax.lax.pad(x, jnp.zeros((), x.dtype), padding)


class GroupNorm(eqx.Module):
    """Channels by groups of an example to mean 0 and variance 1, then a scale and a shift for each channel."""

    weight: Float[Array, " channels"]
    bias: Float[Array, " channels"]
    groups: int = eqx.field(static=True)

    def __init__(self, groups: int, channels: int):
        self.weight, self.bias, self.groups = array(np.ones(channels)), array(np.zeros(channels)), groups

    def __call__(self, x: Float[Array, "channels height width ..."]) -> Float[Array, "channels height width ..."]:
        grouped = x.reshape(self.groups, -1, *x.shape[3:])
        centred = grouped - jnp.mean(grouped, axis=1, keepdims=True)
        scaled = centred * jax.lax.rsqrt(jnp.mean(centred**2, axis=1, keepdims=True) + 1e-5)
        return _along(self.weight, x) * scaled.reshape(x.shape) + _along(self.bias, x)


class Halve(eqx.Module):
    """A 4 × 4 convolution of stride 2 (padding 1): frames of half the height and width.

    Written as patches and one matrix product: XLA's convolutions are slow on a CPU, their gradients very slow (a step of the
    pendulum video's model in a throw-away profile: 3.1 s with `eqx.nn.Conv2d`, 0.1 s so).
    """

    weight: Float[Array, "out_channels patch"]
    bias: Float[Array, " out_channels"]

    def __init__(self, in_channels: int, out_channels: int, *, rng: np.random.Generator):
        self.weight = uniform(rng, (out_channels, 16 * in_channels), 16 * in_channels)
        self.bias = array(np.zeros(out_channels))

    def __call__(
        self, x: Float[Array, "in_channels height width ..."]
    ) -> Float[Array, "out_channels half_height half_width ..."]:
        _, height, width, *_ = x.shape
        padded = _padded(x)
        patches = [padded[:, i : i + height - 1 : 2, j : j + width - 1 : 2] for i in range(4) for j in range(4)]
        return _mix(self.weight, jnp.concatenate(patches)) + _along(self.bias, x)


class Double(eqx.Module):
    """The transpose of such a convolution: frames of twice the height and width.

    Each output pixel depends on 2 × 2 input pixels, which ones by its phase (odd or even row, odd or even column). All pixels times
    all sixteen entries of the kernel are one matrix product; a phase is the sum of four of them, each shifted by a pixel or not.
    (Collecting the four pixels first makes the product larger and copies more: the video step 130 ms so, 116 ms here.)
    """

    weight: Float[Array, "four out_channels patch"]
    bias: Float[Array, " out_channels"]

    def __init__(self, in_channels: int, out_channels: int, *, rng: np.random.Generator):
        self.weight = uniform(rng, (4, out_channels, 4 * in_channels), 4 * in_channels)
        self.bias = array(np.zeros(out_channels))

    def __call__(
        self, x: Float[Array, "in_channels height width ..."]
    ) -> Float[Array, "out_channels two_height two_width ..."]:
        channels, height, width, *examples = x.shape
        weight = jnp.moveaxis(self.weight.reshape(4, -1, 4, channels), 2, 1)  # phase, pixel, out, in
        spread = _mix(weight.reshape(-1, channels), x).reshape(4, 4, -1, *x.shape[1:])

        def phase(a: int, b: int) -> Array:
            shifts = ((i, j) for i in range(2) for j in range(2))
            return functools.reduce(
                jnp.add, (_shifted(spread[2 * a + b, 2 * i + j], a + i - 1, b + j - 1) for i, j in shifts)
            )

        rows = [jnp.stack([phase(a, 0), phase(a, 1)], axis=3) for a in range(2)]  # even and odd columns side by side
        whole = jnp.stack(rows, axis=2).reshape(-1, 2 * height, 2 * width, *examples)
        return whole + _along(self.bias, x)


class ConvNet(eqx.Module):
    """Frames → vector: two stride-2 convolutions, each with a norm over the one example, then a linear layer."""

    convolutions: tuple[Halve, Halve]
    norms: tuple[GroupNorm, ...]
    last: Linear
    activation: Callable[[Array], Array] = eqx.field(static=True)

    def __init__(
        self,
        in_channels: int,
        height: int,
        width: int,
        out_size: int,
        activation: str = "silu",
        *,
        rng: np.random.Generator,
    ):
        self.convolutions = (Halve(in_channels, 32, rng=rng), Halve(32, 64, rng=rng))
        self.norms = (GroupNorm(8, 32), GroupNorm(8, 64))
        self.last = Linear(64 * (height // 4) * (width // 4), out_size, rng=rng)
        self.activation = ACTIVATIONS[activation]

    def __call__(self, x: Float[Array, "colours height width ..."]) -> Float[Array, "out_size ..."]:
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = self.activation(norm(convolution(x)))
        return self.last(x.reshape(-1, *x.shape[3:]))


class ConvDecoder(eqx.Module):
    """Vector → frame: a linear layer, then two transposed convolutions of stride 2, flattened as the data is."""

    first: Linear
    norm: GroupNorm
    convolutions: tuple[Double, Double]
    activation: Callable[[Array], Array] = eqx.field(static=True)
    small: tuple[int, int, int] = eqx.field(static=True)

    def __init__(
        self, in_size: int, frame_shape: tuple[int, ...], activation: str = "silu", *, rng: np.random.Generator
    ):
        colours, height, width = _image(frame_shape)
        self.small = (64, height // 4, width // 4)
        self.first = Linear(in_size, math.prod(self.small), rng=rng)
        self.norm = GroupNorm(8, 32)
        self.convolutions = (Double(64, 32, rng=rng), Double(32, colours, rng=rng))
        self.activation = ACTIVATIONS[activation]

    def __call__(self, z: Float[Array, "in_size ..."]) -> Float[Array, "channels ..."]:
        up, out = self.convolutions
        x = self.activation(self.first(z)).reshape(*self.small, *z.shape[1:])
        frame = out(self.activation(self.norm(up(x))))
        return jnp.moveaxis(frame, 0, 2).reshape(-1, *z.shape[1:])


def columns(decoder: Callable[..., Array], z: Float[Array, "latent n"]) -> Float[Array, "channels n"]:
    """A decoder at many states; a user's own sees one at a time."""
    if isinstance(decoder, MLP | SkipMLP | ConvDecoder | Identity):
        return decoder(z)
    return jax.vmap(decoder, in_axes=-1, out_axes=-1)(z)


class Identity(eqx.Module):
    """x = z: dynamics are learned in the data's own coordinates."""

    def __call__(self, z: Float[Array, "size ..."]) -> Float[Array, "size ..."]:
        return z


class WindowEncoder(eqx.Module):
    """Each observation and its K successors → [mean, log-variance] of the latent state there.

    The network sees values × mask, the mask and the time steps between the observations; what is missing (a channel, or
    the successors at the end of a series) is masked, so every observation can be encoded. Where no row of the data lacks
    single channels (`whole_rows`), one flag a row is mask enough; a channel that is missing later counts as zero. With
    `residual` the observation itself is added to the mean, for learning in the data's own coordinates.
    """

    net: MLP | ConvNet
    log_variance: Float[Array, ""]
    frame_shape: tuple[int, ...] | None = eqx.field(static=True)
    lookahead: int = eqx.field(static=True)
    latent_size: int = eqx.field(static=True)
    residual: bool = eqx.field(static=True)
    typical_step: float = eqx.field(static=True)
    whole_rows: bool = eqx.field(static=True)

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
        whole_rows: bool = False,
        rng: np.random.Generator,
    ):
        self.whole_rows = whole_rows and frame_shape is None
        if frame_shape is None:
            in_size = (lookahead + 1) * (num_channels + (1 if self.whole_rows else num_channels)) + lookahead
            sizes = (in_size, *hidden_sizes, 2 * latent_size)
            self.net = MLP(sizes, activation, zero_last=residual, rng=rng)
        else:
            colours, height, width = _image(frame_shape)
            self.net = ConvNet((lookahead + 1) * 2 * colours, height, width, 2 * latent_size, activation, rng=rng)
        self.log_variance = array(np.log(start_variance))
        self.frame_shape = frame_shape
        self.lookahead, self.latent_size = lookahead, latent_size
        self.residual, self.typical_step = residual, typical_step

    def _frames(self, values: Array, mask: Array, frame_shape: tuple[int, ...]) -> Array:
        """What the convolutions see, nodes last."""
        values, mask = jnp.moveaxis(values, 0, -1), jnp.moveaxis(mask, 0, -1)
        # What moves is small beside what stands still: later frames come in as differences from the first. (Reading the
        # pendulum's velocity off five frames, R² after 300 steps: 0.31 from the frames, 0.96 from differences.)
        moved = jnp.where(mask[1:] & mask[:1], values[1:] - values[:1], 0)
        both = jnp.concatenate([values[:1], moved, mask.astype(values.dtype)])
        height, width, *colours = frame_shape
        frames = both.reshape(-1, height, width, math.prod(colours), values.shape[-1])
        return jnp.moveaxis(frames, 3, 1).reshape(-1, height, width, values.shape[-1])

    def __call__(
        self,
        values: Float[Array, "nodes neighbours channels"],
        mask: Bool[Array, "nodes neighbours flags"],
        steps: Float[Array, "nodes lookahead"],
    ) -> Float[Array, "nodes two_latent"]:
        mask = jnp.any(mask, axis=-1, keepdims=True) if self.whole_rows else mask
        if self.frame_shape is None:  # row by row, as the data lies; the first layer's product takes it from there
            # Neighbour by neighbour: masked as one array it takes 0.1 ms more of a MOCAP step of 1.8 ms (one core).
            seen = [jnp.where(mask[:, k], values[:, k], 0) for k in range(self.lookahead + 1)]
            flags = mask.astype(values.dtype).reshape(len(mask), -1)
            seen = jnp.concatenate([*seen, flags, steps / self.typical_step], axis=1).T
        else:
            seen = self._frames(jnp.where(mask, values, 0), mask, self.frame_shape)
        h = self.net(seen)
        mean, log_variance = h[: self.latent_size], h[self.latent_size :] + self.log_variance
        if self.residual:
            mean = mean + jnp.where(mask[:, 0], values[:, 0], 0).T
        return jnp.concatenate([mean, log_variance]).T


def local_lines(
    times: Float[Array, " n"],
    values: Float[Array, "n channels"],
    mask: Bool[Array, "n channels"],
    bandwidth: Float[Array, ""],
    ridge: Float[Array, " channels"],
) -> tuple[
    Float[Array, "n channels"], Float[Array, "n channels"], Float[Array, "n channels"], Float[Array, "n channels"]
]:
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


BANDWIDTHS = (1.0, 2.5)  # of the lines through the observations, in units of the first


class LocalEncoder(eqx.Module):
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
    lookahead: int = eqx.field(static=True, default=0)

    def __init__(
        self,
        num_channels: int,
        latent_size: int,
        *,
        bandwidth: float,
        noise: Float[np.ndarray, " channels"],
        hidden_sizes: Sequence[int] = (32, 32),
        activation: str = "silu",
        rng: np.random.Generator,
    ):
        components = min(num_channels, max(latent_size, 8))
        num_features = 2 * len(BANDWIDTHS) * components
        self.project = array(np.eye(num_channels, components))
        self.linear = array(rng.standard_normal((latent_size, num_features)) / math.sqrt(num_features))
        sizes = (num_features + components + 1, *hidden_sizes, 2 * latent_size)
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

    def features(
        self, times: Float[Array, " n"], values: Float[Array, "n channels"], mask: Bool[Array, "n channels"]
    ) -> tuple[Float[Array, "n features"], Float[Array, "n features"]]:
        """Levels and slopes of the components, bandwidth by bandwidth, and the variances that the noise gives them."""
        fixed = (self.ridge, self.shift, self.scale, self.project)
        ridge, shift, scale, project = jax.lax.stop_gradient(fixed)
        x = (values - shift) / scale
        fits = [local_lines(times, x, mask, jnp.exp(b), ridge) for b in self.log_bandwidth]
        lines = [part @ project for fit in fits for part in fit[:2]]
        variances = [part @ (ridge[:, None] * project**2) for fit in fits for part in fit[2:]]
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

    def __call__(
        self, times: Float[Array, " n"], values: Float[Array, "n channels"], mask: Bool[Array, "n channels"]
    ) -> Float[Array, "n two_latent"]:
        lines, variances = self.features(times, values, mask)
        components = self.project.shape[1]
        h = lines @ self.linear.T
        variance = variances @ jax.lax.stop_gradient(self.linear**2).T
        base = jnp.log(variance + 1e-6)
        averaged, count = self._averaged(times, h, jax.lax.stop_gradient(base), jnp.any(mask, axis=1))
        seen = jnp.concatenate([lines, jnp.log(variances[:, :components]), count], axis=1)
        change, log_change = jnp.split(self.net(seen.T).T, 2, axis=1)
        mean = h + (averaged - h) @ self.gain.T + change
        return jnp.concatenate([mean, base + self.log_scale + log_change], axis=1)
