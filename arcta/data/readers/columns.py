"""The columns of a table: their names and units, which one a user means, their cells as numbers; and the column of times."""

# pandas' own annotations widen every column to Series | DataFrame | Unknown; the tests run these functions typed by beartype.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from ..calendar import Calendar, calendar_of
from .source import EMPTY, ROW, TIME_NAMES, Options, Table, first_line

if TYPE_CHECKING:
    import pandas as pd


def is_number(text: str, decimal: str) -> bool:
    try:
        float(text.replace(decimal, "."))
    except ValueError:
        return False
    return True


def split_unit(name: str) -> tuple[str, str]:
    """'level [m]' or 'level (m)' → ('level', 'm')."""
    match = re.fullmatch(r"\s*(.+?)\s*[\[(]([^\])]*)[\])]\s*", name)
    return (match.group(1), match.group(2).strip()) if match else (name.strip(), "")


def name_columns(table: Table) -> tuple[Table, dict[str, str]]:
    """Distinct column names without units, and the unit of each."""
    levels = [name if isinstance(name, tuple) else (name,) for name in table.frame]
    raw = [" ".join(str(part) for part in name if str(part)).strip() for name in levels]
    parts = [split_unit(name) for name in raw]
    bare = [name for name, _ in parts]
    units: dict[str, str] = {}
    for i, (name, (short, unit)) in enumerate(zip(raw, parts, strict=True)):
        if name in ("", "nan") or name.startswith("Unnamed:"):
            best, unit = "index" if i == 0 else f"column {i + 1}", ""
        else:
            best = short if bare.count(short) == 1 else name
        count, fresh = 2, best
        while fresh in units:
            fresh, count = f"{best}.{count}", count + 1
        if fresh != best:
            table.notes.append(f"{table.where} has several columns called '{best}'; one is now '{fresh}'.")
        units[fresh] = unit
    return table._replace(frame=table.frame.set_axis(list(units), axis=1)), units


def holds_text(column: pd.Series) -> bool:
    import pandas as pd

    return pd.api.types.is_string_dtype(column.dtype) or column.dtype == object


def drop_empty_rows(table: Table) -> Table:
    """Without rows that hold nothing."""
    filled = np.zeros(len(table.frame), bool)
    for _, column in table.frame.items():
        empty = column.isna()
        if holds_text(column):
            empty |= column.astype(str).str.strip().str.lower().isin(EMPTY)
        filled |= ~empty.to_numpy()
    if not filled.all():
        first = table.rows[~filled][0]
        table.notes.append(f"{int((~filled).sum())} rows of {table.where} are empty (first: row {first}); left out.")
    if not filled.any():
        raise ValueError(f"{table.where} has a header but no rows. Check that it was written.")
    return table._replace(frame=table.frame[filled].reset_index(drop=True), rows=table.rows[filled])


def find_column(table: Table, name: str, what: str) -> str:
    """The column that a user means by `name`, with or without its unit."""
    names = list(table.frame.columns)
    for match in (lambda n: n == name, lambda n: n == split_unit(name)[0], lambda n: n.lower() == name.lower()):
        for candidate in names:
            if match(candidate):
                return candidate
    shown = ", ".join(names[:12]) + (", …" if len(names) > 12 else "")
    raise ValueError(f"{table.where} has no column '{name}' ({what}); its columns are {shown}. Use one of those names.")


def bring_index(table: Table) -> tuple[Table, str | None]:
    """A DataFrame's own index as a column, if it means something; its name if that is the time."""
    import pandas as pd

    frame, index = table.frame, table.frame.index
    if isinstance(index, pd.RangeIndex):
        return table, None
    if isinstance(index, pd.MultiIndex):
        return table._replace(frame=frame.reset_index()), None
    name = str(index.name) if index.name is not None else "time"
    if name in frame.columns:
        return table._replace(frame=frame.reset_index(drop=True)), None
    dates = isinstance(index, pd.DatetimeIndex)
    numbers = index.dtype.kind in "iuf" and (index.name is not None or index.is_monotonic_increasing)
    return table._replace(frame=frame.reset_index(names=name)), split_unit(name)[0] if dates or numbers else None


def numeric(table: Table, name: str, options: Options) -> np.ndarray:
    """A column as float64 with NaN for what is missing; infinite throughout if it is a column of words."""
    import pandas as pd

    column = table.frame[name]
    if pd.api.types.is_bool_dtype(column.dtype):
        values = column.astype(float).to_numpy(float, na_value=np.nan)
    elif pd.api.types.is_numeric_dtype(column.dtype):
        values = column.to_numpy(float, na_value=np.nan)
    else:
        text = column.astype("string").str.strip()
        text = text.mask(
            text.str.lower().isin([*EMPTY, *(str(m).lower() for m in options.missing if isinstance(m, str))])
        )
        text = text.replace({"True": "1", "False": "0", "true": "1", "false": "0", "TRUE": "1", "FALSE": "0"})
        if options.decimal != ".":
            text = text.str.replace(".", "", regex=False).str.replace(options.decimal, ".", regex=False)
        values = pd.to_numeric(text, errors="coerce").to_numpy(float, na_value=np.nan)
        broken = np.flatnonzero(text.notna().to_numpy() & np.isnan(values))
        numbers = int(np.isfinite(values).sum())
        if broken.size and (numbers > broken.size or text.iloc[broken].str.fullmatch(r"-?\d+,\d+").all()):
            entry = str(text.iloc[int(broken[0])])
            advice = "Fix it, or pass missing= if it means that nothing was measured."
            if re.fullmatch(r"-?[\d.]*,\d+", entry):
                advice = "Pass decimal=','."
            raise ValueError(f"values must be numbers; {table.cell(broken[0], name)} holds '{entry}'. {advice}")
        if broken.size:
            return np.full(len(values), np.inf)
    numbers = [float(m) for m in options.missing if not isinstance(m, str) or is_number(m, ".")]
    return np.where(np.isin(values, numbers), np.nan, values) if numbers else values


