"""Do defaults alone give calibrated forecasts and good smoothing? Five systems with known truth, three ways to sample them.

For each data set: `arcta.LatentSDE()` and `arcta.Training()` as they are, trained on the part before `cut`; forecasts from eight
origins after it, no refit, over two periods (or one relaxation time); smoothing of the training part. Settings were chosen
on data seeds from 100 on.
"""

from __future__ import annotations

import dataclasses
import functools
import time
import warnings
from typing import Any

import numpy as np

import arcta
from arcta.data.datasets import FAMILIES, SAMPLINGS, Benchmark, benchmark
from arcta.outside.study import Study, markdown
from arcta.predict.classical import kalman_smoother
from arcta.task.backtest import MODEL

ORIGINS = 8


def kalman_error(data: Benchmark) -> float:
    """RMSE of the Kalman smoother with known parameters on the training part; NaN if the system is not linear."""
    if data.linear is None:
        return float("nan")
    series, rows = data.series, data.series.times <= data.cut
    gaps = np.round(np.diff(series.times[rows]), 9)
    known = {gap: data.linear.over(gap) for gap in np.unique(gaps)}
    size = len(data.linear.F)
    smoothed = kalman_smoother(
        np.stack([known[gap][0] for gap in gaps]),
        np.stack([known[gap][1] for gap in gaps]) + 1e-12 * np.eye(size),
        data.linear.H,
        np.full(len(data.linear.H), data.noise**2),
        np.zeros(size),
        np.eye(size),
        series.values[rows],
        series.mask[rows],
    )
    return float(np.sqrt(np.mean((smoothed.mean @ data.linear.H.T - data.truth[rows]) ** 2)))


def known_coverage(data: Benchmark, origins: int) -> tuple[float, float]:
    """The fraction of later observations inside the 50 and the 90 % bands of exact forecasts, everything known: what these few rows
    make of perfect calibration. NaN if the system is not linear."""
    if data.linear is None:
        return float("nan"), float("nan")
    linear, series, variance = data.linear, data.series, data.noise**2
    m, P, kept, scores = np.zeros(len(linear.F)), np.eye(len(linear.F)), [], []
    for k, seen in enumerate(series.mask):
        if k:
            A, Q = linear.over(series.times[k] - series.times[k - 1])
            m, P = A @ m, A @ P @ A.T + Q
        H = linear.H[seen]
        gain = np.linalg.solve(H @ P @ H.T + variance * np.eye(len(H)), H @ P).T
        m, P = m + gain @ (series.values[k][seen] - H @ m), P - gain @ H @ P
        kept.append((m, P))
    for origin in np.linspace(data.cut, series.times[-1] - data.horizon, origins):
        last = np.flatnonzero(series.times <= origin)[-1]
        for k in np.flatnonzero((series.times > origin) & (series.times <= origin + data.horizon)):
            A, Q = linear.over(series.times[k] - series.times[last])
            m, P = A @ kept[last][0], A @ kept[last][1] @ A.T + Q
            spread = np.sqrt(np.einsum("ci,ij,cj->c", linear.H, P, linear.H) + variance)
            scores.append((np.abs(series.values[k] - linear.H @ m) / spread)[series.mask[k]])
    z = np.concatenate(scores)
    return float(np.mean(z < 0.6745)), float(np.mean(z < 1.6449))


