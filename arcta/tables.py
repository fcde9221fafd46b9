"""Tables as series: text files and DataFrames, wide or long, with every mark, date and gap that people put into them.

    text → `Table` (cells as they stand, and the row of the file each record is in) → names, times, channels → `Series`

What cannot be used is an error that names file, row and column; what is left out is noted, never silent.
"""

# pandas' own annotations widen every column to Series | DataFrame | Unknown; the tests run these functions typed by beartype.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .series import Calendar, Series

if TYPE_CHECKING:
    import pandas as pd

ROW = "row"  # time="row" numbers the rows
TIME_NAMES = ("time", "times", "t", "date", "datetime", "timestamp", "year", "day", "hour", "seconds", "ds")
_EMPTY = ("", "na", "n/a", "nan", "null", "none", "-", "?", "#n/a")
_SENTINELS = (-999.0, -9999.0, -99999.0, -99.0, 9999.0, 99999.0, 1e20, -1e20)
UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


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


class Table(NamedTuple):
    frame: pd.DataFrame
    where: str
    rows: np.ndarray  # the row of the file that each record stands in
    notes: list[str]


def first_line(error: Exception) -> str:
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


def read_text(path: Path, options: Options) -> Table:
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
            f"{path.name}: {row} has more fields than the header ({first_line(error)}). Mend that row, or pass delimiter=."
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
    return Table(frame, path.name, rows[~repeats], notes)


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


def _name_columns(table: Table) -> tuple[Table, dict[str, str]]:
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


def _drop_rows(table: Table) -> Table:
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


def _column(table: Table, name: str, what: str) -> str:
    """The column that a user means by `name`, with or without its unit."""
    names = list(table.frame.columns)
    for match in (lambda n: n == name, lambda n: n == _split_unit(name)[0], lambda n: n.lower() == name.lower()):
        for candidate in names:
            if match(candidate):
                return candidate
    shown = ", ".join(names[:12]) + (", …" if len(names) > 12 else "")
    raise ValueError(f"{table.where} has no column '{name}' ({what}); its columns are {shown}. Use one of those names.")


def _bring_index(table: Table, options: Options) -> tuple[Table, str | None]:
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


def _find_time(table: Table, options: Options, index: str | None) -> str | None:
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
        lambda n: n.lower() in TIME_NAMES,
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
    table: Table, name: str | None, units: Mapping[str, str], options: Options
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


def _dates(table: Table, name: str, options: Options) -> tuple[np.ndarray, Calendar, str]:
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
                f"column '{name}' of {table.where} does not fit the zone {options.time_zone}: {first_line(error)}. "
                "Write the offsets into the dates."
            ) from None
    if options.time_zone:
        zone = options.time_zone
    plain = parsed.tz_convert("UTC").tz_localize(None) if parsed.tz is not None else parsed
    origin = plain.min().floor("s")
    seconds = np.asarray((plain - origin) / pd.Timedelta(1, "s"), float)
    unit = options.time_unit or unit_of(seconds)
    if unit not in UNITS:
        raise ValueError(f"time_unit for dates must be one of {', '.join(UNITS)}; got '{unit}'. Use one of them.")
    return seconds / UNITS[unit], Calendar(origin.isoformat(), unit, zone), unit


def unit_of(seconds: np.ndarray) -> str:
    steps = np.abs(np.diff(np.unique(seconds)))
    typical = float(np.median(steps)) if len(steps) else 1.0
    return next((unit for unit in reversed(UNITS) if UNITS[unit] <= typical * (1 + 1e-9)), "us")


def _numeric(table: Table, name: str, column: pd.Series, options: Options) -> np.ndarray:
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
    table: Table, time: np.ndarray, group: np.ndarray, options: Options
) -> tuple[Table, np.ndarray, np.ndarray]:
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


def from_table(table: Table, options: Options) -> Reading:
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


def _channels(table: Table, taken: set[str | None], options: Options) -> dict[str, np.ndarray]:
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


def _suspect(table: Table, name: str, values: np.ndarray) -> None:
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
    table: Table, label: str, times: np.ndarray, rows: np.ndarray, *, several: bool, calendar: Calendar | None
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


def _check_inputs(table: Table, names: list[str], columns: list[np.ndarray], rows: np.ndarray) -> None:
    for name, column in zip(names, columns, strict=True):
        bad = np.flatnonzero(~np.isfinite(column))
        if bad.size:
            raise ValueError(
                f"inputs must be known at every time; row {table.rows[rows[bad[0]]]}, column '{name}' of {table.where} is missing. "
                "Fill it in, or leave that column out of inputs."
            )
