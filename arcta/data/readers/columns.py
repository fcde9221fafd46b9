"""The columns of a table: their names and units, which one a user means, their cells as numbers."""

# pandas' own annotations widen every column to Series | DataFrame | Unknown; the tests run these functions typed by beartype.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from .numbers import MARKS, Number, almost_number, find_evidence, parse_number, plain_numbers
from .source import EMPTY, TIME_NAMES, Options, Table, list_names

if TYPE_CHECKING:
    import pandas as pd

LONGEST_NAME = 400  # letters
TRUTHS = {"true": 1.0, "false": 0.0}
ONLY_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)


def split_unit(name: str) -> tuple[str, str]:
    """'level [m]' or 'level (m)' → ('level', 'm')."""
    match = re.fullmatch(r"\s*(.+?)\s*[\[(]([^\])]*)[\])]\s*", name)
    return (match.group(1), match.group(2).strip()) if match else (name.strip(), "")


def clean_name(name: object) -> str:
    """A name in one line, without what cannot be printed."""
    line = " ".join("".join(c if c.isprintable() else " " for c in str(name)).split())
    return line if len(line) <= LONGEST_NAME else f"{line[:LONGEST_NAME]}…"


def name_columns(table: Table) -> tuple[Table, dict[str, str]]:
    """Distinct column names without units, and the unit of each."""
    levels = [name if isinstance(name, tuple) else (name,) for name in table.frame]
    raw = [clean_name(" ".join(str(part) for part in name if str(part))) for name in levels]
    parts = [split_unit(name) for name in raw]
    bare = Counter(name for name, _ in parts)
    units: dict[str, str] = {}
    for i, (name, (short, unit)) in enumerate(zip(raw, parts, strict=True)):
        if name in ("", "nan") or name.startswith("Unnamed:"):
            best, unit = "index" if i == 0 else f"column {i + 1}", ""
        else:
            best = short if bare[short] == 1 else name
        count, fresh = 2, best
        while fresh in units:
            fresh, count = f"{best}.{count}", count + 1
        if fresh != best:
            table.notes.append(f"{table.where} has several columns called '{best}'; one is now '{fresh}'.")
        units[fresh] = unit
    return table._replace(frame=table.frame.set_axis(list(units), axis=1)), units


def _holds_text(column: pd.Series) -> bool:
    import pandas as pd

    kinds = pd.CategoricalDtype | pd.PeriodDtype
    return column.dtype == object or isinstance(column.dtype, kinds) or pd.api.types.is_string_dtype(column.dtype)


def holds_text(column: pd.Series) -> bool:
    """Whether a column of a tidy table is one of text."""
    return column.dtype == object


def _cells_of(column: pd.Series) -> np.ndarray:
    """The cells of a column as text without blanks around it, "" where there is none."""
    missing = column.isna().to_numpy()
    cells = np.empty(len(column), object)
    values = column.to_numpy(object)
    cells[:] = ["" if gone else str(cell).strip() for cell, gone in zip(values, missing, strict=True)]
    return cells


def tidy_table(table: Table) -> Table:
    """The table with its columns of text as str without blanks around it."""
    import pandas as pd

    if table.tidy:
        return table
    frame = table.frame.copy(deep=False)
    for place, (_, column) in enumerate(table.frame.items()):
        if _holds_text(column):
            frame.isetitem(place, pd.Series(_cells_of(column), index=frame.index, dtype=object))
    return table._replace(frame=frame, tidy=True)


def drop_empty_rows(table: Table) -> Table:
    """Without rows that hold nothing."""
    filled = np.zeros(len(table.frame), bool)
    for _, column in table.frame.items():
        if filled.all() and len(filled):
            return table
        if holds_text(column):
            filled |= np.array([cell.lower() not in EMPTY for cell in column], bool)
        else:
            filled |= column.notna().to_numpy()
    if not filled.any():
        raise ValueError(f"{table.where} has a header but no rows. Check that it was written.")
    if not filled.all():
        first = table.rows[~filled][0]
        table.notes.append(f"{int((~filled).sum())} rows of {table.where} are empty (first: row {first}); left out.")
    return table._replace(frame=table.frame[filled].reset_index(drop=True), rows=table.rows[filled])


def find_column(table: Table, name: str, what: str) -> str:
    """The column that a user means by `name`, with or without its unit."""
    if name in table.frame.columns:
        return name
    names, name = list(table.frame.columns), clean_name(name)
    for match in (lambda n: n == name, lambda n: n == split_unit(name)[0], lambda n: n.lower() == name.lower()):
        for candidate in names:
            if match(candidate):
                return candidate
    raise ValueError(
        f"{table.where} has no column '{name}' ({what}); its columns are {list_names(names)}. Use one of those names."
    )


