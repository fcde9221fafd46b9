"""What all studies share, and the quick version of each."""

from __future__ import annotations

import json
import runpy

import numpy as np
import pytest
from places import mocap_path

from arcta.outside import study as shared
from arcta.outside.study import FOLDER, Study, known, markdown, plain


def test_finished_jobs_are_not_run_again(tmp_path):
    """A second run takes finished rows from the file; other settings or more jobs run only what is new."""
    calls = []

    def square(x: int) -> dict[str, float]:
        calls.append(x)
        if x == 3:
            raise FloatingPointError("three is too many")
        return {"y": float(x**2)}

    study = Study("squares", tmp_path, quiet=True)
    rows = study.measure([{"x": 1}, {"x": 2}], square, {"power": 2})
    assert rows == [{"x": 1, "y": 1.0}, {"x": 2, "y": 4.0}]
    more = study.measure([{"x": 1}, {"x": 2}, {"x": 3}], square, {"power": 2})
    assert calls == [1, 2, 3]
    assert "three is too many" in more[2]["error"]
    study.measure([{"x": 1}], square, {"power": 2.5})
    assert calls == [1, 2, 3, 1]
    study.finish({"total": np.float64(5.0)}, {"table": markdown(rows)})
    stored = json.loads((tmp_path / "result.json").read_text())
    assert stored["summary"] == {"total": 5.0}
    assert len(stored["rows"]) == 4
    assert {"settings", "versions", "machine", "quick"} <= set(stored)


def test_tables_go_into_the_page_of_a_full_run(tmp_path, monkeypatch):
    monkeypatch.setattr(shared, "FOLDER", tmp_path / "studies")
    page = tmp_path / "docs" / "studies" / "squares.md"
    page.parent.mkdir(parents=True)
    page.write_text("Before\n<!-- table -->\nold\n<!-- end -->\nAfter\n<!-- none -->\n<!-- end -->\n")
    for out, shown in ((tmp_path / "elsewhere", "old"), (tmp_path / "studies" / "results" / "squares", "| x |")):
        study = Study("squares", out, quiet=True)
        rows = study.measure([{"x": 1}], lambda x: {}, {})
        study.finish({}, {"table": markdown(rows), "none": "nothing"})
        assert shown in page.read_text()
    assert page.read_text().endswith("<!-- end -->\nAfter\n<!-- none -->\nnothing\n<!-- end -->\n")


def test_what_is_not_finite_is_stored_as_null():
    assert plain({"a": np.array([1.0, np.nan]), 2: (np.inf, np.int64(3))}) == {"a": [1.0, None], "2": [None, 3]}


LONG = {"video", "lotka-volterra", "lorenz", "diffusion", "monte-carlo", "mocap"}  # many programs to compile, each


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in LONG else name for name in known()]
)
def test_quick_version(name, tmp_path):
    """Every study runs in its smoke version: rows without errors, a summary, figures as PNG and SVG."""
    if name == "hare-lynx" and not (FOLDER.parents[1] / "shared" / "data" / "real").is_dir():
        pytest.skip("posteriordb's files are not beside the clone")
    if name.startswith("mocap") and mocap_path() is None:
        pytest.skip("the MOCAP file is at neither $ARCTA_MOCAP nor ../shared/data/mocap35.mat")
    study = Study(name, tmp_path, quick=True, quiet=True, data=mocap_path() if name.startswith("mocap") else None)
    runpy.run_path(str(FOLDER / f"{name.replace('-', '_')}.py"))["run"](study)
    stored = json.loads(study.file.read_text())
    assert stored["summary"]
    assert not [row["row"]["error"] for row in stored["rows"] if "error" in row["row"]]
    if name != "families":
        assert {path.suffix for path in tmp_path.iterdir()} >= {".png", ".svg", ".json"}


def test_every_study_has_a_page_and_stored_results():
    for name in known():
        if name != "families":
            text = (FOLDER.parent / "docs" / "studies" / f"{name}.md").read_text()
            assert f"arcta study {name}" in text
        stored = json.loads((FOLDER / "results" / name / "result.json").read_text())
        assert not stored["quick"]
        assert {"summary", "settings", "versions", "machine", "rows"} <= set(stored)
