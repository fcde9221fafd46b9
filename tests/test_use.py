"""What a user does: fit, forecast, smooth, sample, score, on one series, on a panel, with counts, inputs and frames."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from places import mocap_path
from stochastic import assert_estimate

import arcta
from arcta.data.windows import WindowShape, windows_of
from arcta.model.build import build
from arcta.model.reading import read_data
from arcta.parts.physics import ParametricDrift

QUICK = arcta.Training(steps=20, num_draws=1, num_times=4)
TINY = arcta.LatentSDE(  # the paper's encoder; the default one runs in test_cli.py
    encoder="window", decoder="mlp", partition_size=16, encoder_sizes=(8,), decoder_sizes=(8,), drift_sizes=(8,), kernel_sizes=(4,)
)  # fmt: skip


def quick(spec, data, **options):
    return arcta.fit(spec, data, training=QUICK, progress=False, **options)


def known_ou(rate=1.0, q=0.5, noise=0.1, *, times):
    """A Fit whose model is an OU process known exactly: what it predicts has closed forms."""
    series = arcta.datasets.ornstein_uhlenbeck(times, rate=rate, diffusion=q, noise=noise, seed=1)
    spec = arcta.LatentSDE(
        decoder="identity",
        encoder="window",
        noise=noise,
        drift=lambda t, z, p, u: [-rate * z[0]],
        lookahead=0,
        partition_size=16,
    )
    layout, reading = read_data(spec, series)
    model = build(spec, layout, reading, key=jax.random.key(0))
    scale = layout.scaling.scale**2 / layout.scaling.time_scale
    model = eqx.tree_at(lambda m: m.diffusion.level, model, arcta.Known(q / scale))
    return arcta.Fit(spec, layout, reading, model, QUICK, [series], []), series


def test_rows_that_lack_channels_are_pointed_out_to_a_model_of_whole_rows():
    values = np.random.default_rng(0).standard_normal((40, 2))
    series = arcta.Series(0.1 * np.arange(40), values)
    layout, reading = read_data(TINY, series)
    fit = arcta.Fit(TINY, layout, reading, build(TINY, layout, reading, key=jax.random.key(0)), QUICK, [series], [])
    values[37, 1] = np.nan
    with pytest.warns(UserWarning, match="some rows lack single channels"):
        ahead = fit.forecast([4.0, 4.1], given=arcta.Series(series.times, values), num_samples=4)
    assert np.isfinite(ahead.observations).all()


def test_forecast_has_the_closed_form_moments_of_an_ou_process():
    """Mean and variance of x after a horizon h, from N(m, s) at the last observation, in the user's units."""
    rate, q, noise = 0.8, 0.5, 0.1
    fit, series = known_ou(rate, q, noise, times=np.cumsum(np.random.default_rng(0).uniform(0.05, 0.3, 60)))
    ahead = series.times[-1] + np.array([0.1, 0.7, 2.0, 5.0])
    count = 20_000
    prediction = fit.forecast(ahead, num_samples=count, key=3)
    last = fit.smooth(series, [series.times[-1]], num_samples=count, key=4).states[:, 0, 0]
    decay = np.exp(-rate * (ahead - series.times[-1]))
    mean = decay * last.mean()
    variance = decay**2 * last.var() + q / (2 * rate) * (1 - decay**2)
    begun = decay**2 * last.var()  # where it starts is known from as many samples
    error = np.sqrt((variance + begun) / count)
    assert_estimate(prediction.mean[:, 0], mean, error=error, detects=10 * error + 1e-3, slack=1e-3)
    for found, exact in ((prediction.signal, variance), (prediction.observations, variance + noise**2)):
        error = np.sqrt(2 / count * (1 + (begun / exact) ** 2))
        assert_estimate(found[..., 0].var(axis=0) / exact, 1, error=error, detects=0.13)
    exact = -0.5 * np.log(2 * np.pi * (variance + noise**2)) - 0.5 * (0.3 - mean) ** 2 / (variance + noise**2)
    np.testing.assert_allclose(prediction.log_density(np.full((4, 1), 0.3))[:, 0], exact, atol=0.05)
    np.testing.assert_allclose(
        prediction.quantile(0.9, noise=False)[:, 0], mean + 1.2816 * np.sqrt(variance), atol=0.03
    )


