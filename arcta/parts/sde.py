"""The prior dynamics:  dz = f(t, z, u) dt + √q(t) dβ. Drifts and known inputs; at one point each.

What is uncertain in a drift is one vector c of coefficients, N(c̄, Λ Λᵀ) against a diagonal normal prior. Their posterior is
mean-field where it is trained by gradients, and full where it follows in closed form (`bound.closed`).
"""

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from ..runtime.host import Held, array
from .base import AbstractPart, LinearReading
from .networks import MLP, push_through
from .prior import Parameter, Weights

DRIFTS = ("neural", "plain")
Draw = Mapping[str, Float[Array, "..."]]
Time = Float[Array, ""]
State = Float[Array, " latent"]
Inputs = Float[Array, " inputs"]
DriftFunction = Callable[[Array, Array, Draw, Array], Sequence[ArrayLike] | Array]


def interpolate_inputs(
    t: Float[Array, ""], times: Float[Array, " knots"], inputs: Float[Array, "knots inputs"]
) -> Float[Array, " inputs"]:
    """u(t), linear between the knots and held constant beyond them."""
    if inputs.shape[1] == 0:
        return jnp.zeros((0,), inputs.dtype)
    return jax.vmap(lambda column: jnp.interp(t, times, column), in_axes=1, out_axes=-1)(inputs)


class Coefficients(NamedTuple):
    """c̄, and the prior's mean and precision."""

    mean: Float[Array, " coefficients"]
    prior_mean: Float[Array, " coefficients"]
    prior_precision: Float[Array, " coefficients"]


class AbstractDrift(AbstractPart):
    """f(t, z, u; θ) at one point; θ is what `draw` or `median` gave.

    `takes_dynamics`: whether `started_from` puts the linear dynamics of a reading into it. `believed`: whether it is a law that
    holds, rather than something flexible.
    """

    takes_dynamics: ClassVar[bool] = False
    believed: ClassVar[bool] = False
    owner: ClassVar[str] = "the drift"

    @abc.abstractmethod
    def __call__(self, t: Time, z: State, u: Inputs, θ: Draw) -> State:
        """The drift for one draw of its parameters."""

    @abc.abstractmethod
    def draw(self, *, key: PRNGKeyArray) -> Draw:
        """A reparametrised draw of all that is uncertain."""

    @abc.abstractmethod
    def median(self) -> Draw:
        """The posterior median in place of a draw."""

    @abc.abstractmethod
    def kl(self) -> Float[Array, ""]:
        """KL(q(θ) ‖ p(θ))."""

    def named_parameters(self) -> Mapping[str, Parameter]:
        """Those that a user knows by name."""
        return {}

    def coefficients(self) -> Coefficients:
        """All that is uncertain, as one vector; here nothing."""
        none = jnp.zeros(0)
        return Coefficients(none, none, none)

    def at_coefficients(self, c: Float[Array, " coefficients"]) -> Draw:
        """θ for a vector c."""
        return self.median()

    def coefficients_of(self, θ: Draw) -> Float[Array, " coefficients"]:
        """c of a draw."""
        return jnp.zeros(0)

    def concluded(
        self, mean: Float[Array, " coefficients"], std: Float[Array, " coefficients"], rate: Float[Array, ""]
    ) -> "AbstractDrift":
        """With that posterior, as far as single coefficients are concerned; what is learned of the prior moves by `rate`."""
        return self

    def joined(self, factor: Float[Array, "coefficients coefficients"]) -> "AbstractDrift":
        """With draws c̄ + Λ ε."""
        return self

    def factor(self) -> Float[Array, "coefficients coefficients"]:
        """That Λ, if there is one."""
        return jnp.zeros((len(self.coefficients().mean),) * 2)

    def slope(self, t: Time, z: State, u: Inputs) -> Float[Array, "latent coefficients"]:
        """F = ∂f/∂c at c̄."""
        return jax.jacfwd(lambda c: self(t, z, u, self.at_coefficients(c)))(self.coefficients().mean)

    def gram(
        self, slopes: Float[Array, "n latent coefficients"], weights: Float[Array, "n latent"]
    ) -> Float[Array, "coefficients coefficients"]:
        """Σ Fᵀ diag(w) F over some points."""
        rows = (jnp.sqrt(weights)[..., None] * slopes).reshape(-1, slopes.shape[-1])
        return rows.T @ rows


def depart(joint: Held, key: PRNGKeyArray) -> Float[Array, " coefficients"]:
    """Λ ε."""
    Λ = jax.lax.stop_gradient(joint.value)
    return Λ @ jax.random.normal(key, (len(Λ),), Λ.dtype)


def value_and_jacobian(
    drift: AbstractDrift, t: Time, z: State, m: State, u: Inputs, θ: Draw
) -> tuple[State, Float[Array, "latent latent"]]:
    """f at z, and ∂f/∂z at m.

    The networks below take both through each layer in one matrix product. They are known by their exact type: a subclass that
    overrides `__call__` alone must not train on another drift than it forecasts with.
    """
    if (type(drift) is NeuralDrift or type(drift) is PlainDrift) and type(drift.network) is MLP:
        values, slopes = drift.push_forward(t, jnp.stack([m, z]), jnp.eye(len(z), dtype=z.dtype), u, θ)
        return values[1], slopes.T

    def f(z: State) -> State:
        return drift(t, z, u, θ)

    return f(z), jax.jacfwd(f)(m)


