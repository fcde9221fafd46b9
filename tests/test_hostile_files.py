"""Files made to do harm, or damaged: each is one `ValueError` in a sentence or two, at once and without filling the memory."""

from __future__ import annotations

import contextlib
import io
import os
import resource
import struct
import tracemalloc
import warnings
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import arcta
from arcta.data.read import reading
from arcta.data.readers import files
from arcta.data.readers.source import Options
from arcta.outside.cli.options import parse_settings
from arcta.outside.config import load_configuration

SENTENCES = 700  # letters of a message


def refused(source, match: str, options: Options = Options()) -> None:
    """`reading` refuses it in few words and little memory."""
    tracemalloc.start()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(ValueError, match=match) as caught:
                reading(source, options)
        assert tracemalloc.get_traced_memory()[1] < 200 * 2**20
    finally:
        tracemalloc.stop()
    assert type(caught.value) in (ValueError, files.TooLarge)
    assert len(str(caught.value)) < SENTENCES
    assert str(caught.value).endswith((".", "…"))


def png(width: int, height: int, data: bytes = b"") -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("width", "height"), [(50_000, 50_000), (2**31 - 1, 2**31 - 1), (13_000, 13_000), (16_000, 17_000)]
)
def test_pictures_that_claim_many_pixels(tmp_path, width, height):
    (tmp_path / "frame1.png").write_bytes(png(width, height))
    (tmp_path / "frame2.png").write_bytes(png(width, height))
    refused(tmp_path, "too many pixels|GiB of memory")


def test_pictures_that_are_damaged(tmp_path):
    whole = png(4, 4, bytes(20))
    for name, content in {"cut": whole[:40], "flat": b"", "other": b"GIF89a", "short": png(4, 4, b"\0")}.items():
        folder = tmp_path / name
        folder.mkdir()
        (folder / "a1.png").write_bytes(content)
        refused(folder, "a1.png is not a readable PNG")
    (tmp_path / "text").mkdir()
    # A compressed comment that unpacks to a hundred megabytes.
    body = b"k\0\0" + zlib.compress(bytes(100 * 2**20), 9)
    chunk = struct.pack(">I", len(body)) + b"zTXt" + body + struct.pack(">I", zlib.crc32(b"zTXt" + body))
    (tmp_path / "text" / "a1.png").write_bytes(whole[:33] + chunk + whole[33:])
    refused(tmp_path / "text", "a1.png is not a readable PNG")


def npy(shape: object, dtype: str = "<f8", data: bytes = b"") -> bytes:
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data


def archive(path: Path, **entries: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in entries.items():
            file.writestr(f"{name}.npy", content)
    return path


TIMES = npy("(4,)", data=np.arange(4.0).tobytes())


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (npy("(1000000, 1000000)"), "GiB of memory"),
        (npy("(99999999999999999999,)"), "GiB of memory"),
        (npy("(1, 4)", "<U500000000"), "GiB of memory"),
        (npy("(-4, -4)"), "less than nothing|not a readable"),
        (npy("(4,)", "|O", b"cos\nsystem\n(S'true'\ntR."), "Python objects"),
        (npy("(" * 3000 + ")" * 3000), "not a readable NPZ"),
        (npy("(4,)", data=bytes(20)), "not as long as it says"),
        (npy("(4,)", data=bytes(64)), "not as long as it says"),
        (b"no array", "not a readable NPZ"),
        (npy("(5,)", data=bytes(40)), "need|same length|fit"),
        (npy("()", data=bytes(8)), "need|fit|length"),
    ],
)
def test_archives_that_claim_what_they_do_not_hold(tmp_path, content, match):
    refused(archive(tmp_path / "a.npz", times=TIMES, values=content), match)


def test_archives_that_unpack_to_more_than_they_say(tmp_path):
    refused(archive(tmp_path / "a.npz", times=TIMES, values=npy("(4,)") + bytes(300 * 2**20)), "not as long as it says")
    whole = archive(tmp_path / "b.npz", times=TIMES, values=TIMES).read_bytes()
    for place in range(0, len(whole), 11):
        damaged = whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :]
        (tmp_path / "c.npz").write_bytes(damaged)
        with contextlib.suppress(ValueError):
            reading(tmp_path / "c.npz")


