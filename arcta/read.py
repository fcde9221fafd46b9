"""`read`: a stranger's file, table or folder of frames as `Series`, and in words what was recognised and what was ignored.

    CSV / TSV / Parquet / DataFrame   one row per time (wide), or per time and variable (long)
    NPZ / Zarr / xarray Dataset       arrays that share their first (time) axis
    folder of PNG                     one frame per file, in the order of the numbers in their names

All of them become a table or arrays first, then series in one place. What cannot be used is an error that names file,
row and column; what is left out is noted, never silent.
"""

# pandas' own annotations widen every column to Series | DataFrame | Unknown; the tests run these functions typed by beartype.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .series import Calendar, Series, as_list, kind_of

if TYPE_CHECKING:
    import pandas as pd

ROW = "row"  # time="row" numbers the rows
_TIME_NAMES = ("time", "times", "t", "date", "datetime", "timestamp", "year", "day", "hour", "seconds", "ds")
_EMPTY = ("", "na", "n/a", "nan", "null", "none", "-", "?", "#n/a")
_SENTINELS = (-999.0, -9999.0, -99999.0, -99.0, 9999.0, 99999.0, 1e20, -1e20)
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


class Options(NamedTuple):
    """How to read: which column is what, and how numbers, gaps and dates are written."""

    time: str | None = None
    series: str | None = None
    inputs: tuple[str, ...] = ()
    channels: tuple[str, ...] | None = None
    variable: str | None = None
    value: str | None = None
    missing: tuple[str | float, ...] = ()
    delimiter: str | None = None
    decimal: str = "."
    time_unit: str | None = None
    time_zone: str | None = None


class Reading(NamedTuple):
    """Series, and what there is to say about how they were read."""

    series: list[Series]
    notes: list[str]


class _Table(NamedTuple):
    frame: pd.DataFrame
    where: str
    rows: np.ndarray  # the row of the file that each record stands in
    notes: list[str]


def read(
    source: Any,
    *,
    time: str | None = None,
    series: str | None = None,
    inputs: str | Sequence[str] = (),
    channels: Sequence[str] | None = None,
    variable: str | None = None,
    value: str | None = None,
    missing: Any = (),
    delimiter: str | None = None,
    decimal: str = ".",
    time_unit: str | None = None,
    time_zone: str | None = None,
) -> Any:
    """Series from a file, a folder of PNG frames, a pandas DataFrame or an xarray Dataset.

    **Arguments:**

    - `source`: a path (`.csv`, `.tsv`, `.txt`, `.parquet`, `.npz`, `.zarr`, or a folder of `.png`) or a table.
    - `time`: the column of times; found by itself if it has dates, an obvious name, or is the index. `"row"` numbers the
      rows.
    - `series`: the column that tells several series apart.
    - `inputs`: columns that are known inputs u(t), in the future too.
    - `channels`: the columns to model (default: every other column of numbers).
    - `variable`, `value`: for long tables, the columns with the variable's name and its value.
    - `missing`: further values that mean "missing", such as `-999` or `"off"`. Empty cells, NaN and NA always do.
    - `delimiter`, `decimal`: of text files; the delimiter is found by itself.
    - `time_unit`: the unit that dates are counted in (default: the largest of d, h, min, s, ms, us not above the typical step),
      or the name of the unit that numbers are in.
    - `time_zone`: the zone of dates that do not say theirs.

    **Returns:** a `Series`, or a list of them if there are several. Warns of everything that was left out.

    !!! example

        >>> import arcta, pandas as pd
        >>> table = pd.DataFrame({"date": ["2024-01-01", "2024-01-02", "2024-01-04"], "level [m]": [1.0, 1.5, None]})
        >>> arcta.read(table)
        Series('table': 3 times from 2024-01-01 00:00:00 to 2024-01-04 00:00:00, 1 channel (level), 2 of 3 entries observed)
    """
    options = Options(
        time=time,
        series=series,
        inputs=(inputs,) if isinstance(inputs, str) else tuple(inputs),
        channels=None if channels is None else tuple(channels),
        variable=variable,
        value=value,
        missing=tuple(missing) if isinstance(missing, Sequence) and not isinstance(missing, str) else (missing,),
        delimiter=delimiter,
        decimal=decimal,
        time_unit=time_unit,
        time_zone=time_zone,
    )
    found = reading(source, options)
    for note in found.notes:
        warnings.warn(note, stacklevel=2)
    return found.series[0] if len(found.series) == 1 else found.series


def reading(source: Any, options: Options = Options()) -> Reading:
    """`read` with its options in one record, the notes beside the series instead of as warnings."""
    if isinstance(source, Series) or (isinstance(source, list) and source and isinstance(source[0], Series)):
        return Reading(as_list(source), [])
    if isinstance(source, str | Path):
        return _read_path(Path(source), options)
    if hasattr(source, "data_vars"):
        return _from_dataset(source, "dataset", options)
    if hasattr(source, "columns"):
        frame = source.copy()
        return _from_table(_Table(frame, "table", np.arange(len(frame)), []), options)
    raise ValueError(
        f"read needs a path, a DataFrame or a Dataset; got {type(source).__name__}. "
        "Wrap arrays yourself: arcta.Series(times, values)."
    )


