"""The paper's Table 1, measured: time and memory of one gradient against length, stiffness and number of series.

System: a limit cycle, ż = ω J z + κ (1 − ‖z‖²) z, observed every 0.1 with noise 0.05; its path is the same circle for every κ,
its stiffness is not. One gradient of each method's loss on it with respect to everything it learns: ARCTA from one window of
M = 64 (R = S = 10); the rivals from all of the data, as they must be unless it is cut into pieces. Time: the median of
repeats; ARCTA's sizes are timed in turn, round after round. Memory: what XLA sets aside for the compiled gradient, data
apart. Rivals run in a process of their own and are stopped after five minutes.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import time
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

import arcta
from arcta.data.batches import TrainingData
from arcta.model.spec import LatentSDE
from arcta.outside.study import Study, markdown
from arcta.predict.figures import ACCENT, MUTED, SECOND, new_figure
from arcta.rivals.baselines import NeuralODE, SolvedSDE, recipe
from arcta.runtime.compile import compiler_options
from arcta.training.prepare import Recipe, prepare

LIMIT, LATE = 300.0, "more than 5 minutes"
STEP, NOISE = 0.1, 0.05
SWEEPS: dict[str, tuple[int, ...]] = {
    "length": (100, 1_000, 10_000, 100_000),
    "series": (1, 10, 100, 1_000),
    "stiffness": (1, 10, 100, 1_000, 10_000),
}
QUICK: dict[str, tuple[int, ...]] = {"length": (100, 1_000)}
RIVALS = ("deterministic adjoint", "stochastic adjoint", "backprop through the solver")
COLORS = dict(zip(("ARCTA", *RIVALS), (ACCENT, SECOND, "#8c2a3a", MUTED), strict=True))

TRAINING = arcta.Training(num_draws=10, num_times=10, kl_ramp=0.0)


def cycle(t: Any, z: Any, p: Any, u: Any) -> list[Any]:
    """ω J z + κ (1 − ‖z‖²) z."""
    pull = p["kappa"] * (1 - z[0] ** 2 - z[1] ** 2)
    return [pull * z[0] - p["omega"] * z[1], pull * z[1] + p["omega"] * z[0]]


def data(sweep: str, size: int) -> tuple[list[arcta.Series], float]:
    """Noisy circles, and κ."""
    count, length = {"length": (1, size), "stiffness": (1, 300), "series": (size, 100)}[sweep]
    rng = np.random.default_rng(0)
    times = STEP * np.arange(length)
    phases = rng.uniform(0, 2 * np.pi, count)
    paths = [np.stack([np.cos(times + a), np.sin(times + a)], axis=1) for a in phases]
    noisy = [arcta.Series(times, x + NOISE * rng.standard_normal(x.shape), name=f"s{i}") for i, x in enumerate(paths)]
    return noisy, float(size) if sweep == "stiffness" else 1.0


def parameters(kappa: float) -> dict[str, Any]:
    return {
        "omega": arcta.LogNormal(1.0, 1.0, start_spread=0.01),
        "kappa": arcta.LogNormal(kappa, 1.0, start_spread=0.01),
    }


def gradient(loss: Any, model: Any, data: TrainingData) -> Any:
    """The compiled gradient of a loss as a function of (weights, data, step)."""
    flat, unravel = ravel_pytree(eqx.filter(model, eqx.is_inexact_array))
    static = eqx.filter(model, eqx.is_inexact_array, inverse=True)

    def slope(flat: Any, data: TrainingData, step: Any) -> Any:
        def value(flat: Any) -> Any:
            return loss(
                eqx.combine(unravel(flat), static), data, step, key=jax.random.fold_in(jax.random.key(0), step)
            )[0]

        return jax.grad(value)(flat)

    compiled = (
        jax.jit(slope).lower(flat, data, jnp.asarray(0)).compile(compiler_options=compiler_options(thorough=False))
    )
    return flat, compiled


def seconds(flat: Any, compiled: Any, data: TrainingData, step: int, repeats: int = 1) -> float:
    began = time.perf_counter()
    jax.block_until_ready([compiled(flat, data, jnp.asarray(step + i)) for i in range(repeats)])
    return (time.perf_counter() - began) / repeats


def ours(study: Study, sweep: str) -> dict[str, Any]:
    """ARCTA at every size of a sweep, timed in turn."""
    sizes, ready = (QUICK if study.quick else SWEEPS)[sweep], []
    for size in sizes:
        series, kappa = data(sweep, size)
        # What is read off the data (scales, first noise) is fixed, so that sizes differ in the amount of data alone.
        spec = LatentSDE(
            decoder="identity",
            encoder="window",
            lookahead=0,
            noise=NOISE,
            drift=cycle,
            parameters=parameters(kappa),
            partition_size=64,
            kernel_sizes=(32, 32),
            posterior="amortised",
        )
        found = prepare(spec, series, TRAINING, key=jax.random.key(0), recipe=Recipe(warm=False))
        windows = found.data
        ready.append((*gradient(found.objective, found.state.model, windows), windows))
    rounds: list[list[float]] = []
    for turn in range(20 if study.quick else 200):
        rounds.append([seconds(flat, compiled, windows, 10 * turn, repeats=10) for flat, compiled, windows in ready])
    medians = np.median(np.array(rounds[10:]), axis=0)
    memory = [compiled.memory_analysis().temp_size_in_bytes for _, compiled, _ in ready]
    return {
        "sizes": sizes,
        "seconds": medians.tolist(),
        "bytes": memory,
        "time_spread": float(medians.max() / medians.min() - 1),
        "memory_spread": max(memory) / min(memory) - 1,
    }


def rival(method: str, sweep: str, size: int) -> None:
    """One gradient of a rival: its memory and then its time as lines of JSON. Runs in a process of its own."""
    series, kappa = data(sweep, size)
    length = len(series[0])
    steps = max(4096, 40 * length)
    if sweep == "stiffness":
        steps = int(4096 + 20 * kappa * length * STEP)
    shared = {"partition_size": length, "noise": NOISE, "max_steps": steps}
    if method == "stochastic adjoint":
        substeps = max(2, int(np.ceil(4 * kappa * STEP)))
        rival = SolvedSDE(decoder="identity", substeps=substeps, **shared)
    else:
        rival = NeuralODE(gradient="backprop" if method.startswith("backprop") else "adjoint", **shared)
    spec = LatentSDE(
        decoder="identity",
        encoder="window",
        lookahead=0,
        noise=NOISE,
        drift=cycle,
        parameters=parameters(kappa),
        partition_size=length,
    )
    training = arcta.Training(batch_size=len(series), kl_ramp=0.0)
    ready = prepare(spec, series, training, key=jax.random.key(0), recipe=recipe(rival, key=jax.random.key(0)))
    windows = ready.data
    flat, compiled = gradient(ready.objective, ready.state.model, windows)
    print(json.dumps({"bytes": compiled.memory_analysis().temp_size_in_bytes}), flush=True)
    seconds(flat, compiled, windows, 0)
    times = [seconds(flat, compiled, windows, 0)]
    while len(times) < 5 and sum(times) < 20:
        times.append(seconds(flat, compiled, windows, 0))
    finite = bool(np.isfinite(np.asarray(compiled(flat, windows, jnp.asarray(0)))).all())
    print(json.dumps({"seconds": float(np.median(times)), "outcome": "done" if finite else "not finite"}), flush=True)


def theirs(method: str, sweep: str, size: int) -> dict[str, Any]:
    """Time and memory of a rival's gradient, or that it took longer than the limit."""
    command = [sys.executable, __file__, method, sweep, str(size)]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
        lines, outcome = ended.stdout, f"failed: {ended.stderr.strip()[-200:]}"
    except subprocess.TimeoutExpired as late:
        lines = late.stdout.decode() if isinstance(late.stdout, bytes) else late.stdout or ""
        outcome = LATE
    found: dict[str, Any] = {"outcome": outcome}
    for line in lines.splitlines():
        found |= json.loads(line)
    return found


