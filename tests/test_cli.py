"""The command line on real files: every task in every format, exit codes, nothing half-written; and the page in a browser."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import arcta
from arcta.outside.cli import commands as cli
from arcta.outside.cli.options import Settings, app
from arcta.outside.config import load_configuration

ZONE = "Europe/Berlin"
ROWS = 160


def table() -> pd.DataFrame:
    """Hourly, across the end of winter time, with a gap, counts and an input."""
    rng = np.random.default_rng(0)
    hours = np.arange(ROWS)
    dates = pd.date_range("2024-03-28", periods=ROWS, freq="h", tz=ZONE)
    heat = np.sin(2 * np.pi * hours / 24)
    frame = pd.DataFrame(
        {
            "when": dates,
            "level [m]": np.sin(2 * np.pi * hours / 30) + 0.1 * rng.standard_normal(ROWS),
            "visits": rng.poisson(np.exp(1 + 0.5 * heat)),
            "heat": heat,
        }
    )
    frame.loc[40:55, "level [m]"] = np.nan
    return frame


def save(frame: pd.DataFrame, folder: Path, kind: str) -> Path:
    """The table as a file of a kind, awkward where the kind can be."""
    plain = frame.rename(columns={"level [m]": "level"})
    path = folder / f"site.{kind}"
    if kind == "csv":  # byte-order mark, semicolons, an index column, trailing empty rows
        path.write_text(frame.to_csv(sep=";") + ";;;;\n;;;;\n", encoding="utf-8-sig")
    elif kind == "tsv":
        frame.to_csv(path, sep="\t", index=False)
    elif kind == "parquet":
        frame.astype({"level [m]": "float32", "visits": "int16"}).to_parquet(path)
    elif kind == "npz":
        local = (
            plain["when"].dt.tz_localize(None).to_numpy("datetime64[ns]")
        )  # cannot hold a zone; the run remembers it
        np.savez(path, time=local, level=plain["level"], visits=plain["visits"], heat=plain["heat"])
    else:
        local = plain.assign(time=plain["when"].dt.tz_localize(None)).drop(columns="when")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            local.set_index("time").to_xarray().to_zarr(path)
    return path


KINDS = ["csv", "tsv", "parquet", "npz", "zarr"]


def run(*words: object) -> int:
    """The command in this process; its exit code."""
    before = sys.argv
    sys.argv = ["arcta", *map(str, words)]
    try:
        cli.main()
    except SystemExit as stop:
        return int(stop.code or 0)
    finally:
        sys.argv = before
    return 0


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run trained by the command line on the awkward CSV, and the folder of its files."""
    pytest.importorskip("zarr")
    folder = tmp_path_factory.mktemp("cli")
    source = save(table(), folder, "csv")
    code = run("fit", source, "--out", folder / "run", "--inputs", "heat", "--time-zone", ZONE, "--steps", 30, "-q", "--json",
               "--set", "training.num_draws=1", "--no-report")  # fmt: skip
    assert code == 0
    return folder


def future(folder: Path, hours: int = 12) -> Path:
    dates = pd.date_range(table()["when"].iloc[-1], periods=hours + 1, freq="h")
    pd.DataFrame({"when": dates, "heat": np.sin(2 * np.pi * (ROWS - 1 + np.arange(hours + 1)) / 24)}).to_csv(
        folder / "future.csv", index=False
    )
    return folder / "future.csv"


def test_fit_says_what_it_read_and_leaves_a_run(trained, capsys):
    assert run("inspect", trained / "run", "--json") == 0
    stored = json.loads(capsys.readouterr().out)
    assert stored["reading"]["kinds"] == ["gaussian", "poisson"]
    assert stored["data"]["calendar"] == {"origin": "2024-03-27T23:00:00", "unit": "h", "zone": ZONE}
    assert stored["data"]["input_names"] == ["heat"]
    assert any("numbers the rows" in note for note in stored["about"]["notes"])
    assert any("empty" in note for note in stored["about"]["notes"])
    assert run("inspect", trained / "run") == 0
    assert "level [m]: real" in capsys.readouterr().out


def test_values_that_mean_missing_may_be_negative_and_end_at_the_next_option():
    line = ["fit", "x.csv", "--missing", "-999", "NA", "-1e3", "--time-unit", "s", "--steps", "5"]
    given = app.parse_args(line)[1].arguments
    assert given["reading"].settings() == {"data.missing": [-999.0, "NA", -1000.0], "data.time_unit": "s"}
    assert given["settings"].steps == 5
    given = app.parse_args(["fit", "x.csv", "--missing=-", "--steps", "5"])[1].arguments
    assert given["reading"].missing == ["-"]


