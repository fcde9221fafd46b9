"""p(x | z) by channel: true log-densities of what the decoder puts out, one number per channel.

| name              | density                                | the decoder's output o is | data must be |
|-------------------|----------------------------------------|---------------------------|--------------|
| gaussian          | N(x; o, v)                             | the mean                  | real         |
| student-t         | o + √v · t_ν                           | the location              | real         |
| log-normal        | log x ~ N(o, v)                        | the log of the median     | positive     |
| bernoulli         | σ(o)^x (1 − σ(o))^(1−x)                | the logit                 | 0 or 1       |
| poisson           | Poisson(x; exp o)                      | the log rate              | 0, 1, 2, …   |
| negative-binomial | mean μ = exp o, variance μ + μ²/k      | the log mean              | 0, 1, 2, …   |

Everything is unbatched. A new likelihood is a class here and a line in `LIKELIHOODS`; forgetting one of the abstract methods is an
error.
"""

import abc
from collections.abc import Callable
from typing import ClassVar, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree

from ..runtime.host import array
from .base import AbstractPart
from .prior import LogNormal as LogNormalPosterior
from .prior import Parameter

Values = Float[Array, " channels"]
Paths = Float[Array, "*paths channels"]
Which = Bool[np.ndarray, "*rows channels"]
Numbers = Float[np.ndarray, "*rows channels"]
Seen = TypeVar("Seen", Array, np.ndarray)
L = TypeVar("L", bound="AbstractLikelihood")
lgamma = jax.scipy.special.gammaln


class Shown(NamedTuple):
    """A parameter for the table of results: its label, whose channels it is (none: all), and its value in the user's units."""

    label: str
    channels: tuple[int, ...]
    parameter: Parameter
    in_units: Callable[[np.ndarray, np.ndarray], np.ndarray]


class AbstractLikelihood(AbstractPart):
    """What every likelihood can do; θ is one draw of its uncertain parameters."""

    @abc.abstractmethod
    def draw(self, *, key: PRNGKeyArray) -> PyTree[Array]:
        """θ, which the others take."""

    @abc.abstractmethod
    def typical(self) -> PyTree[Array]:
        """θ in place of all draws: medians, of variances 1 / E (1/v)."""

    @abc.abstractmethod
    def log_density(self, x: Values, output: Values, θ: PyTree[Array]) -> Values:
        """log p(x | output), channel by channel."""

    @abc.abstractmethod
    def mean(self, output: Values, θ: PyTree[Array]) -> Values:
        """E[x | output]."""

    @abc.abstractmethod
    def sample(self, output: Paths, θ: PyTree[Array], *, key: PRNGKeyArray) -> Paths:
        """Draws of x around outputs; θ is one draw, or has one for each entry of the outputs' first axis."""

    @abc.abstractmethod
    def kl(self) -> Float[Array, ""]:
        """KL(q(θ) ‖ p(θ))."""

    @abc.abstractmethod
    def view(self, x: Paths) -> Paths:
        """Values as an encoder sees them: where they vary by orders of magnitude, their logarithms."""

    @abc.abstractmethod
    def shown(self) -> list[Shown]:
        """What is uncertain or learned, for the table of results."""

    def normal_noise(self, num_channels: int) -> tuple[Values, Values]:
        """That v, and E log v less its logarithm, where `view` of the data is N(output, v); 0 where it is not."""
        return jnp.zeros(num_channels), jnp.zeros(num_channels)

    @property
    def all_normal(self) -> bool:
        """Whether that is so for all channels."""
        return False

    def concluded(self: L, squares: Values, counts: Values, rate: Float[Array, ""]) -> L:
        """Moved by `rate` towards the noise that follows from the expected squares of `view` minus output, for those channels."""
        return self


class ChannelLikelihood(AbstractLikelihood):
    """One kind for `num_channels` channels, and what reading the data and building a model need to know of that kind.

    `standardised`: whether its data is shifted and scaled; `needs`: what its data must be, in words.
    """

    standardised: ClassVar[bool]
    needs: ClassVar[str]

    @classmethod
    @abc.abstractmethod
    def build(cls, variance: Parameter, num_channels: int) -> "ChannelLikelihood":
        """With that noise variance by channel, for the kinds that have one."""

    @staticmethod
    @abc.abstractmethod
    def accepts(x: Numbers) -> Which:
        """Which values have a density."""

    @staticmethod
    @abc.abstractmethod
    def view_of(x: Seen) -> Seen:
        """`view`, of arrays of either library. What is missing is 0 and must stay finite."""

    @staticmethod
    @abc.abstractmethod
    def link(seen: Numbers) -> Numbers:
        """The output that belongs to a mean of the values as seen."""

    @staticmethod
    @abc.abstractmethod
    def link_slope(seen: Numbers) -> Numbers:
        """Its derivative, held back where it would be steep."""

    def view(self, x: Paths) -> Paths:
        return self.view_of(x)


