"""The prior dynamics:  dz = f(t, z, u) dt + √q(t) dβ. Drifts and known inputs; at one point each.

What is uncertain in a drift is one vector c of coefficients, N(c̄, Λ Λᵀ) against a diagonal normal prior. Their posterior is mean-field
where it is trained by gradients, and full where it follows in closed form (`bound.closed`).
"""

import abc
import math
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from ..runtime.host import array
from .base import AbstractPart, LinearReading
from .networks import MLP, push_through
from .prior import Coordinates, Parameter, Weights

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


class Held(eqx.Module):
    """An array that gradients leave alone."""

    value: Array


class Coefficients(NamedTuple):
    """c̄, and the prior's mean and precision."""

    mean: Float[Array, " coefficients"]
    prior_mean: Float[Array, " coefficients"]
    prior_precision: Float[Array, " coefficients"]


class AbstractDrift(AbstractPart):
    """f(t, z, u; θ) at one point; θ is what `draw` or `median` gave.

    `takes_dynamics`: whether `started_from` puts the linear dynamics of a reading into it.
    """

    takes_dynamics: ClassVar[bool] = False

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

    def slope(self, t: Time, z: State, u: Inputs) -> Float[Array, "latent coefficients"]:
        """F = ∂f/∂c at c̄."""
        return jax.jacfwd(lambda c: self(t, z, u, self.at_coefficients(c)))(self.coefficients().mean)

    def gram(
        self, slopes: Float[Array, "n latent coefficients"], weights: Float[Array, "n latent"]
    ) -> Float[Array, "coefficients coefficients"]:
        """Σ Fᵀ diag(w) F over some points."""
        rows = (jnp.sqrt(weights)[..., None] * slopes).reshape(-1, slopes.shape[-1])
        return rows.T @ rows


def _departure(joint: Held, key: PRNGKeyArray) -> Float[Array, " coefficients"]:
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


def _joint_kl(joint: Held, c: Coefficients) -> Float[Array, ""]:
    """KL(N(c̄, Λ Λᵀ) ‖ prior), Λ a lower triangle."""
    Λ = joint.value
    squares = (jnp.sum(Λ**2, axis=1) + (c.mean - c.prior_mean) ** 2) * c.prior_precision
    logs = jnp.log(jnp.maximum(c.prior_precision, 1e-12)) + 2 * jnp.log(jnp.abs(jnp.diagonal(Λ)) + 1e-30)
    return 0.5 * jnp.sum(squares - 1 - logs)


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
            return self.at_coefficients(self.coefficients().mean + _departure(self.joint, key))
        linear, weights = jax.random.split(key)
        drawn = {"linear": self.linear.sample(key=linear), "weights": self.weights.sample(key=weights)}
        return {**drawn, "bias": self.bias}

    def median(self) -> Draw:
        return {"linear": self.linear.mean, "bias": self.bias, "weights": self.weights.mean}

    def kl(self) -> Float[Array, ""]:
        if self.joint is not None:
            return _joint_kl(self.joint, self.coefficients())
        return self.linear.kl() + self.weights.kl()

    def coefficients(self) -> Coefficients:
        mean = jnp.concatenate([self.linear.mean, self.bias[:, None], self.weights.mean], axis=1)
        parts = ((self.linear, self.linear.log_prior_std), (None, jnp.log(BIAS)), (self.weights, self.weights.log_prior_std))
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

    def _features(self, t: Time, z: State, u: Inputs) -> Float[Array, " features"]:
        y = _seen(t, z, u, self.span)
        return jnp.concatenate([y, jnp.ones(1, y.dtype), self.network.activation(self.network(y))])

    def slope(self, t: Time, z: State, u: Inputs) -> Float[Array, "latent coefficients"]:
        if type(self) is not NeuralDrift:  # a subclass may override `__call__` alone
            return AbstractDrift.slope(self, t, z, u)
        return jnp.kron(jnp.eye(len(z), dtype=z.dtype), self._features(t, z, u)[None])

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


class Units(NamedTuple):
    """How the model's t, z and u read in the user's units:  user = shift + scale · model."""

    origin: ArrayLike = 0.0
    time_scale: ArrayLike = 1.0
    shift: ArrayLike = 0.0
    scale: ArrayLike = 1.0
    input_shift: ArrayLike = 0.0
    input_scale: ArrayLike = 1.0


