"""CMU motion capture, subject 35: forecasts of joint angles, in the paper's set-up and in the one others use.

Setup 1: 16 sequences of 300 frames for training; a test sequence's first 3 frames are given, paths start at frame 0 and run to
the end. Setup 2: trained on the first 200 frames; 100 frames are given, 200 forecast. Errors are mean squared errors in raw
joint-angle units over 4 test sequences: of the mean of 128 paths, and of single paths.

    arcta study mocap --data mocap35.mat        # default: $ARCTA_MOCAP, mocap35.mat here, or it is downloaded
"""

from __future__ import annotations

import functools
import itertools
import os
from pathlib import Path
from typing import Any

import numpy as np

import arcta
from arcta.outside.study import Study, markdown
from arcta.parts.networks import MLP
from arcta.parts.sde import PlainDrift
from arcta.predict.figures import ACCENT, INK, new_figure
from arcta.predict.metrics import crps

NUM_PATHS = 128
PAPER = {
    "latent_size": 6,
    "encoder": "window",
    "lookahead": 2,
    "lookahead_dropout": 0.0,
    "encoder_sizes": (30, 30, 15),
    "drift": "plain",
    "drift_sizes": (30,),
    "kernel_sizes": (32,),
    "activation": "tanh",
    "lengthscale": 10.6,
    "interpolation_noise": 1e-5,
    "diffusion_start": 1e-5,
    "diffusion_prior": (1.0, 1.0),
    "partition_size": 300,
}
PAPER_TRAINING = {
    "steps": 1600,
    "num_draws": 10,
    "num_times": 10,
    "learning_rate": 1e-2,
    "schedule": "exponential",
    "kl_ramp": 200 / 1600,
    "kl_weight": 50.0,
    "log_every": 400,
    "validate_every": 10**6,
    "checkpoint_every": 10**6,
}
Configuration = tuple[dict[str, Any], dict[str, Any]]
# Picked by `arcta study mocap-search`, in each setup, on training and validation sequences alone.
COSINE = {**PAPER_TRAINING, "schedule": "cosine"}
BEST: dict[int, Configuration] = {
    1: ({**PAPER, "latent_size": 8}, COSINE),
    2: (PAPER, {**COSINE, "learning_rate": 5e-3}),
}
CONFIGURATIONS: dict[str, dict[int, Configuration]] = {
    "paper's, KL weight 50": dict.fromkeys((1, 2), (PAPER, PAPER_TRAINING)),
    "paper's, true bound": dict.fromkeys((1, 2), (PAPER, {**PAPER_TRAINING, "kl_weight": 1.0})),
    "best by cross-validation": BEST,
}
# Published test MSE; PEERS: the sources' own numbers, some over all frames and some from frame 3 on.
PUBLISHED = (
    ("DTSBN-S", "34.86", "–"),
    ("npODE", "22.96", "–"),
    ("NeuralODE", "22.49 ± .88", "–"),
    ("ODE²VAE", "10.06 ± 1.4", "–"),
    ("ODE²VAE-KL", "8.09 ± 1.95", "–"),
    ("Latent ODE", "5.98 ± .28", "31.62 ± .05"),
    ("Latent SDE, as published", "4.03 ± .20", "9.52 ± .21"),
    ("Latent approx. SDE", "7.55 ± .05", "10.50 ± .86"),
    ("ARCTA, the paper (RMSE 2.76 ± .168)", "7.62 ± .93", "9.92 ± 1.82"),
    ("ARCTA, authors' code, nine seeds (RMSE 2.95)", "8.9", "–"),
    ("NCDSSM", "5.69 ± .01", "4.74 ± .01"),
    ("SDE Matching, published / re-run by others", "4.50 ± .32 / 5.20 ± .43", "– / 4.26 ± .35"),
    ("Latent neural stochastic flow", "8.62 ± .32", "3.41 ± .27"),
)


def sequences(study: Study) -> tuple[list[arcta.Series], list[arcta.Series], list[arcta.Series]]:
    """Training, validation and test sequences from the path given, the environment, beside the clone, or the net."""
    beside = Path(__file__).parents[2] / "shared" / "data" / "mocap35.mat"
    path = study.data or os.environ.get("ARCTA_MOCAP") or (beside if beside.is_file() else "mocap35.mat")
    return arcta.datasets.mocap(path, download=True)


class SteadyDrift(PlainDrift):
    """A network whose last latent axis only diffuses: room for what stays with a sequence, as the pace of a gait does."""

    def __init__(self, latent_size: int, sizes: tuple[int, ...], activation: str, *, rng: np.random.Generator):
        super().__init__(latent_size, hidden_sizes=sizes, activation=activation, rng=rng)

    def __call__(self, *arguments: Any) -> Any:
        return super().__call__(*arguments).at[-1].set(0.0)


def train(
    configuration: Configuration, setup: int, seed: int, data: list[arcta.Series], quick: bool = False
) -> arcta.Fit:
    """One model of a configuration on the frames that a setup allows."""
    model, training = configuration
    frames = 300 if setup == 1 else 200
    size, activation, rng = model["latent_size"], model["activation"], np.random.default_rng(10_000 + seed)
    model = {**model, "partition_size": min(model["partition_size"], frames)}
    if "decoder" not in model:
        model["decoder"] = MLP((size, 15, 30, 30, 50), activation, rng=rng)
    if model["drift"] == "steady":
        model["drift"] = SteadyDrift(size, model["drift_sizes"], activation, rng=rng)
    if quick:
        training = {**training, "steps": 20, "log_every": 20}
    cut = [item.at_rows(slice(0, frames)) for item in data]
    spec = arcta.LatentSDE(**model, posterior="amortised")
    return arcta.fit(spec, cut, key=seed, training=arcta.Training(**training), progress=False)


