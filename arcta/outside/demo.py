"""The embedded default: the paper's Lotka–Volterra set-up, its model and its training; and the demo that runs it.

Same system, noise and split as the paper (50 s at 10 Hz for training, 15 s for validation, noise 0.01 known, identity
decoder, drift of three layers of 64, R = 1, S = 10); other than there: a smooth activation, M = 128, cosine decay, a posterior
that follows the model's own flow and closed forms for what has them.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from ..data.datasets import lotka_volterra, lotka_volterra_drift
from ..data.series import Series
from ..data.split import split
from ..model.spec import LatentSDE
from ..predict.figures import loss_curves, phase_portrait
from ..predict.metrics import Scores
from ..task.fit import fit
from ..task.fitted import Fit
from ..training.settings import Training
from .page import Section, write_report

MODEL = LatentSDE(
    decoder="identity",
    encoder="window",
    noise=0.01,
    lookahead=0,
    kernel_sizes=(32, 32),
    drift_sizes=(64, 64, 64),
    diffusion_start=1e-4,
    partition_size=128,
)
TRAINING = Training(steps=1000, num_draws=1, num_times=10, kl_ramp=0.25, validate_every=250)


def data(seed: int = 0) -> tuple[Series, Series]:
    """Training series on [0, 50] s and validation series on (50, 65] s."""
    return split(lotka_volterra(seed=seed), time=50.0)


def run(
    out: str | Path = "demo", *, overwrite: bool = False, key: int = 0, progress: bool = True
) -> tuple[Fit, Scores, Path]:
    """Train, score, draw, save below `out`; returns the fit, its scores and the page's path."""
    began = time.perf_counter()
    train, test = data()
    fitted = fit(
        MODEL, train, key=key, validation=test, training=TRAINING, out=out, overwrite=overwrite, progress=progress
    )
    scores = fitted.score(test, key=1)
    recent = train.at_rows(train.times >= 35.0)
    ahead = fitted.forecast(test.times, key=1).plot(truth=test, context=recent)
    opening = train.at_rows(train.times <= 15.0)
    smoothed = fitted.smooth(opening, np.linspace(0, 15, 601), key=2).plot(truth=opening, num_paths=0)
    drifts = {"learned drift": fitted.drift, "true drift": lotka_volterra_drift}
    low, high = train.values.min(axis=0), train.values.max(axis=0)
    margin = 0.1 * (high - low)
    portrait = phase_portrait(drifts, low - margin, high + margin, points=train.values, names=("prey", "predator"))
    page = write_report(
        out,
        fitted,
        title="Predator and prey: a latent SDE learned without a solver",
        lead="Lotka–Volterra with process noise, observed for 50 s at 10 Hz with noise 0.01; forecast for the next 15 s.",
        headline={
            "RMSE of the mean forecast": f"{scores['rmse']:.4f}",
            "inside the 90 % band": f"{scores['coverage_90']:.0%}",
            "drift values in training": f"{fitted.history[-1]['drift_evaluations']:,.0f}",
            "optimisation": f"{fitted.seconds:.1f} s",
            "all of this, compilation included": f"{time.perf_counter() - began:.0f} s",
        },
        sections=[
            Section("Forecast from 50 s on, with bands and three sample paths", ahead, "forecast"),
            Section("The learned drift beside the true one; dots are the training data", portrait, "phase"),
            Section("The first 15 s smoothed and super-resolved", smoothed, "smooth"),
            Section("Training", loss_curves(fitted.history), "training"),
        ],
        command=f"arcta demo --out {out} --key {key}",
    )
    return fitted, scores, page
