# pyright: reportMissingImports=false
"""Time of one training step, ours against eager PyTorch, one thread each, interleaved in one run.

    python benchmarks/step.py                                  # `make bench` stores it in benchmarks/results/step.json

Models: MOCAP (the paper's architecture, M = 298, R = S = 10, 50 channels, 3 frames) and Lotka–Volterra (the paper's, with
M = 256, R = 1, S = 10); each as in the paper, and with the rotation term on both sides (our default). Data is random: shapes
matter, values do not. A step is loss, gradient, clipping and Adam; ours has the masks and the choice of a window besides.
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
import platform  # noqa: E402
import time  # noqa: E402
from collections.abc import Callable  # noqa: E402
from pathlib import Path  # noqa: E402

import jax  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from rival_torch import TorchModel  # noqa: E402

import arcta  # noqa: E402
from arcta.model import build, summarise  # noqa: E402
from arcta.objective import Objective, TrainingData  # noqa: E402
from arcta.train import advance, start  # noqa: E402
from arcta.windows import windows_of  # noqa: E402

torch.set_num_threads(1)
CHUNK = 20


def ours(spec: arcta.LatentSDE, data: list[arcta.Series], num_draws: int, num_times: int) -> Callable[[], None]:
    """A function that takes `CHUNK` steps."""
    summary = summarise(spec, data)
    training = arcta.Training(steps=100_000, num_draws=num_draws, num_times=num_times)
    state = start(build(spec, summary, key=jax.random.key(0)), training, key=jax.random.key(1))
    stacked = windows_of(data, summary.scaling, size=summary.partition_size, lookahead=spec.lookahead)
    windows = TrainingData(stacked)
    objective = Objective(num_draws=num_draws, num_times=num_times, kl_ramp=1000)
    holder = [state]

    def run() -> None:
        stop = holder[0].step + CHUNK
        holder[0], means, _ = jax.block_until_ready(advance(objective, training, holder[0], windows, stop))
        if not np.isfinite(float(means["loss"])):
            raise FloatingPointError("our step is not finite")

    return run


def rival(
    model: TorchModel, times: np.ndarray, values: np.ndarray, num_draws: int, num_times: int
) -> Callable[[], None]:
    optimiser = torch.optim.Adam(model.parameters(), lr=5e-3, foreach=True)
    ts, xs = torch.tensor(times, dtype=torch.float32), torch.tensor(values, dtype=torch.float32)

    def run() -> None:
        for _ in range(CHUNK):
            optimiser.zero_grad(set_to_none=True)
            loss = model.step_loss(ts, xs, num_draws, num_times)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
            optimiser.step()
        if not torch.isfinite(loss):
            raise FloatingPointError("the rival's step is not finite")

    return run


def waves(count: int, length: int, channels: int) -> list[arcta.Series]:
    rng = np.random.default_rng(0)
    times = 0.1 * np.arange(length)
    phase = rng.uniform(0, 2 * np.pi, (count, channels))
    values = np.sin(times[:, None] + phase[:, None]) + 0.1 * rng.standard_normal((count, length, channels))
    return [arcta.Series(times, value, name=str(i)) for i, value in enumerate(values)]


def contestants(name: str, rotation: bool) -> tuple[Callable[[], None], Callable[[], None]]:
    if name == "mocap":
        data = waves(16, 300, 50)
        spec = arcta.LatentSDE(
            latent_size=6, encoder="window", decoder="mlp", lookahead=2, partition_size=298, encoder_sizes=(30, 30, 15),
            decoder_sizes=(15, 30, 30), drift_sizes=(30,), kernel_sizes=(32,), activation="tanh", rotation=rotation,
        )  # fmt: skip
        other = TorchModel(
            50, 6, lookahead=2, encoder=(30, 30, 15), decoder=(15, 30, 30), drift=(30,), kernel=(32,), activation="tanh",
            noise=None, rotation=rotation,
        )  # fmt: skip
        return ours(spec, data, 10, 10), rival(other, np.linspace(-1, 1, 298), data[0].values, 10, 10)
    data = waves(1, 501, 2)
    spec = arcta.LatentSDE(
        decoder="identity", encoder="window", noise=0.01, lookahead=0, partition_size=256, encoder_sizes=(32, 32),
        drift_sizes=(64, 64, 64), kernel_sizes=(32, 32), activation="relu", rotation=rotation,
    )  # fmt: skip
    other = TorchModel(
        2, 2, lookahead=0, encoder=(32, 32), decoder=None, drift=(64, 64, 64), kernel=(32, 32), activation="relu", noise=0.01,
        rotation=rotation,
    )  # fmt: skip
    return ours(spec, data, 1, 10), rival(other, np.linspace(-1, 1, 256), data[0].values[:256], 1, 10)


def measure(name: str, rotation: bool, repeats: int) -> dict[str, float]:
    pair = contestants(name, rotation)
    for run in pair:
        run()
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats):
        for run, record in zip(pair, times, strict=True):
            clock = time.perf_counter()
            run()
            record.append((time.perf_counter() - clock) / CHUNK * 1e3)
    mine, theirs = (float(np.median(record)) for record in times)
    return {"arcta_ms": mine, "torch_ms": theirs, "ratio": theirs / mine}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    result: dict[str, object] = {
        "settings": {"repeats": options.repeats, "steps_per_repeat": CHUNK, "threads": 1},
        "machine": f"{platform.machine()}, jax {jax.__version__}, torch {torch.__version__}",
    }
    for name in ("mocap", "lotka-volterra"):
        for rotation in (False, True):
            row = measure(name, rotation, options.repeats)
            title = name + (", rotation term" if rotation else ", as in the paper")
            result[title] = row
            print(
                f"{title:<32} arcta {row['arcta_ms']:.2f} ms   torch {row['torch_ms']:.2f} ms   ratio {row['ratio']:.1f}",
                flush=True,
            )
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
