"""A soak: a million steps and a thousand forecasts in one process, its resident memory flat within 1 % once it is warm."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

import arcta
from arcta.runtime import memory

T = np.arange(40.0)
SERIES = arcta.Series(T, np.sin(T / 3))
SPEC = arcta.LatentSDE(
    structure="none", latent_size=1, decoder="linear", drift="plain", drift_sizes=(2,), encoder="window",
    encoder_sizes=(2,), partition_size=4, posterior="amortised",
)  # fmt: skip
STEPS, FORECASTS = 1_000_000, 1_000


def resident() -> float:
    """Bytes of this process in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return 4096.0 * pages


class Watch:
    """Resident memory, each second while something runs."""

    def __init__(self) -> None:
        self.sizes: list[float] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def _look(self) -> None:
        while not self._over.wait(1.0):
            self.sizes.append(resident())

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def spread(sizes: list[float], warm: float) -> float:
    """Largest over smallest, once a part of the time has passed."""
    later = np.array(sizes[int(warm * len(sizes)) :])
    shown = ", ".join(f"{size / 1e6:.1f}" for size in later[:: max(len(later) // 12, 1)])
    print(f"{len(later)} looks, {later.min() / 1e6:.1f} to {later.max() / 1e6:.1f} MB resident: {shown}", flush=True)
    return float(later.max() / later.min())


def training(steps: int) -> arcta.Training:
    """With everything that is compiled on the way compiled at the first of fifty stops."""
    stop = steps // 50
    return arcta.Training(steps=steps, num_draws=1, num_times=1, log_every=stop, validate_every=stop)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_one_fit_of_a_million_steps_and_a_thousand_forecasts():
    with Watch() as watch:
        fit = arcta.fit(SPEC, SERIES, training=training(STEPS), progress=False)
    assert fit.history[-1]["step"] == STEPS
    print(f"{STEPS:,} steps in {fit.seconds:.0f} s, {1e6 * fit.seconds / STEPS:.0f} µs each", flush=True)
    assert spread(watch.sizes, 0.2) < 1.01
    rng, sizes = np.random.default_rng(0), []
    for count in rng.integers(1, 400, FORECASTS):
        fit.forecast(T[-1] + 0.1 * np.arange(1, count + 1), num_samples=16)
        sizes.append(resident())
    print(f"{FORECASTS:,} forecasts of 1 to 400 times", flush=True)
    assert spread(sizes, 0.2) < 1.01


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_twenty_fits_of_fifty_thousand_steps_each_with_fifty_forecasts():
    rng, sizes, rounds = np.random.default_rng(0), [], 20
    for k in range(rounds):
        fit = arcta.fit(SPEC, SERIES, training=training(STEPS // rounds), key=k, progress=False)
        for count in rng.integers(1, 400, FORECASTS // rounds):
            fit.forecast(T[-1] + 0.1 * np.arange(1, count + 1), num_samples=16)
        memory.return_memory()
        sizes.append(resident())
    assert spread(sizes, 0.2) < 1.01
