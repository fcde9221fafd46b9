"""The column of times: finding it, and its cells as numbers with or without a calendar."""

# pandas' own annotations widen every column to Series | DataFrame | Unknown; the tests run these functions typed by beartype.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from ..calendar import Calendar
from .columns import find_column, holds_text, is_number, numeric
from .source import EMPTY, ROW, TIME_NAMES, UNITS, Options, Table, first_line

if TYPE_CHECKING:
    import pandas as pd


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
    frame = table.frame
    if options.time == ROW:
        return None
    if options.time is not None:
        return find_column(table, options.time, "the time")
    if index is not None:
        return index
    taken = {options.series, options.variable, options.value, *options.inputs, *(options.channels or ())}
    free = [name for name in frame.columns if name not in taken]
    for test in (
        lambda n: n.lower() in TIME_NAMES,
        lambda n: looks_like_dates(frame[n]),
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


def read_times(
    table: Table, name: str | None, units: Mapping[str, str], options: Options
) -> tuple[np.ndarray, Calendar | None, str]:
    """Times as numbers, and what they mean as dates or the unit they are in."""
    if name is None:
        return np.arange(len(table.frame), dtype=float), None, options.time_unit or "rows"
    column = table.frame[name]
    if looks_like_dates(column):
        numbers, calendar = _dates(table, name, options)
        return numbers, calendar, calendar.unit
    numbers = numeric(table, name, options)
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


def _dates(table: Table, name: str, options: Options) -> tuple[np.ndarray, Calendar]:
    import pandas as pd

    column, where = table.frame[name], f"column '{name}' of {table.where}"
    if pd.api.types.is_datetime64_any_dtype(column.dtype):
        dates = pd.DatetimeIndex(column)
    else:
        dates = _parse(column.astype(str).str.strip(), table, where, options)
    zone = options.time_zone or ("" if dates.tz is None else str(dates.tz))
    lost = np.flatnonzero(dates.isna())
    if lost.size:
        raise ValueError(
            f"every row needs a date; row {table.rows[lost[0]]}, {where} holds {column.iloc[int(lost[0])]!r}. "
            "Mend it or drop the row."
        )
    if dates.tz is None and options.time_zone:
        try:
            dates = dates.tz_localize(options.time_zone, ambiguous="infer")
        except Exception as error:
            raise ValueError(
                f"{where} does not fit the zone {options.time_zone}: {first_line(error)}. "
                "Write the offsets into the dates."
            ) from None
    return count_dates(dates, zone, options.time_unit)


def _parse(text: pd.Series, table: Table, where: str, options: Options) -> pd.DatetimeIndex:
    """Words as dates, in UTC if they say their offset."""
    import pandas as pd

    offset = text.str.extract(r"(Z|[+-]\d{2}:?\d{2})$")[0]
    aware = offset.notna().to_numpy()
    if aware.any() and not aware.all():
        first = int(np.argmin(aware))
        raise ValueError(
            f"dates must all say their time zone, or none; row {table.rows[first]}, {where} does not "
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
    """Dates as numbers, and what these mean; in the largest unit not above the typical step if none is given."""
    import pandas as pd

    if dates.tz is not None:
        dates = dates.tz_convert("UTC").tz_localize(None)
    origin = dates.min().floor("s")
    seconds = np.asarray((dates - origin) / pd.Timedelta(1, "s"), float)
    if not unit:
        steps = np.diff(np.unique(seconds))
        typical = float(np.median(steps)) if len(steps) else 1.0
        unit = next((unit for unit in reversed(UNITS) if UNITS[unit] <= typical * (1 + 1e-9)), "us")
    if unit not in UNITS:
        raise ValueError(f"time_unit for dates must be one of {', '.join(UNITS)}; got '{unit}'. Use one of them.")
    return seconds / UNITS[unit], Calendar(origin.isoformat(), unit, zone)
