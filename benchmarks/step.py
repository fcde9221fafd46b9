# pyright: reportMissingImports=false
"""Time of one training step and of its compilation: ours against PyTorch, solvers and the floor. One thread on one core, repeats
of all contestants in turns, medians.

    python benchmarks/step.py                                  # `make bench` stores it in benchmarks/results/step.json

Models: the paper's MOCAP (M = 298 nodes, R = S = 10, 50 channels, 3 frames) and Lotka–Volterra (M = 256, R = 1, S = 10), our
Lotka–Volterra (M = 128, rotation term), the paper's Lorenz and our video model. Data is random: shapes matter, values do not.
A step is loss, gradient, clipping and Adam; ours has the masks and the choice of a window besides.

- torch eager, torch compile: the same step, term by term (rival_torch.py; the optimiser is eager in both).
- torchsde: a latent SDE on the same window and networks, one path, an Euler step for each observation, stochastic adjoint.
- diffrax: the same by Heun's scheme in JAX (`arcta.baselines.SolvedSDE`), stochastic adjoint and backpropagation.
- memory: the most that is resident beyond the imports while steps run: model, data, program and what compiling it left behind;
  a process for each contestant.
- floor: the step's matrix products, Cholesky factor and triangular solves, forward and backward, and nothing else.
"""

from __future__ import annotations

import os

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[-1]})  # before any thread pool is made

import argparse  # noqa: E402
import dataclasses  # noqa: E402
import itertools  # noqa: E402
import json  # noqa: E402
import runpy  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402
from collections.abc import Callable, Sequence  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from rival_torch import (  # noqa: E402
    FrameDecoder,
    FrameEncoder,
    LorenzDrift,
    NetDrift,
    TorchLatentSDE,
    TorchModel,
    UncertainDrift,
    mlp,
)

import arcta  # noqa: E402
from arcta.data.batches import TrainingData  # noqa: E402
from arcta.model.reading import read_data  # noqa: E402
from arcta.outside.study import machine  # noqa: E402
from arcta.rivals.baselines import SolvedSDE, recipe  # noqa: E402
from arcta.training.loop import advance  # noqa: E402
from arcta.training.prepare import Recipe, prepare  # noqa: E402

torch.set_num_threads(1)
STUDIES = Path(__file__).parents[1] / "studies"
Run = Callable[[int], None]
MOCAP = arcta.LatentSDE(posterior="amortised",
    latent_size=6, encoder="window", decoder="mlp", lookahead=2, partition_size=298, encoder_sizes=(30, 30, 15),
    decoder_sizes=(15, 30, 30), drift="plain", drift_sizes=(30,), kernel_sizes=(32,), activation="tanh", rotation=False,
)  # fmt: skip
PREY = arcta.LatentSDE(posterior="amortised",
    decoder="identity", encoder="window", noise=0.01, lookahead=0, partition_size=256, encoder_sizes=(32, 32), drift="plain",
    drift_sizes=(64, 64, 64), kernel_sizes=(32, 32), activation="relu", rotation=False,
)  # fmt: skip


def waves(count: int, length: int, channels: int) -> list[arcta.Series]:
    rng = np.random.default_rng(0)
    times = 0.1 * np.arange(length)
    phase = rng.uniform(0, 2 * np.pi, (count, channels))
    values = np.sin(times[:, None] + phase[:, None]) + 0.1 * rng.standard_normal((count, length, channels))
    return [arcta.Series(times, value, name=str(i)) for i, value in enumerate(values)]


def stepper(loss: Any, state: Any, windows: TrainingData, training: arcta.Training) -> Run:
    """A function that takes some steps of ours, or of a rival trained by our loop."""
    holder = [state]

    def run(count: int) -> None:
        stop = holder[0].step + count
        holder[0], means, _ = jax.block_until_ready(advance(loss, training, holder[0], windows, stop))
        if not np.isfinite(float(means["loss"])):
            raise FloatingPointError("a step is not finite")

    return run


