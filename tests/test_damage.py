"""Damaged runs: refused in one sentence or loaded bit for bit as they were, never anything between.

python -m pytest tests/test_damage.py -q -s -m ''        prints the table of damages, tried and failed
"""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import msgspec
import numpy as np
import pytest

import arcta
from arcta.data.seasons import Season as Period
from arcta.linear.components import Level, Rough, Season
from arcta.linear.learn import LinearModel
from arcta.linear.scales import Scale
from arcta.linear.structure import Candidate, Structure
from arcta.linear.together import Together
from arcta.model.build import build
from arcta.model.reading import read_data
from arcta.task.run import Stored, read_run
from arcta.training.bundle import _seal
from arcta.training.checkpoint import read_history, write_history

Files = dict[str, bytes]
Random = np.random.Generator


def some_structure(series: arcta.Series) -> Structure:
    model = LinearModel((Level(40.0), Season(40.0, 12.0)), np.linspace(-1, 1, 5), -np.inf, 0.1 * np.eye(5))
    forms = (("identity", 0.6), ("root", 0.4))
    alone = tuple(
        tuple(Candidate(Scale.fit(form, x + 2), model, share) for form, share in forms) for x in series.values.T
    )
    shared = Together((Rough(40.0),), np.zeros(1), np.ones((1, 2, 2)), np.zeros(2), 0.5)
    periods = (Period(12.0, 1, float("nan")),)
    return Structure(alone, 1.0, periods, np.zeros(1), np.ones(1), np.array([0.1, -0.2]), np.array([9, 9]), shared)


