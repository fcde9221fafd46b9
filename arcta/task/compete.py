"""Whether a fit forecasts by the latent SDE it has learned or by the linear structure of each channel: the better evidence decides.

Both are bounds on, or values of, log p(data) per observation in the data's units: the latent SDE's is its ELBO with the KL of its
parameters, the structure's its marginal likelihood less a nat for each parameter. Where the first does not explain the data better,
a trend and a season will forecast it better. Where it does, it must also forecast: evidence is about the next observation, which
channels that go together tell each other; so both forecast parts of the training data, and the one that is behind is not used for
forecasts. Smoothing is by the better evidence alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool

from ..data.calendar import MONTHS
from ..data.moments import moments
from ..data.seasons import Season, candidates, find_seasons
from ..data.series import Series
from ..linear.find import find_structure, mean_evidence
from ..linear.structure import Structure
from ..model.spec import LatentSDE
from ..predict.metrics import crps
from ..training.settings import Training
from .fitted import Fit

ORIGINS = 4
TIE = 6.0  # nats in all that are no reason to leave a linear structure, as they are none to leave one for another
WITH_SEASON = 0.9  # of the structure's error
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


def _suggested(spec: LatentSDE, data: Sequence[Series]) -> dict[str, float]:
    """What most figures of months and quarters have: a year."""
    calendar = data[0].calendar
    counts_months = calendar is not None and calendar.unit in MONTHS
    return candidates(calendar) if counts_months and isinstance(spec.season, str) else {}


def with_structure(fit: Fit, spec: LatentSDE, data: Sequence[Series]) -> Fit:
    """The fit with the structure of its training data, and which of the two it uses; the same if structures take no part.
    `spec`: what was asked for."""
    if not competes(spec, fit.training, data):
        return fit
    structure = find_structure(data, seasons_of(spec, data), _suggested(spec, data))
    # What never changes is certain beyond bounds, by either: it decides nothing.
    varies = moments(*(np.concatenate([getattr(s, n) for s in data]) for n in ("values", "mask"))).varies
    told = {"structure": mean_evidence(structure, data, varies), "latent SDE": _bound(fit, data, varies)}
    tie = TIE / max(np.sum([item.mask.sum() for item in data]), 1)
    chosen = spec.structure == "linear" or (_comparable(fit) and told["structure"] + tie > told["latent SDE"])
    chosen = chosen or (_comparable(fit) and _forecasts_worse(fit, structure, max(data, key=len)))
    if structure.together is not None and varies.all():
        told["channels together"] = structure.together.evidence
    # An observation among its neighbours is what evidence is about: it alone decides who smooths.
    best = max(told, key=lambda name: told[name])
    inside = spec.structure == "linear" or (_comparable(fit) and best != "latent SDE")
    return dataclasses.replace(
        fit,
        structure=structure,
        by_structure=bool(chosen),
        smooth_by_structure=bool(inside),
        about={**fit.about, "evidence": told},
    )


def _bound(fit: Fit, data: Sequence[Series], varies: Bool[np.ndarray, " channels"]) -> float:
    """The latent SDE's bound per observation of the channels that vary, in the data's units. Those that do not have what their
    noise gives them."""
    if not fit.history or not varies.any():
        return -np.inf
    counts = np.sum([item.mask.sum(axis=0) for item in data], axis=0)
    total = -counts.sum() * np.mean([row["loss"] for row in fit.history[-3:]])
    if not varies.all():
        noise = np.asarray(fit.model.likelihood.normal_noise(len(varies))[0], float)[~varies]
        total -= np.sum(counts[~varies] * -0.5 * np.log(2 * np.pi * np.e * np.where(noise > 0, noise, 1.0)))
    kept = counts * varies
    return float((total - np.sum(kept * np.log(fit.layout.scaling.scale))) / kept.sum())


def _comparable(fit: Fit) -> bool:
    return "bernoulli" not in fit.reading.kinds  # a density of zeros and ones is no probability


def _forecasts_worse(fit: Fit, structure: Structure, series: Series) -> bool:
    """Whether the latent SDE's forecasts of parts of its own training data are worse, or cannot be made."""
    rows = np.flatnonzero(series.mask.any(axis=1))
    ahead = int(np.clip(max(structure.longest, len(rows) / 10), 3, 200))
    if len(rows) < 4 * ahead:
        return False
    errors: list[list[float]] = [[], []]
    for k, origin in enumerate(np.linspace(0.6 * len(rows), len(rows) - ahead - 1, ORIGINS).astype(int)):
        given = series.at_rows(slice(0, rows[origin] + 1))
        after = series.at_rows(rows[origin + 1 : origin + 1 + ahead])
        known = after.inputs if after.input_names else None
        for found, by in zip(errors, (False, True), strict=True):
            one = dataclasses.replace(fit, structure=structure, by_structure=by)
            try:
                said = one.forecast(after.times, given=given, inputs=known, num_samples=64, key=k)
            except FloatingPointError:
                return not by
            score = crps(said.observations, after.values) / fit.layout.scaling.scale
            found.append(float(np.mean(score[after.mask])))
    # It has no season of its own: of data that has one it must be better, not only as good.
    needed = WITH_SEASON if structure.periods and fit.layout.calendar else 1.0
    return float(np.mean(errors[0])) > needed * float(np.mean(errors[1]))
