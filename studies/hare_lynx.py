"""Hare and lynx, 1900–1920: the posterior of Lotka and Volterra's equations beside that of Stan.

    arcta study hare-lynx --data folder        # default: shared/data/real beside the clone

The folder holds posteriordb's data and reference draws for its model (hudson_lynx_hare-lotka_volterra, ten chains of HMC). Same
model here: populations follow the equations without noise of their own, observations are log-normal around them, same priors. The
latent state is the logarithm of the populations; diffusion has a prior that drives it to almost nothing, at several values of that.
"""

from __future__ import annotations

import functools
import json
import zipfile
from pathlib import Path
from typing import Any, cast

import jax.numpy as jnp
import numpy as np

import arcta
from arcta.outside.study import Study, markdown
from arcta.predict.figures import ACCENT, MUTED, new_figure
from arcta.task.run import describe

NAMES = {
    "a": "theta[1]", "b": "theta[2]", "c": "theta[3]", "d": "theta[4]",
    "hare 1900": "z_init[1]", "lynx 1900": "z_init[2]", "noise of hare": "sigma[1]", "noise of lynx": "sigma[2]",
}  # fmt: skip
DIFFUSIONS = (1e-3, 1e-4, 1e-5, 1e-6)
PRIORS = {"a": (1.0, 0.5), "b": (0.05, 0.05), "c": (1.0, 0.5), "d": (0.05, 0.05)}
SAMPLES = 20_000
Draws = dict[str, np.ndarray]


def folder(study: Study) -> Path:
    return study.data or Path(__file__).parents[2] / "shared" / "data" / "real"


def unzip(path: Path) -> Any:
    with zipfile.ZipFile(path) as archive:
        return json.loads(archive.read(archive.namelist()[0]))


def observations(place: Path) -> arcta.Series:
    found = unzip(place / "posteriordb_hudson_lynx_hare.json.zip")
    values = np.array([found["y_init"], *found["y"]], float)
    return arcta.Series(
        1900 + np.arange(len(values)), values, channels=("hare", "lynx"), name="pelts", time_unit="year"
    )


def reference(place: Path) -> Draws:
    chains = unzip(place / "posteriordb_hudson_lynx_hare-lotka_volterra.json.zip")
    return {name: np.concatenate([chain[theirs] for chain in chains]) for name, theirs in NAMES.items()}


def field(t: Any, z: Any, p: Any, u: Any = None) -> list[Any]:
    """The rates of log hare and log lynx."""
    return [p["a"] - p["b"] * jnp.exp(z[1]), p["d"] * jnp.exp(z[0]) - p["c"]]


def specification(diffusion: float) -> arcta.LatentSDE:
    return arcta.LatentSDE(
        decoder="identity",
        likelihood="log-normal",
        drift=field,
        parameters={name: arcta.TruncatedNormal(*prior) for name, prior in PRIORS.items()},
        noise=arcta.LogNormal(np.exp(-1.0), 1.0),
        initial=(np.log(10.0), 1.0),
        diffusion_prior=(diffusion, 0.01),
    )


def sample(fit: arcta.Fit) -> Draws:
    """Draws of everything that Stan has draws of."""
    series, rng = fit.context[0], np.random.default_rng(0)
    logs = {name: cast(arcta.LogNormal, item).log for name, item in fit.model.drift.named_parameters().items()}
    variance = cast(arcta.LogNormal, fit.model.likelihood.shown()[0].parameter)
    logs |= {f"noise of {name}": variance.log for name in ("hare", "lynx")}
    start = fit.smooth(series, series.times[:1], num_samples=SAMPLES, key=0).states[:, 0]
    drawn = {"hare 1900": np.exp(start[:, 0]), "lynx 1900": np.exp(start[:, 1])}
    for name, log in logs.items():
        at = ("hare", "lynx").index(name[9:]) if name.startswith("noise") else 0
        mean, std = np.ravel(log.mean)[at], np.exp(np.ravel(log.log_std)[at])
        value = np.exp(mean + std * rng.standard_normal(SAMPLES))
        drawn[name] = np.sqrt(value) if name.startswith("noise") else value
    return drawn


def train(study: Study, diffusion: float) -> arcta.Fit:
    steps = 40 if study.quick else 1000
    series = observations(folder(study))
    return arcta.fit(specification(diffusion), series, training=arcta.Training(steps=steps), progress=False)


def measure(study: Study, diffusion: float) -> dict[str, Any]:
    """How far the means are from Stan's, in its standard deviations, and the ratio of those."""
    fit = train(study, diffusion)
    ours, theirs = sample(fit), reference(folder(study))
    away = {name: float((ours[name].mean() - x.mean()) / x.std()) for name, x in theirs.items()}
    wide = {name: float(ours[name].std() / x.std()) for name, x in theirs.items()}
    return {
        "away": away,
        "wide": wide,
        "largest_away": max(map(abs, away.values())),
        "narrowest": min(wide.values()),
        "widest": max(wide.values()),
        "seconds": fit.seconds,
    }


def figure(ours: Draws, theirs: Draws) -> Any:
    """Stan's draws as histograms, ours as lines."""
    drawn, axes = new_figure(2, 4, width=11.0, height=2.2)
    for axis, (name, x) in zip(axes.flat, theirs.items(), strict=True):
        low, high = np.quantile(x, [0.001, 0.999])
        edges = np.linspace(low, high, 40)
        axis.hist(x, edges, density=True, color=MUTED, alpha=0.5, label="Stan")
        heights, _ = np.histogram(ours[name], edges, density=True)
        axis.plot(0.5 * (edges[1:] + edges[:-1]), heights, color=ACCENT, label="arcta")
        axis.set_title(name, fontsize=9)
        axis.set_yticks([])
    axes[0, 0].legend(frameon=False, fontsize=8)
    return drawn


def run(study: Study) -> None:
    jobs = [{"diffusion": q} for q in (DIFFUSIONS[2:3] if study.quick else DIFFUSIONS)]
    settings = {"model": describe(specification(DIFFUSIONS[0])), "priors": PRIORS, "steps": 1000, "quick": study.quick}
    rows = study.measure(jobs, functools.partial(measure, study), settings)
    last = rows[-1]
    table = [
        {
            "": name,
            "Stan": f"{x.mean():.4g} ± {x.std():.2g}",
            "mean, in Stan's standard deviations": f"{last['away'][name]:+.2f}",
            "standard deviation / Stan's": f"{last['wide'][name]:.2f}",
        }
        for name, x in reference(folder(study)).items()
    ]
    limit = [
        {
            "q in the model's units": f"{row['diffusion']:g}",
            "largest distance of a mean": f"{row['largest_away']:.2f}",
            "standard deviations / Stan's": f"{row['narrowest']:.2f} … {row['widest']:.2f}",
            "optimisation": f"{row['seconds']:.1f} s",
        }
        for row in rows
    ]
    study.save_figure("posteriors", figure(sample(train(study, last["diffusion"])), reference(folder(study))))
    study.finish({"table": table, "limit": limit}, {"posterior": markdown(table), "limit": markdown(limit)})
