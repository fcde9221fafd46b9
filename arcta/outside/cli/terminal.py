"""Between the words of the line and the task API: reading, times and spans, tables, what is said."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from ...data.read import describe, reading
from ...data.readers.files import read_bytes
from ...data.readers.source import Loaded
from ...data.spans import parse_span
from ...predict.prediction import Bands, Prediction
from ...task.fitted import Fit, load
from ...training.files import write_atomically
from ..config import Configuration
from ..page import drawn

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


def say(text: str, quiet: bool = False) -> None:
    if not quiet:
        print(text, file=sys.stderr, flush=True)


def read_file(path: Path, configuration: Configuration, quiet: bool) -> Loaded:
    found = reading(path, configuration.data)
    say(describe(found.series, found.notes), quiet)
    return found


def load_run(run: Path) -> Fit:
    return load(run)


def duration(text: str, fit: Fit) -> float:
    """`12` in the data's own unit, or `48h`, `10d`, `30min`, `12months` where the data has dates."""
    return parse_span(text, fit.layout.time_unit)


def grid_step(every: str | None, fit: Fit) -> float:
    """The step asked for, or the data's own."""
    return duration(every, fit) if every else fit.layout.typical_step * fit.layout.scaling.time_scale


def times_of(at: str, fit: Fit) -> list[float] | Float[np.ndarray, " n"]:
    """Times from a list (`1,2,3`), or from a file with one per line or in a column `time`."""
    path, calendar = Path(at), fit.layout.calendar
    if _is_file(path):
        lines = re.split(r"\r\n|\r|\n", read_bytes(path).decode("utf-8-sig", "replace"))
        firsts = [line.split(",")[0].strip() for line in lines]
        items = [item for item in firsts if item and (item[0].isdigit() or item[0] in "-+.")]
    else:
        items = [item.strip() for item in at.split(",") if item.strip()]
    try:
        return calendar.numbers(items) if calendar else [float(item) for item in items]
    except ValueError as error:
        wanted = "dates or a file of them" if calendar else "numbers (1,2,3) or a file with one in each line"
        reason = f" ({str(error).splitlines()[0]})" if calendar else ""
        raise ValueError(f"--at needs {wanted}; got '{at[:60]}'{reason}.") from None


def _is_file(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a list of times may be longer than a name can be
        return False


def to_table(predictions: Mapping[str, Prediction | Bands]) -> pd.DataFrame:
    """One table of means, standard deviations and quantiles; a column `series` if there are several."""
    import pandas as pd

    frames = {name: item.to_frame().reset_index() for name, item in predictions.items()}
    if len(frames) == 1:
        return next(iter(frames.values()))
    return pd.concat([frame.assign(series=name) for name, frame in frames.items()], ignore_index=True)


def write_table(table: pd.DataFrame, out: Path | None, as_json: bool = False) -> None:
    """A table as a file by its suffix, or printed; files appear whole or not at all."""
    suffix = out.suffix.lower() if out is not None else (".json" if as_json else ".csv")
    writers = {
        ".csv": lambda: table.to_csv(index=False).encode(),
        ".tsv": lambda: table.to_csv(index=False, sep="\t").encode(),
        ".json": lambda: f"{table.to_json(orient='records', date_format='iso', indent=1)}\n".encode(),
        ".parquet": lambda: table.to_parquet(index=False),
    }
    if suffix not in writers:
        raise ValueError(f"--out knows .csv, .tsv, .json and .parquet; got '{out}'. Use one of those suffixes.")
    content = writers[suffix]()
    if out is None:
        sys.stdout.write(content.decode())
    else:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, content)
        say(f"wrote {out}")


def write_figure(figure: Figure, path: Path) -> None:
    """A figure as a file by its suffix, whole or not at all."""
    content = drawn(figure, path.suffix.removeprefix(".") or "png")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, content)


def show(values: Mapping[str, object], as_json: bool) -> None:
    if as_json:
        print(json.dumps(values, indent=1))
        return
    for name, value in values.items():
        print(f"{name:<18} {value:.4g}" if isinstance(value, float) else f"{name:<18} {value}")
