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
from arcta.outside.study import Study, markdown
from arcta.predict.figures import ACCENT, SECOND, new_figure

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
    # The second round starts from the winner of the first.
    "cosine, KL weight 20": ({}, {"schedule": "cosine", "kl_weight": 20.0}),
    "cosine, 3,000 steps": ({}, {"schedule": "cosine", "steps": 3000}),
    "cosine, learning rate 5e-3": ({}, {"schedule": "cosine", "learning_rate": 5e-3}),
    "cosine, steady axis": ({"drift": "steady", "latent_size": 7}, {"schedule": "cosine"}),
    "cosine, latent 8": ({"latent_size": 8}, {"schedule": "cosine"}),
    "cosine, latent 8, learning rate 5e-3": ({"latent_size": 8}, {"schedule": "cosine", "learning_rate": 5e-3}),
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
    names, setups, folds = (list(CHANGES), (1, 2), NUM_FOLDS) if not study.quick else (["paper's"], (1,), 1)
    rows: list[dict[str, Any]] = []
    for name in names:
        jobs = [{"candidate": name, "setup": setup, "fold": fold} for setup in setups for fold in range(folds)]
        settings = {"model": repr({**PAPER, **CHANGES[name][0]}), "training": repr({**TRAINING, **CHANGES[name][1]})}
        rows += study.measure(jobs, functools.partial(measure, study), {**settings, "quick": study.quick})

    def errors(name: str, setup: int, what: str = "mse_from_3") -> np.ndarray:
        """One number for each sequence; NaN for those of a fold that failed."""
        part = [row for row in rows if row["candidate"] == name and row["setup"] == setup]
        return np.concatenate([np.array(row.get(what, [np.nan]), float) for row in part])

    means = {setup: {name: float(errors(name, setup).mean()) for name in names} for setup in setups}
    best = {setup: min(names, key=lambda name: np.nan_to_num(means[setup][name], nan=np.inf)) for setup in setups}
    table = []
    for name in names:
        line: dict[str, Any] = {"changed from the paper's": name}
        for setup in setups:
            star = "**" if best[setup] == name else ""
            mse, usual = errors(name, setup), errors(names[0], setup)
            # Gains are paired by sequence: some are hard for every model.
            gain = usual - mse if len(mse) == len(usual) else np.full(2, np.nan)
            error = gain.std(ddof=1) / np.sqrt(len(gain)) if len(gain) > 1 else np.nan
            line[f"setup {setup}: MSE"] = f"{star}{mse.mean():.2f}{star}"
            line[f"setup {setup}: gain"] = f"{gain.mean():.2f} ± {error:.2f}"
            line[f"setup {setup}: CRPS"] = f"{errors(name, setup, 'crps').mean():.3f}"
        table.append(line)
    study.save_figure("candidates", figure(means))
    study.finish({"table": table, "best": best}, {"candidates": markdown(table)})


def figure(means: dict[int, dict[str, float]]) -> Any:
    names = list(means[1])
    drawn, axes = new_figure(1, 1, width=9.0, height=0.3 * len(names) + 1.2)
    for (setup, found), color in zip(means.items(), (ACCENT, SECOND), strict=False):
        axes[0][0].plot(list(found.values()), range(len(names)), "o", color=color, label=f"setup {setup}")
    axes[0][0].set_yticks(range(len(names)), names, fontsize=8)
    axes[0][0].invert_yaxis()
    axes[0][0].set_xlabel("mean squared error on sequences left out", fontsize=9)
    axes[0][0].legend(frameon=False, fontsize=8)
    return drawn
