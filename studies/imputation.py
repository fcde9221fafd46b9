"""TSI-bench's imputation of two data sets, beside the 24 networks whose scores it publishes.

    arcta study imputation --data folder     # default: shared/data/real beside the clone

The files are cut into windows (ETTh1: 48 hours, 14 months for training, the last five for scores; AirQualityUCI: 12 hours, the last
fifth for scores, its −200 for "missing" left in as the benchmark does) and standardised by the training part. Entries are hidden
in training and in scored windows alike, at random, in stretches of a channel, or in blocks of channels and hours; arcta learns
from the training windows and fills each scored window from what is left of that window alone. The score is the mean absolute error
over what was hidden. The masks are ours: that straight lines score what is published for them says that they are of the same kind.
"""

# pandas' stubs take the columns of a table for arrays.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false

from __future__ import annotations

import functools
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

import arcta
from arcta.outside.study import Study, markdown
from arcta.predict.figures import ACCENT, MUTED, new_figure

PATTERNS = ("point01", "point05", "point09", "subseq05", "block05")


class Windows(NamedTuple):
    """Standardised windows (window, row, channel): those learned from, those scored. `stretch`: rows that are hidden in a row;
    `block`: rows, and channels, of a block."""

    train: np.ndarray
    test: np.ndarray
    stretch: int
    block: int


def electricity(folder: Path) -> Windows:
    table = pd.read_csv(folder / "ETTh1.csv", parse_dates=["date"])
    month = table["date"].dt.to_period("M")
    months = list(month.unique())
    values = table.drop(columns="date").to_numpy(float)
    return cut(values[month.isin(months[:14])], values[month.isin(months[19:])], 48, 36, 6)


def air(folder: Path) -> Windows:
    values = pd.read_csv(folder / "AirQualityUCI.csv").iloc[:, 2:].to_numpy(float)
    fifth = round(0.2 * len(values))
    return cut(values[: -2 * fifth], values[-fifth:], 12, 8, 4)


def simulated(_: Path) -> Windows:
    """For the quick run: three channels that share a process."""
    rng = np.random.default_rng(0)
    common = np.convolve(rng.standard_normal(1300), np.exp(-np.arange(40) / 8), "valid")[:1200]
    values = common[:, None] * np.array([1.0, -2.0, 0.5]) + 0.3 * rng.standard_normal((1200, 3))
    return cut(values[:960], values[960:], 24, 12, 2)