def _read_path(path: Path, options: Options) -> Reading:
    if not path.exists():
        raise ValueError(f"nothing is at {path}. Check the path.")
    suffix = path.suffix.lower()
    if path.is_dir() and (suffix == ".zarr" or any((path / n).exists() for n in (".zgroup", "zarr.json", ".zattrs"))):
        return _from_zarr(path, options)
    if path.is_dir():
        return _from_frames(path, options)
    if suffix in (".npz", ".npy"):
        return _from_npz(path, options)
    if suffix in (".parquet", ".pq"):
        import pandas as pd

        try:
            frame = pd.read_parquet(path)
        except Exception as error:
            raise ValueError(f"{path} is not a readable Parquet file ({_first_line(error)}). Write it again.") from None
        return _from_table(_Table(frame, path.name, np.arange(len(frame)), []), options)
    if suffix in (".csv", ".tsv", ".txt", ".dat", ".tab", ""):
        return _from_table(_read_text(path, options), options)
    raise ValueError(
        f"{path} has a suffix that read does not know; it knows .csv, .tsv, .txt, .parquet, .npz, .zarr and folders of .png. "
        "Convert it, or load it yourself into a DataFrame."
    )


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


# Text ----------------------------------------------------------------------------------------------------------------


def _decode(path: Path, notes: list[str]) -> str:
    content = path.read_bytes()
    if not content.strip():
        raise ValueError(f"{path} is empty. Check that it was written.")
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return content.decode("utf-16")
    if b"\x00" in content[:4096]:
        raise ValueError(f"{path} is not a text file (it holds zero bytes). Give a CSV, or name the right suffix.")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        notes.append(f"{path.name} is not UTF-8; read as Latin-1, so check names with accents.")
        return content.decode("latin-1")


def _delimiter(lines: Sequence[str], path: Path, options: Options) -> str:
    """The mark that splits the first lines into the same number of parts, the most parts winning."""
    if options.delimiter:
        return "\t" if options.delimiter in ("\\t", "tab") else options.delimiter
    if path.suffix.lower() in (".tsv", ".tab") and all("\t" in line for line in lines[:2]):
        return "\t"
    best, parts = ",", 0
    for mark in ("\t", ";", "|", ","):
        if mark == options.decimal:
            continue
        counts = [re.sub(r'"[^"]*"', "", line).count(mark) for line in lines]
        if min(counts) > parts:
            best, parts = mark, min(counts)
    if parts == 0 and all(len(line.split()) > 1 for line in lines) and len({len(line.split()) for line in lines}) == 1:
        return r"\s+"
    return best


def _read_text(path: Path, options: Options) -> _Table:
    import pandas as pd

    notes: list[str] = []
    text = _decode(path, notes)
    lines = text.splitlines()
    skipped = 0
    while skipped < len(lines) and (not lines[skipped].strip() or lines[skipped].lstrip().startswith("#")):
        skipped += 1
    if skipped:
        notes.append(f"the first {skipped} lines of {path.name} are comments or empty; left out.")
    head = [line for line in lines[skipped : skipped + 20] if line.strip()]
    if not head:
        raise ValueError(f"{path} holds no table. Check that it was written.")
    mark = _delimiter(head, path, options)
    try:
        frame = pd.read_csv(
            io.StringIO("\n".join(lines[skipped:])),
            sep=mark,
            dtype=str,
            header=None,
            keep_default_na=False,
            skip_blank_lines=False,
            skipinitialspace=True,
            engine="python" if mark == r"\s+" else "c",
            index_col=False,
        )
    except Exception as error:
        line = re.search(r"line (\d+)", str(error))
        row = f"row {int(line.group(1)) + skipped}" if line else "a row"
        raise ValueError(
            f"{path.name}: {row} has more fields than the header ({_first_line(error)}). Mend that row, or pass delimiter=."
        ) from None
    if frame.shape[1] == 1 and options.time != ROW:
        raise ValueError(
            f"{path.name} splits into one column with the delimiter {mark!r}; its header is {head[0][:60]!r}. "
            "Pass delimiter= with the mark that stands between the columns, or time='row' for a column without times."
        )
    names = frame.iloc[0].map(str.strip).tolist()
    if all(_is_number(name, options.decimal) for name in names if name):
        raise ValueError(
            f"{path.name} needs a header with the names of its columns; row {skipped + 1} holds numbers. Add a first line such as "
            f"{','.join(['time', *(f'x{i}' for i in range(len(names) - 1))])[:40]}."
        )
    frame = frame.iloc[1:].reset_index(drop=True)
    rows = np.arange(len(frame)) + skipped + 2
    repeats = (frame.astype(str).apply(lambda column: column.str.strip()) == names).all(axis=1).to_numpy()
    if repeats.any():
        notes.append(
            f"{int(repeats.sum())} rows of {path.name} are repeats of the header (first: row {rows[repeats][0]}); left out."
        )
    frame = frame[~repeats].reset_index(drop=True)
    frame.columns = names
    return _Table(frame, path.name, rows[~repeats], notes)


def _is_number(text: str, decimal: str) -> bool:
    try:
        float(text.replace(decimal, ".") if decimal != "." else text)
    except ValueError:
        return False
    return True