def ours(spec: arcta.LatentSDE, data: list[arcta.Series], training: arcta.Training) -> Run:
    ready = prepare(spec, data, training, key=jax.random.key(0), recipe=Recipe(warm=False))
    return stepper(ready.objective, ready.state, ready.data, training)


def diffrax(spec: arcta.LatentSDE, data: list[arcta.Series], gradient: Any) -> Run:
    size = spec.partition_size or 298
    rival = SolvedSDE(
        latent_size=6, activation="tanh", partition_size=size, substeps=1, gradient=gradient, max_steps=1024,
        drift_sizes=spec.drift_sizes, decoder_sizes=spec.decoder_sizes,
    )  # fmt: skip
    training = arcta.Training(steps=100_000, learning_rate=1e-4)
    made = recipe(rival, key=jax.random.key(0))
    ready = prepare(rival.specification(), data, training, key=jax.random.key(1), recipe=made)
    return stepper(ready.objective, ready.state, ready.data, training)


def in_torch(model: Any, loss: Callable[[], torch.Tensor]) -> Run:
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3, foreach=True)

    def run(count: int) -> None:
        value = torch.zeros(())
        for _ in range(count):
            optimiser.zero_grad(set_to_none=True)
            value = loss()
            value.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
            optimiser.step()
        if not torch.isfinite(value):
            raise FloatingPointError("a rival's step is not finite")

    return run


def torch_step(spec: arcta.LatentSDE, data: list[arcta.Series], training: arcta.Training, compiled: bool) -> Run:
    torch.manual_seed(0)
    layout, reading = read_data(spec, data)
    channels, latent, size = len(layout.channels), reading.latent_size, layout.partition_size
    frame = int(layout.frame_shape[0]) if layout.frame_shape else 0
    around = channels * (spec.lookahead + 1)
    layers = (spec.drift_sizes, spec.activation)
    if callable(spec.drift):
        drift = LorenzDrift(float(layout.scaling.scale[0]))
    else:
        drift = NetDrift(latent, *layers) if spec.drift == "plain" else UncertainDrift(latent, *layers)
    decoder = None if spec.decoder == "identity" else mlp((latent, *spec.decoder_sizes, channels), spec.activation)
    model = TorchModel(
        channels=channels, latent=latent, lookahead=spec.lookahead, drift=drift, kernel=spec.kernel_sizes,
        encoder=FrameEncoder(spec.lookahead + 1, frame, 2 * latent) if frame
        else mlp((around, *spec.encoder_sizes, 2 * latent), spec.activation),
        decoder=FrameDecoder(latent, frame) if frame else decoder, activation=spec.activation, pixels=bool(frame),
        noise=0.01 if spec.decoder == "identity" else None, rotation=spec.rotation, num_decoded=training.num_decoded,
    )  # fmt: skip
    count, rows = training.batch_size, size + spec.lookahead
    times = torch.linspace(-1, 1, size).expand(count, -1)
    values = torch.stack(
        [torch.tensor(data[0].values[i * size : i * size + rows], dtype=torch.float32) for i in range(count)]
    )
    step = torch.compile(model.step_loss) if compiled else model.step_loss
    return in_torch(model, lambda: step(times, values, training.num_draws, training.num_times))


def torchsde_step(spec: arcta.LatentSDE, series: arcta.Series) -> Run:
    torch.manual_seed(0)
    sizes = {"drift": spec.drift_sizes, "decoder": spec.decoder_sizes, "activation": spec.activation}
    model = TorchLatentSDE(len(series.channels), spec.latent_size or 1, **sizes)
    size = spec.partition_size or 0
    times, values = torch.linspace(0, 1, size), torch.tensor(series.values[:size], dtype=torch.float32)
    return in_torch(model, lambda: model.step_loss(times, values))


def chain(sizes: Sequence[int], rows: int, inner: bool) -> list[tuple[int, int, int]]:
    """The products (m, k, n) of an MLP on `rows` examples and of its derivative; `inner`: the input has one too."""
    found = []
    for i, (a, b) in enumerate(itertools.pairwise(sizes)):
        found += [(b, a, rows), (b, rows, a)]
        if i > 0 or inner:
            found.append((a, b, rows))
    return found


