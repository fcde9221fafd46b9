"""Decoders: one state z → one output for each channel, which a likelihood gives a meaning."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from ..runtime.host import array
from .base import AbstractPart, LinearReading
from .convolutions import TransposedConvNet
from .networks import MLP, Linear
from .prior import Weights

DECODERS = ("linear", "mlp", "conv", "identity")


class AbstractDecoder(AbstractPart):
    """outputs = DEC(z; θ) at one state; θ is what `draw` or `median` gave.

    `in_data_coordinates`: whether z is x itself, so that states have the channels' names and units. `affine`: whether outputs are
    linear in [z, 1], with the moments that `linearise` gives.
    """

    in_data_coordinates: ClassVar[bool] = False
    affine: ClassVar[bool] = False
    owner: ClassVar[str] = "the decoder"

    @abc.abstractmethod
    def __call__(self, z: Float[Array, " latent"], θ: PyTree[Array]) -> Float[Array, " channels"]:
        """The outputs for one draw of the decoder's parameters."""

    @abc.abstractmethod
    def draw(self, *, key: PRNGKeyArray) -> PyTree[Array]:
        """A reparametrised draw of all that is uncertain."""

    @abc.abstractmethod
    def kl(self) -> Float[Array, ""]:
        """KL(q(θ) ‖ p(θ))."""

    def linearise(
        self, z: Float[Array, " latent"]
    ) -> tuple[Float[Array, " channels"], Float[Array, "channels latent"], Float[Array, "channels latent"]]:
        """The mean outputs at z, their Jacobian, and the variances of its entries, as far as the weights are uncertain."""
        θ = self.median()
        slope = jax.jacfwd(lambda z: self(z, θ))(z)
        return self(z, θ), slope, jnp.zeros_like(slope)

    @abc.abstractmethod
    def median(self) -> PyTree[Array]:
        """The posterior median in place of a draw."""

    def concluded(
        self,
        squares: Float[Array, "channels latent_and_1 latent_and_1"],
        products: Float[Array, "channels latent_and_1"],
        variance: Float[Array, " channels"],
        rate: Float[Array, ""],
    ) -> AbstractDecoder:
        """Moved by `rate` towards what follows from Σ y yᵀ and Σ x y over the observations x of each channel, y = [z, 1], with
        noise of that variance (0: not this channel); unless nothing follows in closed form."""
        return self

    def at_many(self, z: Float[Array, "latent n"], θ: PyTree[Array]) -> Float[Array, "channels n"]:
        """The outputs at many states along the last axis."""
        return jax.vmap(self, in_axes=(-1, None), out_axes=-1)(z, θ)


class _CertainDecoder(AbstractDecoder):
    """Decoders with point-estimated weights, or none."""

    def draw(self, *, key: PRNGKeyArray) -> tuple[()]:
        return ()

    def median(self) -> tuple[()]:
        return ()

    def kl(self) -> Float[Array, ""]:
        return jnp.zeros(())


class Identity(_CertainDecoder):
    """x = z: dynamics are learned in the data's own coordinates."""

    in_data_coordinates: ClassVar[bool] = True
    affine: ClassVar[bool] = True

    def __call__(self, z: Float[Array, " size"], θ: tuple[()]) -> Float[Array, " size"]:
        return z