# Tables --------------------------------------------------------------------------------------------------------------


def _split_unit(name: str) -> tuple[str, str]:
    """'level [m]' or 'level (m)' → ('level', 'm')."""
    match = re.fullmatch(r"\s*(.+?)\s*[\[(]([^\])]*)[\])]\s*", name)
    return (match.group(1), match.group(2).strip()) if match else (name.strip(), "")


def _name_columns(table: _Table) -> tuple[_Table, dict[str, str]]:
    """Distinct column names without units, and the unit of each."""
    frame, notes = table.frame, table.notes
    import pandas as pd

    if isinstance(frame.columns, pd.MultiIndex):
        frame.columns = [" ".join(str(part) for part in name if str(part)) for name in frame.columns]
    raw = [str(name).strip() for name in frame.columns]
    empty = [i for i, name in enumerate(raw) if name in ("", "nan") or name.startswith("Unnamed:")]
    parts = [_split_unit(name) for name in raw]
    bare = [name for name, _ in parts]
    names: list[str] = []
    for i, name in enumerate(raw):
        best = parts[i][0] if bare.count(parts[i][0]) == 1 else name
        best = best if i not in empty else ("index" if i == 0 else f"column {i + 1}")
        count, fresh = 2, best
        while fresh in names:
            fresh, count = f"{best}.{count}", count + 1
        if fresh != best:
            notes.append(f"{table.where} has several columns called '{best}'; one is now '{fresh}'.")
        names.append(fresh)
    units = {name: parts[i][1] if i not in empty else "" for i, name in enumerate(names)}
    frame = frame.copy()
    frame.columns = names
    return table._replace(frame=frame), units


def _blank(frame: pd.DataFrame) -> np.ndarray:
    """True where a cell is empty."""
    empty = frame.isna().to_numpy()
    for i in range(frame.shape[1]):
        column = frame.iloc[:, i]
        if _texty(column):
            empty[:, i] |= column.astype(str).str.strip().str.lower().isin(_EMPTY).to_numpy()
    return empty


def _texty(column: pd.Series) -> bool:
    import pandas as pd

    return pd.api.types.is_string_dtype(column.dtype) or column.dtype == object


def _drop_rows(table: _Table) -> _Table:
    """Without rows that hold nothing."""
    frame, rows, notes = table.frame, table.rows, table.notes
    nothing = _blank(frame).all(axis=1)
    if nothing.any():
        first = rows[np.flatnonzero(nothing)[0]]
        notes.append(f"{int(nothing.sum())} rows of {table.where} are empty (first: row {first}); left out.")
    kept = ~nothing
    if not kept.any():
        raise ValueError(f"{table.where} has a header but no rows. Check that it was written.")
    return table._replace(frame=frame[kept].reset_index(drop=True), rows=rows[kept])


def _column(table: _Table, name: str, what: str) -> str:
    """The column that a user means by `name`, with or without its unit."""
    names = list(table.frame.columns)
    for match in (lambda n: n == name, lambda n: n == _split_unit(name)[0], lambda n: n.lower() == name.lower()):
        for candidate in names:
            if match(candidate):
                return candidate
    shown = ", ".join(names[:12]) + (", …" if len(names) > 12 else "")
    raise ValueError(f"{table.where} has no column '{name}' ({what}); its columns are {shown}. Use one of those names.")


def _bring_index(table: _Table, options: Options) -> tuple[_Table, str | None]:
    """A DataFrame's own index as a column, if it means something; its name if that is the time."""
    import pandas as pd

    index = table.frame.index
    if isinstance(index, pd.RangeIndex):
        return table, None
    frame = table.frame
    if isinstance(index, pd.MultiIndex):
        return table._replace(frame=frame.reset_index()), None
    name = str(index.name) if index.name is not None else "time"
    if name in frame.columns:
        return table._replace(frame=frame.reset_index(drop=True)), None
    frame = frame.copy()
    frame.insert(0, name, index)
    frame = frame.reset_index(drop=True)
    dates = isinstance(index, pd.DatetimeIndex)
    numbers = index.dtype.kind in "iuf" and (index.name is not None or index.is_monotonic_increasing)
    return table._replace(frame=frame), name if dates or numbers else None


def _looks_like_dates(column: pd.Series) -> bool:
    import pandas as pd

    if pd.api.types.is_datetime64_any_dtype(column.dtype):
        return True
    if not _texty(column):
        return False
    some = column.dropna().astype(str).str.strip()
    some = some[~some.str.lower().isin(_EMPTY)].head(20)
    if some.empty or not some.str.contains(r"\d[-/.:T]\d").all():
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parsed = pd.to_datetime(some, errors="coerce", utc=True, format="mixed").notna()
    return bool(parsed.mean() > 0.5) and not any(_is_number(x.replace(",", "."), ".") for x in some)


