"""The model: the generative half, and how the state is inferred.

q(z(t) | window), a Gaussian at every t: what the encoder says of the nodes, interpolated between them (`amortised`), or that
refined by the model's own flow (`smoother`).
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ..data.windows import Window
from .base import AbstractPart, LinearReading
from .decoders import AbstractDecoder
from .diffusion import AbstractDiffusion
from .encoders import AbstractEncoder
from .generative import AbstractGenerative, Draw
from .kernel import DeepKernel
from .likelihoods import AbstractLikelihood
from .posterior import AbstractGaussian, AbstractPosterior, Bridge, Nodes, infer
from .sde import AbstractDrift
from .smoother import smooth_window


class Model(AbstractGenerative):
    """Generative model and inference network together.

    `smoothed`: whether the posterior is the encoder's, or follows the model's own flow, with that `margin` beyond either end of a
    window. `rotation`: whether the former turns.
    """

    encoder: AbstractEncoder
    kernel: DeepKernel
    drift: AbstractDrift
    diffusion: AbstractDiffusion
    initial: AbstractGaussian
    decoder: AbstractDecoder
    likelihood: AbstractLikelihood
    bridge: Bridge | None = None
    rotation: bool = eqx.field(static=True, default=True)
    smoothed: bool = eqx.field(static=True, default=False)
    margin: int = eqx.field(static=True, default=0)

    @property
    def reach(self) -> tuple[int, int]:
        return self.encoder.lookahead, max(self.encoder.margin, self.margin)

    @property
    def whole_rows(self) -> bool:
        return self.encoder.whole_rows

    def encode(self, window: Window, *, key: PRNGKeyArray | None = None) -> Nodes:
        """What the encoder says of a window. A key, in training, lets it hide some of what follows."""
        seen = eqx.tree_at(lambda w: w.values, window, self.likelihood.view(jnp.asarray(window.values)))
        return self.encoder(seen, key=key)

    @property
    def refined(self) -> bool:
        return self.smoothed

    def amortised(self, window: Window, *, key: PRNGKeyArray | None = None) -> AbstractPosterior:
        return infer(self.encode(window, key=key), len(self.initial.mean), self.kernel, self.bridge, window)

    def posterior(self, window: Window, *, key: PRNGKeyArray | None = None) -> AbstractPosterior:
        """q(z(t) | window)."""
        if not self.smoothed:
            return self.amortised(window, key=key)
        return smooth_window(self, window, self.encode(window).values)

    def states_at(
        self, window: Window, node: Int[Array, ""], num_samples: int, *, key: PRNGKeyArray
    ) -> tuple[Float[Array, "samples latent"], Draw]:
        normal = self.amortised(window).at_nodes().at(node)
        state_key, draw_key = jax.random.split(key)
        noise = jax.random.normal(state_key, (num_samples, *normal.mean.shape), normal.mean.dtype)
        return normal.state(noise), self.draws(num_samples, key=draw_key)

    def started_from(self, reading: LinearReading) -> "Model":
        """Every part where the reading of the data puts it."""

        def parts(model: "Model") -> list[AbstractPart]:
            found = [model.encoder, model.drift, model.diffusion, model.decoder, model.bridge]
            return [part for part in found if part is not None]

        return eqx.tree_at(parts, self, [part.started_from(reading) for part in parts(self)])
