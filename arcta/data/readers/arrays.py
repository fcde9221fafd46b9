"""Arrays and frames as series: NPZ, Zarr, xarray Datasets, folders of PNG files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import EllipsisType
from typing import TYPE_CHECKING, Any

import numpy as np

from ..calendar import Calendar
from ..series import Series
from .columns import count_dates
from .source import TIME_NAMES, Loaded, Options, Table, first_line
from .tables import from_table

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


def _columns_of(arrays: Mapping[str, np.ndarray], where: str, length: int) -> Table:
    """The arrays of that length as columns of a table."""
    import pandas as pd

    columns, ignored = {}, []
    for name, array in arrays.items():
        if np.ndim(array) not in (1, 2) or len(array) != length:
            ignored.append(name)
        else:
            columns |= {name: array} if array.ndim == 1 else {f"{name}{i}": x for i, x in enumerate(array.T)}
    notes = [f"{where}: {', '.join(ignored)} do not run along the time; ignored."] if ignored else []
    return Table(pd.DataFrame(columns), where, np.arange(length), notes)


def _from_arrays(arrays: Mapping[str, np.ndarray], path: Path, options: Options) -> Loaded:
    """`times` and `values` (one series, or stacked ones), or a time and columns of its length."""
    time = options.time or next((n for n in arrays if n.lower() in TIME_NAMES), None)
    if time is None or time not in arrays:
        raise ValueError(
            f"{path.name} needs an array of times; its arrays are {', '.join(arrays)}. Name it with time=…"
        )
    t = np.asarray(arrays[time])
    if "values" not in arrays:
        return from_table(_columns_of(arrays, path.name, t.shape[-1]), options._replace(time=time))
    values = np.asarray(arrays["values"])
    known = ("values", "mask", "inputs", "channels", "units", "input_names", "names", time)
    ignored = [name for name in arrays if name not in known]
    notes = [f"{path.name}: the arrays {', '.join(ignored)} were not recognised; ignored."] if ignored else []
    if values.dtype.kind not in "biuf":
        raise ValueError(f"{path.name}: values must be numbers; they are {values.dtype}. Convert them.")
    numbers, calendar = _array_times(t, options)

    def words(name: str) -> list[str] | None:
        return [str(word) for word in arrays[name]] if name in arrays else None

    def series_at(place: int | EllipsisType, name: str) -> Series:
        return Series(
            numbers[place] if numbers.ndim == 2 else numbers,
            values[place],
            mask=np.asarray(arrays["mask"])[place].astype(bool) if "mask" in arrays else None,
            channels=words("channels"),
            units=words("units"),
            inputs=np.asarray(arrays["inputs"])[place] if "inputs" in arrays else None,
            input_names=words("input_names"),
            name=name,
            time_unit=options.time_unit or "",
            calendar=calendar,
        )

    stacked = values.ndim > 1 and t.ndim <= 2 and values.shape[0] != t.shape[-1] and values.shape[1] == t.shape[-1]
    try:
        values = np.where(np.isin(values, [float(mark) for mark in options.missing]), np.nan, values.astype(float))
        if not stacked:
            return Loaded([series_at(..., path.stem)], notes)
        names = words("names") or [f"{path.stem}-{i}" for i in range(len(values))]
        return Loaded([series_at(i, names[i]) for i in range(len(values))], notes)
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
        arrays = dict(group.arrays())
        if all(
            getattr(array.metadata, "dimension_names", None) or array.attrs.get("_ARRAY_DIMENSIONS")
            for array in arrays.values()
        ):
            return from_dataset(xr.open_zarr(str(path), consolidated=None), path.name, options)
        arrays = {name: np.asarray(array[...]) for name, array in arrays.items()}
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(f"{path} is not a readable Zarr group ({first_line(error)}). Write it again.") from None
    return _from_arrays(arrays, path, options)


def from_dataset(dataset: Any, where: str, options: Options) -> Loaded:
    """An xarray Dataset: variables along the time dimension, `series=` names the dimension of several series."""
    sizes = dict(dataset.sizes)
    named = [d for d in sizes if str(d).lower() in TIME_NAMES]
    dated = [d for d in sizes if d in dataset.coords and dataset[d].dtype.kind == "M"]
    time = options.time or next(iter(named + dated), None)
    if time is None or time not in sizes:
        raise ValueError(
            f"{where} needs a time dimension; its dimensions are {', '.join(map(str, sizes))}. Name it with time=…"
        )
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
    notes = [f"{where}: {', '.join(ignored)} do not run along {time}; ignored."] if ignored else []
    if not variables:
        raise ValueError(f"{where} has no variable along '{time}'. Name the time dimension with time=…")
    count = 1 if options.series is None else sizes[options.series]
    names = [f"{Path(where).stem}-{i}" for i in range(count)] if count > 1 else [Path(where).stem]
    if options.series in dataset.coords:
        names = [str(label) for label in dataset[options.series].values]
    series: list[Series] = []
    for i, name in enumerate(names):
        one = dataset if options.series is None else dataset.isel({options.series: i})
        table = Table(_dataset_table(one, variables, str(time)), where, np.arange(sizes[time]), notes if i == 0 else [])
        found = from_table(table, options._replace(time=str(time), series=None, channels=None)).series[0]
        units = [
            str(getattr(one.get(channel.split(" ")[0]), "attrs", {}).get("units", "")) or unit
            for channel, unit in zip(found.channels, found.units, strict=True)
        ]
        found = found.replace(name=name, units=units)
        series.append(found.on(series[0].calendar, series[0].time_unit) if series else found)
    return Loaded(series, notes)


def _dataset_table(dataset: Any, variables: Sequence[str], time: str) -> pd.DataFrame:
    import pandas as pd

    columns: dict[str, Any] = {time: dataset[time].values if time in dataset.coords else np.arange(dataset.sizes[time])}
    for name in variables:
        array = dataset[name].transpose(time, ...)
        if array.ndim == 1:
            columns[name] = array.values
        else:
            columns |= {f"{name} {i}": x for i, x in enumerate(array.values.reshape(len(array), -1).T)}
    return pd.DataFrame(columns)


# Frames --------------------------------------------------------------------------------------------------------------


def from_frames(path: Path, options: Options) -> Loaded:
    """A folder of PNG files: grey or colour, scaled to [0, 1]; the last number in a name is its time."""
    from PIL import Image

    files = sorted(path.glob("*.png")) + sorted(path.glob("*.PNG"))
    if not files:
        raise ValueError(
            f"{path} is a folder without .png files and not a Zarr store. Give a file, or a folder of frames."
        )
    others = sorted(item.name for item in path.iterdir() if item.suffix.lower() != ".png")
    notes = [f"{path.name}: {len(others)} files are not .png ({', '.join(others[:3])}); ignored."] if others else []
    numbers = [re.findall(r"\d+", item.stem) for item in files]
    if all(numbers):
        times = [float(found[-1]) for found in numbers]
    else:
        times = [float(i) for i in range(len(files))]
        notes.append(f"{path.name}: file names hold no numbers; frames are taken in the order of their names.")
    order = np.argsort(times, kind="stable")
    frames = []
    for file in (files[i] for i in order):
        try:
            with Image.open(file) as image:
                if image.mode in ("I", "I;16"):
                    frames.append(np.asarray(image, float) / 65535)
                else:
                    grey = image.mode in ("1", "L", "F", "LA")
                    frames.append(np.asarray(image.convert("L" if grey else "RGB"), float) / 255)
        except OSError as error:
            raise ValueError(f"{file} is not a readable PNG ({first_line(error)}). Write it again.") from None
        if frames[-1].shape != frames[0].shape:
            raise ValueError(
                f"all frames need one size; {file.name} is {frames[-1].shape}, {files[order[0]].name} is "
                f"{frames[0].shape}. Resize it."
            )
    time_unit = options.time_unit or "frames"
    return Loaded([Series(np.sort(times), np.stack(frames), name=path.name, time_unit=time_unit)], notes)