def _find_time(table: _Table, options: Options, index: str | None) -> str | None:
    frame = table.frame
    if options.time == ROW:
        return None
    if options.time is not None:
        return _column(table, options.time, "the time")
    if index is not None:
        return index
    taken = {options.series, options.variable, options.value, *options.inputs, *(options.channels or ())}
    free = [name for name in frame.columns if name not in taken]
    for test in (
        lambda n: n.lower() in _TIME_NAMES,
        lambda n: _looks_like_dates(frame[n]),
        lambda n: any(n.lower().startswith(stem) for stem in ("time", "date")),
    ):
        found = [name for name in free if test(name)]
        if found:
            if len(found) > 1:
                table.notes.append(
                    f"'{found[0]}' of {table.where} is taken as the time; it could also be '{found[1]}' (time=)."
                )
            return found[0]
    shown = ", ".join(list(frame.columns)[:12])
    raise ValueError(
        f"{table.where} has no column that is clearly the time; its columns are {shown}. "
        "Name it with time=…, or pass time='row' to number the rows."
    )


def _times(
    table: _Table, name: str | None, units: Mapping[str, str], options: Options
) -> tuple[np.ndarray, Calendar | None, str]:
    """Times as numbers, and what they mean as dates or the unit they are in."""
    if name is None:
        return np.arange(len(table.frame), dtype=float), None, options.time_unit or "rows"
    column = table.frame[name]
    if _looks_like_dates(column):
        return _dates(table, name, options)
    numbers = _numeric(table, name, column, options)
    if np.isinf(numbers).all():
        raise ValueError(
            f"times must be numbers or dates; row {table.rows[0]}, column '{name}' of {table.where} holds '{column.iloc[0]}'. "
            "Name the column of times with time=."
        )
    bad = np.flatnonzero(np.isnan(numbers))
    if bad.size:
        raise ValueError(
            f"every row needs a time; row {table.rows[bad[0]]} of {table.where} has none in column '{name}'. "
            "Fill it in or drop the row."
        )
    return numbers, None, options.time_unit or units.get(name, "")


def _dates(table: _Table, name: str, options: Options) -> tuple[np.ndarray, Calendar, str]:
    import pandas as pd

    column = table.frame[name]
    zone = ""
    if pd.api.types.is_datetime64_any_dtype(column.dtype):
        parsed = pd.DatetimeIndex(column)
        zone = str(parsed.tz) if parsed.tz is not None else ""
    else:
        text = column.astype(str).str.strip()
        aware = text.str.contains(r"(?:Z|[+-]\d{2}:?\d{2})$", regex=True)
        if aware.any() and not aware.all():
            row = table.rows[np.flatnonzero(~aware.to_numpy())[0]]
            raise ValueError(
                f"dates must all say their time zone, or none; row {row}, column '{name}' of {table.where} does not "
                f"({text.iloc[int(np.flatnonzero(~aware.to_numpy())[0])]}). Add the offset there."
            )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            parsed = pd.DatetimeIndex(pd.to_datetime(text, errors="coerce", utc=bool(aware.any()), format="mixed"))
        if aware.any():
            zone = "UTC"
            offsets = text.str.extract(r"(Z|[+-]\d{2}:?\d{2})$")[0].str.replace(":", "").replace("Z", "+0000").unique()
            if len(offsets) > 1:
                table.notes.append(
                    f"column '{name}' of {table.where} mixes the offsets {', '.join(sorted(offsets)[:4])}; read as UTC"
                    + (f" and shown in {options.time_zone}." if options.time_zone else ".")
                )
            elif offsets[0] != "+0000" and not options.time_zone:
                table.notes.append(
                    f"column '{name}' of {table.where} is at {offsets[0]}; results are in UTC (time_zone=)."
                )
    lost = np.flatnonzero(parsed.isna())
    if lost.size:
        raise ValueError(
            f"every row needs a date; row {table.rows[lost[0]]}, column '{name}' of {table.where} holds "
            f"{table.frame[name].iloc[int(lost[0])]!r}. Mend it or drop the row."
        )
    if parsed.tz is None and options.time_zone:
        try:
            parsed = parsed.tz_localize(options.time_zone, ambiguous="infer", nonexistent="raise")
        except Exception as error:
            raise ValueError(
                f"column '{name}' of {table.where} does not fit the zone {options.time_zone}: {_first_line(error)}. "
                "Write the offsets into the dates."
            ) from None
    if options.time_zone:
        zone = options.time_zone
    plain = parsed.tz_convert("UTC").tz_localize(None) if parsed.tz is not None else parsed
    origin = plain.min().floor("s")
    seconds = np.asarray((plain - origin) / pd.Timedelta(1, "s"), float)
    unit = options.time_unit or _unit_of(seconds)
    if unit not in _UNITS:
        raise ValueError(f"time_unit for dates must be one of {', '.join(_UNITS)}; got '{unit}'. Use one of them.")
    return seconds / _UNITS[unit], Calendar(origin.isoformat(), unit, zone), unit


def _unit_of(seconds: np.ndarray) -> str:
    steps = np.abs(np.diff(np.unique(seconds)))
    typical = float(np.median(steps)) if len(steps) else 1.0
    return next((unit for unit in reversed(_UNITS) if _UNITS[unit] <= typical * (1 + 1e-9)), "us")


