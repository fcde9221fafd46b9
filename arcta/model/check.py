"""A user's own drift and decoder, checked once before anything is compiled: how many arguments they take, which parameters they
name, what they return, and that they can be traced. `jax.eval_shape` runs them without computing."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.errors import ConcretizationTypeError, TracerArrayConversionError, TracerBoolConversionError
from jaxtyping import Array

from ..parts.decoders import AbstractDecoder
from ..parts.physics import ParametricDrift
from ..parts.sde import AbstractDrift
from .reading import DataLayout
from .spec import LatentSDE


class _Own(NamedTuple):
    """A user's function, whose it is in a sentence, and how it is to be called."""

    function: Callable[..., object]
    owner: str
    arguments: tuple[str, ...]

    def check_arguments(self) -> None:
        try:
            signature = inspect.signature(self.function)
        except (ValueError, TypeError):  # of some built-in functions nothing is known
            return
        try:
            signature.bind(*self.arguments)
        except TypeError:
            wanted = ", ".join(self.arguments)
            raise ValueError(
                f"{self.owner} must take the arguments ({wanted}); got a function of {signature}. Write def f({wanted}): …, with "
                "all of them, also those that it does not use."
            ) from None

    def place(self, error: BaseException) -> str:
        """The line of the user's code where an error began, in brackets."""
        code = getattr(inspect.unwrap(self.function), "__code__", None)
        frames = [f for f in traceback.extract_tb(error.__traceback__) if code and f.filename == code.co_filename]
        return f" in line {frames[-1].lineno} ({frames[-1].line})" if frames and frames[-1].line else ""

    def trace(self, call: Callable[..., list[Array]], *shapes: jax.ShapeDtypeStruct) -> list[jax.ShapeDtypeStruct]:
        """The shapes of what a call gives back; what cannot be traced is a sentence with the cure."""
        try:
            return jax.eval_shape(call, *shapes)
        except TracerArrayConversionError as error:
            raise ValueError(
                f"{self.owner} must compute with jax.numpy; got a function of NumPy{self.place(error)}. Write jax.numpy in its "
                "place: import jax.numpy as jnp."
            ) from None
        except TracerBoolConversionError as error:
            raise ValueError(
                f"{self.owner} must not branch on what it computes with; got if, and, or or while{self.place(error)}. Use "
                "jnp.where(condition, a, b)."
            ) from None
        except ConcretizationTypeError as error:
            raise ValueError(
                f"{self.owner} must compute with JAX's numbers; got float(), int() or a function of math{self.place(error)}. Use "
                "jax.numpy: jnp.sin in place of math.sin."
            ) from None
        except ValueError as error:
            if "to unpack" not in str(error):
                raise
            size = shapes[1 if len(shapes) > 1 else 0].shape[0]
            raise ValueError(
                f"{self.owner} must work with a state of size {size}; got '{error}'{self.place(error)}. Unpack as many, or set "
                "latent_size=."
            ) from None


class _Given(dict[str, Array]):
    """The parameters of a drift function; one that was not given is a sentence."""

    def __missing__(self, name: object) -> Array:
        raise ValueError(
            f"your drift uses the parameter {name!r}; got parameters= with {', '.join(map(repr, self)) or 'none'}. Add it, e.g. "
            f"parameters={{{name!r}: arcta.LogNormal(1.0, 1.0)}}, or correct the name."
        )

    def __getattr__(self, name: str) -> Array:
        if name.startswith("_"):
            raise AttributeError(name)
        raise ValueError(f"your drift needs parameters by their names; got p.{name}. Write p['{name}'].")


def _numbers(found: object) -> list[Array]:
    """What was returned, entry by entry; nothing if it is None, and a single number as one of no shape is kept apart."""
    if found is None:
        return []
    if isinstance(found, list | tuple):
        return [jnp.asarray(part) for part in found]
    whole = jnp.asarray(found)
    return [whole] if whole.ndim == 0 else list(whole)


def _words(shapes: list[jax.ShapeDtypeStruct], single: bool) -> str:
    if not shapes:
        return "nothing (None)"
    if single:
        return "a single number"
    odd = [shape.shape for shape in shapes if shape.shape]
    return f"{len(shapes)}" + (f", of shape {odd[0]}" if odd else "")


def _check_outputs(own: _Own, size: int, of: str, cure: str, call: Callable[..., object], *shapes: object) -> None:
    single = []

    def entries(*arguments: object) -> list[Array]:
        found = call(*arguments)
        single.append(found is not None and not isinstance(found, list | tuple) and getattr(found, "ndim", 0) == 0)
        return _numbers(found)

    found = own.trace(entries, *shapes)  # pyright: ignore[reportArgumentType]
    if len(found) != size or single[-1] or any(shape.shape for shape in found):
        raise ValueError(f"{own.owner} must return {size} numbers, one {of}; got {_words(found, single[-1])}. {cure}")


def _check_drift(spec: LatentSDE, drift: AbstractDrift, size: int, shapes: tuple[jax.ShapeDtypeStruct, ...]) -> None:
    function = spec.drift
    names = ", ".join(f"rate{i}" for i in range(min(size, 3))) + ", …" * (size > 3)
    other = "" if spec.decoder == "identity" else ", or set latent_size= to the number of your states"
    cure = f"Return [{names}]{other}."
    if type(drift) is ParametricDrift and not isinstance(function, str):
        own = _Own(function, "your drift", ("t", "z", "p", "u"))
        own.check_arguments()

        def call(t: Array, z: Array, u: Array) -> object:
            return own.function(t, z, _Given(drift.median()), u)
    else:
        own = _Own(type(drift).__call__, "your drift", ("self", "t", "z", "u", "θ"))

        def call(t: Array, z: Array, u: Array) -> object:
            return drift(t, z, u, drift.median())

    _check_outputs(own, size, f"for each of the {size} states", cure, call, *shapes)


def _check_decoder(spec: LatentSDE, decoder: AbstractDecoder, count: int, state: jax.ShapeDtypeStruct) -> None:
    own = _Own(type(decoder).__call__, "your decoder", ("self", "z", "θ"))
    if decoder.own and callable(spec.decoder):
        own = _Own(spec.decoder, "your decoder", ("z",))
        own.check_arguments()

    def call(z: Array) -> object:
        found = own.function(z) if decoder.own else decoder(z, decoder.median())
        if isinstance(found, list | tuple):
            raise ValueError("your decoder must return an array; got a list. Return jnp.stack([…]) of it.")
        return found

    cure = f"Return an array of shape ({count},)."
    _check_outputs(own, count, f"for each of the {count} channels", cure, call, state)


def check_own(spec: LatentSDE, layout: DataLayout, size: int, drift: AbstractDrift, decoder: AbstractDecoder) -> None:
    """Refuse a user's own drift or decoder that does not fit a model of that latent size, in one sentence."""
    real = jax.dtypes.canonicalize_dtype(float)
    time, state, inputs = (jax.ShapeDtypeStruct(shape, real) for shape in ((), (size,), (len(layout.input_names),)))
    if not isinstance(spec.drift, str):
        _check_drift(spec, drift, size, (time, state, inputs))
    if not isinstance(spec.decoder, str | None):
        _check_decoder(spec, decoder, len(layout.channels), state)