def some_fit(seed: int = 0, steps: int = 7) -> arcta.Fit:
    """All that a run can hold: several channels, an input, dates, an ensemble, a structure, a history."""
    times = np.arange(40.0)
    rng = np.random.default_rng(seed)
    values = np.stack([np.sin(times), np.cos(times)], axis=1) + 0.1 * rng.standard_normal((40, 2))
    calendar = arcta.Calendar("2024-01-01T00:00:00", "h", "Europe/Berlin")
    series = arcta.Series(
        times, values, channels=["a", "ß"], inputs=np.cos(times)[:, None], input_names=["u"], calendar=calendar
    )
    spec = arcta.LatentSDE(
        decoder="identity", encoder="window", partition_size=10, encoder_sizes=(3,), drift_sizes=(3,), kernel_sizes=(2,),
        season=(12.0,),
    )  # fmt: skip
    layout, reading = read_data(spec, series)
    model, other = (build(spec, layout, reading, key=jax.random.key(seed + i)) for i in (0, 1))
    rows = [{"step": step, "loss": 0.1 * step, "seconds": 1.5} for step in range(1, steps)]
    return arcta.Fit(
        spec, layout, reading, model, arcta.Training(steps=steps), [series], rows, others=(other,), cuts={"series": 30.0},
        about={"seed": seed, "evidence": {"structure": 1.5}}, structure=some_structure(series), by_structure=True,
    )  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run saved once, on a file system in memory where there is one: it is damaged many times."""
    folder = tmp_path_factory.mktemp("damage") / "run"
    some_fit().save(folder)
    return folder


def content(folder: Path) -> Files:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def put(folder: Path, files: Files, before: Files) -> None:
    """Make the folder hold these files; what does not differ from `before` is there already."""
    for name in before.keys() - files.keys():
        (folder / name).unlink()
    for name, data in files.items():
        if before.get(name) is not data:
            (folder / name).write_bytes(data)


def told(stored: Stored) -> bytes:
    """All that was loaded, as bytes."""
    arrays = [array for part in stored.weights for _, array in sorted(part.items())]
    arrays += [getattr(item, name) for item in stored.context for name in ("times", "values", "mask", "inputs")]
    words = msgspec.json.encode(stored.header) + repr((stored.layout, stored.reading, stored.structure)).encode()
    return words + b"".join(array.tobytes() for array in arrays)


# What can happen to files ----------------------------------------------------------------------------------------------


def flip(files: Files, rng: Random) -> None:
    name = str(rng.choice(sorted(files)))
    data = bytearray(files[name])
    for _ in range(rng.integers(1, 4)):
        data[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
    files[name] = bytes(data)


def cut(files: Files, rng: Random) -> None:
    name = str(rng.choice(sorted(files)))
    data, at = files[name], int(rng.integers(len(files[name])))
    files[name] = data[:at] if rng.random() < 0.5 else data[at:]


def scribble(files: Files, rng: Random) -> None:
    """A run of bytes replaced by others, by zeros, by a copy of what is elsewhere; or inserted."""
    name = str(rng.choice(sorted(files)))
    data, at, size = files[name], int(rng.integers(len(files[name]))), int(rng.integers(1, 64))
    elsewhere = int(rng.integers(len(data)))
    new = (rng.bytes(size), bytes(size), data[elsewhere : elsewhere + size])[rng.integers(3)]
    files[name] = data[:at] + new + data[at + (len(new) if rng.random() < 0.7 else 0) :]


def swap(files: Files, rng: Random) -> None:
    one, other = (str(name) for name in rng.choice(sorted(files), 2, replace=False))
    files[one], files[other] = files[other], files[one]


def copy_over(files: Files, rng: Random) -> None:
    one, other = (str(name) for name in rng.choice(sorted(files), 2, replace=False))
    files[one] = files[other]


def lose(files: Files, rng: Random) -> None:
    for name in rng.choice(sorted(files), rng.integers(1, 3), replace=False):
        del files[str(name)]


STRANGE = [
    None,
    True,
    -1,
    0,
    1,
    2,
    1e300,
    -1e300,
    10**30,
    0.5,
    "",
    "..",
    "../secret",
    "nan",
    [],
    {},
    [[]],
    {"user": "f"},
    [1, "a"],
]


def places(value: Any, found: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Every container and key in a tree of JSON."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in list(items):
        found.append((value, key))
        places(item, found)
    return found


def change_field(files: Files, rng: Random) -> None:
    """A field of the header with another value, gone, renamed or doubled; its checksum stays."""
    header = json.loads(files["model.json"])
    for _ in range(rng.integers(1, 3)):
        where = places(header, [])
        inside, key = where[rng.integers(len(where))]
        change = rng.integers(5)
        if change < 2:
            other, name = where[rng.integers(len(where))]
            new = STRANGE[rng.integers(len(STRANGE))] if change else other[name]
            inside[key] = json.loads(json.dumps(new))
        elif isinstance(inside, list):
            inside.insert(key, inside[key])
        else:
            inside[f"{key}x"] = inside[key]
        if change > 2:
            del inside[key]
    files["model.json"] = json.dumps(header, indent=1).encode() + b"\n"


def forge_field(files: Files, rng: Random) -> None:
    """The same by someone who knows the format: the checksum is made anew."""
    change_field(files, rng)
    header = json.loads(files["model.json"])
    header.pop("checksum", None)
    files["model.json"] = _seal(header)


DAMAGES: dict[str, Callable[[Files, Random], None]] = {
    "bits flipped": flip,
    "cut off": cut,
    "bytes overwritten or inserted": scribble,
    "files swapped": swap,
    "files copied over others": copy_over,
    "files lost": lose,
    "fields of the header changed": change_field,
}
FORGERIES = {"fields changed, checksum forged": forge_field}


def wrong_with(folder: Path, whole: set[bytes], *, any_result: bool = False) -> str:
    """What is wrong with loading: another exception than a ValueError in one line, or another result; empty if nothing is."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = told(read_run(folder))
        except ValueError as error:
            long = len(str(error)) > 600 or "\n" in str(error)
            return f"not a ValueError's sentence: {error!r}"[:300] if type(error) is not ValueError or long else ""
        except BaseException as error:
            return f"{type(error).__name__}: {error}"[:300]
    return "" if any_result or found in whole else "something else was loaded"