def _numeric(table: _Table, name: str, column: pd.Series, options: Options) -> np.ndarray:
    """A column as float64 with NaN for what is missing; NaN too where text is not a number (told apart by the caller)."""
    import pandas as pd

    if pd.api.types.is_bool_dtype(column.dtype):
        values = column.astype(float).to_numpy(float, na_value=np.nan)
    elif pd.api.types.is_numeric_dtype(column.dtype):
        values = column.to_numpy(float, na_value=np.nan)
    else:
        text = column.astype("string").str.strip()
        text = text.mask(
            text.str.lower().isin([*_EMPTY, *(str(m).lower() for m in options.missing if isinstance(m, str))])
        )
        text = text.replace({"True": "1", "False": "0", "true": "1", "false": "0", "TRUE": "1", "FALSE": "0"})
        if options.decimal != ".":
            text = text.str.replace(".", "", regex=False).str.replace(options.decimal, ".", regex=False)
        values = pd.to_numeric(text, errors="coerce").to_numpy(float, na_value=np.nan)
        broken = np.flatnonzero(text.notna().to_numpy() & np.isnan(values))
        numbers = int(np.isfinite(values).sum())
        if broken.size and (numbers > broken.size or text.iloc[broken].str.fullmatch(r"-?\d+,\d+").all()):
            entry = text.iloc[int(broken[0])]
            comma = re.fullmatch(r"-?[\d.]*,\d+", str(entry))
            advice = (
                "Pass decimal=','." if comma else "Mend it, or pass missing= if it means that nothing was measured."
            )
            raise ValueError(
                f"values must be numbers; row {table.rows[broken[0]]}, column '{name}' of {table.where} holds '{entry}'. {advice}"
            )
        if broken.size:
            return np.full(len(values), np.inf)  # a column of words
    numbers = [float(m) for m in options.missing if not isinstance(m, str) or _is_number(m, ".")]
    return np.where(np.isin(values, numbers), np.nan, values) if numbers else values


def _to_wide(
    table: _Table, time: np.ndarray, group: np.ndarray, options: Options
) -> tuple[_Table, np.ndarray, np.ndarray]:
    """A long table with one row for each series and time, one column for each variable."""
    import pandas as pd

    variable = _column(table, str(options.variable), "the variable")
    value = _column(table, str(options.value or "value"), "the value")
    numbers = _numeric(table, value, table.frame[value], options)
    if np.isinf(numbers).all():
        raise ValueError(
            f"column '{value}' of {table.where} holds words, not numbers. Name the column of values with value=."
        )
    names = table.frame[variable].astype(str).str.strip()
    long = pd.DataFrame({"group": group, "time": time, "variable": names, "value": numbers, "row": table.rows})
    twice = long.duplicated(["group", "time", "variable"]).to_numpy()
    if twice.any():
        row = long.iloc[int(np.flatnonzero(twice)[0])]
        raise ValueError(
            f"one value is needed for each time and variable; row {row['row']} of {table.where} repeats '{row['variable']}' at a "
            "time that has one already. Merge them, or name the column that tells series apart with series=."
        )
    wide = long.pivot(index=["group", "time"], columns="variable", values="value")[list(dict.fromkeys(names))]
    first = long.groupby(["group", "time"])["row"].min().reindex(wide.index)
    keys = wide.index.to_frame(index=False)
    others = [n for n in table.frame.columns if n not in (variable, value, options.time, options.series)]
    if len(others) > (options.time is None):
        table.notes.append(f"a long table has no other columns; ignored: {', '.join(others[:6])}.")
    wide = wide.reset_index(drop=True)
    wide.columns = [str(name) for name in wide.columns]
    return table._replace(frame=wide, rows=first.to_numpy()), keys["time"].to_numpy(float), keys["group"].to_numpy()


def _from_table(table: _Table, options: Options) -> Reading:
    table, index = _bring_index(table, options)
    table, units = _name_columns(table)
    table = _drop_rows(table)
    index = _split_unit(index)[0] if index else None
    time_name = _find_time(table, options, index)
    times, calendar, time_unit = _times(table, time_name, units, options)
    used = {time_name}
    group = np.full(len(times), Path(table.where).stem, dtype=object)
    if options.series is not None:
        name = _column(table, options.series, "the series")
        used.add(name)
        group = table.frame[name].astype(str).str.strip().to_numpy(object)
    if options.variable is not None or options.value is not None:
        if options.variable is None:
            raise ValueError(
                "a long table needs variable= beside value=: the column with the variables' names. Pass both."
            )
        table, times, group = _to_wide(table, times, group, options)
        used = set()
    inputs = [_column(table, name, "an input") for name in options.inputs]
    columns = _channels(table, used | set(inputs), options)
    values = np.stack([columns[name] for name in columns], axis=1)
    known = [_numeric(table, name, table.frame[name], options) for name in inputs]
    series = []
    for label in dict.fromkeys(group):
        rows = np.flatnonzero(group == label)
        rows = _in_order(table, str(label), times, rows, several=options.series is not None, calendar=calendar)
        if not np.isfinite(values[rows]).any():
            table.notes.append(f"series '{label}' of {table.where} has no observed value; left out.")
            continue
        _check_inputs(table, inputs, [column[rows] for column in known], rows)
        series.append(
            Series(
                times[rows],
                values[rows],
                channels=list(columns),
                units=[units.get(name, "") for name in columns],
                inputs=np.stack([column[rows] for column in known], axis=1) if inputs else None,
                input_names=inputs or None,
                name=str(label),
                time_unit=time_unit,
                calendar=calendar,
            )
        )
    if not series:
        raise ValueError(f"{table.where} holds no observed value. Check missing= and the columns.")
    return Reading(series, table.notes)


