"""Times that are digits alone: read as dates where they can be nothing else, noted where they might be dates.

20240331   202403311230   202403   1711843200 (seconds since 1970, or ms, us, ns)
"""

# pandas' own annotations widen every column to Series | DataFrame | Unknown; the tests run these functions typed by beartype.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from ..dates import DateError, Dates, read_dates
from .columns import holds_text
from .source import TIME_NAMES, Options, Table

if TYPE_CHECKING:
    import pandas as pd

EPOCHS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
EPOCH_RANGE = 631152000, 4102444800  # 1990 to 2100
RECENT = 1800, 2199  # the years of dates without marks, which might be plain numbers
EXCEL = 20000, 80000  # days since 1900


def dates_without_marks(table: Table, name: str, unit: str, options: Options) -> pd.DatetimeIndex | None:
    """Numbers as dates where they can be nothing else: 20240331, seconds since 1970. None if they are plain numbers."""
    import pandas as pd

    column = table.frame[name]
    if not (holds_text(column) or column.dtype.kind in "iuf") or not len(column):
        return None
    texts = _as_digits(column)
    if texts is None:
        return None
    where = f"column '{name}' of {table.where}"
    named = name.lower() in TIME_NAMES or re.search("time|date|stamp|epoch|unix", name.lower())
    found = _written_together(texts, options) if not unit else None
    epoch = _epoch(texts) if named else None
    if found is not None and epoch is not None:
        table.notes.append(
            f"{where} holds {texts[0]}, a date or seconds since 1970; read as a number. Write dates as 2024-03-31."
        )
        return None
    if found is not None:
        table.notes.append(f"{where} is read as {found.words}: {texts[0]} is {str(found.moments[0])[:19]}.")
        return found.to_index()
    if epoch is None or unit not in ("", epoch):
        return None
    whole, rest = zip(*(text.partition(".")[::2] for text in texts), strict=True)
    nanoseconds = [int((w + r.ljust(9, "0")[:9]) if epoch == "s" else w) for w, r in zip(whole, rest, strict=True)]
    dates = pd.DatetimeIndex(pd.to_datetime(nanoseconds, unit="ns" if epoch == "s" else epoch, utc=True))
    table.notes.append(f"{where} holds {texts[0]}: {epoch} since 1970, read as dates in UTC ({dates[0]}).")
    return dates


def _as_digits(column: pd.Series) -> list[str] | None:
    """The numbers of a column as written, if they are positive and have no more than a point."""
    if holds_text(column):
        texts = column.tolist()
    else:
        values = column.to_numpy()
        if values.dtype.kind == "f" and not (np.isfinite(values).all() and (np.abs(values) < 2**53).all()):
            return None
        whole = values.dtype.kind != "f" or bool((values == np.round(values)).all())
        texts = [str(int(value)) if whole else f"{value:.6f}" for value in values]
    return texts if all(re.fullmatch(r"\d{2,19}(\.\d+)?", text, re.ASCII) for text in texts) else None


def _written_together(texts: list[str], options: Options) -> Dates | None:
    """Dates without marks between year, month and day, or a month and its year."""
    size = {len(text) for text in texts}
    if size == {7} and all(re.fullmatch(r"(0[1-9]|1[0-2])\.\d{4}", text) for text in texts):
        cells = texts if any(text[0] == "0" for text in texts) else []
    elif size == {6} and not all(_valid(f"20{text[:2]}-{text[2:4]}-{text[4:]}") for text in texts):
        cells = [f"{text[:4]}-{text[4:]}" for text in texts]
    elif size == {10}:
        cells = [f"{text[:8]}T{text[8:]}00" for text in texts]
    else:
        cells = texts if size <= {8, 12, 14} and len(size) == 1 else []
    if not cells or any("." in text for text in texts if size != {7}):
        return None
    try:
        found = read_dates(cells, options.day_first)
    except DateError:
        return None
    years = found.moments.astype("datetime64[Y]").astype(int) + 1970
    return found if (years >= RECENT[0]).all() and (years <= RECENT[1]).all() else None


def _valid(date: str) -> bool:
    try:
        return bool(len(read_dates([date]).moments))
    except DateError:
        return False


def _epoch(texts: list[str]) -> str | None:
    """The unit in which numbers are times since 1970, all of them from 1990 to 2100."""
    numbers = [float(text) for text in texts]
    low, high = EPOCH_RANGE
    return next((u for u, n in EPOCHS.items() if low * n <= min(numbers) and max(numbers) < high * n), None)


def note_possible_dates(table: Table, name: str, column: pd.Series, numbers: np.ndarray) -> None:
    """Numbers that people also write for dates are noted."""
    texts = _as_digits(column)
    where = f"column '{name}' of {table.where}"
    if not texts:
        return
    if {len(text) for text in texts} <= {6, 8} and all(text.isdigit() for text in texts):
        table.notes.append(f"{where} holds {texts[0]}, read as a number; if it is a date, write it as 2024-03-31.")
    elif len(texts) > 1 and all(re.fullmatch(r"[12]\d{3}\.(0[1-9]|1[0-2])", text) for text in texts):
        table.notes.append(f"{where} holds {texts[0]}, read as a number; if it is a year and its month, write 2024-03.")
    elif len(texts) > 1 and all(re.fullmatch(r"(0?[1-9]|1[0-2])\.[12]\d{3}", text) for text in texts):
        table.notes.append(f"{where} holds {texts[0]}, read as a number; if it is a month and its year, write 2024-03.")
    elif name.lower().startswith("date") and numbers.min() > EXCEL[0] and numbers.max() < EXCEL[1]:
        table.notes.append(
            f"{where} holds {texts[0]}, read as a number; if it is a day of Excel, write it as 2024-03-31."
        )
