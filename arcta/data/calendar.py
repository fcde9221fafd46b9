"""Times that are dates: numbers inside, dates in every output."""

# pandas' stubs know fewer kinds of dates and units than pandas does.
# pyright: reportArgumentType=false, reportCallIssue=false

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from ..runtime.host import ArrayLike

if TYPE_CHECKING:
    import pandas as pd


@dataclasses.dataclass(frozen=True)
class Calendar:
    """Dates as numbers: `unit`s since `origin`, elapsed time, so that a day of 23 hours has 23.

    With a `zone` the origin is in UTC and dates come back in that zone; without one they are taken as they stand.

    !!! example

        >>> from arcta import Calendar
        >>> calendar = Calendar("2024-03-31T00:00:00", "h", "Europe/Berlin")
        >>> calendar.numbers(["2024-03-31 01:00+01:00", "2024-03-31 03:00+02:00"])
        array([0., 1.])
    """

    origin: str
    unit: str
    zone: str = ""

    def numbers(self, dates: ArrayLike) -> Float[np.ndarray, " n"]:
        """Dates (strings, datetimes, a DatetimeIndex) → times."""
        import pandas as pd

        index = pd.DatetimeIndex(pd.to_datetime(dates if not isinstance(dates, str) else [dates], utc=bool(self.zone)))
        if self.zone == "" and index.tz is not None:
            raise ValueError(
                "these dates carry a time zone, the data the model was trained on does not; leave the zone out."
            )
        elapsed = index.tz_localize(None) - pd.Timestamp(self.origin)
        return np.asarray(elapsed / pd.Timedelta(1, self._pandas_unit), float)

    def dates(self, times: ArrayLike) -> pd.DatetimeIndex:
        """Times → dates, to the microsecond."""
        import pandas as pd

        elapsed = pd.to_timedelta(np.asarray(times, float), unit=self._pandas_unit).round("us")
        index = pd.DatetimeIndex(pd.Timestamp(self.origin) + elapsed)
        return index.tz_localize("UTC").tz_convert(self.zone) if self.zone else index

    @property
    def _pandas_unit(self) -> str:
        return {"d": "D"}.get(self.unit, self.unit)

    def show(self, time: float) -> str:
        """One time as a date."""
        return str(self.dates([time])[0])


def time_index(times: Float[np.ndarray, " n"], calendar: Calendar | None, unit: str) -> pd.Index:
    """Times as the index of a table: dates if there is a calendar, numbers with their unit otherwise."""
    import pandas as pd

    if calendar is not None:
        return calendar.dates(times).rename("time")
    return pd.Index(times, name=f"time [{unit}]" if unit else "time")
