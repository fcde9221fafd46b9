"""Series in files far larger than memory: rows are read where a window needs them, ahead of the training that uses them.

    data = arcta.store("sensors.npy", step=0.01)          a .npy or Zarr array, time along its first axis
    arcta.fit(arcta.LatentSDE(), data)

Defaults are read off a few hundred thousand rows spread over the file; `Feed` brings its windows to training, some steps at a
time. They are drawn uniformly over the whole file by generators seeded with (seed, piece of training, place in the batch):
a run that was stopped and resumed sees the same ones, and so do several machines that share the places of a batch.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from .batches import AbstractBatches, Slots
from .scaling import Scaling
from .series import Series
from .windows import Cuts, Rows, Window, WindowShape, cut, cut_rows

SAMPLE_ENTRIES = 2**19
SAMPLE_PIECES = 64


@runtime_checkable
class Source(Protocol):
    """Rows of an array, read by position."""

    shape: tuple[int, ...]

    def rows(self, first: int, last: int) -> np.ndarray:
        """The rows from `first` to before `last`."""
        ...

    def expect(self, first: int, last: int) -> None:
        """These rows will be read soon."""
        ...


class NpyFile:
    """A .npy file by positioned reads: a memory map would read megabytes ahead of every window."""

    def __init__(self, path: Path):
        with path.open("rb") as file:
            try:
                version = np.lib.format.read_magic(file)
                header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
                shape, columns_first, self.dtype = header[version](file)
            except (ValueError, KeyError) as error:
                raise ValueError(f"{path} is not a readable .npy file ({error}). Write it with numpy.save.") from None
            self.offset = file.tell()
        self.shape: tuple[int, ...] = tuple(shape)
        if self.dtype.kind not in "biuf" or not self.shape:
            raise ValueError(f"{path.name} must hold rows of numbers; it holds {self.dtype}. Convert it.")
        if columns_first and len(self.shape) > 1:
            raise ValueError(
                f"{path.name} is stored column by column; save it row by row: numpy.ascontiguousarray first."
            )
        self.width = int(np.prod(self.shape[1:], dtype=np.int64)) * self.dtype.itemsize
        needed, size = self.offset + shape[0] * self.width, path.stat().st_size
        if size < needed:
            raise ValueError(
                f"{path.name} is cut short: its header promises {needed} bytes, it has {size}. Write it again."
            )
        self.file = path.open("rb", buffering=0)

    def rows(self, first: int, last: int) -> np.ndarray:
        found = np.empty((last - first, *self.shape[1:]), self.dtype)
        buffer, position = memoryview(found.reshape(-1).view(np.uint8).data), self.offset + first * self.width
        while len(buffer):
            count = self._read(buffer, position)
            if count == 0:
                raise OSError(f"{self.file.name} ended while it was read; was it rewritten?")
            buffer, position = buffer[count:], position + count
        return found

    def expect(self, first: int, last: int) -> None:
        """The disk may fetch them meanwhile, many windows at a time."""
        if hasattr(os, "posix_fadvise"):
            start, length = self.offset + first * self.width, (last - first) * self.width
            os.posix_fadvise(self.file.fileno(), start, length, os.POSIX_FADV_WILLNEED)

    def _read(self, buffer: memoryview, position: int) -> int:
        if hasattr(os, "preadv"):
            return os.preadv(self.file.fileno(), [buffer], position)
        self.file.seek(position)
        return self.file.readinto(buffer)


class ZarrArray:
    """A Zarr array; whole chunks are read, so chunks of a few windows are best."""

    def __init__(self, path: Path):
        try:
            import zarr
        except ImportError:
            raise ValueError(f"reading {path} needs zarr. Install it: pip install 'arcta[zarr]'.") from None
        try:
            self.array: Any = zarr.open_array(str(path), mode="r")
        except Exception as error:
            raise ValueError(
                f"{path} is not a Zarr array ({error}). Give the path of one array, not of a group."
            ) from None
        self.shape = tuple(self.array.shape)

    def rows(self, first: int, last: int) -> np.ndarray:
        return np.asarray(self.array[first:last])

    def expect(self, first: int, last: int) -> None:
        """Chunks are read when they are needed."""


def _open(path: str | Path) -> Source:
    path = Path(path)
    if not path.exists():
        raise ValueError(f"there is no file {path}. Check the path.")
    return ZarrArray(path) if path.is_dir() else NpyFile(path)


def _observed_rows(values: np.ndarray) -> Bool[np.ndarray, " rows"]:
    return np.any(~np.isnan(values.reshape(len(values), -1)), axis=1)


@dataclasses.dataclass(frozen=True, repr=False)
class Store:
    """One long series in a file; made by `arcta.store`."""

    source: Source
    clock: Source | None
    start: float
    step: float
    channels: tuple[str, ...] | None
    name: str
    time_unit: str

    def __len__(self) -> int:
        return self.source.shape[0]

    def __repr__(self) -> str:
        return f"Store('{self.name}': {len(self):,} rows of {int(np.prod(self.source.shape[1:]))} channels, on disk)"

    def _read(self, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
        times = self.start + self.step * np.arange(first, last) if self.clock is None else self.clock.rows(first, last)
        return np.asarray(times, float), self.source.rows(first, last).astype(float)

    def _series(self, times: np.ndarray, values: np.ndarray, name: str | None = None) -> Series:
        return Series(times, values, channels=self.channels, name=name or self.name, time_unit=self.time_unit)

    def rows(self, first: int, last: int) -> Series:
        """The rows from `first` to before `last` as a series in memory; NaN is missing."""
        return self._series(*self._read(first, last))

    def sample(self) -> list[Series]:
        """Stretches spread evenly over the file, some half a million entries in all; the last ends where the file does."""
        rows = max(SAMPLE_ENTRIES // max(int(np.prod(self.source.shape[1:])), 1), 16 * SAMPLE_PIECES)
        if len(self) <= rows:
            return [self.rows(0, len(self))]
        length = rows // SAMPLE_PIECES
        starts = np.linspace(0, len(self) - length, SAMPLE_PIECES).astype(np.int64)
        pieces = [self._read(int(first), int(first) + length) for first in starts]
        seen = [self._series(t, x, f"{self.name}-{i}") for i, (t, x) in enumerate(pieces) if not np.isnan(x).all()]
        if not seen:
            raise ValueError(
                f"{SAMPLE_PIECES} stretches spread over '{self.name}' hold no number at all. Check the file."
            )
        return seen

    def tail(self, count: int) -> Series:
        """The last rows, at least `count` of them observed if the file has as many."""
        rows = count
        while True:
            times, values = self._read(max(len(self) - rows, 0), len(self))
            if _observed_rows(values).sum() >= count or rows >= len(self):
                return self._series(times, values)
            rows *= 2

    def num_partitions(self, size: int) -> int:
        """As many as `windows.partition_starts` makes: a last one shorter than two rows is merged into its neighbour."""
        return max(len(self) // size + (len(self) % size >= 2), 1)

    def window(self, index: int, scaling: Scaling, shape: WindowShape) -> Window | None:
        """Partition number `index` as a window with a leading axis of one; None if it holds fewer than two observations."""
        size, lookahead, margin = shape[:3]
        begin = index * size
        after = begin + size if index < self.num_partitions(size) - 1 else len(self)
        first, last = max(begin - margin, 0), min(after + 1 + margin + lookahead, len(self))
        times, values = self._read(first, last)
        row = first + np.flatnonzero(_observed_rows(values))
        low, high = np.searchsorted(row, [[begin], [after]])
        if high[0] - low[0] < 2:
            return None
        return cut(self._series(times, values), scaling, Cuts(low, high, np.array([begin == 0])), shape)

    def windows(
        self, indices: Int[np.ndarray, " windows"], scaling: Scaling, shape: WindowShape
    ) -> tuple[Window, Bool[np.ndarray, " windows"]]:
        """`window` for many partitions, stacked, and which of them hold enough. Those inside the file without a missing row are
        cut all at once, some thirty times faster than one by one."""
        size, _, margin = shape[:3]
        rows = shape.rows
        starts = indices * size - margin
        inside = (starts >= 0) & (starts + rows <= len(self)) & (indices < self.num_partitions(size) - 1)
        parts, places = [], []
        if inside.any():
            spans = [(int(start), int(start) + rows) for start in starts[inside]]
            for source in filter(None, (self.source, self.clock)):
                for span in spans:
                    source.expect(*span)
            read = [self._read(*span) for span in spans]
            times, values = np.stack([t for t, _ in read]), np.stack([x.reshape(rows, -1) for _, x in read])
            seen = ~np.isnan(values)
            whole = np.all(seen.any(axis=2), axis=1)
            inside[inside] = whole
            begin = margin + rows * np.arange(whole.sum())
            x, mask = (part[whole].reshape(-1, part.shape[-1]) for part in (np.nan_to_num(values), seen))
            found = Rows(times[whole].ravel(), x, mask)
            parts.append(cut_rows(found, scaling, Cuts(begin, begin + size, begin < 0), None, shape))
            places.extend(np.flatnonzero(inside))
        for index in np.unique(indices[~inside]):  # each once: a short file draws its first and last window often
            window = self.window(int(index), scaling, shape)
            if window is not None:
                here = np.flatnonzero(~inside & (indices == index))
                parts.extend([window] * len(here))
                places.extend(here)
        order = np.argsort(places)
        enough = np.isin(np.arange(len(indices)), places)
        return jax.tree.map(lambda *leaves: np.concatenate(leaves)[order], *parts), enough


def store(
    path: str | Path,
    *,
    step: float | None = None,
    start: float = 0.0,
    times: str | Path | None = None,
    channels: Sequence[str] | None = None,
    name: str | None = None,
    time_unit: str = "",
) -> Store:
    """A .npy file or Zarr array, time along its first axis, that stays on disk; NaN is missing.

    **Arguments:**

    - `path`: the file. Rows of numbers; a one-dimensional array is one channel.
    - `step`, `start`: the time between rows and that of the first; or `times`: a file of the same kind with the time of each
      row.

    !!! example

        >>> import arcta, numpy as np, pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "waves.npy"
        >>> np.save(path, np.sin(0.1 * np.arange(10_000)))
        >>> arcta.store(path, step=0.1)
        Store('waves': 10,000 rows of 1 channels, on disk)
    """
    source = _open(path)
    if (step is None) == (times is None):
        raise ValueError(
            "a store needs either step= (the time between rows) or times= (a file with the time of each row)."
        )
    if step is not None and not step > 0:
        raise ValueError(f"step must be positive; got {step:g}. It is the time between two rows.")
    clock = None if times is None else _open(times)
    if clock is not None and clock.shape != source.shape[:1]:
        raise ValueError(f"times= needs one time for each of the {source.shape[0]} rows; it has shape {clock.shape}.")
    if source.shape[0] < 4:
        raise ValueError(
            f"{path} has {source.shape[0]} rows; a model needs at least four. Is time along the first axis?"
        )
    channels = None if channels is None else tuple(channels)
    return Store(source, clock, start, step or 1.0, channels, name or Path(path).stem, time_unit)


class StreamedData(AbstractBatches):
    """The windows for some steps of training, `(steps, places, …)`, the first of them at step `first`."""

    windows: Window
    first: Int[Array, ""]
    observed: Float[Array, ""]
    slots: Slots  # pyright: ignore[reportIncompatibleVariableOverride]  (frozen)
    place_axis: ClassVar[int] = 1

    def pick(self, step: Int[Array, ""], batch_size: int, *, key: PRNGKeyArray) -> tuple[Window, Slots]:
        return jax.tree.map(lambda leaf: leaf[step - self.first], self.windows), self.slots

    def pick_pairs(self, batch_size: int, *, key: PRNGKeyArray) -> tuple[Window, Window, Array]:
        raise ValueError("windows of a file come without the ones that follow them; leave join_penalty out.")


@dataclasses.dataclass(eq=False)
class Feed:
    """The windows of a store, for `steps` steps of training at a time; a thread reads ahead while they are used.

    `slots` are the places of the batch, `places` those of them to read for, all by default; what is read for a place does not
    depend on the others. `observed` is the number of observed entries in the whole file.
    """

    data: Store
    scaling: Scaling
    shape: WindowShape
    slots: Slots
    observed: float
    seed: int
    steps: int = 50
    places: range | None = None

    def __post_init__(self):
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="arcta-reader")
        self.pending: dict[int, Future[StreamedData]] = {}

    def read(self, piece: int) -> StreamedData:
        """The windows of one piece of training, drawn uniformly over the file; stretches without data are drawn again."""
        places = self.places or range(len(self.slots.low))
        generators = [np.random.default_rng((self.seed, piece, place)) for place in places]
        low, width = (np.asarray(x)[places] for x in (self.slots.low, self.slots.width))
        chosen = np.stack(
            [rng.integers(a, a + n, self.steps) for rng, a, n in zip(generators, low, width, strict=True)], 1
        )
        for _ in range(100):
            windows, enough = self.data.windows(chosen.ravel(), self.scaling, self.shape)
            enough = enough.reshape(chosen.shape)
            if enough.all():
                break
            for place, rng in enumerate(generators):
                again = ~enough[:, place]
                chosen[again, place] = rng.integers(low[place], low[place] + width[place], again.sum())
        else:
            raise ValueError(f"'{self.data.name}' is missing nearly everywhere: few stretches hold two observations.")
        shaped = jax.tree.map(lambda leaf: leaf.reshape(*chosen.shape, *leaf.shape[1:]), windows)
        observed, first = np.asarray(self.observed, shaped.times.dtype), np.int32(piece * self.steps)
        return StreamedData(*jax.device_put((shaped, first, observed, Slots(low, width))))

    def at(self, step: int) -> StreamedData:
        """The windows for the piece of training that `step` is in; the next piece is being read."""
        piece = step // self.steps
        self.pending = {k: v for k, v in self.pending.items() if k in (piece, piece + 1)}
        for ahead in (piece, piece + 1):
            if ahead not in self.pending:
                self.pending[ahead] = self.thread.submit(self.read, ahead)
        return self.pending[piece].result()
