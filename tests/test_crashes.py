"""Every point at which a save can be cut short, singly and in pairs: the newest completed save is never lost.

python -m pytest tests/test_crashes.py -q -s        prints the table of faults, tried and failed
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from disk import FAULTS, Disk, Killed

import arcta
from arcta.model.build import build
from arcta.model.reading import read_data
from arcta.task.run import read_run
from arcta.training import files, lock
from arcta.training.bundle import read_bundle
from arcta.training.checkpoint import Recorder, to_arrays
from arcta.training.loop import Best, State

DATA = arcta.datasets.lotka_volterra(seed=5, duration=2.0)
SPEC = arcta.LatentSDE(
    decoder="identity", encoder="window", partition_size=10, encoder_sizes=(4,), drift_sizes=(4,), kernel_sizes=(2,),
    posterior="amortised",
)  # fmt: skip


def some_fit(number: int) -> arcta.Fit:
    """A fit that is told from others by its training, its weights and its history."""
    layout, reading = read_data(SPEC, DATA)
    model = build(SPEC, layout, reading, key=jax.random.key(number))
    training = arcta.Training(steps=100 + number)
    rows = [{"step": step, "loss": float(number)} for step in (1, 2)]
    return arcta.Fit(SPEC, layout, reading, model, training, [DATA], rows, about={"number": number})


FITS = [some_fit(number) for number in range(6)]
WEIGHTS = [to_arrays(fit.model) for fit in FITS]
STATES = [State(jnp.full(5, float(n)), (), jnp.asarray(n, jnp.int32), jax.random.key(0)) for n in range(6)]
BESTS = [Best(jnp.full(3, float(n)), float(n)) for n in range(6)]


def save_fit(folder: Path, number: int) -> None:
    FITS[number].save(folder)


def loaded_fit(folder: Path) -> int:
    """Which fit is loaded: all of its files must be of the same."""
    stored = read_run(folder)
    number = stored.header.about["number"]
    assert stored.header.training.steps == 100 + number
    assert stored.header.history is not None
    assert {row["loss"] for row in stored.header.history} == {number}
    assert all(np.array_equal(stored.weights[0][name], value) for name, value in WEIGHTS[number].items())
    np.testing.assert_array_equal(stored.context[0].values, DATA.values)
    return number


def save_checkpoint(folder: Path, number: int) -> None:
    recorder = Recorder(folder, {"data": "the same"})
    recorder.checkpoint(STATES[number], BESTS[number])


def loaded_checkpoint(folder: Path) -> int:
    header, arrays = read_bundle(folder / "checkpoint", "latest")
    number = header["step"]
    assert header["best_score"] == number
    assert all(np.all(np.ravel(array)[:1] == number) for name, array in arrays["latest"].items() if name != ".key")
    assert all(np.all(array == number) for array in arrays["best"].values())
    return number


SAVES: dict[str, tuple[Callable[[Path, int], None], Callable[[Path], int]]] = {
    "fit.save": (save_fit, loaded_fit),
    "checkpoint": (save_checkpoint, loaded_checkpoint),
}


def attempt(
    save: Callable[[Path, int], None], folder: Path, number: int, disk: Disk, patch: pytest.MonkeyPatch
) -> bool:
    """Save on such a disk; whether it said that it has."""
    for module in (files, lock):
        patch.setattr(module, "os", disk)
    try:
        save(folder, number)
    except (Killed, OSError):
        return False
    finally:
        patch.undo()
    if disk.fault.startswith("power cut"):
        disk.cut()
    return True


def calls_of(save: Callable[[Path, int], None], folder: Path, before: list[int], patch: pytest.MonkeyPatch) -> int:
    """How many changing calls the next save makes."""
    for number in before:
        attempt(save, folder, number, Disk(), patch)
    disk = Disk()
    assert attempt(save, folder, len(before), disk, patch)
    shutil.rmtree(folder)
    return disk.calls


def lost(load: Callable[[Path], int], folder: Path, done: int, last: int) -> str:
    """What is wrong with the folder after saves of which `done` was the last completed and `last` the last tried; empty if
    nothing is."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = load(folder)
        except Exception as error:
            return "" if done < 0 and isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
    return "" if done <= found <= last else f"save {found} was loaded"


def tidy(folder: Path, patterns: tuple[str, ...] = (".*", "*/.*")) -> list[str]:
    return [path.name for pattern in patterns for path in folder.glob(pattern)]


def tell(rows: dict[str, tuple[int, list[str]]], title: str) -> None:
    print(f"\n{title:<52} {'tried':>7} {'failed':>7}")
    for name, (tried, failed) in rows.items():
        print(f"{name:<52} {tried:>7} {len(failed):>7}")
    assert not {name: failed[:3] for name, (_, failed) in rows.items() if failed}


def singles(kind: str, fault: str, folder: Path, patch: pytest.MonkeyPatch) -> tuple[int, list[str]]:
    """One fault at every call of the first, the second and the third save; then a save without fault, which leaves no litter."""
    save, load = SAVES[kind]
    tried, failed = 0, []
    for before in range(3):
        for at in range(1 + calls_of(save, folder, list(range(before)), patch)):  # the last is after the save
            for number in range(before):
                attempt(save, folder, number, Disk(), patch)
            done = attempt(save, folder, before, Disk(fault, at), patch)
            wrong = lost(load, folder, before if done else before - 1, before)
            attempt(save, folder, 3, Disk(), patch)
            wrong = wrong or lost(load, folder, 3, 3) or " ".join(tidy(folder))
            tried += 1
            failed += [f"save {before}, call {at}: {wrong}"] if wrong else []
            shutil.rmtree(folder)
    return tried, failed