def cut(train: np.ndarray, test: np.ndarray, rows: int, stretch: int, block: int) -> Windows:
    mean, spread = train.mean(axis=0), train.std(axis=0)
    parts = [((x - mean) / spread)[: len(x) // rows * rows].reshape(-1, rows, x.shape[1]) for x in (train, test)]
    return Windows(parts[0], parts[1], stretch, block)


DATA = {"ETT_h1": electricity, "ItalyAir": air, "simulated": simulated}


def hide(shape: tuple[int, int, int], pattern: str, windows: Windows, rng: np.random.Generator) -> np.ndarray:
    """Which entries are hidden: each with its chance; or stretches and blocks, one after the other, until half is."""
    if pattern.startswith("point"):
        return rng.random(shape) < int(pattern[-2:]) / 10
    count, rows, channels = shape
    hidden = np.zeros(shape, bool)
    if pattern == "subseq05":  # at most one stretch of a channel in a window
        chosen = rng.random((count, channels)) < 0.5 * rows / windows.stretch
        for w, c in np.argwhere(chosen):
            at = rng.integers(rows - windows.stretch + 1)
            hidden[w, at : at + windows.stretch, c] = True
        return hidden
    size = windows.block
    while hidden.mean() < 0.5:
        w, at, c = rng.integers(count), rng.integers(rows - size + 1), rng.integers(channels - size + 1)
        hidden[w, at : at + size, c : c + size] = True
    return hidden


def straight(x: np.ndarray, hidden: np.ndarray) -> np.ndarray:
    """Lines between what is left of each channel of a window; the mean if nothing is."""
    rows = np.arange(len(x))
    columns = [
        np.interp(rows, rows[~gone], x[~gone, c]) if not gone.all() else np.zeros(len(x))
        for c, gone in enumerate(hidden.T)
    ]
    return np.stack(columns, axis=1)


def score(folder: Path, training: arcta.Training, data: str, pattern: str, seed: int) -> dict[str, Any]:
    windows = DATA[data](folder)
    rng = np.random.default_rng(seed)
    before, hidden = (hide(part.shape, pattern, windows, rng) for part in (windows.train, windows.test))

    def series(x: np.ndarray, gone: np.ndarray, number: int) -> arcta.Series:
        times = len(x) * number + np.arange(float(len(x)))
        return arcta.Series(times, np.where(gone, np.nan, x), name=f"window {number}")

    known = [series(x, m, i) for i, (x, m) in enumerate(zip(windows.train, before, strict=True)) if not m.all()]
    fit = arcta.fit(arcta.LatentSDE(), known, training=training, progress=False)
    filled, lines = np.zeros_like(windows.test), np.zeros_like(windows.test)
    for i, (x, gone) in enumerate(zip(windows.test, hidden, strict=True)):
        lines[i] = straight(x, gone)
        if not gone.all():
            window = series(x, gone, i)
            filled[i] = fit.smooth(window, window.times).quantile(0.5, noise=False)
    errors = {name: float(np.abs(y - windows.test)[hidden].mean()) for name, y in (("arcta", filled), ("lines", lines))}
    return {"hidden": float(hidden.mean()), **errors, "by": fit.smooths_by}


def published(folder: Path, data: str, pattern: str) -> dict[str, Any]:
    """The best of the networks, and straight lines."""
    kind = {"point": "point", "subse": "subseq", "block": "block"}[pattern[:5]]
    names = ["pattern", "data", "model", "size", "mae", "mse", "mre", "time"]
    table = pd.read_csv(folder / "tsibench_published_scores.csv", names=names)
    table = table[(table["data"] == data) & (table["pattern"] == pattern) & (table["model"] != "Model")]
    scores = table["mae"].str.split().str[0].astype(float)
    simple = pd.read_csv(folder / "tsibench_naive.csv")
    prefix = {"ETT_h1": "ett_", "ItalyAir": "italy_"}[data] + ("" if data == "ETT_h1" else "air_quality_")
    of = simple["dataset"].str.startswith(f"{prefix}rate{pattern[-2:]}") & (
        simple["type"] == f"{kind}_rate{pattern[-2:]}"
    )
    lines = simple[of & (simple["method"] == "linear interpolation")]["mae"].iloc[0]
    return {
        "best network": f"{table['model'][scores.idxmin()]} {scores.min():.3f}",
        "its": scores.min(),
        "lines": lines,
    }


def tabulate(folder: Path, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means over the seeds, beside what is published."""
    table = []
    for data, pattern in dict.fromkeys((row["data"], row["pattern"]) for row in rows):
        part = [row for row in rows if (row["data"], row["pattern"]) == (data, pattern)]
        ours, lines = (float(np.mean([row[name] for row in part])) for name in ("arcta", "lines"))
        row = {"data": data, "pattern": pattern, "arcta": f"{ours:.3f}", "lines": f"{lines:.3f}"}
        row["arcta / lines"] = f"{ours / lines:.2f}"
        if data != "simulated":
            told = published(folder, data, pattern)
            row |= {"lines, published": f"{told['lines']:.3f}", "best network": told["best network"]}
            row["arcta / best network"] = f"{ours / told['its']:.2f}"
        table.append(row)
    return table


def draw(study: Study, table: list[dict[str, Any]]) -> None:
    figure, axes = new_figure(1, height=0.3 * len(table) + 1)
    axis = axes[0, 0]
    names = [f"{row['data']} {row['pattern']}" for row in table][::-1]
    at = np.arange(len(table))
    for side, name, colour in ((0.2, "arcta / best network", ACCENT), (-0.2, "arcta / lines", MUTED)):
        if name in table[0]:
            axis.barh(at + side, [float(row[name]) for row in table][::-1], 0.4, color=colour, label=name)
    axis.set_yticks(at, names)
    axis.axvline(1.0, color="black", linewidth=1)
    axis.set_xlabel("ratio of mean absolute errors over what was hidden; arcta by its defaults")
    axis.legend(frameon=False, fontsize=9)
    study.save_figure("ratios", figure)


def run(study: Study) -> None:
    warnings.simplefilter("ignore")
    folder = study.data or Path(__file__).parents[2] / "shared" / "data" / "real"
    training = arcta.Training(steps=20) if study.quick else arcta.Training()
    names = ("simulated",) if study.quick else ("ETT_h1", "ItalyAir")
    patterns = ("subseq05",) if study.quick else PATTERNS
    jobs = [
        {"data": name, "pattern": pattern, "seed": seed}
        for seed in range(study.num_seeds(1))
        for name in names
        for pattern in patterns
    ]
    settings = {"model": repr(arcta.LatentSDE()), "training": repr(training)}
    rows = study.measure(jobs, functools.partial(score, folder, training), settings)
    table = tabulate(folder, rows)
    draw(study, table)
    study.finish({"table": table}, {"errors": markdown(table)})
