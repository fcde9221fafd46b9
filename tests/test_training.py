"""Training and saving: reproducible, resumable, honest about failure, and never half-written."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import arcta
from arcta.bound.elbo import drift_evaluations, elbo
from arcta.data.windows import WindowShape, windows_of
from arcta.model.build import build
from arcta.model.reading import read_data
from arcta.runtime import compile as compilation
from arcta.runtime.compile import LARGE, compile_for, compiler_options
from arcta.training import loop as training_module
from arcta.training.bundle import read_bundle, write_bundle
from arcta.training.loop import Hooks, State, TrainingDiverged, advance, start, train

DATA = arcta.datasets.lotka_volterra(seed=5, duration=12.0)
TRAIN, TEST = arcta.split(DATA, time=9.0)
SMALL = arcta.LatentSDE(
    decoder="identity",
    encoder="window",
    noise=0.01,
    lookahead=1,
    partition_size=30,
    encoder_sizes=(8,),
    drift_sizes=(8,),
    kernel_sizes=(4,),
)
SETTINGS = arcta.Training(
    steps=40, num_draws=1, num_times=4, log_every=10, validate_every=20, checkpoint_every=10, select="best"
)


def leaves(fit: arcta.Fit) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(eqx.filter(fit.model, eqx.is_array))]


def same(a: arcta.Fit, b: arcta.Fit) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(leaves(a), leaves(b), strict=True))


def test_same_seed_same_model_and_other_seed_another():
    fits = [arcta.fit(SMALL, TRAIN, key=key, training=SETTINGS, progress=False) for key in (3, 3, 4)]
    assert same(fits[0], fits[1])
    assert not same(fits[0], fits[2])


def test_resume_continues_bit_for_bit(tmp_path, monkeypatch):
    """Ctrl-C in the middle, then resume: the same weights, best model and history as without."""
    whole = arcta.fit(SMALL, TRAIN, key=1, validation=TEST, training=SETTINGS, out=tmp_path / "whole", progress=False)
    calls = {"n": 0}

    def interrupted(*arguments):
        calls["n"] += 1
        if calls["n"] == 4:  # one compiles, then two chunks of ten
            raise KeyboardInterrupt
        return advance(*arguments)

    monkeypatch.setattr(training_module, "advance", interrupted)
    part = arcta.fit(SMALL, TRAIN, key=1, validation=TEST, training=SETTINGS, out=tmp_path / "part", progress=False)
    monkeypatch.undo()
    assert part.stopped == "interrupted"
    assert part.history[-1]["step"] == 20
    assert len(part.history) < len(whole.history)
    options = {"key": 1, "validation": TEST, "training": SETTINGS, "out": tmp_path / "part", "progress": False}
    again = arcta.fit(SMALL, TRAIN, **options, resume=True)
    assert same(again, whole)
    strip = lambda rows: [{k: v for k, v in row.items() if k not in ("seconds", "check")} for row in rows]  # noqa: E731
    assert strip(again.history) == strip(whole.history)
    stored = [json.loads(line) for line in (tmp_path / "part" / "history.jsonl").read_text().splitlines()]
    assert strip(stored) == strip(whole.history)
    other = {**options, "training": dataclasses.replace(SETTINGS, learning_rate=1e-3)}
    with pytest.raises(ValueError, match="another training"):
        arcta.fit(SMALL, TRAIN, **other, resume=True)
    values = TRAIN.values.copy()
    values[[3, 4]] = values[[4, 3]]  # the same moments, other data
    swapped = arcta.Series(TRAIN.times, values, channels=TRAIN.channels, name=TRAIN.name, time_unit="s")
    with pytest.raises(ValueError, match=r"another (data|fingerprint)"):
        arcta.fit(SMALL, swapped, **options, resume=True)


@dataclasses.dataclass(frozen=True)
class Quadratic:
    """A loss with a known minimum, that may break at a step."""

    breaks_at: int | None = None
    gradient_only: bool = False

    def __call__(self, model, data, step, *, key):
        distance = jnp.sum((model - data) ** 2)
        bad = step == (-1 if self.breaks_at is None else self.breaks_at)
        if self.gradient_only:
            distance = distance + _nan_gradient(jnp.sum(model), bad)
            return distance, {"distance": jax.lax.stop_gradient(distance), "fine": jnp.ones(())}
        return distance, {"distance": jnp.where(bad, jnp.inf, distance), "fine": jnp.ones(())}


@jax.custom_jvp
def _nan_gradient(x, bad):
    return jnp.zeros_like(x)


@_nan_gradient.defjvp
def _(primals, tangents):
    return jnp.zeros_like(primals[0]), jnp.where(primals[1], jnp.nan, 0.0) * tangents[0]


def test_the_loop_is_generic_in_the_loss_and_finds_the_minimum():
    settings = arcta.Training(steps=800, learning_rate=0.05, log_every=100)
    target = jnp.array([1.0, -2.0])
    outcome = train(Quadratic(), start(jnp.zeros(2), settings, key=jax.random.key(0)), target, settings, progress=False)
    np.testing.assert_allclose(outcome.state.model, target, atol=1e-3)
    assert outcome.stopped == "finished"


def test_divergence_names_the_term_and_keeps_the_last_good_state():
    settings = arcta.Training(steps=50, log_every=10)
    saved = []
    begin = start(jnp.zeros(2), settings, key=jax.random.key(0))
    with pytest.raises(
        TrainingDiverged, match=r"stopped at step 24: distance is not finite.*after step 23 is kept"
    ) as caught:
        train(
            Quadratic(23),
            begin,
            jnp.ones(2),
            settings,
            progress=False,
            hooks=Hooks(on_checkpoint=lambda s, b: saved.append(int(s.step))),
        )
    good, _, _ = advance(Quadratic(), settings, begin, jnp.ones(2), jnp.array(23, jnp.int32))
    np.testing.assert_array_equal(caught.value.state.model, good.model)
    assert saved == [23]
    with pytest.raises(TrainingDiverged, match="the gradient"):
        train(Quadratic(5, gradient_only=True), begin, jnp.ones(2), settings, progress=False)


def test_a_diverging_fit_leaves_its_last_good_state_on_disk(tmp_path):
    wild = dataclasses.replace(SETTINGS, learning_rate=1e6, clip=1e9, steps=200)
    with pytest.raises(TrainingDiverged, match="not finite"):
        arcta.fit(SMALL, TRAIN, training=wild, out=tmp_path, progress=False)
    header, files = read_bundle(tmp_path / "checkpoint", "latest")
    assert all(
        np.isfinite(array).all()
        for name, array in files["latest"].items()
        if array.dtype.kind == "f" and "model" in name
    )
    assert header["step"] < 200


def test_early_stopping_and_best():
    scores = iter([3.0, 2.0, 2.5, 2.6, 9.0])
    settings = arcta.Training(steps=500, log_every=10, validate_every=10, patience=2)
    begin = start(jnp.zeros(2), settings, key=jax.random.key(0))
    outcome = train(
        Quadratic(),
        begin,
        jnp.ones(2),
        settings,
        hooks=Hooks(validate=lambda model: {"validation": next(scores)}),
        progress=False,
    )
    assert outcome.stopped == "early"
    assert int(outcome.state.step) == 40
    assert outcome.best.score == 2.0
    np.testing.assert_array_equal(
        outcome.best.model, advance(Quadratic(), settings, begin, jnp.ones(2), jnp.array(20, jnp.int32))[0].model
    )


def test_equal_settings_compile_once():
    """Many chunks, many seeds, one trace."""
    traces = []

    @dataclasses.dataclass(frozen=True)
    class Counted:
        def __call__(self, model, data, step, *, key):
            traces.append(1)
            return jnp.sum((model - data) ** 2), {"distance": jnp.sum(model)}

    settings = arcta.Training(steps=30, log_every=7)
    for seed in range(3):
        begin = start(jnp.asarray(np.zeros(2)) * 1.0, settings, key=jax.random.key(seed))
        train(Counted(), begin, jnp.ones(2), settings, progress=False)
    assert len(traces) == 1, "the shapes of the terms and the loop share it"


def test_large_models_are_compiled_thoroughly():
    small, large = (compile_for({"weights": jnp.zeros(n)}, jnp.sin) for n in (LARGE - 1, LARGE))
    assert small is compile_for({}, jnp.sin)
    assert large is not small
    np.testing.assert_allclose(large(jnp.ones(3)), jnp.sin(jnp.ones(3)))


def test_unknown_compiler_flags_are_left_out(monkeypatch):
    """A jaxlib without one of the flags compiles without it; other backends get none."""
    known = compilation.LIGHT
    assert compiler_options(thorough=False) == known
    monkeypatch.setattr(compilation, "LIGHT", {**known, "xla_cpu_no_such_flag": True})
    compiler_options.cache_clear()
    assert compiler_options(thorough=False) == known
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    compiler_options.cache_clear()
    assert compiler_options(thorough=False) is None
    monkeypatch.undo()
    compiler_options.cache_clear()


def test_drift_evaluations_are_counted_as_they_happen():
    counted = []

    def drift(t, z, p, u):
        jax.debug.callback(lambda _: counted.append(1), z)
        return [z[1], -z[0]]

    spec = dataclasses.replace(SMALL, drift=drift, rotation=False, posterior="amortised")
    layout, reading = read_data(spec, TRAIN)
    model = build(spec, layout, reading, key=jax.random.key(0))
    window = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), windows_of([TRAIN], layout.scaling, WindowShape(30, 1)))
    elbo(model, window, num_draws=2, num_times=3, key=jax.random.key(0)).path_kl.block_until_ready()
    jax.effects_barrier()
    assert len(counted) == drift_evaluations(model, 2, 3)[0] == 6
    fit = arcta.fit(dataclasses.replace(SMALL, posterior="amortised"), TRAIN, training=SETTINGS, progress=False)
    assert fit.history[-1]["drift_evaluations"] == 40 * 1 * 4
    assert fit.history[-1]["drift_derivatives"] == 40 * 4 * 2


def test_progress_is_plain_lines_when_not_a_terminal(capfd):
    arcta.fit(SMALL, TRAIN, training=SETTINGS)
    lines = capfd.readouterr().err.splitlines()
    assert lines[0] == "arcta: compiling, then 40 steps"
    assert lines[-1].startswith("step 40/40  loss ")
    assert "steps/s" in lines[-1]
    assert "s left" in lines[-1]


# ---- files --------------------------------------------------------------------------------------------------------


def test_save_and_load_give_the_same_forecast(tmp_path):
    fit = arcta.fit(SMALL, TRAIN, training=SETTINGS, progress=False)
    fit.save(tmp_path / "run")
    loaded = arcta.load(tmp_path / "run")
    np.testing.assert_array_equal(
        loaded.forecast(TEST.times, num_samples=8).signal, fit.forecast(TEST.times, num_samples=8).signal
    )
    assert loaded.history == fit.history
    assert repr(loaded) == repr(fit)
    assert {path.suffix for path in (tmp_path / "run").iterdir()} == {".json", ".safetensors", ".jsonl"}


def test_user_code_is_handed_back_never_stored(tmp_path):
    def physics(t, z, p, u):
        return [p["a"] * z[0] - z[0] * z[1], z[0] * z[1] - p["b"] * z[1]]

    spec = dataclasses.replace(
        SMALL, drift=physics, parameters={"a": arcta.LogNormal(1.0, 0.5), "b": arcta.LogNormal(1.0, 0.5)}
    )
    fit = arcta.fit(spec, TRAIN, training=SETTINGS, progress=False)
    fit.save(tmp_path)
    with pytest.raises(ValueError, match="drift of your own, 'physics'"):
        arcta.load(tmp_path)
    loaded = arcta.load(tmp_path, drift=physics)
    np.testing.assert_array_equal(loaded.parameters(), fit.parameters())
    assert list(fit.parameters().index[:2]) == ["a", "b"]


def run_folder(tmp_path):
    arcta.fit(SMALL, TRAIN, training=dataclasses.replace(SETTINGS, steps=2), progress=False).save(tmp_path)
    return tmp_path


def test_damaged_foreign_and_future_files_are_named(tmp_path):
    folder = run_folder(tmp_path)
    weights, header = next(folder.glob("weights-*.safetensors")), folder / "model.json"
    good_weights, good_header = weights.read_bytes(), header.read_text()
    flipped = bytearray(good_weights)
    flipped[-5] ^= 1
    weights.write_bytes(flipped)
    with pytest.raises(ValueError, match=r"weights-\w+\.safetensors is missing or damaged"):
        arcta.load(folder)
    weights.write_bytes(good_weights)
    header.write_text(good_header[:100])
    with pytest.raises(ValueError, match=r"model\.json is damaged"):
        arcta.load(folder)
    header.write_text('{"format": "other"}')
    with pytest.raises(ValueError, match="not written by arcta"):
        arcta.load(folder)
    header.write_text(good_header.replace('"version": 3', '"version": 99'))
    with pytest.raises(ValueError, match="format version 99"):
        arcta.load(folder)
    with pytest.raises(ValueError, match=r"holds no model\.json"):
        arcta.load(folder / "nowhere")


def test_a_damaged_save_falls_back_to_the_previous_one(tmp_path):
    first = arcta.fit(SMALL, TRAIN, key=1, training=dataclasses.replace(SETTINGS, steps=2), progress=False)
    second = arcta.fit(SMALL, TRAIN, key=2, training=dataclasses.replace(SETTINGS, steps=2), progress=False)
    first.save(tmp_path)
    second.save(tmp_path)
    assert same(arcta.load(tmp_path), second)
    (tmp_path / "model.json").write_text("{")
    with pytest.warns(UserWarning, match="previous save"):
        assert same(arcta.load(tmp_path), first)


def test_kill_during_a_save_leaves_a_whole_bundle(tmp_path):
    """SIGKILL at random moments of a process that does nothing but save: what is on disk always loads."""
    code = """
