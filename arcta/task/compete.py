"""Whether a fit forecasts by the latent SDE it has learned or by the linear structure of each channel: the better evidence decides.

Both are bounds on, or values of, log p(data) per observation in the data's units: the latent SDE's is its ELBO with the KL of its
parameters, the structure's its marginal likelihood less a nat for each parameter. Where the first does not explain the data better,
a trend and a season will forecast it better.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from ..data.seasons import Season, find_seasons
from ..data.series import Series
from ..linear.structure import Structure, find_structure
from ..model.spec import LatentSDE
from ..training.settings import Training
from .fitted import Fit

MOST_CHANNELS = 24  # of more, a few common axes say more than each channel for itself


def competes(spec: LatentSDE, training: Training, data: Sequence[Series]) -> bool:
    """Whether linear structures may take part: asked for, or left to the data like all else that decides what is learned."""
    if not data or spec.structure != "auto":
        return bool(data) and spec.structure == "linear"
    open_ended = (
        spec.decoder is None and spec.encoder is None and spec.latent_size is None and spec.likelihood == "auto"
    )
    plain = spec.drift == "neural" and spec.posterior == "auto" and training.kl_weight == 1
    return open_ended and plain and data[0].frame_shape is None and len(data[0].channels) <= MOST_CHANNELS


def seasons_of(spec: LatentSDE, data: Sequence[Series]) -> list[Season]:
    """Those asked for, or found."""
    if isinstance(spec.season, str):
        return find_seasons(data)
    periods = () if spec.season is None else np.atleast_1d(np.asarray(spec.season, float))
    return [Season(float(period), 1, float("nan")) for period in periods]


def with_structure(fit: Fit, spec: LatentSDE, data: Sequence[Series]) -> Fit:
    """The fit with the structure of its training data, and which of the two it uses; the same if structures take no part.
    `spec`: what was asked for."""
    if not competes(spec, fit.training, data):
        return fit
    structure = find_structure(data, seasons_of(spec, data))
    chosen = spec.structure == "linear" or _margin(fit, structure, data) > 0
    about = {**fit.about, "evidence": {"structure": _weighted(structure, data), "latent SDE": _bound(fit, data)}}
    return dataclasses.replace(fit, structure=structure, by_structure=bool(chosen), about=about)


def _counts(data: Sequence[Series]) -> np.ndarray:
    counts = np.sum([item.mask.sum(axis=0) for item in data], axis=0)
    return counts / counts.sum()


def _weighted(structure: Structure, data: Sequence[Series]) -> float:
    """The structure's evidence per observation of any channel."""
    share = _counts(data)
    return float(np.sum(np.where(share > 0, share * structure.evidence, 0.0)))


def _bound(fit: Fit, data: Sequence[Series]) -> float:
    """The latent SDE's bound per observation, in the data's units."""
    if not fit.history:
        return -np.inf
    last = [row["loss"] for row in fit.history[-3:]]
    return -float(np.mean(last)) - float(np.sum(_counts(data) * np.log(fit.layout.scaling.scale)))


def _margin(fit: Fit, structure: Structure, data: Sequence[Series]) -> float:
    if "bernoulli" in fit.reading.kinds:
        return -np.inf  # a density of zeros and ones is no probability
    return _weighted(structure, data) - _bound(fit, data)
