"""Arrays as series: NPZ, Zarr, xarray Datasets; Parquet as a table. What a file says of its size is checked first."""

from __future__ import annotations

import io
import math
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import EllipsisType
from typing import TYPE_CHECKING, Any

import numpy as np

from ..calendar import Calendar
from ..series import Series
from .columns import tidy_table
from .files import TooLarge, check_folder, check_size, read_bytes
from .source import TIME_NAMES, Loaded, Options, Table, first_line, list_names
from .tables import from_table
from .times import read_times

if TYPE_CHECKING:
    import pandas as pd

# Arrays --------------------------------------------------------------------------------------------------------------


def from_npz(path: Path, options: Options) -> Loaded:
    content = read_bytes(path)
    try:
        if path.suffix.lower() == ".npy" and not content.startswith(b"PK"):
            raise ValueError("one array without times")
        arrays = _unpack(content, path)
    except TooLarge:
        raise
    except Exception as error:
        raise ValueError(
            f"{path} is not a readable NPZ file of plain arrays ({first_line(error)}). Write it with numpy.savez(…)."
        ) from None
    return _from_arrays(arrays, path, options)


def _unpack(content: bytes, path: Path) -> dict[str, np.ndarray]:
    """The arrays of an NPZ file, whose sizes are checked before any of them is unpacked."""
    arrays, total = {}, 0
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for entry in archive.infolist():
            with archive.open(entry) as file:
                shape, columns_first, dtype = _header(file)
                if dtype.hasobject:
                    raise ValueError(f"'{entry.filename}' holds Python objects, which are not loaded")
                size = math.prod(shape) * dtype.itemsize
                total += _in_memory(shape, dtype)
                check_size(total if min(shape, default=0) >= 0 else -1, str(path))
                data = file.read(size)
                if len(data) != size or file.read(1):
                    raise ValueError(f"'{entry.filename}' is not as long as it says")
            array = np.frombuffer(data, dtype) if size else np.empty(0, dtype)
            name = entry.filename.removesuffix(".npy")
            arrays[name] = array.reshape(shape, order="F" if columns_first else "C")
    return arrays


def _in_memory(shape: Sequence[int], dtype: np.dtype) -> int:
    """The bytes of an array; numbers become float64."""
    return math.prod(shape) * max(dtype.itemsize, 8)


def _header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype]:
    version = np.lib.format.read_magic(file)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        raise ValueError("an array in a version of the format that is not known")
    return readers[version](file)


def read_parquet(path: Path) -> Table:
    """A Parquet file as a table; its sizes are checked before any column is unpacked."""
    import pandas as pd
    import pyarrow.parquet as pq

    content = read_bytes(path)
    try:
        about = pq.ParquetFile(io.BytesIO(content)).metadata
        columns = max(about.num_columns, 1)
        unpacked = sum(about.row_group(i).total_byte_size for i in range(about.num_row_groups))
        check_size(max(8 * about.num_rows * columns, unpacked), str(path))
        frame = pd.read_parquet(io.BytesIO(content))
    except TooLarge:
        raise
    except Exception as error:
        raise ValueError(f"{path} is not a readable Parquet file ({first_line(error)}). Write it again.") from None
    return Table(frame, path.name, np.arange(len(frame)), [])


def _columns_of(arrays: Mapping[str, np.ndarray], where: str, length: int) -> Table:
    """The arrays of that length as columns of a table."""
    import pandas as pd

    columns, ignored = {}, []
    for name, array in arrays.items():
        if np.ndim(array) not in (1, 2) or len(array) != length:
            ignored.append(name)
        else:
            columns |= {name: array} if array.ndim == 1 else {f"{name}{i}": x for i, x in enumerate(array.T)}
    notes = [f"{where}: {list_names(ignored)} do not run along the time; ignored."] if ignored else []
    return Table(pd.DataFrame(columns), where, np.arange(length), notes)


def _from_arrays(arrays: Mapping[str, np.ndarray], path: Path, options: Options) -> Loaded:
    """`times` and `values` (one series, or stacked ones), or a time and columns of its length."""
    time = options.time or next((n for n in arrays if n.lower() in TIME_NAMES), None)
    if time is None or time not in arrays:
        raise ValueError(
            f"{path.name} needs an array of times; its arrays are {list_names(arrays)}. Name it with time=…"
        )
    t = np.asarray(arrays[time])
    if t.ndim not in (1, 2) or t.size == 0:
        raise ValueError(
            f"{path.name}: '{time}' must hold one time for each row; its shape is {t.shape}. Name it with time=."
        )
    if "values" not in arrays:
        return from_table(_columns_of(arrays, path.name, t.shape[-1]), options._replace(time=time))
    known = ("values", "mask", "inputs", "channels", "units", "input_names", "names", time)
    ignored = [name for name in arrays if name not in known]
    notes = [f"{path.name}: the arrays {list_names(ignored)} were not recognised; ignored."] if ignored else []
    try:
        return Loaded(_series_of(arrays, time, path, options, notes), notes)
    except (IndexError, TypeError) as error:
        raise ValueError(
            f"{path.name}: its arrays do not fit together ({first_line(error)}). Values, mask, inputs and names need one entry for "
            "each series, each time and each channel."
        ) from None
    except ValueError as error:
        reason = str(error)
        raise ValueError(reason if path.name in reason else f"{path.name}: {reason}") from None


