"""What people get wrong, answered before anything is compiled in one sentence: what is needed, what was got, what to do."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import arcta
from arcta.model.build import build
from arcta.model.reading import read_data

SERIES = arcta.datasets.lotka_volterra(duration=4.0)
DAYS = pd.date_range("2024-01-01", periods=40, freq="D")
TABLE = pd.DataFrame({"date": DAYS, "sales": np.arange(40.0), "visits": np.sin(np.arange(40.0))})
QUICK = arcta.Training(steps=1, num_draws=1, num_times=2)
OWN = {"decoder": "identity", "partition_size": 16, "encoder": "window"}
COMPILED: list[str] = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, seconds, **_: COMPILED.append(event) if "backend_compile" in event else None
)


@pytest.fixture(scope="module", autouse=True)
def keys():
    """What making keys and models compiles; it is little."""
    untrained(SERIES).forecast(1, num_samples=2)
    heated()


def untrained(data, **options):
    """A `Fit` nobody has trained: what is refused, it refuses before it computes."""
    spec = arcta.LatentSDE(**{"encoder": "window", "partition_size": 16, **options})
    layout, reading = read_data(spec, data)
    return arcta.Fit(spec, layout, reading, build(spec, layout, reading, key=jax.random.key(0)), QUICK, [data], [])


def fit(data, **options):
    return arcta.fit(data, model=arcta.LatentSDE(**options), training=QUICK, progress=False)


def own(drift, **options):
    return lambda: fit(SERIES, **OWN, drift=drift, **options)


def table(**columns):
    return TABLE.assign(**columns)


@functools.cache
def heated():
    return untrained(arcta.read(table(heat=1.0 + np.arange(40)), inputs="heat"))


LINEAR = {"k": arcta.LogNormal(1.0, 1.0)}
DATED, PLAIN = arcta.read(TABLE), SERIES
# name: what is done, what is needed, what was got, what to do instead
MISTAKES = {
    # data
    "a column that is not there": (
        lambda: arcta.read(TABLE, channels=["Sale"]), "its columns are date, sales", "no column 'Sale'", "Use one of",
    ),
    "no time among the columns": (
        lambda: arcta.fit(TABLE.drop(columns="date")), "column that is clearly the time", "columns are sales, visits",
        "time=.*arcta.read",
    ),
    "unsorted times": (
        lambda: arcta.fit(TABLE.iloc[[0, 2, 1, 3]]), "times must increase", r"2024-01-02.*comes after.*2024-01-03", "Sort",
    ),
    "repeated times": (lambda: arcta.Series([0, 1, 1], [1, 2, 3]), "must increase", r"row 2 \(t=1\) repeats row 1", "merge"),
    "values that are words": (
        lambda: arcta.Series([0, 1], ["low", "high"]), "values must be numbers", "row 0 .* 'low'", "Convert it",
    ),
    "a column of words asked for": (
        lambda: arcta.read(table(site="north"), channels=["site"]), "not numbers", "'site'.*'north'", "Leave it out",
    ),
    "an empty frame": (lambda: arcta.fit(TABLE.iloc[:0]), "no rows", "table", "Check that it was written"),
    "an empty list": (lambda: arcta.fit([]), "at least one series is needed", "got an empty list", "Pass one"),
    "a channel that is never observed": (
        lambda: arcta.fit(table(visits=np.nan)), "observed at least once", "'visits'.* is empty", "Drop it",
    ),
    "dates with and without a zone": (
        lambda: arcta.Series([DAYS[0], DAYS[1].tz_localize("UTC")], [1, 2]), "dates of one kind", "got 2024-01-01",
        "utc=True",
    ),
    "times and values of different lengths": (
        lambda: arcta.Series(np.arange(3), np.arange(4)), "same length", "3 times and 4 rows", "Make them match",
    ),
    "one observation": (lambda: arcta.fit(np.array([1.0])), "at least two observations", "has one", "Add later"),
    "something that is no data": (lambda: arcta.fit(3.0), "data must be a Series", "got float", "arcta.Series"),
    # fit
    "a model alone": (lambda: arcta.fit(arcta.LatentSDE()), "a model and data", "a model alone", r"arcta.fit\(data\)"),
    "a model after the data": (
        lambda: arcta.fit(SERIES, arcta.LatentSDE()), "a model and then data", "data before the model", "model=model",
    ),
    "a class in place of a model": (
        lambda: arcta.fit(arcta.LatentSDE, SERIES), "a model is needed", "the class LatentSDE", r"LatentSDE\(\)",
    ),
    "two series without a list": (lambda: arcta.fit(SERIES, SERIES), "a model and then data", "got Series", "one list"),
    "a setting that is misspelt": (
        lambda: arcta.LatentSDE(posterior="smoothed"), "one of auto, smoother", "got 'smoothed'", "Choose one",
    ),
    "a split in per cent": (lambda: arcta.split(SERIES, at=80), "between 0 and 1", "got 80", "at=0.8"),
    "a split at a date of numbers": (
        lambda: arcta.split(SERIES, at="2024-01-03"), "must be a number", "'2024-01-03'", "Give a number",
    ),
    "a split at no date": (lambda: arcta.split(DATED, at=pd.NaT), "must be a date", "got NaT", "Give one"),
    "a split outside": (
        lambda: arcta.split(DATED, at="2025-01-01"), "need an observation", "spans 2024-01-01", "Move the cut",
    ),
    # forecasts
    "a unit that is misspelt": (
        lambda: untrained(DATED).forecast("12moths"), "a unit out of .*month", "got '12moths'", "Write e.g.",
    ),
    "a negative horizon": (lambda: untrained(DATED).forecast(-3), "horizon must be positive", "got -3", "number of steps"),
    "a span of days where times are numbers": (
        lambda: untrained(PLAIN.replace(time_unit="")).forecast("14d"), "counts time in numbers", "got the span '14d'",
        "as a number",
    ),
    "a date as text alone": (
        lambda: untrained(DATED).forecast("2024-03-01"), "is a horizon", "got the date '2024-03-01'", r"\['2024-03-01'\]",
    ),
    "neither times nor a horizon": (lambda: untrained(DATED).forecast(), "times or a horizon", "got neither", "'14d'"),
    "times before the end": (
        lambda: untrained(DATED).forecast(DAYS[:3]), "goes forward from .*2024-02-09", "got t=2024-01-01", "later times",
    ),
    "times that go back": (lambda: untrained(PLAIN).forecast([6.0, 5.0]), "increase", r"got \[6. 5.\]", "sort|Sort"),
    "a zone where the data has none": (
        lambda: untrained(DATED).forecast(pd.DatetimeIndex(["2024-03-01"], tz="UTC")), "no time zone", r"got '2024-03-01 .*\+00",
        "Leave the zone out",
    ),
    "dates where times are numbers": (
        lambda: untrained(PLAIN).smooth(None, ["2024-01-01"]), "must be numbers", "got .*2024-01-01", "Pass a list",
    ),
    "other channels": (
        lambda: untrained(DATED).forecast(3, given=TABLE.drop(columns="visits")), "its columns are date, sales",
        "no column 'visits'", "Use one of",
    ),
    "inputs left out": (lambda: heated().forecast(3), "predicting needs them", "inputs heat", r"inputs= with shape \(3, 1\)"),
    "inputs that end too soon": (
        lambda: heated().forecast(9, inputs=pd.DataFrame({"date": DAYS[-1:], "heat": [1.0]})), "future inputs",
        "end at 2024-02-09", "Give them up to",
    ),
    "inputs of another name": (
        lambda: heated().forecast(3, inputs=pd.DataFrame({"date": DAYS, "heating": 1.0})), "needs the future input 'heat'",
        "has date, heating", "Add that column",
    ),
    "a backtest longer than the data": (
        lambda: arcta.backtest(untrained(DATED), DATED, horizon="60d"), "a whole horizon", "horizon is 60", "shorter",
    ),
    # own code
    "a drift of three arguments": (
        own(lambda t, z, p: [z[1], -z[0]]), r"\(t, z, p, u\)", r"function of \(t, z, p\)", "Write def f",
    ),
    "a parameter that was not given": (
        own(lambda t, z, p, u: [p["k"] * z[1], p["c"] * z[0]], parameters=LINEAR), "uses the parameter 'c'", "with 'k'",
        "Add it",
    ),
    "a parameter as an attribute": (
        own(lambda t, z, p, u: [p.k * z[1], z[0]], parameters=LINEAR), "by their names", "got p.k", r"p\['k'\]",
    ),
    "one rate for two states": (own(lambda t, z, p, u: [z[1]]), "return 2 numbers", "got 1", r"Return \[rate0, rate1\]"),
    "a single number for two states": (own(lambda t, z, p, u: z[1]), "return 2 numbers", "a single number", "Return"),
    "a drift that returns nothing": (own(lambda t, z, p, u: None), "return 2 numbers", "got nothing", "Return"),
    "rates with an axis too many": (
        own(lambda t, z, p, u: z[:, None]), "return 2 numbers", r"got 2, of shape \(1,\)", "Return",
    ),
    "NumPy in a drift": (own(lambda t, z, p, u: [np.sin(z[1]), z[0]]), "jax.numpy", r"NumPy in line \d+", "jnp"),
    "if in a drift": (own(lambda t, z, p, u: z if z[0] > 0 else -z), "must not branch", "got if", "jnp.where"),
    "float in a drift": (own(lambda t, z, p, u: [float(z[1]), z[0]]), "JAX's numbers", r"float\(\)", "jnp.sin"),
    "a decoder of too few channels": (
        lambda: fit(SERIES, latent_size=3, decoder=lambda z: z[:1]), "return 2 numbers", "got 1", r"shape \(2,\)",
    ),
    "a decoder of NumPy": (
        lambda: fit(SERIES, latent_size=2, decoder=lambda z: np.exp(z)), "jax.numpy", "a function of NumPy", "jnp",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_answered_in_one_sentence(name):
    make, *parts = MISTAKES[name]
    COMPILED.clear()
    with pytest.raises(ValueError, match=r"\.$") as caught:
        make()
    said = str(caught.value)
    for part in parts:
        assert re.search(part, said), said
    assert "\n" not in said
    assert COMPILED == []


def test_plain_numbers_as_priors_are_one_too():
    """Without the types that the tests check."""
    code = "import arcta; arcta.LatentSDE(drift=lambda t, z, p, u: z, parameters={'k': 0.3})"
    home = str(Path(arcta.__file__).parents[1])
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": home}
    )
    assert re.search(r"ValueError: parameters need a prior each; got 0\.3 for 'k'\. Write .*Known\(0\.3\)", said.stderr)


def test_unpacking_more_states_than_there_are_is_one_too():
    def drift(t, z, p, u):
        x, y, w = z
        return [x, y, w]

    with pytest.raises(ValueError, match=r"a state of size 2; got 'not enough values .*' in line \d+ .*Unpack as many"):
        own(drift)()


def test_own_code_that_is_right_is_left_alone():
    """The same drift in three spellings, and modules with the methods of a drift."""
    series = arcta.Series(0.1 * np.arange(30), np.random.default_rng(0).standard_normal((30, 2)))
    for drift in (
        lambda t, z, p, u: [z[1], -p["k"] * z[0]],
        lambda t, z, p, u: jnp.stack([z[1], -p["k"] * z[0]]),
        lambda t, z, *rest: (z[1], -rest[0]["k"] * z[0]),
    ):
        spec = arcta.LatentSDE(decoder="identity", drift=drift, parameters=LINEAR, encoder="window", partition_size=16)
        layout, reading = read_data(spec, series)
        model = build(spec, layout, reading, key=jax.random.key(0))
        rate = model.drift(jnp.zeros(()), jnp.ones(2), jnp.zeros(0), model.drift.median())
        assert rate.shape == (2,)
