"""Dates as people write them: one format for all cells of a column, or the cell that does not fit.

    cells → (date, clock, offset) → the readings of the date that fit every cell → the one that is meant

Nothing is guessed: where two readings fit and mean different days, `read_dates` asks which is meant.
"""

from __future__ import annotations

import datetime
import re
import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

FIRST_YEAR, LAST_YEAR = 1000, 2999  # 0001 and 9999 stand for "none" in many systems
MICROSECONDS = 1_000_000
DAY = 86400 * MICROSECONDS
WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
MONTH_NAMES = ("january", "february", "march", "april", "may", "june", "july", "august", "september", "october",
               "november", "december")  # fmt: skip
BLANKS = re.compile(r"\s+")
INVISIBLE = re.compile("[\u200b-\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff\u00ad]")  # marks of direction and the like


class DateError(ValueError):
    """What is wrong with a column of dates, and in which cell."""

    def __init__(self, cell: int, reason: str):
        super().__init__(reason)
        self.cell = cell


class Ambiguous(DateError):
    """Several readings fit every cell."""


class Reading(NamedTuple):
    """A way to write a day, or a month, a quarter, a week (`whole`: not a day, so that no clock can follow)."""

    words: str
    pattern: re.Pattern[str]
    day_first: bool | None = None
    whole: bool = False


class Dates(NamedTuple):
    """`moments` as written (datetime64[us]), minutes east of UTC if every cell says so, and how they were read."""

    moments: np.ndarray
    offsets: np.ndarray | None
    words: str
    remarks: tuple[str, ...]

    def to_index(self) -> pd.DatetimeIndex:
        """As pandas holds them: in UTC if the cells say their offsets."""
        import pandas as pd

        if self.offsets is None:
            return pd.DatetimeIndex(self.moments)
        return pd.DatetimeIndex(self.moments - self.offsets.astype("timedelta64[m]")).tz_localize("UTC")


def _readings() -> tuple[Reading, ...]:
    four, two = r"(?P<y>\d{4})", r"(?P<y>\d{2})"
    year, month, day = r"(?P<y>\d{4}|\d{2})", r"(?P<m>\d{1,2})", r"(?P<d>\d{1,2})"
    mark, same = r"(?P<s>\. |[-/. ])", r"(?P=s)"
    name, nth = r"(?P<b>[a-z]{3,9})\.?", r"(?:st|nd|rd|th)?"
    table = (
        ("year-month-day", rf"{four}{mark}{month}{same}{day}\.?", None, False),
        ("day/month/year", rf"{day}{mark}{month}{same}{year}", True, False),
        ("month/day/year", rf"{month}{mark}{day}{same}{year}", False, False),
        ("year/month/day", rf"{two}{mark}{month}{same}{day}", False, False),
        ("year-month-day", rf"{four}年{month}月{day}日", None, False),
        ("day, month, year", rf"{day}{nth}\.?[-/. ]?(?:of )?{name}[-/. ,]*'?{year}", None, False),
        ("month, day, year", rf"{name}[-/. ]?{day}{nth}[-/, ]+{year}", None, False),
        ("year, month, day", rf"{four}[-/. ]?{name}[-/. ]?{day}", None, False),
        ("yyyymmdd", rf"{four}(?P<m>\d\d)(?P<d>\d\d)", None, False),
        ("ddmmyyyy", rf"(?P<d>\d\d)(?P<m>\d\d){four}", True, False),
        ("mmddyyyy", rf"(?P<m>\d\d)(?P<d>\d\d){four}", False, False),
        ("year and day of the year", rf"{four}-(?P<j>\d{{3}})", None, False),
        ("year and week", rf"{four}[- ]?w(?P<w>\d{{2}})(?:-?(?P<k>[1-7]))?", None, True),
        ("year-month", rf"{four}(?P<s>[-/ ]|-?m){month}", None, True),
        ("month/year", rf"{month}(?P<s>[-/ ]){four}", None, True),
        ("month.year", rf"(?P<m>\d\d)\.{four}", None, True),
        ("month, year", rf"{name}[-/. ,]*'?{year}", None, True),
        ("year, month", rf"{four}[-/. ,]*{name}", None, True),
        ("year and quarter", rf"{four}[-/ ]?q(?P<q>[1-4])", None, True),
        ("quarter and year", rf"q(?P<q>[1-4])[-/ ]?{four}", None, True),
    )
    return tuple(Reading(words, re.compile(text, re.ASCII), first, whole) for words, text, first, whole in table)


