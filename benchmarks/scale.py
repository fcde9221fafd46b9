# pyright: reportMissingImports=false
"""What the amount of data, its stiffness, processes, ensembles and long forecasts cost.

    python benchmarks/scale.py                                 # `make bench` stores it in benchmarks/results/scale.json
    python benchmarks/scale.py --only rows processes           # some of it

- rows: a step on files of 10³ … 10⁹ rows of one channel (float32 .npy, generated, dropped from the page cache), repeats in turns;
  resident memory after 300 steps in a process for each.
- stiffness: a step with a known drift multiplied by 1 … 10⁴, repeats in turns.
- processes: one process and two, one thread on one core each, MOCAP's model and 16 windows a step, in turns.
- ensemble: Lotka–Volterra, one model and eight, each with all cores.
- start: from the start of a process to the end of the first step of `make demo`'s model, without and with the compilation cache.
- forecast: paths × steps per second of a drift 2-64-64-2 by Heun's scheme, against diffrax and torchsde.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__)
SIZES = tuple(10**k for k in range(3, 10))
ONE_THREAD = {
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
}


def in_turns(runs: dict[Any, Callable[[], None]], repeats: int) -> dict[Any, dict[str, Any]]:
    """Median and quartiles of seconds, all contestants once in each repeat."""
    times: dict[Any, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            clock = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - clock)
    return {
        name: {"seconds": float(np.median(values)), "quartiles": np.quantile(values, [0.25, 0.75]).tolist()}
        for name, values in times.items()
    }


def generate(folder: Path, rows: int) -> Path:
    """A noisy, slowly changing wave, written a million rows at a time."""
    path = folder / f"{rows}.npy"
    if path.exists():
        return path
    rng = np.random.default_rng(0)
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (rows,)})
        for first in range(0, rows, 10**6):
            t = 0.1 * np.arange(first, min(first + 10**6, rows))
            wave = np.sin(t * (1 + 1e-9 * t)) + 0.1 * rng.standard_normal(len(t), dtype=np.float32)
            file.write(wave.astype("<f4").tobytes())
        file.flush()
        os.fsync(file.fileno())
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return path


def fed(path: Path) -> Callable[[int], None]:
    """A function that takes some steps on a file."""
    import jax
    import jax.numpy as jnp

    import arcta
    from arcta.data.batches import Slots
    from arcta.data.store import Feed
    from arcta.training.loop import advance
    from arcta.training.prepare import Recipe, prepare

    spec = arcta.LatentSDE(
        posterior="amortised", encoder="window", latent_size=2, decoder="linear", partition_size=128, lookahead=2
    )
    data = arcta.store(path, step=0.1)
    training = arcta.Training(steps=10**6, num_draws=4, num_times=16)
    ready = prepare(spec, data.sample(), training, key=jax.random.key(0), recipe=Recipe(warm=False))
    state, objective = [ready.state], ready.objective
    slots = Slots.over(data.num_partitions(128), 1)
    feed = Feed(data, ready.layout.scaling, ready.shape, slots, observed=float(len(data)), seed=0, steps=50)

    def run(count: int) -> None:
        for _ in range(count // 50):
            now = int(state[0].step)
            stop = jnp.asarray(now + 50, jnp.int32)
            state[0], _, _ = jax.block_until_ready(advance(objective, training, state[0], feed.at(now), stop))

    return run


def rows_child(path: str) -> None:
    run = fed(Path(path))
    run(300)
    status = Path("/proc/self/status").read_text().splitlines()
    print(next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) / 1024)


def rows(repeats: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        files = {size: generate(Path(name), size) for size in SIZES}
        memory = {size: float(child("rows", str(path))[-1]) for size, path in files.items()}
        for path in files.values():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        found = json.loads(child("rows-times", name, str(repeats))[-1])
    for size in SIZES:
        found[str(size)]["resident_mib"] = memory[size]
    return found


def rows_times_child(folder: str, repeats: str) -> None:
    steppers = {size: fed(Path(folder) / f"{size}.npy") for size in SIZES}
    for run in steppers.values():
        run(100)
    times = in_turns({size: lambda run=run: run(400) for size, run in steppers.items()}, int(repeats))
    print(json.dumps({size: {"step_ms": 2.5 * row["seconds"], **row} for size, row in times.items()}))


def stiffness_child(repeats: str) -> None:
    import jax

    import arcta
    from arcta.training.loop import advance
    from arcta.training.prepare import Recipe, prepare

    training = arcta.Training(steps=10**6, learning_rate=1e-9, num_draws=4, num_times=16)
    data, runs = [arcta.datasets.lotka_volterra()], {}
    for factor in (1, 10, 100, 1000, 10_000):

        def drift(t: Any, z: Any, p: Any, u: Any, factor: float = float(factor)) -> Any:
            return [factor * z[0] * (1 - z[1]), -factor * z[1] * (1 - z[0])]

        spec = arcta.LatentSDE(
            posterior="amortised", decoder="identity", encoder="window", lookahead=0, drift=drift, partition_size=128
        )
        ready = prepare(spec, data, training, key=jax.random.key(0), recipe=Recipe(warm=False))
        objective, windows, holder = ready.objective, ready.data, [ready.state]

        def run(objective: Any = objective, holder: list[Any] = holder, windows: Any = windows) -> None:
            holder[0], _, _ = jax.block_until_ready(
                advance(objective, training, holder[0], windows, holder[0].step + 100)
            )

        run()
        runs[factor] = run
    times = in_turns(runs, int(repeats))
    print(json.dumps({size: {"step_ms": 10 * row["seconds"], **row} for size, row in times.items()}))


def processes_child(repeats: str, decoded: str) -> None:
    """In turns, the first process alone with all sixteen windows, and both with eight each: the machine's own pace changes by the
    minute."""
    import arcta
    from arcta.outside.cli.train import run_as_batch_work
    from arcta.training import parallel

    run_as_batch_work()
    parallel.connect()
    spec = arcta.LatentSDE(posterior="amortised",
        latent_size=6, encoder="window", decoder="mlp", lookahead=2, partition_size=298, encoder_sizes=(30, 30, 15),
        decoder_sizes=(15, 30, 30), drift="plain", drift_sizes=(30,), kernel_sizes=(32,), activation="tanh", rotation=False,
    )  # fmt: skip
    rng = np.random.default_rng(0)
    times = 0.1 * np.arange(300)
    waves = np.sin(times[:, None] + rng.uniform(0, 2 * np.pi, (16, 1, 50))) + 0.1 * rng.standard_normal((16, 300, 50))
    data = [arcta.Series(times, values, name=str(i)) for i, values in enumerate(waves)]
    training = arcta.Training(
        steps=80,
        batch_size=16,
        num_draws=10,
        num_times=10,
        num_decoded=int(decoded),
        log_every=20,
        checkpoint_every=10**6,
    )
    chunks: dict[str, list[float]] = {"one": [], "two": []}
    losses: dict[str, list[float]] = {}
    for _ in range(int(repeats)):
        for name, several in (("one", None), ("two", "all")):
            if name == "two" or parallel.is_first():
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    fit = arcta.fit(spec, data, training=training, devices=several, progress=False)
                chunks[name].extend(np.diff([row["seconds"] for row in fit.history]) / 20)
                losses[name] = [row["loss"] for row in fit.history]
    print(json.dumps({"seconds": chunks, "losses": losses}))


def processes(repeats: int) -> dict[str, Any]:
    """One process and two, a core each; every draw decoded, as in the paper, and one."""
    found = {}
    for title, decoded in (("all draws decoded", "10"), ("one draw decoded", "1")):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            job = {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{free.getsockname()[1]}", "JAX_NUM_PROCESSES": "2"}
        pair = [
            spawn("processes", str(repeats), decoded, core=core, **job, JAX_PROCESS_ID=str(i))
            for i, core in enumerate(sorted(os.sched_getaffinity(0))[:2])
        ]
        said = [process.communicate()[0].splitlines()[-1] for process in pair]
        first = json.loads(said[0])
        one, two = (1e3 * float(np.median(first["seconds"][name])) for name in ("one", "two"))
        difference = np.max(np.abs(np.array(first["losses"]["two"]) / np.array(first["losses"]["one"]) - 1))
        found[title] = {
            "one_step_ms": one,
            "two_step_ms": two,
            "speed_up": one / two,
            "largest_relative_difference_of_losses": float(difference),
        }
    return found


def ensemble_child(count: str) -> None:
    import dataclasses

    import arcta
    from arcta.outside import demo

    train, _ = demo.data()
    training = dataclasses.replace(demo.TRAINING, validate_every=10**6, log_every=200)
    fit = arcta.fit(demo.MODEL, train, training=training, ensemble=int(count), progress=False)
    print(json.dumps({"seconds": fit.seconds, "with_compilation": fit.seconds + fit.compile_seconds}))


def ensemble(repeats: int) -> dict[str, Any]:
    found: dict[str, list[dict[str, float]]] = {"one": [], "eight": []}
    for _ in range(repeats):
        for name, count in (("one", "1"), ("eight", "8")):
            found[name].append(json.loads(child("ensemble", count, pinned=False)[-1]))
    medians = {name: {k: float(np.median([run[k] for run in runs])) for k in runs[0]} for name, runs in found.items()}
    return {
        **medians,
        "ratio": medians["eight"]["seconds"] / medians["one"]["seconds"],
        "ratio_with_compilation": medians["eight"]["with_compilation"] / medians["one"]["with_compilation"],
    }


def start_child(began: str, cache: str) -> None:
    import dataclasses

    import jax

    import arcta
    from arcta.outside import demo
    from arcta.training import loop

    os.environ["ARCTA_CACHE"] = cache or "off"
    ends: list[float] = []
    advance = loop.advance

    def timed(*arguments: Any) -> Any:
        out = jax.block_until_ready(advance(*arguments))
        ends.append(time.time())
        return out

    loop.advance = timed
    arcta.fit(demo.MODEL, demo.data()[0], training=dataclasses.replace(demo.TRAINING, steps=1), progress=False)
    print(ends[1] - float(began))  # the first call compiles and takes no step


def start(repeats: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as cache:
        child("start", str(time.time()), cache, pinned=False)
        cold = [float(child("start", str(time.time()), "", pinned=False)[-1]) for _ in range(repeats)]
        warm = [float(child("start", str(time.time()), cache, pinned=False)[-1]) for _ in range(repeats)]
    return {"without_cache_s": float(np.median(cold)), "with_cache_s": float(np.median(warm))}


def forecast_child(repeats: str) -> None:
    import diffrax
    import equinox as eqx
    import jax
    import jax.numpy as jnp
    import torch
    import torchsde

    import arcta
    from arcta.model.build import build
    from arcta.model.reading import read_data
    from arcta.predict.solve import make_grids, plan, walk

    count, steps, h = 1000, 1000, 0.01
    torch.set_num_threads(1)
    spec = arcta.LatentSDE(
        posterior="amortised",
        latent_size=2,
        decoder="linear",
        encoder="window",
        drift="plain",
        drift_sizes=(64, 64),
        activation="tanh",
        noise="learned",
    )
    data = [arcta.datasets.lotka_volterra()]
    layout, reading = read_data(spec, data)
    model = build(spec, layout, reading, key=jax.random.key(0))
    draws = jax.vmap(lambda k: model.draw(key=k))(jax.random.split(jax.random.key(1), count))
    initial = jnp.zeros((count, 2))
    times = h * np.arange(1, steps + 1)
    grids = make_grids(0.0, times, plan(times, h), np.zeros(0), np.zeros((0, 0)))

    def ours() -> None:
        for states in walk(model, draws, initial, grids, layout.scaling, key=jax.random.key(2)):
            states.block_until_ready()

    times = h * jnp.arange(1, steps + 1)

    @eqx.filter_jit
    def with_diffrax(key: Any) -> Any:
        def one(z: Any, key: Any) -> Any:
            path = diffrax.UnsafeBrownianPath(shape=(2,), key=key)
            terms = diffrax.MultiTerm(
                diffrax.ODETerm(lambda t, z, _: model.drift(jnp.asarray(t), z, jnp.zeros(0), {})),
                diffrax.ControlTerm(lambda t, z, _: 0.1 * jnp.eye(2), path),
            )
            return diffrax.diffeqsolve(
                terms, diffrax.Heun(), 0.0, steps * h, h, z, saveat=diffrax.SaveAt(ts=times), adjoint=diffrax.DirectAdjoint(),
                max_steps=steps + 1, throw=False,
            ).ys  # fmt: skip

        return jax.vmap(one)(initial, jax.random.split(key, count))

    class Field(torch.nn.Module):
        noise_type, sde_type = "diagonal", "stratonovich"

        def __init__(self) -> None:
            super().__init__()
            nn = torch.nn
            self.net = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))

        def f(self, t: Any, z: Any) -> Any:
            return self.net(z)

        def g(self, t: Any, z: Any) -> Any:
            return torch.full_like(z, 0.1)

    field, at = Field(), torch.linspace(h, steps * h, steps)

    def with_torchsde() -> None:
        with torch.no_grad():
            torchsde.sdeint(field, torch.zeros(count, 2), at, dt=h, method="heun")

    runs = {
        "arcta": ours,
        "diffrax": lambda: jax.block_until_ready(with_diffrax(jax.random.key(3))),
        "torchsde": with_torchsde,
    }
    for run in runs.values():
        run()
    found = in_turns(runs, int(repeats))
    rates = {name: count * steps / row["seconds"] for name, row in found.items()}
    print(
        json.dumps(
            {name: {"path_steps_per_second": rate, "of_ours": rate / rates["arcta"]} for name, rate in rates.items()}
        )
    )


def spawn(name: str, *words: str, core: int | None = None, **environment: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(HERE), "--child", name, *words]
    settings = {**os.environ, **({} if core is None else ONE_THREAD), **environment}
    if core is not None:
        command = ["taskset", "-c", str(core), *command]
    return subprocess.Popen(command, env=settings, stdout=subprocess.PIPE, text=True)


def child(name: str, *words: str, core: int | None = None, pinned: bool = True) -> list[str]:
    """What a process of its own prints, on one core with one thread unless told otherwise."""
    chosen = sorted(os.sched_getaffinity(0))[-1] if core is None and pinned else core
    process = spawn(name, *words, core=chosen)
    said = process.communicate()[0].splitlines()
    if process.returncode:
        raise RuntimeError(f"the measurement '{name}' failed")
    return said


PARTS: dict[str, Callable[[int], Any]] = {
    "rows": rows,
    "stiffness": lambda repeats: json.loads(child("stiffness", str(repeats))[-1]),
    "processes": processes,
    "ensemble": ensemble,
    "start": start,
    "forecast": lambda repeats: json.loads(child("forecast", str(repeats))[-1]),
}
REPEATS = {"rows": 25, "stiffness": 25, "processes": 9, "ensemble": 3, "start": 3, "forecast": 5}
CHILDREN: dict[str, Callable[..., None]] = {
    "rows": rows_child,
    "rows-times": rows_times_child,
    "stiffness": stiffness_child,
    "processes": processes_child,
    "ensemble": ensemble_child,
    "start": start_child,
    "forecast": forecast_child,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        CHILDREN[options.child[0]](*options.child[1:])
        return
    from arcta.outside.study import machine

    result: dict[str, Any] = json.loads(options.out.read_text()) if options.out and options.out.exists() else {}
    result |= {"machine": machine(), "settings": {"repeats": REPEATS, "seed": 0}}
    for name in options.only:
        result[name] = PARTS[name](REPEATS[name])
        print(name, json.dumps(result[name], indent=1), flush=True)
        if options.out is not None:
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