def test_the_order_of_day_and_month_is_an_option_of_the_line_and_of_the_file(tmp_path):
    for line, want in (("--day-first", True), ("--no-day-first", False)):
        given = app.parse_args(["fit", "x.csv", line])[1].arguments
        assert given["reading"].settings() == {"data.day_first": want}
        assert Settings().configuration(given["reading"].settings()).data.day_first is want
    path = tmp_path / "a.toml"
    path.write_text('[data]\nday_first = true\ndecimal = ","\n')
    assert load_configuration(path).data.day_first is True
    assert load_configuration(path).data.decimal == ","


@pytest.mark.parametrize("kind", KINDS)
def test_every_task_takes_every_format(trained, tmp_path, kind, capsys):
    """New data in any format: forecasts start from it, smoothing covers it, scores and backtests accept it."""
    if kind == "zarr":
        pytest.importorskip("zarr")
    parts = {
        "whole": table(),
        "early": table().iloc[: ROWS - 20],
        "after": table().iloc[ROWS - 20 :].reset_index(drop=True),
    }
    for name in parts:
        (tmp_path / name).mkdir()
    data, early, after = (save(part, tmp_path / name, kind) for name, part in parts.items())
    model = trained / "run"
    zone = pd.DatetimeIndex(table()["when"])
    assert run("forecast", model, "--given", data, "--horizon", "6h", "--future-inputs", future(tmp_path), "--out",
               tmp_path / "f.csv",
               "--samples", 16, "-q") == 0, capsys.readouterr().err  # fmt: skip
    ahead = pd.read_csv(tmp_path / "f.csv")
    assert len(ahead) == 6
    first = pd.Timestamp(ahead["time"].iloc[0])
    assert first == zone[-1] + pd.Timedelta("1h"), "dates come back in the zone of the training data"
    assert first.utcoffset() == pd.Timedelta("2h")
    assert {"level mean", "level q5", "level q95", "visits mean"} <= set(ahead.columns)
    assert (
        run("smooth", model, "--data", data, "--every", "30min", "--out", tmp_path / "s.parquet", "--samples", 16, "-q")
        == 0
    )
    smooth = pd.read_parquet(tmp_path / "s.parquet")
    assert len(smooth) == 2 * ROWS - 1
    assert smooth["level mean"].notna().all(), "the gap is filled"
    assert run("score", model, after, "--given", early, "--json", "--samples", 16, "-q") == 0
    assert 0 <= json.loads(capsys.readouterr().out)["coverage_90"] <= 1
    if kind == "csv":
        assert run("backtest", data, "--run", model, "--horizon", "8h", "--origins", 2, "--json", "-q") == 0
        result = json.loads(capsys.readouterr().out)
        assert {row["method"] for row in result["methods"]} >= {"latent SDE", "last value", "VAR", "linear state space"}
        assert isinstance(result["beats_naive"], bool)


def test_the_same_through_the_api(trained):
    fit = arcta.load(trained / "run")
    frame = table().set_index("when")
    series = arcta.read(frame, inputs="heat", time_zone=ZONE)
    known = table()[["when", "heat"]].assign(when=lambda t: t["when"] + pd.Timedelta(hours=ROWS)).set_index("when")
    dates = pd.date_range(frame.index[-1] + pd.Timedelta("1h"), periods=6, freq="h")
    ahead = fit.forecast(dates, given=series, inputs=known, num_samples=8)
    assert ahead.to_frame().index.equals(pd.DatetimeIndex(dates, freq=None).rename("time"))
    smooth = fit.smooth(series, num_samples=8)
    assert smooth.to_frame().index.equals(frame.index.rename("time"))
    assert fit.score(num_samples=8).keys() >= {"rmse", "crps"}
    fresh = fit.sample(np.arange(5.0), inputs=np.zeros((5, 1)), num_samples=3)
    assert fresh.observations.shape == (3, 5, 2)


