"""How training ends that is not finished: Ctrl-C and SIGTERM, in the first second and later, once and twice; and what is in the way
of a run: another run, another process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import equinox as eqx
import jax
import numpy as np
import pytest

import arcta
from arcta.task import fit as fitting
from arcta.training import loop
from arcta.training.progress import on_interrupt

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs the signals of POSIX")
DATA = arcta.datasets.lotka_volterra(seed=5, duration=4.0)
SPEC = arcta.LatentSDE(
    decoder="identity", encoder="window", partition_size=20, encoder_sizes=(4,), drift_sizes=(4,), kernel_sizes=(2,),
    posterior="amortised", structure="none",
)  # fmt: skip
SHORT = arcta.Training(steps=30, log_every=10, checkpoint_every=10)


def fit(out: Path, **options: object) -> arcta.Fit:
    return arcta.fit(SPEC, DATA, training=SHORT, progress=False, out=out, **options)  # pyright: ignore[reportArgumentType]


def weights(fitted: arcta.Fit) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(eqx.filter(fitted.model, eqx.is_array))]


@pytest.fixture(scope="module")
def job(tmp_path_factory) -> Path:
    """A table to train on by the command line."""
    folder = tmp_path_factory.mktemp("endings")
    DATA.to_frame().to_csv(folder / "data.csv", index_label="time")
    return folder


def start(job: Path, out: Path, *words: str) -> subprocess.Popen[str]:
    line = ["fit", "data.csv", "--time", "time", "--out", str(out), "--steps", "10000000", *words]
    settings = ["--set", "model.posterior=amortised", "model.structure=none", "training.log_every=10"]
    environment = {**os.environ, "ARCTA_CACHE": str(job / "cache")}
    command = [sys.executable, "-m", "arcta", *line, *settings]
    return subprocess.Popen(
        command, cwd=job, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wait_for(process: subprocess.Popen[str], words: str) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if words in line:
            return
    raise AssertionError(f"{words!r} was never said")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_command_with_what_was_reached(job, tmp_path, number):
    """Exit code 143 or 130, no traceback, the run loads and nothing else is left; a second process is refused meanwhile."""
    process = start(job, tmp_path / "run")
    wait_for(process, "steps/s")
    if number == signal.SIGTERM:
        second = start(job, tmp_path / "run", "--force", "-q")
        _, said = second.communicate(timeout=120)
        assert second.returncode == 2
        assert f"is being written by process {process.pid}" in said
        assert "Traceback" not in said
    process.send_signal(number)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 128 + number
    assert "Traceback" not in said
    assert "what was reached is saved" in said
    loaded = arcta.load(tmp_path / "run")
    assert loaded.stopped == "interrupted"
    assert loaded.history
    assert not list((tmp_path / "run").glob("**/.*"))


def wait_for_imports(process: subprocess.Popen[str]) -> None:
    """Until the package is being imported."""
    maps, deadline = Path(f"/proc/{process.pid}/maps"), time.monotonic() + 60
    while "jaxlib" not in maps.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.skipif(not Path("/proc/self/maps").is_file(), reason="needs Linux to see when imports begin")
@pytest.mark.parametrize(
    ("delay", "number"), [(0.0, signal.SIGINT), (0.6, signal.SIGTERM), (1.5, signal.SIGINT), (4.0, signal.SIGINT)]
)
def test_a_signal_in_the_first_seconds_is_one_line(job, tmp_path, delay, number):
    """While the package is imported, data is read, the model built, the program compiled."""
    process = start(job, tmp_path / "run", "-q")
    wait_for_imports(process)
    time.sleep(delay)
    process.send_signal(number)
    began = time.monotonic()
    _, said = process.communicate(timeout=120)
    assert process.returncode == 128 + number, said
    lines = said.strip().splitlines()
    assert len(lines) <= 2, said
    assert all(
        line.startswith(("arcta: interrupted", "arcta: terminated", "arcta: stopping", "interrupted;"))
        for line in lines
    ), said
    assert time.monotonic() - began < 20


def test_a_second_ctrl_c_ends_even_a_program_that_is_running(job, tmp_path):
    process = start(
        job, tmp_path / "run", "--set", "training.log_every=100000000", "training.checkpoint_every=100000000"
    )
    wait_for(process, "compiling")
    time.sleep(4)
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    began = time.monotonic()
    _, said = process.communicate(timeout=60)
    # A shell says 130 of both: in Python's last moments a signal has its usual effect.
    assert process.returncode in (130, -signal.SIGINT)
    assert time.monotonic() - began < 10
    assert "Traceback" not in said


def ended_after(monkeypatch: pytest.MonkeyPatch, calls: int, *numbers: int) -> None:
    """Send signals to this process in the middle of training."""
    count, real = [0], loop.advance

    def advance(*arguments: object) -> object:
        count[0] += 1
        if count[0] == calls:
            for number in numbers:
                signal.raise_signal(number)
        return real(*arguments)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(loop, "advance", advance)


def test_sigterm_ends_a_fit_with_out_and_the_handlers_come_back(tmp_path, monkeypatch):
    """In Python: what was reached is returned and saved; resuming goes on from there, bit for bit."""
    whole = fit(tmp_path / "whole", key=1)
    mine = lambda number, frame: None  # noqa: E731
    before = signal.signal(signal.SIGTERM, mine)
    try:
        ended_after(monkeypatch, 3, signal.SIGTERM)
        part = fit(tmp_path / "part", key=1)
        monkeypatch.undo()
        assert signal.getsignal(signal.SIGTERM) is mine
        assert (part.stopped, part.ended_by, part.history[-1]["step"]) == ("interrupted", signal.SIGTERM, 20)
        assert arcta.load(tmp_path / "part").history == part.history
        again = fit(tmp_path / "part", key=1, resume=True)
        assert all(np.array_equal(*pair) for pair in zip(weights(again), weights(whole), strict=True))
        ended_after(monkeypatch, 3, signal.SIGTERM)
        unsaved = arcta.fit(SPEC, DATA, training=SHORT, progress=False)
        assert unsaved.stopped == "finished", "without out= SIGTERM is the caller's"
    finally:
        signal.signal(signal.SIGTERM, before)


def test_twice_is_an_exception_after_a_checkpoint_and_before_the_first_step_too(tmp_path, monkeypatch):
    ended_after(monkeypatch, 3, signal.SIGINT, signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path / "run", key=1)
    monkeypatch.undo()
    assert fit(tmp_path / "run", key=1, resume=True).history[-1]["step"] == 30
    ended_after(monkeypatch, 1, signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path / "other")
    assert not list((tmp_path / "other").glob(".*"))


def test_ignored_signals_stay_ignored_and_threads_have_none():
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with on_interrupt(terminable=True) as caught:
            signal.raise_signal(signal.SIGTERM)
        assert not caught
    finally:
        signal.signal(signal.SIGTERM, before)
    seen: list[object] = []

    def inside() -> None:
        with on_interrupt(terminable=True) as caught:
            seen.append(caught)

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    assert seen == [[]]


def test_a_run_is_written_over_only_if_told_to(tmp_path, monkeypatch):
    """Another fit refuses; with overwrite=True the old run stays until the new one is saved, without report and checkpoint."""
    run = tmp_path / "run"
    first = fit(run, key=1)
    (run / "figures").mkdir()
    (run / "report.html").touch()
    (run / "figures" / "drift.png").touch()
    before = {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}
    with pytest.raises(ValueError, match=r"holds a run already.*resume=True.*overwrite=True"):
        fit(run, key=2)
    first.save(run)
    assert {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}.items() >= {
        name: data for name, data in before.items() if name != "model.previous.json"
    }.items(), "saving the same fit again keeps its report"
    with monkeypatch.context() as patch:
        ended_after(patch, 1, signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            fit(run, key=2, overwrite=True)
    assert arcta.load(run).about["seed"] == 1
    with pytest.raises(ValueError, match="holds no latest"):
        fit(run, key=1, resume=True)
    fit(run, key=2, overwrite=True)
    assert arcta.load(run).about["seed"] == 2
    assert not (run / "report.html").exists()
    assert not list(run.glob("figures/*.png"))
    (run / "model.json").unlink()
    (run / "model.previous.json").unlink()
    with pytest.raises(ValueError, match="holds a run already"):
        fit(run, key=3)
    with pytest.raises(ValueError, match="Pass one of them"):
        fit(run, resume=True, overwrite=True)
    with pytest.raises(ValueError, match="overwrite=True needs out="):
        arcta.fit(SPEC, DATA, overwrite=True)


def test_what_could_not_be_saved_is_refused_before_training(tmp_path, monkeypatch):
    monkeypatch.setattr(fitting, "train_task", None)
    with pytest.raises(ValueError, match="about= must be what JSON can hold"):
        fit(tmp_path / "run", about={"when": object()})
    assert not (tmp_path / "run").exists()