def measure(training: arcta.Training, origins: int, family: str, sampling: str, seed: int) -> dict[str, Any]:
    """Fit one data set with defaults and measure everything."""
    data = benchmark(family, sampling, seed=seed)
    series = data.series
    train = series.at_rows(series.times <= data.cut)
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit = arcta.fit(arcta.LatentSDE(), train, key=0, training=training, progress=False)
    seconds = time.perf_counter() - began
    smooth = fit.smooth(train)
    truth = data.truth[np.searchsorted(series.times, smooth.times)]
    low, high = (smooth.quantile(p, noise=False) for p in (0.05, 0.95))
    covered, halves, clean = [], [], []
    for k, origin in enumerate(np.linspace(data.cut, series.times[-1] - data.horizon, origins)):
        rows = (series.times > origin) & (series.times <= origin + data.horizon)
        ahead = fit.forecast(series.times[rows], given=series.at_rows(series.times <= origin), key=k)
        for found, low_level in ((covered, 0.05), (halves, 0.25)):
            bottom, top = ahead.quantile(low_level), ahead.quantile(1 - low_level)
            found.append(((bottom <= series.values[rows]) & (series.values[rows] <= top))[series.mask[rows]])
        under, over = (ahead.quantile(p, noise=False) for p in (0.05, 0.95))
        clean.append(((under <= data.truth[rows]) & (data.truth[rows] <= over)).ravel())
    rolled = arcta.backtest(fit, series, horizon=data.horizon, start=data.cut, num_origins=origins)
    return {
        "coverage_90": float(np.mean(np.concatenate(covered))),
        "coverage_50": float(np.mean(np.concatenate(halves))),
        "clean_coverage_90": float(np.mean(np.concatenate(clean))),
        "smooth_rmse": float(np.sqrt(np.mean((smooth.mean - truth) ** 2))),
        "smooth_coverage_90": float(np.mean((low <= truth) & (truth <= high))),
        "noise": data.noise,
        "kalman_rmse": kalman_error(data),
        "forecast_rmse": float(rolled.table.loc[MODEL, "rmse"]),
        "best_naive": rolled.best_naive,
        "best_naive_rmse": float(rolled.table.loc[rolled.best_naive, "rmse"]),
        "mean_rmse": float(rolled.table.loc["training mean", "rmse"]),
        "methods": rolled.table["rmse"].to_dict(),
        "latent_size": fit.reading.latent_size,
        "join_kl": next((row["join_kl_mean"] for row in reversed(fit.history) if "join_kl_mean" in row), 0.0),
        "seconds": seconds,
    }


def by_family(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Averages over samplings and seeds; errors as ratios of root mean squares."""
    table = []
    for family in dict.fromkeys(row["family"] for row in rows):
        part = [row for row in rows if row["family"] == family]

        def mean(name: str, part: list[dict[str, Any]] = part) -> float:
            return float(np.mean([row[name] for row in part]))

        def ratio(a: str, b: str, part: list[dict[str, Any]] = part) -> float:
            if any(row[b] is None for row in part):
                return float("nan")
            return float(np.sqrt(np.mean([row[a] ** 2 for row in part]) / np.mean([row[b] ** 2 for row in part])))

        known = [known_coverage(benchmark(family, row["sampling"], seed=row["seed"]), ORIGINS) for row in part]
        table.append(
            {
                "family": family,
                "coverage_50": mean("coverage_50"),
                "exact_50": float(np.mean([fifty for fifty, _ in known])),
                "coverage_90": mean("coverage_90"),
                "exact_90": float(np.mean([ninety for _, ninety in known])),
                "clean_coverage_90": mean("clean_coverage_90"),
                "smooth/noise": ratio("smooth_rmse", "noise"),
                "smooth/kalman": ratio("smooth_rmse", "kalman_rmse"),
                "forecast/naive": ratio("forecast_rmse", "best_naive_rmse"),
                "forecast/mean": ratio("forecast_rmse", "mean_rmse"),
                "join": mean("join_kl"),
                "seconds": mean("seconds"),
            }
        )
    return table


def run(study: Study) -> None:
    families, samplings = (FAMILIES[:1], SAMPLINGS[:1]) if study.quick else (FAMILIES, SAMPLINGS)
    training = dataclasses.replace(arcta.Training(), steps=20) if study.quick else arcta.Training()
    jobs = [
        {"family": family, "sampling": sampling, "seed": seed}
        for family in families
        for sampling in samplings
        for seed in range(study.num_seeds(2))
    ]
    settings = {"model": repr(arcta.LatentSDE()), "training": repr(training), "origins": ORIGINS}
    rows = study.measure(jobs, functools.partial(measure, training, 1 if study.quick else ORIGINS), settings)
    table = by_family(rows)
    shown = [{k: v if isinstance(v, str) else f"{v:.3f}" for k, v in row.items()} for row in table]
    study.finish({"table": table}, {"families": markdown(shown)})