def test_sample_and_default_score(trained, tmp_path, capsys):
    inputs = tmp_path / "u.csv"
    table()[["when", "heat"]].to_csv(inputs, index=False)
    assert run("sample", trained / "run", "-n", 2, "--horizon", "5h", "--future-inputs", inputs, "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == 12
    assert {row["sample"] for row in rows} == {0, 1}
    assert run("score", trained / "run", "--samples", 8, "--json") == 0
    assert "rmse" in json.loads(capsys.readouterr().out)


def test_configuration_is_written_read_and_overridden(tmp_path, capsys):
    path = tmp_path / "c.toml"
    assert run("init", path) == 0
    assert run("init", path) == 2
    assert "--force" in capsys.readouterr().err
    assert load_configuration(path) == Settings().configuration({})
    path.write_text(path.read_text().replace("steps = 2000", "steps = 7").replace("# latent_size =", "latent_size = 3"))
    pairs = ["model.rotation=false", 'model.likelihood={"x": "poisson"}']
    merged = Settings(config=path, steps=9, set_=pairs).configuration({})
    assert (merged.training.steps, merged.model.latent_size, merged.model.rotation) == (9, 3, False)
    assert merged.model.likelihood == {"x": "poisson"}


BAD = {
    "no file": (["fit", "{tmp}/none.csv"], "nothing is at"),
    "no time column": (["fit", "{csv}", "--time", "hour"], "no column 'hour'"),
    "wrong delimiter": (["fit", "{csv}", "--delimiter", "|"], "one column"),
    "empty column": (["fit", "{tmp}/hole.csv"], "column 'y' of hole.csv is empty"),
    "binary": (["fit", "{tmp}/broken.parquet"], "broken.parquet is not a readable Parquet file"),
    "bad setting": (["fit", "{csv}", "--set", "model.latent=3"], "did you mean 'latent_size'"),
    "bad value": (["fit", "{csv}", "--set", "training.steps=many"], "training.steps"),
    "no run": (["forecast", "{tmp}/nowhere", "--horizon", "3"], "no saved run"),
    "no horizon": (["forecast", "{run}"], "exactly one of --horizon and --at"),
    "bad horizon": (["forecast", "{run}", "--horizon", "soon"], "positive number"),
    "future inputs missing": (["forecast", "{run}", "--horizon", "3h"], "inputs heat"),
    "future inputs too short": (
        ["forecast", "{run}", "--horizon", "40h", "--future-inputs", "{future}"],
        "end at 2024-04-0",
    ),
    "future inputs lack one": (
        ["forecast", "{run}", "--horizon", "3h", "--future-inputs", "{tmp}/hole.csv", "--time", "t"],
        "no column 'heat'",
    ),
    "other channels": (["smooth", "{run}", "--data", "{tmp}/other.csv"], "other.csv has no column 'level'"),
    "bad out": (["smooth", "{run}", "--out", "{tmp}/x.docx"], "--out knows"),
    "on disk, and a column": (["fit", "{csv}", "--spacing", "1", "--time", "t"], "stays on disk .* leave --time out"),
    "on disk, and held out": (["fit", "{csv}", "--spacing", "1", "--holdout", "0.2"], "npy|held|holdout"),
    "on disk, two clocks": (["fit", "{csv}", "--spacing", "1", "--times", "{csv}"], "no --times beside it"),
    "on disk, not an array": (["fit", "{csv}", "--spacing", "1"], "npy"),
    "a run is there": (["fit", "{csv}", "--out", "{run}"], "holds a run already.*--resume.*--force"),
    "no study": (["study", "nothing"], "no study 'nothing'"),
    "no seeds": (["study", "lorenz", "--seeds", "0"], "--seeds must be at least 1"),
}


def test_a_file_that_stays_on_disk(tmp_path, capsys):
    times = 0.5 * np.arange(600)
    np.save(tmp_path / "long.npy", np.sin(times)[:, None] + 0.05 * np.random.default_rng(0).standard_normal((600, 2)))
    np.save(tmp_path / "times.npy", times)
    for option in (("--spacing", "0.5"), ("--times", str(tmp_path / "times.npy"), "--no-report")):
        words = f"--steps 5 --time-unit s --channels a b --force --out {tmp_path / 'run'}".split()
        assert run("fit", str(tmp_path / "long.npy"), *option, *words, "--json") == 0
        page = tmp_path / "run" / "report.html"
        assert page.exists() != ("--no-report" in option), "that of the run before does not stay"
        assert not page.exists() or "with 600 rows and 2 channels" in page.read_text()
        assert json.loads(capsys.readouterr().out)["stopped"] == "finished"
        loaded = arcta.load(tmp_path / "run")
        assert loaded.layout.channels == ("a", "b")
        assert loaded.context[0].times[-1] == times[-1]
    assert run("fit", str(tmp_path / "long.npy"), *option, *words, "--holdout", "0.2") == 2
    assert "leave holdout= and join_penalty out" in capsys.readouterr().err


@pytest.mark.parametrize("name", BAD)
def test_bad_input_exits_with_two_and_one_sentence(trained, tmp_path, name, capsys):
    words, message = BAD[name]
    (tmp_path / "hole.csv").write_text("t,x,y\n0,1,\n1,2,\n2,3,\n")
    (tmp_path / "broken.parquet").write_bytes(b"no")
    table().rename(columns={"level [m]": "depth"}).to_csv(tmp_path / "other.csv", index=False)
    places = {"tmp": tmp_path, "csv": trained / "site.csv", "run": trained / "run", "future": future(tmp_path)}
    out = ["--out", str(tmp_path / "new")] if words[0] == "fit" and "--out" not in words else []
    before = sorted(path.name for path in tmp_path.iterdir())
    assert run(*[word.format(**places) for word in words], *out) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("arcta: ")
    assert pd.Series([error]).str.contains(message, regex=True).all(), error
    assert sorted(path.name for path in tmp_path.iterdir()) == before, "nothing is half-written"


@pytest.mark.parametrize(
    "command",
    ["fit", "forecast", "smooth", "sample", "score", "backtest", "report", "inspect", "study", "demo", "init"],
)
def test_help_has_an_example(command, capsys):
    assert run(command, "--help") == 0
    text = capsys.readouterr().out
    assert f"Example: arcta {command}" in text
    assert "--quiet" in text
    assert "--json" in text or "--out" in text, "a result that a machine can read"


def test_ctrl_c_in_training_saves_what_was_reached(tmp_path):
    table().to_csv(tmp_path / "a.csv", index=False)
    words = [
        "fit",
        tmp_path / "a.csv",
        "--channels",
        "level",
        "--out",
        tmp_path / "run",
        "--steps",
        10_000_000,
        "--no-report",
    ]
    job = subprocess.Popen([sys.executable, "-m", "arcta", *map(str, words)], stderr=subprocess.PIPE, text=True)
    assert job.stderr is not None
    deadline = time.time() + 240
    for line in job.stderr:
        if "steps/s" in line or time.time() > deadline:
            break
    job.send_signal(signal.SIGINT)
    assert job.wait(timeout=120) == 130
    assert arcta.load(tmp_path / "run").stopped == "interrupted"


# Frames and the page -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def film(tmp_path_factory):
    """A report on frames, through the command line."""
    from PIL import Image

    folder = tmp_path_factory.mktemp("film") / "frames"
    folder.mkdir()
    y, x = np.mgrid[:8, :8]
    for i in range(40):
        cx, cy = 4 + 2 * np.cos(0.3 * i), 4 + 2 * np.sin(0.3 * i)
        Image.fromarray(((((x - cx) ** 2 + (y - cy) ** 2) < 2) * 255).astype(np.uint8)).save(folder / f"{i:03d}.png")
    code = run("fit", folder, "--out", folder.parent / "run", "--steps", 10, "--set", "training.num_draws=1", "-q")
    assert code == 0
    return folder.parent / "run"


def test_frames_have_pictures_and_a_film(film):
    page = (film / "report.html").read_text()
    assert "data:image/gif;base64" in page
    assert (film / "figures" / "forecast.gif").read_bytes()[:3] == b"GIF"
    assert (film / "figures" / "reconstruction.png").is_file()
    assert arcta.load(film).reading.kinds[0] == "bernoulli"


def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = os.environ.get("ARCTA_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("no chromium here; install Debian's package `chromium`, or point $ARCTA_CHROMIUM at one")
    return playwright, chromium


@pytest.mark.parametrize("which", ["series", "film"])
def test_report_in_a_browser(trained, film, which, tmp_path):
    """No error in the console, no request leaves the page, every figure is drawn, less than 10 MB."""
    playwright, chromium = browser()
    if which == "series":
        assert run("report", trained / "run", "--origins", 2, "-q") == 0
    page_path = (trained / "run" if which == "series" else film) / "report.html"
    assert page_path.stat().st_size < 10e6
    wanted = [
        "The data",
        "Forecast against what was held out",
        "Calibration",
        *(["What each channel is made of"] if which == "series" else ["The latent state", "drift"]),
        "Training",
        "Parameters",
        "Settings",
    ]
    with playwright.sync_playwright() as driver:
        window = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = window.new_page(viewport={"width": 1100, "height": 1400})
        problems: list[str] = []
        requests: list[str] = []
        page.on(
            "console", lambda message: problems.append(message.text) if message.type in ("error", "warning") else None
        )
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(page_path.as_uri())
        page.wait_for_load_state("networkidle")
        assert problems == []
        assert [url for url in requests if not url.startswith(("file:", "data:"))] == []
        headings = " ".join(page.locator("h1, h2").all_inner_texts())
        assert all(word in headings for word in wanted), headings
        figures = page.locator("figure svg")
        assert figures.count() >= 6
        for i in range(figures.count()):
            box = figures.nth(i).bounding_box()
            assert box is not None
            assert box["width"] > 200
            assert box["height"] > 80
            assert figures.nth(i).locator("path, image").count() > 10
        for i in range(page.locator("img").count()):
            assert page.locator("img").nth(i).evaluate("image => image.complete && image.naturalWidth > 0")
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        page.screenshot(path=str(tmp_path / "page.png"), full_page=True)
        window.close()