def floor(spec: arcta.LatentSDE, channels: int, training: arcta.Training) -> Run:
    nodes, latent = spec.partition_size or 0, spec.latent_size or channels
    points = training.num_draws * training.num_times
    decoded = training.num_decoded or training.num_draws
    products = chain((channels * (spec.lookahead + 1), *spec.encoder_sizes, 2 * latent), nodes, False)
    products += chain((1, *spec.kernel_sizes, 1), nodes, False) + 2 * chain((1, *spec.kernel_sizes, 1), points, False)
    products += chain((latent, *spec.drift_sizes, latent), points * (1 + latent * spec.rotation), True)
    products += 2 * [(points, nodes, 2 * latent), (nodes, points, 2 * latent), (points, 2 * latent, nodes)]
    products += [(nodes, 2 * latent, nodes)]
    if spec.decoder != "identity":
        products += chain((latent, *spec.decoder_sizes, channels), decoded * nodes, True)
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> jax.Array:
        return jnp.asarray(rng.standard_normal(shape), jnp.float32)

    pairs = [(normal(m, k), normal(k, n)) for m, k, n in products]
    matrix = normal(nodes, nodes)
    spd, right = matrix @ matrix.T / nodes + jnp.eye(nodes), normal(nodes, 2 * latent)

    def once(pairs: Any, spd: jax.Array, right: jax.Array) -> Any:
        factor = jax.lax.linalg.cholesky(spd, symmetrize_input=False)
        there = jax.scipy.linalg.cho_solve((factor, True), right)
        return [a @ b for a, b in pairs], there, jax.scipy.linalg.cho_solve((factor, True), there)

    inputs = (pairs, spd, right)
    twice = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), inputs)

    @jax.jit
    def all_of_it(twice: Any, count: jax.Array) -> Any:
        def body(i: jax.Array, _: Any) -> Any:  # in turns, or XLA would do the products once, before the loop
            return once(*jax.tree.map(lambda leaf: leaf[i % 2], twice))

        shapes = jax.eval_shape(once, *inputs)
        return jax.lax.fori_loop(0, count, body, jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes))

    def run(count: int) -> None:
        jax.block_until_ready(all_of_it(twice, jnp.asarray(count)))

    return run


def cases() -> dict[str, dict[str, Callable[[], Run]]]:
    few = arcta.Training(steps=100_000, num_draws=10, num_times=10, num_decoded=1)
    every = dataclasses.replace(few, num_decoded=None)
    prey = arcta.Training(steps=100_000, num_draws=1, num_times=10)
    turning = dataclasses.replace(PREY, partition_size=128, rotation=True, activation="silu")
    people, animals = waves(16, 300, 50), waves(1, 501, 2)

    def pair(
        spec: arcta.LatentSDE, data: list[arcta.Series], training: arcta.Training, bound: bool = True
    ) -> dict[str, Callable[[], Run]]:
        return {
            "arcta": lambda: ours(spec, data, training),
            "torch eager": lambda: torch_step(spec, data, training, False),
            "torch compile": lambda: torch_step(spec, data, training, True),
            **({"floor": lambda: floor(spec, len(data[0].channels), training)} if bound else {}),
        }

    lorenz, video = (runpy.run_path(str(STUDIES / f"{name}.py")) for name in ("lorenz", "video"))
    chaos = waves(1, 2000, 3)
    start_at = {name: arcta.LogNormal(1.0, 1.0) for name in ("sigma", "rho", "beta")}
    chaotic = arcta.LatentSDE(posterior="amortised",
        decoder="identity", encoder="window", lookahead=0, noise=1.0, drift=lorenz["field"], parameters=start_at,
        partition_size=128, activation="relu", kernel_sizes=(32,),
    )  # fmt: skip
    return {
        "MOCAP, one draw decoded": {
            **pair(MOCAP, people, few),
            "torchsde adjoint": lambda: torchsde_step(MOCAP, people[0]),
            "diffrax adjoint": lambda: diffrax(MOCAP, people, "adjoint"),
            "diffrax backprop": lambda: diffrax(MOCAP, people, "backprop"),
        },
        "MOCAP, all ten draws decoded": pair(MOCAP, people, every),
        "Lotka–Volterra, the paper's": pair(PREY, animals, prey),
        "Lotka–Volterra, ours": pair(turning, animals, prey),
        "Lorenz": pair(chaotic, chaos, lorenz["TRAINING"], bound=False),
        "video": pair(video["MACHINE"], [video["films"](False)[0].series], video["MACHINE_TRAINING"], bound=False),
    }