class ParametricDrift(AbstractDrift):
    """A user's own `function(t, z, p, u)` in the user's units; `p` maps each parameter's name to its value.

    The change of units is chained through:  f̃ = (time_scale/scale) · f(origin + time_scale t, shift + scale z, p, u).
    """

    parameters: dict[str, Parameter]
    function: DriftFunction = eqx.field(static=True)
    units: Units
    joint: Held | None = None

    def __init__(self, function: DriftFunction, parameters: Mapping[str, Parameter], units: Units = Units()):
        self.function, self.parameters, self.units, self.joint = function, dict(parameters), units, None

    def __call__(self, t: Time, z: State, u: Inputs, θ: Draw) -> State:
        units = jax.lax.stop_gradient(jax.tree.map(lambda x: jnp.asarray(x, z.dtype), self.units))
        state, inputs = units.shift + units.scale * z, units.input_shift + units.input_scale * u
        rate = self.function(units.origin + units.time_scale * t, state, θ, inputs)
        return jnp.stack([jnp.asarray(part) for part in rate]) * (units.time_scale / units.scale)

    def _uncertain(self) -> dict[str, Coordinates]:
        found = {name: item.coordinates() for name, item in self.parameters.items()}
        return {name: where for name, where in found.items() if where is not None}

    def coefficients(self) -> Coefficients:
        where = list(self._uncertain().values())
        if not where:
            return AbstractDrift.coefficients(self)
        return Coefficients(*(jnp.concatenate([jnp.ravel(x[i]) for x in where]) for i in range(3)))

    def _split(self, c: Float[Array, " coefficients"]) -> dict[str, Array]:
        """c, parameter by parameter."""
        shapes, begin, found = {n: x.mean.shape for n, x in self._uncertain().items()}, 0, {}
        for name, shape in shapes.items():
            size = math.prod(shape)
            found[name] = c[begin : begin + size].reshape(shape)
            begin += size
        return found

    def at_coefficients(self, c: Float[Array, " coefficients"]) -> Draw:
        return {**self.median(), **{name: self.parameters[name].value_at(x) for name, x in self._split(c).items()}}

    def coefficients_of(self, θ: Draw) -> Float[Array, " coefficients"]:
        parts = [jnp.ravel(self.parameters[name].coordinates_of(θ[name])) for name in self._uncertain()]
        return jnp.concatenate(parts) if parts else jnp.zeros(0)

    def concluded(
        self, mean: Float[Array, " coefficients"], std: Float[Array, " coefficients"], rate: Float[Array, ""]
    ) -> "ParametricDrift":
        means, stds = self._split(mean), self._split(std)
        moved = {name: self.parameters[name].moved(means[name], stds[name]) for name in means}
        return eqx.tree_at(lambda d: d.parameters, self, {**self.parameters, **moved})

    def joined(self, factor: Float[Array, "coefficients coefficients"]) -> "ParametricDrift":
        return eqx.tree_at(lambda d: d.joint, self, Held(factor), is_leaf=lambda x: x is None)

    def draw(self, *, key: PRNGKeyArray) -> Draw:
        if self.joint is not None:
            return self.at_coefficients(self.coefficients().mean + _departure(self.joint, key))
        keys = jax.random.split(key, max(len(self.parameters), 1))
        return {name: item.sample(key=k) for (name, item), k in zip(self.parameters.items(), keys, strict=False)}

    def median(self) -> Draw:
        return {name: item.quantile(0.5) for name, item in self.parameters.items()}

    def kl(self) -> Float[Array, ""]:
        if self.joint is not None:
            return _joint_kl(self.joint, self.coefficients())
        return sum((item.kl() for item in self.parameters.values()), start=jnp.zeros(()))

    def named_parameters(self) -> Mapping[str, Parameter]:
        return self.parameters


@runtime_checkable
class DriftLike(Protocol):
    """A module that has the methods of a drift."""

    def __call__(self, t: Time, z: State, u: Inputs, θ: Draw, /) -> State: ...

    def draw(self, *, key: PRNGKeyArray) -> Draw: ...

    def median(self) -> Draw: ...

    def kl(self) -> Float[Array, ""]: ...


class OwnDrift(AbstractDrift):
    """A user's own module that has the methods of a drift without being an `AbstractDrift`."""

    module: DriftLike

    def __call__(self, t: Time, z: State, u: Inputs, θ: Draw) -> State:
        return self.module(t, z, u, θ)

    def draw(self, *, key: PRNGKeyArray) -> Draw:
        return self.module.draw(key=key)

    def median(self) -> Draw:
        return self.module.median()

    def kl(self) -> Float[Array, ""]:
        return self.module.kl()
