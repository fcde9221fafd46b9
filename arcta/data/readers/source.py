"""What every reader shares: how to read, a table with its rows' places in the file, and what a reader gives back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..series import Series

if TYPE_CHECKING:
    import pandas as pd

ROW = "row"  # time="row" numbers the rows
TIME_NAMES = ("time", "times", "t", "date", "datetime", "timestamp", "year", "day", "hour", "seconds", "ds")
VARIABLE_NAMES, VALUE_NAMES = ("variable", "metric", "channel"), ("value", "values")  # of long tables
EMPTY = ("", "na", "n/a", "nan", "null", "none", "-", "?", "#n/a")


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
    decimal: str | None = None
    time_unit: str | None = None
    time_zone: str | None = None
    day_first: bool | None = None


class Loaded(NamedTuple):
    """Series, and what there is to say about how they were read."""

    series: list[Series]
    notes: list[str]


class Table(NamedTuple):
    frame: pd.DataFrame
    where: str
    rows: np.ndarray  # the row of the file that each record stands in
    notes: list[str]
    tidy: bool = False  # text is str without blanks around it, "" where there is none

    def cell(self, record: int | np.integer, column: str) -> str:
        """Where a cell stands, in words."""
        return f"row {self.rows[record]}, column '{column}' of {self.where}"


def list_names(names: Iterable[object]) -> str:
    """The first dozen of some names, each cut to what a sentence bears."""
    texts = [str(name) for name in names]
    return ", ".join(f"{text[:40]}…" if len(text) > 40 else text for text in texts[:12]) + ", …" * (len(texts) > 12)


def first_line(error: Exception) -> str:
    line = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
    return line if len(line) < 200 else f"{line[:200]}…"