def test_drift_in_the_users_units_and_solver_order():
    """A pendulum in its own units: the drift comes back as written, and halving the step quarters the error."""
    times = np.linspace(0, 10, 101)
    values = np.stack([np.sin(times), np.cos(times)], axis=1)
    spec = arcta.LatentSDE(
        decoder="identity",
        encoder="window",
        noise=0.01,
        drift=lambda t, z, p, u: [z[1], -z[0]],
        partition_size=50,
        lookahead=0,
        posterior="amortised",
    )
    layout, reading = read_data(spec, arcta.Series(1000 + times, 3 + 5 * values))
    model = build(spec, layout, reading, key=jax.random.key(0))
    quiet = eqx.tree_at(
        lambda m: (m.diffusion.level, m.encoder.log_variance), model, (arcta.Known(np.full(2, 1e-12)), jnp.array(-30.0))
    )
    quiet = eqx.tree_at(lambda m: m.kernel.log_noise, quiet, jnp.array(-30.0))
    series = arcta.Series(1000 + times, 3 + 5 * values)
    fit = arcta.Fit(spec, layout, reading, quiet, QUICK, [series], [])
    np.testing.assert_allclose(fit.drift([[4.0, 7.0]]), [[7.0, -4.0]], rtol=1e-4)
    errors = []
    end = series.values[-1]
    for step in (0.2, 0.1):
        state = fit.forecast([1010 + 2.0], max_step=step, num_samples=1).states[0, 0]
        turn = np.array([[np.cos(2.0), np.sin(2.0)], [-np.sin(2.0), np.cos(2.0)]])
        errors.append(np.abs(state - turn @ end).max())
    assert 1.7 < np.log2(errors[0] / errors[1]) < 2.3


def test_one_series_from_fit_to_plot(tmp_path):
    train, test = arcta.split(arcta.datasets.lotka_volterra(seed=2, duration=10.0), at=0.8)
    fit = quick(TINY, train, validation=test)
    forecast = fit.forecast(test.times, num_samples=32, key=1)
    frame = forecast.to_frame(quantiles=(0.1, 0.9))
    assert frame.index.name == "time [s]"
    assert list(frame.columns[:4]) == ["prey mean", "prey std", "prey q10", "prey q90"]
    assert np.all(frame["prey q10"] <= frame["prey q90"])
    np.testing.assert_array_equal(forecast.mean, fit.forecast(test.times, num_samples=32, key=1).mean)
    forecast.plot(truth=test, context=train).savefig(tmp_path / "forecast.png")
    assert (tmp_path / "forecast.png").stat().st_size > 10_000
    dense = fit.smooth(train, np.linspace(0, 7.9, 80), num_samples=16)
    assert dense.signal.shape == (16, 80, 2)
    fresh = fit.sample(np.linspace(0, 5, 11), num_samples=7)
    assert fresh.observations.shape == (7, 11, 2)
    scores = fit.score(test, num_samples=32)
    assert set(scores) == {"rmse", "crps", "log_density", "coverage_50", "coverage_90", "coverage_95"}
    assert list(scores.by_channel.index) == ["prey", "predator"]
    squares = (scores.by_channel["rmse"] ** 2).mean()
    assert scores["rmse"] == pytest.approx(np.sqrt(squares))
    assert {"validation", "join_kl_mean"} <= set(fit.history[-1])


