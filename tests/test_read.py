"""Readers: the same numbers in every format give the same series; awkward files work or fail with one clear sentence."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import arcta
from arcta.data.calendar import Calendar
from arcta.data.read import describe, reading
from arcta.data.readers.source import Options

TIMES = np.arange(12) * 0.5
LEVEL = np.round(np.sin(TIMES), 4)
COUNT = np.array([3, 0, 2, 5, 1, 0, 4, 2, 2, 1, 0, 3])
GAP = 4


def frame() -> pd.DataFrame:
    table = pd.DataFrame({"time [s]": TIMES, "level [m]": LEVEL, "count": COUNT.astype("int32"), "gate": COUNT > 2})
    table.loc[GAP, "level [m]"] = np.nan
    return table


def check(series: arcta.Series, *, unit: str = "s") -> None:
    assert series.channels == ("level", "count", "gate")
    np.testing.assert_allclose(series.times, TIMES)
    np.testing.assert_allclose(series.values[series.mask[:, 0], 0], np.delete(LEVEL, GAP), atol=1e-6)
    np.testing.assert_array_equal(series.values[:, 1], COUNT)
    assert not series.mask[GAP, 0]
    assert series.mask.sum() == 35
    assert series.time_unit == unit


def write(folder: Path, name: str, text: str, encoding: str = "utf-8") -> Path:
    path = folder / name
    path.write_bytes(text.encode(encoding))
    return path


def csv(**options) -> str:
    return frame().to_csv(index=False, **options)


@pytest.mark.parametrize(
    "kind", ["csv", "tsv", "semicolon", "bom", "utf16", "parquet", "float32", "frame", "index", "zarr", "xarray", "npz"]
)
def test_every_format_gives_the_same_series(tmp_path, kind):
    if kind == "csv":
        source = write(tmp_path, "a.csv", csv())
    elif kind == "tsv":
        source = write(tmp_path, "a.tsv", csv(sep="\t"))
    elif kind == "semicolon":
        source = write(tmp_path, "a.csv", csv(sep=";"))
    elif kind == "bom":
        source = write(tmp_path, "a.csv", csv(), "utf-8-sig")
    elif kind == "utf16":
        source = write(tmp_path, "a.csv", csv(), "utf-16")
    elif kind == "parquet":
        source = tmp_path / "a.parquet"
        frame().to_parquet(source)
    elif kind == "float32":
        source = tmp_path / "a.parquet"
        frame().astype({"level [m]": "float32", "time [s]": "float32"}).to_parquet(source)
    elif kind == "frame":
        source = frame()
    elif kind == "index":
        source = frame().set_index("time [s]")
    elif kind in ("zarr", "xarray"):
        pytest.importorskip("xarray")
        source = frame().rename(columns={"time [s]": "time", "level [m]": "level"}).set_index("time").to_xarray()
        source["level"].attrs["units"] = "m"
        if kind == "zarr":
            pytest.importorskip("zarr")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                source.to_zarr(tmp_path / "a.zarr")
            source = tmp_path / "a.zarr"
    else:
        source = tmp_path / "a.npz"
        table = frame()
        np.savez(source, time=TIMES, level=table["level [m]"], count=COUNT, gate=table["gate"])
    names = ["level", "count", "gate"] if kind == "zarr" else None  # a store has no order of its own
    series = (
        arcta.read(source, time_unit="s", channels=names) if kind in ("zarr", "xarray", "npz") else arcta.read(source)
    )
    check(series)
    if kind != "npz":
        assert series.units[0] == "m"


def test_npz_with_values_may_stack_series(tmp_path):
    values = np.random.default_rng(0).normal(size=(3, 12, 2))
    np.savez(tmp_path / "p.npz", times=TIMES, values=values, channels=["a", "b"], names=["x", "y", "z"])
    panel = arcta.read(tmp_path / "p.npz")
    assert [item.name for item in panel] == ["x", "y", "z"]
    np.testing.assert_array_equal(panel[1].values, values[1])


def test_decimal_commas_are_recognised_and_can_be_said(tmp_path):
    path = write(tmp_path, "a.csv", csv(sep=";", decimal=","))
    check(arcta.read(path, decimal=","))
    with pytest.warns(UserWarning, match=r"row 2, column 'time' of a.csv holds '0,0'.*decimal commas"):
        check(arcta.read(path))


def test_long_and_panel_tables(tmp_path):
    wide = frame().rename(columns={"time [s]": "time", "level [m]": "level"}).drop(columns="gate")
    panel = pd.concat([wide.assign(site="north"), wide.assign(site="south", level=-wide["level"])])
    north, south = arcta.read(panel, series="site")
    assert (north.name, south.name) == ("north", "south")
    np.testing.assert_array_equal(north.values[:, 0], -south.values[:, 0])
    long = panel.melt(id_vars=["time", "site"], var_name="what", value_name="reading")
    again = arcta.read(long.sort_values(["site", "time"]), series="site", variable="what", value="reading", time="time")
    np.testing.assert_array_equal(again[1].values, south.values)
    np.testing.assert_array_equal(again[1].mask, south.mask)
    with pytest.raises(ValueError, match="series='site'"):
        arcta.read(panel)


def test_what_is_left_out_is_said(tmp_path):
    table = frame()
    table.insert(0, "", np.arange(12))
    table["remark"] = "fine"
    text = table.to_csv(index=False).splitlines()
    text = ["# made by hand", *text[:6], text[0], *text[6:], ",,,,,", ",,,,,"]
    found = reading(write(tmp_path, "a.csv", "\n".join(text)), Options())
    check(found.series[0])
    said = " ".join(found.notes)
    for word in ("comments", "numbers the rows", "'remark'", "repeats of the header", "are empty"):
        assert word in said
    with pytest.warns(UserWarning, match="remark"):
        arcta.read(tmp_path / "a.csv")


def test_duplicate_header_is_renamed_and_said(tmp_path):
    found = reading(write(tmp_path, "a.csv", "t,x,x\n0,1,2\n1,2,3\n2,4,5\n"), Options())
    assert found.series[0].channels == ("x", "x.2")
    assert "several columns called 'x'" in found.notes[0]


def test_sentinels_by_option_and_suspected_without(tmp_path):
    path = write(tmp_path, "a.csv", "t,x\n" + "\n".join(f"{i},{-999 if i == 5 else i % 3}" for i in range(20)))
    assert not arcta.read(path, missing=-999).mask[5, 0]
    with pytest.warns(UserWarning, match="holds -999 in 1 rows"):
        assert arcta.read(path).mask[5, 0]


def test_one_column_without_times_is_numbered(tmp_path):
    series = arcta.read(write(tmp_path, "a.csv", "x\n1\n\n4\n"), time="row")
    np.testing.assert_array_equal(series.times, [0, 1])
    np.testing.assert_array_equal(series.values[:, 0], [1, 4])


def test_backwards_tables_are_turned_round():
    with pytest.warns(UserWarning, match="backwards"):
        series = arcta.read(frame()[::-1].reset_index(drop=True))
    np.testing.assert_array_equal(series.times, TIMES)


# Dates ---------------------------------------------------------------------------------------------------------------


def test_time_zones_and_daylight_saving_are_elapsed_time_and_come_back():
    dates = pd.date_range("2024-03-31", periods=6, freq="h", tz="Europe/Berlin")  # 02:00 does not exist that night
    series = arcta.read(pd.DataFrame({"x": np.arange(6.0)}, index=dates))
    np.testing.assert_array_equal(series.times, np.arange(6.0))
    assert series.time_unit == "h"
    assert series.to_frame().index.equals(dates.rename("time"))
    assert series.calendar is not None
    np.testing.assert_allclose(series.calendar.numbers(["2024-03-31 08:00+02:00"]), [7.0 - 0.0 - 0.0])


def test_mixed_offsets_are_one_time_line(tmp_path):
    path = write(
        tmp_path,
        "a.csv",
        "when,x\n2024-10-27T02:30:00+02:00,1\n2024-10-27T02:30:00+01:00,2\n2024-10-27T03:30:00+01:00,3\n",
    )
    with pytest.warns(UserWarning, match="mixes the offsets"):
        series = arcta.read(path)
    np.testing.assert_array_equal(series.times, [0, 1, 2])
    with pytest.warns(UserWarning, match="shown in Europe/Berlin"):
        local = arcta.read(path, time_zone="Europe/Berlin")
    assert str(local.to_frame().index[0]) == "2024-10-27 02:30:00+02:00"


def test_clocks_set_back_need_a_zone(tmp_path):
    rows = [
        f"2024-10-27 {h:02d}:{m:02d},{i}"
        for i, (h, m) in enumerate([(1, 30), (2, 0), (2, 30), (2, 0), (2, 30), (3, 0)])
    ]
    path = write(tmp_path, "a.csv", "date,x\n" + "\n".join(rows))
    with pytest.raises(ValueError, match=r"row 5 of a.csv .*time_zone="):
        arcta.read(path)
    series = arcta.read(path, time_zone="Europe/Berlin")
    np.testing.assert_array_equal(series.times, np.arange(6) * 30.0)
    assert series.time_unit == "min"


def test_some_dates_with_and_some_without_zone_are_refused(tmp_path):
    path = write(tmp_path, "a.csv", "date,x\n2024-01-01T00:00:00+01:00,1\n2024-01-01T01:00:00,2\n")
    with pytest.raises(ValueError, match=r"row 3, column 'date' of a\.csv"):
        arcta.read(path)


@pytest.mark.parametrize(("freq", "unit"), [("D", "d"), ("15min", "min"), ("250ms", "ms"), ("7D", "d")])
def test_dates_are_counted_in_the_unit_of_their_step(freq, unit):
    dates = pd.date_range("2024-01-01", periods=5, freq=freq)
    series = arcta.read(pd.DataFrame({"date": dates, "x": range(5)}))
    assert series.time_unit == unit
    assert series.to_frame().index.equals(pd.DatetimeIndex(dates, freq=None).rename("time"))


def test_calendar_of_new_data_is_brought_to_the_model():
    early = arcta.Series([0.0, 1.0], [1.0, 2.0], calendar=Calendar("2024-01-01", "d"))
    hours = arcta.Series([0.0, 24.0], [1.0, 2.0], calendar=Calendar("2024-01-02", "h"))
    np.testing.assert_allclose(hours.on(early.calendar, "d").times, [1.0, 2.0])
    with pytest.raises(ValueError, match="counts time in dates"):
        arcta.Series([0.0, 1.0], [1.0, 2.0]).on(early.calendar, "d")


# Frames --------------------------------------------------------------------------------------------------------------


def test_folder_of_frames(tmp_path):
    from PIL import Image

    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, size=(4, 8, 12), dtype=np.uint8)
    for number, picture in zip((1, 2, 10, 3), pixels, strict=True):
        Image.fromarray(picture).save(tmp_path / f"frame_{number}.png")
    (tmp_path / "readme.txt").write_text("x")
    with pytest.warns(UserWarning, match="not .png"):
        series = arcta.read(tmp_path)
    assert series.frame_shape == (8, 12)
    np.testing.assert_array_equal(series.times, [1, 2, 3, 10])
    np.testing.assert_allclose(series.values[3].reshape(8, 12), pixels[2] / 255)
    Image.fromarray(pixels[0][:4]).save(tmp_path / "frame_11.png")
    with pytest.raises(ValueError, match=r"frame_11.png is \(4, 12\)"):
        arcta.read(tmp_path)


# Bad input -----------------------------------------------------------------------------------------------------------

BAD = {
    "nothing": (None, {}, "nothing is at"),
    "empty file": ("", {}, "is empty"),
    "header only": ("t,x\n", {}, "no rows"),
    "no header": ("0,1\n1,2\n", {}, "needs a header"),
    "wrong delimiter": ("t,x\n0,1\n1,2\n", {"delimiter": ";"}, "one column with the delimiter ';'"),
    "missing column": ("t,x\n0,1\n1,2\n", {"time": "when"}, "no column 'when'.*its columns are t, x"),
    "missing input": ("t,x\n0,1\n1,2\n", {"inputs": "u"}, "no column 'u'"),
    "empty column": ("t,x,y\n0,1,\n1,2,\n", {}, "column 'y' of bad.csv is empty in all 2 rows"),
    "words": ("t,x\n0,1\n1,two\n2,3\n3,4\n", {}, "row 3, column 'x' of bad.csv holds 'two'"),
    "no time": ("a,b\n1,2\n3,4\n", {}, "no column that is clearly the time"),
    "time missing": ("t,x\n0,1\n,2\n2,3\n", {}, "row 3 of bad.csv has none in column 't'"),
    "time repeats": ("t,x\n0,1\n1,2\n1,3\n", {}, r"row 4 of bad.csv \(t=1\) repeats row 3"),
    "input gap": ("t,x,u\n0,1,1\n1,2,\n", {"inputs": "u"}, "row 3, column 'u' of bad.csv is missing"),
    "long row": ("t,x\n0,1\n1,2,3,4\n", {}, "row 3"),
    "bad date": ("date,x\n2024-01-01,1\n2024-13-45,2\n2024-01-03,3\n", {"time": "date"}, "row 3, column 'date'"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_get_one_sentence(tmp_path, name):
    text, options, message = BAD[name]
    path = tmp_path / "bad.csv"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ValueError, match=message):
        arcta.read(path, **options)


def test_damaged_binary_files_are_named(tmp_path):
    for name in ("a.parquet", "a.npz", "a.csv"):
        (tmp_path / name).write_bytes(b"PK\x00\x01 not what it says \x00\xff")
        with pytest.raises(ValueError, match=name):
            arcta.read(tmp_path / name)
    (tmp_path / "a.xlsx").write_bytes(b"x")
    with pytest.raises(ValueError, match="suffix"):
        arcta.read(tmp_path / "a.xlsx")


def test_summary_in_words():
    text = describe(reading(frame(), Options()).series, ["a note"])
    for word in (
        "12 rows",
        "step 0.5 s, regular",
        "level [m]: real, 92% observed",
        "count: counts",
        "gate: binary",
        "a note",
    ):
        assert word in text


MONTHLY = {
    "first days": (pd.date_range("1949-01-01", periods=30, freq="MS"), "month", "1951-08-01"),
    "last days": (pd.date_range("2019-02-28", periods=30, freq="ME"), "month", "2021-09-30"),
    "the 28th": ([pd.Timestamp("2019-02-28") + pd.DateOffset(months=i) for i in range(20)], "month", "2020-11-28"),
    "noon of the 15th, some missing": (
        pd.date_range("2020-01-01", periods=30, freq="MS").delete([3, 4, 9]) + pd.Timedelta("14d 12h"),
        "month",
        "2022-08-15 12:00",
    ),
    "quarters": (pd.date_range("2000-03-31", periods=12, freq="QE"), "quarter", "2003-06-30"),
    "years": (pd.date_range("1900-07-01", periods=12, freq="YS-JUL"), "year", "1913-07-01"),
    "months in a zone": (pd.date_range("2020-01-01", periods=30, freq="MS", tz="Europe/Berlin"), "month", "2022-08-01"),
}


@pytest.mark.parametrize("name", MONTHLY)
def test_months_quarters_and_years_are_steps_of_the_calendar(name):
    """Equal steps, there and back, and a forecast two steps on comes on the day one expects."""
    dates, unit, two_on = MONTHLY[name]
    dates = pd.DatetimeIndex(dates)
    series = arcta.read(pd.DataFrame({"x": np.arange(len(dates), dtype=float)}, index=dates))
    assert series.time_unit == unit
    assert np.array_equal(np.round(series.times, 9), np.round(series.times))
    assert (series.calendar.dates(series.times) == dates).all()
    assert series.calendar.dates(series.times[-1:] + 2)[0].tz_localize(None) == pd.Timestamp(two_on)


@settings(max_examples=60, deadline=None)
@given(
    origin=st.datetimes(pd.Timestamp("1950-01-01"), pd.Timestamp("2050-01-01")),
    unit=st.sampled_from(["month", "quarter", "year"]),
    steps=st.lists(st.floats(-500, 500), min_size=1, max_size=5),
)
def test_any_time_in_months_comes_back(origin, unit, steps):
    calendar = Calendar(origin.replace(microsecond=0).isoformat(), unit)
    again = calendar.numbers(calendar.dates(steps))
    np.testing.assert_allclose(again, steps, atol=2e-6)  # of a month: a second is 4e-7
    assert calendar.numbers([calendar.origin])[0] == pytest.approx(0, abs=1e-9)


def test_days_that_are_not_of_one_month_day_are_counted_in_days():
    for dates in (
        pd.date_range("2020-01-06", periods=9, freq="7D"),
        pd.date_range("2020-01-30", periods=9, freq="30D"),
    ):
        series = arcta.read(pd.DataFrame({"x": np.arange(9.0)}, index=dates))
        assert series.time_unit == "d"
