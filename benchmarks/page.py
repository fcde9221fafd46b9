"""docs/benchmarks.md and its figures from the stored results: `python benchmarks/page.py`."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean
from typing import Any

from arcta.predict.figures import ACCENT, MUTED, SECOND, new_figure

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"
HEAD = """# Benchmarks

Written by `make bench` from benchmarks/results/*.json, which hold settings, versions and machine. Times are medians of repeats
taken in turns in one run; compare ratios, not milliseconds: shared machines wander by a quarter from one minute to the next. "One
thread" means one thread pinned to one core (`taskset`, or `sched_setaffinity` before any thread pool is made).
"""


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"


def step_section(found: dict[str, Any]) -> str:
    rows = [
        [
            title if name == "arcta" else "",
            name,
            f"{row['step_ms']:.2f}",
            f"{row['times_ours']:.1f}",
            f"{row['first_step_s']:.1f}",
            f"{row['memory_mib']:.0f}" if row["memory_mib"] is not None else "",
        ]
        for title, contestants in found["steps"].items()
        for name, row in contestants.items()
    ]
    figure, axes = new_figure(-(-len(found["steps"]) // 3), 3, width=11.0, height=2.2)
    for axis, (title, contestants) in zip(axes.flat, found["steps"].items(), strict=False):
        names = list(contestants)[::-1]
        colors = [ACCENT if name == "arcta" else MUTED if name == "floor" else SECOND for name in names]
        axis.barh(names, [contestants[name]["step_ms"] for name in names], color=colors)
        axis.set_xscale("log")
        axis.xaxis.set_minor_formatter("")  # labels between the powers of ten would overlap
        axis.set_xlim(left=0.05)
        axis.set_xlabel("ms a step", fontsize=8)
        axis.set_title(title, fontsize=9)
    figure.savefig(DOCS / "images" / "bench-step.png", dpi=110)
    return (
        "\n## A training step, one thread\n\nLoss, gradient, clipping, Adam. `torch eager` and `torch compile` are the same step, "
        "term by term; `torchsde` and `diffrax` train a latent SDE with the same networks on the same window through a "
        "solver, one path; `floor` is the step's matrix products, its Cholesky factor and triangular solves, forward and backward, "
        "alone. First step: from the built model to the end of the first step, compilation included, on that one core. "
        "MiB: the most that is resident beyond the imports while steps run (model, data, program and what compiling it left).\n\n"
        + table(["model", "", "ms a step", "× ours", "first step, s", "MiB"], rows)
        + "\n![step times](images/bench-step.png)\n\nBy default every one of the R draws is decoded at every observation; "
        "`Training(num_decoded=1)` decodes one: the bound stays unbiased. On frames PyTorch's "
        "convolutions are as fast on a CPU as the matrix products that our video model makes of them, or faster.\n"
    )


def rows_part(found: dict[str, Any]) -> str:
    sizes = sorted(found, key=int)
    rows = [[f"{int(n):,}", f"{found[n]['step_ms']:.2f}", f"{found[n]['resident_mib']:.0f}"] for n in sizes]
    figure, axes = new_figure(1, 2, height=2.6)
    for axis, name, label in zip(axes[0], ("step_ms", "resident_mib"), ("ms a step", "resident MiB"), strict=True):
        axis.plot([int(n) for n in sizes], [found[n][name] for n in sizes], "o-", color=ACCENT)
        axis.set_xscale("log")
        axis.set_ylim(0, 1.3 * max(found[n][name] for n in sizes))
        axis.set_xlabel("rows in the file", fontsize=9)
        axis.set_ylabel(label, fontsize=9)
    figure.savefig(DOCS / "images" / "bench-rows.png", dpi=110)
    return (
        "\n## Rows\n\nOne channel in a .npy file that stays on disk, one thread; reading windows included, files dropped "
        "from the page cache first.\n\n"
        + table(["rows", "ms a step", "resident MiB"], rows)
        + "\n![rows](images/bench-rows.png)\n"
    )


def stiffness_part(found: dict[str, Any]) -> str:
    rows = [[f"× {int(n):,}", f"{row['step_ms']:.3f}"] for n, row in found.items()]
    return "\n## Stiffness\n\nA known drift times a factor.\n\n" + table(["factor", "ms a step"], rows)


def processes_part(found: dict[str, Any]) -> str:
    rows = [
        [
            title,
            f"{row['one_step_ms']:.1f}",
            f"{row['two_step_ms']:.1f}",
            f"{row['speed_up']:.2f}×",
            f"{row['largest_relative_difference_of_losses']:.0e}",
        ]
        for title, row in found.items()
    ]
    head = ["", "one, ms a step", "two, ms a step", "speed-up", "largest relative difference of losses"]
    text = "\n## Two processes\n\nMOCAP's model, 16 windows a step, one thread on one core for each process.\n\n"
    return text + table(head, rows)


def ensemble_part(found: dict[str, Any]) -> str:
    return (
        f"\n## An ensemble of eight\n\nLotka–Volterra, all cores for both: {found['one']['seconds']:.2f} s for one, "
        f"{found['eight']['seconds']:.2f} s for eight: **{found['ratio']:.1f}×** "
        f"({found['ratio_with_compilation']:.1f}× with compilation).\n"
    )


def start_part(found: dict[str, Any]) -> str:
    return (
        "\n## To the first step\n\nFrom the start of the process to the end of the first step, `make demo`'s model: "
        f"{found['without_cache_s']:.1f} s without the compilation cache, {found['with_cache_s']:.1f} s with it.\n"
    )


def forecast_part(found: dict[str, Any]) -> str:
    rows = [[n, f"{r['path_steps_per_second'] / 1e6:.2f} M", f"{r['of_ours']:.2f}"] for n, r in found.items()]
    text = "\n## Forecasts\n\n1,000 paths of 1,000 steps of Heun's scheme, drift 2-64-64-2, one thread.\n\n"
    return text + table(["", "paths × steps a second", "of ours"], rows)


def scale_section(found: dict[str, Any]) -> str:
    parts = {
        "rows": rows_part,
        "stiffness": stiffness_part,
        "processes": processes_part,
        "ensemble": ensemble_part,
        "start": start_part,
        "forecast": forecast_part,
    }
    return "".join(part(found[name]) for name, part in parts.items() if name in found)


def accuracy_section(found: dict[str, Any]) -> str:
    rows = []
    for name, budgets in found["accuracy"].items():
        for i, (steps, runs) in enumerate(budgets.items()):
            seconds, errors = ([run[key] for run in runs] for key in ("seconds", "mse"))
            spread = f"{mean(errors):.1f} ({min(errors):.1f} … {max(errors):.1f})"
            rows.append(["" if i else name, steps, f"{mean(seconds):.1f}", spread])
    return (
        "\n## Time to accuracy, MOCAP\n\nOne thread. The mean squared error of forecasts of the validation sequences from their "
        f"first three frames, after trainings of two lengths; mean of {found['settings']['seeds']} seeds, and the range. The "
        "rival's drift and decoder are the same; it is trained through a solver, with the true bound and with the KL weight of "
        "ours. (Lotka–Volterra: docs/studies/lotka-volterra.md.)\n\n"
        + table(["", "steps", "seconds", "validation MSE"], rows)
    )


def tricks_section(found: dict[str, Any]) -> str:
    rows = [
        ["" if i else trick, "" if i else f"`{row['where']}`", title, f"{row['step']:.2f}", f"{row['first_step']:.2f}"]
        for trick, titles in found["tricks"].items()
        for i, (title, row) in enumerate(titles.items())
    ]
    return (
        "\n## What the tricks are worth\n\nWhat is there for speed alone, against the plain way in its place: time without it / "
        "time with it, one thread. Models as in the first table; `default model` is `LatentSDE()` on the demo's data.\n\n"
        + table(["trick", "where", "model", "step", "first step"], rows)
    )


def refine_section(found: dict[str, Any]) -> str:
    rows = []
    for family in dict.fromkeys(row["family"] for row in found["rows"]):
        part = [row for row in found["rows"] if row["family"] == family]

        def each(name: str, part: list[dict[str, Any]] = part) -> list[float]:
            return [row["refined"][name] / row["encoder"][name] for row in part]

        def both(name: str, part: list[dict[str, Any]] = part) -> str:
            return " → ".join(
                f"{100 * mean(row[posterior][name] for row in part):.0f} %" for posterior in ("encoder", "refined")
            )

        ratios = (each(name) for name in ("forecast_rmse", "smooth_rmse"))
        errors = (f"{mean(ratio):.2f} ({min(ratio):.2f} … {max(ratio):.2f})" for ratio in ratios)
        rows.append([family, *errors, both("coverage_50%"), both("coverage_90%")])
    return (
        "\n## Refined states\n\nWhat `refine=True` changes, defaults otherwise: errors against the truth, refined / the encoder's "
        "(mean and range over samplings and two development data sets), and the observations inside forecasts' bands.\n\n"
        + table(["family", "forecast", "smooth", "inside 50 %", "inside 90 %"], rows)
    )


def main() -> None:
    sections = {
        "step": step_section,
        "tricks": tricks_section,
        "accuracy": accuracy_section,
        "scale": scale_section,
        "refine": refine_section,
    }
    text = HEAD
    for name, section in sections.items():
        path = HERE / "results" / f"{name}.json"
        if path.is_file():
            found = json.loads(path.read_text())
            text += section(found) + f"\nMachine: {found['machine']}.\n"
    (DOCS / "images").mkdir(exist_ok=True)
    (DOCS / "benchmarks.md").write_text(text)


if __name__ == "__main__":
    main()
