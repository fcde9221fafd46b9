"""Series, splits, scaling and windows: guarantees, and one clear sentence for everything that breaks them."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import arcta
from arcta.data.scaling import Scaling
from arcta.data.series import as_list
from arcta.data.windows import WindowShape, windows_of
from arcta.model.reading import read_data
from arcta.runtime.compile import compile_lightly

UNSCALED = Scaling(0.0, 1.0, np.zeros(1), np.ones(1), np.zeros(0), np.ones(0))


def fit(model, data, **options):
    return arcta.fit(model, data, training=arcta.Training(steps=1), progress=False, **options)


COMPILED: list[str] = []  # names of programs, but for those that make random keys


def note(event: str, seconds: float, *, fun_name: str = "", **about: object) -> None:
    if event.endswith("backend_compile_duration") and not fun_name.startswith(("jit(_threefry", "jit(stage")):
        COMPILED.append(fun_name)


jax.monitoring.register_event_duration_secs_listener(note)


GOOD = arcta.Series(np.arange(10.0), np.sin(np.arange(10.0)))
COUNTS = arcta.Series(np.arange(4.0), [1, 2, -1, 0])

BAD = {
    "unsorted": (
        lambda: arcta.Series([0, 2, 1], [1, 2, 3], name="lynx"),
        r"row 2 \(t=1\) comes after row 1 \(t=2\) in series 'lynx'",
    ),
    "repeated": (lambda: arcta.Series([0, 1, 1], [1, 2, 3]), r"row 2 \(t=1\) repeats row 1"),
    "nan time": (lambda: arcta.Series([0, np.nan, 2], [1, 2, 3]), "row 1 .* t=nan"),
    "infinite value": (
        lambda: arcta.Series([0, 1], [[1, 2], [np.inf, 3]], channels=["a", "b"]),
        "row 1, channel 'a' .* is inf",
    ),
    "empty": (lambda: arcta.Series([], []), "at least one observation"),
    "all missing": (lambda: arcta.Series([0, 1], [np.nan, np.nan]), "at least one observed value"),
    "lone observation": (lambda: fit(arcta.LatentSDE(), arcta.Series([0.0], [1.0])), "at least two observations"),
    "channel never seen": (
        lambda: fit(arcta.LatentSDE(), arcta.Series([0, 1, 2], [[1, np.nan]] * 3, channels=["a", "b"])),
        "channel 'b' is missing in all rows",
    ),
    "lengths differ": (lambda: arcta.Series([0, 1, 2], [1, 2]), "3 times and 2 rows"),
    "strings": (lambda: arcta.Series([0, 1], [["1.0"], ["oops"]]), "row 1 .* 'oops'"),
    "string times": (lambda: arcta.Series(["a", "b"], [1, 2]), "observation times must be numbers; row 0 .* 'a'"),
    "ragged values": (lambda: arcta.Series([0, 1], [[1, 2], [3]]), "rows of different lengths"),
    "latent size": (lambda: arcta.LatentSDE(latent_size=0), "latent_size must be at least 1; got 0"),
    "negative counts": (
        lambda: fit(arcta.LatentSDE(likelihood="poisson"), COUNTS),
        "poisson .* row 2, channel 'x0' .* is -1",
    ),
    "not binary": (lambda: fit(arcta.LatentSDE(likelihood="bernoulli"), GOOD), "bernoulli .* 0 or 1; row 1"),
    "unknown likelihood": (lambda: arcta.LatentSDE(likelihood="normal"), "one of auto, gaussian"),
    "likelihood of no channel": (lambda: fit(arcta.LatentSDE(likelihood={"y": "poisson"}), GOOD), "channel 'y'"),
    "unknown decoder": (lambda: arcta.LatentSDE(decoder="cnn"), "decoder must be one of"),
    "identity size": (
        lambda: fit(arcta.LatentSDE(decoder="identity", latent_size=3), GOOD),
        r"number of channels \(1\)",
    ),
    "known inputs": (
        lambda: arcta.Series([0, 1], [1, 2], inputs=[1, np.nan], input_names=["wind"]),
        "row 1 .* input 'wind'",
    ),
    "mask of another shape": (lambda: arcta.Series([0, 1], [1, 2], mask=[True]), "one boolean for each entry"),
    "names": (lambda: arcta.Series([0, 1], [1, 2], channels=["a", "b"]), "one name for each of the 1 columns"),
    "same name twice": (lambda: fit(arcta.LatentSDE(), [GOOD, GOOD]), "'series' occurs twice"),
    "different channels": (
        lambda: fit(arcta.LatentSDE(), [GOOD, arcta.Series([0, 1], [1, 2], channels=["y"], name="b")]),
        "same channels",
    ),
    "not a series": (lambda: as_list([np.zeros(3)]), "list of Series; got ndarray"),
    "no series": (lambda: fit(arcta.LatentSDE(), []), "at least one series"),
    "split beyond": (lambda: arcta.split(GOOD, time=99.0), "nothing is observed after t=99"),
    "split fraction": (lambda: arcta.split(GOOD, at=80.0), "between 0 and 1; got 80"),
    "steps": (lambda: arcta.Training(steps=0), "steps must be at least 1"),
    "parameters without drift": (lambda: arcta.LatentSDE(parameters={"a": arcta.Normal(0.0, 1.0)}), "drift function"),
    "frames of odd size": (
        lambda: fit(
            arcta.LatentSDE(likelihood="gaussian"), arcta.Series([0, 1], np.random.default_rng(0).random((2, 5, 8)))
        ),
        "divisible by 4",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_gets_one_sentence_before_anything_compiles(case):
    make, message = BAD[case]
    COMPILED.clear()
    with pytest.raises(ValueError, match=message) as caught:
        make()
    assert COMPILED == []
    assert len(str(caught.value).splitlines()) == 1


def test_that_would_have_been_noticed():
    def one_more(x):
        return x + 1

    COMPILED.clear()
    assert compile_lightly(one_more)(np.float32(1.0)) == 2.0
    assert "jit(one_more)" in COMPILED


def test_what_is_no_error_is_a_warning():
    still = arcta.Series(np.arange(5.0), np.stack([np.arange(5.0), np.ones(5)], 1), channels=["moves", "still"])
    with pytest.warns(UserWarning, match="1 of 2 channels never vary .*still"):
        scaling = read_data(arcta.LatentSDE(partition_size=4), still)[0].scaling
    assert scaling.scale[1] == pytest.approx(1e-6)
    with pytest.warns(UserWarning, match=r"partition_size 128 is beyond the longest series \(10 observations\)"):
        assert read_data(arcta.LatentSDE(partition_size=128), GOOD)[0].partition_size == 10
    lone = arcta.Series([3.0], [0.4], name="lone")
    with pytest.warns(UserWarning, match="1 of 2 series hold a single observation"):
        layout, _ = read_data(arcta.LatentSDE(partition_size=8), [GOOD, lone])
    windows = windows_of([GOOD, lone], layout.scaling, WindowShape(8, 1))
    assert windows.scored.sum() == 11


def test_a_series_without_inputs_can_be_shortened_and_given_some():
    series = arcta.Series(np.arange(6.0), np.ones((6, 1)))
    assert len(series.replace(times=series.times[:3], values=series.values[:3])) == 3
    assert series.replace(inputs=np.ones((6, 1))).input_names == ("u0",)


def test_series_guarantees():
    series = arcta.Series([0, 1, 2], [[1, np.nan], [2, 5], [3, 6]], mask=[[True, True], [True, False], [True, True]])
    assert series.mask.tolist() == [[True, False], [True, False], [True, True]]
    assert series.values[~series.mask].tolist() == [0, 0]
    with pytest.raises(ValueError, match="read-only"):
        series.values[0] = 1
    assert np.isnan(series.to_frame().to_numpy()).sum() == 2


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(2, 12), st.integers(0, 3), st.integers(0, 2**31))
def test_windows_tile_the_series(n, size, lookahead, seed):
    """Every observation is scored once, in order; intervals meet without gap or overlap; only the first is first."""
    rng = np.random.default_rng(seed)
    times = np.cumsum(rng.uniform(0.1, 1.0, n))
    values = rng.standard_normal(n)
    windows = windows_of([arcta.Series(times, values)], UNSCALED, WindowShape(size, lookahead))
    scored = np.asarray(windows.values)[np.asarray(windows.scored)][:, 0]
    np.testing.assert_allclose(scored, values, rtol=1e-6)
    starts, ends = np.asarray(windows.start, float), np.asarray(windows.start + windows.end, float)
    np.testing.assert_allclose(starts[1:], ends[:-1], rtol=1e-5)
    assert starts[0] == pytest.approx(times[0], rel=1e-6)
    assert ends[-1] == pytest.approx(times[-1], rel=1e-5)
    assert windows.first.tolist() == [True] + [False] * (len(starts) - 1)
    counts = np.asarray(windows.scored).sum(axis=1)
    assert n < 2 or counts.min() >= 2
    assert np.all(np.diff(windows.times, axis=1) > 0)
    rows = size + 1 + lookahead
    assert windows.times.shape[1] == rows


def test_long_series_keep_their_resolution_in_float32():
    times = 1e9 + 1e-3 * np.arange(300)
    scaling = Scaling(1e9, 1.0, np.zeros(1), np.ones(1), np.zeros(0), np.ones(0))
    windows = windows_of([arcta.Series(times, np.arange(300.0))], scaling, WindowShape(64))
    np.testing.assert_allclose(np.diff(windows.times[-1][windows.node[-1]]), 1e-3, rtol=1e-3)


def test_inputs_keep_their_own_grid_and_are_interpolated():
    from arcta.parts.sde import interpolate_inputs

    times = np.arange(12.0)
    values = np.where(times % 3 == 0, times, np.nan)  # inputs are known where nothing is observed
    series = arcta.Series(times, values, inputs=times**2)
    scaling = Scaling(0.0, 1.0, np.zeros(1), np.ones(1), np.zeros(1), np.ones(1))
    windows = windows_of([series], scaling, WindowShape(2, 0))
    second = jax.tree.map(lambda leaf: jax.numpy.asarray(leaf[1]), windows)
    for t, expected in ((0.0, 36.0), (0.5, 42.5), (1.0, 49.0)):
        value = interpolate_inputs(jax.numpy.array(t), second.input_times, second.inputs)
        assert float(value[0]) == pytest.approx(expected)


def test_split_by_time_never_at_random():
    before, after = arcta.split(GOOD, at=0.5)
    assert before.times.max() < after.times.min()
    pairs = arcta.split([GOOD, arcta.Series(np.arange(20.0), np.arange(20.0), name="b")], at=0.8)
    assert [len(part) for part in pairs[0]] == [8, 16]


def test_mocap_loader_checks_its_file(tmp_path):
    with pytest.raises(ValueError, match="nothing is at"):
        arcta.datasets.mocap(tmp_path / "mocap35.mat")
    (tmp_path / "mocap35.mat").write_bytes(b"something else")
    with pytest.raises(ValueError, match="sha256 differs"):
        arcta.datasets.mocap(tmp_path / "mocap35.mat")


def test_four_species_against_the_printed_equations():
    """The drift at one state, by hand from the paper's equations and the constants in MATH.md."""
    rate = arcta.datasets.four_species_drift(np.array([1.0, 0.5, 0.2, 0.4]))
    prey = [1.0 * (0.3 - 0.6 * 0.2 - 0.3 * 0.4) * (1 - 1 / 1.5), 0.5 * (0.3 - 0.3 * 0.2 - 0.6 * 0.4) * (1 - 0.5 / 1.5)]
    predators = [0.2 * (-1 + 0.6 * 1 + 0.3 * 0.5 - 0.05 * 0.4), 0.4 * (-1 + 0.3 * 1 + 0.6 * 0.5 + 0.025 * 0.2)]
    np.testing.assert_allclose(rate, [*prey, *predators], rtol=1e-12)


def test_pendulum_film_shows_the_pendulum():
    """Energy is kept, the period at 90° is 7.4163, and each frame's centre of mass points along the rod."""
    film = arcta.datasets.pendulum_video(duration=15.0)
    angle, velocity = film.states.T
    np.testing.assert_allclose(0.5 * velocity**2 - np.cos(angle), 0.0, atol=1e-4)
    turns = film.series.times[1:][(velocity[:-1] < 0) & (velocity[1:] >= 0)]
    assert turns[1] - turns[0] == pytest.approx(7.4163, abs=1 / 15)
    frames = film.series.values.reshape(-1, 32, 32)
    assert set(np.unique(frames)) == {0.0, 1.0}
    y, x = np.mgrid[:32, :32] - 15.5
    mass = frames.sum(axis=(1, 2))
    seen = np.arctan2((frames * x).sum(axis=(1, 2)) / mass, (frames * y).sum(axis=(1, 2)) / mass)
    np.testing.assert_allclose(seen, angle, atol=0.12)