READINGS = _readings()
CLOCK = r"\d{1,2}(?:[:.h]\d{2}){1,2}(?:[.,]\d{1,9})?|\d{1,2}(?= ?[ap]\.?m)|(?<=t)\d{2}"
CELL = re.compile(
    rf"(?:(?P<weekday>mon|tue|wed|thu|fri|sat|sun)[a-z]*\.?,? )?(?P<date>.+?)"
    rf"(?:(?:t|[ ,:_]+| at )(?P<clock>{CLOCK})(?: ?(?P<half>[ap])\.?m\.?)?"
    rf"(?: ?(?P<zone>z|(?:utc|gmt)?[+-]\d{{2}}(?::?\d{{2}})?|utc|gmt))?(?:\[[^\]]*\])?)?",
    re.ASCII,
)
COMPACT = re.compile(r"(\d{8})[t ]?(\d{2})(\d{2})(\d{2})?([.,]\d+)?(z|[+-]\d{2}:?(?:\d{2})?)?", re.ASCII)
TIME_OF_DAY = re.compile(r"(\d{1,4})(?:[:.h](\d{2}))?(?:[:.](\d{2}))?(?:[.,](\d{1,9}))?", re.ASCII)


class Day(NamedTuple):
    """What a cell says of the day."""

    weekday: str | None
    date: str


class Clock(NamedTuple):
    """What a cell says of the time of day."""

    clock: str | None
    half: str | None
    zone: str | None


def fold(cell: str) -> str:
    """A cell without what cannot be seen: plain blanks, plain digits, a plain minus."""
    if cell.isascii() and not ("  " in cell or "\t" in cell or "\n" in cell):
        return cell.strip()
    cell = INVISIBLE.sub("", cell).replace("−", "-").replace("\u2010", "-").replace("\u2011", "-")
    digits = (str(unicodedata.decimal(c)) if c.isdecimal() else c for c in cell)
    return BLANKS.sub(" ", "".join(digits)).strip()


def split_cell(text: str) -> tuple[Day, Clock, int] | None:
    """Day and clock of a folded cell, and where the first ends; the date is any text yet."""
    if compact := COMPACT.fullmatch(text):
        date, hour, minute, second, fraction, zone = compact.groups()
        clock = f"{hour}:{minute}" + (f":{second}{fraction or ''}" if second else "")
        return (Day(None, date), Clock(clock, None, zone), 8) if second or not fraction else None
    match = CELL.fullmatch(text)
    if match is None:
        return None
    return Day(match["weekday"], match["date"]), Clock(match["clock"], match["half"], match["zone"]), match.end("date")


def looks_like_date(cell: str) -> bool:
    parts = split_cell(fold(cell).lower())
    return parts is not None and any(reading.pattern.fullmatch(parts[0].date) for reading in READINGS)


def clock_of(clock: str, half: str | None = None, *, most_hours: int = 24) -> int | None:
    """Microseconds since midnight."""
    match = TIME_OF_DAY.fullmatch(clock)
    if match is None or (match[4] and not match[3]):
        return None
    hour, minute, second = (int(part or 0) for part in match.groups()[:3])
    rest = round(float(f"0.{match[4] or 0}") * MICROSECONDS)
    if half:
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + 12 * (half == "p")
    if minute > 59 or second > 59 or hour > most_hours or (hour == most_hours and minute + second + rest > 0):
        return None
    return ((hour * 60 + minute) * 60 + second) * MICROSECONDS + rest


def _month_number(name: str) -> int:
    found = [i for i, month in enumerate(MONTH_NAMES, 1) if name in (month, month[:3], "sept" if i == 9 else month)]
    return found[0] if found else 0