def _series_of(
    arrays: Mapping[str, np.ndarray], time: str, path: Path, options: Options, notes: list[str]
) -> list[Series]:
    """`times` (n,) and `values` (n, …) as one series; (n,) or (series, n) and (series, n, …) as several."""
    t, values = np.asarray(arrays[time]), np.asarray(arrays["values"])
    if values.dtype.kind not in "biuf":
        raise ValueError(f"values must be numbers; they are {values.dtype}. Convert them.")
    numbers, calendar, time_unit = _array_times(t, time, path, options, notes)

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
            time_unit=time_unit,
            calendar=calendar,
        )

    missing = [float(mark) for mark in options.missing if not isinstance(mark, str)]
    values = np.where(np.isin(values, missing), np.nan, values.astype(float))
    if not (values.ndim > 1 and values.shape[0] != t.shape[-1] and values.shape[1] == t.shape[-1]):
        return [series_at(..., path.stem)]
    names = words("names") or [f"{path.stem}-{i}" for i in range(len(values))]
    return [series_at(i, names[i]) for i in range(len(values))]


def _array_times(
    t: np.ndarray, name: str, path: Path, options: Options, notes: list[str]
) -> tuple[np.ndarray, Calendar | None, str]:
    import pandas as pd

    column = t.reshape(-1) if t.dtype.kind in "biufM" else t.reshape(-1).astype(str).astype(object)
    table = Table(
        pd.DataFrame({name: column}), path.name, np.tile(np.arange(t.shape[-1]), t.size // t.shape[-1]), notes
    )
    numbers, calendar, unit = read_times(tidy_table(table), name, {}, options)
    return numbers.reshape(t.shape), calendar, unit


def from_zarr(path: Path, options: Options) -> Loaded:
    try:
        import xarray as xr
        import zarr
    except ImportError:
        raise ValueError(f"reading {path} needs xarray and zarr. Install them: pip install 'arcta[zarr]'.") from None
    check_folder(path)
    dataset = arrays = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            group = zarr.open_group(str(path), mode="r")
            found = dict(group.arrays())
            check_size(sum(_in_memory(array.shape, array.dtype) for array in found.values()), str(path))
            check_size(max((_in_memory(array.chunks, array.dtype) for array in found.values()), default=0), str(path))
            if all(_names_dimensions(array) for array in found.values()):
                dataset = xr.open_zarr(str(path), consolidated=None).load()
            else:
                arrays = {name: np.asarray(array[...]) for name, array in found.items()}
    except TooLarge:
        raise
    except Exception as error:
        raise ValueError(f"{path} is not a readable Zarr group ({first_line(error)}). Write it again.") from None
    return from_dataset(dataset, path.name, options) if arrays is None else _from_arrays(arrays, path, options)


def _names_dimensions(array: Any) -> bool:
    return bool(getattr(array.metadata, "dimension_names", None) or array.attrs.get("_ARRAY_DIMENSIONS"))


def from_dataset(dataset: Any, where: str, options: Options) -> Loaded:
    """An xarray Dataset: variables along the time dimension, `series=` names the dimension of several series."""
    sizes = dict(dataset.sizes)
    named = [d for d in sizes if str(d).lower() in TIME_NAMES]
    dated = [d for d in sizes if d in dataset.coords and dataset[d].dtype.kind == "M"]
    time = options.time or next(iter(named + dated), None)
    if time is None or time not in sizes:
        raise ValueError(f"{where} needs a time dimension; its dimensions are {list_names(sizes)}. Name it with time=…")
    if options.series is not None and options.series not in sizes:
        raise ValueError(
            f"{where} has no dimension '{options.series}' for series; its dimensions are "
            f"{list_names(sizes)}. Use one of them."
        )
    every = [str(n) for n in dataset.data_vars if time in dataset[n].dims]
    variables = [*options.channels, *options.inputs] if options.channels else every
    absent = [name for name in (*variables, *options.inputs) if name not in every]
    if absent:
        raise ValueError(
            f"{where} has no variable '{absent[0]}' along {time}; it has {list_names(every)}. Use one of those names."
        )
    ignored = [str(n) for n in dataset.data_vars if str(n) not in variables]
    notes = [f"{where}: {list_names(ignored)} do not run along {time}; ignored."] if ignored else []
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


def from_data_array(array: Any, where: str, options: Options) -> Loaded:
    """An xarray DataArray: one channel, or one for each label along its other dimension; without a time, rows are numbered."""
    name = str(array.name or "x0")
    array = array.rename(None)
    times = [
        d for d in array.dims if str(d).lower() in TIME_NAMES or (d in array.coords and array[d].dtype.kind == "M")
    ]
    time = options.time or str(next(iter(times), array.dims[0] if array.dims else ""))
    others = [d for d in array.dims if d not in (time, options.series)]
    labelled = len(others) == 1 and others[0] in array.coords
    dataset = array.to_dataset(dim=others[0]) if labelled else array.to_dataset(name=name)
    return from_dataset(dataset.rename({n: str(n) for n in dataset.data_vars}), where, options._replace(time=time))


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