def _seen(t: Time, z: Float[Array, "*points latent"], u: Inputs, span: float | None) -> Float[Array, "*points size"]:
    """y = [z, u], or [z, u, t/span]: what a network sees."""
    time = () if span is None else (jnp.asarray(t / span, z.dtype)[None],)
    known = (jnp.broadcast_to(x, (*z.shape[:-1], len(x))) for x in (u, *time))
    return jnp.concatenate([z, *known], axis=-1)


def _directions(dz: Float[Array, "d latent"], size: int) -> Float[Array, "d size"]:
    """dy for y as above: u and t stand still."""
    return jnp.pad(dz, ((0, 0), (0, size - dz.shape[1])))


BIAS = 3.0  # the prior's standard deviation of b: as fast as states of unit variance ever are


def joint_kl(joint: Held, c: Coefficients) -> Float[Array, ""]:
    """KL(N(c̄, Λ Λᵀ) ‖ prior), Λ a lower triangle."""
    Λ = joint.value
    squares = (jnp.sum(Λ**2, axis=1) + (c.mean - c.prior_mean) ** 2) * c.prior_precision
    logs = jnp.log(jnp.maximum(c.prior_precision, 1e-12)) + 2 * jnp.log(jnp.abs(jnp.diagonal(Λ)) + 1e-30)
    return 0.5 * jnp.sum(squares - 1 - logs)


def shared_entropy(joint: Held) -> Float[Array, ""]:
    """How much less the entropy of N(c̄, Λ Λᵀ) is than that of its coefficients one by one."""
    Λ = joint.value
    return jnp.sum(0.5 * jnp.log(jnp.sum(Λ**2, axis=1) + 1e-30) - jnp.log(jnp.abs(jnp.diagonal(Λ)) + 1e-30))


