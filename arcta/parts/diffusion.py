"""The diffusion q(t) of dz = f dt + √q(t) dβ, diagonal and positive; at one time."""

import abc

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from .base import AbstractPart, LinearReading
from .networks import MLP
from .prior import LogNormal, Parameter

DIFFUSIONS = ("constant", "time-dependent")
Time = Float[Array, ""]


class AbstractDiffusion(AbstractPart):
    """q(t; θ) at one time, positive, one for each latent axis; `level` is the parameter that a table of results shows."""

    level: eqx.AbstractVar[Parameter]

    @abc.abstractmethod
    def __call__(self, t: Time, θ: Float[Array, " latent"]) -> Float[Array, " latent"]:
        """The diffusion for one draw."""

    @abc.abstractmethod
    def draw(self, *, key: PRNGKeyArray) -> Float[Array, " latent"]:
        """A reparametrised draw."""

    @abc.abstractmethod
    def median(self) -> Float[Array, " latent"]:
        """The posterior median in place of a draw."""

    @abc.abstractmethod
    def kl(self) -> Float[Array, ""]:
        """KL(q(θ) ‖ p(θ))."""

    def climb(
        self, slope: Float[Array, " latent"], information: Float[Array, "latent latent"], rate: Float[Array, ""]
    ) -> "AbstractDiffusion":
        """With its level moved up a log-likelihood with that slope and curvature in its logarithm (`Parameter.climb`)."""
        return eqx.tree_at(lambda d: d.level, self, self.level.climb(slope, information, rate))


class Diffusion(AbstractDiffusion):
    """q(t) = θ, or θ · exp(net(t/span)) when time-dependent."""

    level: Parameter
    net: MLP | None
    span: float = eqx.field(static=True)

    def __init__(
        self,
        level: Parameter | None = None,
        latent_size: int = 1,
        *,
        span: float | None = None,
        hidden_sizes: tuple[int, ...] = (16,),
        rng: np.random.Generator,
    ):
        self.level = LogNormal(np.full(latent_size, 0.1), 3.0, start=1e-2) if level is None else level
        self.net = None if span is None else MLP((1, *hidden_sizes, latent_size), "tanh", zero_last=True, rng=rng)
        self.span = 1.0 if span is None else span

    def __call__(self, t: Time, θ: Float[Array, " latent"]) -> Float[Array, " latent"]:
        if self.net is None:
            return θ
        return θ * jnp.exp(self.net(jnp.asarray(t / self.span, θ.dtype)[None]))

    def draw(self, *, key: PRNGKeyArray) -> Float[Array, " latent"]:
        return self.level.sample(key=key)

    def median(self) -> Float[Array, " latent"]:
        return self.level.quantile(0.5)

    def kl(self) -> Float[Array, ""]:
        return self.level.kl()

    def started_from(self, reading: LinearReading) -> "Diffusion":
        if reading.diffusion is None:
            return self
        return eqx.tree_at(lambda d: d.level, self, self.level.started_at(reading.diffusion))
