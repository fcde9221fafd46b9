"""Spans of time and points in time as people give them: `"14d"`, a Timedelta, a number of steps; a number, a date, a Timestamp."""

from __future__ import annotations

import datetime
import numbers
import re
from typing import TYPE_CHECKING, TypeGuard

import numpy as np
from jaxtyping import Float

from .calendar import MONTHS, SECONDS, YEAR, Calendar

if TYPE_CHECKING:
    from pandas.api.typing import NaTType

    # What pandas' own types make of a Timedelta and a Timestamp.
    Span = str | int | float | np.integer | datetime.timedelta | np.timedelta64 | NaTType
    Moment = int | float | np.number | str | datetime.date | np.datetime64 | NaTType
else:
    Span = str | int | float | np.integer | datetime.timedelta | np.timedelta64
    Moment = int | float | np.number | str | datetime.date | np.datetime64
# In seconds; a month is a twelfth of a year, unless the data itself counts in months.
SPANS = SECONDS | {"w": 604800.0} | {unit: months * YEAR * SECONDS["d"] / 12 for unit, months in MONTHS.items()}
WORDS = {"m": "min", "hr": "h", "hour": "h", "day": "d", "week": "w", "sec": "s", "second": "s", "minute": "min", "mo": "month",
         "q": "quarter", "y": "year", "yr": "year", "D": "d", "H": "h", "W": "w", "S": "s"}  # fmt: skip


def is_span(value: object) -> bool:
    """Whether something is a span of time and not a list of times: text, a Timedelta, or a whole number (of steps)."""
    whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    return whole or isinstance(value, str | datetime.timedelta | np.timedelta64)


def is_date(value: object) -> TypeGuard[str | datetime.date | np.datetime64]:
    """Whether a single point in time is a date, and no number."""
    return isinstance(value, str | datetime.date | np.datetime64)


def parse_span(text: str, own: str) -> float:
    """`12` in the data's own unit, or `48h`, `10d`, `30min`, `12months` where that is one of time."""
    match = re.fullmatch(r"\s*([0-9.eE+-]+?)\s*([a-zA-Z]*)\s*", text)
    digits, unit = match.groups() if match else ("nan", "")
    try:
        number = float(digits)
    except ValueError:
        number = float("nan")
    if not 0 < number < np.inf:
        raise ValueError(f"a span of time must be a positive number, with or without a unit (48h, 10d); got '{text}'.")
    plain = unit.lower().removesuffix("s") if len(unit) > 2 else unit
    unit = WORDS.get(plain, plain)
    if unit in ("", own):
        return number
    if unit not in SPANS:
        raise ValueError(f"a span of time needs a unit out of {', '.join(SPANS)}; got '{text}'. Write e.g. 12 months.")
    return number * _seconds_in(unit, text) / _seconds_in(own, text)


def _seconds_in(unit: str, given: object) -> float:
    if unit not in SPANS:
        raise ValueError(
            f"the data counts time in {unit or 'numbers without a unit'}; got the span '{given}'. Give it in that unit, as a "
            "number."
        )
    return SPANS[unit]


def span_of(span: Span, unit: str, step: float) -> float:
    """A span in the data's unit of time: a whole number is so many steps, any other number counts in that unit."""
    if isinstance(span, str):
        return parse_span(span, unit)
    if isinstance(span, datetime.timedelta | np.timedelta64):
        found = np.timedelta64(span) / np.timedelta64(1, "us") * 1e-6 / _seconds_in(unit, span)
    else:
        found = float(span) * (step if is_span(span) else 1.0)  # pyright: ignore[reportArgumentType]
    if not 0 < found < np.inf:
        raise ValueError(
            f"horizon must be positive; got {span}. Give a number of steps, a span such as '14d', or a time."
        )
    return float(found)


def grid(start: float, span: float, step: float) -> Float[np.ndarray, " n"]:
    """Times from `start` on, a step apart, as far as the span goes."""
    return start + step * np.arange(int(np.floor(span / step + 1e-9)) + 1)


def times_after(start: float, span: Span, unit: str, step: float) -> Float[np.ndarray, " n"]:
    """Times after `start`, a step apart, as far as the span goes; its end alone if it is shorter than a step."""
    reach = span_of(span, unit, step)
    return grid(start, reach, step)[1:] if reach >= step * (1 - 1e-9) else np.array([start + reach])


def time_of(value: Moment, calendar: Calendar | None, what: str) -> float:
    """A point in time as the data counts it: a number, or a date where the data has dates."""
    if not is_date(value):
        return float(value)  # pyright: ignore[reportArgumentType]
    if calendar is None:
        raise ValueError(
            f"{what} must be a number, as the times of the data are; got '{value}'. Give a number, or dates as the times."
        )
    if value != value:  # pandas' NaT, and NumPy's
        raise ValueError(f"{what} must be a date; got {value}, which is none. Give one that exists.")
    return float(calendar.numbers([value])[0])
