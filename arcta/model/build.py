"""From a configuration and a reading of the data to the untrained `Model`: which part is made how."""

from __future__ import annotations

from typing import cast

import equinox as eqx
import numpy as np
from jaxtyping import Float, PRNGKeyArray

from ..parts.channels import ByChannel
from ..parts.convolutions import ConvNet, TransposedConvNet, image_shape
from ..parts.decoders import AbstractDecoder, Identity, LinearDecoder, NetworkDecoder, OwnDecoder
from ..parts.diffusion import Diffusion
from ..parts.encoders import (
    GRU,
    AbstractEncoder,
    FrameEncoder,
    OwnEncoder,
    SequenceEncoder,
    Transformer,
    WindowEncoder,
)
from ..parts.kernel import DeepKernel
from ..parts.likelihoods import AbstractLikelihood
from ..parts.local import LocalEncoder
from ..parts.model import Model
from ..parts.networks import MLP, Linear
from ..parts.physics import DriftLike, OwnDrift, ParametricDrift, Units
from ..parts.posterior import Bridge, DiagonalNormal, encoding_size
from ..parts.prior import Known, Learned, LogNormal, Parameter
from ..parts.sde import AbstractDrift, NeuralDrift, PlainDrift
from ..parts.smoother import margin_for
from ..runtime.host import ArrayLike, array, generator
from .check import check_own
from .reading import DataLayout, Reading, encoder_kind
from .spec import LatentSDE

# Of q: its order of magnitude is not known to ten powers of e. Adam, with an encoder's posterior, needs a tether.
FLOW_PRIOR, ENCODER_PRIOR = (0.1, 10.0), (0.1, 3.0)


def _variance(spec: LatentSDE, layout: DataLayout, reading: Reading, columns: np.ndarray) -> Parameter:
    start = np.array(reading.noise)[columns] ** 2
    if isinstance(spec.noise, LogNormal):
        median, spread = np.asarray(spec.noise.prior_quantile(0.5)), np.asarray(spec.noise.log.prior_std)
        return LogNormal((median / layout.scaling.scale[columns]) ** 2, 2 * spread, start=start, start_spread=0.1)
    if spec.noise == "posterior":
        return LogNormal(np.full(len(columns), 0.1), 3.0, start=start, start_spread=0.1)
    if spec.noise == "learned":
        return Learned(start)
    return Known((float(spec.noise) / layout.scaling.scale[columns]) ** 2)


def _likelihood(spec: LatentSDE, layout: DataLayout, reading: Reading) -> AbstractLikelihood:
    groups = reading.likelihoods()
    parts = [kind.build(_variance(spec, layout, reading, columns), len(columns)) for kind, columns in groups]
    if len(parts) == 1:
        return parts[0]
    return ByChannel(tuple(parts), tuple(tuple(columns.tolist()) for _, columns in groups))


def first_outputs(reading: Reading) -> Float[np.ndarray, " channels"]:
    """Where the decoder's outputs start: at the channel's mean, through the likelihood's link."""
    outputs = np.array(reading.means)
    for kind, columns in reading.likelihoods():
        outputs[columns] = kind.link(outputs[columns])
    return outputs


def _decoder(spec: LatentSDE, layout: DataLayout, reading: Reading, rng: np.random.Generator) -> AbstractDecoder:
    kind = spec.decoder or ("conv" if layout.frame_shape else "linear")
    if isinstance(kind, AbstractDecoder):
        return kind
    if type(kind) in (MLP, TransposedConvNet):
        return NetworkDecoder(cast("MLP | TransposedConvNet", kind))
    if not isinstance(kind, str):
        return OwnDecoder(kind)
    if kind == "identity":
        return Identity()
    if kind == "conv":
        if layout.frame_shape is None:
            raise ValueError(
                "decoder='conv' needs frames; the values are flat rows. Pass values of shape (n, height, width)."
            )
        return NetworkDecoder(TransposedConvNet(reading.latent_size, layout.frame_shape, spec.activation, rng=rng))
    if kind == "linear":
        return LinearDecoder(reading.latent_size, first_outputs(reading), rng=rng)
    linear = Linear(reading.latent_size, len(layout.channels), rng=rng)
    linear = eqx.tree_at(lambda n: n.bias, linear, array(np.asarray(linear.bias) + first_outputs(reading)))
    sizes = (reading.latent_size, *spec.decoder_sizes, len(layout.channels))
    return NetworkDecoder(MLP(sizes, spec.activation, zero_last=True, rng=rng), linear)