def test_arrays_that_do_not_fit_together(tmp_path):
    values = np.zeros((3, 4, 2))
    good = {"times": np.arange(4.0), "values": values}
    bad = [
        {"mask": np.ones((2, 4, 2), bool)},
        {"names": np.array(["a"])},
        {"channels": np.array("x")},
        {"units": np.array(["m"])},
        {"inputs": np.zeros((1, 4))},
        {"times": np.zeros(())},
        {"times": np.zeros((3, 4, 2))},
        {"values": values + 1j},
    ]
    for more in bad:
        np.savez(tmp_path / "a.npz", **(good | more))
        refused(tmp_path / "a.npz", "a.npz")
    np.savez(tmp_path / "a.npz", times=np.array(["13/02/2020", "14/02/2020"]), values=np.zeros(2))
    series = reading(tmp_path / "a.npz").series[0]
    assert series.when(series.times[0]) == "2020-02-13 00:00:00"


def test_a_small_table_of_very_many_rows(tmp_path, monkeypatch):
    """Equal values take no room in a Parquet file; its rows are counted before they are unpacked."""
    path = tmp_path / "a.parquet"
    pd.DataFrame({"t": np.zeros(2**21), "x": 0.0}).to_parquet(path)
    assert path.stat().st_size < 2**20
    monkeypatch.setattr(files, "LARGEST", 2**24)
    refused(path, "GiB of memory")


def test_stores_that_claim_terabytes(tmp_path):
    zarr = pytest.importorskip("zarr")
    for name, shape, chunks in (("long", (10**13,), (1000,)), ("wide chunk", (10,), (10**12,))):
        path = tmp_path / f"{name}.zarr"
        group = zarr.create_group(str(path))
        for array in ("time", "x"):
            group.create_array(array, shape=shape, chunks=chunks, dtype="f8", dimension_names=["time"])
        refused(path, "GiB of memory|not a readable Zarr")
    (tmp_path / "deep.zarr").mkdir()
    (tmp_path / "deep.zarr" / "zarr.json").write_text("[" * 200_000 + "]" * 200_000)
    refused(tmp_path / "deep.zarr", "not a readable Zarr")
    for content in ("", "{}", '{"zarr_format": 3, "node_type": "array"}', "null", '{"zarr_format": 9}'):
        (tmp_path / "deep.zarr" / "zarr.json").write_text(content)
        refused(tmp_path / "deep.zarr", "deep.zarr")


@pytest.mark.parametrize("content", ["a = " + "[" * 200_000 + "]" * 200_000, "[data]\ntime = " + "[" * 200 + "]" * 200,
    "[data]\ntime = " + "9" * 5000, "[data]\nday_first = \"perhaps\"", "\x00", "[data]\ntime = 'a", "[data.time]\na = 1",
    "[training]\nsteps = 1e400", "[data]\nmissing = [[1]]", "data = 1", "[nothing]\n"])  # fmt: skip
def test_configurations_that_are_none(tmp_path, content):
    path = tmp_path / "a.toml"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"a\.toml|setting") as caught:
        load_configuration(path)
    assert type(caught.value) is ValueError
    assert len(str(caught.value)) < SENTENCES
    assert parse_settings([f"x={content.splitlines()[0]}"])


def test_what_is_no_regular_file_is_refused_and_nothing_hangs(tmp_path):
    os.mkfifo(tmp_path / "pipe.csv")
    refused(tmp_path / "pipe.csv", "no regular file")
    with pytest.raises(ValueError, match="no regular file"):
        load_configuration(tmp_path / "pipe.csv")
    (tmp_path / "frames").mkdir()
    os.mkfifo(tmp_path / "frames" / "a1.png")
    refused(tmp_path / "frames", "no regular file")
    (tmp_path / "a.zarr").mkdir()
    os.mkfifo(tmp_path / "a.zarr" / "zarr.json")
    refused(tmp_path / "a.zarr", "no regular file")
    (tmp_path / "loop.csv").symlink_to(tmp_path / "loop.csv")
    refused(tmp_path / "loop.csv", "loop.csv")
    refused(Path("/dev/zero"), "no regular file")
    refused(str(tmp_path / ("n" * 5000)), "cannot be opened")
    refused("a\0b.csv", "cannot be opened|nothing is at")
    (tmp_path / "folder.csv").mkdir()
    refused(tmp_path / "folder.csv", "without .png")
    refused(tmp_path / "pipe.csv" / "below.csv", "nothing is at")


