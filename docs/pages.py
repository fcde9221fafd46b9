"""The pages' own code: what stands in their blocks is run, and what it prints and draws is put back into the page.

    python docs/pages.py                          # every page that has outputs
    python docs/pages.py docs/start.md            # one of them

A page's blocks run in order and share their names, in a folder of their own that holds `examples/`. A block ```` ```python ```` is
Python; in a block ```` ```console ```` lines that begin with `arcta` are commands. A block ```` ```text ```` right after either is
what it prints. Pictures that a block saves go to `docs/images/`. A comment `<!-- no run: reason -->` right before a block leaves it
out. Used by `tests/test_docs.py` too, which runs everything and keeps nothing.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
IMAGES = DOCS / "images"
RUN = ("python", "console")
FENCE = re.compile(r"^(?:<!-- no run: (?P<reason>.+?) -->\n)?```(?P<kind>\w*)[^\n]*\n(?P<code>.*?)^```$", re.M | re.S)


class Block(NamedTuple):
    """A fenced block: its language, what is in it, where that begins and ends in the page, why it is not run."""

    kind: str
    code: str
    begin: int
    end: int
    reason: str | None


def blocks(text: str) -> list[Block]:
    """The fenced blocks of a page, in order."""
    found = FENCE.finditer(text)
    return [Block(m["kind"], m["code"], m.start("code"), m.end("code"), m["reason"]) for m in found]


def pages() -> list[Path]:
    """README and every page of the documentation that is written by hand or filled in."""
    return [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]


def commands(text: str) -> list[str]:
    """The commands of a page: lines that begin with `arcta` in console blocks, or indented."""
    fenced = "".join(block.code for block in blocks(text) if block.kind == "console")
    plain = FENCE.sub("", text)
    lines = [*fenced.splitlines(), *re.findall(r"^    (arcta .*)$", plain, re.M)]
    return [line.split(" #")[0].strip() for line in lines if line.startswith("arcta ")]


def words(command: str) -> list[str]:
    """What the command line's parser gets."""
    return shlex.split(command)[1:]


@contextlib.contextmanager
def workplace(folder: Path) -> Iterator[None]:
    """Work in a folder that has the examples, with pictures drawn to files."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "arcta"
    (folder / "examples").symlink_to(ROOT / "examples")
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
        import matplotlib.pyplot as plt

        plt.close("all")


def execute(block: Block, names: dict[str, object], where: str) -> str:
    """Run a block; what it prints."""
    from arcta.outside.cli.commands import app

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        if block.kind == "python":
            exec(compile(block.code, where, "exec"), names)
        else:
            for line in block.code.splitlines():
                if line.startswith("arcta "):
                    app(words(line.split(" #")[0]), exit_on_error=False, result_action="return_value")
    return printed.getvalue()


def run(page: Path) -> str:
    """Run a page's blocks in the current folder; the page with what they print."""
    text, names, parts, last = page.read_text(), {"__name__": "page"}, [], 0
    printed: str | None = None
    for block in blocks(text):
        if block.kind == "text" and printed is not None:
            parts += [text[last : block.begin], printed]
            last = block.end
        printed = None
        if block.kind in RUN and block.reason is None:
            where = f"{page.name}, line {text.count(chr(10), 0, block.begin) + 1}"
            lines = [line.rstrip() for line in execute(block, names, where).rstrip().splitlines()]
            printed = "".join(f"{line}\n" for line in lines)
    return "".join([*parts, text[last:]])


def main(chosen: list[Path]) -> None:
    warnings.filterwarnings("ignore")
    os.environ.setdefault("ARCTA_CACHE", str(Path(tempfile.gettempdir()) / "arcta-pages"))
    for page in chosen:
        with tempfile.TemporaryDirectory() as place, workplace(Path(place)):
            new = run(page)
            pictures = [path for kind in ("svg", "png") for path in Path().glob(f"*.{kind}")]
            for path in pictures:
                shutil.copy(path, IMAGES / path.name)
        page.write_text(new)
        print(f"{page.relative_to(ROOT)}: {len(pictures)} pictures", flush=True)


if __name__ == "__main__":
    outputs = [
        page for page in pages() if any(b.kind == "text" for b in blocks(page.read_text())) and page.parent != ROOT
    ]
    main([Path(name).resolve() for name in sys.argv[1:]] or outputs)
