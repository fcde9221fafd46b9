"""Fewer function evaluations: ARCTA against neural ODEs and latent SDEs trained through a solver, on predator and prey.

Data: the paper's Lotka–Volterra system, 50 s at 10 Hz for training, 15 s for validation. Every method has the drift network of
the paper (three layers of 64, ReLU), the identity decoder and the known noise 0.01. Rivals see windows of 8 points, 10 at a
time. A method's error is the RMSE of its mean forecast over the validation stretch, every 50 iterations; evaluations are
values of the drift at single points, forward only.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

import arcta
from arcta.outside import demo
from arcta.outside.study import Study, markdown
from arcta.predict.figures import ACCENT, INK, MUTED, SECOND, new_figure
from arcta.rivals.baselines import NeuralODE, SolvedSDE

PAPER = arcta.LatentSDE(
    decoder="identity",
    encoder="window",
    lookahead=0,
    noise=0.01,
    drift="plain",
    drift_sizes=(64, 64, 64),
    kernel_sizes=(32, 32),
    activation="relu",
    partition_size=256,
    lengthscale=9.0,
    interpolation_noise=1e-5,
    diffusion_start=1e-5,
    diffusion_prior=(1.0, 1.0),
    rotation=False,
    posterior="amortised",
)
OURS = dataclasses.replace(demo.MODEL, activation="relu")
EVERY: dict[str, Any] = {"log_every": 50, "validate_every": 50}
SHORT: dict[str, Any] = {"steps": 200, "log_every": 100, "validate_every": 100}
PAPER_TRAINING = arcta.Training(
    steps=5000, num_draws=1, num_times=10, learning_rate=1e-3, schedule="exponential", kl_ramp=0.2, **EVERY
)
OUR_TRAINING = dataclasses.replace(demo.TRAINING, steps=2000, **EVERY)
# The learning rate of the rivals (of 1e-3, 3e-3, 1e-2) was chosen on data seeds 1 to 3.
RIVAL_TRAINING = arcta.Training(steps=1000, batch_size=10, learning_rate=3e-3, **EVERY)
ODE = NeuralODE(drift_sizes=(64, 64, 64), activation="relu", noise=0.01, partition_size=8)
SDE = SolvedSDE(
    decoder="identity", drift_sizes=(64, 64, 64), activation="relu", noise=0.01, partition_size=8, diffusion_start=1e-4
)
METHODS: dict[str, tuple[Any, arcta.Training]] = {
    "ARCTA, paper's": (PAPER, PAPER_TRAINING),
    "ARCTA, ours": (OURS, OUR_TRAINING),
    "ARCTA, encoder's": (dataclasses.replace(OURS, posterior="amortised"), OUR_TRAINING),
    "neural ODE, adjoint 1e-2": (dataclasses.replace(ODE, tolerance=1e-2), RIVAL_TRAINING),
    "neural ODE, adjoint 1e-4": (dataclasses.replace(ODE, tolerance=1e-4), RIVAL_TRAINING),
    "neural ODE, adjoint 1e-6": (dataclasses.replace(ODE, tolerance=1e-6), RIVAL_TRAINING),
    "neural ODE, backprop 1e-4": (dataclasses.replace(ODE, gradient="backprop"), RIVAL_TRAINING),
    "latent SDE, stochastic adjoint": (SDE, RIVAL_TRAINING),
    "latent SDE, backprop": (dataclasses.replace(SDE, gradient="backprop"), RIVAL_TRAINING),
}
ARCTA, RIVALS = tuple(METHODS)[:3], tuple(METHODS)[3:]
STYLE = dict(
    zip(METHODS, ("#74b3ce", ACCENT, "#3d8f6d", "#f0b5bd", SECOND, "#8c2a3a", "#e08e45", MUTED, INK), strict=True)
)


def measure(study: Study, method: str, seed: int) -> dict[str, Any]:
    """Train once; the validation error against iterations, evaluations and seconds of optimisation."""
    train, test = demo.data(0)
    model, training = METHODS[method]
    if study.quick:
        training = dataclasses.replace(training, **SHORT)
    fit = arcta.fit(model, train, key=seed, validation=test, training=training, progress=False)
    rows = [row for row in fit.history if "validation_rmse" in row]
    return {
        "best": min(row["validation_rmse"] for row in rows),
        "last": rows[-1]["validation_rmse"],
        "step_ms": 1e3 * fit.seconds / training.steps,
        "evaluations": [row["drift_evaluations"] for row in rows],
        "sequential": [row.get("sequential_evaluations", row["step"]) for row in rows],
        "seconds": [row["seconds"] for row in rows],
        "rmse": [row["validation_rmse"] for row in rows],
    }


def median_curve(rows: list[dict[str, Any]], method: str) -> dict[str, np.ndarray]:
    """The median over seeds of the best error so far, and of what was spent by then."""
    part = [row for row in rows if row["method"] == method]
    n = min(len(row["rmse"]) for row in part)
    errors = np.array([[np.inf if e is None else e for e in row["rmse"][:n]] for row in part], float)
    best = np.minimum.accumulate(errors, axis=1)
    spent = {
        what: np.median([row[what][:n] for row in part], axis=0) for what in ("evaluations", "sequential", "seconds")
    }
    return {
        "best": np.median(best, axis=0),
        "low": np.quantile(best, 0.1, axis=0),
        "high": np.quantile(best, 0.9, axis=0),
        **spent,
    }


def reach(curve: dict[str, np.ndarray], level: float, what: str) -> float:
    """What was spent when the median error first was at `level` or below; infinite if it never was."""
    there = np.flatnonzero(curve["best"] <= level)
    return float(curve[what][there[0]]) if len(there) else float("inf")


def curves(rows: list[dict[str, Any]]) -> Any:
    """Median best-so-far error against evaluations and against wall time."""
    figure, axes = new_figure(1, 2, width=11.0, height=4.2)
    for axis, what, name in (
        (axes[0][0], "evaluations", "drift evaluations (single points, forward)"),
        (axes[0][1], "seconds", "seconds of optimisation, compilation apart"),
    ):
        for method, color in STYLE.items():
            if any(row["method"] == method for row in rows):
                curve = median_curve(rows, method)
                axis.plot(curve[what], curve["best"], color=color, linewidth=2, label=method)
                axis.fill_between(curve[what], curve["low"], curve["high"], color=color, alpha=0.15, linewidth=0)
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_ylim(0.008, 2)
        axis.set_xlabel(name, fontsize=9)
    axes[0][0].set_ylabel("best validation RMSE so far (median, 10–90 %)", fontsize=9)
    axes[0][1].legend(frameon=False, fontsize=7)
    return figure


def run(study: Study) -> None:
    methods = ("ARCTA, ours", "neural ODE, backprop 1e-4") if study.quick else tuple(METHODS)
    seeds = range(study.num_seeds(10))
    rows: list[dict[str, Any]] = []
    for method in methods:
        settings = {method: [repr(part) for part in METHODS[method]], "quick": study.quick}
        jobs = [{"method": method, "seed": seed} for seed in seeds]
        rows += study.measure(jobs, lambda method, seed: measure(study, method, seed), settings)
    rows = [row for row in rows if "rmse" in row]

    def median(method: str, value: Any) -> float:
        return float(np.median([value(row) for row in rows if row["method"] == method]))

    found = [method for method in methods if any(row["method"] == method for row in rows)]
    curve = {method: median_curve(rows, method) for method in found}
    odes = [method for method in found if method.startswith("neural ODE")]
    level = min(float(curve[method]["best"][-1]) for method in odes)
    table = [
        {
            "method": method,
            "best RMSE": f"{median(method, lambda row: row['best']):.4f}",
            "last RMSE": f"{median(method, lambda row: row['last']):.4f}",
            f"evaluations to {level:.4f}": f"{reach(curve[method], level, 'evaluations'):,.0f}",
            "one after the other": f"{reach(curve[method], level, 'sequential'):,.0f}",
            "seconds": f"{reach(curve[method], level, 'seconds'):.2f}",
            "ms per iteration": f"{median(method, lambda row: row['step_ms']):.2f}",
        }
        for method in found
    ]
    summary: dict[str, Any] = {"level": level, "table": table}
    for ours in (method for method in found if method in ARCTA):
        for what in ("evaluations", "seconds"):
            rival = min(reach(curve[method], level, what) for method in found if method in RIVALS)
            summary[f"{ours}: {what}, least of any rival / ours"] = rival / reach(curve[ours], level, what)
            rival = min(reach(curve[method], level, what) for method in odes)
            summary[f"{ours}: {what}, least of a neural ODE / ours"] = rival / reach(curve[ours], level, what)
    study.save_figure("evaluations", curves(rows))
    train, test = demo.data(0)
    training = dataclasses.replace(OUR_TRAINING, **(SHORT if study.quick else {"steps": 1000}))
    fit = arcta.fit(OURS, train, key=0, training=training, progress=False)
    forecast = fit.forecast(test.times, key=1)
    study.save_figure("forecast", forecast.plot(truth=test, context=train.at_rows(train.times > 40)))
    study.finish(summary, {"methods": markdown(table)})
    study.say(summary)
