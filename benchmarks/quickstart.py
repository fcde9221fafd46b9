"""Are the README's quickstart forecasts calibrated? Five data sets, twelve origins each, 13 s ahead, defaults only.

    python benchmarks/quickstart.py                     # `make bench` stores it in benchmarks/results/quickstart.json
    python benchmarks/quickstart.py --first-seed 100    # other data: settings were chosen on seeds from 100 on

A model is trained on the first 80 % of a series, as in the README, and forecasts a new series of the same system, 120 s long.
Errors are against the clean truth, coverage is of the noisy observations.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

import arcta
from arcta.data.datasets import lotka_volterra_drift, simulate
from arcta.outside.study import machine

ORIGINS = np.linspace(30.0, 105.0, 12)
HORIZON = 13.0


def new_series(seed: int) -> tuple[arcta.Series, np.ndarray]:
    """A series that the model has not seen, and its clean truth."""
    rng = np.random.default_rng(1000 + seed)
    times = np.arange(1201) / 10
    truth = simulate(lotka_volterra_drift, np.array([0.9, 0.2]), times, dispersion=1e-3, substeps=10, rng=rng)
    return arcta.Series(times, truth + 0.01 * rng.standard_normal(truth.shape), channels=("prey", "predator")), truth


def measure(seed: int) -> dict[str, float]:
    train, _ = arcta.split(arcta.datasets.lotka_volterra(seed=seed), at=0.8)
    fit = arcta.fit(arcta.LatentSDE(), train, key=0, progress=False)
    series, truth = new_series(seed)
    errors, inside = [], {0.5: [], 0.9: []}
    for origin in ORIGINS:
        rows = (series.times > origin) & (series.times <= origin + HORIZON)
        ahead = fit.forecast(series.times[rows], given=series.at_rows(series.times <= origin), key=1)
        errors.append(ahead.mean - truth[rows])
        for level, found in inside.items():
            low, high = (ahead.quantile(0.5 + sign * level / 2) for sign in (-1, 1))
            found.append((low <= series.values[rows]) & (series.values[rows] <= high))
    joins = [row["join_kl_mean"] for row in fit.history if "join_kl_mean" in row]
    return {
        "seed": seed,
        "rmse": float(np.sqrt(np.mean(np.square(errors)))),
        **{f"coverage_{level:.0%}": float(np.mean(found)) for level, found in inside.items()},
        "join_kl": joins[-1],
        "seconds": fit.seconds,
        "compile_seconds": fit.compile_seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = []
    for seed in range(options.first_seed, options.first_seed + 5):
        rows.append(measure(seed))
        print("  ".join(f"{name} {value:.4g}" for name, value in rows[-1].items()), flush=True)
    means = {name: float(np.mean([row[name] for row in rows])) for name in rows[0] if name != "seed"}
    print("means:  " + "  ".join(f"{name} {value:.4g}" for name, value in means.items()))
    if options.out is not None:
        settings = {
            "model": repr(arcta.LatentSDE()),
            "training": repr(arcta.Training()),
            "first_seed": options.first_seed,
        }
        content = {"means": means, "settings": settings, "machine": machine(), "rows": rows}
        options.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
