"""The model: its configuration (`LatentSDE`, plain keywords), and the module built from it and from the data (`Model`).

z(0) ~ p(z0),   dz = f(t, z, u) dt + √q(t) dβ,   x_i ~ p(x | z(t_i))          generative
q(z(t) | window) = N(m(t), diag s(t))                                         inference
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from .host import array, generator
from .kernel import DeepKernel
from .likelihood import (
    LIKELIHOODS,
    STANDARDISED,
    Bernoulli,
    ByChannel,
    Gaussian,
    Likelihood,
    Poisson,
    StudentT,
    check_fits,
)
from .nn import ACTIVATIONS, ConvDecoder, Identity, LocalEncoder, SkipMLP, WindowEncoder
from .posterior import Bridge, Posterior, infer
from .prior import Known, Learned, LogNormal, Parameter, Weights
from .scaling import Scaling, noise_level
from .sde import Diffusion, InitialState, NeuralDrift, ParametricDrift, PlainDrift, Units
from .series import Calendar, Series, as_list, check_training_data, kind_of
from .survey import latent_order, nugget, smoothing_bandwidth
from .windows import Window, clip_partition_size


class LinearDecoder(eqx.Module):
    """outputs = C z + b with C uncertain: N(μ, σ²) against N(0, τ_k²), a τ for each latent axis.

    An axis that a channel does not need costs nothing at zero; fitted freely, forty channels read from eight axes add as
    much error to the smoothed signal as the state itself.
    """

    weights: Weights
    bias: Float[Array, " channels"]

    def __init__(self, latent_size: int, bias: Float[np.ndarray, " channels"], *, rng: np.random.Generator):
        weights = Weights(len(bias), latent_size, prior_std=0.5, start_std=0.02, by_column=True)
        start = array(rng.standard_normal(weights.mean.shape) / np.sqrt(latent_size))
        self.weights = eqx.tree_at(lambda w: w.mean, weights, start)
        self.bias = array(bias)

    def __call__(
        self, z: Float[Array, " latent"], weights: Float[Array, "channels latent"] | None = None
    ) -> Float[Array, " channels"]:
        return (self.weights.mean if weights is None else weights) @ z + self.bias


class Draw(NamedTuple):
    """One draw of everything uncertain but the state."""

    parameters: Any
    diffusion: Float[Array, " latent"]
    likelihood: Any
    decoder: Any = None


class Model(eqx.Module):
    """Generative model and inference network together, in the model's units, unbatched."""

    encoder: Any
    kernel: DeepKernel
    drift: Any
    diffusion: Diffusion
    initial: InitialState
    decoder: Any
    likelihood: Likelihood
    bridge: Bridge | None = None
    rotation: bool = eqx.field(static=True, default=True)
    lookahead_dropout: float = eqx.field(static=True, default=0.0)

    def posterior(self, window: Window, *, key: PRNGKeyArray | None = None) -> Posterior:
        """q(z(t) | window). A key (in training) cuts the look-ahead of some nodes short."""
        return infer(self.encoder, self.kernel, window, bridge=self.bridge, dropout=self.lookahead_dropout, key=key)

    def draw(self, *, key: PRNGKeyArray) -> Draw:
        """Reparametrised draws of the drift's parameters, the diffusion, the likelihood's parameters and a linear decoder."""
        drift, diffusion, likelihood, decoder = jax.random.split(key, 4)
        linear = self.decoder if isinstance(self.decoder, LinearDecoder) else None
        return Draw(
            self.drift.draw(key=drift),
            self.diffusion.draw(key=diffusion),
            self.likelihood.draw(key=likelihood),
            None if linear is None else linear.weights.sample(key=decoder),
        )

    def decode(self, z: Float[Array, " latent"], draw: Draw) -> Float[Array, " channels"]:
        """The decoder's output at a state, for one draw."""
        return self.decoder(z) if draw.decoder is None else self.decoder(z, draw.decoder)

    def parameter_kl(self) -> Float[Array, ""]:
        """KL(q(θ) ‖ p(θ)) of all that `draw` draws."""
        linear = self.decoder.weights.kl() if isinstance(self.decoder, LinearDecoder) else 0.0
        return self.drift.kl() + self.diffusion.kl() + self.likelihood.kl() + linear