class _Uncertain(ChannelLikelihood):
    """Kinds with one uncertain parameter by channel: a variance, `Known`, `Learned` or `LogNormal`, unless they say otherwise."""

    variance: Parameter
    label: ClassVar[str] = "noise"

    @classmethod
    def build(cls, variance: Parameter, num_channels: int) -> "_Uncertain":
        return cls(variance)

    def draw(self, *, key: PRNGKeyArray) -> Values:
        return self.variance.sample(key=key)

    def typical(self) -> Values:
        return self.variance.harmonic()

    def kl(self) -> Float[Array, ""]:
        return self.variance.kl()

    def shown(self) -> list[Shown]:
        return [Shown(self.label, (), self.variance, lambda variance, scale: np.sqrt(variance) * scale)]


class _Real(_Uncertain):
    """Kinds of real numbers, seen as they are, whose outputs are means."""

    standardised: ClassVar[bool] = True
    needs: ClassVar[str] = "numbers"

    @staticmethod
    def accepts(x: Numbers) -> Which:
        return np.isfinite(x)

    @staticmethod
    def view_of(x: Seen) -> Seen:
        return x

    @staticmethod
    def link(seen: Numbers) -> Numbers:
        return seen

    @staticmethod
    def link_slope(seen: Numbers) -> Numbers:
        return np.ones_like(seen)

    def mean(self, output: Values, θ: Values) -> Values:
        return output


class _NormalAsSeen(_Real):
    """Kinds that are N(output, v) as they are seen."""

    @property
    def all_normal(self) -> bool:
        return True

    def normal_noise(self, num_channels: int) -> tuple[Values, Values]:
        return self.typical(), jnp.log(self.variance.quantile(0.5) / self.typical())

    def concluded(self, squares: Values, counts: Values, rate: Float[Array, ""]) -> "_NormalAsSeen":
        best = jnp.log(jnp.maximum(squares, 1e-12) / jnp.maximum(counts, 1.0)) + self.normal_noise(len(counts))[1]
        moves = jnp.where(counts > 0, rate, 0.0)
        return eqx.tree_at(lambda x: x.variance, self, self.variance.approach(best, 0.5 * counts, moves))


class Gaussian(_NormalAsSeen):
    """N(output, v) with a variance v per channel."""

    def log_density(self, x: Values, output: Values, θ: Values) -> Values:
        return -0.5 * ((x - output) ** 2 / θ + jnp.log(2 * jnp.pi * θ))

    def sample(self, output: Paths, θ: PyTree[Array], *, key: PRNGKeyArray) -> Paths:
        return output + jnp.sqrt(θ) * jax.random.normal(key, output.shape, output.dtype)


class StudentT(_Real):
    """output + √v · t with ν = 2 + exp(log_excess) degrees of freedom, learned: heavy tails for outliers."""

    log_excess: Values

    @classmethod
    def build(cls, variance: Parameter, num_channels: int) -> "StudentT":
        return cls(variance, array(np.full(num_channels, np.log(3.0))))

    def log_density(self, x: Values, output: Values, θ: Values) -> Values:
        freedom = 2 + jnp.exp(self.log_excess)
        constant = lgamma((freedom + 1) / 2) - lgamma(freedom / 2) - 0.5 * jnp.log(freedom * jnp.pi * θ)
        return constant - (freedom + 1) / 2 * jnp.log1p((x - output) ** 2 / (freedom * θ))

    def sample(self, output: Paths, θ: PyTree[Array], *, key: PRNGKeyArray) -> Paths:
        freedom = 2 + jnp.exp(self.log_excess)
        return output + jnp.sqrt(θ) * jax.random.t(key, freedom, output.shape, output.dtype)


class LogNormal(_NormalAsSeen):
    """log x ~ N(output, v): positive data whose noise grows with it, and whose bands stay above zero. Seen as its logarithm."""

    label: ClassVar[str] = "noise of the log of"
    standardised: ClassVar[bool] = False
    needs: ClassVar[str] = "positive"

    @staticmethod
    def accepts(x: Numbers) -> Which:
        return x > 0

    @staticmethod
    def view_of(x: Seen) -> Seen:
        xp = x.__array_namespace__()
        return xp.log(xp.where(x > 0, x, 1.0))

    def log_density(self, x: Values, output: Values, θ: Values) -> Values:
        log_x = self.view_of(x)
        return -0.5 * ((log_x - output) ** 2 / θ + jnp.log(2 * jnp.pi * θ)) - log_x

    def mean(self, output: Values, θ: Values) -> Values:
        return jnp.exp(output + 0.5 * θ)

    def sample(self, output: Paths, θ: PyTree[Array], *, key: PRNGKeyArray) -> Paths:
        return jnp.exp(output + jnp.sqrt(θ) * jax.random.normal(key, output.shape, output.dtype))


