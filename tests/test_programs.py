"""Programs kept between processes: found again only for the same code, shapes and settings, and no different from new ones."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import subprocess
import sys

import equinox as eqx
import jax
import numpy as np
import pytest

import arcta
from arcta.datasets import lotka_volterra, pendulum_video
from arcta.model import build, summarise
from arcta.objective import Objective, TrainingData
from arcta.programs import _Foreign, _name, kept
from arcta.train import start, take_steps
from arcta.windows import windows_of

RUN = """
import json, sys
import jax
import arcta, arcta.objective
compiled = []
def note(event, seconds, *, fun_name="", **about):
    if event.endswith("backend_compile_duration") and fun_name == "jit(_kept_steps)":
        compiled.append(1)
jax.monitoring.register_event_duration_secs_listener(note)
from arcta.cli import compilation_cache
if "cache" in sys.argv:
    compilation_cache()
traced, elbo = [], arcta.objective.elbo
def counted(*arguments, **options):
    traced.append(1)
    return elbo(*arguments, **options)
arcta.objective.elbo = counted
data = arcta.datasets.lotka_volterra(seed=5, duration=6.0)
model = arcta.LatentSDE(decoder="identity", encoder="window", partition_size=8)
fit = arcta.fit(model, data, training=arcta.Training(steps=4, log_every=1), progress=False)
print(json.dumps({"traced": len(traced), "compiled": len(compiled), "losses": [row["loss"] for row in fit.history]}))
"""


def test_a_second_process_reads_what_the_first_has_traced_and_trains_the_same(tmp_path):
    def run(*words: str) -> dict[str, object]:
        environment = {**os.environ, "ARCTA_CACHE": str(tmp_path), "PYTHONWARNINGS": "ignore"}
        command = [sys.executable, "-c", RUN, *words]
        said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
        return json.loads(said.splitlines()[-1])

    alone, first, second = run(), run("cache"), run("cache")
    (kept,) = (tmp_path / "compiled").glob("*.trace")
    kept.write_bytes(kept.read_bytes()[:100])
    third, fourth = run("cache"), run("cache")
    assert [bool(each["traced"]) for each in (alone, first, second, third, fourth)] == [True, True, False, True, False]
    for each in (first, second, third, fourth):
        assert each["losses"] == alone["losses"]
        assert each["compiled"] <= 1
    assert alone["compiled"] == 1


def arguments(spec=arcta.LatentSDE(decoder="identity"), *, seed=0, data=None, objective=Objective(), **training):
    series = [lotka_volterra(seed=1, duration=12.0) if data is None else data]
    summary = summarise(spec, series)
    model = build(spec, summary, key=jax.random.key(seed))
    shape = {"size": summary.partition_size, "lookahead": model.encoder.lookahead, "margin": summary.margin}
    drawn = TrainingData(windows_of(series, summary.scaling, **shape))
    options = arcta.Training(**training)
    return objective, options, start(model, options, key=jax.random.key(seed)), drawn, jax.device_put(np.int32(1))


def test_a_name_is_that_of_all_a_trace_depends_on():
    same = {_name(take_steps, arguments(seed=seed)) for seed in (0, 1)}
    assert len(same) == 1
    spec = arcta.LatentSDE(decoder="identity")
    others = [
        arguments(dataclasses.replace(spec, activation="tanh")),
        arguments(dataclasses.replace(spec, drift_sizes=(8,))),
        arguments(dataclasses.replace(spec, rotation=False)),
        arguments(dataclasses.replace(spec, likelihood="student-t")),
        arguments(dataclasses.replace(spec, decoder="mlp")),
        arguments(learning_rate=1e-4),
        arguments(objective=Objective(kl_weight=0.5)),
        arguments(data=lotka_volterra(seed=1, duration=40.0)),
        arguments(arcta.LatentSDE(latent_size=2), data=pendulum_video(duration=2.0, size=16).series),
    ]
    names = [_name(take_steps, each) for each in others]
    with jax.default_matmul_precision("highest"):
        names.append(_name(take_steps, arguments()))
    assert len({*names, *same}) == len(others) + 2


def test_code_of_others_has_no_name():
    class Mine(eqx.Module):
        weight: jax.Array

    loss, training, state, data, stop = arguments()
    for foreign in (Mine(state.step), lambda x: x, np.sin, functools.partial(jax.nn.gelu, approximate=False)):
        with pytest.raises(_Foreign):
            _name(take_steps, (loss, training, eqx.tree_at(lambda s: s.model, state, foreign), data, stop))


def test_what_cannot_be_kept_is_traced_as_ever(tmp_path, monkeypatch):
    def doubled(state, x):
        return state, {"value": jax.pure_callback(lambda x: 2 * x, jax.ShapeDtypeStruct((), x.dtype), x)}

    monkeypatch.setattr("arcta.programs._name", lambda function, arguments: "callback.trace")
    folder = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    try:
        _, told = jax.jit(lambda x: kept(doubled, (x, x), like=x))(np.float32(3.0))
    finally:
        jax.config.update("jax_compilation_cache_dir", folder)
    assert float(told["value"]) == 6.0
    assert not list(tmp_path.glob("*.trace"))