class DataSummary(NamedTuple):
    """What building a model needs to know of the training data; saved with it."""

    channels: tuple[str, ...]
    units: tuple[str, ...]
    input_names: tuple[str, ...]
    time_unit: str
    calendar: Calendar | None
    frame_shape: tuple[int, ...] | None
    kinds: tuple[str, ...]
    latent_size: int
    partition_size: int
    scaling: Scaling
    span: float
    typical_step: float
    bandwidth: float
    margin: int
    smooth: bool
    slope_axes: int
    noise: tuple[float, ...]
    means: tuple[float, ...]
    whole_rows: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class LatentSDE:
    """The configuration of a latent SDE; everything has a default that is derived from the data.

    **Arguments:**

    - `latent_size`: d; by default as many axes as rise above the noise, twice as many where the data is smooth and its
      levels do not say where it moves, at most 8 (`survey.latent_order`).
    - `decoder`: `"linear"`, `"mlp"`, `"conv"` (frames), `"identity"` (dynamics in the data's own coordinates) or a module of
      yours, which sees one state.
    - `likelihood`: `"auto"` (counts are Poisson, zeros and ones Bernoulli, all else Gaussian), `"gaussian"`, `"student-t"`,
      `"bernoulli"`, `"poisson"`, or a mapping from channel names to these (channels left out are Gaussian).
    - `noise`: `"posterior"` (log-normal, the default), `"learned"` (a point estimate), or the known standard deviation
      in the data's units.
    - `encoder`: `"local"` (lines through the observations around, from both sides; the default), `"window"` (an observation
      and the `lookahead` ones after it, as in the paper; the default for frames) or a module of yours, which sees one
      node (values and mask of it and the ones after it, the steps between them) and has an attribute `lookahead`.
    - `drift`: `"neural"` (a linear part and a network, uncertain weights), `"plain"` (a network, as in the paper), a function
      `f(t, z, p, u)` in your own units with the `parameters` it names, or a module of yours. `time_dependent`: whether a
      network sees the time.
    - `diffusion`: `"constant"` or `"time-dependent"`; `diffusion_start`: its first value in the model's units (default: read
      off the data); `diffusion_prior`: the median and the log-spread of its log-normal prior there.
    - `partition_size`: M, observations per window; a series shorter than that is one window.
    - `rotation`: the rotation term of the posterior drift (a tighter bound for anything that turns).
    - `lookahead_dropout`: the fraction of nodes whose look-ahead is cut short in training.
    - `*_sizes`, `activation`: hidden layers; `lengthscale`: of the kernel at the start, in observations;
      `interpolation_noise`: σ_n² at the start (both by default from the data).

    !!! example

        >>> import arcta
        >>> arcta.LatentSDE(latent_size=2).latent_size
        2
    """

    latent_size: int | None = None
    decoder: Any = None
    likelihood: str | Mapping[str, str] = "auto"
    noise: str | float = "posterior"
    encoder: Any = None
    lookahead: int = 2
    drift: Any = "neural"
    parameters: Mapping[str, Parameter] | None = None
    time_dependent: bool = False
    diffusion: str = "constant"
    diffusion_start: float | None = None
    diffusion_prior: tuple[float, float] = (0.1, 3.0)
    partition_size: int | None = None
    rotation: bool = True
    lookahead_dropout: float = 0.1
    encoder_sizes: tuple[int, ...] = (32, 32)
    decoder_sizes: tuple[int, ...] = (32, 32)
    drift_sizes: tuple[int, ...] = (64, 64)
    kernel_sizes: tuple[int, ...] = ()
    activation: str = "silu"
    lengthscale: float | None = None
    interpolation_noise: float | None = None

    def __post_init__(self) -> None:
        if self.latent_size is not None and self.latent_size < 1:
            raise ValueError(f"latent_size must be at least 1; got {self.latent_size}. Leave it out for a default.")
        if self.partition_size is not None and self.partition_size < 2:
            raise ValueError(f"partition_size must be at least 2; got {self.partition_size}. 128 suits most data.")
        if self.lookahead < 0:
            raise ValueError(f"lookahead must be 0 or more; got {self.lookahead}. Use 0 to see one observation alone.")
        if not 0 <= self.lookahead_dropout < 1:
            raise ValueError(f"lookahead_dropout must lie in [0, 1); got {self.lookahead_dropout}. Use 0.1.")
        self._check_choice("activation", tuple(ACTIVATIONS))
        self._check_choice("diffusion", ("constant", "time-dependent"))
        for name, choices in (
            ("decoder", ("linear", "mlp", "conv", "identity")),
            ("encoder", ("local", "window")),
            ("drift", ("neural", "plain")),
        ):
            if isinstance(getattr(self, name), str):
                self._check_choice(name, choices)
        if isinstance(self.noise, str):
            self._check_choice("noise", ("posterior", "learned"))
        elif self.noise <= 0:
            raise ValueError(f"a known noise must be positive; got {self.noise}. Use noise='learned' to learn it.")
        kinds = [self.likelihood] if isinstance(self.likelihood, str) else self.likelihood.values()
        for kind in kinds:
            if kind not in ("auto", *LIKELIHOODS):
                raise ValueError(
                    f"likelihood must be one of auto, {', '.join(LIKELIHOODS)}; got '{kind}'. Choose one of them."
                )
        if self.parameters is not None and (isinstance(self.drift, str) or not callable(self.drift)):
            raise ValueError("parameters need a drift function that uses them; pass drift=lambda t, z, p, u: ….")

    def _check_choice(self, name: str, choices: Sequence[str]) -> None:
        if getattr(self, name) not in choices:
            raise ValueError(
                f"{name} must be one of {', '.join(choices)}; got '{getattr(self, name)}'. Choose one of them."
            )


