"""The prior dynamics:  z(0) ~ N(μ₀, σ₀²),   dz = f(t, z, u) dt + √q(t) dβ,  q diagonal.

A drift is any module with `__call__(t, z, u, parameters)`, `draw(key=…)`, `median()` and `kl()`; `parameters` is what `draw` or
`median` gave.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from .host import array
from .nn import MLP, pushed
from .prior import LogNormal, Parameter, Weights


def interpolate_inputs(
    t: Float[Array, "*points"], times: Float[Array, " knots"], inputs: Float[Array, "knots inputs"]
) -> Float[Array, "*points inputs"]:
    """u(t), linear between the knots and held constant beyond them."""
    if inputs.shape[1] == 0:
        return jnp.zeros((*jnp.shape(t), 0), inputs.dtype)
    return jax.vmap(lambda column: jnp.interp(t, times, column), in_axes=1, out_axes=-1)(inputs)


def _seen(t: Array, z: Array, u: Array, span: float | None) -> Array:
    """y = [z, u], or [z, u, t/span]: what a network sees."""
    time = () if span is None else (jnp.asarray(t / span, z.dtype)[..., None],)
    known = (jnp.broadcast_to(x, (*z.shape[:-1], x.shape[-1])) for x in (u, *time))
    return jnp.concatenate([z, *known], axis=-1)


def _directions(
    dz: Float[Array, "d *points latent"], y: Float[Array, "k *points size"]
) -> Float[Array, "d *points size"]:
    """dy for y as above: u and t stand still."""
    still = jnp.zeros((*dz.shape[:-1], y.shape[-1] - dz.shape[-1]), dz.dtype)
    return jnp.concatenate([dz, still], axis=-1)


def _product(weight: Float[Array, "*draws out in"], x: Float[Array, "k *points in"]) -> Float[Array, "k *points out"]:
    """W x, with a W of its own for each entry of the points' first axis if there are several."""
    return x @ weight.T if weight.ndim == 2 else jax.vmap(_product, in_axes=(0, 1), out_axes=1)(weight, x)


class NeuralDrift(eqx.Module):
    """f(t, z, u) = A y + b + W φ(y) with y = [z, u], or y = [z, u, t/span] when time-dependent.

    φ is an MLP's last hidden layer. A and W are uncertain, N(μ, σ²) against N(0, τ²) with a τ learned for each of the two:
    the non-linear part must earn its KL, so a thousand noisy rows are not over-fitted, and forecasts know how little is
    known of f.
    """

    linear: Weights
    bias: Float[Array, " latent"]
    features: MLP
    weights: Weights
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
        self.linear = Weights(latent_size, in_size, prior_std=0.5)
        self.bias = array(np.zeros(latent_size))
        self.features = MLP((in_size, *hidden_sizes), activation, rng=rng)
        self.weights = Weights(latent_size, hidden_sizes[-1])
        self.span = span

    def __call__(
        self,
        t: Float[Array, ""],
        z: Float[Array, " latent"],
        u: Float[Array, " inputs"],
        parameters: Mapping[str, Array],
    ) -> Float[Array, " latent"]:
        y = _seen(t, z, u, self.span)
        curved = parameters["weights"] @ self.features.activation(self.features(y))
        return parameters["linear"] @ y + self.bias + curved

    def tangents(self, t: Array, z: Array, dz: Array, u: Array, parameters: Mapping[str, Array]) -> tuple[Array, Array]:
        """See `fields`."""
        y = _seen(t, z, u, self.span)
        dy = _directions(dz, y)
        inner, slope = pushed(self.features.activation, *self.features.tangents(y, dy))
        all_y, all_inner = jnp.concatenate([y, dy]), jnp.concatenate([inner, slope])
        both = _product(parameters["linear"], all_y) + _product(parameters["weights"], all_inner)
        value, slope = jnp.split(both, [len(y)])
        return value + self.bias, slope

    def draw(self, *, key: PRNGKeyArray) -> dict[str, Array]:
        linear, weights = jax.random.split(key)
        return {"linear": self.linear.sample(key=linear), "weights": self.weights.sample(key=weights)}

    def median(self) -> dict[str, Array]:
        return {"linear": self.linear.mean, "weights": self.weights.mean}

    def kl(self) -> Float[Array, ""]:
        return self.linear.kl() + self.weights.kl()


class PlainDrift(eqx.Module):
    """f(t, z, u) = net(y), y as in `NeuralDrift`: a network with point-estimated weights, as in the paper."""

    net: MLP
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
        self.net = MLP((in_size, *hidden_sizes, latent_size), activation, rng=rng)
        self.span = span

    def __call__(
        self,
        t: Float[Array, ""],
        z: Float[Array, " latent"],
        u: Float[Array, " inputs"],
        parameters: Mapping[str, Array],
    ) -> Float[Array, " latent"]:
        return self.net(_seen(t, z, u, self.span))

    def tangents(self, t: Array, z: Array, dz: Array, u: Array, parameters: Mapping[str, Array]) -> tuple[Array, Array]:
        """See `fields`."""
        y = _seen(t, z, u, self.span)
        return self.net.tangents(y, _directions(dz, y))

    def draw(self, *, key: PRNGKeyArray) -> dict[str, Array]:
        return {}

    def median(self) -> dict[str, Array]:
        return {}

    def kl(self) -> Float[Array, ""]:
        return jnp.zeros(())


