"""The model, made of its parts.

z(0) ~ p(z0),   dz = f(t, z, u) dt + √q(t) dβ,   x_i ~ p(x | z(t_i))          generative
q(z(t) | window), a Gaussian at every t                                       inference
"""

import abc
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from ..data.windows import Window
from .base import AbstractPart, LinearReading
from .decoders import AbstractDecoder
from .encoders import AbstractEncoder
from .kernel import DeepKernel
from .likelihoods import AbstractLikelihood
from .posterior import AbstractGaussian, AbstractPosterior, Bridge, infer
from .sde import AbstractDiffusion, AbstractDrift


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

    def posterior(self, window: Window, *, key: PRNGKeyArray | None = None) -> AbstractPosterior:
        """q(z(t) | window). A key, in training, lets the encoder hide some of what follows."""
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
        return Draw(self.drift.median(), self.diffusion.median(), self.likelihood.median(), self.decoder.median())

    def draws(self, count: int, *, key: PRNGKeyArray) -> Draw:
        """So many independent ones, stacked."""
        return jax.vmap(lambda k: self.draw(key=k))(jax.random.split(key, count))

    def parameter_kl(self) -> Float[Array, ""]:
        """KL(q(θ) ‖ p(θ)) of all that `draw` draws."""
        return self.drift.kl() + self.diffusion.kl() + self.likelihood.kl() + self.decoder.kl()


class Model(AbstractGenerative):
    """Generative model and inference network together."""

    encoder: AbstractEncoder
    kernel: DeepKernel
    drift: AbstractDrift
    diffusion: AbstractDiffusion
    initial: AbstractGaussian
    decoder: AbstractDecoder
    likelihood: AbstractLikelihood
    bridge: Bridge | None = None
    rotation: bool = eqx.field(static=True, default=True)

    @property
    def reach(self) -> tuple[int, int]:
        return self.encoder.lookahead, self.encoder.margin

    @property
    def whole_rows(self) -> bool:
        return self.encoder.whole_rows

    def posterior(self, window: Window, *, key: PRNGKeyArray | None = None) -> AbstractPosterior:
        seen = eqx.tree_at(lambda w: w.values, window, self.likelihood.view(jnp.asarray(window.values)))
        return infer(self.encoder(seen, key=key), self.kernel, self.bridge, window)

    def states_at(
        self, window: Window, node: Int[Array, ""], num_samples: int, *, key: PRNGKeyArray
    ) -> tuple[Float[Array, "samples latent"], Draw]:
        normal = self.posterior(window).at_nodes().at(node)
        state_key, draw_key = jax.random.split(key)
        noise = jax.random.normal(state_key, (num_samples, *normal.mean.shape), normal.mean.dtype)
        return normal.state(noise), self.draws(num_samples, key=draw_key)

    def started_from(self, reading: LinearReading) -> "Model":
        """Every part where the reading of the data puts it."""

        def parts(model: "Model") -> list[AbstractPart]:
            found = [model.encoder, model.drift, model.diffusion, model.decoder, model.bridge]
            return [part for part in found if part is not None]

        return eqx.tree_at(parts, self, [part.started_from(reading) for part in parts(self)])