def bring_index(table: Table, options: Options) -> tuple[Table, str | None, Options]:
    """A DataFrame's own index as a column, if it means something; its name if that is the time. Of several levels one is the time;
    the others tell series apart, unless a column is to do so."""
    import pandas as pd

    frame, index = table.frame, table.frame.index
    if isinstance(index, pd.RangeIndex):
        return table, None, options
    if isinstance(index, pd.MultiIndex):
        return _bring_levels(table, index, options)
    if index.name is None and index.dtype.kind in "iu" and _names_time(frame):  # the rows that a filter has left
        return table._replace(frame=frame.reset_index(drop=True)), None, options
    name = str(index.name) if index.name is not None else "time"
    if name in frame.columns:
        return table._replace(frame=frame.reset_index(drop=True)), None, options
    dates = isinstance(index, pd.DatetimeIndex | pd.PeriodIndex)
    numbers = index.dtype.kind in "iuf" and (index.name is not None or index.is_monotonic_increasing)
    time = split_unit(name)[0] if dates or numbers else None
    return table._replace(frame=frame.reset_index(names=name)), time, options


def _names_time(frame: pd.DataFrame) -> bool:
    """Whether a column is called what times are called, or holds dates."""
    return any(split_unit(str(n))[0].lower() in TIME_NAMES or x.dtype.kind == "M" for n, x in frame.items())


def _bring_levels(table: Table, index: pd.MultiIndex, options: Options) -> tuple[Table, str | None, Options]:
    names = [f"level {i}" if name is None else str(name) for i, name in enumerate(index.names)]
    frame = table.frame.reset_index(names=names)
    asked = {options.time, options.series, options.variable}
    if asked & set(names):
        return table._replace(frame=frame), None, options
    dated = [name for name, level in zip(names, index.levels, strict=True) if level.dtype.kind == "M"]
    called = [name for name in names if split_unit(name)[0].lower() in TIME_NAMES]
    time = next(iter([*dated, *called, names[-1]])) if options.time is None else None
    others = [name for name in names if name != time]
    if options.series is None and others:
        label = others[0] if len(others) == 1 else " / ".join(others)
        if len(others) > 1:
            joined = frame[others].astype(str).agg(" / ".join, axis=1)
            frame = frame.drop(columns=others).assign(**{label: joined})
        options = options._replace(series=label)
    return table._replace(frame=frame), None if time is None else split_unit(time)[0], options


def numeric(table: Table, name: str, options: Options) -> np.ndarray | None:
    """A column as float64 with NaN for what is missing; None if it is a column of words."""
    import pandas as pd

    column = table.frame[name]
    kind = column.dtype
    if pd.api.types.is_complex_dtype(kind):
        raise ValueError(
            f"values must be real; column '{name}' of {table.where} is complex. Split it into two columns."
        )
    if pd.api.types.is_bool_dtype(kind) or pd.api.types.is_numeric_dtype(kind):
        values = column.to_numpy(float, na_value=np.nan)
        _note_long_integers(table, name, column)
    elif holds_text(column):
        values = _text_numbers(table, name, column.to_numpy().copy(), options)
    else:
        return None
    if values is None:
        return None
    marks = [float(m) for m in options.missing if not isinstance(m, str) or ONLY_NUMBER.fullmatch(m)]
    values = np.where(np.isin(values, marks), np.nan, values) if marks else values
    infinite = np.flatnonzero(np.isinf(values))
    if infinite.size:
        raise ValueError(
            f"values must be finite; {table.cell(infinite[0], name)} is infinite. Leave it empty if it is missing."
        )
    return values


def _note_long_integers(table: Table, name: str, column: pd.Series) -> None:
    """Integers that a float does not hold are noted: they are names of things more often than measurements."""
    if column.dtype.kind in "iu" and len(column) and (column.abs() > 2**53).any():
        table.notes.append(f"column '{name}' of {table.where} holds integers beyond 2^53; their last digits are lost.")


def _text_numbers(table: Table, name: str, cells: np.ndarray, options: Options) -> np.ndarray | None:
    """Text as numbers; None if most cells are words. What is read though it is not plain is noted."""
    gone = {*EMPTY, *(mark.strip().lower() for mark in options.missing if isinstance(mark, str))}
    cells[:] = ["" if cell.lower() in gone else cell for cell in cells]
    values = plain_numbers(cells, options.decimal or ".")
    if values is not None and np.isfinite(values[cells != ""]).all() and not (np.abs(values) >= 2**53).any():
        _note_zeros(table, name, cells)
        return values
    found: dict[str, Number | None] = {}
    for cell in dict.fromkeys(cells):
        if cell:
            truth = TRUTHS.get(cell.lower())
            found[cell] = parse_number(cell, options.decimal or ".") if truth is None else Number(truth, "")
    bad = [cell for cell, number in found.items() if number is None]
    if bad and not _refuse(table, name, cells, bad, found, options):
        return None
    _check_signs(table, name, cells, found)
    values = np.array([number.value if (number := found.get(cell)) else np.nan for cell in cells], float)
    _note_special(table, name, cells, found, options)
    _note_zeros(table, name, cells)
    return values


