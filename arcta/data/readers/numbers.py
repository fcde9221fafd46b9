"""Cells as numbers: one decimal mark in a file, marks of thousands in groups of three, and nothing else guessed.

plain          1   -2.5   1e-3   .5
as well        1,234.5   1 234,5   1'234.5   12.5 %   € 12   1.5D3   −3      noted
refused        0x1F   (3)   3 kg   1,23,4   inf
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from ..dates import fold

MARKS = {".": ",", ",": "."}  # the decimal mark, and the mark of thousands that goes with it
BLANK = re.compile("[\u00a0\u2000-\u200a\u202f\u205f\u3000]")
SIGN, MONEY = r"[+-]?", "[$€£¥₹₽₩]"
# Unlike float(), no underscores, no blanks, no digits of other scripts, no words for infinity.
ONLY_PLAIN = re.compile(r"[^0-9.eE+\-\n]")


class Number(NamedTuple):
    """A cell: its value, and the sign of money or per cent beside it."""

    value: float
    sign: str


class Cell(NamedTuple):
    """A cell of a table by its place, for messages."""

    text: str
    record: int
    column: str


@functools.cache
def _pattern(decimal: str) -> re.Pattern[str]:
    mark, other = re.escape(decimal), re.escape(MARKS[decimal])
    grouped = rf"[1-9]\d{{0,2}}(?:(?P<group>[{other} '’_])\d{{3}})(?:(?P=group)\d{{3}})*"
    core = rf"(?P<whole>{grouped}|\d+)?(?:{mark}(?P<rest>\d*))?(?:[eEdD](?P<power>[+-]?\d{{1,4}}))?"
    return re.compile(
        rf"(?P<minus>{SIGN})(?P<before>{MONEY}?) ?(?P<inner>{SIGN}){core} ?(?P<after>%|{MONEY})?", re.ASCII
    )


def tidy(cell: str) -> str:
    """A cell with plain blanks, digits and minus signs; Arabic marks as points and commas."""
    text = fold(BLANK.sub(" ", cell) if not cell.isascii() else cell)
    return text if text.isascii() else text.translate({0x066B: ".", 0x066C: ",", 0xFF0D: "-", 0xFE63: "-", 0x2013: "-"})


def parse_number(cell: str, decimal: str) -> Number | None:
    """A cell as a number, None if it is none."""
    match = _pattern(decimal).fullmatch(tidy(cell))
    if match is None or (match["minus"] and match["inner"]) or (match["before"] and match["after"]):
        return None
    whole, rest = match["whole"] or "", match["rest"] or ""
    if not whole and not rest:
        return None
    digits = re.sub(r"\D", "", whole)
    value = float(f"{match['minus'] or match['inner']}{digits or 0}.{rest or 0}e{match['power'] or 0}")
    return Number(value, match["before"] or match["after"] or "") if np.isfinite(value) else None


def is_number(cell: str) -> bool:
    """Whether a cell is a number in one convention or the other."""
    return any(parse_number(cell, decimal) is not None for decimal in MARKS)


def plain_numbers(cells: np.ndarray, decimal: str) -> np.ndarray | None:
    """Cells that are plain numbers or empty, as numbers at once; None if others are among them."""
    joined = "\n".join(cells)
    if decimal == ",":
        if "." in joined:
            return None
        joined = joined.replace(",", ".")
        cells = np.array(joined.split("\n"), object)
    if ONLY_PLAIN.search(joined):
        return None
    try:
        return np.where(cells == "", "nan", cells).astype(float)
    except ValueError:
        return None


# A number with something about it: of a column with many of these it is not believed that it holds words.
ALMOST = re.compile(
    rf"[(\[<>~≈=*]*{SIGN}{MONEY}? ?{SIGN}(?:\d+(?:[.,]\d+)?|\d{{1,3}}(?:[.,' _]\d{{3}})+(?:[.,]\d+)?)"
    r"(?:[eEdD][+-]?\d+)?[)\]*]? ?(?:[%‰°µμ]|[A-Za-z]{1,4}|[$€£¥₹₽₩])?(?:/[A-Za-z]{1,4}|[²³0-9])?[)\]*]?"
    rf"|{SIGN}0[xX][0-9a-fA-F]+|{SIGN}(?i:inf|infinity|1\.#inf|#div/0!|#num!|#value!)|[½¼¾⅓⅔]",
    re.ASCII,
)


def almost_number(cell: str) -> bool:
    return ALMOST.fullmatch(tidy(cell)) is not None


# Which mark is the decimal one ---------------------------------------------------------------------------------------


def _certain(decimal: str) -> str:
    """Numbers whose decimal mark is this one, whatever stands in other cells."""
    mark, other = re.escape(decimal), rf"[{MARKS[decimal]} ']"
    power = r"(?:[eEdD][+-]?\d+)"
    return (
        rf"(?:0\d*|\d{{4,}}|\d{{1,3}}(?:{other}\d{{3}})+)?{mark}\d+{power}?|\d{{1,3}}(?:{other}\d{{3}}){{2,}}"
        rf"|\d{{1,3}}{mark}(?:\d\d?|\d{{4,}}){power}?|\d{{1,3}}{mark}\d{{3}}{power}"
    )


def _whole_cell(pattern: str) -> re.Pattern[str]:
    return re.compile(rf"^[%$€£¥₹₽₩ ]*{SIGN}(?:{pattern})[%$€£¥₹₽₩ ]*$", re.ASCII | re.MULTILINE)


TESTS = {
    "comma": _whole_cell(_certain(",")),
    "point": _whole_cell(_certain(".")),
    "comma or thousand": _whole_cell(r"[1-9]\d{0,2},\d{3}"),
    "point or thousand": _whole_cell(r"[1-9]\d{0,2}\.\d{3}"),
}
SUSPECT = re.compile(r",|\d\.\d{3}\.\d{3}")


def find_evidence(columns: Iterable[tuple[str, np.ndarray]]) -> dict[str, Cell]:
    """What the cells of a file say about its decimal mark: the first cell of each kind of `TESTS`. Nothing if none has a comma."""
    texts = {name: "\n".join(cells) for name, cells in columns}
    if not any(SUSPECT.search(text) for text in texts.values()):
        return {}
    found: dict[str, Cell] = {}
    for name, text in texts.items():
        if not text.isascii():
            text = "\n".join(tidy(cell) for cell in text.split("\n"))
        for kind in TESTS.keys() - found.keys():
            if match := TESTS[kind].search(text):
                found[kind] = Cell(match[0], text.count("\n", 0, match.start()), name)
    return found
