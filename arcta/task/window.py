"""The core from outside: the windows that a model sees of a series, and their bound."""

from __future__ import annotations

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from ..bound.elbo import ELBO
from ..bound.elbo import elbo as bound_of
from ..bound.quadrature import stratified
from ..data.read import Data
from ..data.windows import Window, windows_of, with_fillers
from ..parts.model import Model
from ..parts.posterior import AbstractPosterior
from ..parts.smoother import LONGEST
from .use import Forecaster, key_of


def window(fit: Forecaster, data: Data | None = None, number: int | None = 0) -> Window:
    """A window of a series as the model sees it, in the model's units: what `arcta.elbo` takes.

    **Arguments:**

    - `fit`: a trained model; `data`: a series or several (default: the training series).
    - `number`: which of their windows, in order of time; None is all of them, stacked along a leading axis to `vmap` over. Each
      observation is scored in one of them.

    !!! example

        >>> import arcta
        >>> series = arcta.datasets.lotka_volterra(duration=6.0)
        >>> fit = arcta.fit(series, training=arcta.Training(steps=2), progress=False)
        >>> terms = arcta.elbo(fit.model, arcta.window(fit), key=0)
        >>> sorted(terms._asdict())
        ['initial_kl', 'log_likelihood', 'parameter_kl', 'path_kl']
    """
    series, model, layout = fit._given(data), fit.members[0], fit.layout
    shape = layout.window_shape(model)
    if model.refined:
        shape = with_fillers(shape, series, layout.scaling, LONGEST)
    windows = windows_of(series, layout.scaling, shape)
    count = len(windows.first)
    if number is not None and not -count <= number < count:
        raise ValueError(f"the data has {count} windows; got number={number}. Use 0 to {count - 1}, or None for all.")
    place = ... if number is None else number
    return jax.tree.map(lambda leaf: jnp.asarray(leaf[place]), windows)


def elbo(
    model: Model,
    window: Window,
    *,
    num_draws: int = 10,
    num_times: int = 10,
    num_decoded: int | None = None,
    draw_times: Callable[..., Array] = stratified,
    posterior: AbstractPosterior | None = None,
    key: int | PRNGKeyArray,
) -> ELBO:
    """Unbiased estimates of the terms of a window's evidence lower bound, in nats and in the model's units.

    **Arguments:**

    - `model`, `window`: unbatched, as `fit.model` and `fit.window()` are; `vmap` over windows or models as you need.
    - `num_draws`: R, draws of the state's noise and of the uncertain parameters.
    - `num_times`: S, stratified times for each draw. The drift is evaluated R·S times.
    - `num_decoded`: how many of the R draws are decoded at every observation; all of them by default.
    - `draw_times`: how the times are drawn in [0, 1), `(num_draws, num_times, key=…)`.
    - `posterior`: q(z(t) | window) if you have it; by default the model infers it.
    - `key`: all randomness comes from it; a seed will do.

    **Returns:** `ELBO(log_likelihood, path_kl, initial_kl, parameter_kl)`. `initial_kl` is zero but for the first window
    of a series. `parameter_kl` is that of the whole model: count it once however many windows are summed.

    !!! example

        >>> import arcta
        >>> series = arcta.datasets.lotka_volterra(duration=6.0)
        >>> fit = arcta.fit(series, training=arcta.Training(steps=2), progress=False)
        >>> terms = arcta.elbo(fit.model, fit.window(), num_draws=2, key=0)
        >>> bool(terms.total() < terms.log_likelihood)
        True
    """
    if jnp.ndim(window.start):
        raise ValueError(
            f"elbo takes one window; got {len(window.start)} of them, stacked. Use fit.window(number=0), or jax.vmap."
        )
    options = {"num_draws": num_draws, "num_times": num_times, "num_decoded": num_decoded, "draw_times": draw_times}
    return _bound(model, window, options, posterior, key_of(key))


@eqx.filter_jit
def _bound(
    model: Model, window: Window, options: dict[str, object], posterior: AbstractPosterior | None, key: PRNGKeyArray
) -> ELBO:
    return bound_of(model, window, posterior=posterior, key=key, **options)  # pyright: ignore[reportArgumentType]
