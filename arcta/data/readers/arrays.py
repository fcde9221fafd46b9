"""Arrays and frames as series: NPZ, Zarr, xarray Datasets, folders of PNG files."""

# pandas' own annotations widen every column to Series | DataFrame | Unknown; the tests run these functions typed by beartype.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..calendar import Calendar
from ..series import Series
from .source import TIME_NAMES, Loaded, Options, Table, first_line
from .tables import from_table
from .times import count_dates

if TYPE_CHECKING:
    import pandas as pd

# Arrays --------------------------------------------------------------------------------------------------------------


def from_npz(path: Path, options: Options) -> Loaded:
    try:
        with np.load(path, allow_pickle=False) as content:
            if isinstance(content, np.ndarray):
                raise ValueError("one array without times")
            arrays = {name: content[name] for name in content.files}
    except Exception as error:
        raise ValueError(
            f"{path} is not a readable NPZ file of plain arrays ({first_line(error)}). Write it with numpy.savez(…)."
        ) from None
    return _from_arrays(arrays, path, options)


def _columns_of(arrays: Mapping[str, np.ndarray], path: Path, length: int) -> Table:
    """The arrays of that length as columns of a table."""
    import pandas as pd

    flat = {n: a for n, a in arrays.items() if np.ndim(a) in (1, 2) and len(a) == length}
    ignored = [n for n in arrays if n not in flat]
    notes = [f"{path.name}: {', '.join(ignored)} do not run along the time; ignored."] if ignored else []
    columns = {}
    for name, array in flat.items():
        columns |= {name: array} if array.ndim == 1 else {f"{name}{i}": x for i, x in enumerate(array.T)}
    frame = pd.DataFrame(columns)
    return Table(frame, path.name, np.arange(len(frame)), notes)


def _from_arrays(arrays: Mapping[str, np.ndarray], path: Path, options: Options) -> Loaded:
    """`times` and `values` (one series, or stacked ones), or a time and columns of its length."""
    time = options.time or next((n for n in arrays if n.lower() in TIME_NAMES), None)
    if time is None or time not in arrays:
        raise ValueError(
            f"{path.name} needs an array of times; its arrays are {', '.join(arrays)}. Name it with time=…"
        )
    t = np.asarray(arrays[time])
    if "values" not in arrays:
        return from_table(_columns_of(arrays, path, t.shape[-1]), options._replace(time=time))
    values = np.asarray(arrays["values"])
    known = ("values", "mask", "inputs", "channels", "units", "input_names", "names", time)
    ignored = [name for name in arrays if name not in known]
    notes = [f"{path.name}: the arrays {', '.join(ignored)} were not recognised; ignored."] if ignored else []
    if values.dtype.kind not in "biuf":
        raise ValueError(f"{path.name}: values must be numbers; they are {values.dtype}. Convert them.")
    stacked = values.ndim > 1 and t.ndim <= 2 and values.shape[0] != t.shape[-1] and values.shape[1] == t.shape[-1]
    numbers, calendar = _array_times(t, options)
    names = [str(n) for n in arrays["names"]] if "names" in arrays else None

    def words(name: str) -> list[str] | None:
        return [str(word) for word in arrays[name]] if name in arrays else None

    def one(i: int | None, name: str) -> Series:
        def pick(array: np.ndarray) -> np.ndarray:
            return array if i is None else array[i]

        x = pick(values).astype(float)
        for mark in options.missing:
            x = np.where(x == float(mark), np.nan, x)
        return Series(
            pick(numbers) if numbers.ndim == 2 else numbers,
            x,
            mask=pick(np.asarray(arrays["mask"])).astype(bool) if "mask" in arrays else None,
            channels=words("channels"),
            units=words("units"),
            inputs=pick(np.asarray(arrays["inputs"])) if "inputs" in arrays else None,
            input_names=words("input_names"),
            name=name,
            time_unit=options.time_unit or "",
            calendar=calendar,
        )

    try:
        if not stacked:
            return Loaded([one(None, path.stem)], notes)
        return Loaded([one(i, names[i] if names else f"{path.stem}-{i}") for i in range(len(values))], notes)
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from None


def _array_times(t: np.ndarray, options: Options) -> tuple[np.ndarray, Calendar | None]:
    if t.dtype.kind != "M":
        return t.astype(float), None
    import pandas as pd

    dates = pd.DatetimeIndex(t.reshape(-1))
    if options.time_zone:
        dates = dates.tz_localize(options.time_zone, ambiguous="infer")
    numbers, calendar = count_dates(dates, options.time_zone or "", options.time_unit)
    return numbers.reshape(t.shape), calendar


def from_zarr(path: Path, options: Options) -> Loaded:
    try:
        import xarray as xr
        import zarr
    except ImportError:
        raise ValueError(f"reading {path} needs xarray and zarr. Install them: pip install 'arcta[zarr]'.") from None
    try:
        group = zarr.open_group(str(path), mode="r")
        labelled = all(_dimensions(array) for _, array in group.arrays())
        if labelled:
            return from_dataset(xr.open_zarr(str(path), consolidated=None), path.name, options)
        arrays = {name: np.asarray(array[...]) for name, array in group.arrays()}
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(f"{path} is not a readable Zarr group ({first_line(error)}). Write it again.") from None
    return _from_arrays(arrays, path, options)


