"""Series on disk: the same windows as in memory, drawn from everywhere, and a training that resumes on the same ones."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from stochastic import assert_counts

import arcta
from arcta.data.batches import Slots
from arcta.data.scaling import Scaling
from arcta.data.store import Feed
from arcta.data.windows import WindowShape, windows_of

SHAPE = WindowShape(16, 2, 3)


def on_disk(folder, rows: int, *, missing: float = 0.0, gap: slice | None = None):
    """A noisy rotation at irregular times, in memory and as two files."""
    rng = np.random.default_rng(0)
    times = np.cumsum(rng.uniform(0.05, 0.15, rows))
    values = np.stack([np.sin(times), np.cos(times)], axis=1) + 0.1 * rng.standard_normal((rows, 2))
    hidden = rng.random((rows, 2)) < missing
    hidden[:, 0] &= ~hidden[:, 1]  # some row always has a channel
    values[hidden] = np.nan
    if gap is not None:
        values[gap] = np.nan
    np.save(folder / "x.npy", values)
    np.save(folder / "t.npy", times)
    return arcta.Series(times, values, name="x"), arcta.store(folder / "x.npy", times=folder / "t.npy")


@pytest.mark.parametrize(("rows", "missing"), [(160, 0.3), (161, 0.3), (165, 0.3), (161, 0.0)])
def test_windows_are_those_of_the_series_in_memory(rows, missing, tmp_path):
    series, stored = on_disk(tmp_path, rows, missing=missing)
    scaling = Scaling.fit([series], np.ones(2, bool))
    whole = windows_of([series], scaling, SHAPE)
    assert stored.num_partitions(16) == len(whole.first)
    several, enough = stored.windows(np.arange(len(whole.first))[::-1], scaling, SHAPE)
    assert enough.all()
    for i in range(len(whole.first)):
        one = stored.window(i, scaling, SHAPE)
        for a, b in zip(jax.tree.leaves(several), jax.tree.leaves(one), strict=True):
            np.testing.assert_array_equal(a[-1 - i], b[0])
        for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(whole), strict=True):
            np.testing.assert_allclose(
                np.where(np.isfinite(a[0]), a[0], 0), np.where(np.isfinite(b[i]), b[i], 0), rtol=1e-6
            )


def test_a_feed_draws_from_the_whole_file_and_repeats_itself(tmp_path):
    """Every partition equally often (chi-squared); a piece is a function of seed and number."""
    series, stored = on_disk(tmp_path, 320)
    scaling = Scaling.fit([series], np.ones(2, bool))
    slots = Slots.over(stored.num_partitions(SHAPE.size), 4)
    feed = Feed(stored, scaling, SHAPE, slots, observed=640.0, seed=3, steps=50)
    starts = np.concatenate([np.asarray(feed.at(50 * piece).windows.start).ravel() for piece in range(10)])
    _, counts = np.unique(starts, return_counts=True)
    assert len(counts) == 20
    assert_counts(counts, np.full(20, 0.05), detects=0.25)
    again = Feed(stored, scaling, SHAPE, slots, observed=640.0, seed=3, steps=50)
    np.testing.assert_array_equal(again.at(449).windows.values, feed.at(400).windows.values)
    assert not np.array_equal(feed.at(400).windows.start, feed.at(450).windows.start)


def test_training_from_disk_resumes_and_forecasts(tmp_path):
    """A long outage in the middle is passed over; stopped and resumed training ends bit for bit where unbroken training does."""
    series, stored = on_disk(tmp_path, 3000, missing=0.2, gap=slice(1000, 1400))
    spec = arcta.LatentSDE(encoder="window", latent_size=2, partition_size=32, encoder_sizes=(8,), drift_sizes=(8,))
    training = arcta.Training(steps=60, log_every=20, checkpoint_every=20, batch_size=2)
    fit = arcta.fit(spec, stored, training=training, progress=False, out=tmp_path / "whole")
    assert fit.history[-1]["loss"] < fit.history[0]["loss"]
    assert not fit.reading.whole_rows, "only a sample of the file has been looked at"
    with pytest.raises(KeyboardInterrupt):
        _interrupted(spec, stored, training, tmp_path / "cut")
    resumed = arcta.fit(spec, stored, training=training, progress=False, out=tmp_path / "cut", resume=True, key=5)
    for a, b in zip(jax.tree.leaves(resumed.model), jax.tree.leaves(fit.model), strict=True):
        np.testing.assert_array_equal(a, b)
    ahead = arcta.load(tmp_path / "whole").forecast(series.times[-1] + np.arange(1, 4), num_samples=4)
    assert np.isfinite(ahead.observations).all()


def _interrupted(spec, data, training, out):
    """Training that dies right after its second checkpoint."""
    from arcta.training.checkpoint import Recorder

    count, real = [0], Recorder.checkpoint

    def checkpoint(self, *arguments):
        real(self, *arguments)
        count[0] += 1
        if count[0] == 2:
            raise MemoryError

    Recorder.checkpoint = checkpoint
    try:
        arcta.fit(spec, data, training=training, progress=False, out=out)
    except MemoryError:
        raise KeyboardInterrupt from None
    finally:
        Recorder.checkpoint = real


def test_zarr_arrays(tmp_path):
    zarr = pytest.importorskip("zarr")
    values = np.sin(0.1 * np.arange(500))
    array = zarr.create_array(str(tmp_path / "x.zarr"), shape=values.shape, chunks=(100,), dtype="f8")
    array[:] = values
    stored = arcta.store(tmp_path / "x.zarr", step=0.1, start=5.0)
    np.testing.assert_allclose(stored.rows(95, 105).values[:, 0], values[95:105])
    np.testing.assert_allclose(stored.tail(3).times, 5 + 0.1 * np.arange(497, 500))


def test_bad_files_are_named(tmp_path):
    good = tmp_path / "good.npy"
    np.save(good, np.zeros((100, 2)))
    np.save(tmp_path / "columns.npy", np.asfortranarray(np.zeros((100, 2))))
    np.save(tmp_path / "words.npy", np.array(["a", "b", "c", "d"]))
    (tmp_path / "short.npy").write_bytes(good.read_bytes()[:-8])
    (tmp_path / "text.npy").write_text("1,2,3")
    np.save(tmp_path / "t.npy", np.arange(50.0))
    np.save(tmp_path / "empty.npy", np.full((200_000, 64), np.nan, np.float32))
    for name, options, message in (
        ("columns.npy", {"step": 1.0}, "column by column"),
        ("words.npy", {"step": 1.0}, "must hold rows of numbers"),
        ("short.npy", {"step": 1.0}, "cut short"),
        ("text.npy", {"step": 1.0}, "not a readable .npy"),
        ("none.npy", {"step": 1.0}, "no file"),
        ("good.npy", {}, "either step= "),
        ("good.npy", {"step": 0.0}, "must be positive"),
        ("good.npy", {"times": tmp_path / "t.npy"}, "one time for each of the 100 rows"),
    ):
        with pytest.raises(ValueError, match=message):
            arcta.store(tmp_path / name, **options)
    with pytest.raises(ValueError, match="no number at all"):
        arcta.fit(arcta.LatentSDE(), arcta.store(tmp_path / "empty.npy", step=1.0), progress=False)
    with pytest.raises(ValueError, match="leave holdout"):
        arcta.fit(arcta.LatentSDE(), arcta.store(good, step=1.0), holdout=0.2, progress=False)