def _refuse(
    table: Table, name: str, cells: np.ndarray, bad: list[str], found: dict[str, Number | None], options: Options
) -> bool:
    """An error for a cell that should be a number; False if the column is one of words."""
    strange = set(bad)
    count = sum(cell in strange for cell in cells)
    almost = sum(cell in strange and almost_number(cell) for cell in cells)
    numbers = sum(cell in found for cell in cells) - count
    if numbers <= count and almost < count / 2:
        return False
    first = next(i for i, cell in enumerate(cells) if cell in strange and (almost_number(cell) or almost < count / 2))
    cell, decimal = cells[first], options.decimal or "."
    advice = "Write it as a plain number, or pass missing= if it means that nothing was measured."
    if parse_number(cell, MARKS[decimal]) is not None:
        advice = (
            f"'{decimal}' is the decimal mark here, and '{MARKS[decimal]}' stands between groups of three digits only. "
            f"Pass decimal='{MARKS[decimal]}' if all numbers of the file are written so."
        )
    raise ValueError(f"values must be numbers; {table.cell(first, name)} holds '{cell[:60]}'. {advice}")


def _check_signs(table: Table, name: str, cells: np.ndarray, found: Mapping[str, Number | None]) -> None:
    """Money and per cent in all cells of a column, or in none."""
    signs = [(i, number.sign) for i, cell in enumerate(cells) if (number := found.get(cell)) is not None]
    odd = next((i for i, sign in signs if sign != signs[0][1]), None)
    if odd is not None:
        raise ValueError(
            f"a column needs one unit; {table.cell(odd, name)} holds '{cells[odd]}', {table.cell(signs[0][0], name)} "
            f"'{cells[signs[0][0]]}'. Write both in the same unit."
        )


def _note_special(
    table: Table, name: str, cells: np.ndarray, found: Mapping[str, Number | None], options: Options
) -> None:
    for i, cell in enumerate(cells):
        number = found.get(cell)
        if number is None or cell.lower() in TRUTHS:
            continue
        decimal = options.decimal or "."
        if MARKS[decimal] in cell or not ONLY_NUMBER.fullmatch(cell.replace(decimal, ".")):
            table.notes.append(
                f"{table.cell(i, name)} holds '{cell}', read as {number.value:.15g}; others like it too."
            )
            break
    long = next((c for c, n in found.items() if n and c.lstrip("+-").isdigit() and int(n.value) != int(c)), None)
    if long is not None:
        table.notes.append(f"column '{name}' of {table.where} holds '{long}', whose last digits are lost.")


def _note_zeros(table: Table, name: str, cells: np.ndarray) -> None:
    zero = next((c for c in cells[:1000] if len(c) > 1 and c[0] == "0" and c.isdigit()), None)
    if zero is not None:
        table.notes.append(f"column '{name}' of {table.where} holds '{zero}' with a leading zero; read as a number.")


def first_word(table: Table, name: str) -> tuple[int, str]:
    """The first cell of a column that is no number, and its record."""
    cells = [str(cell) for cell in table.frame[name]]
    record = next((i for i, cell in enumerate(cells) if cell.lower() not in EMPTY), 0)
    return record, cells[record][:60]


def decide_decimal(table: Table, names: Sequence[str], options: Options) -> Options:
    """The options with the decimal mark of a table: what was said, or what its cells prove."""
    if options.decimal is not None and options.decimal not in MARKS:
        raise ValueError(f"decimal must be '.' or ','; got {options.decimal!r}. Pass one of them.")
    columns = {name: table.frame[name] for name in names} if options.decimal is None else {}
    found = find_evidence((name, column.to_numpy()) for name, column in columns.items() if column.dtype == object)

    def place(kind: str) -> str:
        return f"{table.cell(found[kind].record, found[kind].column)} holds '{found[kind].text.strip()}'"

    comma, point = "comma" in found, "point" in found
    if comma and point:
        raise ValueError(
            f"one decimal mark is needed in a file; {place('comma')} and {place('point')}. Write all numbers in one "
            "convention, or pass decimal= and name the columns that keep to it with channels=."
        )
    unclear = "comma or thousand" if not point else ""
    unclear = "point or thousand" if comma else unclear
    if unclear in found:
        raise ValueError(
            f"{place(unclear)}, which may be a thousand or a number with decimals. Pass decimal='.' if points stand before the "
            "decimals, decimal=',' if commas do."
        )
    if comma:
        table.notes.append(f"{place('comma')}: numbers are read with decimal commas (decimal=).")
    return options._replace(decimal=options.decimal or ("," if comma else "."))
