"""Time to accuracy on MOCAP: the error on validation sequences after so many seconds of training, ours against a latent SDE that
is trained through a solver. One thread on one core.

    ARCTA_MOCAP=…/mocap35.mat python benchmarks/accuracy.py        # `make bench` stores it in benchmarks/results/accuracy.json

Ours is the configuration that `arcta study mocap` picked by cross-validation, with all ten draws decoded and with one. The rival
has the same drift and decoder networks, latent size, learning rate and schedule, and is trained with the true bound and with our
KL weight; it reads with a GRU, as latent SDEs do, and its gradient is diffrax's backpropagation, one of the two fastest solver
gradients in step.py. Each budget is a training of its own, with its own schedule. Seconds are those of the training loop, without
compilation. Without the file of MOCAP (`arcta study mocap` says where it is looked for) nothing is measured.
"""

from __future__ import annotations

import os

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[-1]})  # before any thread pool is made

import argparse  # noqa: E402
import json  # noqa: E402
import runpy  # noqa: E402
import types  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402

import arcta  # noqa: E402
from arcta.outside.study import machine  # noqa: E402
from arcta.parts.networks import MLP  # noqa: E402
from arcta.rivals.baselines import SolvedSDE  # noqa: E402

MOCAP = runpy.run_path(str(Path(__file__).parents[1] / "studies" / "mocap.py"))
BUDGETS = {
    "ours, ten draws decoded": (400, 1600),
    "ours, one draw decoded": (400, 1600),
    "through diffrax, true bound": (150, 600),
    "through diffrax, KL weight as ours": (150, 600),
}
FRAMES, GIVEN, PATHS = 300, 3, MOCAP["NUM_PATHS"]


def ours(training: list[arcta.Series], steps: int, num_decoded: int | None, seed: int) -> Any:
    model, settings = MOCAP["BEST"][1]
    settings = {**settings, "steps": steps, "log_every": steps, "num_decoded": num_decoded}
    return MOCAP["train"]((model, settings), 1, seed, training)


def rival(training: list[arcta.Series], steps: int, weighted: bool, seed: int) -> Any:
    model, settings = MOCAP["BEST"][1]
    size, activation = model["latent_size"], model["activation"]
    decoder = MLP((size, 15, 30, 30, 50), activation, rng=np.random.default_rng(10_000 + seed))
    spec = SolvedSDE(
        latent_size=size, decoder=decoder, drift_sizes=model["drift_sizes"], activation=activation, partition_size=FRAMES,
        substeps=1, gradient="backprop", max_steps=1024,
    )  # fmt: skip
    kept = {k: settings[k] for k in ("learning_rate", "schedule", "kl_ramp", *(("kl_weight",) if weighted else ()))}
    options = arcta.Training(steps=steps, log_every=steps, validate_every=10**6, checkpoint_every=10**6, **kept)
    cut = [item.at_rows(slice(0, FRAMES)) for item in training]
    return arcta.fit(spec, cut, key=seed, training=options, progress=False)


def error(fit: Any, data: list[arcta.Series]) -> float:
    """Mean squared error of the forecasts of frames 3 … 299 from the first three."""
    if isinstance(fit, arcta.Fit):
        return float(MOCAP["score"](fit, data, 1)["mse_from_3"])
    ends = [
        fit.forecast(item.times[GIVEN:], given=item.at_rows(slice(0, GIVEN)), num_samples=PATHS, key=1) for item in data
    ]
    return float(
        np.mean([np.mean((end.mean - item.values[GIVEN:]) ** 2) for end, item in zip(ends, data, strict=True)])
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    try:
        training, validation, _ = MOCAP["sequences"](types.SimpleNamespace(data=None))
    except (OSError, ValueError) as problem:
        print(f"MOCAP is left out: {problem}")
        return
    result: dict[str, Any] = {
        "settings": {"seeds": options.seeds, "threads": 1, "cores": 1, "budgets": BUDGETS},
        "machine": machine(),
        "accuracy": {},
    }
    for name, budgets in BUDGETS.items():
        for steps in budgets:
            rows = []
            for seed in range(options.seeds):
                if name.startswith("ours,"):
                    fit = ours(training, steps, 1 if "one" in name else None, seed)
                else:
                    fit = rival(training, steps, "ours" in name, seed)
                rows.append({"seed": seed, "seconds": fit.seconds, "mse": error(fit, validation)})
                print(
                    f"{name:<36} {steps:5d} steps  seed {seed}  {fit.seconds:6.1f} s  MSE {rows[-1]['mse']:.2f}",
                    flush=True,
                )
            result["accuracy"].setdefault(name, {})[str(steps)] = rows
            if options.out is not None:
                options.out.parent.mkdir(parents=True, exist_ok=True)
                options.out.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
