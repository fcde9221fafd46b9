"""Runs made to harm: every one is refused with a ValueError in one sentence, before anything large is made, and nothing outside of
the run's folder is followed, executed or overwritten. And two writers on one folder, planted links, who may write to the cache."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import struct
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_damage import some_fit, told

import arcta
from arcta.outside.page import Section, write_report
from arcta.predict.figures import new_figure
from arcta.runtime.cache import fault_of, keep_programs
from arcta.task.run import read_run
from arcta.training.bundle import _seal, read_bundle, write_bundle
from arcta.training.checkpoint import Recorder
from arcta.training.files import append, clean, write_atomically
from arcta.training.lock import lock
from arcta.training.loop import Best, State

posix = pytest.mark.skipif(os.name != "posix", reason="needs links, owners and signals as POSIX has them")


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("hostile") / "run"
    some_fit().save(folder)
    return folder


@pytest.fixture
def run(saved, tmp_path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "run"))


def header_of(run: Path) -> dict[str, Any]:
    header = json.loads((run / "model.json").read_bytes())
    del header["checksum"]
    return header


def forge(run: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Another header, with the right checksum."""
    header = header_of(run)
    change(header)
    (run / "model.json").write_bytes(_seal(header))


def replace_arrays(run: Path, data: bytes, stem: str = "weights") -> None:
    """Another file of arrays, with the right name, size and checksum."""
    digest = hashlib.sha256(data).hexdigest()
    forge(run, lambda header: header["files"].__setitem__(stem, {"bytes": len(data), "sha256": digest}))
    (run / f"{stem}-{digest[:32]}.safetensors").write_bytes(data)


