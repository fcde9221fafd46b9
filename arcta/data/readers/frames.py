"""Folders of PNG files as series of frames: grey or colour, scaled to [0, 1]; the last number in a name is its time."""

from __future__ import annotations

import math
import re
import warnings
from pathlib import Path

import numpy as np

from ..series import Series
from .files import check_size, kind_of_path
from .source import Loaded, Options, first_line

GREY = ("1", "L", "F", "LA")
DEEP = ("I", "I;16", "I;16B", "I;16L")  # sixteen bits


def from_frames(path: Path, options: Options) -> Loaded:
    try:
        listed = sorted(path.iterdir())
    except OSError as error:
        raise ValueError(f"{path} cannot be listed ({first_line(error)}). Check its permissions.") from None
    files = [item for item in listed if item.suffix.lower() == ".png"]
    if not files:
        raise ValueError(
            f"{path} is a folder without .png files and not a Zarr store. Give a file, or a folder of frames."
        )
    others = [item.name for item in listed if item not in set(files)]
    notes = [f"{path.name}: {len(others)} files are not .png ({', '.join(others[:3])}); ignored."] if others else []
    numbers = [re.findall(r"[0-9]+", item.stem) for item in files]
    if all(numbers):
        times = [float(found[-1]) for found in numbers]
    else:
        times = [float(i) for i in range(len(files))]
        notes.append(f"{path.name}: file names hold no numbers; frames are taken in the order of their names.")
    files = [files[i] for i in np.argsort(times, kind="stable")]
    _check_sizes(files, path)
    frames = np.stack([_open(file) for file in files])
    time_unit = options.time_unit or "frames"
    return Loaded([Series(np.sort(times), frames, name=path.name, time_unit=time_unit)], notes)


def _check_sizes(files: list[Path], path: Path) -> None:
    """All frames have one size, and together they fit into memory; nothing is decoded for that."""
    first = shape = None
    for file in files:
        size = _open(file, only_shape=True).shape
        if shape is None:
            first, shape = file, size
            check_size(math.prod(shape) * 8 * len(files), str(path))
        if size != shape:
            raise ValueError(
                f"all frames need one size; {file.name} is {size}, {first.name if first else ''} is {shape}. Resize it."
            )


def _open(file: Path, *, only_shape: bool = False) -> np.ndarray:
    """The pixels of a PNG file, or an array of their shape that takes no memory."""
    from PIL import Image

    kind_of_path(file)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of large pictures: their size is checked here
            with Image.open(file, formats=["PNG"]) as image:
                grey = image.mode in GREY or image.mode in DEEP
                if only_shape:
                    shape = (image.height, image.width) if grey else (image.height, image.width, 3)
                    return np.broadcast_to(np.zeros(()), shape)
                if image.mode in DEEP:
                    return np.asarray(image, float) / 65535
                return np.asarray(image.convert("L" if grey else "RGB"), float) / 255
    except Exception as error:
        reason = "too many pixels" if type(error).__name__ == "DecompressionBombError" else first_line(error)
        raise ValueError(f"{file} is not a readable PNG ({reason}). Write it again.") from None