class LinearDecoder(AbstractDecoder):
    """outputs = C z + b with C uncertain: N(μ, σ²) against N(0, τ_k²), a τ for each latent axis.

    An axis that a channel does not need costs nothing at zero; fitted freely, forty channels read from eight axes add as
    much error to the smoothed signal as the state itself.
    """

    weights: Weights
    bias: Float[Array, " channels"]
    affine: ClassVar[bool] = True

    def __init__(self, latent_size: int, bias: Float[np.ndarray, " channels"], *, rng: np.random.Generator):
        weights = Weights(len(bias), latent_size, prior_std=0.5, start_std=0.02, by_column=True)
        start = array(rng.standard_normal(weights.mean.shape) / np.sqrt(latent_size))
        self.weights = eqx.tree_at(lambda w: w.mean, weights, start)
        self.bias = array(bias)

    def __call__(self, z: Float[Array, " latent"], θ: Float[Array, "channels latent"]) -> Float[Array, " channels"]:
        return θ @ z + self.bias

    def draw(self, *, key: PRNGKeyArray) -> Float[Array, "channels latent"]:
        return self.weights.sample(key=key)

    def median(self) -> Float[Array, "channels latent"]:
        return self.weights.mean

    def linearise(
        self, z: Float[Array, " latent"]
    ) -> tuple[Float[Array, " channels"], Float[Array, "channels latent"], Float[Array, "channels latent"]]:
        return self(z, self.weights.mean), self.weights.mean, jnp.exp(2 * self.weights.log_std)

    def kl(self) -> Float[Array, ""]:
        return self.weights.kl()

    def concluded(
        self,
        squares: Float[Array, "channels latent_and_1 latent_and_1"],
        products: Float[Array, "channels latent_and_1"],
        variance: Float[Array, " channels"],
        rate: Float[Array, ""],
    ) -> LinearDecoder:
        known, v = variance > 0, jnp.where(variance > 0, variance, 1.0)
        here = jnp.concatenate([self.weights.mean, self.bias[:, None]], axis=1)
        prior = jnp.append(jnp.exp(-2 * self.weights.log_prior_std), 0.0)
        precision = squares / v[:, None, None] + jnp.diag(prior)
        scale = jax.lax.rsqrt(jnp.diagonal(precision, axis1=1, axis2=2) + 1e-12)
        even = precision * scale[:, :, None] * scale[:, None, :] + 1e-6 * jnp.eye(len(prior))
        best = scale * jax.lax.map(lambda p: jnp.linalg.solve(*p), (even, scale * products / v[:, None]))
        there = jnp.where(known[:, None], here + rate * (best - here), here)
        std = jnp.where(
            known[:, None], scale[:, :-1], jnp.exp(self.weights.log_std)
        )  # independent entries: 1/√precision
        weights = self.weights.concluded(there[:, :-1], std, rate)
        return eqx.tree_at(lambda d: (d.weights, d.bias), self, (weights, there[:, -1]))

    def started_from(self, reading: LinearReading) -> LinearDecoder:
        C = reading.read_out
        spread = array(np.log(np.sqrt(np.mean(C**2, axis=0)) + 1e-3))
        start = (array(C), spread, array(reading.intercept))
        return eqx.tree_at(lambda d: (d.weights.mean, d.weights.log_prior_std, d.bias), self, start)


class NetworkDecoder(_CertainDecoder):
    """outputs = net(z), or linear(z) + net(z): what is nearly linear is then learned at once, the rest on top of it."""

    net: MLP | TransposedConvNet
    linear: Linear | None = None

    def __call__(self, z: Float[Array, " latent"], θ: tuple[()]) -> Float[Array, " channels"]:
        return self._outputs(z)

    def at_many(self, z: Float[Array, "latent n"], θ: tuple[()]) -> Float[Array, "channels n"]:
        # All in one product for each layer. By exact type: a subclass may override `__call__` alone.
        return self._outputs(z) if type(self) is NetworkDecoder else AbstractDecoder.at_many(self, z, θ)

    def _outputs(self, z: Float[Array, "latent ..."]) -> Float[Array, "channels ..."]:
        return self.net(z) if self.linear is None else self.linear(z) + self.net(z)

    def started_from(self, reading: LinearReading) -> NetworkDecoder:
        if self.linear is None:
            return self
        start = (array(reading.read_out), array(reading.intercept))
        return eqx.tree_at(lambda d: (d.linear.weight, d.linear.bias), self, start)


class OwnDecoder(_CertainDecoder):
    """A user's own module or function of one state."""

    module: Callable[[Array], Array]
    own: ClassVar[bool] = True
    owner: ClassVar[str] = "your decoder"

    def __call__(self, z: Float[Array, " latent"], θ: tuple[()]) -> Float[Array, " channels"]:
        return self.module(z)


def decode_draws(
    decoder: AbstractDecoder, z: Float[Array, "latent draws n"], θ: PyTree[Float[Array, "draws ..."]]
) -> Float[Array, "channels draws n"]:
    """The outputs at each draw's states. Where nothing is drawn for the decoder, all states are one batch."""
    if jax.tree.leaves(θ):
        return jax.vmap(decoder.at_many, in_axes=(1, 0), out_axes=1)(z, θ)
    return decoder.at_many(z.reshape(len(z), -1), θ).reshape(-1, *z.shape[1:])
