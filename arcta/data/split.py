"""`split`: data in two by time, never at random."""

from __future__ import annotations

from typing import overload

from .read import Data, gather
from .series import Series
from .spans import Moment, is_date


@overload
def split(data: Series, *, at: Moment | None = None, time: Moment | None = None) -> tuple[Series, Series]: ...


@overload
def split(
    data: list[Series], *, at: Moment | None = None, time: Moment | None = None
) -> tuple[list[Series], list[Series]]: ...


@overload
def split(
    data: Data, *, at: Moment | None = None, time: Moment | None = None
) -> tuple[Series, Series] | tuple[list[Series], list[Series]]: ...


def split(
    data: object, *, at: Moment | None = None, time: Moment | None = None
) -> tuple[Series, Series] | tuple[list[Series], list[Series]]:
    """Cut data in two by time, never at random: everything up to the cut, and everything after it.

    **Arguments:**

    - `data`: a `Series`, a list of them (each is cut), or what `arcta.read` makes series of: a DataFrame, a path, …
    - `at`: the cut as a fraction of each series' time span, between 0 and 1; or as a date; or
    - `time`: the cut as a time (a number or a date), which belongs to the first part.

    **Returns:** `(before, after)`, each a `Series`, or a list of them if there are several.

    !!! example

        >>> import arcta, pandas as pd
        >>> before, after = arcta.split(arcta.Series(range(10), range(10)), at=0.8)
        >>> len(before), len(after)
        (8, 2)
        >>> days = arcta.Series(pd.date_range("2024-01-01", periods=10), range(10))
        >>> [len(part) for part in arcta.split(days, at="2024-01-03")]
        [3, 7]
    """
    if (at is None) == (time is None):
        raise ValueError("split needs exactly one of at= (a fraction, or a date) and time= (a time); pass one of them.")
    if at is not None and not is_date(at) and not 0 < float(at) < 1:  # pyright: ignore[reportArgumentType]
        raise ValueError(
            f"at must lie between 0 and 1; got {at}. Use at=0.8 to keep the first 80 % of the time span, or time= for a time."
        )
    where: Moment = time if at is None else at  # pyright: ignore[reportAssignmentType]
    pairs = [_split_one(item, where, at is not None) for item in gather(data)]
    if len(pairs) == 1 and not isinstance(data, list):
        return pairs[0]
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def _split_one(data: Series, where: Moment, fraction: bool) -> tuple[Series, Series]:
    first, last = data.times[0], data.times[-1]
    cut = data.time_of(where, "the cut")
    cut = first + cut * (last - first) if fraction and not is_date(where) else cut
    before = data.times <= cut
    for part, side in ((before, "before"), (~before, "after")):
        if not data.mask[part].any():
            raise ValueError(
                f"both parts of a split need an observation; nothing is observed {side} t={data.when(cut)} in series "
                f"'{data.name}', which spans {data.when(first)} to {data.when(last)}. Move the cut."
            )
    return data.at_rows(before), data.at_rows(~before)