class NeuralDrift(AbstractDrift):
    """f(t, z, u) = A y + b + W φ(y) with y = [z, u], or y = [z, u, t/span] when time-dependent.

    φ is an MLP's last hidden layer. A and W are uncertain, N(μ, σ²) against N(0, τ²) with a τ learned for each of the two:
    the non-linear part must earn its KL, so a thousand noisy rows are not over-fitted, and forecasts know how little is
    known of f. With `joint` the posterior of [A, b, W] is a full normal, of which the σ are the marginals.
    """

    linear: Weights
    bias: Float[Array, " latent"]
    network: MLP
    weights: Weights
    span: float | None = eqx.field(static=True)
    joint: Held | None = None
    takes_dynamics: ClassVar[bool] = True

    def __init__(
        self,
        latent_size: int,
        num_inputs: int = 0,
        *,
        hidden_sizes: tuple[int, ...] = (64, 64),
        activation: str = "silu",
        span: float | None = None,
        rng: np.random.Generator,
    ):
        in_size = latent_size + num_inputs + (span is not None)
        self.linear = Weights(latent_size, in_size, prior_std=0.5)
        self.bias = array(np.zeros(latent_size))
        self.network = MLP((in_size, *hidden_sizes), activation, rng=rng)
        self.weights = Weights(latent_size, hidden_sizes[-1])
        self.span, self.joint = span, None

    def __call__(self, t: Time, z: State, u: Inputs, θ: Draw) -> State:
        y = _seen(t, z, u, self.span)
        φ = self.network.activation(self.network(y))
        return θ["linear"] @ y + θ["bias"] + θ["weights"] @ φ

    def push_forward(
        self, t: Time, z: Float[Array, "k latent"], dz: Float[Array, "d latent"], u: Inputs, θ: Draw
    ) -> tuple[Float[Array, "k latent"], Float[Array, "d latent"]]:
        """The drift at k states, and its derivatives along d directions at the first of them."""
        y = _seen(t, z, u, self.span)
        dy = _directions(dz, y.shape[1])
        φ, dφ = push_through(self.network.activation, *self.network.push_forward(y, dy))
        rows = jnp.concatenate([y, dy]) @ θ["linear"].T + jnp.concatenate([φ, dφ]) @ θ["weights"].T
        return rows[: len(y)] + θ["bias"], rows[len(y) :]

    def draw(self, *, key: PRNGKeyArray) -> Draw:
        if self.joint is not None:
            return self.at_coefficients(self.coefficients().mean + depart(self.joint, key))
        linear, weights = jax.random.split(key)
        drawn = {"linear": self.linear.sample(key=linear), "weights": self.weights.sample(key=weights)}
        return {**drawn, "bias": self.bias}

    def median(self) -> Draw:
        return {"linear": self.linear.mean, "bias": self.bias, "weights": self.weights.mean}

    def kl(self) -> Float[Array, ""]:
        if self.joint is not None:
            return joint_kl(self.joint, self.coefficients())
        return self.linear.kl() + self.weights.kl()

    def coefficients(self) -> Coefficients:
        mean = jnp.concatenate([self.linear.mean, self.bias[:, None], self.weights.mean], axis=1)
        parts = (
            (self.linear, self.linear.log_prior_std),
            (None, jnp.log(BIAS)),
            (self.weights, self.weights.log_prior_std),
        )
        sizes = [1 if part is None else part.mean.shape[1] for part, _ in parts]
        precision = jnp.concatenate([jnp.full(n, jnp.exp(-2 * τ)) for n, (_, τ) in zip(sizes, parts, strict=True)])
        return Coefficients(mean.ravel(), jnp.zeros(mean.size), jnp.tile(precision, len(mean)))

    def at_coefficients(self, c: Float[Array, " coefficients"]) -> Draw:
        size = self.linear.mean.shape[1]
        matrix = c.reshape(len(self.bias), -1)
        return {"linear": matrix[:, :size], "bias": matrix[:, size], "weights": matrix[:, size + 1 :]}

    def coefficients_of(self, θ: Draw) -> Float[Array, " coefficients"]:
        return jnp.concatenate([θ["linear"], θ["bias"][:, None], θ["weights"]], axis=1).ravel()

    def concluded(
        self, mean: Float[Array, " coefficients"], std: Float[Array, " coefficients"], rate: Float[Array, ""]
    ) -> "NeuralDrift":
        mean_of, std_of = self.at_coefficients(mean), self.at_coefficients(std)
        linear = self.linear.concluded(mean_of["linear"], std_of["linear"], rate)
        weights = self.weights.concluded(mean_of["weights"], std_of["weights"], rate)
        return eqx.tree_at(lambda d: (d.linear, d.bias, d.weights), self, (linear, mean_of["bias"], weights))

    def joined(self, factor: Float[Array, "coefficients coefficients"]) -> "NeuralDrift":
        return eqx.tree_at(lambda d: d.joint, self, Held(factor), is_leaf=lambda x: x is None)

    def factor(self) -> Float[Array, "coefficients coefficients"]:
        return AbstractDrift.factor(self) if self.joint is None else self.joint.value

    def _features(self, t: Time, z: State, u: Inputs) -> Float[Array, " features"]:
        y = _seen(t, z, u, self.span)
        return jnp.concatenate([y, jnp.ones(1, y.dtype), self.network.activation(self.network(y))])

    def slope(self, t: Time, z: State, u: Inputs) -> Float[Array, "latent coefficients"]:
        if type(self) is not NeuralDrift:  # a subclass may override `__call__` alone
            return AbstractDrift.slope(self, t, z, u)
        return jnp.kron(jnp.eye(len(z), dtype=z.dtype), self._features(t, z, u)[None])

    def gram(
        self, slopes: Float[Array, "n latent coefficients"], weights: Float[Array, "n latent"]
    ) -> Float[Array, "coefficients coefficients"]:
        if type(self) is not NeuralDrift:
            return AbstractDrift.gram(self, slopes, weights)
        ψ = slopes[:, 0, : slopes.shape[2] // weights.shape[1]]  # the same in every row of F
        return jax.scipy.linalg.block_diag(*((weights[:, i, None] * ψ).T @ ψ for i in range(weights.shape[1])))

    def started_from(self, reading: LinearReading) -> "NeuralDrift":
        A = reading.dynamics
        weight = np.zeros(self.linear.mean.shape)
        weight[:, : len(A)] = A
        start = (array(weight), array(-A @ reading.centre))
        return eqx.tree_at(lambda d: (d.linear.mean, d.bias), self, start)


class PlainDrift(AbstractDrift):
    """f(t, z, u) = network(y), y as in `NeuralDrift`: a network with point-estimated weights, as in the paper."""

    network: MLP
    span: float | None = eqx.field(static=True)

    def __init__(
        self,
        latent_size: int,
        num_inputs: int = 0,
        *,
        hidden_sizes: tuple[int, ...] = (64, 64),
        activation: str = "silu",
        span: float | None = None,
        rng: np.random.Generator,
    ):
        in_size = latent_size + num_inputs + (span is not None)
        self.network = MLP((in_size, *hidden_sizes, latent_size), activation, rng=rng)
        self.span = span

    def __call__(self, t: Time, z: State, u: Inputs, θ: Draw) -> State:
        return self.network(_seen(t, z, u, self.span))

    def push_forward(
        self, t: Time, z: Float[Array, "k latent"], dz: Float[Array, "d latent"], u: Inputs, θ: Draw
    ) -> tuple[Float[Array, "k latent"], Float[Array, "d latent"]]:
        """As that of `NeuralDrift`."""
        y = _seen(t, z, u, self.span)
        return self.network.push_forward(y, _directions(dz, y.shape[1]))

    def draw(self, *, key: PRNGKeyArray) -> Draw:
        return {}

    def median(self) -> Draw:
        return {}

    def kl(self) -> Float[Array, ""]:
        return jnp.zeros(())