def _kinds(spec: LatentSDE, data: Sequence[Series]) -> tuple[str, ...]:
    """The likelihood of each channel; `"auto"` takes counts for Poisson, zeros and ones for Bernoulli, the rest for Gaussian."""
    channels = data[0].channels
    chosen = dict.fromkeys(channels, spec.likelihood) if isinstance(spec.likelihood, str) else dict(spec.likelihood)
    unknown = [name for name in chosen if name not in channels]
    if unknown:
        raise ValueError(
            f"likelihood names channel '{unknown[0]}', which the data does not have; its channels are "
            f"{', '.join(channels[:8])}. Use one of those names."
        )
    found = {"binary": "bernoulli", "counts": "poisson", "real": "gaussian"}
    if data[0].frame_shape and spec.likelihood == "auto":  # pixels are all of one kind
        kind = kind_of([item.values.ravel() for item in data], [item.mask.ravel() for item in data])
        return ("bernoulli" if kind == "binary" else "gaussian",) * len(channels)

    def of(column: int) -> str:
        wanted = chosen.get(channels[column], "gaussian")
        if wanted != "auto":
            return wanted
        return found[kind_of([item.values[:, column] for item in data], [item.mask[:, column] for item in data])]

    return tuple(of(column) for column in range(len(channels)))


def _latent_size(spec: LatentSDE, num_channels: int, found: int) -> int:
    if spec.decoder != "identity":
        return spec.latent_size or found
    if spec.latent_size not in (None, num_channels):
        raise ValueError(
            f"the identity decoder needs latent_size equal to the number of channels ({num_channels}); got "
            f"{spec.latent_size}. Leave latent_size out, or use decoder='mlp'."
        )
    return num_channels


def _encoder_kind(spec: LatentSDE, frame_shape: tuple[int, ...] | None) -> str:
    if not isinstance(spec.encoder, str | None):
        return "own"
    return spec.encoder or ("window" if frame_shape else "local")


def has_whole_rows(series: Sequence[Series]) -> bool:
    """Whether no row lacks single channels."""
    return all(bool(np.all(item.mask.all(axis=1) == item.mask.any(axis=1))) for item in series)


