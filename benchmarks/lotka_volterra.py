"""Forecast error on Lotka–Volterra after 1,000 steps: many training seeds, one data set, last iterate.

    python benchmarks/lotka_volterra.py                                          # the figure in the README
    python benchmarks/lotka_volterra.py --posterior amortised                    # the encoder's posterior, 10,000 drift values
    python benchmarks/lotka_volterra.py --posterior amortised --rotation off     # the same without the rotation term
    python benchmarks/lotka_volterra.py --data-seed 1 …        # another data set (settings were chosen on 1, 2, 3)

RMSE is that of the mean forecast against the noisy observations on (50, 65] s, given data up to 50 s only. The floor is
that of the true drift, started from the last noisy observation.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import platform
from pathlib import Path

import jax
import numpy as np

import arcta
from arcta.data.datasets import lotka_volterra_drift, simulate
from arcta.outside import demo


def floor(train: arcta.Series, test: arcta.Series) -> float:
    """RMSE of the true drift from the last noisy observation."""
    times = np.concatenate([train.times[-1:], test.times])
    rng = np.random.default_rng(0)
    path = simulate(lotka_volterra_drift, train.values[-1], times, dispersion=0.0, substeps=10, rng=rng)
    return float(np.sqrt(np.mean((path[1:] - test.values) ** 2)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--posterior", choices=("smoother", "amortised"), default="smoother")
    parser.add_argument("--rotation", choices=("on", "off"), default="on")
    parser.add_argument("--activation", default=demo.MODEL.activation)
    parser.add_argument("--join-penalty", type=float, default=demo.TRAINING.join_penalty)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()

    train, test = demo.data(options.data_seed)
    changes = {"posterior": options.posterior, "rotation": options.rotation == "on", "activation": options.activation}
    model = dataclasses.replace(demo.MODEL, **changes)
    training = dataclasses.replace(demo.TRAINING, join_penalty=options.join_penalty)
    rows = []
    for seed in range(options.seeds):
        fit = arcta.fit(model, train, key=seed, training=training, progress=False)
        scores = fit.score(test, key=1)
        last = fit.history[-1]
        keep = ("drift_evaluations", "drift_derivatives", "log_likelihood", "path_kl", "join_kl_mean")
        rows.append({"seed": seed, **scores, "seconds": fit.seconds, **{name: last[name] for name in keep}})
        print("  ".join(f"{k} {v:.4g}" for k, v in rows[-1].items()), flush=True)
    result = {
        "median_rmse": float(np.median([row["rmse"] for row in rows])),
        "median_seconds": float(np.median([row["seconds"] for row in rows])),
        "true_drift_rmse": floor(train, test),
        "settings": vars(options) | {"out": None, "model": repr(model), "training": repr(training)},
        "machine": f"{platform.machine()}, {jax.local_device_count()} device(s), jax {jax.__version__}",
        "rows": rows,
    }
    print({name: result[name] for name in ("median_rmse", "median_seconds", "true_drift_rmse")})
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
