"""Tables as series: wide or long, with every mark, date and gap that people put into them.

`Table` (cells as they stand, and the row of the file each record is in) → names, times, channels → `Series`
"""

# pandas' own annotations widen every column to Series | DataFrame | Unknown; the tests run these functions typed by beartype.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..calendar import Calendar
from ..series import Series
from .columns import (
    bring_index,
    decide_decimal,
    drop_empty_rows,
    find_column,
    first_word,
    holds_text,
    name_columns,
    numeric,
    tidy_table,
)
from .source import ROW, VALUE_NAMES, VARIABLE_NAMES, Loaded, Options, Table, list_names
from .times import find_time, join_clock, looks_like_clocks, looks_like_dates, read_times

if TYPE_CHECKING:
    import pandas as pd

SENTINELS = (-999.0, -9999.0, -99999.0, -99.0, 9999.0, 99999.0, 1e20, -1e20)


def _to_wide(
    table: Table, time: np.ndarray, group: np.ndarray, options: Options
) -> tuple[Table, np.ndarray, np.ndarray]:
    """A long table with one row for each series and time, one column for each variable."""
    import pandas as pd

    variable = find_column(table, str(options.variable), "the variable")
    value = find_column(table, str(options.value or "value"), "the value")
    numbers = numeric(table, value, options)
    if numbers is None:
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
        table.notes.append(f"a long table has no other columns; ignored: {list_names(others)}.")
    wide = wide.reset_index(drop=True)
    wide.columns = [str(name) for name in wide.columns]
    return table._replace(frame=wide, rows=first.to_numpy()), keys["time"].to_numpy(float), keys["group"].to_numpy()


def from_column(column: pd.Series, where: str, options: Options) -> Loaded:
    """A pandas Series: one channel, its index the times."""
    import pandas as pd

    numbered = isinstance(column.index, pd.RangeIndex) and options.time is None
    frame = column.to_frame("x0" if column.name is None else str(column.name))
    where = str(column.name) if column.name is not None and where == "table" else where
    return from_table(
        Table(frame, where, np.arange(len(frame)), []), options._replace(time=ROW) if numbered else options
    )


def _find_long(table: Table, options: Options) -> Options:
    """The columns of a long table, if they are called what such columns are called."""
    if options.variable is not None or options.value is not None:
        return options
    taken = (options.time, options.series, *options.inputs, *(options.channels or ()))
    named = [
        [name for name in table.frame if name.lower() in names and name not in taken]
        for names in (VARIABLE_NAMES, VALUE_NAMES)
    ]
    if not all(named) or not holds_text(table.frame[named[0][0]]) or numeric(table, named[0][0], options) is not None:
        return options
    variable, value = named[0][0], named[1][0]
    table.notes.append(
        f"{table.where} is read as a long table: '{variable}' names the channels, '{value}' holds their values "
        "(variable=, value=)."
    )
    return options._replace(variable=variable, value=value)


def from_table(table: Table, options: Options) -> Loaded:
    table, index, options = bring_index(table, options)
    table, units = name_columns(table)
    table = drop_empty_rows(tidy_table(table))
    options = _find_long(table, options)
    table, time_name = join_clock(table, find_time(table, options, index), options)
    options = decide_decimal(table, _number_columns(table, time_name, options), options)
    times, calendar, time_unit = read_times(table, time_name, units, options)
    used = {time_name}
    group = np.full(len(times), Path(table.where).stem, dtype=object)
    if options.series is not None:
        name = find_column(table, options.series, "the series")
        used.add(name)
        group = table.frame[name].astype(str).str.strip().to_numpy(object)
    if options.variable is not None or options.value is not None:
        if options.variable is None:
            raise ValueError(
                "a long table needs variable= beside value=: the column with the variables' names. Pass both."
            )
        table, times, group = _to_wide(table, times, group, options)
        used = set()
    inputs = [find_column(table, name, "an input") for name in options.inputs]
    columns = _channels(table, used | set(inputs), options)
    values = np.stack(list(columns.values()), axis=1)
    known = np.array([_input(table, name, options) for name in inputs]).reshape(len(inputs), len(times))
    series = []
    for label in dict.fromkeys(group):
        rows = np.flatnonzero(group == label)
        rows = _in_order(table, str(label), times, rows, several=options.series is not None, calendar=calendar)
        if not np.isfinite(values[rows]).any():
            table.notes.append(f"series '{label}' of {table.where} has no observed value; left out.")
            continue
        bad = np.argwhere(~np.isfinite(known[:, rows]))
        if len(bad):
            raise ValueError(
                f"inputs must be known at every time; {table.cell(rows[bad[0, 1]], inputs[bad[0, 0]])} is missing. "
                "Fill it in, or leave that column out of inputs."
            )
        series.append(
            Series(
                times[rows],
                values[rows],
                channels=list(columns),
                units=[units.get(name, "") for name in columns],
                inputs=known[:, rows].T,
                input_names=inputs,
                name=str(label),
                time_unit=time_unit,
                calendar=calendar,
            )
        )
    if not series:
        raise ValueError(f"{table.where} holds no observed value. Check missing= and the columns.")
    return Loaded(series, table.notes)


