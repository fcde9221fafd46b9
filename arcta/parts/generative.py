"""The generative half of a model, made of its parts:  z(0) ~ p(z0),   dz = f(t, z, u) dt + √q(t) dβ,   x_i ~ p(x | z(t_i))."""

import abc
from typing import NamedTuple

import equinox as eqx
import jax
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from ..data.windows import Window
from .decoders import AbstractDecoder
from .diffusion import AbstractDiffusion
from .likelihoods import AbstractLikelihood
from .posterior import AbstractGaussian, AbstractPosterior
from .sde import AbstractDrift


class Draw(NamedTuple):
    """θ: one draw of everything uncertain but the state."""

    drift: PyTree[Array]
    diffusion: Float[Array, " latent"]
    likelihood: PyTree[Array]
    decoder: PyTree[Array] = ()


class AbstractGenerative(eqx.Module):
    """What makes series: dynamics, decoder and likelihood; in the model's units, unbatched."""

    drift: eqx.AbstractVar[AbstractDrift]
    diffusion: eqx.AbstractVar[AbstractDiffusion]
    initial: eqx.AbstractVar[AbstractGaussian]
    decoder: eqx.AbstractVar[AbstractDecoder]
    likelihood: eqx.AbstractVar[AbstractLikelihood]

    @property
    @abc.abstractmethod
    def reach(self) -> tuple[int, int]:
        """K and B: the look-ahead and the margin that its windows must have."""

    @property
    def whole_rows(self) -> bool:
        """Whether rows that lack single channels are taken for whole ones."""
        return False

    @property
    def refined(self) -> bool:
        """Whether states are inferred by the model's own flow, unless asked otherwise."""
        return False

    def amortised(self, window: Window, *, key: PRNGKeyArray | None = None) -> AbstractPosterior:
        """The encoder's q(z(t) | window). A key, in training, lets the encoder hide some of what follows."""
        raise ValueError("this model has no posterior over time to refine; leave refine= out, or train a LatentSDE.")

    @abc.abstractmethod
    def states_at(
        self, window: Window, node: Int[Array, ""], num_samples: int, *, key: PRNGKeyArray
    ) -> tuple[Float[Array, "samples latent"], Draw]:
        """Draws of the state at a node of a window, given the window, and with each one of the parameters."""

    def draw(self, *, key: PRNGKeyArray) -> Draw:
        """Reparametrised draws of the parameters of drift, diffusion, likelihood and decoder."""
        drift, diffusion, likelihood, decoder = jax.random.split(key, 4)
        return Draw(
            self.drift.draw(key=drift),
            self.diffusion.draw(key=diffusion),
            self.likelihood.draw(key=likelihood),
            self.decoder.draw(key=decoder),
        )

    def median(self) -> Draw:
        """The posterior medians in place of a draw."""
        return Draw(self.drift.median(), self.diffusion.median(), self.likelihood.typical(), self.decoder.median())

    def draws(self, count: int, *, key: PRNGKeyArray) -> Draw:
        """So many independent ones, stacked."""
        return jax.vmap(lambda k: self.draw(key=k))(jax.random.split(key, count))

    def parameter_kl(self) -> Float[Array, ""]:
        """KL(q(θ) ‖ p(θ)) of all that `draw` draws."""
        return self.drift.kl() + self.diffusion.kl() + self.likelihood.kl() + self.decoder.kl()
