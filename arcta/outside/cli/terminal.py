"""Between the words of the line and the task API: reading, times and spans, tables, what is said."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from .options import compilation_cache

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from ...data.readers.source import Loaded
    from ...data.series import Series
    from ...data.store import Store
    from ...predict.prediction import Bands, Prediction
    from ...task.fitted import Fit
    from ..config import Configuration

UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


def say(text: str, quiet: bool = False) -> None:
    if not quiet:
        print(text, file=sys.stderr, flush=True)


def read_file(path: Path, configuration: Configuration, quiet: bool) -> Loaded:
    from ...data.read import describe, reading

    found = reading(path, configuration.data)
    say(describe(found.series, found.notes), quiet)
    return found


def on_disk(path: Path, spacing: float | None, times: Path | None, configuration: Configuration) -> Store:
    from ...data.store import store

    if spacing is not None and (times is not None or not spacing > 0):
        raise ValueError(
            f"--spacing needs a positive number, and no --times beside it; got {spacing:g}. Give one of them."
        )
    options, usual = configuration.data, type(configuration)().data._asdict()
    unused = [k for k, v in options._asdict().items() if v != usual[k] and k not in ("channels", "time_unit")]
    if unused:
        raise ValueError(f"a file that stays on disk is rows of numbers: leave --{unused[0].replace('_', '-')} out.")
    return store(path, step=spacing, times=times, channels=options.channels or None, time_unit=options.time_unit or "")


def load_run(run: Path) -> Fit:
    compilation_cache()
    from ...task.fitted import load

    if not (run / "model.json").is_file():
        raise ValueError(f"there is no saved run at {run} (no model.json). Train one with: arcta fit DATA --out {run}")
    return load(run)


def duration(text: str, fit: Fit) -> float:
    """`12` in the data's own unit, or `48h`, `10d`, `30min` where the data has dates."""
    match = re.fullmatch(r"\s*([0-9.eE+-]+?)\s*([a-zA-Z]*)\s*", text)
    try:
        number = float(match.group(1)) if match else float("nan")
    except ValueError:
        number = float("nan")
    unit = match.group(2) if match else ""
    if not number > 0:
        raise ValueError(f"a span of time must be a positive number, with or without a unit (48h, 10d); got '{text}'.")
    own = fit.layout.time_unit
    if unit in ("", own):
        return number
    if unit not in UNITS or own not in UNITS:
        raise ValueError(
            f"'{text}': the data counts time in {own or 'numbers without a unit'}; give the span in that unit."
        )
    return number * UNITS[unit] / UNITS[own]


def times_of(at: str, fit: Fit) -> list[float] | np.ndarray:
    """Times from a list (`1,2,3`), or from a file with one per line or in a column `time`."""
    import pandas as pd

    path = Path(at)
    items: list[str] = []
    if path.is_file():
        lines = [line.split(",")[0].strip() for line in path.read_text("utf-8-sig").splitlines()]
        items = [line for line in lines if line and (line[0].isdigit() or line[0] in "-+.")]
    else:
        items = [item.strip() for item in at.split(",") if item.strip()]
    if fit.layout.calendar is not None:
        try:
            return fit.layout.calendar.numbers(items)
        except (ValueError, pd.errors.ParserError) as error:
            raise ValueError(
                f"--at needs dates or a file of them; got '{at[:60]}' ({str(error).splitlines()[0]})."
            ) from None
    try:
        return [float(item) for item in items]
    except ValueError:
        raise ValueError(f"--at needs numbers (1,2,3) or a file with one in each line; got '{at[:60]}'.") from None


def choose(series: list[Series], name: str | None) -> list[Series]:
    if name is None:
        return series
    chosen = [item for item in series if item.name == name]
    if not chosen:
        raise ValueError(f"there is no series '{name}'; known are {', '.join(item.name for item in series[:8])}.")
    return chosen


def to_table(predictions: Mapping[str, Prediction | Bands]) -> pd.DataFrame:
    """One table of means, standard deviations and quantiles; a column `series` if there are several."""
    import pandas as pd

    frames = {name: item.to_frame().reset_index() for name, item in predictions.items()}
    if len(frames) == 1:
        return next(iter(frames.values()))
    return pd.concat([frame.assign(series=name) for name, frame in frames.items()], ignore_index=True)


def write_table(table: pd.DataFrame, out: Path | None, as_json: bool = False) -> None:
    """A table as a file by its suffix, or printed; files appear whole or not at all."""
    import io

    from ...training.checkpoint import write_atomically

    suffix = out.suffix.lower() if out is not None else (".json" if as_json else ".csv")
    writers = {
        ".csv": lambda: table.to_csv(index=False).encode(),
        ".tsv": lambda: table.to_csv(index=False, sep="\t").encode(),
        ".json": lambda: f"{table.to_json(orient='records', date_format='iso', indent=1)}\n".encode(),
    }
    if suffix == ".parquet" and out is not None:
        buffer = io.BytesIO()
        table.to_parquet(buffer, index=False)
        content = buffer.getvalue()
    elif suffix in writers:
        content = writers[suffix]()
    else:
        raise ValueError(f"--out knows .csv, .tsv, .json and .parquet; got '{out}'. Use one of those suffixes.")
    if out is None:
        sys.stdout.write(content.decode())
    else:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, content)
        say(f"wrote {out}")


def show(values: Mapping[str, object], as_json: bool) -> None:
    if as_json:
        print(json.dumps(values, indent=1))
        return
    for name, value in values.items():
        print(f"{name:<18} {value:.4g}" if isinstance(value, float) else f"{name:<18} {value}")


def grid_step(every: str | None, fit: Fit) -> float:
    """The step asked for, or the data's own."""
    return duration(every, fit) if every else fit.layout.typical_step * fit.layout.scaling.time_scale