def measure(contestants: dict[str, Callable[[], Run]], repeats: int) -> dict[str, Any]:
    runs, first, chunk, calls = {}, {}, {}, {}
    for name, make in contestants.items():
        run = make()
        clock = time.perf_counter()
        run(1)
        first[name] = time.perf_counter() - clock
        run(2)
        clock = time.perf_counter()
        run(2)
        seconds = (time.perf_counter() - clock) / 2
        # Some 1 s a repeat, in calls of at most `log_every` steps, as in training: a call has a cost of its own.
        chunk[name] = int(np.clip(1.0 / seconds, 1, arcta.Training().log_every))
        calls[name] = int(np.clip(1.0 / (chunk[name] * seconds), 1, 50))
        runs[name] = run
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            clock = time.perf_counter()
            for _ in range(calls[name]):
                run(chunk[name])
            times[name].append((time.perf_counter() - clock) / (calls[name] * chunk[name]) * 1e3)
    mine = float(np.median(times["arcta"]))
    return {
        name: {
            "step_ms": float(np.median(values)),
            "quartiles_ms": np.quantile(values, [0.25, 0.75]).tolist(),
            "times_ours": float(np.median(values)) / mine,
            "first_step_s": first[name],
        }
        for name, values in times.items()
    }


def resident(field: str) -> float:
    """VmRSS (now) or VmHWM (the most so far) of this process, in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def memory(title: str, name: str) -> None:
    """Print the most memory beyond the imports' while steps run; compilation is over by then, but may have left some behind."""
    make = cases()[title][name]
    before = resident("VmRSS")
    run = make()
    run(1)
    Path("/proc/self/clear_refs").write_text("5")  # forget the most so far
    run(2 if "torchsde" in name else 20)
    print(resident("VmHWM") - before)


def memory_of(title: str, name: str) -> float | None:
    if not Path("/proc/self/clear_refs").exists() or name in ("floor", "torch compile"):
        return None
    command = [sys.executable, __file__, "--memory", title, name]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", type=Path)
    parser.add_argument(
        "--only", nargs="+", default=[""], help="models whose name holds one of these words; others stay as stored"
    )
    parser.add_argument("--memory", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory:
        memory(*options.memory)
        return
    result: dict[str, Any] = {
        "settings": {"repeats": options.repeats, "threads": 1, "cores": 1, "seed": 0},
        "machine": machine(),
        "versions": {"jax": jax.__version__, "torch": torch.__version__},
        "steps": {},
    }
    if options.out is not None and options.out.exists():
        stored = json.loads(options.out.read_text())
        if all(stored[name] == result[name] for name in ("settings", "machine", "versions")):
            result["steps"] = stored["steps"]
    for title, contestants in cases().items():
        if not any(word in title for word in options.only):
            continue
        rows = result["steps"][title] = measure(contestants, options.repeats)
        for name, row in rows.items():
            row["memory_mib"] = memory_of(title, name)
            print(
                f"{title:<30} {name:<18} {row['step_ms']:9.2f} ms   {row['times_ours']:7.1f} × ours   first step "
                f"{row['first_step_s']:.1f} s",
                flush=True,
            )
        if options.out is not None:
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