# Times ---------------------------------------------------------------------------------------------------------------


def _to_datetime(text: pd.Series, *, utc: bool) -> pd.Series:
    import pandas as pd

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pd.to_datetime(text, errors="coerce", utc=utc, format="mixed")


def looks_like_dates(column: pd.Series) -> bool:
    import pandas as pd

    if pd.api.types.is_datetime64_any_dtype(column.dtype):
        return True
    if not holds_text(column):
        return False
    some = column.dropna().astype(str).str.strip()
    some = some[~some.str.lower().isin(EMPTY)].head(20)
    if some.empty or not some.str.contains(r"\d[-/.:T]\d").all():
        return False
    parsed = _to_datetime(some, utc=True).notna()
    return bool(parsed.mean() > 0.5) and not any(is_number(x, ",") for x in some)


def find_time(table: Table, options: Options, index: str | None) -> str | None:
    if options.time == ROW:
        return None
    if options.time is not None:
        return find_column(table, options.time, "the time")
    if index is not None:
        return index
    taken = {options.series, options.variable, options.value, *options.inputs, *(options.channels or ())}
    free = [name for name in table.frame if name not in taken]
    for test in (
        lambda n: n.lower() in TIME_NAMES,
        lambda n: looks_like_dates(table.frame[n]),
        lambda n: n.lower().startswith(("time", "date")),
    ):
        found = [name for name in free if test(name)]
        if found:
            if len(found) > 1:
                table.notes.append(
                    f"'{found[0]}' of {table.where} is taken as the time; it could also be '{found[1]}' (time=)."
                )
            return found[0]
    shown = ", ".join(list(table.frame)[:12])
    raise ValueError(
        f"{table.where} has no column that is clearly the time; its columns are {shown}. "
        "Name it with time=…, or pass time='row' to number the rows."
    )


def read_times(
    table: Table, name: str | None, units: Mapping[str, str], options: Options
) -> tuple[np.ndarray, Calendar | None, str]:
    """Times as numbers, and what they mean as dates, or else the unit they are in."""
    if name is None:
        return np.arange(len(table.frame), dtype=float), None, options.time_unit or "rows"
    column = table.frame[name]
    if looks_like_dates(column):
        return *_dates(table, name, options), ""
    numbers = numeric(table, name, options)
    if np.isinf(numbers).all():
        raise ValueError(
            f"times must be numbers or dates; {table.cell(0, name)} holds '{column.iloc[0]}'. "
            "Name the column of times with time=."
        )
    bad = np.flatnonzero(np.isnan(numbers))
    if bad.size:
        raise ValueError(
            f"every row needs a time; row {table.rows[bad[0]]} of {table.where} has none in column '{name}'. "
            "Fill it in or drop the row."
        )
    return numbers, None, options.time_unit or units.get(name, "")


def _dates(table: Table, name: str, options: Options) -> tuple[np.ndarray, Calendar]:
    column, dates = table.frame[name], _parse(table, name, options)
    zone = options.time_zone or ("" if dates.tz is None else str(dates.tz))
    lost = np.flatnonzero(dates.isna())
    if lost.size:
        raise ValueError(
            f"every row needs a date; {table.cell(lost[0], name)} holds {column.iloc[int(lost[0])]!r}. "
            "Fix it or drop the row."
        )
    if dates.tz is None and options.time_zone:
        try:
            dates = dates.tz_localize(options.time_zone, ambiguous="infer")
        except Exception as error:
            raise ValueError(
                f"column '{name}' of {table.where} does not fit the zone {options.time_zone}: {first_line(error)}. "
                "Write the offsets into the dates."
            ) from None
    return count_dates(dates, zone, options.time_unit)


def _parse(table: Table, name: str, options: Options) -> pd.DatetimeIndex:
    """The cells of a column as dates; words that say their offset are read as UTC."""
    import pandas as pd

    if pd.api.types.is_datetime64_any_dtype(table.frame[name].dtype):
        return pd.DatetimeIndex(table.frame[name])
    text, where = table.frame[name].astype(str).str.strip(), f"column '{name}' of {table.where}"
    offset = text.str.extract(r"(Z|[+-]\d{2}:?\d{2})$")[0]
    aware = offset.notna().to_numpy()
    if aware.any() and not aware.all():
        first = int(np.argmin(aware))
        raise ValueError(
            f"dates must all say their time zone, or none; {table.cell(first, name)} does not "
            f"({text.iloc[first]}). Add the offset there."
        )
    offsets = offset.dropna().str.replace(":", "").replace("Z", "+0000").unique()
    if len(offsets) > 1:
        table.notes.append(
            f"{where} mixes the offsets {', '.join(sorted(offsets)[:4])}; read as UTC"
            + (f" and shown in {options.time_zone}." if options.time_zone else ".")
        )
    elif aware.any() and offsets[0] != "+0000" and not options.time_zone:
        table.notes.append(f"{where} is at {offsets[0]}; results are in UTC (time_zone=).")
    return pd.DatetimeIndex(_to_datetime(text, utc=bool(aware.any())))


def count_dates(dates: pd.DatetimeIndex, zone: str, unit: str | None) -> tuple[np.ndarray, Calendar]:
    """Dates as numbers, and what these mean."""
    calendar = calendar_of(dates, zone, unit)
    return calendar.numbers(dates), calendar
