"""The column of times: which it is, and its cells as numbers with what they mean: dates, times of day, or plain numbers."""

# pandas' own annotations widen every column to Series | DataFrame | Unknown; the tests run these functions typed by beartype.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from ..calendar import SECONDS, Calendar, calendar_of, in_zone, zone_of
from ..dates import (
    FIRST_YEAR,
    LAST_YEAR,
    Ambiguous,
    DateError,
    Dates,
    clock_of,
    fold,
    looks_like_date,
    read_dates,
    split_cell,
)
from .columns import find_column, holds_text, numeric
from .digits import dates_without_marks, note_possible_dates
from .numbers import is_number
from .source import EMPTY, ROW, TIME_NAMES, Options, Table, list_names

if TYPE_CHECKING:
    import pandas as pd

CLOCK_NAMES = ("time", "hour", "clock", "time of day", "tod", "uhrzeit", "heure", "hora")
CLOCK = re.compile(
    r"(\d{1,4}:\d{2}(?::\d{2}(?:[.,]\d+)?)?|\d{1,2}\.\d{2}\.\d{2}|\d{1,2}h\d{2}|\d{1,2}(?= ?[ap]\.?m))"
    r"(?: ?([ap])\.?m\.?)?"
)


def _some(column: pd.Series) -> list[str]:
    """The first cells that are not empty."""
    return list(islice((cell for cell in column if cell.lower() not in EMPTY), 20))


def looks_like_dates(column: pd.Series) -> bool:
    import pandas as pd

    if pd.api.types.is_datetime64_any_dtype(column.dtype):
        return True
    some = _some(column) if holds_text(column) else []
    return bool(some) and 2 * sum(looks_like_date(cell) and not is_number(cell) for cell in some) > len(some)


def looks_like_clocks(column: pd.Series) -> bool:
    some = _some(column) if holds_text(column) else []
    return bool(some) and all(CLOCK.fullmatch(cell.lower()) for cell in some)


def find_time(table: Table, options: Options, index: str | None) -> str | None:
    if options.time == ROW:
        return None
    if options.time is not None:
        return find_column(table, options.time, "the time")
    if index is not None:
        return index
    free = _free(table, options)
    for test in (
        lambda n: n.lower() in TIME_NAMES,
        lambda n: looks_like_dates(table.frame[n]),
        lambda n: n.lower().startswith(("time", "date")),
    ):
        found = [name for name in free if test(name)]
        if found:
            if len(found) > 1 and not _belong_together(table, *found[:2]):
                table.notes.append(
                    f"'{found[0]}' of {table.where} is taken as the time; it could also be '{found[1]}' (time=)."
                )
            return found[0]
    raise ValueError(
        f"{table.where} has no column that is clearly the time; its columns are {list_names(table.frame)}. "
        "Name it with time=…, or pass time='row' to number the rows."
    )


def _free(table: Table, options: Options) -> list[str]:
    taken = {options.series, options.variable, options.value, *options.inputs, *(options.channels or ())}
    return [name for name in table.frame if name not in taken]


# A date and a time of day in two columns -----------------------------------------------------------------------------


def _only_days(column: pd.Series) -> bool:
    import pandas as pd

    if pd.api.types.is_datetime64_any_dtype(column.dtype):
        return bool((column.dropna() == column.dropna().dt.normalize()).all())
    if not looks_like_dates(column):
        return False
    parts = [split_cell(fold(cell).lower()) for cell in _some(column)]
    return all(part is not None and part[1].clock is None for part in parts)


def _belong_together(table: Table, first: str, second: str) -> bool:
    a, b = table.frame[first], table.frame[second]
    return (_only_days(a) and looks_like_clocks(b)) or (_only_days(b) and looks_like_clocks(a))