QUICK = [
    ("fit.save", "kill"),
    *(("checkpoint", fault) for fault in ("ENOSPC", "short write", "power cut, removals kept")),
]
SLOW = [(kind, fault) for kind in SAVES for fault in FAULTS if (kind, fault) not in QUICK]


def test_a_save_cut_short_at_any_call_loses_nothing(tmp_path, monkeypatch):
    rows = {f"{kind}: {fault}": singles(kind, fault, tmp_path / "run", monkeypatch) for kind, fault in QUICK}
    tell(rows, "one fault at every call")


@pytest.mark.slow
def test_a_save_cut_short_by_other_faults_loses_nothing(tmp_path, monkeypatch):
    rows = {f"{kind}: {fault}": singles(kind, fault, tmp_path / "run", monkeypatch) for kind, fault in SLOW}
    tell(rows, "one fault at every call")


@pytest.mark.parametrize("careless", ["contents", "folders"])
def test_the_disk_finds_who_forgets_to_force_things_to_it(careless, tmp_path, monkeypatch):
    """What the tests above rest on: without either kind of fsync there are points at which saves are lost."""
    real = Disk._fsync

    def forget(disk: Disk, handle: int) -> None:
        folder = Path(f"/proc/self/fd/{handle}").readlink().is_dir()
        if folder != (careless == "folders"):
            real(disk, handle)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Disk, "_fsync", forget)
        _, failed = singles("checkpoint", "power cut, removals kept", tmp_path / "run", monkeypatch)
    assert len(failed) > 2


def pairs(kind: str, faults: tuple[str, str], folder: Path, patch: pytest.MonkeyPatch) -> tuple[int, list[str]]:
    """Two saves in a row with a fault each, at every pair of calls, after one that was completed."""
    save, load = SAVES[kind]
    start, cut = folder.with_name("start"), folder.with_name("cut")
    first = calls_of(save, folder, [0], patch)
    attempt(save, start, 0, Disk(), patch)
    tried, failed = 0, []
    for one in range(first):
        shutil.copytree(start, folder)
        done = 1 if attempt(save, folder, 1, Disk(faults[0], one), patch) else 0
        folder.rename(cut)
        calls = first
        for other in range(2 * first):
            if other >= calls:
                break
            shutil.copytree(cut, folder)
            disk = Disk(faults[1], other)
            again = 2 if attempt(save, folder, 2, disk, patch) else done
            wrong = lost(load, folder, again, 2)
            tried += 1
            failed += [f"calls {one} and {other}: {wrong}"] if wrong else []
            calls = max(calls, disk.calls)
            shutil.rmtree(folder)
        shutil.rmtree(cut)
    shutil.rmtree(start)
    return tried, failed


def test_two_saves_in_a_row_cut_short_at_any_calls_lose_nothing(tmp_path, monkeypatch):
    """Of a checkpoint, which is what two saves in a row happen to; all other combinations are in the slow suite."""
    rows = {
        f"checkpoint: {fault}, twice": pairs("checkpoint", (fault, fault), tmp_path / "run", monkeypatch)
        for fault in ("kill", "power cut")
    }
    tell(rows, "a fault each in two saves in a row")


@pytest.mark.slow
@pytest.mark.parametrize("kind", SAVES)
@pytest.mark.parametrize("first", FAULTS)
def test_two_saves_in_a_row_with_any_two_faults_lose_nothing(kind, first, tmp_path, monkeypatch):
    rows = {f"{kind}: {first}, {then}": pairs(kind, (first, then), tmp_path / "run", monkeypatch) for then in FAULTS}
    tell(rows, "a fault each in two saves in a row")


def rows_of_saves(kind: str, count: int, folder: Path, patch: pytest.MonkeyPatch) -> tuple[int, list[str]]:
    """Rows of six saves, each with a fault somewhere or none."""
    save, load = SAVES[kind]
    failed = []
    for seed in range(count):
        rng, done = np.random.default_rng(seed), -1
        for number in range(6):
            fault = str(rng.choice(FAULTS))
            if attempt(save, folder, number, Disk(fault, int(rng.integers(0, 30))), patch):
                done = number
            wrong = lost(load, folder, done, number)
            failed += [f"seed {seed}, save {number}: {wrong}"] if wrong else []
        shutil.rmtree(folder, ignore_errors=True)
    return count, failed


def test_rows_of_saves_with_any_faults_lose_nothing(tmp_path, monkeypatch):
    rows = {f"{kind}: six saves in a row": rows_of_saves(kind, 15, tmp_path / "run", monkeypatch) for kind in SAVES}
    tell(rows, "a fault somewhere in each of six saves")


@pytest.mark.slow
def test_a_thousand_rows_of_saves_with_any_faults_lose_nothing(tmp_path, monkeypatch):
    rows = {f"{kind}: six saves in a row": rows_of_saves(kind, 1000, tmp_path / "run", monkeypatch) for kind in SAVES}
    tell(rows, "a fault somewhere in each of six saves")
