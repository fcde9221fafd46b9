"""Awkward tables: what stands in them is read exactly, or refused by row, column and value; nothing is misread."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from arcta.data.read import reading
from arcta.data.readers.source import Options

NAN = math.nan


def rows(*lines: str) -> str:
    return "\n".join(lines) + "\n"


def column(*cells: str, name: str = "x", mark: str = ",") -> str:
    """A table of plain times 0, 1, … and one column of cells as they stand."""
    return rows(f"t{mark}{name}", *(f"{i}{mark}{cell}" for i, cell in enumerate(cells)))


def dated(*cells: str, name: str = "date", mark: str = ";") -> str:
    """A table of dates as they stand and the numbers 0, 1, …"""
    return rows(f"{name}{mark}x", *(f"{cell}{mark}{i}" for i, cell in enumerate(cells)))


# text, options, the values read or the words of the refusal, words of the notes
NUMBERS: dict[str, tuple[str, dict, list[float] | str, str]] = {
    "plain": (column("1", "-2.5", "+3", ".5", "5.", "1e-3", "1E+2"), {}, [1, -2.5, 3, 0.5, 5, 0.001, 100], ""),
    "all digits kept": (column("0.1", "0.30000000000000004", "2.2250738585072014e-308"), {},
                        [0.1, 0.30000000000000004, 2.2250738585072014e-308], ""),
    "gaps": (column("1", "", "NA", "n/a", "NaN", "null", "None", "-", "?", "#N/A", "2"), {}, [1, *[NAN] * 9, 2], ""),
    "blanks around": (column(" 1 ", "  2", "3  "), {}, [1, 2, 3], ""),
    "true and false": (column("true", "FALSE", "True"), {}, [1, 0, 1], ""),
    "words that mean missing": (column("1", "off", "3"), {"missing": ("off",)}, [1, NAN, 3], ""),
    "numbers that mean missing": (column("1", "-999", "-999.0"), {"missing": (-999,)}, [1, NAN, NAN], ""),
    "decimal commas, said": (column("0,3272", "12,5", mark=";"), {"decimal": ","}, [0.3272, 12.5], ""),
    "decimal commas, recognised": (column("0,3272", "12,5", mark=";"), {}, [0.3272, 12.5], "decimal commas"),
    "decimal commas in quotes": (column('"0,3"', '"1,5"'), {}, [0.3, 1.5], "decimal commas"),
    "decimal commas and tabs": (column("0,3", "1,5", mark="\t"), {}, [0.3, 1.5], "decimal commas"),
    "decimal commas, four digits": (column("1,2345", "2,3456", mark=";"), {}, [1.2345, 2.3456], "decimal commas"),
    "decimal commas, leading zero": (column("0,123", "0,456", mark=";"), {}, [0.123, 0.456], "decimal commas"),
    "decimal commas with powers": (column("1,5e3", "2,5E-1", mark=";"), {}, [1500, 0.25], "decimal commas"),
    "decimal commas without a whole": (column(",5", ",25", mark=";"), {}, [0.5, 0.25], "decimal commas"),
    "decimal commas and points as thousands": (column("1.234,5", "12.345.678,25", mark=";"), {}, [1234.5, 12345678.25], ""),
    "points as thousands, said": (column("1.234", "12.345.678", mark=";"), {"decimal": ","}, [1234, 12345678], "'1.234'"),
    "a point under decimal commas": (column("0.3272", "12.5", mark=";"), {"decimal": ","},
                                     "row 2, column 'x' of .* holds '0.3272'", ""),
    "both marks, said": (column("0,5", "0.25", mark=";"), {"decimal": ","}, "row 3, column 'x' of .* holds '0.25'", ""),
    "both conventions in a column": (column("0,5", "0.25", mark=";"), {}, "one decimal mark.*'0,5'.*'0.25'", ""),
    "both conventions in two columns": (rows("t;x;y", "0;0,5;1.5", "1;0,6;2.5"), {}, "one decimal mark.*'0,5'.*'1.5'", ""),
    "commas with points in both orders": (column("1.234,5", "1,234.5", mark=";"), {}, "one decimal mark", ""),
    "a thousand or decimals": (column("1,234", "2,345", mark=";"), {},
                               r"'1,234', which may be a thousand.*decimal='\.'.*decimal=','", ""),
    "a thousand or decimals in quotes": (column('"1,234"', '"2,345"'), {}, "may be a thousand", ""),
    "commas as thousands, said": (column("1,234", "2,345", mark=";"), {"decimal": "."}, [1234, 2345], "read as 1234"),
    "decimals, said": (column("1,234", "2,345", mark=";"), {"decimal": ","}, [1.234, 2.345], ""),
    "commas as thousands, proved by a column": (rows("t;x;y", "0;1,234;0.5", "1;2,345;0.6"), {}, [1234, 2345], "1234"),
    "commas as thousands, proved by a cell": (column('"1,234.5"', '"2,345"', '"12"'), {}, [1234.5, 2345, 12], "1234.5"),
    "commas as thousands, millions": (column('"1,234,567"', '"12"'), {}, [1234567, 12], ""),
    "a point in a file of decimal commas": (rows("t;x;y", "0;0,5;1.234", "1;0,6;2.345"), {}, "'1.234', which may be", ""),
    "groups that are not of three": (column("1,23,456", "2", "3", mark=";"), {}, "row 2, column 'x' of .* holds '1,23,456'", ""),
    "groups of four": (column("1,2345", "0.5", mark=";"), {}, "one decimal mark", ""),
    "points only in groups of three": (column("1.234.567", "1.234.5", "7", mark=";"), {"decimal": ","}, "holds '1.234.5'", ""),
    "a wrong decimal mark": (column("1", "2"), {"decimal": ":"}, "decimal must be '.' or ','", ""),
    "thin spaces": (column("1\u2009234", "12\u2009345.5"), {}, [1234, 12345.5], "read as 1234"),
    "narrow spaces": (column("1\u202f234,5", "0,5", mark=";"), {}, [1234.5, 0.5], ""),
    "spaces that do not break": (column("1\u00a0234\u00a0567", "5"), {}, [1234567, 5], ""),
    "spaces not in groups": (column("1 2", "3", "4"), {}, "row 2, column 'x' of .* holds '1 2'", ""),
    "apostrophes": (column("1'234.5", "1’234’567", "5"), {}, [1234.5, 1234567, 5], "1234.5"),
    "underscores in groups": (column("1_000", "2", "3"), {}, [1000, 2, 3], "read as 1000"),
    "underscores elsewhere": (column("1_0", "2", "3"), {}, "row 2, column 'x' of .* holds '1_0'", ""),
    "per cent": (column("12.5%", "13 %"), {}, [12.5, 13], "read as 12.5"),
    "per cent in some": (column("12.5%", "0.13"), {}, "one unit; row 3, column 'x' of .* holds '0.13'", ""),
    "per mille": (column("1‰", "2‰"), {}, "row 2, column 'x' of .* holds '1‰'", ""),
    "money": (column("$1.50", "$2"), {}, [1.5, 2], "read as 1.5"),
    "money behind, commas": (column("1,50 €", "2 €", mark=";"), {}, [1.5, 2], "1.5"),
    "two currencies": (column("$1.50", "€2"), {}, "one unit; row 3, column 'x' of .* holds '€2'", ""),
    "hexadecimal": (column("0x1F", "0x20"), {}, "row 2, column 'x' of .* holds '0x1F'", ""),
    "hexadecimal among numbers": (column("1", "2", "0x20"), {}, "row 4, column 'x' of .* holds '0x20'", ""),
    "units": (column("3 kg", "4 kg"), {}, "row 2, column 'x' of .* holds '3 kg'", ""),
    "brackets for negatives": (column("(3)", "(4.5)"), {}, r"row 2, column 'x' of .* holds '\(3\)'", ""),
    "stars": (column("3*", "4", "5"), {}, r"row 2, column 'x' of .* holds '3\*'", ""),
    "below detection": (column("<0.1", "4", "5"), {}, "row 2, column 'x' of .* holds '<0.1'", ""),
    "fractions": (column("½", "¼"), {}, "holds '½'", ""),
    "powers above": (column("10²", "3", "4"), {}, "row 2, column 'x' of .* holds '10²'", ""),
    "infinity": (column("inf", "1", "2"), {}, "row 2, column 'x' of .* holds 'inf'", ""),
    "too large": (column("1e999", "1", "2"), {}, "row 2, column 'x' of .* holds '1e999'", ""),
    "errors of a spreadsheet": (column("#DIV/0!", "1", "2"), {}, "row 2, column 'x' of .* holds '#DIV/0!'", ""),
    "a proper minus": (column("−3", "–2", "1"), {}, [-3, -2, 1], "read as -3"),
    "Arabic digits": (column("٣", "٤٫٥", "1"), {}, [3, 4.5, 1], ""),
    "wide digits": (column("１２", "1"), {}, [12, 1], ""),
    "powers of Fortran": (column("1.5D3", "2d-1"), {}, [1500, 0.2], "read as 1500"),
    "leading zeros": (column("007", "008"), {}, [7, 8], "leading zero"),
    "long integers": (column("9007199254740993", "1"), {}, [9007199254740992, 1], "last digits are lost"),
    "two signs": (column("--3", "1", "2"), {}, "row 2, column 'x' of .* holds '--3'", ""),
    "two points": (column("1..5", "1", "2"), {}, "row 2, column 'x' of .* holds '1..5'", ""),
    "marks that cannot be seen": (column("\u200e1.5", "2\ufeff"), {}, [1.5, 2], ""),
    "words and numbers": (rows("t,x,y", "0,1,yes", "1,2,no"), {}, [1, 2], "'y' of .* holds words .row 2: 'yes'"),
    "yes and no asked for": (rows("t,x", "0,yes", "1,no"), {"channels": ("x",)}, "row 2: 'yes'", ""),
    "names with digits": (rows("t,x,y", "0,1,A12", "1,2,B7"), {}, [1, 2], "row 2: 'A12'"),
    "addresses": (rows("t,x,y", "0,1,10.0.0.1", "1,2,10.0.0.2"), {}, [1, 2], "row 2: '10.0.0.1'"),
    "a word among numbers": (column("1", "2", "broken", "4"), {}, "row 4, column 'x' of .* holds 'broken'", ""),
    "words only": (column("up", "down"), {}, "no column of numbers", ""),
    "inputs of words": (rows("t,x,u", "0,1,up", "1,2,down"), {"inputs": ("u",)}, "'u' of .* holds words", ""),
}  # fmt: skip


DAY = ["2020-02-01", "2020-02-13"]
# cells, options, the dates read, numbers, or the words of the refusal, words of the notes
DATES: dict[str, tuple[tuple[str, ...], dict, list, str]] = {}


def _date(name: str, *cells: str, want: list | str, note: str = "", **options: object) -> None:
    DATES[name] = (cells, options, want, note)


_date("day first, proved", "01/02/2020", "13/02/2020", want=DAY, note="day/month/year")
_date("month first, proved", "02/01/2020", "02/13/2020", want=DAY, note="month/day/year")
_date("points", "01.02.2020", "13.02.2020", want=DAY)
_date("dashes", "01-02-2020", "13-02-2020", want=DAY)
_date("blanks", "01 02 2020", "13 02 2020", want=DAY)
_date("not proved", "01/02/2020", "02/02/2020", "03/02/2020", want="'01/02/2020'.*day_first=True or day_first=False")
_date("monthly or daily", *(f"01/{m:02d}/2020" for m in range(1, 13)), want="day_first=True")
_date("said: day", "01/02/2020", "02/02/2020", day_first=True, want=["2020-02-01", "2020-02-02"])
_date("said: month", "01/02/2020", "02/02/2020", day_first=False, want=["2020-01-02", "2020-02-02"])
_date("said wrongly", "01/02/2020", "13/02/2020", day_first=False, want="row 3, column 'date' of .* '13/02/2020'")
_date("said, and the year is first", "2020-02-01", "2020-02-13", day_first=True, want=DAY)
_date("hours over a midnight", *(f"0{d}/02/2020 {h:02d}:00" for d in (1, 2) for h in range(24)), note="not be equal",
      want=[f"2020-02-0{d} {h:02d}:00" for d in (1, 2) for h in range(24)])  # fmt: skip
_date("the same either way", "05/05/2020", "06/06/2020", "07/07/2020", want=["2020-05-05", "2020-06-06", "2020-07-07"])
_date("two-digit years, three readings", "01/02/03", "02/02/03", want="day/month/year or month/day/year or year")
_date("two-digit years, proved", "25/12/97", "26/12/97", want=["1997-12-25", "1997-12-26"], note="two digits")
_date("two-digit years first", "97-12-25", "97-12-26", want=["1997-12-25", "1997-12-26"])
_date("mixed formats", "2020-02-01", "13/02/2020", want="row 3, column 'date' of .* holds '13/02/2020'")
_date("mixed separators", "13/02/2020", "14.02.2020", want="row 3, column 'date' of .* holds '14.02.2020'")
_date("mixed years", "13/02/2020", "14/02/20", want="row 3, column 'date' of .* holds '14/02/20'")
_date("30 February", "29/02/2020", "30/02/2020", want="row 3, column 'date' of .* '30/02/2020'")
_date("29 February of a common year", "2019-02-28", "2019-02-29", want="row 3, column 'date' of .* '2019-02-29'")
_date("month 13", "2019-12-01", "2019-13-01", want="row 3.*'2019-13-01'")
_date("year 1", "0001-01-01", "2020-01-01", want="row 2.*'0001-01-01'.*1000 to 2999")
_date("year 9999", "2020-01-01", "9999-12-31", want="row 3.*'9999-12-31'.*1000 to 2999")
_date("hour 25", "2020-01-01 24:00", "2020-01-02 25:00", want="row 3.*25:00 is no time of day")
_date("hour 24", "2020-01-01 23:00", "2020-01-01 24:00", want=["2020-01-01 23:00", "2020-01-02"])
_date("second 60", "2016-12-31 23:59:59", "2016-12-31 23:59:60", want="row 3.*23:59:60 is no time of day")
_date("names of months", "1 Feb 2020", "13 Feb 2020", want=DAY)
_date("long names of months", "February 1, 2020", "February 13, 2020", want=DAY)
_date("names and dashes", "01-Feb-20", "13-Feb-20", want=DAY, note="two digits")
_date("ordinals", "1st of February 2020", "13th of February 2020", want=DAY)
_date("days of the week", "Sat, 01 Feb 2020 00:00:00 GMT", "Thu, 13 Feb 2020 00:00:00 GMT",
      want=["2020-02-01 00:00+00:00", "2020-02-13 00:00+00:00"])  # fmt: skip
_date("a wrong day of the week", "Mon 1 Feb 2020", "Thu 13 Feb 2020", want="row 2.*'Mon 1 Feb 2020'")
_date("AM and PM", "02/01/2020 12:30 AM", "02/13/2020 12:30 pm", want=["2020-02-01 00:30", "2020-02-13 12:30"])
_date("PM in some", "2020-02-01 11:30", "2020-02-01 1:30 PM", want="row 2.*neither AM nor PM")
_date("months", "2020-01", "2020-02", "2020-03", want=["2020-01-01", "2020-02-01", "2020-03-01"], note="year-month")
_date("months first", "01/2020", "02/2020", want=["2020-01-01", "2020-02-01"])
_date("months with points", "01.2020", "02.2020", want=["2020-01-01", "2020-02-01"], note="month.year")
_date("year and month with a point", "2020.01", "2020.02", want=[2020.01, 2020.02], note="a year and its month")
_date("quarters", "2020Q1", "2020Q2", "2020Q3", want=["2020-01-01", "2020-04-01", "2020-07-01"])
_date("quarters first", "Q1 2020", "Q2 2020", want=["2020-01-01", "2020-04-01"])
_date("weeks", "2020-W05", "2020-W06", want=["2020-01-27", "2020-02-03"])
_date("days of the year", "2020-059", "2020-060", want=["2020-02-28", "2020-02-29"])
_date("years", "2019", "2020", want=[2019, 2020])
_date("month names, two-digit years", "Jan-05", "Feb-05", want="a year or a day")
_date("together", "20200201", "20200213", want=DAY, note="yyyymmdd")
_date("together with a clock", "20200201T1230", "20200213T1230", want=["2020-02-01 12:30", "2020-02-13 12:30"])
_date("together, fourteen digits", "20200201123000", "20200213123000", want=["2020-02-01 12:30", "2020-02-13 12:30"])
_date("months together", "201901", "201902", want=["2019-01-01", "2019-02-01"], note="year-month")
_date("months or days together", "200101", "200102", want=[200101, 200102], note="if it is a date")
_date("no such day together", "20200230", "20200231", want=[20200230, 20200231], note="if it is a date")
_date(
    "seconds since 1970",
    "1577836800",
    "1577836860",
    want=["2020-01-01 00:00+00:00", "2020-01-01 00:01+00:00"],
    note="since 1970",
)
_date(
    "milliseconds since 1970",
    "1577836800000",
    "1577836800250",
    want=["2020-01-01T00:00+00:00", "2020-01-01T00:00:00.25+00:00"],
)
_date("nanoseconds since 1970", "1577836800000001000", "1577836800000002000", note="ns since 1970",
      want=["2020-01-01T00:00:00.000001+00:00", "2020-01-01T00:00:00.000002+00:00"])  # fmt: skip
_date("days of Excel", "43831", "43832", want=[43831, 43832], note="a day of Excel")
_date("fractions of a second", "2020-01-01 00:00:00.25", "2020-01-01 00:00:00.5",
      want=["2020-01-01 00:00:00.25", "2020-01-01 00:00:00.5"])  # fmt: skip
_date("with and without midnight", "2020-01-01 23:00", "2020-01-02", "2020-01-02 01:00", note="midnight",
      want=["2020-01-01 23:00", "2020-01-02", "2020-01-02 01:00"])  # fmt: skip
_date("offsets", "2020-01-01T00:00+01:00", "2020-01-01T01:00+01:00", note="results are in UTC",
      want=["2019-12-31 23:00+00:00", "2020-01-01 00:00+00:00"])  # fmt: skip
_date("an offset and the zone of the user", "2020-07-01T00:00Z", "2020-07-01T01:00Z", time_zone="Europe/Berlin",
      want=["2020-07-01 02:00+02:00", "2020-07-01 03:00+02:00"])  # fmt: skip
_date("day first with an offset", "13-02-2020 00:00-05", "14-02-2020 00:00-05",
      want=["2020-02-13 05:00+00:00", "2020-02-14 05:00+00:00"])  # fmt: skip
_date("the zone in some", "2020-01-01T00:00Z", "2020-01-01T01:00", want="row 3.*says no time zone")
_date("an offset that is none", "2020-01-01T00:00+25:00", "2020-01-01T01:00+25:00", want="no offset")
_date("letters for a zone", "2020-01-01 00:00 EST", "2020-01-01 01:00 EST", want="row 2.*00:00 EST")
_date("an hour that was skipped", "2024-03-31 01:30", "2024-03-31 02:30", time_zone="Europe/Berlin", want="nonexistent")
_date(
    "an hour that came twice",
    "2024-10-27 02:30",
    "2024-10-28 02:30",
    time_zone="Europe/Berlin",
    want="Write the offsets",
)
_date("no such zone", "2024-10-27", "2024-10-28", time_zone="Mars/Phobos", want="'Mars/Phobos' is no time zone")
_date("times of day", "12:30", "12:45", "13:00", want=[750, 765, 780], note="without a date")
_date("times of day with seconds", "12:30:00.5", "12:30:01.0", want=[45000500, 45001000])
_date("times of day over midnight", "23:45", "00:00", want="'00:00' after '23:45'")
_date("no times of day", "12:30", "12:75", want="holds '12:75'")
_date("more than a day", "23:00:00", "25:00:00", want=[23, 25])
_date("a missing date", "2020-01-01", "", want="every row needs a time; row 3")
_date("marks of direction", "\u200e13/02/2020", "\u200e14/02/2020", want=["2020-02-13", "2020-02-14"])
_date("Chinese", "2020年2月1日", "2020年2月13日", want=DAY)
_date("logs of Apache", "13/Feb/2020:10:00:00 +0100", "13/Feb/2020:11:00:00 +0100",
      want=["2020-02-13 09:00+00:00", "2020-02-13 10:00+00:00"])  # fmt: skip
_date("no dates", "soon", "later", want="numbers or dates; row 2, column 'date' of .* holds 'soon'")

TABLES: dict[str, tuple[str | bytes, dict, tuple[list, dict[str, list[float]]] | str, str]] = {
    "date and time in two columns": (rows("Date;Time;x", "10/03/2004;18.00.00;1", "13/03/2004;19.00.00;2"), {},
        (["2004-03-10 18:00", "2004-03-13 19:00"], {"x": [1, 2]}), "are joined"),
    "time before date": (rows("Time,Date,x", "18:00,2004-03-10,1", "19:00,2004-03-10,2"), {},
        (["2004-03-10 18:00", "2004-03-10 19:00"], {"x": [1, 2]}), "are joined"),
    "a date named, its time beside it": (rows("Date,Time,x", "2004-03-10,6 PM,1", "2004-03-10,7 PM,2"), {"time": "Date"},
        (["2004-03-10 18:00", "2004-03-10 19:00"], {"x": [1, 2]}), "are joined"),
    "quoted line breaks": (b't,x,"note\nof two lines"\n0,1,"a\nb"\n1,2,"c\r\nd"\n', {}, ([0, 1], {"x": [1, 2]}), "holds words"),
    "form feeds and other separators": ("t,x,n\n0,1,a\x0cb\n1,2,c\u2028d\n2,3,e\x1cf\x85\n", {}, ([0, 1, 2], {"x": [1, 2, 3]}), ""),
    "three kinds of line ends": (b"t,x\n0,1\r1,2\r\n2,3\n", {}, ([0, 1, 2], {"x": [1, 2, 3]}), ""),
    "UTF-16 without a mark": ("t,x\n0,1\n1,2\n".encode("utf-16-le"), {}, ([0, 1], {"x": [1, 2]}), ""),
    "UTF-16 the other way": ("t,x\n0,1\n1,2\n".encode("utf-16-be"), {}, ([0, 1], {"x": [1, 2]}), ""),
    "UTF-32": ("t,x\n0,1\n1,2\n".encode("utf-32"), {}, ([0, 1], {"x": [1, 2]}), ""),
    "half of UTF-16": ("t,x\n0,1\n1,2\n".encode("utf-16")[:-1], {}, "is damaged", ""),
    "a zero byte": (b"t,x\n0,1\n1,\x002\n", {}, "zero bytes", ""),
    "Latin-1": ("t,é\n0,1\n1,2\n".encode("latin-1"), {}, ([0, 1], {"é": [1, 2]}), "Latin-1"),
    "two byte-order marks": ("\ufeff\ufefft,x\n0,1\n1,2\n", {}, ([0, 1], {"x": [1, 2]}), ""),
    "an open quote": ('t,x\n0,1\n1,"2\n2,3\n', {}, "quotes", ""),
    "a row cut short": ("t,x,y\n0,1,2\n1,2\n2,3,4\n", {}, ([0, 1, 2], {"x": [1, 2, 3], "y": [2, NAN, 4]}), "fewer cells.*row 3"),
    "a comma too many, empty": ("t,x\n0,1,\n1,2,\n", {}, ([0, 1], {"x": [1, 2]}), ""),
    "a cell too many": ("t,x\n0,1\n1,2,3\n", {}, "row 3 has more fields", ""),
    "decimal commas between commas": ("t,x\n0,5,1\n1,5,2\n", {}, "row 2 has more fields", ""),
    "semicolons and decimal commas alike": (rows("t;x,y;z", "0;0,5;1", "1;1,5;2"), {},
        ([0, 1], {"x,y": [0.5, 1.5], "z": [1, 2]}), ""),
    "runs of blanks": ("t   x\n0  1.5\n 1 2.5\n", {}, ([0, 1], {"x": [1.5, 2.5]}), ""),
    "bars": ("t|x\n0|1\n1|2\n", {}, ([0, 1], {"x": [1, 2]}), ""),
    "a delimiter of two letters": ("t::x\n0::1\n", {"delimiter": "::"}, "one mark", ""),
    "a name in two lines": ('t,"a\nb [m]"\n0,1\n1,2\n', {}, ([0, 1], {"a b": [1, 2]}), ""),
    "a name that moves the cursor": ("t,\x1b[31mred\n0,1\n1,2\n", {}, ([0, 1], {"[31mred": [1, 2]}), ""),
    "newest first": ("t,x\n2,1\n1,2\n0,3\n", {}, ([0, 1, 2], {"x": [3, 2, 1]}), "runs backwards"),
    "out of order": ("t,x\n0,1\n2,2\n1,3\n", {}, r"row 4 of .* \(t=1\) comes after row 3", ""),
}  # fmt: skip


def check_notes(notes: list[str], words: str) -> None:
    import re

    assert not words or any(re.search(words, note) for note in notes), notes


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_are_read_exactly_or_refused(tmp_path, name):
    text, options, want, words = NUMBERS[name]
    path = tmp_path / "table.csv"
    path.write_text(text, "utf-8")
    if isinstance(want, str):
        with pytest.raises(ValueError, match=want):
            reading(path, Options(**options))
        return
    found = reading(path, Options(**options))
    series = found.series[0]
    values = np.where(series.mask[:, 0], series.values[:, 0], NAN)
    np.testing.assert_array_equal(values, want)
    check_notes(found.notes, words)


@pytest.mark.parametrize("name", DATES)
def test_dates_are_read_exactly_or_refused(tmp_path, name):
    cells, options, want, words = DATES[name]
    path = tmp_path / "table.csv"
    path.write_text(dated(*cells), "utf-8")
    if isinstance(want, str):
        with pytest.raises(ValueError, match=want):
            reading(path, Options(**options))
        return
    found = reading(path, Options(**options))
    check_times(found.series[0], want)
    check_notes(found.notes, words)


def check_times(series, want: list) -> None:
    if isinstance(want[0], str):
        assert series.calendar is not None
        assert list(series.calendar.dates(series.times)) == list(pd.to_datetime(want, format="ISO8601"))
    else:
        assert series.calendar is None
        np.testing.assert_array_equal(series.times, want)


@pytest.mark.parametrize("name", TABLES)
def test_files_are_read_exactly_or_refused(tmp_path, name):
    content, options, want, words = TABLES[name]
    path = tmp_path / "table.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    if isinstance(want, str):
        with pytest.raises(ValueError, match=want):
            reading(path, Options(**options))
        return
    found = reading(path, Options(**options))
    series = found.series[0]
    check_times(series, want[0])
    assert series.channels == tuple(want[1])
    values = np.where(series.mask, series.values, NAN)
    np.testing.assert_array_equal(values.T, list(want[1].values()))
    check_notes(found.notes, words)


def test_they_are_more_than_a_hundred_and_twenty():
    assert len(NUMBERS) + len(DATES) + len(TABLES) >= 120