def join_clock(table: Table, name: str | None, options: Options) -> tuple[Table, str | None]:
    """A column of days and one of times of day beside it as one column."""
    import pandas as pd

    if name is None:
        return table, None
    free = [other for other in _free(table, options) if other != name]
    names = list(table.frame)
    place = names.index(name)
    beside = [n for n in names[max(place - 1, 0) : place + 2] if n in free]
    wanted = [n for n in free if n.lower() in CLOCK_NAMES or n.lower().startswith(("date", "datum", "fecha"))]
    other = next((n for n in dict.fromkeys([*beside, *wanted]) if _belong_together(table, name, n)), None)
    if other is None:
        return table, name
    day, clock = (name, other) if _only_days(table.frame[name]) else (other, name)
    frame = table.frame.copy()
    days = frame[day] if holds_text(frame[day]) else frame[day].dt.strftime("%Y-%m-%d")
    joined = [f"{d} {c}" for d, c in zip(days, frame[clock], strict=True)]
    frame[day] = pd.Series(joined, index=frame.index, dtype=object)
    table.notes.append(f"columns '{day}' and '{clock}' of {table.where} are joined: dates and their times of day.")
    return table._replace(frame=frame.drop(columns=clock)), day


# Times as numbers ----------------------------------------------------------------------------------------------------


def read_times(
    table: Table, name: str | None, units: Mapping[str, str], options: Options
) -> tuple[np.ndarray, Calendar | None, str]:
    """Times as numbers, and what they mean as dates, or else the unit they are in."""
    import pandas as pd

    if name is None:
        return np.arange(len(table.frame), dtype=float), None, options.time_unit or "rows"
    column = table.frame[name]
    if looks_like_dates(column):
        return *count_dates(_parse(table, name, options), table, name, options), ""
    if looks_like_clocks(column):
        return _clocks(table, name, options)
    if pd.api.types.is_timedelta64_dtype(column.dtype):
        elapsed = column.dt.total_seconds().to_numpy(float)
        _check_filled(table, name, np.isnan(elapsed))
        return _in_unit(elapsed, options)
    dates = dates_without_marks(table, name, units.get(name, ""), options)
    if dates is not None:
        return *count_dates(dates, table, name, options), ""
    numbers = numeric(table, name, options)
    if numbers is None:
        raise ValueError(
            f"times must be numbers or dates; {table.cell(0, name)} holds '{str(column.iloc[0])[:60]}'. "
            "Name the column of times with time=."
        )
    _check_filled(table, name, np.isnan(numbers))
    note_possible_dates(table, name, column, numbers)
    return numbers, None, options.time_unit or units.get(name, "")


def _check_filled(table: Table, name: str, missing: np.ndarray) -> None:
    if missing.any():
        row = table.rows[int(np.argmax(missing))]
        raise ValueError(
            f"every row needs a time; row {row} of {table.where} has none in column '{name}'. Fill it in or drop the row."
        )


def _parse(table: Table, name: str, options: Options) -> pd.DatetimeIndex:
    """The cells of a column as dates; words that say their offset are read as UTC."""
    import pandas as pd

    column = table.frame[name]
    if pd.api.types.is_datetime64_any_dtype(column.dtype):
        _check_filled(table, name, column.isna().to_numpy())
        return pd.DatetimeIndex(column)
    cells = column.to_numpy()
    _check_filled(table, name, np.array([cell.lower() in EMPTY for cell in cells]))
    try:
        found = read_dates(cells.tolist(), options.day_first)
    except Ambiguous as error:
        cure = "Pass day_first=True or day_first=False (--day-first, --no-day-first), or write dates as 2024-03-31"
        cure = cure if options.day_first is None else "Write years with four digits"
        raise ValueError(
            f"dates need one reading; {table.cell(0, name)} holds '{cells[0]}', and the column may be {error}. {cure}."
        ) from None
    except DateError as error:
        cell = cells[error.cell][:60]
        raise ValueError(
            f"times must be dates in one format; {table.cell(error.cell, name)} holds '{cell}': {error}. "
            "Fix it or drop the row."
        ) from None
    _note_reading(table, name, cells[0], found, options)
    return found.to_index()


