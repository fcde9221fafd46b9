"""`read`: a stranger's file, table or folder of frames as `Series`, and in words what was recognised and what was ignored.

    CSV / TSV / Parquet / DataFrame   one row per time (wide), or per time and variable (long)
    pandas Series, NumPy array        one channel, or a column for each; times are the index, or the numbers of the rows
    NPZ / Zarr / Dataset / DataArray  arrays that share their first (time) axis
    folder of PNG                     one frame per file, in the order of the numbers in their names

All of them become a table or arrays first, then series in one place. What cannot be used is an error that names file,
row and column; what is left out is noted, never silent.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..runtime.host import HasArray
from .moments import kind_of
from .readers.arrays import from_data_array, from_dataset, from_npz, from_zarr, read_parquet
from .readers.files import kind_of_path
from .readers.frames import from_frames
from .readers.source import Loaded, Options, Table
from .readers.tables import from_column, from_table
from .readers.text import read_text
from .series import Series, as_list

if TYPE_CHECKING:
    import pandas as pd

    # A series, or what `read` makes series of: tables, columns, arrays, Datasets and DataArrays, paths; or several.
    Data = Series | pd.DataFrame | pd.Series | np.ndarray | HasArray | str | Path | Sequence[object]
else:
    Data = object
OPTION = re.compile(r"\b(time|series|channels|inputs|variable|value|missing|decimal|time_zone|day_first|time_unit)=")


def read(
    source: object,
    *,
    time: str | None = None,
    series: str | None = None,
    inputs: str | Sequence[str] = (),
    channels: Sequence[str] | None = None,
    variable: str | None = None,
    value: str | None = None,
    missing: str | int | float | Sequence[str | int | float] = (),
    delimiter: str | None = None,
    decimal: str | None = None,
    time_unit: str | None = None,
    time_zone: str | None = None,
    day_first: bool | None = None,
) -> Series | list[Series]:
    """Series from a file, a folder of PNG frames, a pandas DataFrame or Series, an xarray Dataset or DataArray, an array, or a
    list of these.

    **Arguments:**

    - `source`: a path (`.csv`, `.tsv`, `.txt`, `.parquet`, `.npz`, `.zarr`, or a folder of `.png`), a table (in a MultiIndex the
      levels beside the time tell series apart), or an array, whose times are the numbers of its rows.
    - `time` (a column, or `"row"`): the column of times; found by itself if it has dates or an obvious name. `"row"` numbers the
      rows.
    - `series` (a column): the column that tells several series apart; by default there is one series.
    - `inputs` (columns): columns that are known inputs u(t), in the future too.
    - `channels` (columns): the columns to model; by default every other column of numbers.
    - `variable` (a column): of a long table, the column with the variable's name; found by itself if that is what it is called.
    - `value` (a column): of a long table, the column with the value; found by itself likewise.
    - `missing` (numbers, words): further values that mean "missing", such as `-999` or `"off"`. Empty cells, NaN and NA always do.
    - `delimiter` (a character): what stands between the columns of a text file; found by itself.
    - `decimal` (`"."`, `","`): the decimal mark of a text file; found by itself, and asked for where "1,234" may be a thousand.
    - `time_unit` (a unit's name): the unit that dates are counted in (default: month, quarter or year where dates are steps of the
      calendar, else the largest of d, h, min, s, ms, us not above the typical step), or the name of the unit that numbers are in.
    - `time_zone` (a name such as `"Europe/Berlin"`): the zone of dates that do not say theirs.
    - `day_first`: whether 01/02/2024 is the first of February; asked for where the column does not tell.

    **Returns:** a `Series`, or a list of them if there are several. Warns of everything that was left out.

    !!! example

        >>> import arcta, pandas as pd
        >>> table = pd.DataFrame({"date": ["2024-01-01", "2024-01-02", "2024-01-04"], "level [m]": [1.0, 1.5, None]})
        >>> arcta.read(table)
        Series('table': 3 times from 2024-01-01 00:00:00 to 2024-01-04 00:00:00, 1 channel (level), 2 of 3 entries observed)
    """
    options = Options(
        time=time, series=series, inputs=(inputs,) if isinstance(inputs, str) else tuple(inputs),
        channels=None if channels is None else tuple(channels), variable=variable, value=value,
        missing=tuple(missing) if isinstance(missing, Sequence) and not isinstance(missing, str) else (missing,),
        delimiter=delimiter, decimal=decimal, time_unit=time_unit, time_zone=time_zone, day_first=day_first,
    )  # fmt: skip
    found = reading(source, options)
    for note in found.notes:
        warnings.warn(note, stacklevel=2)
    return found.series[0] if len(found.series) == 1 else found.series


def reading(source: object, options: Options = Options(), name: str = "table") -> Loaded:
    """`read` with its options in one record, the notes beside the series instead of as warnings. `name`: of what has none."""
    import pandas as pd

    if isinstance(source, Series):
        return Loaded([source], [])
    if isinstance(source, list | tuple) and any(_is_whole(item) for item in source):
        return _read_several(source, options)
    if isinstance(source, str | Path):
        return _read_path(Path(source), options)
    if hasattr(source, "data_vars"):
        return from_dataset(source, "dataset" if name == "table" else name, options)
    if hasattr(source, "to_dataset"):
        return from_data_array(source, name, options)
    if isinstance(source, pd.Series):
        return from_column(source, name, options)
    if not isinstance(source, pd.DataFrame) and hasattr(source, "to_pandas"):
        source = source.to_pandas()  # pyright: ignore[reportAttributeAccessIssue]
    if isinstance(source, pd.DataFrame):
        return from_table(Table(source, name, np.arange(len(source)), []), options)
    if (isinstance(source, list | tuple) and source) or isinstance(source, HasArray):
        return Loaded([_from_array(source, "series" if name == "table" else name, options)], [])
    raise ValueError(
        f"data must be a Series, a DataFrame, an array, a path or a list of these; got {_what(source)}. "
        "Pass one of them, e.g. arcta.Series(times, values)."
    )


def _what(source: object) -> str:
    empty = isinstance(source, list | tuple) and not source
    return "an empty list, and at least one series is needed" if empty else type(source).__name__


def _is_whole(item: object) -> bool:
    """Whether a member of a list is a series of its own, and not a number or a row of them."""
    return isinstance(item, Series | str | Path) or getattr(item, "ndim", 0) > 0 or hasattr(item, "data_vars")


def _read_several(sources: Sequence[object], options: Options) -> Loaded:
    """Several sources, one after the other; series of one name are told apart by numbers. All count time as the first does."""
    found = [reading(item, options, f"series-{i}") for i, item in enumerate(sources)]
    if all(isinstance(item, Series) for item in sources):
        return Loaded(as_list(sources), [])
    series, taken = [], set()
    for i, item in enumerate(one for loaded in found for one in loaded.series):
        fresh = f"{item.name}-{i}" if item.name in taken else item.name
        taken.add(fresh)
        item = item.on(series[0].calendar, series[0].time_unit) if series else item
        series.append(item.replace(name=fresh))
    return Loaded(as_list(series), [note for loaded in found for note in loaded.notes])


def _from_array(source: object, name: str, options: Options) -> Series:
    """An array of values, time along its first axis; times are the numbers of its rows."""
    values = np.asarray(source)
    count = len(values) if values.ndim else 0
    channels = options.channels if values.ndim == 2 and len(options.channels or ()) == values.shape[1] else None
    return Series(np.arange(count), values, channels=channels, name=name, time_unit=options.time_unit or "rows")


def gather(data: object, options: Options = Options()) -> list[Series]:
    """The series of whatever a user has, as `read` makes them; says what was left out."""
    if isinstance(data, Series):
        return [data]
    try:
        found = reading(data, options)
    except ValueError as error:
        if OPTION.search(str(error)) is None:
            raise
        raise ValueError(f"{error} Such options are those of arcta.read: pass arcta.read(data, …).") from None
    for note in found.notes:
        warnings.warn(note, stacklevel=4)
    return found.series


def _read_path(path: Path, options: Options) -> Loaded:
    suffix, kind = path.suffix.lower(), kind_of_path(path)
    if kind == "folder" and (
        suffix == ".zarr" or any((path / n).exists() for n in (".zgroup", "zarr.json", ".zattrs"))
    ):
        return from_zarr(path, options)
    if kind == "folder":
        return from_frames(path, options)
    if suffix in (".npz", ".npy"):
        return from_npz(path, options)
    if suffix in (".parquet", ".pq"):
        return from_table(read_parquet(path), options)
    if suffix in (".csv", ".tsv", ".txt", ".dat", ".tab", ""):
        return from_table(read_text(path, options), options)
    raise ValueError(
        f"{path} has a suffix that read does not know; it knows .csv, .tsv, .txt, .parquet, .npz, .zarr and folders of .png. "
        "Convert it, or load it yourself into a DataFrame."
    )


def describe(series: Sequence[Series], notes: Sequence[str] = ()) -> str:
    """What was read, in a few lines: series, span, step, gaps, channels with their units and how full they are, notes."""
    first = series[0]
    rows = sum(len(item) for item in series)
    steps = np.concatenate([np.diff(item.times) for item in series])
    unit = f" {first.time_unit}" if first.time_unit else ""
    names = ", ".join(item.name for item in series[:4]) + ", …" * (len(series) > 4)
    start, end = min(item.times[0] for item in series), max(item.times[-1] for item in series)
    lines = [f"{len(series)} series ({names}), {rows} rows from {first.when(start)} to {first.when(end)}"]
    if len(steps):
        typical, longest = float(np.median(steps)), float(steps.max())
        regular = np.allclose(steps, typical, rtol=1e-3)
        gap = "" if regular else f", longest gap {longest:.4g}{unit}"
        lines.append(f"step {typical:.4g}{unit}, {'regular' if regular else 'irregular'}{gap}")
    mask = np.concatenate([item.mask for item in series])
    values = np.concatenate([item.values for item in series])
    if first.frame_shape:
        lines.append(f"frames of {' x '.join(map(str, first.frame_shape))}, {mask.mean():.0%} observed")
    else:
        for i, (name, label) in enumerate(zip(first.channels, first.units, strict=True)):
            if i == 12:
                lines.append(f"  … and {len(first.channels) - 12} more channels, {mask[:, 12:].mean():.0%} observed")
                break
            x = values[mask[:, i], i]
            about = f"{x.min():.4g} … {x.max():.4g}" if len(x) else "never observed"
            kind = kind_of([values[:, i]], [mask[:, i]])
            lines.append(f"  {name}{f' [{label}]' * bool(label)}: {kind}, {mask[:, i].mean():.0%} observed, {about}")
    if first.input_names:
        lines.append(f"known inputs: {', '.join(first.input_names)}")
    return "\n".join([*lines, *(f"note: {note}" for note in notes)])
