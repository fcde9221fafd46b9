"""Why learned diffusions collapse or inflate: two systems whose diffusion is known, three posteriors.

`ou`: dz = −z dt + √0.5 dβ, 100 s at 10 Hz, noise 0.1: rough paths. `lotka-volterra`: the quickstart's system, whose own noise is
next to nothing: smooth paths. Both in their own coordinates (identity decoder), everything else by default, with

    paper       an encoder that sees an observation and two after it, kernel interpolation, diagonal covariance, Adam for everything
    encoder     arcta's encoder with bridges between observations and a rotation term, Adam for everything
    smoother    the default: the model's own flow, closed forms

The learned diffusion over training, and where forecasts from twelve origins of a new series put what then is observed.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np

import arcta
from arcta.data.datasets import lotka_volterra_drift, simulate
from arcta.outside.study import Study, markdown
from arcta.predict.figures import ACCENT, INK, MUTED, SECOND, new_figure

SYSTEMS = {"ou": 0.5, "lotka-volterra": 1e-6}
POSTERIORS = {
    "paper": {"posterior": "amortised", "encoder": "window", "rotation": False},
    "encoder": {"posterior": "amortised"},
    "smoother": {"posterior": "smoother"},
}
COLOURS = {"paper": SECOND, "encoder": MUTED, "smoother": ACCENT}
LEVELS = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9])
HORIZON = {"ou": 3.0, "lotka-volterra": 13.0}


def series_of(system: str, seed: int, duration: float = 100.0) -> arcta.Series:
    """A series of a system in its own coordinates."""
    rng = np.random.default_rng([seed, list(SYSTEMS).index(system)])
    times = np.arange(round(10 * duration) + 1) / 10
    dispersion = np.sqrt(SYSTEMS[system])
    if system == "ou":
        states = simulate(lambda z: -z, np.zeros(1), times, dispersion=dispersion, substeps=10, rng=rng)
        return arcta.Series(times, states + 0.1 * rng.standard_normal(states.shape), channels=("x",), time_unit="s")
    states = simulate(lotka_volterra_drift, np.array([0.9, 0.2]), times, dispersion=dispersion, substeps=10, rng=rng)
    values = states + 0.01 * rng.standard_normal(states.shape)
    return arcta.Series(times, values, channels=("prey", "predator"), time_unit="s")


def coverage(fit: arcta.Fit, series: arcta.Series, horizon: float) -> list[float]:
    """The fraction of later observations inside central bands of each level, over twelve origins."""
    inside = []
    for origin in np.linspace(30, series.times[-1] - horizon, 12):
        past, later = series.times <= origin, (series.times > origin) & (series.times <= origin + horizon)
        paths = fit.forecast(series.times[later], given=series.at_rows(past), num_samples=400, key=1).observations
        x = series.values[later]
        ends = np.quantile(paths, np.stack([0.5 - LEVELS / 2, 0.5 + LEVELS / 2]), axis=0)
        inside.append(((ends[0] <= x) & (x <= ends[1])).reshape(len(LEVELS), -1))
    return np.concatenate(inside, axis=1).mean(axis=1).tolist()


def measure(study: Study, system: str, posterior: str, seed: int) -> dict[str, Any]:
    """The diffusion over the steps of training in units of the true one, and the coverage of forecasts."""
    spec = arcta.LatentSDE(decoder="identity", **POSTERIORS[posterior])
    steps = 40 if study.quick else (1000 if posterior == "smoother" else 2000)
    training = dataclasses.replace(arcta.Training(), steps=steps, log_every=max(steps // 50, 1))
    fit = arcta.fit(spec, series_of(system, seed), training=training, progress=False)
    scaling = fit.layout.scaling
    unit = np.exp(np.mean(np.log(scaling.scale**2))) / scaling.time_scale / SYSTEMS[system]
    curve = [[row["step"], row["diffusion"] * unit] for row in fit.history]
    found = coverage(fit, series_of(system, 1000 + seed, 130.0), HORIZON[system])
    jumps = [row["join_kl_mean"] for row in fit.history if "join_kl_mean" in row]
    return {"curve": curve, "ratio": curve[-1][1], "coverage": found, "join": jumps[-1]}


def figure(rows: list[dict[str, Any]]) -> Any:
    """Above, the diffusion over training; below, the coverage of bands against what they claim."""
    drawn, axes = new_figure(2, 2, width=9.0, height=3.2)
    for column, (system, q) in enumerate(SYSTEMS.items()):
        above, below = axes[:, column]
        above.axhline(1, color=INK, linewidth=0.8)
        below.plot([0, 1], [0, 1], color=INK, linewidth=0.8)
        for posterior, colour in COLOURS.items():
            part = [row for row in rows if (row["system"], row["posterior"]) == (system, posterior)]
            for row in part:
                curve = np.array(row["curve"])
                label = posterior if row is part[0] else None
                above.plot(curve[:, 0] / curve[-1, 0], curve[:, 1], color=colour, label=label)
                below.plot(LEVELS, row["coverage"], color=colour, marker="o", markersize=3)
        above.set_yscale("log")
        above.set_title(f"{system}, true q = {q:g}", fontsize=10, color=INK)
        above.set_xlabel("fraction of training", fontsize=9)
        below.set_xlabel("what a forecast's band claims to hold", fontsize=9)
    axes[0, 0].set_ylabel("learned q / true q", fontsize=9)
    axes[1, 0].set_ylabel("observations inside", fontsize=9)
    axes[0, 0].legend(frameon=False, fontsize=8)
    return drawn


def run(study: Study) -> None:
    jobs = [
        {"system": system, "posterior": posterior, "seed": seed}
        for system in (list(SYSTEMS)[:1] if study.quick else SYSTEMS)
        for posterior in POSTERIORS
        for seed in range(study.num_seeds(3))
    ]
    models = {name: repr(arcta.LatentSDE(decoder="identity", **options)) for name, options in POSTERIORS.items()}
    settings = {"models": models, "training": repr(arcta.Training()), "quick": study.quick}
    rows = study.measure(jobs, functools.partial(measure, study), settings)
    table = []
    for system in dict.fromkeys(row["system"] for row in rows):
        for posterior in POSTERIORS:
            part = [row for row in rows if (row["system"], row["posterior"]) == (system, posterior)]
            inside = np.mean([row["coverage"] for row in part], axis=0)
            table.append(
                {
                    "system": system,
                    "posterior": posterior,
                    "learned q / true q": ", ".join(f"{row['ratio']:.3g}" for row in part),
                    "inside 50 % bands": f"{100 * inside[LEVELS == 0.5][0]:.0f} %",
                    "inside 90 % bands": f"{100 * inside[LEVELS == 0.9][0]:.0f} %",
                    "jump where windows meet": f"{np.mean([row['join'] for row in part]):.2f} nats",
                }
            )
    study.save_figure("diffusion", figure(rows))
    study.finish({"table": table}, {"diffusion": markdown(table)})
