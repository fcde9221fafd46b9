"""Which configuration for motion capture? Variants of the paper's, scored on sequences they were not trained on.

Four folds over the 16 training and 3 validation sequences: a model trained on 14 or 15 of them is scored on the 4 or 5 left out,
as `arcta study mocap` scores test sequences. Test sequences are never read. The least mean error wins, in each setup.
"""

from __future__ import annotations

import functools
import runpy
from pathlib import Path
from typing import Any

import numpy as np

import arcta
from arcta.figures import ACCENT, SECOND, new_figure
from arcta.study import Study, markdown

mocap = runpy.run_path(str(Path(__file__).with_name("mocap.py")))
PAPER, TRAINING = mocap["PAPER"], mocap["PAPER_TRAINING"]
NUM_FOLDS = 4
LOCAL = {"encoder": "local", "lookahead": 0, "lengthscale": None, "interpolation_noise": None}
# What is changed in the model, and in the training (KL weight 50 unless said).
CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "paper's": ({}, {}),
    "true bound": ({}, {"kl_weight": 1.0}),
    "KL weight 10": ({}, {"kl_weight": 10.0}),
    "KL weight 200": ({}, {"kl_weight": 200.0}),
    "diffusion from 1e-3": ({"diffusion_start": 1e-3}, {}),
    "800 steps": ({}, {"steps": 800}),
    "cosine": ({}, {"schedule": "cosine"}),
    "latent 4": ({"latent_size": 4}, {}),
    "latent 8": ({"latent_size": 8}, {}),
    "steady axis": ({"drift": "steady", "latent_size": 7}, {}),
    "local encoder": (LOCAL, {}),
    "linear decoder": ({"decoder": "linear"}, {}),
    "uncertain drift": ({"drift": "neural"}, {}),
    "no rotation": ({"rotation": False}, {}),
}


def measure(study: Study, candidate: str, setup: int, fold: int) -> dict[str, Any]:
    """Errors on the sequences of one fold, of a model trained on the others."""
    training, validation, _ = mocap["sequences"](study)
    every = [*training, *validation]
    others = [item for i, item in enumerate(every) if i % NUM_FOLDS != fold]
    model, schedule = CHANGES[candidate]
    fit: arcta.Fit = mocap["train"](
        ({**PAPER, **model}, {**TRAINING, **schedule}), setup, 100 + fold, others, study.quick
    )
    scores = [mocap["score"](fit, [item], setup) for item in every[fold::NUM_FOLDS][: 1 if study.quick else None]]
    names = ("mse_from_3", "single_path_mse", "crps", "coverage_90")
    return {**{name: [row[name] for row in scores] for name in names}, "seconds": fit.seconds}


def run(study: Study) -> None:
    rows: list[dict[str, Any]] = []
    for name in list(CHANGES)[: 1 if study.quick else None]:
        jobs = [
            {"candidate": name, "setup": setup, "fold": fold}
            for setup in (1, 2)
            for fold in range(1 if study.quick else NUM_FOLDS)
        ]
        settings = {"model": repr({**PAPER, **CHANGES[name][0]}), "training": repr({**TRAINING, **CHANGES[name][1]})}
        rows += study.measure(jobs, functools.partial(measure, study), {**settings, "quick": study.quick})
    found: dict[tuple[str, int], dict[str, np.ndarray]] = {}
    for name in dict.fromkeys(row["candidate"] for row in rows):
        for setup in (1, 2):
            part = [r for r in rows if r["candidate"] == name and r["setup"] == setup and "error" not in r]
            if part:
                found[name, setup] = {
                    what: np.concatenate([row[what] for row in part]) for what in ("mse_from_3", "crps", "coverage_90")
                }
    best = {s: min((k for k in found if k[1] == s), key=lambda k: found[k]["mse_from_3"].mean())[0] for s in (1, 2)}
    reference = next(iter(CHANGES))
    table = []
    for name in dict.fromkeys(row["candidate"] for row in rows):
        line: dict[str, Any] = {"changed from the paper's": name}
        for setup in (1, 2):
            scores = found.get((name, setup))
            if scores is None:
                line |= {f"setup {setup}: MSE": "failed", f"gain {setup}": "–", f"CRPS {setup}": "–"}
                continue
            mse, star = scores["mse_from_3"], "**" if best[setup] == name else ""
            # Sequences are the unit: models of a fold share them, so gains are paired by sequence.
            gain = (
                found[reference, setup]["mse_from_3"] - mse
                if len(mse) == len(found[reference, setup]["mse_from_3"])
                else mse
            )
            error = gain.std(ddof=1) / np.sqrt(len(gain)) if len(gain) > 1 else 0.0
            line |= {
                f"setup {setup}: MSE": f"{star}{mse.mean():.2f}{star}",
                f"gain {setup}": f"{gain.mean():.2f} ± {error:.2f}",
                f"CRPS {setup}": f"{scores['crps'].mean():.3f}",
            }
        table.append(line)
    drawn, axes = new_figure(1, 1, width=9.0, height=0.35 * len(table) + 1.5)
    axis, places = axes[0][0], np.arange(len(table))
    for setup, color, shift in ((1, ACCENT, -0.15), (2, SECOND, 0.15)):
        names = [line["changed from the paper's"] for line in table]
        means = [found[name, setup]["mse_from_3"].mean() if (name, setup) in found else np.nan for name in names]
        axis.plot(means, places + shift, "o", color=color, label=f"setup {setup}")
    axis.set_yticks(places, [line["changed from the paper's"] for line in table], fontsize=8)
    axis.invert_yaxis()
    axis.set_xlabel("mean squared error on sequences left out", fontsize=9)
    axis.legend(frameon=False, fontsize=8)
    study.save_figure("candidates", drawn)
    study.finish({"table": table, "best": best}, {"candidates": markdown(table)})