def summarise(spec: LatentSDE, data: Series | Sequence[Series]) -> DataSummary:
    """Check the data against the configuration and read off what the model's defaults depend on."""
    series = as_list(data)
    check_training_data(series)
    first = series[0]
    kinds = _kinds(spec, series)
    check_fits(kinds, series)
    scaling = Scaling.fit(series, np.array([kind in STANDARDISED for kind in kinds]))
    steps = np.concatenate([np.diff(item.times[item.mask.any(axis=1)]) for item in series])
    typical_step = float(np.median(steps)) / scaling.time_scale
    local = _encoder_kind(spec, first.frame_shape) == "local"
    bandwidth, noise = typical_step, noise_level(series, scaling.scale)
    latent_size, smooth, slopes = min(max(len(first.channels), 2), 8), True, 0
    if local:
        bandwidth, misfit = smoothing_bandwidth(series, scaling)
        order = latent_order(series, scaling, bandwidth, misfit)
        noise = misfit if order.smooth else np.clip(nugget(series, scaling.scale), 0.3 * misfit, misfit)
        latent_size, smooth, slopes = order.latent_size, order.smooth, order.slopes
    seen = np.maximum(sum(item.mask.sum(axis=0) for item in series), 1)
    return DataSummary(
        channels=first.channels,
        units=first.units,
        input_names=first.input_names,
        time_unit=first.time_unit,
        calendar=first.calendar,
        frame_shape=first.frame_shape,
        kinds=kinds,
        latent_size=_latent_size(spec, len(first.channels), latent_size),
        partition_size=clip_partition_size(spec.partition_size, series),
        scaling=scaling,
        span=float(max(item.times[-1] - scaling.origin for item in series) / scaling.time_scale),
        typical_step=typical_step,
        bandwidth=bandwidth,
        margin=int(np.clip(np.ceil(8 * bandwidth / typical_step), 4, 32)) if local else 0,
        smooth=smooth,
        slope_axes=slopes,
        noise=tuple(np.clip(noise, 1e-3, 1.0).tolist()),
        means=tuple((sum(item.values.sum(axis=0) for item in series) / seen).tolist()),
        whole_rows=has_whole_rows(series),
    )


def _variance(spec: LatentSDE, summary: DataSummary, columns: np.ndarray) -> Parameter:
    start = np.array(summary.noise)[columns] ** 2
    if spec.noise == "posterior":
        return LogNormal(np.full(len(columns), 0.1), 3.0, start=start, start_spread=0.1)
    if spec.noise == "learned":
        return Learned(start)
    return Known((float(spec.noise) / summary.scaling.scale[columns]) ** 2)


def _likelihood(spec: LatentSDE, summary: DataSummary) -> Likelihood:
    parts, channels = [], []
    for kind in dict.fromkeys(summary.kinds):
        columns = np.flatnonzero(np.array(summary.kinds) == kind)
        if kind in STANDARDISED:
            variance = _variance(spec, summary, columns)
            parts.append(Gaussian(variance) if kind == "gaussian" else StudentT(variance, len(columns)))
        else:
            parts.append(Bernoulli() if kind == "bernoulli" else Poisson())
        channels.append(tuple(columns.tolist()))
    return parts[0] if len(parts) == 1 else ByChannel(tuple(parts), tuple(channels))


def output_start(summary: DataSummary) -> np.ndarray:
    """Where the decoder's outputs start: at the channel's mean, through the likelihood's link."""
    mean = np.array(summary.means)
    probability = np.clip(mean, 1e-2, 1 - 1e-2)
    starts = {"bernoulli": np.log(probability / (1 - probability)), "poisson": np.log(np.maximum(mean, 1e-2))}
    return np.stack([np.asarray(starts.get(kind, 0 * mean))[i] for i, kind in enumerate(summary.kinds)])


