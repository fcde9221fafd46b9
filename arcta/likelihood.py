"""p(x | z) by channel: true log-densities of what the decoder puts out, one number per channel.

| name        | density                      | the decoder's output is | data must be      |
|-------------|------------------------------|-------------------------|-------------------|
| gaussian    | N(x; o, v)                   | the mean                | real              |
| student-t   | o + √v · t_ν                 | the location            | real              |
| bernoulli   | σ(o)^x (1 − σ(o))^(1−x)      | the logit               | 0 or 1            |
| poisson     | Poisson(x; exp o)            | the log rate            | 0, 1, 2, …        |

Every likelihood has `draw` (its uncertain parameters), `log_density` by channel, `mean`, `sample` and `kl`, all
unbatched; and `total` over the observed entries of a whole window, rows along the last axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from .host import array
from .prior import Parameter
from .series import Series

LIKELIHOODS = ("gaussian", "student-t", "bernoulli", "poisson")
STANDARDISED = ("gaussian", "student-t")


@runtime_checkable
class Likelihood(Protocol):
    """What every likelihood can do; `draw` gives the parameters that the others take."""

    def draw(self, *, key: PRNGKeyArray) -> Any: ...

    def log_density(self, x: Array, output: Array, draw: Any) -> Array: ...

    def total(self, x: Array, mask: Array, output: Array, draw: Any) -> Array: ...

    def mean(self, output: Array) -> Array: ...

    def sample(self, output: Array, draw: Any, *, key: PRNGKeyArray) -> Array: ...

    def kl(self) -> Array: ...


def _masked_sum(likelihood: Likelihood, x: Array, mask: Array, output: Array, draw: Any) -> Array:
    by_entry = jax.vmap(likelihood.log_density, in_axes=(-1, -1, None), out_axes=-1)(x, output, draw)
    return jnp.sum(jnp.where(mask, by_entry, 0))


class Gaussian(eqx.Module):
    """N(output, v) with a variance v per channel: `Known`, `Learned` or `LogNormal`."""

    variance: Parameter

    def draw(self, *, key: PRNGKeyArray) -> Float[Array, " channels"]:
        return self.variance.sample(key=key)

    def log_density(
        self, x: Float[Array, " channels"], output: Float[Array, " channels"], draw: Float[Array, " channels"]
    ) -> Float[Array, " channels"]:
        return -0.5 * ((x - output) ** 2 / draw + jnp.log(2 * jnp.pi * draw))

    def total(
        self,
        x: Float[Array, "channels n"],
        mask: Bool[Array, "channels n"],
        output: Float[Array, "channels n"],
        draw: Float[Array, " channels"],
    ) -> Float[Array, ""]:
        # Errors are summed over rows before the variance enters: its derivative is then a short vector. The derivative
        # of the plain form is a sum over rows that XLA does slowly (MOCAP step: 7.8 ms with it, 6.6 ms without).
        squares = jnp.sum(jnp.where(mask, (x - output) ** 2, 0), axis=-1)
        return -0.5 * jnp.sum(squares / draw + jnp.sum(mask, axis=-1) * jnp.log(2 * jnp.pi * draw))

    def mean(self, output: Float[Array, " channels"]) -> Float[Array, " channels"]:
        return output

    def sample(
        self, output: Float[Array, "*paths channels"], draw: Float[Array, "*draws channels"], *, key: PRNGKeyArray
    ) -> Float[Array, "*paths channels"]:
        return output + jnp.sqrt(draw) * jax.random.normal(key, output.shape, output.dtype)

    def kl(self) -> Float[Array, ""]:
        return self.variance.kl()


class StudentT(eqx.Module):
    """output + √v · t with ν = 2 + exp(log_excess) degrees of freedom, learned: heavy tails for outliers."""

    variance: Parameter
    log_excess: Float[Array, " channels"]

    def __init__(self, variance: Parameter, num_channels: int):
        self.variance, self.log_excess = variance, array(np.full(num_channels, np.log(3.0)))

    def draw(self, *, key: PRNGKeyArray) -> Float[Array, " channels"]:
        return self.variance.sample(key=key)

    def log_density(
        self, x: Float[Array, " channels"], output: Float[Array, " channels"], draw: Float[Array, " channels"]
    ) -> Float[Array, " channels"]:
        freedom = 2 + jnp.exp(self.log_excess)
        lgamma = jax.scipy.special.gammaln
        constant = lgamma((freedom + 1) / 2) - lgamma(freedom / 2) - 0.5 * jnp.log(freedom * jnp.pi * draw)
        return constant - (freedom + 1) / 2 * jnp.log1p((x - output) ** 2 / (freedom * draw))

    def total(
        self,
        x: Float[Array, "channels n"],
        mask: Bool[Array, "channels n"],
        output: Float[Array, "channels n"],
        draw: Float[Array, " channels"],
    ) -> Float[Array, ""]:
        return _masked_sum(self, x, mask, output, draw)

    def mean(self, output: Float[Array, " channels"]) -> Float[Array, " channels"]:
        return output

    def sample(
        self, output: Float[Array, "*paths channels"], draw: Float[Array, "*draws channels"], *, key: PRNGKeyArray
    ) -> Float[Array, "*paths channels"]:
        freedom = 2 + jnp.exp(self.log_excess)
        return output + jnp.sqrt(draw) * jax.random.t(key, freedom, output.shape, output.dtype)

    def kl(self) -> Float[Array, ""]:
        return self.variance.kl()


class Bernoulli(eqx.Module):
    """x ∈ {0, 1} with logit `output`."""

    def draw(self, *, key: PRNGKeyArray) -> Float[Array, " 0"]:
        return jnp.zeros((0,))

    def log_density(
        self, x: Float[Array, " channels"], output: Float[Array, " channels"], draw: Float[Array, " 0"]
    ) -> Float[Array, " channels"]:
        return x * output - jax.nn.softplus(output)

    def total(
        self,
        x: Float[Array, "channels n"],
        mask: Bool[Array, "channels n"],
        output: Float[Array, "channels n"],
        draw: Float[Array, " 0"],
    ) -> Float[Array, ""]:
        return _masked_sum(self, x, mask, output, draw)

    def mean(self, output: Float[Array, " channels"]) -> Float[Array, " channels"]:
        return jax.nn.sigmoid(output)

    def sample(
        self, output: Float[Array, "*paths channels"], draw: Float[Array, "*draws 0"], *, key: PRNGKeyArray
    ) -> Float[Array, "*paths channels"]:
        return jax.random.bernoulli(key, jax.nn.sigmoid(output)).astype(output.dtype)

    def kl(self) -> Float[Array, ""]:
        return jnp.zeros(())


class Poisson(eqx.Module):
    """x ∈ {0, 1, 2, …} with log rate `output`."""

    def draw(self, *, key: PRNGKeyArray) -> Float[Array, " 0"]:
        return jnp.zeros((0,))

    def log_density(
        self, x: Float[Array, " channels"], output: Float[Array, " channels"], draw: Float[Array, " 0"]
    ) -> Float[Array, " channels"]:
        return x * output - jnp.exp(output) - jax.scipy.special.gammaln(x + 1)

    def total(
        self,
        x: Float[Array, "channels n"],
        mask: Bool[Array, "channels n"],
        output: Float[Array, "channels n"],
        draw: Float[Array, " 0"],
    ) -> Float[Array, ""]:
        return _masked_sum(self, x, mask, output, draw)

    def mean(self, output: Float[Array, " channels"]) -> Float[Array, " channels"]:
        return jnp.exp(output)

    def sample(
        self, output: Float[Array, "*paths channels"], draw: Float[Array, "*draws 0"], *, key: PRNGKeyArray
    ) -> Float[Array, "*paths channels"]:
        return jax.random.poisson(key, jnp.exp(output)).astype(output.dtype)

    def kl(self) -> Float[Array, ""]:
        return jnp.zeros(())


class ByChannel(eqx.Module):
    """Different likelihoods for different channels; `channels[i]` are the columns that `parts[i]` speaks for."""

    parts: tuple[Likelihood, ...]
    channels: tuple[tuple[int, ...], ...] = eqx.field(static=True)

    def _gather(self, pieces: list[Array]) -> Array:
        order = np.argsort(np.concatenate(self.channels))
        return jnp.concatenate(pieces, axis=-1)[..., order]

    def draw(self, *, key: PRNGKeyArray) -> tuple[Any, ...]:
        keys = jax.random.split(key, len(self.parts))
        return tuple(part.draw(key=k) for part, k in zip(self.parts, keys, strict=True))

    def log_density(
        self, x: Float[Array, " channels"], output: Float[Array, " channels"], draw: tuple[Any, ...]
    ) -> Float[Array, " channels"]:
        groups = zip(self.parts, self.channels, draw, strict=True)
        return self._gather([part.log_density(x[np.array(c)], output[np.array(c)], d) for part, c, d in groups])

    def total(
        self,
        x: Float[Array, "channels n"],
        mask: Bool[Array, "channels n"],
        output: Float[Array, "channels n"],
        draw: tuple[Any, ...],
    ) -> Float[Array, ""]:
        groups = ((part, np.array(c), d) for part, c, d in zip(self.parts, self.channels, draw, strict=True))
        return sum((part.total(x[c], mask[c], output[c], d) for part, c, d in groups), start=jnp.zeros(()))

    def mean(self, output: Float[Array, " channels"]) -> Float[Array, " channels"]:
        return self._gather([part.mean(output[np.array(c)]) for part, c in zip(self.parts, self.channels, strict=True)])

    def sample(
        self, output: Float[Array, "*paths channels"], draw: tuple[Any, ...], *, key: PRNGKeyArray
    ) -> Float[Array, "*paths channels"]:
        keys = jax.random.split(key, len(self.parts))
        groups = zip(self.parts, self.channels, draw, keys, strict=True)
        return self._gather([part.sample(output[..., np.array(c)], d, key=k) for part, c, d, k in groups])

    def kl(self) -> Float[Array, ""]:
        return sum((part.kl() for part in self.parts), start=jnp.zeros(()))


def check_fits(kinds: Sequence[str], data: Sequence[Series]) -> None:
    """Refuse data that a channel's likelihood gives no density to."""
    needs = {
        "bernoulli": ("0 or 1", lambda x: (x == 0) | (x == 1)),
        "poisson": ("counts 0, 1, 2, …", lambda x: (x >= 0) & (x == np.round(x))),
    }
    for column, kind in enumerate(kinds):
        if kind not in needs:
            continue
        wanted, fits = needs[kind]
        for series in data:
            bad = np.flatnonzero(series.mask[:, column] & ~fits(series.values[:, column]))
            if bad.size:
                raise ValueError(
                    f"the {kind} likelihood needs values that are {wanted}; row {bad[0]}, channel "
                    f"'{series.channels[column]}' of series '{series.name}' is {series.values[bad[0], column]:g}. "
                    f"Use likelihood={{'{series.channels[column]}': 'gaussian'}}, or mend the data."
                )
