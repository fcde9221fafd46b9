"""Text files as tables: encoding, delimiter, header; cells stay text."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from .columns import is_number
from .source import ROW, Options, Table, first_line


def _decode(path: Path, notes: list[str]) -> str:
    content = path.read_bytes()
    if not content.strip():
        raise ValueError(f"{path} is empty. Check that it was written.")
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return content.decode("utf-16")
    if b"\x00" in content[:4096]:
        raise ValueError(f"{path} is not a text file (it holds zero bytes). Give a CSV, or name the right suffix.")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        notes.append(f"{path.name} is not UTF-8; read as Latin-1, so check names with accents.")
        return content.decode("latin-1")


def _delimiter(lines: Sequence[str], path: Path, options: Options) -> str:
    """The mark that splits the first lines into the same number of parts, the most parts winning."""
    if options.delimiter:
        return "\t" if options.delimiter in ("\\t", "tab") else options.delimiter
    if path.suffix.lower() in (".tsv", ".tab") and all("\t" in line for line in lines[:2]):
        return "\t"
    best, parts = ",", 0
    for mark in ("\t", ";", "|", ","):
        if mark == options.decimal:
            continue
        counts = [re.sub(r'"[^"]*"', "", line).count(mark) for line in lines]
        if min(counts) > parts:
            best, parts = mark, min(counts)
    words = {len(line.split()) for line in lines}
    return r"\s+" if parts == 0 and len(words) == 1 and min(words) > 1 else best


def read_text(path: Path, options: Options) -> Table:
    import pandas as pd

    notes: list[str] = []
    text = _decode(path, notes)
    lines = text.splitlines()
    content = (i for i, line in enumerate(lines) if line.strip() and not line.lstrip().startswith("#"))
    skipped = next(content, len(lines))
    if skipped:
        notes.append(f"the first {skipped} lines of {path.name} are comments or empty; left out.")
    head = [line for line in lines[skipped : skipped + 20] if line.strip()]
    if not head:
        raise ValueError(f"{path} holds no table. Check that it was written.")
    mark = _delimiter(head, path, options)
    try:
        frame = pd.read_csv(
            io.StringIO("\n".join(lines[skipped:])),
            sep=mark,
            dtype=str,
            header=None,
            keep_default_na=False,
            skip_blank_lines=False,
            skipinitialspace=True,
            engine="python" if mark == r"\s+" else "c",
            index_col=False,
        )
    except Exception as error:
        line = re.search(r"line (\d+)", str(error))
        row = f"row {int(line.group(1)) + skipped}" if line else "a row"
        raise ValueError(
            f"{path.name}: {row} has more fields than the header ({first_line(error)}). Fix that row, or pass delimiter=."
        ) from None
    if frame.shape[1] == 1 and options.time != ROW:
        raise ValueError(
            f"{path.name} splits into one column with the delimiter {mark!r}; its header is {head[0][:60]!r}. "
            "Pass delimiter= with the mark that stands between the columns, or time='row' for a column without times."
        )
    names = frame.iloc[0].map(str.strip).tolist()
    if all(is_number(name, options.decimal) for name in names if name):
        raise ValueError(
            f"{path.name} needs a header with the names of its columns; row {skipped + 1} holds numbers. Add a first line such as "
            f"{','.join(['time', *(f'x{i}' for i in range(len(names) - 1))])[:40]}."
        )
    frame = frame.iloc[1:].reset_index(drop=True)
    rows = np.arange(len(frame)) + skipped + 2
    repeats = (frame.astype(str).apply(lambda column: column.str.strip()) == names).all(axis=1).to_numpy()
    if repeats.any():
        notes.append(
            f"{int(repeats.sum())} rows of {path.name} are repeats of the header (first: row {rows[repeats][0]}); left out."
        )
    frame = frame[~repeats].reset_index(drop=True)
    frame.columns = names
    return Table(frame, path.name, rows[~repeats], notes)