def _channels(table: _Table, taken: set[str | None], options: Options) -> dict[str, np.ndarray]:
    """The columns to model, as numbers. Words and bare row numbers are left out, and said so."""
    wanted = options.channels
    names = [_column(table, n, "a channel") for n in wanted] if wanted else [n for n in table.frame if n not in taken]
    columns: dict[str, np.ndarray] = {}
    for name in names:
        values = _numeric(table, name, table.frame[name], options)
        if len(values) and np.isinf(values).all():
            if wanted:
                raise ValueError(
                    f"column '{name}' of {table.where} holds words, not numbers. Leave it out of channels."
                )
            table.notes.append(
                f"column '{name}' of {table.where} holds words; ignored (series= if it tells series apart)."
            )
        elif np.isnan(values).all():
            if name.startswith("column ") and not wanted:
                table.notes.append(f"{name} of {table.where} has no name and no values; ignored.")
                continue
            raise ValueError(
                f"every channel must be observed at least once; column '{name}' of {table.where} is empty in all "
                f"{len(values)} rows. Drop it, or name the columns to model with channels=."
            )
        elif (
            not wanted
            and name in ("index", "Unnamed: 0")
            and np.array_equal(values - values[0], np.arange(len(values)))
        ):
            table.notes.append(f"the first column of {table.where} numbers the rows; ignored.")
        else:
            _suspect(table, name, values)
            columns[name] = values
    if not columns:
        raise ValueError(
            f"{table.where} has no column of numbers to model beside {', '.join(sorted(map(str, taken)))}. Add one."
        )
    return columns


def _suspect(table: _Table, name: str, values: np.ndarray) -> None:
    """Note a value that looks like a mark for 'missing'."""
    rest = values[np.isfinite(values)]
    for mark in _SENTINELS:
        count = int((rest == mark).sum())
        others = rest[rest != mark]
        far = len(others) > 2 and abs(mark - np.median(others)) > 8 * (np.ptp(others) + 1e-12)
        if count and far:
            table.notes.append(
                f"column '{name}' of {table.where} holds {mark:g} in {count} rows, far from the rest; "
                f"if it means missing, pass missing={mark:g}."
            )


def _in_order(
    table: _Table, label: str, times: np.ndarray, rows: np.ndarray, *, several: bool, calendar: Calendar | None
) -> np.ndarray:
    """The rows of one series, times increasing; newest-first tables are turned round."""
    t = times[rows]
    if len(t) > 1 and (np.diff(t) < 0).all():
        table.notes.append(f"series '{label}' of {table.where} runs backwards in time; turned round.")
        return rows[::-1]
    back = np.flatnonzero(np.diff(t) <= 0)
    if back.size:
        k = back[0] + 1
        here, before = (calendar.show(t[i]) if calendar else f"{t[i]:g}" for i in (k, k - 1))
        verb = "repeats" if t[k] == t[k - 1] else "comes after"
        words = [n for n in table.frame if _texty(table.frame[n]) and bool(table.frame[n].nunique() < len(table.frame))]
        advice = "Sort the rows by time and merge repeated ones"
        if not several:
            advice += f", or name the column that tells series apart with series={repr(words[-1]) if words else '…'}"
        if calendar is not None and calendar.zone == "" and t[k] <= t[k - 1]:
            advice += ", or, if clocks were set back there, pass time_zone="
        raise ValueError(
            f"times must increase within a series; row {table.rows[rows[k]]} of {table.where} (t={here}) {verb} row "
            f"{table.rows[rows[k - 1]]} (t={before}) in series '{label}'. {advice}."
        )
    return rows


def _check_inputs(table: _Table, names: list[str], columns: list[np.ndarray], rows: np.ndarray) -> None:
    for name, column in zip(names, columns, strict=True):
        bad = np.flatnonzero(~np.isfinite(column))
        if bad.size:
            raise ValueError(
                f"inputs must be known at every time; row {table.rows[rows[bad[0]]]}, column '{name}' of {table.where} is missing. "
                "Fill it in, or leave that column out of inputs."
            )


# Arrays --------------------------------------------------------------------------------------------------------------


def _from_npz(path: Path, options: Options) -> Reading:
    try:
        with np.load(path, allow_pickle=False) as content:
            if isinstance(content, np.ndarray):
                raise ValueError("one array without times")
            arrays = {name: content[name] for name in content.files}
    except Exception as error:
        raise ValueError(
            f"{path} is not a readable NPZ file of plain arrays ({_first_line(error)}). Write it with numpy.savez(…)."
        ) from None
    return _from_arrays(arrays, path, options)