def _number_columns(table: Table, time_name: str | None, options: Options) -> list[str]:
    """The columns that may hold numbers: those that are asked for, or all but names and dates."""
    others = {options.series, options.variable}
    if time_name is not None and (
        looks_like_dates(table.frame[time_name]) or looks_like_clocks(table.frame[time_name])
    ):
        others.add(time_name)
    if options.channels is None:
        return [name for name in table.frame if name not in others]
    asked = [*options.channels, *options.inputs, *([options.value] if options.value else [])]
    named = [time_name, *(find_column(table, name, "a channel") for name in asked)]
    return [name for name in named if name is not None and name not in others]


def _input(table: Table, name: str, options: Options) -> np.ndarray:
    values = numeric(table, name, options)
    if values is None:
        raise ValueError(f"column '{name}' of {table.where} holds words, not numbers. Leave it out of inputs.")
    return values


def _channels(table: Table, taken: set[str | None], options: Options) -> dict[str, np.ndarray]:
    """The columns to model, as numbers. Words and bare row numbers are left out, and said so."""
    wanted = options.channels
    names = (
        [find_column(table, n, "a channel") for n in wanted] if wanted else [n for n in table.frame if n not in taken]
    )
    columns: dict[str, np.ndarray] = {}
    for name in names:
        values = numeric(table, name, options)
        if values is None:
            record, cell = first_word(table, name)
            if wanted:
                raise ValueError(
                    f"column '{name}' of {table.where} holds words, not numbers (row {table.rows[record]}: '{cell}'). Leave it "
                    "out of channels."
                )
            table.notes.append(
                f"column '{name}' of {table.where} holds words (row {table.rows[record]}: '{cell}'); ignored (series= if it "
                "tells series apart)."
            )
        elif np.isnan(values).all():
            if name.startswith("column ") and not wanted:
                table.notes.append(f"{name} of {table.where} has no name and no values; ignored.")
                continue
            raise ValueError(
                f"every channel must be observed at least once; column '{name}' of {table.where} is empty in all "
                f"{len(values)} rows. Drop it, or name the columns to model with channels=."
            )
        elif not wanted and name == "index" and np.array_equal(values - values[0], np.arange(len(values))):
            table.notes.append(f"the first column of {table.where} numbers the rows; ignored.")
        else:
            _note_sentinels(table, name, values)
            columns[name] = values
    if not columns:
        raise ValueError(
            f"{table.where} has no column of numbers to model beside {list_names(sorted(map(str, taken)))}. Add one."
        )
    return columns


def _note_sentinels(table: Table, name: str, values: np.ndarray) -> None:
    """Note a value that looks like a mark for 'missing'."""
    rest = values[np.isfinite(values)]
    for mark in SENTINELS:
        count = int((rest == mark).sum())
        others = rest[rest != mark] if count else rest[:0]
        if len(others) > 2 and abs(mark - np.median(others)) > 8 * (np.ptp(others) + 1e-12):
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
        words = [
            n for n in table.frame if holds_text(table.frame[n]) and bool(table.frame[n].nunique() < len(table.frame))
        ]
        advice = "Sort the rows by time and merge repeated ones"
        if not several:
            advice += f", or name the column that tells series apart with series={repr(words[-1]) if words else '…'}"
        if calendar is not None and calendar.zone == "":
            advice += ", or, if clocks were set back there, pass time_zone="
        raise ValueError(
            f"times must increase within a series; row {table.rows[rows[k]]} of {table.where} (t={here}) {verb} row "
            f"{table.rows[rows[k - 1]]} (t={before}) in series '{label}'. {advice}."
        )
    return rows