def _day_of(match: re.Match[str]) -> int | None:
    """The day that a date is, or the first of what it is, as days since 1970; None if there is no such day."""
    parts = {name: text for name, text in match.groupdict().items() if text is not None}
    year = int(parts["y"])
    if len(parts["y"]) == 2:
        year += 2000 if year < 69 else 1900
    if not FIRST_YEAR <= year <= LAST_YEAR:
        return None
    try:
        if "w" in parts:
            day = datetime.date.fromisocalendar(year, int(parts["w"]), int(parts.get("k", 1)))
        elif "j" in parts:
            day = datetime.date(year, 1, 1) + datetime.timedelta(int(parts["j"]) - 1)
            if day.year != year:
                return None
        else:
            quarter = 3 * int(parts.get("q", 1)) - 2
            month = _month_number(parts["b"]) if "b" in parts else int(parts.get("m", quarter))
            day = datetime.date(year, month, int(parts.get("d", 1)))
    except ValueError:
        return None
    return day.toordinal() - 719163


class Column(NamedTuple):
    """The cells of a column: the different days and clocks in it, and which each cell has."""

    days: list[Day]
    clocks: list[Clock]
    day_of: np.ndarray
    clock_of: np.ndarray

    def first(self, *, day: int = -1, clock: int = -1) -> int:
        """The first cell with that day, or that clock."""
        return int(np.argmax(self.day_of == day if day >= 0 else self.clock_of == clock))


def _split_column(cells: Sequence[str]) -> Column:
    """Most cells share their day with one cell and their clock with another, so that few are taken apart."""
    days: dict[Day, int] = {}
    clocks: dict[Clock, int] = {}
    heads: dict[str, int] = {}
    tails: dict[str, int] = {}
    found = np.empty((2, len(cells)), np.int64)
    end = 0
    for i, cell in enumerate(cells):
        day, clock = heads.get(cell[:end]), tails.get(cell[end:])
        if day is None or clock is None:
            text = fold(cell).lower()
            parts = split_cell(text)
            if parts is None:
                raise DateError(i, "it is no date")
            day, clock = days.setdefault(parts[0], len(days)), clocks.setdefault(parts[1], len(clocks))
            if cell.isascii() and len(cell) == len(text):
                if parts[2] != end:
                    heads, tails, end = {}, {}, parts[2]
                heads[cell[:end]], tails[cell[end:]] = day, clock
        found[:, i] = day, clock
    return Column(list(days), list(clocks), *found)


def _days(reading: Reading, days: Sequence[Day]) -> list[int | None]:
    """Some days in one reading, None for those that are written otherwise, or do not exist, or are on another weekday."""
    matches = [reading.pattern.fullmatch(day.date) for day in days]
    if matches[0] is None:
        return [None] * len(days)
    named = [name for name in ("s", "y") if name in reading.pattern.groupindex]

    def style(match: re.Match[str]) -> list[object]:
        return [match[name] if name == "s" else len(match[name]) for name in named]

    usual = style(matches[0])
    numbers = [_day_of(match) if match and style(match) == usual else None for match in matches]
    return [n if n is None or _on_weekday(n, day.weekday) else None for n, day in zip(numbers, days, strict=True)]


def _on_weekday(day: int, weekday: str | None) -> bool:
    return weekday is None or WEEKDAYS[(day + 3) % 7] == weekday


def _clocks(column: Column) -> np.ndarray:
    """The different clocks in microseconds; -1 for none."""
    found = [-1 if clock is None else clock_of(clock, half) for clock, half, _ in column.clocks]
    if None in found:
        bad = found.index(None)
        clock, half, _ = column.clocks[bad]
        raise DateError(column.first(clock=bad), f"{clock}{f' {half}m' if half else ''} is no time of day")
    return np.array(found, np.int64)


def _offset(zone: str) -> int | None:
    """Minutes east of UTC."""
    digits = zone.removeprefix("utc").removeprefix("gmt").removeprefix("z").replace(":", "")
    if not digits:
        return 0
    hours, minutes = int(digits[1:3]), int(digits[3:5] or 0)
    if hours > 14 or minutes > 59:
        return None
    return (hours * 60 + minutes) * (-1 if digits[0] == "-" else 1)


def _offsets(column: Column) -> np.ndarray | None:
    zones = [clock.zone for clock in column.clocks]
    if not any(zones):
        return None
    if None in zones:
        cell = column.first(clock=zones.index(None))
        raise DateError(cell, "it says no time zone, others do; all dates must, or none. Add the offset there")
    offsets = [_offset(zone or "z") for zone in zones]
    if None in offsets:
        bad = offsets.index(None)
        raise DateError(column.first(clock=bad), f"{zones[bad]} is no offset from UTC")
    return np.array(offsets, np.int64)[column.clock_of]


