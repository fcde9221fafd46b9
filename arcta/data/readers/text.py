"""Text files as tables: encoding, delimiter, header; cells stay text. Rows end at line ends alone, and not inside quotes."""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from pathlib import Path

import numpy as np

from .files import read_bytes
from .numbers import is_number
from .source import ROW, Options, Table

LINE_END = re.compile(r"\r\n|\r|\n")
QUOTED = re.compile(r'"(?:[^"]|"")*"')
BLANKS = r"\s+"
SAMPLE = 2**22  # characters that the delimiter is found in
UTF16 = {"utf-16-le": 1, "utf-16-be": 0}  # where the zero byte of a plain letter stands
BOMS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"),
        (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))  # fmt: skip


def _decode(content: bytes, path: Path, notes: list[str]) -> str:
    if not content.strip():
        raise ValueError(f"{path} is empty. Check that it was written.")
    encoding = next((name for bom, name in BOMS if content.startswith(bom)), "") or _wide_encoding(content)
    try:
        text = content.decode(encoding or "utf-8")
    except UnicodeDecodeError:
        if encoding:
            raise ValueError(
                f"{path} is damaged: its bytes are no {encoding.upper()}. Write it again as UTF-8."
            ) from None
        notes.append(f"{path.name} is not UTF-8; read as Latin-1, so check names with accents.")
        text = content.decode("latin-1")
    if "\x00" in text:
        raise ValueError(f"{path} is not a text file (it holds zero bytes). Give a CSV, or name the right suffix.")
    return text.lstrip("\ufeff")


def _wide_encoding(content: bytes) -> str:
    """UTF-16 without its mark: every other byte of nearly all letters is zero."""
    start = content[: 2**16]
    for name, place in UTF16.items():
        wide, other = start[place::2], start[1 - place :: 2]
        if wide and wide.count(0) > 0.7 * len(wide) and not other.count(0):
            return name
    return ""


def _delimiter(lines: Sequence[str], path: Path, options: Options) -> str:
    """The mark that splits the first lines into the same number of parts, the most parts winning."""
    if options.delimiter:
        mark = "\t" if options.delimiter in ("\\t", "tab") else options.delimiter
        if len(mark) > 1 or mark in '"\r\n' or mark == options.decimal:
            raise ValueError(
                f"delimiter must be one mark, not a quote and not the decimal mark; got {mark!r}. Pass ';' or ','."
            )
        return mark
    if path.suffix.lower() in (".tsv", ".tab") and all("\t" in line for line in lines[:2]):
        return "\t"
    best, parts = ",", 0
    for mark in ("\t", ";", "|", ","):
        if mark == options.decimal:
            continue
        fewest = min(line.count(mark) for line in lines)
        inside = mark == "," and parts and all(re.search(r"\d,\d", line) for line in lines)
        if fewest > parts and not inside:
            best, parts = mark, fewest
    words = {len(line.split()) for line in lines}
    return BLANKS if parts == 0 and len(words) == 1 and min(words) > 1 else best


def _first_content(text: str) -> tuple[int, int]:
    """Where the table begins behind comments and empty lines, and how many of these there are."""
    start = count = 0
    while start < len(text):
        end = LINE_END.search(text, start)
        line = text[start : end.start() if end else len(text)].strip()
        if line and not line.startswith("#"):
            break
        start, count = end.end() if end else len(text), count + 1
    return start, count


def _split(text: str, mark: str, where: str, skipped: int) -> list[list[str]]:
    """Rows of cells; an error for a row that is longer than the first, or a quote that is never closed."""
    if mark == BLANKS:
        lines = [re.sub(r"[ \t]+", " ", line).strip() for line in LINE_END.split(text)]
        reader = csv.reader(lines, delimiter=" ", strict=True)
    else:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=mark, skipinitialspace=True, strict=True)
    rows: list[list[str]] = []
    try:
        for row in reader:
            rows.append(row)
            if len(row) > len(rows[0]) and any(cell.strip() for cell in row[len(rows[0]) :]):
                raise ValueError(
                    f"{where}: row {len(rows) + skipped} has more fields than the header ({len(row)}, not {len(rows[0])}). "
                    "Fix that row, or pass delimiter=."
                )
    except csv.Error as error:
        raise ValueError(
            f"{where}: row {len(rows) + 1 + skipped} cannot be split into cells ({error}). Check its quotes."
        ) from None
    while rows and not rows[-1]:
        rows.pop()
    return rows


def read_text(path: Path, options: Options) -> Table:
    notes: list[str] = []
    text = _decode(read_bytes(path), path, notes)
    start, skipped = _first_content(text)
    if skipped:
        notes.append(f"the first {skipped} lines of {path.name} are comments or empty; left out.")
    body = text[start:]
    head = [line for line in LINE_END.split(QUOTED.sub("", body[:SAMPLE]))[:20] if line.strip()]
    if not body.strip() or not head:
        raise ValueError(f"{path} holds no table. Check that it was written.")
    mark = _delimiter(head, path, options)
    rows = _split(body, mark, path.name, skipped)
    names = [name.strip() for name in rows[0]]
    if len(names) == 1 and options.time != ROW:
        raise ValueError(
            f"{path.name} splits into one column with the delimiter {mark!r}; its header is {head[0][:60]!r}. "
            "Pass delimiter= with the mark that stands between the columns, or time='row' for a column without times."
        )
    if all(is_number(name) for name in names if name):
        raise ValueError(
            f"{path.name} needs a header with the names of its columns; row {skipped + 1} holds numbers. Add a first line such as "
            f"{','.join(['time', *(f'x{i}' for i in range(min(len(names), 12) - 1))])[:40]}."
        )
    return _records(rows[1:], names, path.name, skipped, notes)


def _stripped(cells: Iterable[str]) -> list[str]:
    return list(map(str.strip, cells))


def _records(rows: list[list[str]], names: list[str], where: str, skipped: int, notes: list[str]) -> Table:
    """The rows below the header as a table; those that repeat the header are left out, those that are cut short are noted."""
    import pandas as pd

    width = len(names)
    number = np.arange(len(rows)) + skipped + 2
    short = [i for i, row in enumerate(rows) if 0 < len(row) < width]
    if short:
        notes.append(
            f"{len(short)} rows of {where} have fewer cells than the header (first: row {number[short[0]]}); "
            "what they lack is missing."
        )
    repeats = [
        i for i, row in enumerate(rows) if row and row[0].strip() == names[0] and _stripped(row)[:width] == names
    ]
    if repeats:
        notes.append(
            f"{len(repeats)} rows of {where} are repeats of the header (first: row {number[repeats[0]]}); left out."
        )
        dropped = set(repeats)
        rows = [row for i, row in enumerate(rows) if i not in dropped]
        number = np.delete(number, repeats)
    columns = zip_longest(*(row[:width] for row in rows), fillvalue="")
    cells = np.empty((width, len(rows)), object)
    cells[:] = ""
    for i, column in enumerate(columns):
        cells[i] = _stripped(column)
    return Table(pd.DataFrame(cells.T, columns=names, dtype=object), where, number, notes, tidy=True)