class Units(NamedTuple):
    """How the model's t, z and u read in the user's units:  user = shift + scale · model."""

    origin: float = 0.0
    time_scale: float = 1.0
    shift: Any = 0.0
    scale: Any = 1.0
    input_shift: Any = 0.0
    input_scale: Any = 1.0


class ParametricDrift(eqx.Module):
    """A user's own `function(t, z, p, u)` in the user's units; `p` maps each parameter's name to its value.

    The change of units is chained through:  f̃ = (time_scale/scale) · f(origin + time_scale t, shift + scale z, p, u).
    """

    parameters: dict[str, Parameter]
    function: Callable[..., Any] = eqx.field(static=True)
    units: Units

    def __init__(self, function: Callable[..., Any], parameters: Mapping[str, Parameter], units: Units = Units()):
        self.function, self.parameters, self.units = function, dict(parameters), units

    def __call__(
        self,
        t: Float[Array, ""],
        z: Float[Array, " latent"],
        u: Float[Array, " inputs"],
        parameters: Mapping[str, Array],
    ) -> Float[Array, " latent"]:
        units = jax.lax.stop_gradient(jax.tree.map(lambda x: jnp.asarray(x, z.dtype), self.units))
        state = units.shift + units.scale * z
        rate = self.function(
            units.origin + units.time_scale * t, state, parameters, units.input_shift + units.input_scale * u
        )
        return jnp.stack([jnp.asarray(part) for part in rate]) * (units.time_scale / units.scale)

    def draw(self, *, key: PRNGKeyArray) -> dict[str, Array]:
        keys = jax.random.split(key, max(len(self.parameters), 1))
        return {name: item.sample(key=k) for (name, item), k in zip(self.parameters.items(), keys, strict=False)}

    def median(self) -> dict[str, Array]:
        return {name: item.quantile(0.5) for name, item in self.parameters.items()}

    def kl(self) -> Float[Array, ""]:
        return sum((item.kl() for item in self.parameters.values()), start=jnp.zeros(()))


def fields(
    drift: Any,
    t: Float[Array, "*points"],
    z: Float[Array, "*points latent"],
    mean: Float[Array, "*points latent"] | None,
    u: Float[Array, "*points inputs"],
    parameters: Any,
    *,
    several: bool,
) -> tuple[Float[Array, "*points latent"], Float[Array, "*points latent latent"] | None]:
    """f at `z`, and its Jacobian at `mean` if that is given. `several`: there are several draws of the parameters, one for each
    entry of the points' first axis.

    A network of ours has `tangents(t, z, dz, u, parameters)` (its values at k states `z` a point, its derivatives along d directions
    `dz` at the first of them; k and d are the first axes) and is asked once for all points; any other drift at each point. By exact
    type: a subclass that overrides `__call__` alone would inherit `tangents` and train on another drift than it forecasts with.
    """
    if type(drift) in (NeuralDrift, PlainDrift):
        if mean is None:
            return drift.tangents(t, z[None], jnp.zeros((0, *z.shape), z.dtype), u, parameters)[0][0], None
        axes = jnp.eye(z.shape[-1], dtype=z.dtype).reshape(-1, *(1,) * t.ndim, z.shape[-1])
        axes = jnp.broadcast_to(axes, (len(axes), *z.shape))
        values, slopes = drift.tangents(t, jnp.stack([mean, z]), axes, u, parameters)
        return values[1], jnp.moveaxis(slopes, 0, -1)

    def at_one(t: Array, z: Array, mean: Array | None, u: Array, parameters: Any) -> tuple[Array, Array | None]:
        jacobian = None if mean is None else jax.jacfwd(lambda z: drift(t, z, u, parameters))(mean)
        return drift(t, z, u, parameters), jacobian

    everywhere = at_one
    for i in reversed(range(t.ndim)):
        everywhere = jax.vmap(everywhere, in_axes=(0, 0, 0, 0, 0 if several and i == 0 else None))
    return everywhere(t, z, mean, u, parameters)


class Diffusion(eqx.Module):
    """q(t) = θ, or θ · exp(net(t/span)) when time-dependent; θ positive, one per latent axis."""

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

    def __call__(
        self, t: Float[Array, "*points"], level: Float[Array, "*#points latent"]
    ) -> Float[Array, "*#points latent"]:
        if self.net is None:
            return level
        return level * jnp.exp(jnp.moveaxis(self.net(jnp.asarray(t / self.span, level.dtype)[None]), 0, -1))

    def draw(self, *, key: PRNGKeyArray) -> Float[Array, " latent"]:
        return self.level.sample(key=key)

    def kl(self) -> Float[Array, ""]:
        return self.level.kl()


class InitialState(eqx.Module):
    """p(z(0)) = N(mean, exp(log_variance)), learned; it is what unconditional samples start from."""

    mean: Float[Array, " latent"]
    log_variance: Float[Array, " latent"]

    def __init__(self, latent_size: int):
        self.mean, self.log_variance = array(np.zeros(latent_size)), array(np.zeros(latent_size))

    def sample(self, *, key: PRNGKeyArray) -> Float[Array, " latent"]:
        noise = jax.random.normal(key, self.mean.shape, self.mean.dtype)
        return self.mean + jnp.exp(0.5 * self.log_variance) * noise
