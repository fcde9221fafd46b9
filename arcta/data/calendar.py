"""Times that are dates: numbers inside, dates in every output."""

# pandas' stubs know fewer kinds of dates and units than pandas does.
# pyright: reportArgumentType=false, reportCallIssue=false, reportReturnType=false, reportOperatorIssue=false

from __future__ import annotations

import dataclasses
import datetime
import re
import zoneinfo
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from ..runtime.host import ArrayLike
from .dates import Ambiguous, DateError, looks_like_date, read_dates

if TYPE_CHECKING:
    import pandas as pd


MONTHS = {"month": 1, "quarter": 3, "year": 12}
YEAR = 365.2425  # days
LONGEST = 100_000 * YEAR * 86400e6  # microseconds
SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


@dataclasses.dataclass(frozen=True)
class Calendar:
    """Dates as numbers: `unit`s since `origin`.

    Units up to days are elapsed time, so that a day of 23 hours has 23. Months, quarters and years are steps of the calendar, equal
    however long they are: from the origin's day and time in one month to the same in the next, or from the last day of one month to
    the last of the next if the origin is a last day.

    With a `zone` dates come back in that zone, and the origin is in UTC (of months: in that zone); without one they are taken as
    they stand.

    !!! example

        >>> from arcta import Calendar
        >>> calendar = Calendar("2024-03-31T00:00:00", "h", "Europe/Berlin")
        >>> calendar.numbers(["2024-03-31 01:00+01:00", "2024-03-31 03:00+02:00"])
        array([0., 1.])
        >>> Calendar("2024-01-31", "month").dates([0, 1, 2]).day
        Index([31, 29, 31], dtype='int32')
    """

    origin: str
    unit: str
    zone: str = ""

    def numbers(self, dates: ArrayLike, *, day_first: bool | None = None) -> Float[np.ndarray, " n"]:
        """Dates (strings, datetimes, a DatetimeIndex) → times. Those that do not say their zone are in the calendar's."""
        index = _index(dates, day_first)
        if self.zone == "" and index.tz is not None:
            raise ValueError(
                f"dates need no time zone here, for those of the data have none; got '{index[0]}'. Leave the zone out."
            )
        if self.zone:
            index = in_zone(index, self.zone).tz_convert("UTC")
        if self.unit in MONTHS:
            local = index.tz_convert(self.zone).tz_localize(None) if self.zone else index
            return (_months(local - self._offset) - _months(self._start)) / MONTHS[self.unit]
        moments = index.tz_localize(None).to_numpy().astype("datetime64[us]")
        return (moments - np.datetime64(self.origin, "us")).astype(float) / (SECONDS[self.unit] * 1e6)

    def dates(self, times: ArrayLike) -> pd.DatetimeIndex:
        """Times → dates, to the microsecond."""
        import pandas as pd

        times = np.asarray(times, float)
        if self.unit in MONTHS:
            # A billionth of a month is a rounding error, and would be the day before.
            index = (_from_months((times * MONTHS[self.unit] + _months(self._start)).round(9)) + self._offset).round(
                "s"
            )
            return index.tz_localize(self.zone, ambiguous=True, nonexistent="shift_forward") if self.zone else index
        elapsed = (times * (SECONDS[self.unit] * 1e6)).round()
        if not (np.abs(elapsed) < LONGEST).all():
            raise ValueError(
                f"dates lie within 100,000 years; got a time of {times[np.argmax(np.abs(times))]:g} {self.unit}."
            )
        index = pd.DatetimeIndex(np.datetime64(self.origin, "us") + elapsed.astype("timedelta64[us]"))
        return index.tz_localize("UTC").tz_convert(self.zone) if self.zone else index

    @property
    def _start(self) -> pd.DatetimeIndex:
        """The first of the month that the origin stands for."""
        import pandas as pd

        origin = pd.Timestamp(self.origin)
        month = np.datetime64(origin, "M") + int(origin.is_month_end)
        return pd.DatetimeIndex([month.astype("datetime64[us]")])

    @property
    def _offset(self) -> pd.Timedelta:
        """How far after the first of a month its date is; before it, if that is the last day of the month before."""
        import pandas as pd

        return pd.Timestamp(self.origin) - pd.Timestamp(self._start[0])

    def show(self, time: float) -> str:
        """One time as a date."""
        return str(self.dates([time])[0])


def _index(dates: ArrayLike, day_first: bool | None) -> pd.DatetimeIndex:
    """Dates of any kind as pandas holds them; text in one format, which is never guessed."""
    import pandas as pd

    listed = [dates] if isinstance(dates, str) else dates
    cells = np.empty(0) if hasattr(listed, "tz") else np.asarray(listed).reshape(-1)
    if len(cells) and isinstance(cells[0], pd.Period):
        return pd.PeriodIndex(cells).to_timestamp()
    if cells.dtype.kind not in "OU" or not all(isinstance(cell, str) for cell in cells):
        try:
            return pd.DatetimeIndex(pd.to_datetime(listed))
        except (ValueError, TypeError) as error:
            reason = str(error).strip().splitlines()[0].rstrip(".")
            raise ValueError(
                f"times must be dates of one kind, all with a time zone or all without; got {str(cells[0])[:40]} and others "
                f"({reason}). Convert them with pandas.to_datetime(…, utc=True)."
            ) from None
    try:
        found = read_dates(cells.tolist(), day_first)
    except Ambiguous as error:
        raise ValueError(f"'{cells[0]}' may be {error}. Write dates as 2024-03-31.") from None
    except DateError as error:
        raise ValueError(f"'{cells[error.cell]}': {error}. Write dates as 2024-03-31.") from None
    return found.to_index()


