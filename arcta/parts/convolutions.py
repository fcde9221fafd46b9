"""Convolutions for frames as matrix products. Like all networks here they take one example, or many along the last axes."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..runtime.host import array, uniform
from .networks import ACTIVATIONS, Linear, along, mix


def _padded(x: Float[Array, "channels height width ..."]) -> Float[Array, "channels more_height more_width ..."]:
    return jnp.pad(x, ((0, 0), (1, 1), (1, 1), *((0, 0),) * (x.ndim - 3)))


def image_shape(frame_shape: tuple[int, ...]) -> tuple[int, int, int]:
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
        return along(self.weight, x) * scaled.reshape(x.shape) + along(self.bias, x)


class Halve(eqx.Module):
    """A 4 × 4 convolution of stride 2 (padding 1): frames of half the height and width.

    Written as patches and one matrix product: XLA's convolutions are slow on a CPU, their gradients very slow.
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
        return mix(self.weight, jnp.concatenate(patches)) + along(self.bias, x)


class Double(eqx.Module):
    """The transpose of such a convolution: frames of twice the height and width.

    Each output pixel depends on 2 × 2 input pixels, which ones by its phase (odd or even row, odd or even column). All pixels times
    all sixteen entries of the kernel are one matrix product; a phase is the sum of four of them, each shifted by a pixel or not.
    (Collecting the four pixels first makes the product larger and copies more.)
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
        spread = mix(weight.reshape(-1, channels), x).reshape(4, 4, -1, *x.shape[1:])

        def phase(a: int, b: int) -> Array:
            shifts = ((i, j) for i in range(2) for j in range(2))
            return functools.reduce(
                jnp.add, (_shifted(spread[2 * a + b, 2 * i + j], a + i - 1, b + j - 1) for i, j in shifts)
            )

        rows = [jnp.stack([phase(a, 0), phase(a, 1)], axis=3) for a in range(2)]  # even and odd columns side by side
        whole = jnp.stack(rows, axis=2).reshape(-1, 2 * height, 2 * width, *examples)
        return whole + along(self.bias, x)


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


class TransposedConvNet(eqx.Module):
    """Vector → frame: a linear layer, then two transposed convolutions of stride 2, flattened as the data is."""

    first: Linear
    norm: GroupNorm
    convolutions: tuple[Double, Double]
    activation: Callable[[Array], Array] = eqx.field(static=True)
    small: tuple[int, int, int] = eqx.field(static=True)

    def __init__(
        self, in_size: int, frame_shape: tuple[int, ...], activation: str = "silu", *, rng: np.random.Generator
    ):
        colours, height, width = image_shape(frame_shape)
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
