"""A user's own drift: a function with named parameters in the user's units, or a module."""

import math
from collections.abc import Mapping
from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from ..runtime.host import Held
from .prior import Coordinates, Parameter
from .sde import AbstractDrift, Coefficients, Draw, DriftFunction, Inputs, State, Time, depart, shared_entropy


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
    believed: ClassVar[bool] = True
    own: ClassVar[bool] = True
    owner: ClassVar[str] = "your drift"

    def __init__(self, function: DriftFunction, parameters: Mapping[str, Parameter], units: Units = Units()):
        self.function, self.parameters, self.units, self.joint = function, dict(parameters), units, None

    def __call__(self, t: Time, z: State, u: Inputs, θ: Draw) -> State:
        units = jax.lax.stop_gradient(jax.tree.map(lambda x: jnp.asarray(x, z.dtype), self.units))
        state, inputs = units.shift + units.scale * z, units.input_shift + units.input_scale * u
        rate = self.function(units.origin + units.time_scale * t, state, θ, inputs)
        return jnp.stack([jnp.asarray(part) for part in rate]) * (units.time_scale / units.scale)

    def as_seen(self, z: Float[np.ndarray, " latent"]) -> Float[np.ndarray, " latent"]:
        return np.asarray(self.units.shift) + np.asarray(self.units.scale) * z

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

    def factor(self) -> Float[Array, "coefficients coefficients"]:
        return AbstractDrift.factor(self) if self.joint is None else self.joint.value

    def draw(self, *, key: PRNGKeyArray) -> Draw:
        if self.joint is not None:
            return self.at_coefficients(self.coefficients().mean + depart(self.joint, key))
        keys = jax.random.split(key, max(len(self.parameters), 1))
        return {name: item.sample(key=k) for (name, item), k in zip(self.parameters.items(), keys, strict=False)}

    def median(self) -> Draw:
        return {name: item.quantile(0.5) for name, item in self.parameters.items()}

    def kl(self) -> Float[Array, ""]:
        alone = sum((item.kl() for item in self.parameters.values()), start=jnp.zeros(()))
        return alone if self.joint is None else alone + shared_entropy(self.joint)

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
    own: ClassVar[bool] = True
    owner: ClassVar[str] = "your drift"

    def __call__(self, t: Time, z: State, u: Inputs, θ: Draw) -> State:
        return self.module(t, z, u, θ)

    def draw(self, *, key: PRNGKeyArray) -> Draw:
        return self.module.draw(key=key)

    def median(self) -> Draw:
        return self.module.median()

    def kl(self) -> Float[Array, ""]:
        return self.module.kl()