def _drift(spec: LatentSDE, layout: DataLayout, reading: Reading, rng: np.random.Generator) -> AbstractDrift:
    if isinstance(spec.drift, AbstractDrift):
        return spec.drift
    if isinstance(spec.drift, DriftLike):
        return OwnDrift(spec.drift)
    scaling, size = layout.scaling, reading.latent_size
    if not isinstance(spec.drift, str):
        own = spec.decoder == "identity"  # then z is x, and the user's drift sees it in the user's units
        state = (scaling.shift, scaling.scale) if own else (np.zeros(size), np.ones(size))
        units = Units(scaling.origin, scaling.time_scale, *state, scaling.input_shift, scaling.input_scale)
        return ParametricDrift(spec.drift, spec.parameters or {}, units)
    kind = PlainDrift if spec.drift == "plain" else NeuralDrift
    span = reading.span if spec.time_dependent else None
    options = {"hidden_sizes": spec.drift_sizes, "activation": spec.activation, "span": span}
    return kind(size, len(layout.input_names), **options, rng=rng)


def _initial(spec: LatentSDE, layout: DataLayout, size: int) -> DiagonalNormal:
    if spec.initial is None:
        return DiagonalNormal.standard(size)
    own, scaling = spec.decoder == "identity", layout.scaling  # as for a user's drift
    shift, scale = (scaling.shift, scaling.scale) if own else (np.zeros(size), np.ones(size))
    mean, std = ((np.broadcast_to(np.asarray(x, float), (size,))) for x in spec.initial)
    return DiagonalNormal(array((mean - shift) / scale), array(2 * np.log(std / scale)), known=True)


def start_variance(layout: DataLayout, reading: Reading) -> float:
    """The posterior's variance at a node before anything is learned: that of the noise, of pixels less."""
    return 1e-2 if layout.frame_shape else float(np.median(reading.noise)) ** 2


def _window_encoder(spec: LatentSDE, layout: DataLayout, reading: Reading, rng: np.random.Generator) -> AbstractEncoder:
    size, log_variance = reading.latent_size, array(np.log(start_variance(layout, reading)))
    coded = encoding_size(size, full=spec.posterior == "full")
    if layout.frame_shape is not None:
        colours, height, width = image_shape(layout.frame_shape)
        net = ConvNet((spec.lookahead + 1) * 2 * colours, height, width, coded, spec.activation, rng=rng)
        return FrameEncoder(
            net=net,
            log_variance=log_variance,
            latent_size=size,
            frame_shape=layout.frame_shape,
            lookahead=spec.lookahead,
            dropout=spec.lookahead_dropout,
        )
    in_size = WindowEncoder.in_size(len(layout.channels), spec.lookahead, whole_rows=reading.whole_rows)
    own = spec.decoder == "identity"
    return WindowEncoder(
        net=MLP((in_size, *spec.encoder_sizes, coded), spec.activation, zero_last=own, rng=rng),
        log_variance=log_variance,
        latent_size=size,
        lookahead=spec.lookahead,
        residual=own,
        typical_step=layout.typical_step,
        whole_rows=reading.whole_rows,
        dropout=spec.lookahead_dropout,
    )


def local_encoder(spec: LatentSDE, layout: DataLayout, reading: Reading, rng: np.random.Generator) -> LocalEncoder:
    """The default encoder."""
    return LocalEncoder(
        len(layout.channels),
        reading.latent_size,
        bandwidth=reading.bandwidth,
        noise=np.array(reading.noise),
        hidden_sizes=spec.encoder_sizes,
        activation=spec.activation,
        reach=(reading.margin, spec.lookahead_dropout),
        full=spec.posterior == "full",
        rng=rng,
    )