def test_what_may_not_be_read_and_what_changes_meanwhile(tmp_path, monkeypatch):
    path = tmp_path / "a.csv"
    path.write_text("t,x\n0,1\n1,2\n")
    before = os.fstat
    asked: list[int] = []

    def fstat(number: int) -> os.stat_result:
        asked.append(number)
        if len(asked) == 2:
            path.write_text("t,x\n0,1\n1,2\n2,3\n")
        return before(number)

    monkeypatch.setattr(os, "fstat", fstat)
    refused(path, "changed while it was read")
    monkeypatch.undo()

    def deny(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", deny)
    with pytest.raises(ValueError, match="permission denied"):
        reading(path)


def test_a_file_beyond_the_limit_is_not_read(tmp_path):
    path = tmp_path / "a.csv"
    with path.open("wb") as file:
        file.truncate(files.LARGEST + 1)  # a hole, no bytes on disk
    refused(path, "GiB of memory.*arcta.store")


@pytest.mark.parametrize("count", [2_000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_thousands_of_columns_take_seconds(tmp_path, count):
    """Time of the processor, far above what it takes and far below what a quadratic search for names does."""
    names = ",".join(f"channel {i}" for i in range(count))
    cells = ",".join(f"{i / 8}" for i in range(count))
    path = tmp_path / "wide.csv"
    path.write_text(f"t,{names}\n" + "".join(f"{i},{cells}\n" for i in range(10)))
    begin = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    series = reading(path).series[0]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_utime - begin < 2.5e-3 * count
    np.testing.assert_array_equal(series.values[7], np.arange(count) / 8)
    again = reading(path, Options(channels=series.channels)).series[0]
    assert again.channels == series.channels


NAMES = ["cost $ per $x_{", r"\frac^_{$", "<script>alert(1)</script>-->", "🚀 שלום", "n" * 300, "a\nb\x07&amp;"]


def test_names_are_drawn_as_they_are():
    """Nothing in a name is a formula, and no name breaks a figure."""
    from arcta.outside.page import svg
    from arcta.predict.figures import data_overview, drift_curve, label, phase_portrait, save_figure, states_over_time

    x = np.linspace(0, 1, 20)
    many = np.tile(x[:, None], (1, len(NAMES)))
    figures = [
        data_overview([(label(name, name), x, x, []) for name in NAMES], xlabel=label("time", "$s$")),
        states_over_time(x, many, many - 1, many + 1, NAMES, "$t$"),
        drift_curve(x, x, x, x, names=(NAMES[0], NAMES[1])),
        phase_portrait(
            {NAMES[0]: lambda z: z + 1}, np.zeros(2), np.ones(2), points=many[:, :2], names=(NAMES[1], NAMES[4])
        ),
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for figure in figures:
            save_figure(figure, io.BytesIO(), format="png")
            page = svg(figure)
            assert "<script" not in page
            assert page.rstrip().endswith("</svg>")
    assert len(label("n" * 300, "u" * 300)) < 100
    assert figures[0].axes[0].get_ylabel() == f"{NAMES[0]} [{NAMES[0]}]"


@pytest.mark.slow
def test_a_report_is_written_whatever_the_names_are(tmp_path):
    from arcta.outside.report import report

    values = np.random.default_rng(0).normal(size=(80, len(NAMES))).cumsum(axis=0)
    series = arcta.Series(np.arange(80.0), values, channels=NAMES, units=NAMES, name=NAMES[2], time_unit="$s$")
    fit = arcta.fit(
        arcta.LatentSDE(latent_size=2), series, key=0, training=arcta.Training(steps=3), holdout=0.2, progress=False
    )
    page = report(fit, tmp_path).read_text()
    assert "<script" not in page
