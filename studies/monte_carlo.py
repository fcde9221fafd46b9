"""How many times to draw: S of 10, 50 and 100 on the four-species system, and the variance of the gradient behind it.

Data: the paper's appendix, 300 units of time at 10 Hz for training and 50 for validation, noise 0.01; M = 256, R = 1. The error
is the RMSE of the mean forecast over the validation stretch. Variance: of the gradient of one window's path KL at the trained
model, E‖g − ḡ‖²/‖ḡ‖² over 200 keys, for R draws and S times, stratified and plain.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

import arcta
from arcta.bound.elbo import elbo
from arcta.bound.quadrature import stratified, uniform
from arcta.data.windows import windows_of
from arcta.outside.study import Study, markdown
from arcta.predict.figures import ACCENT, MUTED, SECOND, new_figure

TIMES = (10, 50, 100)
MODEL = arcta.LatentSDE(
    decoder="identity",
    encoder="window",
    lookahead=2,
    noise=0.01,
    drift="plain",
    drift_sizes=(64, 64),
    kernel_sizes=(32, 32),
    activation="relu",
    partition_size=256,
    lengthscale=9.0,
    interpolation_noise=1e-5,
    diffusion_start=1e-5,
    diffusion_prior=(1.0, 1.0),
    posterior="amortised",
)
TRAINING = arcta.Training(
    steps=4000, num_draws=1, learning_rate=1e-3, schedule="exponential", kl_ramp=0.25, log_every=200, validate_every=200
)
COLORS = dict(zip(TIMES, (ACCENT, SECOND, MUTED), strict=True))


@functools.cache
def data() -> tuple[arcta.Series, arcta.Series]:
    return arcta.split(arcta.datasets.four_species(seed=0), time=300.0)


@functools.lru_cache(maxsize=1)
def train(quick: bool, num_times: int, seed: int) -> arcta.Fit:
    before, after = data()
    training = dataclasses.replace(TRAINING, num_times=num_times)
    if quick:
        training = dataclasses.replace(training, steps=20, log_every=20, validate_every=20)
    return arcta.fit(MODEL, before, key=seed, validation=after, training=training, progress=False)


def measure(study: Study, num_times: int, seed: int) -> dict[str, Any]:
    """One training run: the validation error along the way."""
    fit = train(study.quick, num_times, seed)
    rows = [row for row in fit.history if "validation_rmse" in row]
    errors = [row["validation_rmse"] for row in rows]
    return {
        "best": min(errors),
        "last": errors[-1],
        "seconds": fit.seconds,
        "steps": [row["step"] for row in rows],
        "evaluations": [row["drift_evaluations"] for row in rows],
        "rmse": errors,
    }


def variance(study: Study, num_draws: int, num_times: int, times: str) -> dict[str, Any]:
    """The relative variance of the path KL's gradient at the model that seed 0 ends with."""
    fit = train(study.quick, TIMES[0], 0)
    before, _ = data()
    windows = windows_of([before], fit.layout.scaling, fit.layout.window_shape(fit.model))
    window = jax.tree.map(lambda leaf: jnp.asarray(leaf[3]), windows)
    draw = {"stratified": stratified, "plain": uniform}[times]

    @eqx.filter_jit
    def slope(model: Any, key: Any) -> Any:
        def path_kl(model: Any) -> Any:
            return elbo(model, window, num_draws=num_draws, num_times=num_times, draw_times=draw, key=key).path_kl

        return ravel_pytree(eqx.filter_grad(path_kl)(model))[0]

    keys = jax.random.split(jax.random.key(0), 20 if study.quick else 200)
    slopes = np.stack([np.asarray(slope(fit.model, key)) for key in keys])
    mean = slopes.mean(axis=0)
    spread = float(np.sum(slopes.var(axis=0, ddof=1)))
    # ‖mean of n‖² overestimates ‖mean‖² by spread/n.
    return {"relative_variance": spread / max(float(np.sum(mean**2)) - spread / len(keys), 1e-12 * spread)}


def figure(rows: list[dict[str, Any]], variances: list[dict[str, Any]]) -> Any:
    drawn, axes = new_figure(1, 3, width=13.0, height=3.8)
    for axis, what, name in ((axes[0][0], "steps", "iterations"), (axes[0][1], "evaluations", "drift evaluations")):
        for count, color in COLORS.items():
            part = [row for row in rows if row["num_times"] == count]
            if part:
                errors = np.array([row["rmse"] for row in part], float)
                axis.plot(part[0][what], np.median(errors, axis=0), color=color, linewidth=2, label=f"S = {count}")
                axis.fill_between(
                    part[0][what], *np.quantile(errors, [0.1, 0.9], axis=0), color=color, alpha=0.15, lw=0
                )
        axis.set_yscale("log")
        axis.set_xlabel(name, fontsize=9)
    axes[0][1].set_xscale("log")
    axes[0][0].set_ylabel("validation RMSE (median, 10–90 %)", fontsize=9)
    axes[0][0].legend(frameon=False, fontsize=8)
    last = axes[0][2]
    for draws in dict.fromkeys(row["num_draws"] for row in variances):
        for times, style in (("stratified", "o-"), ("plain", "s--")):
            part = [row for row in variances if row["num_draws"] == draws and row["times"] == times]
            color = ACCENT if draws == 1 else SECOND
            points = ([row["num_times"] for row in part], [row["relative_variance"] for row in part])
            last.plot(*points, style, color=color, markersize=4, label=f"R = {draws}, {times}")
    last.set_xscale("log")
    last.set_yscale("log")
    last.set_xlabel("S", fontsize=9)
    last.set_title("relative variance of the path KL's gradient", fontsize=9)
    last.legend(frameon=False, fontsize=7)
    return drawn


def run(study: Study) -> None:
    counts = TIMES[:1] if study.quick else TIMES
    settings = {"model": repr(MODEL), "training": repr(TRAINING), "quick": study.quick}
    jobs = [{"num_times": count, "seed": seed} for seed in range(study.num_seeds(10)) for count in counts]
    rows = study.measure(jobs, functools.partial(measure, study), settings)
    grid = [(1, 10)] if study.quick else [(r, s) for r in (1, 10) for s in (1, 10, 50, 100)]
    ways = ("stratified",) if study.quick else ("stratified", "plain")
    cases = [{"num_draws": r, "num_times": s, "times": way} for r, s in grid for way in ways]
    variances = study.measure(cases, functools.partial(variance, study), {**settings, "what": "variance"})
    table = []
    for count in counts:
        part = [row for row in rows if row["num_times"] == count]
        table.append(
            {
                "S": count,
                "best RMSE, median": f"{np.median([row['best'] for row in part]):.4f}",
                "last RMSE, median (10–90 %)": "{:.4f} ({:.4f}–{:.4f})".format(
                    *np.quantile([row["last"] for row in part], [0.5, 0.1, 0.9])
                ),
                "drift evaluations": f"{part[0]['evaluations'][-1]:,.0f}",
                "optimisation": f"{np.median([row['seconds'] for row in part]):.1f} s",
            }
        )
    found = {(row["num_draws"], row["num_times"], row["times"]): row["relative_variance"] for row in variances}
    spread = [{"R": r, "S": s, **{way: f"{found[r, s, way]:.3g}" for way in ways}} for r, s in grid]
    study.save_figure("times", figure(rows, variances))
    study.finish({"table": table, "variance": spread}, {"errors": markdown(table), "variance": markdown(spread)})