def _decoder(spec: LatentSDE, summary: DataSummary, rng: np.random.Generator) -> Callable[[Array], Array]:
    kind = spec.decoder or ("conv" if summary.frame_shape else "linear")
    if not isinstance(kind, str):
        return kind
    if kind == "identity":
        return Identity()
    if kind == "conv":
        if summary.frame_shape is None:
            raise ValueError(
                "decoder='conv' needs frames; the values are flat rows. Pass values of shape (n, height, width)."
            )
        return ConvDecoder(summary.latent_size, summary.frame_shape, spec.activation, rng=rng)
    if kind == "linear":
        return LinearDecoder(summary.latent_size, output_start(summary), rng=rng)
    sizes = (summary.latent_size, *spec.decoder_sizes, len(summary.channels))
    net = SkipMLP(sizes, spec.activation, rng=rng)
    bias = array(np.asarray(net.linear.bias) + output_start(summary))
    return eqx.tree_at(lambda n: n.linear.bias, net, bias)


def _drift(spec: LatentSDE, summary: DataSummary, rng: np.random.Generator) -> Any:
    if isinstance(spec.drift, eqx.Module):
        return spec.drift
    scaling = summary.scaling
    if callable(spec.drift):
        own = spec.decoder == "identity"  # then z is x, and the user's drift sees it in the user's units
        units = Units(
            scaling.origin,
            scaling.time_scale,
            scaling.shift if own else np.zeros(summary.latent_size),
            scaling.scale if own else np.ones(summary.latent_size),
            scaling.input_shift,
            scaling.input_scale,
        )
        return ParametricDrift(spec.drift, spec.parameters or {}, units)
    kind = PlainDrift if spec.drift == "plain" else NeuralDrift
    return kind(
        summary.latent_size,
        len(summary.input_names),
        hidden_sizes=spec.drift_sizes,
        activation=spec.activation,
        span=summary.span if spec.time_dependent else None,
        rng=rng,
    )


def build(spec: LatentSDE, summary: DataSummary, *, key: PRNGKeyArray) -> Model:
    """The untrained module for a configuration and the data it is meant for."""
    encoder, kernel, drift, diffusion, decoder = generator(key).spawn(5)
    start_variance = 1e-2 if summary.frame_shape else float(np.median(summary.noise)) ** 2
    kind = _encoder_kind(spec, summary.frame_shape)
    if kind == "local":
        network = LocalEncoder(
            len(summary.channels),
            summary.latent_size,
            bandwidth=summary.bandwidth,
            noise=np.array(summary.noise),
            hidden_sizes=spec.encoder_sizes,
            activation=spec.activation,
            rng=encoder,
        )
    elif kind == "window":
        network = WindowEncoder(
            len(summary.channels),
            summary.latent_size,
            lookahead=spec.lookahead,
            hidden_sizes=spec.encoder_sizes,
            activation=spec.activation,
            frame_shape=summary.frame_shape,
            residual=spec.decoder == "identity",
            start_variance=start_variance,
            typical_step=summary.typical_step,
            whole_rows=summary.whole_rows,
            rng=encoder,
        )
    else:
        network = spec.encoder
    median, spread = spec.diffusion_prior
    level = LogNormal(
        np.full(summary.latent_size, median), spread, start=spec.diffusion_start or 1e-2, start_spread=0.1
    )
    return Model(
        encoder=network,
        kernel=DeepKernel(
            hidden_sizes=spec.kernel_sizes,
            activation=spec.activation,
            lengthscale=spec.lengthscale
            or (max(1.0, summary.bandwidth / summary.typical_step) if kind == "local" else 9.0),
            noise=spec.interpolation_noise or (1e-3 if kind == "local" else max(start_variance, 1e-4)),
            roughness=0.0 if summary.smooth else 0.5,
            rng=kernel,
        ),
        drift=_drift(spec, summary, drift),
        diffusion=Diffusion(
            level,
            summary.latent_size,
            span=summary.span if spec.diffusion == "time-dependent" else None,
            rng=diffusion,
        ),
        initial=InitialState(summary.latent_size),
        decoder=_decoder(spec, summary, decoder),
        likelihood=_likelihood(spec, summary),
        bridge=Bridge(summary.latent_size) if kind == "local" else None,
        rotation=spec.rotation,
        lookahead_dropout=spec.lookahead_dropout,
    )