def _regular(moments: np.ndarray) -> bool:
    """Equal steps, of time or of the calendar, in one direction."""
    steps = np.diff(moments.astype(np.int64))
    if (steps == steps[0]).all():
        return bool(steps[0] != 0)
    months = moments.astype("datetime64[M]")
    within, jumps = moments - months, np.diff(months.astype(int))
    return bool((within == within[0]).all() and (jumps == jumps[0]).all() and jumps[0] != 0)


def _choose(fits: dict[Reading, np.ndarray]) -> tuple[Reading, tuple[str, ...]]:
    """The reading that is meant, of those that fit every cell. Equal steps decide if one alone has them."""
    readings = list(fits)
    if all((fits[reading] == fits[readings[0]]).all() for reading in readings):
        return readings[0], ()
    if len(fits[readings[0]]) > 3:
        regular = [reading for reading in readings if _regular(fits[reading])]
        if len(regular) == 1:
            return regular[0], ("in another order of day and month their steps would not be equal (day_first=)",)
    raise Ambiguous(0, " or ".join(reading.words for reading in readings))


def _check_clocks(column: Column, clocks: np.ndarray) -> tuple[str, ...]:
    """Clocks and halves of the day in all cells or in none; dates alone among others only where no midnight is written."""
    halves = np.array([clock.half is not None for clock in column.clocks])
    without = clocks < 0
    if halves.any() and not halves.all():
        cell = column.first(clock=int(np.argmin(halves)))
        raise DateError(cell, "it says neither AM nor PM, others do; all must, or none")
    if not without.any() or without.all():
        return ()
    if halves.any() or (clocks == 0).any():
        few = without[column.clock_of].mean() <= 0.5
        cell = column.first(clock=int(np.argmax(without if few else ~without)))
        raise DateError(cell, f"it has {'no' if few else 'a'} time of day, unlike others; all dates need one format")
    return ("dates without a time of day are midnight",)


def _check_short_years(reading: Reading, days: Sequence[Day]) -> tuple[str, ...]:
    matches = [reading.pattern.fullmatch(day.date) for day in days]
    years = [match["y"] for match in matches if match and len(match["y"]) == 2]
    if not years:
        return ()
    if reading.words == "month, year" and all(int(year) <= 31 for year in years):
        raise DateError(0, "its number may be a year or a day. Write years with four digits")
    return ("years of two digits are 1969 to 2068",)


def _explain(column: Column, tried: dict[Reading, list[int | None]]) -> DateError:
    """The cell that does not fit the reading that most others fit."""
    if not tried:
        return DateError(0, "it is no date")
    reading = max(tried, key=lambda reading: len(column.days) - tried[reading].count(None))
    odd = tried[reading].index(None)
    cell, match = column.first(day=odd), reading.pattern.fullmatch(column.days[odd].date)
    if match is None:
        return DateError(cell, f"others are {reading.words}; all dates need one format")
    year = int(match["y"])
    if len(match["y"]) == 4 and not FIRST_YEAR <= year <= LAST_YEAR:
        return DateError(cell, f"years must lie from {FIRST_YEAR} to {LAST_YEAR}. Leave the row out if it means none")
    return DateError(cell, f"there is no such day, or it is written unlike others, as {reading.words}")


def read_dates(cells: Sequence[str], day_first: bool | None = None) -> Dates:
    """Cells as dates, all in one format; `DateError` says which cell is in the way, `Ambiguous` which formats fit."""
    column = _split_column(cells)
    clocks, offsets = _clocks(column), _offsets(column)
    remarks = _check_clocks(column, clocks)
    tried = {
        reading: _days(reading, column.days)
        for reading in READINGS
        if reading.pattern.fullmatch(column.days[0].date)
        and (day_first is None or reading.day_first in (None, day_first))
        and not (reading.whole and clocks.max() >= 0)
    }
    elapsed = np.maximum(clocks, 0)[column.clock_of]
    fits = {
        reading: (np.array(days, np.int64)[column.day_of] * DAY + elapsed).astype("datetime64[us]")
        for reading, days in tried.items()
        if None not in days
    }
    if not fits:
        raise _explain(column, tried)
    reading, by_order = _choose(fits)
    remarks += _check_short_years(reading, column.days) + by_order
    return Dates(fits[reading], offsets, reading.words, remarks)