def figure(mine: dict[str, dict[str, Any]], rows: list[dict[str, Any]]) -> Any:
    drawn, axes = new_figure(2, len(mine), width=4.4 * len(mine), height=3.2)
    names = {"length": "points in the series", "stiffness": "stiffness", "series": "number of series"}
    for column, (sweep, own) in enumerate(mine.items()):
        for row, (what, scale, unit) in enumerate(
            (("seconds", 1e3, "time of one gradient [ms]"), ("bytes", 1e-6, "memory [MB]"))
        ):
            axis = axes[row][column]
            axis.plot(
                own["sizes"], scale * np.array(own[what]), "o-", color=ACCENT, linewidth=2, markersize=4, label="ARCTA"
            )
            for method in RIVALS:
                part = [r for r in rows if r["method"] == method and r["sweep"] == sweep and r.get(what) is not None]
                points = ([r["size"] for r in part], [scale * r[what] for r in part])
                axis.plot(*points, "s-", color=COLORS[method], markersize=4, label=method)
            axis.set_xscale("log")
            axis.set_yscale("log")
            axis.set_xlabel(names[sweep], fontsize=9)
            if column == 0:
                axis.set_ylabel(unit, fontsize=9)
    axes[0][0].legend(frameon=False, fontsize=7)
    return drawn


