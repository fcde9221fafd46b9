"""The documentation: every block of code in it runs, every command is one, and what is generated is not stale.

Needs no mkdocs. Training is cut short here (`STEPS`): what the pages print comes from `python docs/pages.py`, which runs them in
full.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import re
import shutil
import warnings
from pathlib import Path

import pytest

import arcta
from arcta.outside import reference
from arcta.outside.cli.commands import app

ROOT = Path(__file__).parents[1]
STEPS = 15
# Blocks that cannot run here, by page: each says why in a comment above it.
NOT_RUN = {f"docs/coming-from/{name}.md": 1 for name in ("darts", "diffrax", "statsmodels", "torchsde")}
# Pages that take seconds with so few steps; the others are marked slow, and run in CI after the rest (`.ci/run`).
QUICK = {"README.md", "docs/install.md", "docs/how-to/files.md", "docs/how-to/runs.md", "docs/tutorials/seasons.md"}


def _load():
    place = importlib.util.spec_from_file_location("pages", ROOT / "docs" / "pages.py")
    module = importlib.util.module_from_spec(place)
    place.loader.exec_module(module)
    return module


pages = _load()
TEXTS = {str(page.relative_to(ROOT)): page.read_text() for page in pages.pages()}
RUNNING = [name for name, text in TEXTS.items() if any(b.kind in pages.RUN for b in pages.blocks(text))]


@pytest.fixture
def quick(monkeypatch, tmp_path):
    """Few steps, whatever a page says, in a folder of its own with a cache of its own."""
    check = arcta.Training.__post_init__

    def cut(self):
        object.__setattr__(self, "steps", min(self.steps, STEPS))
        check(self)

    monkeypatch.setattr(arcta.Training, "__post_init__", cut)
    monkeypatch.setattr(
        "arcta.task.fit.SURE", 0.0
    )  # so few steps settle nothing, and a second training would not either
    usual = inspect.signature(arcta.fit).parameters["training"].default
    before = usual.steps
    object.__setattr__(usual, "steps", STEPS)
    with warnings.catch_warnings(), pages.workplace(tmp_path):
        warnings.simplefilter("ignore")
        yield
    object.__setattr__(usual, "steps", before)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in RUNNING]
)
def test_every_block_of_a_page_runs(name, quick):
    pages.run(ROOT / name)


def test_pages_that_are_quick_are_there():
    assert set(RUNNING) >= QUICK


def test_blocks_that_do_not_run_are_few_and_say_why():
    counts = {name: sum(b.reason is not None for b in pages.blocks(text)) for name, text in TEXTS.items()}
    assert {name: count for name, count in counts.items() if count} == NOT_RUN
    for name, text in TEXTS.items():
        assert text.count("```python") == sum(b.kind == "python" for b in pages.blocks(text)), name


COMMANDS = sorted({command for text in TEXTS.values() for command in pages.commands(text)})


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_one(command):
    app.parse_args(pages.words(command), exit_on_error=False, print_error=False)


def test_the_commands_of_the_readme_run_as_printed(quick):
    names = {"fit", "forecast", "smooth", "backtest"}
    given = [pages.words(command) for command in pages.commands(TEXTS["README.md"])]
    ran = [words[0] for words in given if words[0] in names]
    assert set(ran) == names
    for words in given:
        if words[0] in names:
            app(words, exit_on_error=False, result_action="return_value")
    assert Path("run/report.html").is_file()
    assert Path("forecast.csv").read_text().count("\n") == 11


def test_the_settings_page_is_not_stale_and_every_setting_is_described():
    assert TEXTS["docs/settings.md"] == reference.to_markdown(), "python -m arcta.outside.reference docs/settings.md"
    for row in reference.settings():
        assert len(row.effect) > 10, row
        assert row.section != "training" or row.allowed, row
        for choice in re.findall(r'"([\w-]+)"', row.allowed if row.name != "activation" else ""):
            assert f'"{choice}"' in row.effect or choice == "auto", row


OUTSIDE = {"1 or more": 0, "positive": 0, "0 or more": -1, "0 or more, below 1": 1, "from 0 to 1": 2, "2 or more": 1}


def test_what_the_docs_forbid_is_refused():
    refused = {"model": arcta.LatentSDE, "training": arcta.Training}
    known = [row for row in reference.settings() if row.section in refused and row.allowed in OUTSIDE]
    assert len(known) > 15
    for row in known:
        value = float(OUTSIDE[row.allowed]) if "float" in row.type else OUTSIDE[row.allowed]
        with pytest.raises(ValueError, match=row.name):
            refused[row.section](**{row.name: value})


@pytest.mark.parametrize("name", TEXTS)
def test_links_and_pictures_are_there(name):
    page = ROOT / name
    plain = pages.FENCE.sub("", TEXTS[name])
    for target in re.findall(r"\]\(([^)\s]+)\)", plain):
        path, _, anchor = target.partition("#")
        if "://" in path:
            continue
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), f"{name}: {target}"
        if anchor and found.suffix == ".md" and found.name not in ("api.md",):
            headings = re.findall(r"^#+ (.+)$", found.read_text(), re.M)
            slugs = re.findall(r"\{: #([\w-]+) \}", found.read_text())
            slugs += [re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings]
            assert anchor in slugs, f"{name}: {target}"


def test_every_picture_is_used_and_all_are_small():
    used = {Path(target).name for text in TEXTS.values() for target in re.findall(r"images/([\w.-]+)", text)}
    files = list((ROOT / "docs" / "images").iterdir())
    assert {path.name for path in files} == used
    assert sum(path.stat().st_size for path in files) < 3e6


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text()
    assert not [page for page in TEXTS if page.startswith("docs/") and page.removeprefix("docs/") not in navigation]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_the_built_site_in_a_browser(width, scheme):
    """From disk: no error, no request that leaves, nothing wider than the screen, every picture there, a search that finds."""
    if not (ROOT / "site" / "index.html").is_file():
        pytest.skip("the site is not built; `make docs` builds it")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = os.environ.get("ARCTA_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("no chromium here")
    with playwright.sync_playwright() as driver:
        window = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = window.new_page(viewport={"width": width, "height": 1200}, color_scheme=scheme)
        problems: list[str] = []
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda it: problems.append(it.url) if not it.url.startswith(("file:", "data:")) else None)
        for name in ("index", "start", "settings", "api", "tutorials/physics", "coming-from/darts", "gallery"):
            page.goto((ROOT / "site" / f"{name}.html").as_uri())
            page.wait_for_load_state("networkidle")
            assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), name
            assert page.evaluate("[...document.images].every(image => image.complete && image.naturalWidth > 0)"), name
        page.goto((ROOT / "site" / "index.html").as_uri() + "?q=forecast")
        page.wait_for_selector(".md-search-result__item", state="attached", timeout=20_000)
        assert problems == []
        window.close()
