"""The prior dynamics:  dz = f(t, z, u) dt + √q(t) dβ,  q diagonal. Drifts, diffusions, known inputs; at one point each."""

import abc
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
from .prior import LogNormal, Parameter, Weights

DRIFTS = ("neural", "plain")
DIFFUSIONS = ("constant", "time-dependent")
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


class NeuralDrift(AbstractDrift):
    """f(t, z, u) = A y + b + W φ(y) with y = [z, u], or y = [z, u, t/span] when time-dependent.

    φ is an MLP's last hidden layer. A and W are uncertain, N(μ, σ²) against N(0, τ²) with a τ learned for each of the two:
    the non-linear part must earn its KL, so a thousand noisy rows are not over-fitted, and forecasts know how little is
    known of f.
    """

    linear: Weights
    bias: Float[Array, " latent"]
    network: MLP
    weights: Weights
    span: float | None = eqx.field(static=True)
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
        self.span = span

    def __call__(self, t: Time, z: State, u: Inputs, θ: Draw) -> State:
        y = _seen(t, z, u, self.span)
        φ = self.network.activation(self.network(y))
        return θ["linear"] @ y + self.bias + θ["weights"] @ φ

    def push_forward(
        self, t: Time, z: Float[Array, "k latent"], dz: Float[Array, "d latent"], u: Inputs, θ: Draw
    ) -> tuple[Float[Array, "k latent"], Float[Array, "d latent"]]:
        """The drift at k states, and its derivatives along d directions at the first of them."""
        y = _seen(t, z, u, self.span)
        dy = _directions(dz, y.shape[1])
        φ, dφ = push_through(self.network.activation, *self.network.push_forward(y, dy))
        rows = jnp.concatenate([y, dy]) @ θ["linear"].T + jnp.concatenate([φ, dφ]) @ θ["weights"].T
        return rows[: len(y)] + self.bias, rows[len(y) :]

    def draw(self, *, key: PRNGKeyArray) -> Draw:
        linear, weights = jax.random.split(key)
        return {"linear": self.linear.sample(key=linear), "weights": self.weights.sample(key=weights)}

    def median(self) -> Draw:
        return {"linear": self.linear.mean, "weights": self.weights.mean}

    def kl(self) -> Float[Array, ""]:
        return self.linear.kl() + self.weights.kl()

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

    def __init__(self, function: DriftFunction, parameters: Mapping[str, Parameter], units: Units = Units()):
        self.function, self.parameters, self.units = function, dict(parameters), units

    def __call__(self, t: Time, z: State, u: Inputs, θ: Draw) -> State:
        units = jax.lax.stop_gradient(jax.tree.map(lambda x: jnp.asarray(x, z.dtype), self.units))
        state, inputs = units.shift + units.scale * z, units.input_shift + units.input_scale * u
        rate = self.function(units.origin + units.time_scale * t, state, θ, inputs)
        return jnp.stack([jnp.asarray(part) for part in rate]) * (units.time_scale / units.scale)

    def draw(self, *, key: PRNGKeyArray) -> Draw:
        keys = jax.random.split(key, max(len(self.parameters), 1))
        return {name: item.sample(key=k) for (name, item), k in zip(self.parameters.items(), keys, strict=False)}

    def median(self) -> Draw:
        return {name: item.quantile(0.5) for name, item in self.parameters.items()}

    def kl(self) -> Float[Array, ""]:
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
