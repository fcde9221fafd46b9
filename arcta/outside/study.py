"""Studies: jobs that are never run twice, results stored with all that made them, figures, and the tables of a page.

A study is a file `studies/name.py` with a function `run(study)`; it says which jobs there are and how to measure one,

    rows = study.measure(jobs, function, settings)        finished rows are taken from the result file
    study.save_figure("name", figure)                     PNG and SVG beside it
    study.finish(summary, {"block": table})               the summary, and tables written into docs/studies/name.md

`arcta study name` runs it. The result file holds settings, rows, versions and machine; a row counts as finished if its job and
the settings are the same.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import platform
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from .page import versions

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FOLDER = Path(__file__).parents[2] / "studies"
PACKAGES = ("arcta", "jax", "jaxlib", "equinox", "optax", "diffrax", "numpy")
Job = dict[str, Any]


def plain(value: Any) -> Any:
    """`value` as JSON can hold it: arrays as lists, what is not finite as null."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value if isinstance(value, int | str | None) else repr(value)


def _replace(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_text(text)
    temporary.replace(path)


def machine() -> str:
    """Processor, number of cores and operating system, in words."""
    name = platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        found = re.search(r"model name\s*:\s*(.+)", info.read_text())
        name = found.group(1) if found else name
    return f"{name}, {os.cpu_count()} cores, {platform.system()}"


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """A table: one column for each key of the first row."""
    names = list(rows[0])
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    return "\n".join(lines + ["| " + " | ".join(str(row[name]) for name in names) + " |" for row in rows])


def known() -> list[str]:
    """The studies that come with a clone of the repository."""
    return sorted(path.stem.replace("_", "-") for path in FOLDER.glob("*.py"))


@dataclasses.dataclass(frozen=True)
class Study:
    """One run of a study. `quick` is a smoke version of seconds; `seeds` how many seeds (default: the study's own number);
    `data` the path of a data file, for a study that needs one."""

    name: str
    out: Path
    quick: bool = False
    seeds: int | None = None
    data: Path | None = None
    quiet: bool = False

    @property
    def file(self) -> Path:
        return self.out / "result.json"

    def num_seeds(self, usual: int) -> int:
        """The number asked for, else 1 in a quick run, else the usual one."""
        return self.seeds or (1 if self.quick else usual)

    def say(self, *words: Any) -> None:
        if not self.quiet:
            print(*words, file=sys.stderr, flush=True)

    def _stored(self) -> dict[str, Any]:
        return json.loads(self.file.read_text()) if self.file.is_file() else {}

    def _write(self, content: Mapping[str, Any]) -> None:
        self.out.mkdir(parents=True, exist_ok=True)
        _replace(self.file, json.dumps(plain(content), indent=1) + "\n")

    def measure(
        self, jobs: Sequence[Job], function: Callable[..., Mapping[str, Any]], settings: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        """Each job's row, `{**job, **function(**job)}`, in order; what the result file has already is not run again.

        A row that fails with an arithmetic error or diverges is stored with its `error`.
        """
        stamp = hashlib.sha256(json.dumps(plain(settings), sort_keys=True).encode()).hexdigest()[:12]
        content = self._stored()
        rows = content.get("rows", [])
        done = {json.dumps(row["job"], sort_keys=True): row for row in rows if row["settings"] == stamp}
        began = time.perf_counter()
        names = [json.dumps(plain(job), sort_keys=True) for job in jobs]
        waiting = {name: job for name, job in zip(names, jobs, strict=True) if name not in done}
        for fresh, (name, job) in enumerate(waiting.items(), 1):
            clock = time.perf_counter()
            try:
                measured = dict(function(**job))
            except (ArithmeticError, RuntimeError) as error:
                measured = {"error": f"{type(error).__name__}: {error}"[:300]}
            row = {"settings": stamp, "job": job, "row": measured, "seconds": time.perf_counter() - clock}
            done[name] = plain(row)
            if not self.quick:
                jax.clear_caches()  # hundreds of rows' programs in one process run into the limit on memory maps
            self._write(
                {
                    "study": self.name,
                    "quick": self.quick,
                    "settings": {**content.get("settings", {}), stamp: settings},
                    "versions": versions(*PACKAGES),
                    "machine": machine(),
                    "rows": [*(r for r in rows if r["settings"] != stamp), *done.values()],
                }
            )
            left = (time.perf_counter() - began) / fresh * (len(waiting) - fresh)
            short = {k: v for k, v in plain(measured).items() if isinstance(v, int | float | str)}
            words = "  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in short.items())
            self.say(f"{fresh}/{len(waiting)}  {' '.join(map(str, job.values()))}:  {words}  ({left:.0f} s left)")
        return [{**done[name]["job"], **done[name]["row"]} for name in names]

    def save_figure(self, name: str, figure: Figure) -> None:
        """`name.png` and `name.svg` in the study's folder."""
        self.out.mkdir(parents=True, exist_ok=True)
        figure.savefig(self.out / f"{name}.png", dpi=110)
        figure.savefig(self.out / f"{name}.svg")

    def finish(self, summary: Mapping[str, Any], tables: Mapping[str, str]) -> None:
        """Add the summary to the result file, print the tables, and write them into the study's page if this was the full run."""
        content = self._stored()
        self._write({"summary": summary, **{k: v for k, v in content.items() if k != "summary"}})
        for name, table in tables.items():
            print(f"\n{name}\n{table}")
        page = FOLDER.parent / "docs" / "studies" / f"{self.name}.md"
        if self.out.resolve() != (FOLDER / "results" / self.name).resolve() or not page.is_file():
            return
        text = page.read_text()
        for name, table in tables.items():
            block = re.compile(rf"(<!-- {re.escape(name)} -->\n).*?(<!-- end -->)", re.DOTALL)
            text = block.sub(lambda m, table=table: f"{m.group(1)}{table}\n{m.group(2)}", text)
        _replace(page, text)