def test_errors_in_use():
    train, test = arcta.split(arcta.datasets.lotka_volterra(seed=2, duration=10.0), at=0.8)
    fit = quick(TINY, train)
    other = arcta.Series([0.0, 1.0], [[1.0], [2.0]], channels=["temperature"])
    for call, message in (
        (lambda: fit.forecast([1.0]), "forward from the last observation .* t=8; got t=1"),
        (lambda: fit.forecast([9.0, 8.5]), "finite and increase"),
        (lambda: fit.forecast([]), "at least one"),
        (lambda: fit.forecast(["soon"]), "must be numbers"),
        (lambda: fit.forecast(test.times, num_samples=0), "num_samples must be at least 1"),
        (lambda: fit.forecast(test.times, given=other), "trained on channels"),
        (lambda: fit.forecast(test.times, inputs=[[1.0]]), "trained without inputs"),
        (lambda: fit.smooth(train, [50.0]), "inside the data"),
        (lambda: fit.score(renamed(test, "new")), "Pass given="),
        (lambda: fit.forecast(test.times).plot(channels=["lynx"]), "no channel 'lynx'"),
        (lambda: fit.forecast(test.times).quantile(90.0), "Use 0.9"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def renamed(series: arcta.Series, name: str) -> arcta.Series:
    return arcta.Series(series.times, series.values, channels=series.channels, name=name)


def test_panel_of_ragged_irregular_series_and_one_never_seen():
    rng = np.random.default_rng(0)

    def member(name, n):
        times = np.sort(rng.uniform(0, 10, n))
        values = np.stack([np.sin(times), np.cos(times)], 1) + 0.1 * rng.standard_normal((n, 2))
        values[rng.random(values.shape) < 0.3] = np.nan
        values[0] = 0.5
        return arcta.Series(times, values, name=name)

    panel = [member("a", 25), member("b", 40), member("c", 9), member("d", 1)]
    with pytest.warns(UserWarning, match="single observation"):
        fit = quick(TINY, panel, validation=member("e", 20))
    ahead = fit.forecast([11.0, 12.0], num_samples=5)
    assert set(ahead) == {"a", "b", "c", "d"}
    stranger = fit.forecast([11.0, 12.0], given=member("new", 30), num_samples=5)
    assert stranger.name == "new"
    assert np.isfinite(stranger.observations).all()
    times = {name: [20.0] for name in "abcd"}
    assert fit.forecast(times, num_samples=2)["c"].times.tolist() == [20.0]
    with pytest.raises(ValueError, match="say which to smooth"):
        fit.smooth()


def test_different_likelihoods_by_channel():
    rng = np.random.default_rng(0)
    times = np.linspace(0, 20, 120)
    signal = np.sin(times)
    values = np.stack(
        [rng.poisson(np.exp(1 + signal)), signal + 0.1 * rng.standard_t(3, 120), rng.random(120) < 0.5 + 0.4 * signal],
        1,
    )
    series = arcta.Series(times, values.astype(float), channels=["counts", "level", "alarm"])
    train, test = arcta.split(series, at=0.8)
    spec = dataclasses.replace(TINY, likelihood={"counts": "poisson", "level": "student-t", "alarm": "bernoulli"})
    fit = quick(spec, train)
    forecast = fit.forecast(test.times, num_samples=64)
    counts, _, alarm = np.moveaxis(forecast.observations, -1, 0)
    assert np.all(counts == np.round(counts))
    assert counts.min() >= 0
    assert set(np.unique(alarm)) <= {0.0, 1.0}
    assert np.isfinite(fit.score(test)["log_density"])
    assert fit.layout.scaling.scale[[0, 2]].tolist() == [1, 1]
    assert list(fit.parameters().index) == ["diffusion[z0]", "diffusion[z1]", "diffusion[z2]", "noise[level]"]


def test_known_inputs_reach_the_drift_and_forecasts_need_them():
    times = np.linspace(0, 10, 101)
    values = np.sin(times) + 0.05 * np.random.default_rng(0).standard_normal(101)
    series = arcta.Series(times, values, inputs=np.cos(times), input_names=["push"])
    train, test = arcta.split(series, at=0.8)
    fit = quick(TINY, train)
    with pytest.raises(ValueError, match="inputs push"):
        fit.forecast(test.times)
    one, two = (fit.forecast(test.times, inputs=sign * test.inputs, num_samples=4, key=1).mean for sign in (1, -5))
    assert not np.allclose(one, two)
    assert np.isfinite(fit.score(test, num_samples=8)["crps"])
    assert fit.sample([0.0, 1.0], inputs=[[0.0], [1.0]], num_samples=2).signal.shape == (2, 2, 1)
    # A context that knows inputs beyond its last observation: the knots stay in order, and the caller's win.
    from arcta.predict.forecast import input_knots

    late = arcta.Series([0, 1, 2, 3], [1.0, 1.0, np.nan, np.nan], inputs=[0.0, 1.0, 2.0, 3.0], input_names=["push"])
    unit = dataclasses.replace(fit.layout.scaling, time_scale=1.0, input_shift=np.zeros(1), input_scale=np.ones(1))
    knots, values = input_knots(fit.layout._replace(scaling=unit), late, 1.0, np.array([1.5, 3.0]), [[15.0], [30.0]])
    assert knots.tolist() == [0.0, 0.5, 1.0, 2.0]
    assert values[:, 0].tolist() == [1.0, 15.0, 2.0, 30.0]


class OneNode(eqx.Module):
    """The network of `WindowEncoder` for whole rows, at one node."""

    inner: Any
    lookahead: int = eqx.field(static=True)

    def __call__(self, values, mask, steps):
        assert (values.ndim, mask.ndim, steps.ndim) == (2, 2, 1)
        flags = jnp.any(mask, axis=1).astype(values.dtype)
        seen = [jnp.where(mask, values, 0).ravel(), flags, steps / self.inner.typical_step]
        mean, log_variance = jnp.split(self.inner.net(jnp.concatenate(seen)), 2)
        return jnp.concatenate([mean, log_variance + self.inner.log_variance])


class OneState(eqx.Module):
    inner: Any

    def __call__(self, z):
        assert z.ndim == 1
        return self.inner(z, ())


def test_networks_of_ones_own_see_one_example_at_a_time():
    """And give what ours give for all at once."""
    data = arcta.datasets.lotka_volterra(duration=5.0)
    layout, reading = read_data(TINY, data)
    ours = build(TINY, layout, reading, key=jax.random.key(0))
    spec = dataclasses.replace(TINY, encoder=OneNode(ours.encoder, TINY.lookahead), decoder=OneState(ours.decoder))
    own = build(spec, layout, reading, key=jax.random.key(0))
    shape = WindowShape(layout.partition_size, TINY.lookahead, reading.margin)
    window = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), windows_of([data], layout.scaling, shape))
    for a, b in zip(*(arcta.elbo(model, window, key=jax.random.key(1)) for model in (ours, own)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4)


def test_frames_through_convolutions(tmp_path):
    rng = np.random.default_rng(0)
    frames = (rng.random((30, 8, 8)) < 0.3).astype(float)
    series = arcta.Series(np.arange(30.0), frames)
    fit = quick(
        arcta.LatentSDE(latent_size=2, likelihood="bernoulli", partition_size=10, drift_sizes=(8,), kernel_sizes=(4,)),
        series,
    )
    assert fit.forecast([31.0], num_samples=3).signal.shape == (3, 1, 64)
    fit.save(tmp_path)
    assert arcta.load(tmp_path).context[0].frame_shape == (8, 8)


@pytest.mark.parametrize(
    "options",
    [
        {"diffusion": "time-dependent", "time_dependent": True},
        pytest.param({"noise": "learned"}, marks=pytest.mark.slow),
        {"noise": np.float64(0.02)},
        pytest.param({"rotation": False}, marks=pytest.mark.slow),
    ],
)
def test_other_configurations_train_and_load(options, tmp_path):
    train, test = arcta.split(arcta.datasets.lotka_volterra(seed=2, duration=6.0), at=0.8)
    fit = quick(dataclasses.replace(TINY, **options), train, out=tmp_path)
    again = arcta.load(tmp_path)
    np.testing.assert_array_equal(
        again.forecast(test.times, num_samples=2).signal, fit.forecast(test.times, num_samples=2).signal
    )


def test_join_penalty_draws_the_windows_together():
    train, _ = arcta.split(arcta.datasets.lotka_volterra(seed=2, duration=20.0), at=0.9)
    spec = dataclasses.replace(TINY, decoder="identity", noise=0.01, posterior="amortised")
    jumps = []
    for penalty in (0.0, 30.0):
        settings = arcta.Training(steps=300, num_draws=1, num_times=4, join_penalty=penalty)
        jumps.append(arcta.fit(spec, train, training=settings, progress=False).history[-1]["join_kl_mean"])
    assert jumps[1] < 0.7 * jumps[0]


def test_physical_parameters_are_found_with_their_uncertainty():
    """A damped oscillator seen through noise: both parameters inside their 99 % interval, and close."""
    rng = np.random.default_rng(3)
    times = np.linspace(0, 20, 401)
    truth = arcta.datasets.simulate(
        lambda z: np.array([z[1], -2.0 * z[0] - 0.1 * z[1]]),
        np.array([2.0, 0.0]),
        times,
        dispersion=0.0,
        substeps=10,
        rng=rng,
    )
    series = arcta.Series(times, truth + 0.05 * rng.standard_normal(truth.shape), channels=["x", "v"])
    priors = {"stiffness": arcta.LogNormal(1.0, 1.0), "damping": arcta.LogNormal(0.3, 1.0)}
    spec = arcta.LatentSDE(
        decoder="identity", encoder="window", noise=0.05, lookahead=0,
        drift=lambda t, z, p, u: [z[1], -p["stiffness"] * z[0] - p["damping"] * z[1]],
        parameters=priors, diffusion_start=1e-3,
    )  # fmt: skip
    fit = arcta.fit(
        spec, series, training=arcta.Training(steps=1500, num_draws=4, num_times=10, learning_rate=1e-2), progress=False
    )
    table = fit.parameters()
    assert table.loc["stiffness", "median"] == pytest.approx(2.0, rel=0.03)
    assert table.loc["damping", "median"] == pytest.approx(0.1, abs=0.04)
    assert table.loc["stiffness", "q95"] - table.loc["stiffness", "q5"] < 0.5
    assert isinstance(fit.model.drift, ParametricDrift)


@pytest.mark.slow
@pytest.mark.skipif(
    mocap_path() is None, reason="the MOCAP file is at neither $ARCTA_MOCAP nor ../shared/data/mocap35.mat"
)
def test_mocap_file_trains():
    path = mocap_path()
    assert path is not None
    train, validation, test = arcta.datasets.mocap(path)
    assert [len(part) for part in (train, validation, test)] == [16, 3, 4]
    with pytest.warns(UserWarning, match="4 of 50 channels never vary"):
        fit = arcta.fit(
            arcta.LatentSDE(latent_size=6, partition_size=298, activation="tanh"), train,
            training=arcta.Training(steps=30, num_draws=2, num_times=5), progress=False,
        )  # fmt: skip
    first, rest = arcta.split(test[0], time=0.25)
    forecast = fit.forecast(rest.times, given=first, num_samples=4)
    assert forecast.mean.shape == (297, 50)


def test_command_line_demo_help_and_exit_codes(tmp_path):
    arcta_command = [sys.executable, "-m", "arcta"]
    text = subprocess.run([*arcta_command, "demo", "--help"], capture_output=True, text=True, check=True).stdout
    assert "--out" in text
    assert "arcta demo" in text
    assert "random seed" in text
    wrong = subprocess.run([*arcta_command, "demo", "--key", "x"], cwd=tmp_path, capture_output=True, text=True)
    assert wrong.returncode == 2
    assert "--key" in wrong.stdout + wrong.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_lotka_volterra_reaches_its_bar():
    """Median RMSE over ten seeds ≤ 0.03 within 10,000 drift values (see benchmarks/lotka_volterra.py)."""
    from arcta.outside import demo

    train, test = demo.data()
    fits = [arcta.fit(demo.MODEL, train, key=key, training=demo.TRAINING, progress=False) for key in range(10)]
    assert all(fit.history[-1]["drift_evaluations"] <= 10_000 for fit in fits)
    assert np.median([fit.score(test, key=1)["rmse"] for fit in fits]) <= 0.03


def test_demo_writes_a_page_that_needs_nothing_from_outside(tmp_path, monkeypatch):
    from arcta.outside import demo

    monkeypatch.setattr(demo, "TRAINING", dataclasses.replace(demo.TRAINING, steps=20, validate_every=10, log_every=10))
    _, scores, page = demo.run(tmp_path / "demo", progress=False)
    html = page.read_text()
    assert html.count("<svg") == 4
    assert "http://" not in html.replace("http://www.w3.org", "").replace("http://purl.org", "").replace(
        "http://creativecommons.org", ""
    )
    assert "<script" not in html
    assert f"{scores['rmse']:.4f}" in html
    assert len(list((tmp_path / "demo" / "figures").glob("*.png"))) == 4


def test_forecast_from_an_earlier_observation():
    """`origin` is where the paths start: at the last observation it changes nothing, at an earlier one the context's own times
    can be asked for, and a time between observations is refused."""
    series = arcta.datasets.lotka_volterra(duration=10.0)
    spec = arcta.LatentSDE(decoder="identity", encoder="window", lookahead=0, partition_size=32, drift="plain")
    fit = arcta.fit(spec, series, training=arcta.Training(steps=2), progress=False)
    ahead = np.array([10.5, 11.0])
    plain = fit.forecast(ahead, num_samples=4, key=3)
    np.testing.assert_array_equal(plain.signal, fit.forecast(ahead, origin=10.0, num_samples=4, key=3).signal)
    early = fit.forecast(np.array([9.0, 9.5, 11.0]), origin=9.0, num_samples=4, key=3)
    window = fit.smooth(series.at_rows(series.times <= 10.0), np.array([9.0]), num_samples=2000)
    assert np.abs(early.signal[:, 0].mean(axis=0) - window.mean[0]).max() < 0.2
    with pytest.raises(ValueError, match=r"origin must be the time of an observation .* nearest is 9"):
        fit.forecast(ahead, origin=9.03)
    with pytest.raises(ValueError, match="goes forward"):
        fit.forecast(np.array([8.0]), origin=9.0)


def test_a_long_horizon_is_walked_in_stretches_that_leave_no_trace(monkeypatch):
    """Cut in stretches of 64 or not at all: the same paths; and the quantiles kept alone are those of the paths."""
    train = arcta.datasets.lotka_volterra(seed=2, duration=10.0)
    fit = quick(TINY, train)
    times = 10.0 + 0.05 * np.arange(1, 151)
    whole = fit.forecast(times, num_samples=16, key=3)
    monkeypatch.setattr("arcta.predict.solve.STRETCH", 64)
    cut = fit.forecast(times, num_samples=16, key=3)
    np.testing.assert_allclose(cut.states, whole.states, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(cut.observations, whole.observations, rtol=1e-4, atol=1e-5)
    values = np.ones((150, 2))
    np.testing.assert_allclose(cut.log_density(values), whole.log_density(values), rtol=1e-3, atol=1e-3)
    bands = fit.forecast(times, num_samples=16, key=3, quantiles=(0.1, 0.5, 0.9))
    np.testing.assert_allclose(bands.quantile(0.9), cut.quantile(0.9), rtol=1e-6)
    pd.testing.assert_frame_equal(bands.to_frame(), cut.to_frame(quantiles=(0.1, 0.5, 0.9)))
    assert bands.plot(context=train) is not None
    with pytest.raises(ValueError, match=r"quantiles kept are 0\.1, 0\.5, 0\.9"):
        bands.quantile(0.95)


def test_priors_of_a_law_are_saved_and_its_states_refined(tmp_path):
    """A run with priors for noise, diffusion and start, in the data's units, comes back as it was; smoothing to the end agrees with
    smoothing where that settles."""
    times = np.linspace(0, 6, 40)
    values = np.exp(-0.5 * times)[:, None] + 0.05 * np.random.default_rng(0).standard_normal((40, 1))
    spec = arcta.LatentSDE(
        decoder="identity",
        drift=lambda t, z, p, u: [-p["k"] * z[0]],
        parameters={"k": arcta.TruncatedNormal(1.0, 1.0)},
        noise=arcta.LogNormal(0.1, 1.0),
        initial=(1.0, 0.5),
        diffusion_prior=arcta.LogNormal(0.01, 0.5),
    )
    fit = arcta.fit(spec, arcta.Series(times, values), training=arcta.Training(steps=60), out=tmp_path, progress=False)
    said = fit.parameters().loc["diffusion[x0]", ["prior q5", "prior median", "prior q95"]].to_numpy(float)
    np.testing.assert_allclose(np.log(said), np.log(0.01) + 0.5 * 1.644854 * np.array([-1, 0, 1]), rtol=1e-4)
    again = arcta.load(tmp_path, drift=spec.drift)
    np.testing.assert_array_equal(fit.smooth(key=1).mean, again.smooth(key=1).mean)
    assert again.parameters().equals(fit.parameters())
    scaling = fit.layout.scaling
    assert float(fit.model.initial.mean[0]) == pytest.approx(
        float((1.0 - scaling.shift[0]) / scaling.scale[0]), rel=1e-5
    )
    exact, quick = fit.refine(key=1), fit.smooth(key=1)
    assert np.max(np.abs(exact.mean - quick.mean)) < 0.1 * np.mean(quick.states.std(axis=0))
    with pytest.raises(ValueError, match="must be a LogNormal; got TruncatedNormal"):
        arcta.LatentSDE(noise=arcta.TruncatedNormal(0.1, 0.1))
    with pytest.raises(ValueError, match="prior of the diffusion must be a LogNormal; got TruncatedNormal"):
        arcta.LatentSDE(diffusion_prior=arcta.TruncatedNormal(0.1, 0.1))
    with pytest.raises(ValueError, match="a mean and a positive standard deviation"):
        arcta.LatentSDE(initial=(0.0, -1.0))
