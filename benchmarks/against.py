"""Training steps of this checkout against those of another, in turns in one run: one thread on one core, medians.

    git worktree add /tmp/other REVISION
    python benchmarks/against.py /tmp/other --out benchmarks/results/against.json

Both need the packages of `make bench`. Each checkout takes its steps in a process of its own, through its own benchmarks/step.py.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parents[1]
DEFAULT = "default model"
TITLES = (
    "MOCAP, one draw decoded",
    "MOCAP, all ten draws decoded",
    "Lotka–Volterra, the paper's",
    "Lotka–Volterra, ours",
    "Lorenz",
    DEFAULT,
    "video",
)
CALL = 50  # steps, as in training


def child(checkout: str, title: str) -> None:
    """Take a call's steps for each line on standard input, and print the milliseconds a step took."""
    import runpy

    step = runpy.run_path(str(Path(checkout) / "benchmarks" / "step.py"))
    import arcta

    if title == DEFAULT:
        spec, data = arcta.LatentSDE(lookahead=0), [arcta.datasets.lotka_volterra()]
        run = step["ours"](spec, data, arcta.Training(steps=100_000))
    else:
        run = step["cases"]()[title]["arcta"]()
    run(CALL)
    print("ready", flush=True)
    for line in sys.stdin:
        calls = int(line)
        clock = time.perf_counter()
        for _ in range(calls):
            run(CALL)
        print(1e3 * (time.perf_counter() - clock) / (calls * CALL), flush=True)


def launch(checkout: Path, title: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": f"{checkout}{os.pathsep}{checkout / 'benchmarks'}"}
    command = [sys.executable, str(HERE / "benchmarks" / "against.py"), "--child", str(checkout), title]
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def ask(process: subprocess.Popen[str], text: str = "") -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    if text:
        process.stdin.write(text + "\n")
        process.stdin.flush()
    return process.stdout.readline().strip()


def measure(other: Path, title: str, repeats: int) -> dict[str, Any]:
    processes = {"other": launch(other, title), "this": launch(HERE, title)}
    for name, process in processes.items():
        if ask(process) != "ready":
            raise RuntimeError(f"{title}: the {name} checkout takes no steps")
    calls = max(1, int(1000 / (CALL * float(ask(processes["this"], "1")))))
    times: dict[str, list[float]] = {name: [] for name in processes}
    for _ in range(repeats):
        for name, process in processes.items():
            times[name].append(float(ask(process, str(calls))))
    for process in processes.values():
        process.terminate()
    found = {name: float(np.median(values)) for name, values in times.items()}
    ratios = np.array(times["this"]) / np.array(times["other"])
    return {"other_ms": found["other"], "this_ms": found["this"], "ratio": float(np.median(ratios))}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("other", nargs="?", type=Path)
    parser.add_argument("--only", nargs="*", default=TITLES)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", nargs=2)
    options = parser.parse_args()
    if options.child:
        child(*options.child)
        return
    rows = {}
    for title in options.only:
        rows[title] = measure(options.other.resolve(), title, options.repeats)
        print(f"{title:<30} " + "  ".join(f"{k} {v:.3f}" for k, v in rows[title].items()), flush=True)
    if options.out is not None:
        options.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
