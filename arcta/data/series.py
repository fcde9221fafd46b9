"""Time series as the user has them: `Series`, with its guarantees checked once, and `split` by time.

A `Series` is (t_i, x_i, u_i), i = 1…n, with t_1 < … < t_n; any entry of x may be missing, no entry of u may.
Everything here is NumPy in the user's own units; nothing is compiled.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float

from ..runtime.host import ArrayLike
from .calendar import Calendar, count_times, time_index
from .moments import LARGEST
from .shown import small_table
from .spans import Moment, time_of

if TYPE_CHECKING:
    import pandas as pd


def _numbers(array: ArrayLike, what: str, name: str) -> np.ndarray:
    """`array` as float64, or one sentence that says which entry is not a number."""
    try:
        return np.array(array, dtype=np.float64)
    except (TypeError, ValueError):
        pass
    entries = np.empty(0)
    with contextlib.suppress(ValueError):  # NumPy will not hold lists of some different lengths even as objects
        entries = np.array(array, dtype=object)
    for index, entry in np.ndenumerate(entries):
        if isinstance(entry, (list, tuple, np.ndarray)):
            break
        try:
            float(entry)
        except (TypeError, ValueError):
            raise ValueError(
                f"{what} must be numbers; row {index[0] if index else 0} of series '{name}' holds {entry!r}. "
                "Convert it to a number, or to NaN if it is missing."
            ) from None
    raise ValueError(
        f"{what} must form a rectangular array of numbers; series '{name}' has rows of different lengths. "
        "Give every row the same number of channels, with NaN where a value is missing."
    )


def _frozen(array: np.ndarray) -> np.ndarray:
    array.setflags(write=False)
    return array


def _names(given: Sequence[str] | None, count: int, prefix: str, what: str, series: str) -> tuple[str, ...]:
    if given is None:
        return tuple(f"{prefix}{i}" for i in range(count))
    names = tuple(str(item) for item in given)
    if len(names) != count:
        raise ValueError(
            f"{what} needs one name for each of the {count} columns of series '{series}'; got {len(names)}. "
            f"Pass {count} names, or leave {what} out."
        )
    if len(set(names)) != count:
        raise ValueError(f"{what} of series '{series}' must differ from one another; got {list(names)}. Rename one.")
    return names


def _check_times(times: np.ndarray, values: np.ndarray, name: str, calendar: Calendar | None) -> None:
    if times.size == 0 or values.size == 0:
        raise ValueError(
            f"a series needs at least one observation; series '{name}' is empty. Leave it out or load its data."
        )
    if values.ndim == 0 or len(values) != len(times):
        raise ValueError(
            f"times and values need the same length; series '{name}' has {len(times)} times and "
            f"{len(values) if values.ndim else 1} rows of values. Make them match (times run along the first axis)."
        )
    bad = np.flatnonzero(~np.isfinite(times))
    if bad.size:
        raise ValueError(
            f"observation times must be finite; row {bad[0]} of series '{name}' has t={times[bad[0]]}. "
            "Drop that row or give it a time."
        )
    back = np.flatnonzero(np.diff(times) <= 0)
    if back.size:
        row = back[0] + 1
        verb = "repeats" if times[row] == times[row - 1] else "comes after"
        here, before = (calendar.show(float(t)) if calendar else f"{t:g}" for t in (times[row], times[row - 1]))
        raise ValueError(
            f"observation times must increase within a series; row {row} (t={here}) {verb} "
            f"row {row - 1} (t={before}) in series '{name}'. "
            "Sort the rows by time and merge repeated ones, or make one Series for each of them."
        )


def _observed(values: np.ndarray, mask: ArrayLike | None, channels: Sequence[str], name: str) -> np.ndarray:
    """Which values count: those that are not NaN, and not masked out."""
    observed = ~np.isnan(values)
    if mask is not None:
        mask = np.asarray(mask)
        if mask.dtype != bool or mask.size != values.size:
            raise ValueError(
                f"mask needs one boolean for each entry of values {values.shape}; got {mask.dtype} of shape "
                f"{mask.shape} in series '{name}'. Pass True where a value was observed."
            )
        observed &= mask.reshape(values.shape)
    infinite = np.argwhere(np.isinf(values) & observed)
    if len(infinite):
        row, column = infinite[0]
        raise ValueError(
            f"values must be finite; row {row}, channel '{channels[column]}' of series '{name}' is "
            f"{values[row, column]}. Replace it by NaN if it is missing."
        )
    if not observed.any():
        raise ValueError(
            f"a series needs at least one observed value; all of series '{name}' is missing. Leave it out."
        )
    return observed


class Series:
    """One time series: increasing times, values with a mask, named channels, optional known inputs.

    Guarantees, checked at construction: times are finite and strictly increasing; values are finite wherever the
    mask is true and 0 elsewhere; inputs are finite everywhere; there is at least one observed entry. The arrays are
    read-only copies.

    **Arguments:**

    - `times`: shape `(n,)`: numbers in any unit, or dates (datetimes, Timestamps, text), which get a `calendar`.
    - `values`: shape `(n, channels)`, `(n,)` for one channel, or `(n, height, width[, colours])` for frames.
      NaN means missing.
    - `mask`: true where a value was observed (default: wherever it is not NaN).
    - `channels`, `units`: a name and a unit for every channel. `time_unit`: the unit of time.
    - `inputs`, `input_names`: known inputs u(t) at the same times, shape `(n, inputs)`.
    - `name`: tells series apart in messages and in results.
    - `calendar`: what the times mean as dates; every output then has dates again. Found by itself where times are dates.

    !!! example

        >>> import arcta
        >>> arcta.Series([0.0, 0.5, 2.0], [[1.0, 2.0], [float("nan"), 2.5], [3.0, 1.0]], channels=["prey", "predator"])
        Series('series': 3 times from 0 to 2, 2 channels (prey, predator), 5 of 6 entries observed)
        >>> arcta.Series(["2024-01-01", "2024-02-01", "2024-03-01"], [1.0, 2.0, 4.0], name="sales").calendar
        Calendar(origin='2024-01-01T00:00:00', unit='month', zone='')
    """

    times: Float[np.ndarray, " n"]
    values: Float[np.ndarray, "n channels"]
    mask: Bool[np.ndarray, "n channels"]
    inputs: Float[np.ndarray, "n inputs"]
    channels: tuple[str, ...]
    units: tuple[str, ...]
    input_names: tuple[str, ...]
    frame_shape: tuple[int, ...] | None
    name: str
    time_unit: str
    calendar: Calendar | None

    def __init__(
        self,
        times: ArrayLike,
        values: ArrayLike,
        *,
        mask: ArrayLike | None = None,
        channels: Sequence[str] | None = None,
        units: Sequence[str] | None = None,
        inputs: ArrayLike | None = None,
        input_names: Sequence[str] | None = None,
        name: str = "series",
        time_unit: str = "",
        calendar: Calendar | None = None,
    ):
        times, calendar, time_unit = count_times(times, calendar, time_unit)
        times = _numbers(times, "observation times", name).reshape(-1)
        values = _numbers(values, "values", name)
        _check_times(times, values, name, calendar)
        self.frame_shape = tuple(values.shape[1:]) if values.ndim > 2 else None
        values = values.reshape(len(times), -1)
        self.channels = _names(channels, values.shape[1], "x", "channels", name)
        observed = _observed(values, mask, self.channels, name)
        self.times = _frozen(times)
        self.values = _frozen(np.where(observed, values, 0.0))
        self.mask = _frozen(observed)
        self.units = tuple(units) if units is not None else ("",) * len(self.channels)
        if len(self.units) != len(self.channels):
            raise ValueError(
                f"units needs one entry for each of the {len(self.channels)} channels of series '{name}'; "
                f"got {len(self.units)}. Use '' for a channel without a unit."
            )
        self.inputs, self.input_names = self._read_inputs(inputs, input_names, name)
        self.name, self.time_unit = name, calendar.unit if calendar else time_unit
        self.calendar = calendar

    def _read_inputs(
        self, inputs: ArrayLike | None, names: Sequence[str] | None, series: str
    ) -> tuple[np.ndarray, tuple[str, ...]]:
        if inputs is None:
            return _frozen(np.zeros((len(self.times), 0))), ()
        array = np.atleast_1d(_numbers(inputs, "inputs", series))
        array = array.reshape(len(array), math.prod(array.shape[1:]))
        if len(array) != len(self.times):
            raise ValueError(
                f"inputs and times need the same length; series '{series}' has {len(self.times)} times and "
                f"{len(array)} rows of inputs. Give the inputs at the observation times."
            )
        labels = _names(names, array.shape[1], "u", "input_names", series)
        unknown = np.argwhere(~np.isfinite(array))
        if len(unknown):
            row, column = unknown[0]
            raise ValueError(
                f"inputs must be known at every time; row {row} (t={self.times[row]:g}), input '{labels[column]}' of "
                f"series '{series}' is {array[row, column]}. Fill it in, or drop that input."
            )
        return _frozen(array), labels

    def __len__(self) -> int:
        return len(self.times)

    def __repr__(self) -> str:
        shown = ", ".join(self.channels[:4]) + (", …" if len(self.channels) > 4 else "")
        inputs = f", {len(self.input_names)} inputs" if self.input_names else ""
        return (
            f"Series('{self.name}': {len(self)} times from {self.when(self.times[0])} to {self.when(self.times[-1])}, "
            f"{len(self.channels)} channel{'s' * (len(self.channels) > 1)} ({shown}){inputs}, "
            f"{int(self.mask.sum())} of {self.mask.size} entries observed)"
        )

    def _repr_html_(self) -> str:
        return small_table(repr(self), self.to_frame())

    @property
    def last_observed(self) -> float:
        """The time of the last observation."""
        return float(self.times[self.mask.any(axis=1)][-1])

    def when(self, time: float) -> str:
        """A time of this series in words: its date if there is a calendar."""
        return self.calendar.show(time) if self.calendar else f"{time:g}"

    def time_of(self, moment: Moment, what: str = "a time") -> float:
        """A point in time as this series counts it: a number as it is, a date by the calendar."""
        return time_of(moment, self.calendar, what)

    def at_rows(self, rows: slice | np.ndarray) -> Series:
        """The series at some of its rows (a slice or a boolean array), everything else unchanged."""
        return self.replace(times=self.times[rows], values=self._given_values(rows), inputs=self.inputs[rows])

    def _given_values(self, rows: slice | np.ndarray = slice(None)) -> np.ndarray:
        """The values as `Series` takes them: NaN where missing, frames in their shape."""
        values = np.where(self.mask[rows], self.values[rows], np.nan)
        return values.reshape(len(values), *(self.frame_shape or values.shape[1:]))

    def on(self, calendar: Calendar | None, time_unit: str) -> Series:
        """The same series with its times counted as another calendar counts them."""
        if calendar == self.calendar and (calendar is not None or self.time_unit in ("", time_unit) or not time_unit):
            return self
        if calendar is None or self.calendar is None:
            ours, theirs = (
                "dates" if c else f"numbers{f' [{u}]' * bool(u)}"
                for c, u in ((calendar, time_unit), (self.calendar, self.time_unit))
            )
            raise ValueError(
                f"the model counts time in {ours}, series '{self.name}' in {theirs}. Give the times as {ours}, as the "
                "training data did."
            )
        return self.replace(times=calendar.numbers(self.calendar.dates(self.times)), calendar=calendar)

    def replace(self, **changes: object) -> Series:
        """The series with some of the arguments it was made from changed."""
        same = ("times", "channels", "units", "name", "time_unit", "calendar")
        own = {name: getattr(self, name) for name in (*same, *(("inputs", "input_names") if self.input_names else ()))}
        if "values" not in changes:
            own["values"] = self._given_values()
        return Series(**(own | changes))  # pyright: ignore[reportArgumentType]

    def to_frame(self) -> pd.DataFrame:
        """A table with the time as index and one column for each channel and input; NaN where missing."""
        import pandas as pd

        values = np.where(self.mask, self.values, np.nan)
        index = time_index(self.times, self.calendar, self.time_unit)
        return pd.DataFrame(
            np.concatenate([values, self.inputs], axis=1), index=index, columns=[*self.channels, *self.input_names]
        )


def as_list(data: Series | Iterable[object]) -> list[Series]:
    """One series or several, as a list whose members agree in channels and inputs and differ in name."""
    series: list[Series] = []
    for item in [data] if isinstance(data, Series) else data:
        if not isinstance(item, Series):
            raise ValueError(
                f"data must be a Series or a list of Series; got {type(item).__name__}. "
                "Wrap your arrays: arcta.Series(times, values)."
            )
        series.append(item)
        if item.channels != series[0].channels or item.input_names != series[0].input_names:
            raise ValueError(
                f"all series need the same channels and inputs; '{item.name}' has {list(item.channels)} and "
                f"{list(item.input_names)}, '{series[0].name}' has {list(series[0].channels)} and "
                f"{list(series[0].input_names)}. Add the missing channels as NaN."
            )
    if not series:
        raise ValueError("at least one series is needed; got an empty list. Pass a Series or a list of them.")
    if len({item.name for item in series}) < len(series):
        names = [item.name for item in series]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"series need different names; '{twice}' occurs twice. Pass name= to Series.")
    return series


def _check_sizes(series: list[Series]) -> None:
    for item in series:
        huge = np.argwhere(np.abs(item.values) > LARGEST)
        if len(huge):
            row, column = huge[0]
            raise ValueError(
                f"values beyond {LARGEST:g} leave no room to compute with; row {row}, channel '{item.channels[column]}' of series "
                f"'{item.name}' is {item.values[row, column]:g}. Give that channel in a larger unit."
            )


def check_training_data(series: list[Series]) -> None:
    """Refuse what no model can be learned from; warn of what is kept but carries little."""
    seen = sum(item.mask.sum(axis=0) for item in series)
    never = np.flatnonzero(np.asarray(seen) == 0)
    if never.size:
        raise ValueError(
            f"every channel must be observed at least once; channel '{series[0].channels[never[0]]}' is missing in all "
            "rows. Drop that channel."
        )
    _check_sizes(series)
    lone = [item.name for item in series if item.mask.any(axis=1).sum() < 2]
    if lone and len(lone) == len(series):
        raise ValueError(
            f"dynamics need at least two observations in some series; '{lone[0]}' has one. "
            "Add later observations, or pass the series of one panel together as a list."
        )
    if lone:
        warnings.warn(
            f"{len(lone)} of {len(series)} series hold a single observation (first: '{lone[0]}'); "
            "they are kept and inform the initial state only.",
            stacklevel=3,
        )


def typical_step(data: Sequence[Series]) -> float:
    """The median step between observed rows."""
    steps = np.concatenate([np.diff(item.times[item.mask.any(axis=1)]) for item in data])
    return float(np.median(steps)) if len(steps) else 1.0