def _dimensions(array: Any) -> Any:
    return getattr(array.metadata, "dimension_names", None) or array.attrs.get("_ARRAY_DIMENSIONS")


def from_dataset(dataset: Any, where: str, options: Options) -> Loaded:
    """An xarray Dataset: variables along the time dimension, `series=` names the dimension of several series."""
    sizes = dict(dataset.sizes)
    time = options.time or next((d for d in sizes if str(d).lower() in TIME_NAMES), None)
    if time is None:
        dated = [d for d in sizes if d in dataset.coords and dataset[d].dtype.kind == "M"]
        time = dated[0] if dated else None
    if time is None or time not in sizes:
        raise ValueError(
            f"{where} needs a time dimension; its dimensions are {', '.join(map(str, sizes))}. Name it with time=…"
        )
    notes: list[str] = []
    if options.series is not None and options.series not in sizes:
        raise ValueError(
            f"{where} has no dimension '{options.series}' for series; its dimensions are "
            f"{', '.join(map(str, sizes))}. Use one of them."
        )
    every = [str(n) for n in dataset.data_vars if time in dataset[n].dims]
    variables = [*options.channels, *options.inputs] if options.channels else every
    absent = [name for name in (*variables, *options.inputs) if name not in every]
    if absent:
        raise ValueError(
            f"{where} has no variable '{absent[0]}' along {time}; it has {', '.join(every)}. Use one of those names."
        )
    ignored = [str(n) for n in dataset.data_vars if str(n) not in variables]
    if ignored:
        notes.append(f"{where}: {', '.join(ignored)} do not run along {time}; ignored.")
    if not variables:
        raise ValueError(f"{where} has no variable along '{time}'. Name the time dimension with time=…")
    labels = [str(x) for x in dataset[options.series].values] if options.series in dataset.coords else None
    count = sizes[options.series] if options.series is not None else 1
    result: list[Series] = []
    for i in range(count):
        one = dataset.isel({options.series: i}) if options.series is not None else dataset
        table = Table(_dataset_table(one, variables, str(time)), where, np.arange(sizes[time]), notes if i == 0 else [])
        renamed = options._replace(time=str(time), series=None, channels=None)
        name = labels[i] if labels else (f"{Path(where).stem}-{i}" if count > 1 else Path(where).stem)
        found = from_table(table, renamed).series[0]
        units = [
            str(one[n.split(" ")[0]].attrs.get("units", "")) if n.split(" ")[0] in one else "" for n in found.channels
        ]
        result.append(found.replace(name=name, units=[new or old for new, old in zip(units, found.units, strict=True)]))
    return Loaded(_on_one_calendar(result), notes)


def _dataset_table(dataset: Any, variables: Sequence[str], time: str) -> pd.DataFrame:
    import pandas as pd

    columns: dict[str, Any] = {time: dataset[time].values if time in dataset.coords else np.arange(dataset.sizes[time])}
    for name in variables:
        array = dataset[name].transpose(time, ...)
        values = np.asarray(array.values).reshape(array.sizes[time], -1)
        if values.shape[1] == 1 and array.ndim == 1:
            columns[name] = values[:, 0]
        else:
            columns |= {f"{name} {i}": values[:, i] for i in range(values.shape[1])}
    return pd.DataFrame(columns)


def _on_one_calendar(series: list[Series]) -> list[Series]:
    return [item.on(series[0].calendar, series[0].time_unit) for item in series]


# Frames --------------------------------------------------------------------------------------------------------------


def from_frames(path: Path, options: Options) -> Loaded:
    """A folder of PNG files: grey or colour, scaled to [0, 1]; the last number in a name is its time."""
    from PIL import Image

    files = sorted(path.glob("*.png")) + sorted(path.glob("*.PNG"))
    if not files:
        raise ValueError(
            f"{path} is a folder without .png files and not a Zarr store. Give a file, or a folder of frames."
        )
    others = [item.name for item in path.iterdir() if item.suffix.lower() != ".png"]
    notes = (
        [f"{path.name}: {len(others)} files are not .png ({', '.join(sorted(others)[:3])}); ignored."] if others else []
    )
    numbers = [re.findall(r"\d+", item.stem) for item in files]
    if all(numbers):
        order = sorted(range(len(files)), key=lambda i: int(numbers[i][-1]))
        times = np.array([int(numbers[i][-1]) for i in order], float)
    else:
        order, times = list(range(len(files))), np.arange(len(files), dtype=float)
        notes.append(f"{path.name}: file names hold no numbers; frames are taken in the order of their names.")
    frames = []
    for i in order:
        try:
            with Image.open(files[i]) as image:
                grey = image.mode in ("1", "L", "I", "I;16", "F", "LA")
                deep = image.mode in ("I", "I;16")
                frames.append(
                    np.asarray(image if deep else image.convert("L" if grey else "RGB"), float)
                    / (65535 if deep else 255)
                )
        except OSError as error:
            raise ValueError(f"{files[i]} is not a readable PNG ({first_line(error)}). Write it again.") from None
        if frames[-1].shape != frames[0].shape:
            raise ValueError(
                f"all frames need one size; {files[i].name} is {frames[-1].shape}, {files[order[0]].name} is "
                f"{frames[0].shape}. Resize it."
            )
    return Loaded([Series(times, np.stack(frames), name=path.name, time_unit=options.time_unit or "frames")], notes)