import sys, pathlib, numpy as np
from arcta.training.bundle import write_bundle
n = 0
while True:
    write_bundle(pathlib.Path(sys.argv[1]), "latest", {"n": n}, {"latest": {"x": np.full(200_000, n, np.float32)}})
    if n == 0: print("ready", flush=True)
    n += 1
"""
    rng = np.random.default_rng(0)
    for _ in range(6):
        process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(rng.uniform(0.05, 0.2))
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        header, files = read_bundle(tmp_path, "latest")
        assert np.all(files["latest"]["x"] == header["n"])


def test_bundles_hold_typed_keys(tmp_path):
    from arcta.training.checkpoint import from_arrays, to_arrays

    state = State(jnp.ones(3), (), jnp.zeros((), jnp.int32), jax.random.key(7))
    write_bundle(tmp_path, "b", {}, {"b": to_arrays(state)})
    back = from_arrays(
        State(jnp.zeros(3), (), jnp.ones((), jnp.int32), jax.random.key(0)),
        read_bundle(tmp_path, "b")[1]["b"],
        where="b",
    )
    assert jax.random.key_data(back.key).tolist() == jax.random.key_data(jax.random.key(7)).tolist()
    assert back.model.tolist() == [1, 1, 1]


def test_a_second_process_does_not_compile_the_training_loop_again(tmp_path):
    code = """
import jax, sys
misses = []
jax.monitoring.register_event_listener(lambda event, **_: misses.append(event) if event.endswith("cache_misses") else None)
import arcta
train, test = arcta.split(arcta.datasets.lotka_volterra(seed=5, duration=6.0), time=4.0)
model = arcta.LatentSDE(decoder="identity", encoder="window", partition_size=8)
fit = arcta.fit(model, train, training=arcta.Training(steps=4), progress=False)
fit.score(test, num_samples=4)
print(len(misses))
"""
    environment = {**os.environ, "ARCTA_CACHE": str(tmp_path), "PYTHONWARNINGS": "ignore"}
    runs = [
        subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        for _ in range(2)
    ]
    first, second = (int(run.stdout.splitlines()[-1]) for run in runs)
    assert first > 10
    assert second == 0