def arrays_file(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def tensor(kind: str, shape: list[int], *offsets: int) -> dict[str, object]:
    return {"x": {"dtype": kind, "shape": shape, "data_offsets": list(offsets)}}


def link_weights(run: Path) -> None:
    path = next(run.glob("weights-*"))
    path.rename(run.parent / "elsewhere")
    path.symlink_to(run.parent / "elsewhere")


def link_header(run: Path) -> None:
    (run / "model.json").rename(run.parent / "elsewhere.json")
    (run / "model.json").symlink_to(run.parent / "elsewhere.json")


def pipe(run: Path, pattern: str) -> None:
    path = next(run.glob(pattern))
    path.unlink()
    os.mkfifo(path)


def sparse(run: Path, pattern: str) -> None:
    os.truncate(next(run.glob(pattern)), 2**39)


def folder_instead(run: Path, pattern: str) -> None:
    path = next(run.glob(pattern))
    path.unlink()
    path.mkdir()


def write_header(run: Path, data: bytes) -> None:
    (run / "model.json").write_bytes(data)


def name_file(run: Path, name: str) -> None:
    """A file outside the folder, by a name that leads there."""
    data = next(run.glob("weights-[0-9a-f]*")).read_bytes()
    (run.parent / f"secret-{hashlib.sha256(data).hexdigest()[:32]}.safetensors").write_bytes(data)
    (run.parent / "secret.safetensors").write_bytes(data)
    forge(run, lambda header: header["files"].update({name: header["files"].pop("weights")}))


def old_name(run: Path, name: str) -> None:
    """The same in the format of version 2."""
    header = header_of(run)
    sums = {f"{stem}.safetensors": named["sha256"] for stem, named in header.pop("files").items()}
    (run.parent / "secret.safetensors").write_bytes(next(run.glob("weights-[0-9a-f]*")).read_bytes())
    sums[name] = sums.pop("weights.safetensors")
    write_header(run, json.dumps({**header, "version": 2, "sha256": sums}).encode())


def nested(depth: int = 200_000) -> bytes:
    return b'{"format": "arcta", "version": 3, "about": ' + b"[" * depth + b"]" * depth + b"}"


def set_at(*path: Any, to: object) -> Callable[[Path], None]:
    """A change to one place of the header."""

    def change(header: Any) -> None:
        for key in path[:-1]:
            header = header[key]
        header[path[-1]] = to

    return lambda run: forge(run, change)


NAMES = [
    "../secret",
    "..",
    "a/../../secret",
    "/etc/passwd",
    "C:\\secret",
    "\\\\host\\share",
    "weights\n",
    "",
    "weights\0",
    "ẅ",
    "~/x",
]
HOSTILE: dict[str, Callable[[Path], object]] = {
    **{f"the name {name!r}": lambda run, name=name: name_file(run, name) for name in NAMES},
    **{f"the old name {name!r}": lambda run, name=name: old_name(run, f"{name}.safetensors") for name in NAMES},
    "a link to weights": link_weights,
    "a link to a header": link_header,
    "a pipe for weights": lambda run: pipe(run, "weights-*"),
    "a pipe for a header": lambda run: pipe(run, "model.json"),
    "a folder for a header": lambda run: folder_instead(run, "model.json"),
    "a folder for the context": lambda run: folder_instead(run, "context-*"),
    "weights of half a terabyte": lambda run: sparse(run, "weights-*"),
    "a header of half a terabyte": lambda run: sparse(run, "model.json"),
    "200,000 brackets": lambda run: write_header(run, nested()),
    "200,000 brackets, sealed": lambda run: write_header(
        run, (body := nested()[:-1]) + b',\n "checksum": "' + hashlib.sha256(body).hexdigest().encode() + b'"\n}\n'
    ),
    "200,000 braces": lambda run: write_header(run, b'{"a":' * 200_000),
    "an endless number": lambda run: write_header(run, b'{"format": "arcta", "version": ' + b"3" * 100_000 + b"}"),
    "no object": lambda run: write_header(run, b"[1, 2]"),
    "null": lambda run: write_header(run, b"null"),
    "nothing": lambda run: write_header(run, b""),
    "UTF-16": lambda run: write_header(run, '{"format": "arcta"}'.encode("utf-16")),
    "a version that is a list": set_at("version", to=[3]),
    "a version that is true": set_at("version", to=True),
    "no files": set_at("files", to={}),
    "files that are a list": set_at("files", to=["weights"]),
    "a file without a checksum": set_at("files", "weights", to={"bytes": 3}),
    "a checksum of another form": set_at("files", "weights", "sha256", to="../" * 21 + "x"),
    "a negative size of a file": set_at("files", "weights", "bytes", to=-1),
    "weights that are no arrays": lambda run: replace_arrays(run, b"\x80\x04cos\nsystem\n"),
    "a header of arrays of 2^63 bytes": lambda run: replace_arrays(run, struct.pack("<Q", 2**63) + b"{}"),
    "a header of arrays of 99 MB": lambda run: replace_arrays(run, struct.pack("<Q", 99_000_000) + b"{}"),
    "arrays in 200,000 brackets": lambda run: replace_arrays(run, arrays_file(b"[" * 200_000)),
    "an array of 2^62 numbers": lambda run: replace_arrays(run, arrays_file(tensor("F32", [2**62], 0, 8), bytes(8))),
    "an array of 2^62 × 0 numbers": lambda run: replace_arrays(run, arrays_file(tensor("F32", [2**62, 0], 0, 0))),
    "an array of 2^64 - 1 × 0 numbers": lambda run: replace_arrays(run, arrays_file(tensor("F32", [2**64 - 1, 0], 0, 0))),
    "an array of a negative size": lambda run: replace_arrays(run, arrays_file(tensor("F32", [-2], 0, 8), bytes(8))),
    "an array of 100 axes": lambda run: replace_arrays(run, arrays_file(tensor("F32", [1] * 100, 0, 4), bytes(4))),
    "an array past the end": lambda run: replace_arrays(run, arrays_file(tensor("F32", [4], 0, 16), bytes(8))),
    "an array of no known type": lambda run: replace_arrays(run, arrays_file(tensor("Z9", [2], 0, 8), bytes(8))),
    "an array of BF16": lambda run: replace_arrays(run, arrays_file(tensor("BF16", [2], 0, 4), bytes(4))),
    "an array of F8": lambda run: replace_arrays(run, arrays_file(tensor("F8_E4M3", [2], 0, 2), bytes(2))),
    "weights without arrays": lambda run: replace_arrays(run, arrays_file({})),
    "a context without arrays": lambda run: replace_arrays(run, arrays_file({}), "context"),
    "weights for a context": lambda run: replace_arrays(run, next(run.glob("weights-[0-9a-f]*")).read_bytes(), "context"),
    "NaN": lambda run: write_header(run, (run / "model.json").read_bytes().replace(b'"seconds": 0.0', b'"seconds": NaN')),
    "Infinity, sealed": lambda run: forge_text(run, b'"step": 1.0', b'"step": Infinity'),
    "NaN, sealed": lambda run: forge_text(run, b'"step": 1.0', b'"step": NaN'),
    "1e999, sealed": lambda run: forge_text(run, b'"step": 1.0', b'"step": 1e999'),
    "no reading": set_at("reading", to={}),
    "no configuration": set_at("configuration", to=None),
    "a negative latent size": set_at("reading", "latent_size", to=-2),
    "a huge latent size": set_at("reading", "latent_size", to=10**6),
    "a larger latent size": set_at("reading", "latent_size", to=3),
    "huge layers": set_at("configuration", "drift_sizes", to=[10**6, 10**6]),
    "a huge layer": set_at("configuration", "drift_sizes", to=[10**6]),
    "an endless layer": set_at("configuration", "encoder_sizes", to=[10**30]),
    "a negative layer": set_at("configuration", "encoder_sizes", to=[-3]),
    "many layers": set_at("configuration", "encoder_sizes", to=[1] * 10_000),
    "a huge look-ahead": set_at("configuration", "lookahead", to=10**7),
    "an unknown drift": set_at("configuration", "drift", to="os.system"),
    "code for a drift": set_at("configuration", "drift", to={"user": "os.system", "code": "x"}),
    "a huge parameter": set_at("configuration", "parameters", to={"a": {"kind": "LogNormal", "shape": [10**7, 10**7]}}),
    "a parameter of another kind": set_at("configuration", "noise", to={"kind": "Path", "shape": []}),
    "a likelihood of another kind": set_at("reading", "kinds", to=["gaussian", "system"]),
    "one channel less": set_at("data", "channels", to=["a"]),
    "a channel twice": set_at("data", "channels", to=["a", "a"]),
    "a scale of zero": set_at("data", "scaling", "scale", to=[0.0, 1.0]),
    "a negative time scale": set_at("data", "scaling", "time_scale", to=-1.0),
    "a ragged scale": set_at("data", "scaling", "scale", to=[[1.0], [1.0, 2.0]]),
    "a frame of other size": set_at("data", "frame_shape", to=[10**5, 10**5]),
    "a huge window": set_at("data", "partition_size", to=10**12),
    "another calendar": set_at("data", "calendar", "unit", to="fortnight"),
    "a calendar from nowhere": set_at("data", "calendar", "origin", to="once upon a time"),
    "a million members": set_at("members", to=10**6),
    "a member too many": set_at("members", to=3),
    "one series more": set_at("series", to=["series", "other"]),
    "steps in words": set_at("training", "steps", to="many"),
    "no steps": set_at("training", "steps", to=0),
    "a component of another kind": set_at("structure", "channels", 0, 0, "components", 0, "kind", to="system"),
    "a season of no length": set_at("structure", "channels", 0, 0, "components", 1, "period", to=0.0),
    "too few parameters": set_at("structure", "channels", 0, 0, "parameters", to=[1.0]),
    "loadings of other shape": set_at("structure", "together", "loadings", to=[[[1.0]]]),
    "a structure of other data": set_at("structure", "inputs", to=[[0.0, 0.0], [1.0, 1.0]]),
    "a history of words": set_at("history", to=[{"step": "one"}]),
    "a history that is no list": set_at("history", to=3),
}  # fmt: skip


def forge_text(run: Path, old: bytes, new: bytes) -> None:
    """A sealed header with text that the writer would not write."""
    data = _seal(header_of(run))
    assert old in data
    body = data[:-84].replace(old, new, 1)
    write_header(run, body + b',\n "checksum": "' + hashlib.sha256(body).hexdigest().encode() + b'"\n}\n')


@posix
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_run_is_refused_in_one_sentence(name, run):
    HOSTILE[name](run)
    outside = {path.name: path.read_bytes() for path in run.parent.iterdir() if path.is_file()}
    began = time.perf_counter()
    with pytest.raises(ValueError, match=r"\.$|…") as caught:
        arcta.load(run)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600
    assert time.perf_counter() - began < 5
    assert {path.name: path.read_bytes() for path in run.parent.iterdir() if path.is_file()} == outside


# What stands in a folder before arcta writes to it --------------------------------------------------------------------


@posix
def test_planted_links_are_neither_followed_nor_written_through(tmp_path):
    """Links under every name that arcta writes to, in a folder where a run is saved: what they lead to stays as it is."""
    secret, run = tmp_path / "secret", tmp_path / "run"
    secret.write_text("mine")
    run.mkdir()
    names = ["model.json", "model.previous.json", "history.jsonl", "report.html", ".model.json.new", ".report.html.new"]
    for name in names:
        (run / name).symlink_to(secret)
    fit = some_fit()
    fit.save(run)
    fit.save(run)
    assert read_run(run).header.training.steps == 7
    write_atomically(run / "report.html", b"page")
    (run / "log").symlink_to(secret)
    with pytest.raises(OSError, match="symbolic link"):
        append(run / "log", b"line")
    (run / ".lock").symlink_to(secret)
    with pytest.raises(ValueError, match="symbolic link"):
        fit.save(run)
    assert secret.read_text() == "mine"


@posix
def test_figures_and_checkpoints_are_not_written_through_links(tmp_path):
    secret, run = tmp_path / "secret", tmp_path / "run"
    secret.write_text("mine")
    (run / "figures").mkdir(parents=True)
    (run / "figures" / "f.png").symlink_to(secret)
    fit, figure = some_fit(), new_figure(1)[0]
    words = {"title": "", "lead": "", "headline": {}, "command": ""}
    write_report(run, fit, sections=[Section("A figure", figure, "f")], **words)
    assert (run / "figures" / "f.png").read_bytes().startswith(b"\x89PNG")
    assert secret.read_text() == "mine"
    shutil.rmtree(run / "figures")
    for name in ("figures", "checkpoint"):
        (run / name).symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").mkdir()
    with pytest.raises(ValueError, match="figures is a symbolic link"):
        write_report(run, fit, sections=[], **words)
    state = State(jnp.zeros(1), (), jnp.zeros((), jnp.int32), jax.random.key(0))
    with pytest.raises(ValueError, match="checkpoint is a symbolic link"):
        Recorder(run, {}).checkpoint(state, Best())
    fit.save(run)
    assert not list((tmp_path / "elsewhere").iterdir())


def test_temporary_files_of_processes_that_are_no_more_are_removed(tmp_path):
    child = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True, text=True
    )
    dead, own = (tmp_path / f".arcta-{process}-{'0' * 16}" for process in (child.stdout.strip(), os.getpid()))
    alive, other = tmp_path / f".arcta-{os.getppid()}-{'0' * 16}", tmp_path / ".arcta-notes"
    for path in (dead, own, alive, other):
        path.touch()
    clean(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([alive, other])


def test_arrays_that_no_header_names_are_removed_and_nothing_else(tmp_path):
    (tmp_path / "mine.safetensors").touch()
    for number in range(5):
        write_bundle(tmp_path, "b", {}, {"x": {"n": np.full(3, number)}})
    assert {path.name for path in tmp_path.glob("*.safetensors")} > {"mine.safetensors"}
    assert len(list(tmp_path.iterdir())) == 5, "two headers, their arrays, and a file that is not arcta's"


# One writer ------------------------------------------------------------------------------------------------------------


HOLD = """
import pathlib, sys, time
from arcta.training.lock import lock
with lock(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


@posix
def test_a_second_writer_is_told_who_the_first_is_and_a_dead_one_does_not_block(tmp_path):
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path / "run")], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    holder.stdout.readline()
    fit = some_fit()
    with pytest.raises(ValueError, match=rf"process {holder.pid} on .* since \d{{4}}-.*Wait until it has finished"):
        fit.save(tmp_path / "run")
    holder.kill()
    holder.wait()
    assert (tmp_path / "run" / ".lock").exists()
    fit.save(tmp_path / "run")
    assert not list((tmp_path / "run").glob(".*"))
    with lock(tmp_path / "run"):
        assert told(read_run(tmp_path / "run")), "readers need no lock"
        with pytest.raises(ValueError, match=f"process {os.getpid()}"):
            fit.save(tmp_path / "run")


@posix
def test_many_writers_of_one_folder_never_write_at_once(tmp_path):
    """Three processes that take the lock whenever they can: each adds one to a number in a file, without any getting lost."""
    code = textwrap.dedent("""
        import pathlib, sys, time
        from arcta.training.lock import lock
        folder = pathlib.Path(sys.argv[1])
        for _ in range(10):
            while True:
                try:
                    with lock(folder):
                        number = int((folder / "n").read_text())
                        time.sleep(0.0005)
                        (folder / "n").write_text(str(number + 1))
                    break
                except ValueError:
                    time.sleep(0.0005)
    """)
    (tmp_path / "n").write_text("0")
    jobs = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path)]) for _ in range(3)]
    assert [job.wait(timeout=120) for job in jobs] == [0] * 3
    assert (tmp_path / "n").read_text() == "30"


def test_a_reader_beside_a_writer_always_finds_a_whole_save(tmp_path):
    code = textwrap.dedent("""
        import pathlib, sys, numpy as np
        from arcta.training.bundle import write_bundle
        for n in range(100000):
            write_bundle(pathlib.Path(sys.argv[1]), "b", {"n": n}, {"x": {"n": np.full(100, n)}})
            if n == 0: print("ready", flush=True)
    """)
    writer = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE)
    assert writer.stdout is not None
    writer.stdout.readline()
    try:
        end, seen = time.monotonic() + 3, set()
        while time.monotonic() < end:
            header, files = read_bundle(tmp_path, "b")
            assert np.all(files["x"]["n"] == header["n"])
            seen.add(header["n"])
    finally:
        writer.kill()
        writer.wait()
    assert len(seen) > 3


# The cache of compiled programs ----------------------------------------------------------------------------------------


@posix
def test_a_cache_that_others_can_write_to_is_refused(tmp_path):
    folder = tmp_path / "arcta" / "compiled"
    before = jax.config.jax_compilation_cache_dir
    try:
        assert keep_programs(folder)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        for mode in (0o777, 0o720, 0o702):
            folder.chmod(mode)
            with pytest.warns(UserWarning, match="can be written to by others"):
                assert not keep_programs(folder)
        folder.chmod(0o755)
        assert keep_programs(folder), "others may have read it, no more"
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        folder.parent.chmod(0o777)
        assert "others" in fault_of(folder), "they could put another folder in its place"
        folder.parent.chmod(0o1777)
        assert not fault_of(folder), "but not where only owners may"
        folder.rename(folder.with_name("real"))
        folder.symlink_to(folder.with_name("real"))
        with pytest.warns(UserWarning, match="is a link or a file"):
            assert not keep_programs(folder)
        folder.unlink()
        folder.write_text("")
        with pytest.warns(UserWarning, match="compiled programs are not kept"):
            assert not keep_programs(folder)
        if os.geteuid() == 0:
            folder.unlink()
            folder.mkdir(mode=0o700)
            os.chown(folder, 12345, -1)
            with pytest.warns(UserWarning, match="belongs to another user"):
                assert not keep_programs(folder)
    finally:
        jax.config.update("jax_compilation_cache_dir", before)


def test_a_damaged_entry_of_the_cache_is_deleted_and_compiled_again(tmp_path):
    code = textwrap.dedent("""
        import sys, pathlib, warnings, jax
        warnings.simplefilter("error")
        from arcta.runtime.cache import keep_programs
        seen = []
        jax.monitoring.register_event_listener(lambda event, **_: seen.append(event.rsplit("/", 1)[-1]))
        assert keep_programs(pathlib.Path(sys.argv[1]))
        print(float(jax.jit(lambda x: x * 3 + 1)(2.0)), seen.count("cache_hits"), seen.count("cache_misses"))
    """)

    def compute() -> list[float]:
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "c")], capture_output=True, text=True, check=True
        )
        return [float(word) for word in done.stdout.split()]

    number, hits, misses = compute()
    assert (number, hits) == (7.0, 0)
    assert misses > 0
    assert compute() == [7.0, misses, 0]
    damages = (
        lambda data: data[:40] + bytes([data[40] ^ 4]) + data[41:],
        lambda data: data[: len(data) // 2],
        lambda data: b"",
    )
    for i, path in enumerate(path for path in (tmp_path / "c").iterdir() if path.is_file()):
        path.write_bytes(damages[i % 3](path.read_bytes()))
    assert compute() == [7.0, 0, misses]
    assert compute() == [7.0, misses, 0], "what was damaged has been replaced"