def _note_reading(table: Table, name: str, cell: str, found: Dates, options: Options) -> None:
    where = f"column '{name}' of {table.where}"
    if found.words != "year-month-day" or found.remarks:
        remarks = "".join(f"; {remark}" for remark in found.remarks)
        table.notes.append(f"{where} is read as {found.words}: '{cell}' is {str(found.moments[0])[:19]}{remarks}.")
    if found.offsets is None:
        return
    shown = [f"{'-' if o < 0 else '+'}{abs(o) // 60:02d}{abs(o) % 60:02d}" for o in sorted(set(found.offsets.tolist()))]
    if len(shown) > 1:
        into = f" and shown in {options.time_zone}" if options.time_zone else ""
        table.notes.append(f"{where} mixes the offsets {', '.join(shown[:4])}; read as UTC{into}.")
    elif shown != ["+0000"] and not options.time_zone:
        table.notes.append(f"{where} is at {shown[0]}; results are in UTC (time_zone=).")


def count_dates(dates: pd.DatetimeIndex, table: Table, name: str, options: Options) -> tuple[np.ndarray, Calendar]:
    """Dates as numbers, and what these mean."""
    far = (dates.year < FIRST_YEAR) | (dates.year > LAST_YEAR)
    if far.any():
        raise ValueError(
            f"years must lie from {FIRST_YEAR} to {LAST_YEAR}; {table.cell(int(np.argmax(far)), name)} is "
            f"{dates[int(np.argmax(far))]}. Leave that row out if it means none."
        )
    zone = options.time_zone or zone_of(dates)
    try:
        dates = in_zone(dates, zone) if zone else dates
    except ValueError as error:
        raise ValueError(f"column '{name}' of {table.where}: {error}") from None
    calendar = calendar_of(dates, zone, options.time_unit)
    return calendar.numbers(dates), calendar


def _in_unit(elapsed: np.ndarray, options: Options) -> tuple[np.ndarray, None, str]:
    """Seconds in the unit that is asked for, or the largest not above the typical step."""
    steps = np.diff(np.unique(elapsed))
    typical = float(np.median(steps)) if len(steps) else 1.0
    fitting = [unit for unit in SECONDS if unit != "d" and SECONDS[unit] <= typical * (1 + 1e-9)]
    unit = options.time_unit or (fitting or ["us"])[-1]
    if unit not in SECONDS:
        raise ValueError(
            f"time_unit for times of day must be one of {', '.join(SECONDS)}; got '{unit}'. Use one of them."
        )
    return elapsed / SECONDS[unit], None, unit


def _clocks(table: Table, name: str, options: Options) -> tuple[np.ndarray, None, str]:
    """Times of day without a date as time since midnight."""
    cells = table.frame[name].to_numpy()
    _check_filled(table, name, np.array([cell.lower() in EMPTY for cell in cells]))
    elapsed = np.empty(len(cells))
    halves = 0
    for i, cell in enumerate(cells):
        match = CLOCK.fullmatch(cell.lower())
        most = 9999 if match and match[1].count(":") == 2 else 24
        time = clock_of(match[1], match[2], most_hours=most) if match else None
        halves += bool(match and match[2])
        if time is None or (halves and halves <= i):
            raise ValueError(
                f"times of day must be hours:minutes in one format; {table.cell(i, name)} holds '{cell[:60]}'. Fix it, or "
                "give times with their dates."
            )
        elapsed[i] = time / 1e6
    label_name = find_column(table, options.series, "the series") if options.series else None
    group = table.frame[label_name].astype(str).to_numpy() if label_name else np.full(len(cells), "")
    for label in dict.fromkeys(group):
        rows = np.flatnonzero(group == label)
        back = np.flatnonzero(np.diff(elapsed[rows]) <= 0)
        if back.size:
            raise ValueError(
                f"times of day without a date must increase; {table.cell(rows[back[0] + 1], name)} holds "
                f"'{cells[rows[back[0] + 1]]}' after '{cells[rows[back[0]]]}'. Give times with their dates."
            )
    times, _, unit = _in_unit(elapsed, options)
    table.notes.append(
        f"column '{name}' of {table.where} has times of day without a date; counted in {unit} from midnight."
    )
    return times, None, unit
