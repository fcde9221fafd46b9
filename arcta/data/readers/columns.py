"""The columns of a table: their names and units, which one a user means, and their cells as numbers."""

# pandas' own annotations widen every column to Series | DataFrame | Unknown; the tests run these functions typed by beartype.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from .source import EMPTY, Options, Table

if TYPE_CHECKING:
    import pandas as pd

SENTINELS = (-999.0, -9999.0, -99999.0, -99.0, 9999.0, 99999.0, 1e20, -1e20)


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
    frame, notes = table.frame, table.notes
    import pandas as pd

    if isinstance(frame.columns, pd.MultiIndex):
        frame.columns = [" ".join(str(part) for part in name if str(part)) for name in frame.columns]
    raw = [str(name).strip() for name in frame.columns]
    empty = [i for i, name in enumerate(raw) if name in ("", "nan") or name.startswith("Unnamed:")]
    parts = [split_unit(name) for name in raw]
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
    return table._replace(frame=frame.reset_index(names=name)), name if dates or numbers else None


def numeric(table: Table, name: str, options: Options) -> np.ndarray:
    """A column as float64 with NaN for what is missing; NaN too where text is not a number (told apart by the caller)."""
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
    numbers = [float(m) for m in options.missing if not isinstance(m, str) or is_number(m, ".")]
    return np.where(np.isin(values, numbers), np.nan, values) if numbers else values


def note_sentinels(table: Table, name: str, values: np.ndarray) -> None:
    """Note a value that looks like a mark for 'missing'."""
    rest = values[np.isfinite(values)]
    for mark in SENTINELS:
        count = int((rest == mark).sum())
        others = rest[rest != mark]
        far = len(others) > 2 and abs(mark - np.median(others)) > 8 * (np.ptp(others) + 1e-12)
        if count and far:
            table.notes.append(
                f"column '{name}' of {table.where} holds {mark:g} in {count} rows, far from the rest; "
                f"if it means missing, pass missing={mark:g}."
            )
