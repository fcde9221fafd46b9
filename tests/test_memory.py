"""Memory: what would not fit is refused before it starts; programs are not kept for ever; a forked process says so."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import arcta
from arcta.predict import structural
from arcta.runtime import compile as compiling
from arcta.runtime import memory

T = np.arange(40.0)
SERIES = arcta.Series(T, np.sin(T / 3))
FITS = {
    name: arcta.LatentSDE(structure=name, partition_size=16, latent_size=2, posterior="amortised")
    for name in ("none", "linear")
}


def resident() -> float:
    """Bytes of this process in memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024.0 * int(next(line for line in lines if line.startswith("VmRSS")).split()[1])


@pytest.fixture(scope="module", params=FITS)
def fit(request):
    return arcta.fit(FITS[request.param], SERIES, training=arcta.Training(steps=2), progress=False)


def test_what_would_not_fit_is_refused_with_its_size_and_the_cure(fit, monkeypatch):
    monkeypatch.setattr(memory, "free_memory", lambda: 2e9)
    ahead = T[-1] + np.arange(1.0, 100_001.0)
    with pytest.raises(ValueError, match=r"would take \d+ GB of memory, of which 2 GB are free. Pass quantiles="):
        fit.forecast(ahead, num_samples=10_000)
    with pytest.raises(ValueError, match=r"GB of memory.*fewer samples"):
        fit.smooth(SERIES, np.linspace(0, 39, 100_000), num_samples=10_000)
    with pytest.raises(ValueError, match=r"GB of memory.*fewer"):
        fit.sample(ahead, num_samples=10_000)
    with pytest.raises(ValueError, match="GB of memory"):
        arcta.backtest(fit, SERIES, horizon=5.0, num_samples=10**9, num_origins=1, baselines=[])
    assert fit.forecast(ahead[:10], num_samples=10).mean.shape == (10, 1)


def test_structural_quantiles_come_piece_by_piece(monkeypatch):
    monkeypatch.setattr(structural, "KEPT", 1000)
    fit = arcta.fit(FITS["linear"], SERIES, training=arcta.Training(steps=2), progress=False)
    ahead = T[-1] + np.arange(1.0, 501.0)
    whole = fit.forecast(ahead, num_samples=200)
    bands = fit.forecast(ahead, num_samples=200, quantiles=[0.05, 0.5, 0.95])
    spread = whole.observations.std(axis=0)
    assert bands.times.shape == (500,)
    # Each piece has its own dozen draws of the parameters.
    assert (np.abs(bands.mean - whole.mean) < spread).all()
    np.testing.assert_allclose(bands.std.mean(), spread.mean(), rtol=0.5)


def test_other_numbers_of_times_keep_the_same_random_numbers_and_programs():
    fit = arcta.fit(FITS["none"], SERIES, training=arcta.Training(steps=2), progress=False)
    ahead = T[-1] + np.arange(1.0, 31.0)
    whole = fit.forecast(ahead, num_samples=8).observations
    made = compiling._PROGRAMS[0]
    for count in (1, 7, 29):
        np.testing.assert_array_equal(fit.forecast(ahead[:count], num_samples=8).observations, whole[:, :count])
    assert compiling._PROGRAMS[0] == made


def test_too_many_programs_are_forgotten_and_come_back(monkeypatch):
    fit = arcta.fit(FITS["none"], SERIES, training=arcta.Training(steps=2), progress=False)
    before = fit.forecast(T[-1] + np.arange(1.0, 4.0), num_samples=8).observations
    monkeypatch.setattr(compiling, "MOST_PROGRAMS", 0)
    after = fit.forecast(T[-1] + np.arange(1.0, 4.0), num_samples=8).observations
    np.testing.assert_array_equal(before, after)
    assert 0 < compiling._PROGRAMS[0] < 20


def test_a_forked_process_says_so_at_once():
    script = """
        import os, numpy as np, arcta
        series = arcta.Series(np.arange(40.0), np.sin(np.arange(40.0)))
        import jax; jax.numpy.zeros(3).block_until_ready()
        child = os.fork()
        if not child:
            try:
                arcta.fit(arcta.LatentSDE(), series, progress=False)
            except RuntimeError as error:
                os._exit(7 if "spawn" in str(error) else 8)
            os._exit(9)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["7"], done.stderr


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_new_shapes_do_not_add_up():
    sizes = []
    for k in range(16):
        times = np.arange(30.0 + 5 * k)
        arcta.fit(
            FITS["none"], arcta.Series(times, np.sin(times / 3)), training=arcta.Training(steps=2), progress=False
        )
        sizes.append(resident())
        print(f"shape {k}: {sizes[-1] / 1e6:.0f} MB resident", flush=True)
    assert max(sizes[8:]) < 1.3 * max(sizes[:8])
