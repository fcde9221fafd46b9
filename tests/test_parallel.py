"""Several devices and several processes: the losses of one, and nothing lost when a process dies."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import arcta
from arcta.data.batches import Slots

ARCTA = (sys.executable, "-c", "from arcta.outside.cli.commands import main; main()")


@pytest.mark.parametrize(("total", "batch"), [(19, 16), (16, 16), (5, 8), (1000, 7)])
def test_places_cover_all_windows_once(total, batch):
    slots = Slots.over(total, batch)
    covered = np.concatenate([low + np.arange(width) for low, width in zip(slots.low, slots.width, strict=True)])
    np.testing.assert_array_equal(covered, np.arange(total))


@pytest.mark.slow
def test_two_devices_of_one_process_train_as_one_does(tmp_path):
    """From memory and from a file, in a process of its own: the number of devices is fixed when JAX starts."""
    code = """
import arcta, numpy as np
training = arcta.Training(steps=30, batch_size=4, log_every=10)
shape = {"encoder": "window", "lookahead": 0, "partition_size": 32, "drift_sizes": (16,), "encoder_sizes": (8,)}
values = np.sin(0.1 * np.arange(5000)) + 0.05 * np.random.default_rng(0).standard_normal(5000)
np.save("long.npy", values)
prey, store = arcta.datasets.lotka_volterra(), arcta.store("long.npy", step=0.1)
# Closed forms solve systems that amplify rounding from step to step.
for posterior, data, close in (("amortised", prey, 1e-4), ("smoother", prey, 1e-2), ("amortised", store, 1e-4)):
    spec = arcta.LatentSDE(latent_size=2, posterior=posterior, **shape)
    one, two = (arcta.fit(spec, data, training=training, progress=False, devices=d) for d in (None, "all"))
    np.testing.assert_allclose(*([row["loss"] for row in fit.history] for fit in (one, two)), rtol=close)
shape["posterior"] = "amortised"
few = arcta.Training(steps=20, log_every=10)
one, two = (arcta.fit(arcta.LatentSDE(latent_size=2, **shape), data, training=few, ensemble=3, progress=False, devices=d)
            for d in (None, "all"))
np.testing.assert_allclose(*([row["loss"] for row in fit.history] for fit in (one, two)), rtol=1e-4)
for a, b in zip(one.members, two.members):
    np.testing.assert_allclose(a.encoder.net.layers[0].weight, b.encoder.net.layers[0].weight, rtol=1e-3, atol=1e-4)
for wrong in ({"devices": 3}, {"devices": "all", "training": arcta.Training(batch_size=3)}):
    try:
        arcta.fit(arcta.LatentSDE(latent_size=2, **shape), data, **wrong)
    except ValueError as error:
        print(error)
"""
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "from 1 to 2; got 3" in done.stdout
    assert "must be a multiple of 2; got 3" in done.stdout


def launch(folder: Path, out: str, *options: str, count: int = 2) -> list[subprocess.Popen[str]]:
    """The processes of a job on this machine, as docs/scale.md has it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    words = (
        "fit",
        "data.csv",
        "--time",
        "time",
        "--out",
        out,
        "--devices",
        "all",
        "--no-report",
        "--config",
        "job.toml",
    )
    job = {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": str(count)}
    return [
        subprocess.Popen(
            [*ARCTA, *words, *options],
            cwd=folder,
            env={**os.environ, **job, "JAX_PROCESS_ID": str(i)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(count)
    ]


def finish(job: list[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    said = [process.communicate(timeout=240) for process in job]
    return [(process.returncode, *words) for process, words in zip(job, said, strict=True)]


def test_a_job_of_two_processes_is_one_run_and_outlives_the_death_of_either(tmp_path):
    arcta.datasets.lotka_volterra().to_frame().to_csv(tmp_path / "data.csv", index_label="time")
    (tmp_path / "job.toml").write_text(
        "[model]\ndecoder = 'identity'\nencoder = 'window'\nlookahead = 0\npartition_size = 32\ndrift_sizes = [16]\n"
        "encoder_sizes = [8]\n[training]\nsteps = 3000\nbatch_size = 4\nlog_every = 100\ncheckpoint_every = 100\n"
    )
    undisturbed = finish(launch(tmp_path, "whole"))
    assert [code for code, _, _ in undisturbed] == [0, 0], undisturbed
    assert "held-out rmse" in undisturbed[0][1]
    assert undisturbed[1][1] == ""

    alone = subprocess.run(
        [*ARCTA, "fit", "data.csv", "--time", "time", "--out", "alone", "--no-report", "--config", "job.toml"],
        cwd=tmp_path, check=True, capture_output=True,
    )  # fmt: skip
    assert alone.returncode == 0
    histories = [(tmp_path / out / "history.jsonl").read_text().splitlines()[:3] for out in ("whole", "alone")]
    np.testing.assert_allclose(*([json.loads(line)["loss"] for line in rows] for rows in histories), rtol=1e-4)

    for victim in (0, 1):
        job = launch(tmp_path, "cut", *(["--resume"] if victim else []))
        checkpoint = tmp_path / "cut" / "checkpoint" / "latest.json"
        before = json.loads(checkpoint.read_text())["step"] if victim else 0
        deadline = time.monotonic() + 120
        while not (checkpoint.exists() and json.loads(checkpoint.read_text())["step"] > before):
            assert time.monotonic() < deadline, [process.poll() for process in job]
            time.sleep(0.02)
        job[victim].send_signal(signal.SIGKILL)
        began = time.monotonic()
        ended = finish(job)
        assert time.monotonic() - began < 60
        assert ended[victim][0] == -signal.SIGKILL
        assert ended[1 - victim][0] not in (0, -signal.SIGKILL), ended
    assert "another process of the job has ended" in ended[0][2]
    assert 0 < json.loads(checkpoint.read_text())["step"] < 3000
    resumed = finish(launch(tmp_path, "cut", "--resume"))
    assert [code for code, _, _ in resumed] == [0, 0], resumed
    whole, again = (load_file(next((tmp_path / out).glob("weights-*"))) for out in ("whole", "cut"))
    for name, value in whole.items():
        np.testing.assert_array_equal(value, again[name])