def run(study: Study) -> None:
    sweeps = QUICK if study.quick else SWEEPS
    settings = {"step": STEP, "noise": NOISE, "sweeps": sweeps, "limit": LIMIT, "quick": study.quick}
    own = study.measure([{"sweep": sweep} for sweep in sweeps], functools.partial(ours, study), settings)
    methods = RIVALS[2:] if study.quick else RIVALS
    rows: list[dict[str, Any]] = []
    for sweep, sizes in sweeps.items():
        late: set[str] = set()
        for size in sizes[:1] if study.quick else sizes:
            jobs = [{"method": method, "sweep": sweep, "size": size} for method in methods if method not in late]
            rows += study.measure(jobs, theirs, {**settings, "who": "rivals"})
            rows += [
                {"method": m, "sweep": sweep, "size": size, "outcome": "a smaller one took too long"} for m in late
            ]
            late |= {row["method"] for row in rows if row["sweep"] == sweep and row.get("outcome") == LATE}
    mine = {row["sweep"]: row for row in own}
    table = []
    for sweep, sizes in sweeps.items():
        for i, size in enumerate(sizes):
            cells = {"sweep": sweep, "size": f"{size:,}"}
            cells["ARCTA"] = f"{1e3 * mine[sweep]['seconds'][i]:.2f} ms, {mine[sweep]['bytes'][i] / 1e6:.2f} MB"
            for method in methods:
                found = [r for r in rows if (r["method"], r["sweep"], r["size"]) == (method, sweep, size)]
                cells[method] = "–" if not found else _cell(found[0])
            table.append(cells)
    spread = [
        {
            "sweep": s,
            "ARCTA's time varies by": f"{100 * r['time_spread']:.1f} %",
            "memory by": f"{100 * r['memory_spread']:.1f} %",
        }
        for s, r in mine.items()
    ]
    study.save_figure("complexity", figure(mine, rows))
    study.finish({"table": table, "spread": spread}, {"costs": markdown(table), "flat": markdown(spread)})


def _cell(row: dict[str, Any]) -> str:
    memory = "" if row.get("bytes") is None else f", {row['bytes'] / 1e6:.2f} MB"
    if row.get("seconds") is None:
        return str(row.get("outcome", row.get("error"))) + memory
    note = "" if row["outcome"] == "done" else f" ({row['outcome']})"
    return f"{1e3 * row['seconds']:.4g} ms{memory}{note}"


if __name__ == "__main__":
    rival(sys.argv[1], sys.argv[2], int(sys.argv[3]))