def _from_arrays(arrays: Mapping[str, np.ndarray], path: Path, options: Options) -> Reading:
    """`times` and `values` (one series, or stacked ones), or a time and columns of its length."""
    import pandas as pd

    time = options.time or next((n for n in arrays if n.lower() in _TIME_NAMES), None)
    if time is None or time not in arrays:
        raise ValueError(
            f"{path.name} needs an array of times; its arrays are {', '.join(arrays)}. Name it with time=…"
        )
    t = np.asarray(arrays[time])
    if "values" not in arrays:
        flat = {n: a for n, a in arrays.items() if np.ndim(a) in (1, 2) and len(a) == t.shape[-1]}
        ignored = [n for n in arrays if n not in flat]
        notes = [f"{path.name}: {', '.join(ignored)} do not run along the time; ignored."] if ignored else []
        columns = {}
        for name, array in flat.items():
            if array.ndim == 1:
                columns[name] = array
            else:
                columns |= {f"{name}{i}": array[:, i] for i in range(array.shape[1])}
        frame = pd.DataFrame(columns)
        table = _Table(frame, path.name, np.arange(len(frame)), notes)
        return _from_table(table, options._replace(time=time))
    values = np.asarray(arrays["values"])
    known = ("values", "mask", "inputs", "channels", "units", "input_names", "names", time)
    ignored = [name for name in arrays if name not in known]
    notes = [f"{path.name}: the arrays {', '.join(ignored)} were not recognised; ignored."] if ignored else []
    if values.dtype.kind not in "biuf":
        raise ValueError(f"{path.name}: values must be numbers; they are {values.dtype}. Convert them.")
    stacked = values.ndim > 1 and t.ndim <= 2 and values.shape[0] != t.shape[-1] and values.shape[1] == t.shape[-1]
    calendar, numbers = _array_times(t, options)
    names = [str(n) for n in arrays["names"]] if "names" in arrays else None

    def words(name: str) -> list[str] | None:
        return [str(word) for word in arrays[name]] if name in arrays else None

    def one(i: int | None, name: str) -> Series:
        def pick(array: np.ndarray) -> np.ndarray:
            return array if i is None else array[i]

        x = pick(values).astype(float)
        for mark in options.missing:
            x = np.where(x == float(mark), np.nan, x)
        return Series(
            pick(numbers) if numbers.ndim == 2 else numbers,
            x,
            mask=pick(np.asarray(arrays["mask"])).astype(bool) if "mask" in arrays else None,
            channels=words("channels"),
            units=words("units"),
            inputs=pick(np.asarray(arrays["inputs"])) if "inputs" in arrays else None,
            input_names=words("input_names"),
            name=name,
            time_unit=options.time_unit or "",
            calendar=calendar,
        )

    try:
        if not stacked:
            return Reading([one(None, path.stem)], notes)
        return Reading([one(i, names[i] if names else f"{path.stem}-{i}") for i in range(len(values))], notes)
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from None


def _array_times(t: np.ndarray, options: Options) -> tuple[Calendar | None, np.ndarray]:
    if t.dtype.kind != "M":
        return None, t.astype(float)
    import pandas as pd

    flat = pd.DatetimeIndex(t.reshape(-1))
    if options.time_zone:
        flat = flat.tz_localize(options.time_zone, ambiguous="infer").tz_convert("UTC").tz_localize(None)
    origin = flat.min().floor("s")
    seconds = np.asarray((flat - origin) / pd.Timedelta(1, "s"), float)
    unit = options.time_unit or _unit_of(seconds)
    return Calendar(origin.isoformat(), unit, options.time_zone or ""), (seconds / _UNITS[unit]).reshape(t.shape)


def _from_zarr(path: Path, options: Options) -> Reading:
    try:
        import xarray as xr
        import zarr
    except ImportError:
        raise ValueError(f"reading {path} needs xarray and zarr. Install them: pip install 'arcta[zarr]'.") from None
    try:
        group = zarr.open_group(str(path), mode="r")
        labelled = all(_dimensions(array) for _, array in group.arrays())
        if labelled:
            return _from_dataset(xr.open_zarr(str(path), consolidated=None), path.name, options)
        arrays = {name: np.asarray(array[...]) for name, array in group.arrays()}
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(f"{path} is not a readable Zarr group ({_first_line(error)}). Write it again.") from None
    return _from_arrays(arrays, path, options)


def _dimensions(array: Any) -> Any:
    return getattr(array.metadata, "dimension_names", None) or array.attrs.get("_ARRAY_DIMENSIONS")