class _Certain(ChannelLikelihood):
    """Kinds seen as they are, that the output says all of."""

    @classmethod
    def build(cls, variance: Parameter, num_channels: int) -> "_Certain":
        return cls()

    @staticmethod
    def view_of(x: Seen) -> Seen:
        return x

    def draw(self, *, key: PRNGKeyArray) -> Float[Array, " 0"]:
        return jnp.zeros((0,))

    def typical(self) -> Float[Array, " 0"]:
        return jnp.zeros((0,))

    def kl(self) -> Float[Array, ""]:
        return jnp.zeros(())

    def shown(self) -> list[Shown]:
        return []


class Bernoulli(_Certain):
    """x ∈ {0, 1} with logit `output`."""

    standardised: ClassVar[bool] = False
    needs: ClassVar[str] = "0 or 1"

    @staticmethod
    def accepts(x: Numbers) -> Which:
        return (x == 0) | (x == 1)

    @staticmethod
    def link(seen: Numbers) -> Numbers:
        p = np.clip(seen, 1e-2, 1 - 1e-2)
        return np.log(p / (1 - p))

    @staticmethod
    def link_slope(seen: Numbers) -> Numbers:
        p = np.clip(seen, 0.05, 0.95)
        return 1 / (p * (1 - p))

    def log_density(self, x: Values, output: Values, θ: Float[Array, " 0"]) -> Values:
        return x * output - jax.nn.softplus(output)

    def mean(self, output: Values, θ: Float[Array, " 0"]) -> Values:
        return jax.nn.sigmoid(output)

    def sample(self, output: Paths, θ: PyTree[Array], *, key: PRNGKeyArray) -> Paths:
        return jax.random.bernoulli(key, jax.nn.sigmoid(output)).astype(output.dtype)


class _Counts(ChannelLikelihood):
    """Kinds of counts, whose outputs are log means."""

    standardised: ClassVar[bool] = False
    needs: ClassVar[str] = "counts 0, 1, 2, …"

    @staticmethod
    def accepts(x: Numbers) -> Which:
        return (x >= 0) & (x == np.round(x))

    def mean(self, output: Values, θ: PyTree[Array]) -> Values:
        return jnp.exp(output)


class Poisson(_Counts, _Certain):
    """x ∈ {0, 1, 2, …} with log rate `output`."""

    @staticmethod
    def link(seen: Numbers) -> Numbers:
        return np.log(np.maximum(seen, 1e-2))

    @staticmethod
    def link_slope(seen: Numbers) -> Numbers:
        return 1 / np.maximum(seen, 0.1)

    def log_density(self, x: Values, output: Values, θ: Float[Array, " 0"]) -> Values:
        return x * output - jnp.exp(output) - lgamma(x + 1)

    def sample(self, output: Paths, θ: PyTree[Array], *, key: PRNGKeyArray) -> Paths:
        return jax.random.poisson(key, jnp.exp(output)).astype(output.dtype)


class NegativeBinomial(_Counts):
    """x ∈ {0, 1, 2, …} with log mean `output` and variance μ + μ²/k: counts that scatter more than Poisson's. Seen as log(1 + x).

    k is uncertain, a log-normal around 10 by default; Poisson is the limit of large k.
    """

    dispersion: Parameter

    @classmethod
    def build(cls, variance: Parameter, num_channels: int) -> "NegativeBinomial":
        return cls(LogNormalPosterior(np.full(num_channels, 10.0), 2.0))

    @staticmethod
    def view_of(x: Seen) -> Seen:
        return x.__array_namespace__().log1p(x)

    @staticmethod
    def link(seen: Numbers) -> Numbers:
        return np.log(np.maximum(np.expm1(seen), 1e-2))

    @staticmethod
    def link_slope(seen: Numbers) -> Numbers:
        return 1 / np.maximum(-np.expm1(-seen), 0.1)

    def draw(self, *, key: PRNGKeyArray) -> Values:
        return self.dispersion.sample(key=key)

    def typical(self) -> Values:
        return self.dispersion.quantile(0.5)

    def log_density(self, x: Values, output: Values, θ: Values) -> Values:
        log_k = jnp.log(θ)
        log_total = jnp.logaddexp(log_k, output)  # log(k + μ)
        choose = lgamma(x + θ) - lgamma(θ) - lgamma(x + 1)
        return choose + θ * (log_k - log_total) + x * (output - log_total)

    def sample(self, output: Paths, θ: PyTree[Array], *, key: PRNGKeyArray) -> Paths:
        rate_key, count_key = jax.random.split(key)
        rate = jnp.exp(output) / θ * jax.random.gamma(rate_key, jnp.broadcast_to(θ, output.shape), dtype=output.dtype)
        return jax.random.poisson(count_key, rate).astype(output.dtype)

    def kl(self) -> Float[Array, ""]:
        return self.dispersion.kl()

    def shown(self) -> list[Shown]:
        return [Shown("dispersion", (), self.dispersion, lambda k, scale: k)]


LIKELIHOODS: dict[str, type[ChannelLikelihood]] = {
    "gaussian": Gaussian,
    "student-t": StudentT,
    "log-normal": LogNormal,
    "bernoulli": Bernoulli,
    "poisson": Poisson,
    "negative-binomial": NegativeBinomial,
}