def _sequence_encoder(
    spec: LatentSDE, layout: DataLayout, reading: Reading, rng: np.random.Generator
) -> SequenceEncoder:
    count, size, step = len(layout.channels), reading.latent_size, layout.typical_step
    if spec.encoder == "gru":
        network = GRU(2 * count + 2, spec.encoder_sizes[-1], rng=rng)
    else:
        network = Transformer(2 * count + 2, spec.encoder_sizes, typical_step=step, rng=rng)
    return SequenceEncoder(
        network=network,
        last=Linear(network.out_size, encoding_size(size, full=spec.posterior == "full"), zero=True, rng=rng),
        level=array(np.eye(size, count)),
        shift=array(np.zeros(count)),
        scale=array(np.ones(count)),
        log_variance=array(np.log(start_variance(layout, reading))),
        typical_step=step,
        margin=reading.margin,
        dropout=spec.lookahead_dropout,
    )


def _encoder(spec: LatentSDE, layout: DataLayout, reading: Reading, rng: np.random.Generator) -> AbstractEncoder:
    if isinstance(spec.encoder, AbstractEncoder):
        return spec.encoder
    if not isinstance(spec.encoder, str | None):
        lookahead = getattr(spec.encoder, "lookahead", 0)
        return OwnEncoder(module=spec.encoder, lookahead=lookahead, dropout=spec.lookahead_dropout)
    make = {"local": local_encoder, "window": _window_encoder}.get(
        encoder_kind(spec, layout.frame_shape), _sequence_encoder
    )
    return make(spec, layout, reading, rng)


def _kernel(spec: LatentSDE, layout: DataLayout, reading: Reading, rng: np.random.Generator) -> DeepKernel:
    smoothed = reading.margin > 0  # a bandwidth was read off the data
    lengthscale = max(1.0, reading.bandwidth / layout.typical_step) if smoothed else 9.0
    noise = 1e-3 if smoothed else max(start_variance(layout, reading), 1e-4)
    return DeepKernel(
        hidden_sizes=spec.kernel_sizes,
        activation=spec.activation,
        lengthscale=spec.lengthscale or lengthscale,
        noise=spec.interpolation_noise or noise,
        roughness=0.0 if reading.smooth else 0.5,
        rng=rng,
    )


def _diffusion_prior(spec: LatentSDE, layout: DataLayout, smoothed: bool) -> tuple[ArrayLike, ArrayLike]:
    """Median and log-spread of the prior of q in the model's units."""
    if isinstance(spec.diffusion_prior, LogNormal):
        scaling, own = layout.scaling, spec.decoder == "identity"
        unit = (scaling.scale**2 if own else 1.0) / scaling.time_scale
        median = np.asarray(spec.diffusion_prior.prior_quantile(0.5), float)
        return median / unit, np.asarray(spec.diffusion_prior.log.prior_std)
    return spec.diffusion_prior or (FLOW_PRIOR if smoothed else ENCODER_PRIOR)


def follows_flow(spec: LatentSDE, layout: DataLayout) -> bool:
    """Whether the posterior follows the model's own flow: unless asked otherwise, of all but films."""
    return spec.posterior == "smoother" or (spec.posterior == "auto" and layout.frame_shape is None)


def build(spec: LatentSDE, layout: DataLayout, reading: Reading, *, key: PRNGKeyArray) -> Model:
    """The untrained module for a configuration and the data it is meant for."""
    encoder_rng, kernel_rng, drift_rng, diffusion_rng, decoder_rng = generator(key).spawn(5)
    size, smoothed = reading.latent_size, follows_flow(spec, layout)
    median, spread = _diffusion_prior(spec, layout, smoothed)
    level = LogNormal(np.full(size, median), spread, start=spec.diffusion_start or 1e-2, start_spread=0.1)
    span = reading.span if spec.diffusion == "time-dependent" else None
    encoder = _encoder(spec, layout, reading, encoder_rng)
    drift = _drift(spec, layout, reading, drift_rng)
    decoder = _decoder(spec, layout, reading, decoder_rng)
    check_own(spec, layout, size, drift, decoder)
    if smoothed:
        drift = drift.joined(array(1e-3 * np.eye(len(drift.coefficients().mean))))  # nothing is known of it yet
    return Model(
        encoder=encoder,
        kernel=_kernel(spec, layout, reading, kernel_rng),
        drift=drift,
        diffusion=Diffusion(level, size, span=span, rng=diffusion_rng),
        initial=_initial(spec, layout, size),
        decoder=decoder,
        likelihood=_likelihood(spec, layout, reading),
        bridge=Bridge(size) if encoder.bridged else None,
        rotation=spec.rotation,
        smoothed=smoothed,
        margin=margin_for(layout.typical_step) if smoothed else 0,
    )
