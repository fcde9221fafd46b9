"""`LatentSDE`: the configuration of a model in plain keywords, checked before anything is built."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from jaxtyping import Array, ArrayLike

from ..parts.decoders import DECODERS
from ..parts.diffusion import DIFFUSIONS
from ..parts.encoders import ENCODERS, AbstractEncoder
from ..parts.likelihoods import LIKELIHOODS
from ..parts.networks import ACTIVATIONS
from ..parts.physics import DriftLike
from ..parts.prior import LogNormal, Parameter
from ..parts.sde import DRIFTS, DriftFunction

NOISES = ("posterior", "learned")
POSTERIORS = ("auto", "smoother", "amortised", "full")
STRUCTURES = ("auto", "linear", "none")
CHOICES: dict[str, tuple[str, ...]] = {
    "decoder": tuple(DECODERS), "likelihood": ("auto", *LIKELIHOODS), "noise": NOISES, "encoder": tuple(ENCODERS),
    "drift": tuple(DRIFTS), "diffusion": tuple(DIFFUSIONS), "posterior": POSTERIORS, "activation": tuple(ACTIVATIONS),
    "structure": STRUCTURES,
}  # fmt: skip


STARTS = ("diffusion_start", "lengthscale", "interpolation_noise")


def _unset_or(value: int | None, least: int) -> bool:
    return value is None or value >= least


def _positive(value: float | None) -> bool:
    return value is None or value > 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class LatentSDE:
    """The configuration of a latent SDE; everything has a default that is derived from the data.

    **Arguments:**

    - `latent_size` (1 or more; axes): d; by default as many axes as rise above the noise, twice as many where the data is
      smooth and its levels do not say where it moves, at most 8 (docs/defaults.md).
    - `decoder` (a name, or a module of yours): `"linear"`, `"mlp"`, `"conv"` (frames), `"identity"` (dynamics in the data's own
      coordinates) or a module of yours, which sees one state. By default `"linear"`, for frames `"conv"`.
    - `likelihood` (a name, or names by channel): `"auto"` (counts are Poisson, zeros and ones Bernoulli, all else Gaussian),
      `"gaussian"`, `"student-t"`, `"log-normal"` (positive data), `"bernoulli"`, `"poisson"`, `"negative-binomial"` (counts
      that scatter more), or a mapping from channel names to these (channels left out are Gaussian).
    - `noise` (a name, positive, or a `LogNormal`; the data's): `"posterior"` (log-normal), `"learned"` (a point estimate), or
      the known standard deviation (of log-normal channels: that of the logarithm), or a `LogNormal` as its prior.
    - `initial` (a mean and a positive deviation; the data's with `decoder="identity"`): the state where a series starts; by
      default it is learned.
    - `encoder` (a name, or a module of yours): `"local"` (lines through the observations around, from both sides; the default),
      `"window"` (an observation and the `lookahead` ones after it, as in the paper; the default for frames), `"gru"` or
      `"transformer"` (networks over the whole window), or a module of yours, which sees one node (values and mask of it and the
      ones after it, the steps between them) and has an attribute `lookahead`; an `AbstractEncoder` of yours sees the window.
    - `lookahead` (0 or more; observations): how many after its own a node of `encoder="window"` sees.
    - `drift` (a name, a function or module of yours): `"neural"` (a linear part and a network, uncertain weights), `"plain"` (a
      network, as in the paper), a function `f(t, z, p, u)` in your own units, or a module of yours.
    - `parameters` (names and priors; yours): those that a drift of yours reads from `p`, e.g. `{"k": LogNormal(1.0, 1.0)}`.
    - `time_dependent`: whether a network as drift sees the time.
    - `diffusion`: `"constant"` or `"time-dependent"`.
    - `diffusion_start` (positive; the model's): q's first value; by default read off the data.
    - `diffusion_prior` (a median and a log-spread, or a `LogNormal`; the model's, the data's): q's log-normal prior; by default 0.1
      and 10, with an encoder's posterior 3. A `LogNormal` is in the data's units: variance of the state per unit of time.
    - `partition_size` (2 or more; observations): M, the length of a window; a series shorter than that is one window. By
      default 128.
    - `posterior`: `"smoother"` (the state follows the model's own flow, and what enters the bound as in a linear model is
      learned by closed forms), `"amortised"` (the encoder's, interpolated, and Adam for everything, as in the paper), `"full"`
      (the same with a full covariance), or `"auto"` (the first where it can be had).
    - `rotation`: the rotation term of the posterior drift (a tighter bound for anything that turns).
    - `lookahead_dropout` (0 or more, below 1; a fraction): of the nodes, whose look-ahead is cut short in training.
    - `encoder_sizes` (1 or more each; units): hidden layers of the encoder.
    - `decoder_sizes` (1 or more each; units): hidden layers of `decoder="mlp"`, channels of `"conv"`.
    - `drift_sizes` (1 or more each; units): hidden layers of the drift's network.
    - `kernel_sizes` (1 or more each; units): hidden layers of the kernel's network; by default it has none.
    - `activation`: of all networks.
    - `lengthscale` (positive; observations): of the interpolating kernel at the start; by default from the data.
    - `interpolation_noise` (positive; the model's): σ_n² of the kernel at the start; by default from the data.
    - `structure`: whether trends, seasons and cycles of single channels, a linear SDE each, may do the forecasting: `"auto"`
      (where their evidence is better and nothing above says what to learn), `"linear"` (they do), `"none"`.
    - `season` (`"auto"`, or positive; the data's unit of time): the periods to look for; `"auto"` finds them, `None` is no
      season.

    !!! example

        >>> import arcta
        >>> arcta.LatentSDE(latent_size=2).latent_size
        2
    """

    latent_size: int | None = None
    decoder: str | Callable[..., Array] | None = None
    likelihood: str | Mapping[str, str] = "auto"
    noise: str | float | LogNormal = "posterior"
    initial: tuple[ArrayLike, ArrayLike] | None = None
    encoder: str | Callable[..., Array] | AbstractEncoder | None = None
    lookahead: int = 2
    drift: str | DriftFunction | DriftLike = "neural"
    parameters: Mapping[str, Parameter] | None = None
    time_dependent: bool = False
    diffusion: str = "constant"
    diffusion_start: float | None = None
    diffusion_prior: tuple[float, float] | LogNormal | None = None
    partition_size: int | None = None
    posterior: str = "auto"
    rotation: bool = True
    lookahead_dropout: float = 0.1
    encoder_sizes: tuple[int, ...] = (32, 32)
    decoder_sizes: tuple[int, ...] = (32, 32)
    drift_sizes: tuple[int, ...] = (64, 64)
    kernel_sizes: tuple[int, ...] = ()
    activation: str = "silu"
    lengthscale: float | None = None
    interpolation_noise: float | None = None
    structure: str = "auto"
    season: str | float | Sequence[float] | None = "auto"

    def __post_init__(self) -> None:
        for name, ok, wanted, instead in (
            ("latent_size", _unset_or(self.latent_size, 1), "at least 1", "Leave it out for a default"),
            ("partition_size", _unset_or(self.partition_size, 2), "at least 2", "128 suits most data"),
            ("lookahead", self.lookahead >= 0, "0 or more", "Use 0 to see one observation alone"),
            *((name, _positive(getattr(self, name)), "positive", "Leave it out for a default") for name in STARTS),
        ):
            if not ok:
                raise ValueError(f"{name} must be {wanted}; got {getattr(self, name)}. {instead}.")
        if not 0 <= self.lookahead_dropout < 1:
            raise ValueError(f"lookahead_dropout must lie in [0, 1); got {self.lookahead_dropout}. Use 0.1.")
        self._check_choice("activation", tuple(ACTIVATIONS))
        self._check_choice("diffusion", DIFFUSIONS)
        self._check_choice("posterior", POSTERIORS)
        self._check_choice("structure", STRUCTURES)
        if isinstance(self.season, str):
            self._check_choice("season", ("auto",))
        elif self.season is not None and not np.all(np.asarray(self.season, float) > 0):
            raise ValueError(f"season must be a positive period or several; got {self.season}. Use None for no season.")
        for name, choices in (("decoder", DECODERS), ("encoder", ENCODERS), ("drift", DRIFTS)):
            if isinstance(getattr(self, name), str):
                self._check_choice(name, choices)
            elif getattr(self, name) is not None and not callable(getattr(self, name)):
                raise ValueError(
                    f"{name} must be a name or a function; got {getattr(self, name)!r}. Use {choices[0]!r}."
                )
        if self.initial is not None and (len(self.initial) != 2 or np.any(np.asarray(self.initial[1], float) <= 0)):
            raise ValueError(
                f"initial must be a mean and a positive standard deviation; got {self.initial}. Leave it out to learn both."
            )
        if isinstance(self.noise, str):
            self._check_choice("noise", NOISES)
        elif not isinstance(self.noise, Parameter) and self.noise <= 0:
            raise ValueError(f"a known noise must be positive; got {self.noise}. Use noise='learned' to learn it.")
        for name, prior in (("noise", self.noise), ("diffusion", self.diffusion_prior)):
            if isinstance(prior, Parameter) and type(prior) is not LogNormal:
                raise ValueError(
                    f"a prior of the {name} must be a LogNormal; got {type(prior).__name__}. Use arcta.LogNormal."
                )
        kinds = [self.likelihood] if isinstance(self.likelihood, str) else self.likelihood.values()
        for kind in kinds:
            if kind not in ("auto", *LIKELIHOODS):
                raise ValueError(
                    f"likelihood must be one of auto, {', '.join(LIKELIHOODS)}; got '{kind}'. Choose one of them."
                )
        if self.parameters is not None and (isinstance(self.drift, str) or not callable(self.drift)):
            raise ValueError(
                f"parameters need a drift function that uses them; got drift={self.drift!r}. Pass drift=lambda t, z, p, u: …."
            )
        self._check_parameters()

    def _check_parameters(self) -> None:
        for name, item in (self.parameters or {}).items():
            if not isinstance(item, Parameter):
                number = item if isinstance(item, int | float) else 1.0
                raise ValueError(
                    f"parameters need a prior each; got {item!r} for '{name}'. Write arcta.LogNormal({number}, 1.0) to learn it, "
                    f"arcta.Normal({number}, 1.0) if it may be negative, or arcta.Known({number}) if it is known."
                )

    def _check_choice(self, name: str, choices: Sequence[str]) -> None:
        if getattr(self, name) not in choices:
            raise ValueError(
                f"{name} must be one of {', '.join(choices)}; got '{getattr(self, name)}'. Choose one of them."
            )