def forecast(fit: arcta.Fit, item: arcta.Series, setup: int) -> tuple[arcta.Prediction, arcta.Series]:
    """Paths from what is given, and what happened. An encoder that looks ahead starts where it has seen enough."""
    known = 3 if setup == 1 else 100
    start = known - 1 - fit.model.encoder.lookahead if fit.model.encoder.lookahead else (0 if setup == 1 else known - 1)
    times = item.times if setup == 1 else item.times[known:]
    given = item.at_rows(slice(0, known))
    origin = float(item.times[start])
    ahead = fit.forecast(times, given=given, origin=origin, num_samples=NUM_PATHS, max_step=0.05, key=1)
    return ahead, item.at_rows(slice(0, None) if setup == 1 else slice(known, None))


def score(fit: arcta.Fit, data: list[arcta.Series], setup: int) -> dict[str, Any]:
    """Errors over some sequences, each averaged over frames and channels."""
    rows = []
    for item in data:
        ahead, truth = forecast(fit, item, setup)
        squared = (ahead.mean - truth.values) ** 2
        single = ((ahead.signal - truth.values) ** 2).mean(axis=0)
        low, high = ahead.quantile(0.05), ahead.quantile(0.95)
        first = 3 if setup == 1 else 0
        count = len(truth) // 50 * 50
        rows.append(
            {
                "mse": squared.mean(),
                "mse_from_3": squared[first:].mean(),
                "single_path_mse": single[first:].mean(),
                "crps": crps(ahead.observations, truth.values)[first:].mean(),
                "coverage_90": ((low <= truth.values) & (truth.values <= high))[first:].mean(),
                "mse_by_50": squared[:count].reshape(-1, 50 * squared.shape[1]).mean(axis=1),
            }
        )
    return {name: np.mean([row[name] for row in rows], axis=0) for name in rows[0]}


def measure(study: Study, configuration: str, setup: int, seed: int) -> dict[str, Any]:
    """One seed: test and validation scores of the last iterate."""
    training, validation, test = sequences(study)
    fit = train(CONFIGURATIONS[configuration][setup], setup, seed, training, study.quick)
    result = {**score(fit, test, setup), "validation_mse": score(fit, validation, setup)["mse"], "seconds": fit.seconds}
    return {**result, "rmse": float(np.sqrt(result["mse"]))}


def figure(study: Study) -> Any:
    """Some channels of a test sequence with the forecast of one model."""
    training, _, test = sequences(study)
    fit = train(BEST[1], 1, 0, training, study.quick)
    ahead, truth = forecast(fit, test[1], 1)
    spread = np.argsort(-truth.values.std(axis=0))[:6]
    drawn, axes = new_figure(3, 2, width=11.0, height=1.9)
    for axis, channel in zip(axes.flat, spread, strict=True):
        low, high = ahead.quantile(0.05)[:, channel], ahead.quantile(0.95)[:, channel]
        axis.fill_between(ahead.times, low, high, color=ACCENT, alpha=0.2, linewidth=0, label="90 % band")
        axis.plot(ahead.times, ahead.mean[:, channel], color=ACCENT, linewidth=1.6, label="mean")
        axis.plot(truth.times, truth.values[:, channel], color=INK, linewidth=0.9, label="test sequence")
        axis.axvline(truth.times[3], color=INK, linewidth=0.8, linestyle=":")
        axis.set_title(f"channel {channel}", fontsize=9)
    axes[0][0].legend(frameon=False, fontsize=8, ncol=3)
    return drawn


def run(study: Study) -> None:
    seeds = range(study.num_seeds(10))
    names = ("paper's, KL weight 50",) if study.quick else tuple(CONFIGURATIONS)
    setups = (1,) if study.quick else (1, 2)
    rows: list[dict[str, Any]] = []
    for name, setup in itertools.product(names, setups):
        jobs = [{"configuration": name, "setup": setup, "seed": seed} for seed in seeds]
        model, training = CONFIGURATIONS[name][setup]
        settings = {"model": model, "training": training, "quick": study.quick}
        rows += study.measure(jobs, functools.partial(measure, study), {k: repr(v) for k, v in settings.items()})

    def average(name: str, setup: int, what: str) -> tuple[float, float]:
        values = [row[what] for row in rows if row["configuration"] == name and row["setup"] == setup]
        return float(np.mean(values)), float(np.std(values))

    def cell(name: str, setup: int, what: str = "mse_from_3", digits: int = 2) -> str:
        return "{:.{d}f} ± {:.{d}f}".format(*average(name, setup, what), d=digits)

    table = [{"method": f"**arcta, {name}**", **{f"setup {s}": cell(name, s) for s in setups}} for name in names]
    published = [
        {"method": m, **dict(zip(("setup 1", "setup 2")[: len(setups)], v, strict=False))} for m, *v in PUBLISHED
    ]
    detail = [
        {
            "configuration": name,
            "setup": setup,
            "RMSE, all frames": cell(name, setup, "rmse", 3),
            "MSE, all frames": cell(name, setup, "mse"),
            "MSE, frames 3–299": cell(name, setup) if setup == 1 else "–",
            "MSE of single paths": cell(name, setup, "single_path_mse"),
            "CRPS": cell(name, setup, "crps", 3),
            "90 % bands cover": f"{100 * average(name, setup, 'coverage_90')[0]:.0f} %",
            "validation MSE": cell(name, setup, "validation_mse"),
        }
        for name in names
        for setup in setups
    ]
    study.save_figure("forecast", figure(study))
    summary = {"table": table, "detail": detail, "rmse_paper_kl_50": average(names[0], 1, "rmse")[0]}
    study.finish(summary, {"scores": markdown([*published, *table]), "detail": markdown(detail)})