def in_zone(dates: pd.DatetimeIndex, zone: str) -> pd.DatetimeIndex:
    """Dates in a zone: as they stand if they do not say theirs; hours that clocks skip or repeat are an error, unless the
    order of the dates tells which is meant."""
    if zone not in ("", "UTC") and not re.match(r"UTC[+-]", zone):
        try:
            zoneinfo.ZoneInfo(zone)
        except (ValueError, OSError, zoneinfo.ZoneInfoNotFoundError):
            raise ValueError(f"'{zone}' is no time zone. Use a name such as Europe/Berlin or UTC.") from None
    if dates.tz is not None:
        return dates.tz_convert(zone)
    try:
        return dates.tz_localize(zone, ambiguous="infer")
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise ValueError(f"dates do not fit the zone {zone} ({reason}). Write the offsets into the dates.") from None


def zone_of(dates: pd.DatetimeIndex) -> str:
    """The name of the dates' time zone, "" if they have none; what has no name is shown in UTC."""
    if dates.tz is None:
        return ""
    try:
        in_zone(dates[:1], str(dates.tz))
    except ValueError:
        return "UTC"
    return str(dates.tz)


def _months(dates: pd.DatetimeIndex) -> Float[np.ndarray, " n"]:
    """Months since 1970, and how much of the last has gone."""
    at = dates.to_numpy().astype("datetime64[us]")
    first = at.astype("datetime64[M]")
    length = (first + 1).astype("datetime64[us]") - first.astype("datetime64[us]")
    return first.astype(int) + (at - first.astype("datetime64[us]")) / length


def _from_months(months: Float[np.ndarray, " n"]) -> pd.DatetimeIndex:
    import pandas as pd

    first = np.floor(months).astype(int).astype("datetime64[M]")
    start, end = (x.astype("datetime64[us]") for x in (first, first + 1))
    return pd.DatetimeIndex(start + ((months % 1) * (end - start).astype(float)).round().astype("timedelta64[us]"))


def calendar_of(dates: pd.DatetimeIndex, zone: str, unit: str | None) -> Calendar:
    """How to count dates: in the largest unit not above the typical step if none is given; in months, quarters or years if all
    dates are on one day of the month, or on the last."""
    import pandas as pd

    local = dates if dates.tz is None else dates.tz_convert(zone).tz_localize(None)
    months = np.unique(local.year * 12 + local.month)
    last, day = bool(local.is_month_end.all()), local.day[0]
    apart = bool((np.diff(local.sort_values().unique()) >= np.timedelta64(28, "D")).all())
    even = apart and len(months) > 2 and (local - local.normalize()).nunique() == 1
    even = even and (last or (day <= 28 and bool((local.day == day).all())))
    if unit in MONTHS or (not unit and even):
        origin = pd.Timestamp(local.min())
        if not last and origin.is_month_end:  # a last day by chance: the same day, a month before
            origin = origin - pd.DateOffset(months=1)
        steps = np.diff(months) if even else np.ones(1)
        found = next((name for name in reversed(MONTHS) if not (steps % MONTHS[name]).any()), "month")
        return Calendar(origin.isoformat(), unit or found, zone)
    plain = dates if dates.tz is None else dates.tz_convert("UTC").tz_localize(None)
    origin = pd.Timestamp(plain.min()).floor("s")
    if not unit:
        steps = np.diff(np.unique(np.asarray((plain - origin) / pd.Timedelta(1, "s"), float)))
        typical = float(np.median(steps)) if len(steps) else 1.0
        unit = next((unit for unit in reversed(SECONDS) if SECONDS[unit] <= typical * (1 + 1e-9)), "us")
    if unit not in SECONDS:
        known = ", ".join([*SECONDS, *MONTHS])
        raise ValueError(f"time_unit for dates must be one of {known}; got '{unit}'. Use one of them.")
    return Calendar(origin.isoformat(), unit, zone)


def time_index(times: Float[np.ndarray, " n"], calendar: Calendar | None, unit: str) -> pd.Index:
    """Times as the index of a table: dates if there is a calendar, numbers with their unit otherwise."""
    import pandas as pd

    if calendar is not None:
        return calendar.dates(times).rename("time")
    return pd.Index(times, name=f"time [{unit}]" if unit else "time")


def _hold_dates(times: ArrayLike) -> bool:
    """Whether some times are dates: those of a library, or text that is no number."""
    if hasattr(times, "tz"):
        return True
    try:
        cells = np.asarray(times).reshape(-1)
    except ValueError:  # lists of different lengths
        return False
    if cells.dtype.kind not in "OUS":
        return cells.dtype.kind == "M"
    if not all(isinstance(cell, str) for cell in cells):
        return any(isinstance(cell, datetime.date | np.datetime64) or hasattr(cell, "to_timestamp") for cell in cells)
    return len(cells) > 0 and looks_like_date(cells[0]) and not cells[0].strip().lstrip("+-").replace(".", "").isdigit()


def count_times(times: ArrayLike, calendar: Calendar | None, unit: str) -> tuple[ArrayLike, Calendar | None, str]:
    """Times as numbers with what they mean, if they are dates or spans of time; else as they are."""

    if not _hold_dates(times):
        if getattr(getattr(times, "dtype", None), "kind", "") != "m":
            return times, calendar, unit
        unit = unit if unit in SECONDS else "s"
        return np.asarray(times) / np.timedelta64(round(SECONDS[unit] * 1e6), "us"), calendar, unit
    dates = _index(times, None)
    if dates.hasnans:
        raise ValueError(
            f"every observation needs a time; row {int(np.argmax(dates.isna()))} has none. Drop that row or give it a time."
        )
    if not len(dates):
        return np.zeros(0), calendar, unit
    if calendar is None:
        calendar = calendar_of(dates, zone_of(dates), unit or None)
    return calendar.numbers(dates), calendar, calendar.unit
