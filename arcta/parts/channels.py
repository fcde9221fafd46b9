"""Channels of different kinds in one likelihood."""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from .likelihoods import AbstractLikelihood, Paths, Shown, Values


class ByChannel(AbstractLikelihood):
    """Different likelihoods for different channels; `channels[i]` are the columns that `parts[i]` speaks for."""

    parts: tuple[AbstractLikelihood, ...]
    channels: tuple[tuple[int, ...], ...] = eqx.field(static=True)

    def _split(self, x: Float[Array, "*rows channels"]) -> list[Array]:
        """The columns of each part."""
        return [x[..., np.array(c)] for c in self.channels]

    def _gather(self, pieces: Sequence[Array]) -> Array:
        order = np.argsort(np.concatenate(self.channels))
        return jnp.concatenate(pieces, axis=-1)[..., order]

    def draw(self, *, key: PRNGKeyArray) -> tuple[PyTree[Array], ...]:
        keys = jax.random.split(key, len(self.parts))
        return tuple(part.draw(key=k) for part, k in zip(self.parts, keys, strict=True))

    def typical(self) -> tuple[PyTree[Array], ...]:
        return tuple(part.typical() for part in self.parts)

    def log_density(self, x: Values, output: Values, θ: tuple[PyTree[Array], ...]) -> Values:
        each = zip(self.parts, self._split(x), self._split(output), θ, strict=True)
        return self._gather([part.log_density(x, output, draw) for part, x, output, draw in each])

    def mean(self, output: Values, θ: tuple[PyTree[Array], ...]) -> Values:
        each = zip(self.parts, self._split(output), θ, strict=True)
        return self._gather([part.mean(output, draw) for part, output, draw in each])

    def sample(self, output: Paths, θ: PyTree[Array], *, key: PRNGKeyArray) -> Paths:
        keys = jax.random.split(key, len(self.parts))
        each = zip(self.parts, self._split(output), θ, keys, strict=True)
        return self._gather([part.sample(output, draw, key=k) for part, output, draw, k in each])

    def kl(self) -> Float[Array, ""]:
        return sum((part.kl() for part in self.parts), start=jnp.zeros(()))

    def view(self, x: Paths) -> Paths:
        for part, channels in zip(self.parts, self.channels, strict=True):
            columns = x[..., np.array(channels)]
            seen = part.view(columns)
            x = x if seen is columns else x.at[..., np.array(channels)].set(seen)
        return x

    @property
    def all_normal(self) -> bool:
        return all(part.all_normal for part in self.parts)

    def normal_noise(self, num_channels: int) -> tuple[Values, Values]:
        each = [part.normal_noise(len(columns)) for part, columns in zip(self.parts, self.channels, strict=True)]
        return self._gather([variance for variance, _ in each]), self._gather([doubt for _, doubt in each])

    def concluded(self, squares: Values, counts: Values, rate: Float[Array, ""]) -> "ByChannel":
        each = zip(self.parts, self._split(squares), self._split(counts), strict=True)
        parts = tuple(part.concluded(squares, counts, rate) for part, squares, counts in each)
        return eqx.tree_at(lambda x: x.parts, self, parts)

    def shown(self) -> list[Shown]:
        each = zip(self.parts, self.channels, strict=True)
        return [item._replace(channels=columns) for part, columns in each for item in part.shown()]