def _from_dataset(dataset: Any, where: str, options: Options) -> Reading:
    """An xarray Dataset: variables along the time dimension, `series=` names the dimension of several series."""
    sizes = dict(dataset.sizes)
    time = options.time or next((d for d in sizes if str(d).lower() in _TIME_NAMES), None)
    if time is None:
        dated = [d for d in sizes if d in dataset.coords and dataset[d].dtype.kind == "M"]
        time = dated[0] if dated else None
    if time is None or time not in sizes:
        raise ValueError(
            f"{where} needs a time dimension; its dimensions are {', '.join(map(str, sizes))}. Name it with time=…"
        )
    notes: list[str] = []
    if options.series is not None and options.series not in sizes:
        raise ValueError(
            f"{where} has no dimension '{options.series}' for series; its dimensions are "
            f"{', '.join(map(str, sizes))}. Use one of them."
        )
    every = [str(n) for n in dataset.data_vars if time in dataset[n].dims]
    variables = [*options.channels, *options.inputs] if options.channels else every
    absent = [name for name in (*variables, *options.inputs) if name not in every]
    if absent:
        raise ValueError(
            f"{where} has no variable '{absent[0]}' along {time}; it has {', '.join(every)}. Use one of those names."
        )
    ignored = [str(n) for n in dataset.data_vars if str(n) not in variables]
    if ignored:
        notes.append(f"{where}: {', '.join(ignored)} do not run along {time}; ignored.")
    if not variables:
        raise ValueError(f"{where} has no variable along '{time}'. Name the time dimension with time=…")
    labels = [str(x) for x in dataset[options.series].values] if options.series in dataset.coords else None
    count = sizes[options.series] if options.series is not None else 1
    result: list[Series] = []
    for i in range(count):
        one = dataset.isel({options.series: i}) if options.series is not None else dataset
        table = _Table(
            _dataset_table(one, variables, str(time)), where, np.arange(sizes[time]), notes if i == 0 else []
        )
        renamed = options._replace(time=str(time), series=None, channels=None)
        name = labels[i] if labels else (f"{Path(where).stem}-{i}" if count > 1 else Path(where).stem)
        found = _from_table(table, renamed).series[0]
        units = [
            str(one[n.split(" ")[0]].attrs.get("units", "")) if n.split(" ")[0] in one else "" for n in found.channels
        ]
        result.append(_renamed(found, name, units))
    return Reading(_on_one_calendar(result), notes)


def _dataset_table(dataset: Any, variables: Sequence[str], time: str) -> pd.DataFrame:
    import pandas as pd

    columns: dict[str, Any] = {time: dataset[time].values if time in dataset.coords else np.arange(dataset.sizes[time])}
    for name in variables:
        array = dataset[name].transpose(time, ...)
        values = np.asarray(array.values).reshape(array.sizes[time], -1)
        if values.shape[1] == 1 and array.ndim == 1:
            columns[name] = values[:, 0]
        else:
            columns |= {f"{name} {i}": values[:, i] for i in range(values.shape[1])}
    return pd.DataFrame(columns)


def _renamed(series: Series, name: str, units: Sequence[str]) -> Series:
    return Series(
        series.times,
        series.values,
        mask=series.mask,
        channels=series.channels,
        units=[new or old for new, old in zip(units, series.units, strict=True)],
        inputs=series.inputs if series.input_names else None,
        input_names=series.input_names or None,
        name=name,
        time_unit=series.time_unit,
        calendar=series.calendar,
    )


def _on_one_calendar(series: list[Series]) -> list[Series]:
    return [item.on(series[0].calendar, series[0].time_unit) for item in series]


# Frames --------------------------------------------------------------------------------------------------------------


def _from_frames(path: Path, options: Options) -> Reading:
    """A folder of PNG files: grey or colour, scaled to [0, 1]; the last number in a name is its time."""
    from PIL import Image

    files = sorted(path.glob("*.png")) + sorted(path.glob("*.PNG"))
    if not files:
        raise ValueError(
            f"{path} is a folder without .png files and not a Zarr store. Give a file, or a folder of frames."
        )
    others = [item.name for item in path.iterdir() if item.suffix.lower() != ".png"]
    notes = (
        [f"{path.name}: {len(others)} files are not .png ({', '.join(sorted(others)[:3])}); ignored."] if others else []
    )
    numbers = [re.findall(r"\d+", item.stem) for item in files]
    if all(numbers):
        order = sorted(range(len(files)), key=lambda i: int(numbers[i][-1]))
        times = np.array([int(numbers[i][-1]) for i in order], float)
    else:
        order, times = list(range(len(files))), np.arange(len(files), dtype=float)
        notes.append(f"{path.name}: file names hold no numbers; frames are taken in the order of their names.")
    frames = []
    for i in order:
        try:
            with Image.open(files[i]) as image:
                grey = image.mode in ("1", "L", "I", "I;16", "F", "LA")
                deep = image.mode in ("I", "I;16")
                frames.append(
                    np.asarray(image if deep else image.convert("L" if grey else "RGB"), float)
                    / (65535 if deep else 255)
                )
        except OSError as error:
            raise ValueError(f"{files[i]} is not a readable PNG ({_first_line(error)}). Write it again.") from None
        if frames[-1].shape != frames[0].shape:
            raise ValueError(
                f"all frames need one size; {files[i].name} is {frames[-1].shape}, {files[order[0]].name} is "
                f"{frames[0].shape}. Resize it."
            )
    return Reading([Series(times, np.stack(frames), name=path.name, time_unit=options.time_unit or "frames")], notes)


# In words ------------------------------------------------------------------------------------------------------------


def describe(series: Sequence[Series], notes: Sequence[str] = ()) -> str:
    """What was read, in a few lines: series, span, step, gaps, channels with their units and how full they are, notes."""
    first = series[0]
    rows = sum(len(item) for item in series)
    steps = np.concatenate([np.diff(item.times) for item in series])
    unit = f" {first.time_unit}" if first.time_unit else ""
    lines = [
        f"{len(series)} series ({', '.join(item.name for item in series[:4])}{', …' * (len(series) > 4)}), {rows} rows"
    ]
    start, end = min(item.times[0] for item in series), max(item.times[-1] for item in series)
    lines[0] += f" from {first.when(start)} to {first.when(end)}"
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