def damage(
    folder: Path, copy: Path, counts: dict[str, int], *, any_result: bool = False
) -> dict[str, tuple[int, list[str]]]:
    """Damage a copy of the run so many times in each way."""
    shutil.copytree(folder, copy)
    whole, good = {told(read_run(folder))}, content(copy)
    rows: dict[str, tuple[int, list[str]]] = {}
    for name, count in counts.items():
        failed = []
        for seed in range(count):
            files = dict(good)
            {**DAMAGES, **FORGERIES}[name](files, np.random.default_rng(seed))
            put(copy, files, good)
            wrong = wrong_with(copy, whole, any_result=any_result)
            failed += [f"seed {seed}: {wrong}"] if wrong else []
            put(copy, good, {k: v for k, v in files.items() if good.get(k) is v})
        rows[name] = count, failed
    return rows


def tell(rows: dict[str, tuple[int, list[str]]]) -> None:
    print(f"\n{'damage':<52} {'tried':>7} {'failed':>7}")
    for name, (tried, failed) in rows.items():
        print(f"{name:<52} {tried:>7} {len(failed):>7}")
    assert not {name: failed[:5] for name, (_, failed) in rows.items() if failed}


def test_damage_is_refused_or_changes_nothing(run, tmp_path):
    tell(damage(run, tmp_path / "copy", dict.fromkeys(DAMAGES, 100)))


def test_forged_fields_raise_nothing_but_value_errors(run, tmp_path):
    tell(damage(run, tmp_path / "copy", dict.fromkeys(FORGERIES, 400), any_result=True))


@pytest.mark.slow
def test_damage_a_hundred_thousand_times(run, tmp_path):
    tell(damage(run, tmp_path / "copy", dict.fromkeys(DAMAGES, 15_000)))


@pytest.mark.slow
def test_forged_fields_by_the_thousand(run, tmp_path):
    tell(damage(run, tmp_path / "copy", dict.fromkeys(FORGERIES, 20_000), any_result=True))


def test_where_there_is_a_save_before_it_is_loaded_with_a_warning(run, tmp_path):
    """Damage to the newest of two saves: that one, or the one before and a warning; arrays of both are never mixed."""
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    before = told(read_run(folder))
    some_fit(1, steps=9).save(folder)
    newest, good = told(read_run(folder)), content(folder)
    for seed in range(150):
        files = dict(good)
        rng = np.random.default_rng(seed)
        (flip, cut, scribble, lose, change_field)[rng.integers(5)](files, rng)
        put(folder, files, good)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                found = told(read_run(folder))
            except ValueError:
                assert sum(good[name] != files.get(name) for name in good) > 1, "one damaged file leaves the other save"
            else:
                assert found == newest or (found == before and "previous save was loaded" in str(caught[0].message)), (
                    seed
                )
        put(folder, good, {k: v for k, v in files.items() if good.get(k) is v})


def test_a_hundred_damages_through_load(run, tmp_path):
    """The whole way, the model included: the forecasts are those of before."""
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    good = content(copy)

    def weights(folder: Path) -> list[np.ndarray]:
        return [np.asarray(leaf) for leaf in jax.tree.leaves(eqx.filter(arcta.load(folder).members, eqx.is_array))]

    expected, loaded = weights(run), 0
    for seed in range(100):
        files, rng = dict(good), np.random.default_rng(seed)
        list({**DAMAGES, **FORGERIES}.values())[seed % 8](files, rng)
        put(copy, files, good)
        try:
            found = weights(copy)
        except ValueError:
            pass
        else:
            loaded += 1
            assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))
        put(copy, good, {k: v for k, v in files.items() if good.get(k) is v})
    assert 0 < loaded < 60


