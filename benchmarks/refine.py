"""What `refine=True` changes in forecasts and smoothing of the benchmark families.

    python benchmarks/refine.py                    # `make bench` stores it in benchmarks/results/refine.json

The encoder's posterior in training, data seeds 100 and 101 (development data), forecasts from eight origins against the clean
truth. A process for each family.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import arcta
from arcta.data.datasets import FAMILIES, SAMPLINGS, Benchmark, benchmark
from arcta.outside.study import machine

SEEDS = (100, 101)
MODEL = arcta.LatentSDE(posterior="amortised")  # a smoother in training too is refined anyway
TRAINING = arcta.Training(steps=2000)
ORIGINS = 8


def measure(fit: arcta.Fit, data: Benchmark, refine: bool) -> dict[str, float]:
    """Errors against the clean truth and coverage of observations."""
    series, errors, inside = data.series, [], {0.5: [], 0.9: []}
    for key, origin in enumerate(np.linspace(data.cut, series.times[-1] - data.horizon, ORIGINS)):
        rows = (series.times > origin) & (series.times <= origin + data.horizon)
        given = series.at_rows(series.times <= origin)
        ahead = fit.forecast(series.times[rows], given=given, refine=refine, key=key)
        errors.append((ahead.mean - data.truth[rows]).ravel())
        for level, found in inside.items():
            low, high = (ahead.quantile(0.5 + sign * level / 2) for sign in (-1, 1))
            within = (low <= series.values[rows]) & (series.values[rows] <= high)
            found.append(within[series.mask[rows]])
    smooth = fit.smooth(series.at_rows(series.times <= data.cut), refine=refine)
    miss = smooth.mean - data.truth[np.searchsorted(series.times, smooth.times)]
    return {
        "forecast_rmse": float(np.sqrt(np.mean(np.concatenate(errors) ** 2))),
        "smooth_rmse": float(np.sqrt(np.mean(miss**2))),
        **{f"coverage_{level:.0%}": float(np.mean(np.concatenate(found))) for level, found in inside.items()},
    }


def family_rows(family: str) -> list[dict[str, Any]]:
    rows = []
    for sampling in SAMPLINGS:
        for seed in SEEDS:
            data = benchmark(family, sampling, seed=seed)
            train = data.series.at_rows(data.series.times <= data.cut)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                fit = arcta.fit(MODEL, train, key=0, training=TRAINING, progress=False)
                pair = {name: measure(fit, data, refine) for name, refine in (("encoder", False), ("refined", True))}
            rows.append({"family": family, "sampling": sampling, "seed": seed, **pair})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--family", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.family:
        print(json.dumps(family_rows(options.family)))
        return
    rows = []
    for family in FAMILIES:
        said = subprocess.run(
            [sys.executable, __file__, "--family", family], check=True, stdout=subprocess.PIPE, text=True
        )
        rows += json.loads(said.stdout.splitlines()[-1])
        for row in rows[-len(SAMPLINGS) * len(SEEDS) :]:
            ratios = (row["refined"][name] / row["encoder"][name] for name in ("forecast_rmse", "smooth_rmse"))
            print(
                f"{family:<15} {row['sampling']:<10} {row['seed']}  refined / encoder: forecast %.3f, smooth %.3f"
                % (*ratios,)
            )
    if options.out is not None:
        settings = {
            "seeds": SEEDS,
            "origins": ORIGINS,
            "model": repr(MODEL),
            "training": repr(TRAINING),
        }
        options.out.write_text(json.dumps({"settings": settings, "machine": machine(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
