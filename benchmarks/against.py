"""Training steps of this checkout against those of another: their times, in turns in one run, and their losses.

    git worktree add /tmp/other REVISION
    python benchmarks/against.py /tmp/other             # times: one thread on one core, medians
    python benchmarks/against.py /tmp/other --losses    # the first twenty losses of `arcta.fit`, in double precision

Both checkouts need the packages of `make bench`. Each takes its steps in a process of its own, through its own benchmarks/step.py.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
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
LOSSES = 20


def make(checkout: Path, title: str, use: Callable[..., Any] | None = None) -> Any:
    """What `ours` of a checkout's benchmarks/step.py, or `use` in its place, makes of a model, its data and its training."""
    import runpy

    step = runpy.run_path(str(checkout / "benchmarks" / "step.py"))
    import arcta

    ours = step["ours"] if use is None else use
    if title == DEFAULT:
        spec, data = arcta.LatentSDE(lookahead=0), [arcta.datasets.lotka_volterra()]
        return ours(spec, data, arcta.Training(steps=100_000))
    step["cases"].__globals__["ours"] = ours
    return step["cases"]()[title]["arcta"]()


def take_steps(run: Callable[[int], None]) -> None:
    """A call's steps for each line on standard input, and the milliseconds that a step took on standard output; at first the
    seconds to the first of them."""
    clock = time.perf_counter()
    run(1)
    print(time.perf_counter() - clock, flush=True)
    run(CALL)
    for line in sys.stdin:
        calls = int(line)
        clock = time.perf_counter()
        for _ in range(calls):
            run(CALL)
        print(1e3 * (time.perf_counter() - clock) / (calls * CALL), flush=True)


def losses(spec: Any, data: Any, training: Any) -> list[float]:
    import arcta

    short = dataclasses.replace(training, steps=LOSSES, log_every=1)
    return [row["loss"] for row in arcta.fit(spec, data, training=short, progress=False).history]


def launch(checkout: Path, *words: str, **environment: str) -> subprocess.Popen[str]:
    paths = os.pathsep.join(str(path) for path in (checkout, checkout / "benchmarks"))
    return subprocess.Popen(
        [sys.executable, *words],
        env={**os.environ, "PYTHONPATH": paths, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def ask(process: subprocess.Popen[str], text: str = "") -> float:
    assert process.stdin is not None
    assert process.stdout is not None
    if text:
        process.stdin.write(text + "\n")
        process.stdin.flush()
    said = process.stdout.readline().strip()
    if not said:
        raise RuntimeError(f"{process.args} takes no steps")
    return float(said)


def in_turns(processes: Mapping[str, subprocess.Popen[str]], repeats: int) -> dict[str, dict[str, float]]:
    """Milliseconds a step of processes that `take_steps`, about a second each in turns, and seconds to the first step."""
    first = {name: ask(process) for name, process in processes.items()}
    calls = {name: str(max(1, int(1000 / (CALL * ask(process, "1"))))) for name, process in processes.items()}
    times = {name: [] for name in processes}
    for _ in range(repeats):
        for name, process in processes.items():
            times[name].append(ask(process, calls[name]))
    for process in processes.values():
        process.terminate()
    return {name: {"step_ms": float(np.median(each)), "first_step_s": first[name]} for name, each in times.items()}


def compare_times(other: Path, title: str, repeats: int) -> dict[str, float]:
    words = (str(HERE / "benchmarks" / "against.py"), "--title", title)
    found = in_turns({name: launch(path, *words, "--child", str(path)) for name, path in paths(other)}, repeats)
    before, after = found["other"]["step_ms"], found["this"]["step_ms"]
    return {"other_ms": before, "this_ms": after, "ratio": after / before}


def compare_losses(other: Path, title: str) -> dict[str, float]:
    words = (str(HERE / "benchmarks" / "against.py"), "--losses", "--title", title)
    jobs = [launch(path, *words, "--child", str(path), JAX_ENABLE_X64="1") for _, path in paths(other)]
    before, after = (np.array(json.loads(job.communicate()[0].splitlines()[-1])) for job in jobs)
    return {"largest_relative_difference": float(np.max(np.abs(after - before) / np.abs(before)))}


def paths(other: Path) -> list[tuple[str, Path]]:
    return [("other", other), ("this", HERE)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", nargs="?", type=Path)
    parser.add_argument("--only", nargs="*", default=TITLES)
    parser.add_argument("--losses", action="store_true")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--title", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child and options.losses:
        print(json.dumps(make(options.child, options.title, losses)))
    elif options.child:
        take_steps(make(options.child, options.title))
    else:
        rows, other = {}, options.other.resolve()
        for title in options.only:
            rows[title] = (
                compare_losses(other, title) if options.losses else compare_times(other, title, options.repeats)
            )
            print(f"{title:<30} " + "  ".join(f"{k} {v:.3g}" for k, v in rows[title].items()), flush=True)
        if options.out is not None:
            options.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