def test_damaged_lines_of_the_log_are_left_out(tmp_path):
    """A run of before version 3 and a resumed one read their history from the log, of which what is whole is taken."""
    rows = [{"step": step, "loss": 1.0 / step, "validation": float("nan")} for step in range(1, 30)]
    write_history(tmp_path, rows)
    path = tmp_path / "history.jsonl"
    good, known = path.read_bytes(), {repr(row) for row in rows}
    assert [repr(row) for row in read_history(tmp_path)] == [repr(row) for row in rows]
    for seed in range(300):
        files = {"history.jsonl": good}
        rng = np.random.default_rng(seed)
        (flip, cut, scribble)[rng.integers(3)](files, rng)
        path.write_bytes(files["history.jsonl"])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = [repr(row) for row in read_history(tmp_path)]
        assert set(found) <= known
        assert len(caught) <= 1
        lines = files["history.jsonl"].split(b"\n")
        assert caught or len(found) == sum(map(bool, lines))
    path.write_bytes(good.replace(b", ", b",\xff ", 1))
    with pytest.warns(UserWarning, match="1 of 29 lines are damaged"):
        assert len(read_history(tmp_path)) == 28
    path.write_bytes(b"[" * 200_000 + b"\n" + good)
    with pytest.warns(UserWarning, match="1 of 30 lines"):
        assert len(read_history(tmp_path)) == 29


# The format before ----------------------------------------------------------------------------------------------------


def write_version_2(folder: Path, saves: list[Path]) -> None:
    """The files that arcta wrote before: names that stay, no checksum of the header, the save before as `*.previous.*`."""
    folder.mkdir()
    for newest, run in enumerate(saves, 1 - len(saves)):
        previous = "" if newest == 0 else ".previous"
        header = json.loads((run / "model.json").read_bytes())
        rows, _ = header.pop("history"), header.pop("checksum")
        header["structure"]["periods"][0][2] = float("nan")
        header["structure"]["channels"][0][0]["evidence"] = -float("inf")
        sums = {}
        for stem, named in header.pop("files").items():
            data = next(run.glob(f"{stem}-{named['sha256'][:32]}*")).read_bytes()
            (folder / f"{stem}{previous}.safetensors").write_bytes(data)
            sums[f"{stem}.safetensors"] = named["sha256"]
        text = json.dumps({**header, "version": 2, "sha256": sums}, indent=1, ensure_ascii=False)
        (folder / f"model{previous}.json").write_text(text, "utf-8")
        (folder / "history.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_runs_of_the_format_before_load_fall_back_and_are_saved_anew(run, tmp_path):
    old, second = tmp_path / "old", tmp_path / "second"
    some_fit(1, steps=9).save(second)
    write_version_2(old, [run, second])
    expected, first = arcta.load(second), arcta.load(run)
    loaded = arcta.load(old)
    assert loaded.history == expected.history
    assert loaded.training == expected.training
    assert repr(loaded.structure) == repr(expected.structure)
    times = np.arange(40.0, 44.0)
    inputs = np.zeros((4, 1))
    same = [fit.forecast(times, inputs=inputs, num_samples=10).observations for fit in (loaded, expected)]
    np.testing.assert_array_equal(*same)
    (old / "model.json").write_bytes((old / "model.json").read_bytes()[:-200])
    with pytest.warns(UserWarning, match="previous save was loaded"):
        assert arcta.load(old).training == first.training
    first.save(old)
    expected.save(old)
    assert arcta.load(old).training == expected.training
    assert not list(old.glob("weights.*"))
    assert len(list(old.glob("*.safetensors"))) == 6, "those of two saves, each of two members and a context"


def test_damage_to_the_format_before_raises_nothing_but_value_errors(run, tmp_path):
    """Its header has no checksum: what is still of the right kind is believed."""
    old, copy = tmp_path / "old", tmp_path / "copy"
    write_version_2(old, [run])
    shutil.copytree(old, copy)
    good = content(copy)
    for seed in range(200):
        files, rng = dict(good), np.random.default_rng(seed)
        (flip, cut, scribble, swap, lose, change_field)[seed % 6](files, rng)
        put(copy, files, good)
        assert not wrong_with(copy, set(), any_result=True), seed
        put(copy, good, {k: v for k, v in files.items() if good.get(k) is v})
