"""The forecasts to beat against truths of their own, the readings of the data, and the backtest's verdict."""

from __future__ import annotations

import linear as exact
import numpy as np
import pandas as pd
import pytest

import arcta
from arcta.data.moments import kind_of
from arcta.data.seasons import find_seasons
from arcta.model.reading import read_data
from arcta.predict import classical
from arcta.predict.metrics import crps
from arcta.task.backtest import MODEL, Backtest, backtest, choose_origins, gaussian_scores


def test_kalman_smoother_against_the_joint_gaussian():
    """The smoother's means and covariances are those of the joint Gaussian, conditioned by brute force."""
    rng = np.random.default_rng(0)
    F, q, noise = np.array([[-0.5, 2.0], [-2.0, -0.3]]), np.array([0.5, 0.2]), 0.1
    times = np.cumsum(rng.uniform(0.1, 0.8, 12))
    m0, P0 = np.array([0.3, -0.2]), np.diag([1.0, 0.5])
    xs = exact.simulate(F, q, m0, P0, times, noise, rng)
    steps = [exact.transition(F, q, h) for h in np.diff(times)]
    smoothed = classical.kalman_smoother(
        np.stack([A for A, _ in steps]), np.stack([Q for _, Q in steps]), np.eye(2), np.full(2, noise), m0, P0, xs,
        np.ones_like(xs, bool),
    )  # fmt: skip
    mean, covariance = exact.joint(F, q, m0, P0, times, xs, noise, times[1:-1])
    np.testing.assert_allclose(smoothed.mean[1:-1], mean, atol=1e-8)
    np.testing.assert_allclose(smoothed.covariance[1:-1], covariance, atol=1e-8)


def test_gaussian_scores_against_samples():
    rng = np.random.default_rng(1)
    mean, std, x = np.array([[0.3, -1.0]]), np.array([[0.5, 2.0]]), np.array([[0.6, 1.0]])
    samples = mean + std * rng.standard_normal((200_000, 1, 2))
    ours = gaussian_scores(mean, std, x)["crps"]
    np.testing.assert_allclose(ours, crps(samples, x), rtol=2e-2)


def series_of(values: np.ndarray, step: float = 1.0, **options) -> arcta.Series:
    return arcta.Series(step * np.arange(len(values)), values, **options)


def test_var_and_state_space_forecast_a_rotation():
    """Of a noisy rotation both linear models must get close to the optimal forecast, which the naive ones miss."""
    rng = np.random.default_rng(2)
    angle = 2 * np.pi / 20
    A = 0.995 * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    z = np.array([1.0, 0.0])
    path = []
    for _ in range(500):
        z = A @ z + 0.05 * rng.standard_normal(2)
        path.append(z)
    clean = np.array(path)
    noisy = clean + 0.1 * rng.standard_normal(clean.shape)
    train, ahead = series_of(noisy[:400]), np.arange(400.0, 410.0)
    best = np.stack([np.linalg.matrix_power(A, k) @ clean[399] for k in range(1, 11)])
    floor = np.sqrt(np.mean((best - clean[400:410]) ** 2))
    errors = {}
    for name, make in classical.BASELINES.items():
        forecaster = make([train])
        assert forecaster is not None, name
        mean, std = forecaster(train, ahead)
        assert (std > 0).all()
        errors[name] = np.sqrt(np.mean((mean - clean[400:410]) ** 2))
    assert max(errors["VAR"], errors["linear state space"]) < 2 * floor + 0.1
    assert errors["last value"] > 2 * max(errors["VAR"], errors["linear state space"])


def test_season_is_found_and_not_invented():
    rng = np.random.default_rng(3)
    wave = np.sin(2 * np.pi * np.arange(400) / 24) + 0.3 * rng.standard_normal(400)
    assert [round(s.period, 1) for s in find_seasons([series_of(wave, step=0.5)])] == [12.0]
    assert classical.last_season([series_of(rng.standard_normal(400))]) is None
    seasonal = classical.last_season([series_of(wave)])
    assert seasonal is not None
    mean, _ = seasonal(series_of(wave), np.arange(400.0, 410.0))
    np.testing.assert_allclose(mean[:, 0], wave[376:386], atol=0.2)


def test_baselines_take_irregular_gappy_panels():
    rng = np.random.default_rng(4)
    panel = []
    for i in range(3):
        times = np.cumsum(rng.exponential(1.0, 60))
        values = np.stack([np.sin(times), np.cos(times)], axis=1) + 0.1 * rng.standard_normal((60, 2))
        values[rng.random(values.shape) < 0.3] = np.nan
        panel.append(arcta.Series(times, values, name=f"s{i}"))
    for name, make in classical.BASELINES.items():
        forecaster = make(panel)
        if forecaster is not None:
            mean, std = forecaster(panel[0], panel[0].times[-1] + np.array([0.5, 3.0, 9.0]))
            assert np.isfinite(mean).all(), name
            assert (std > 0).all(), name


def result(model: list[float], last: list[float]) -> Backtest:
    """A backtest of one channel with these errors in the quarters of a horizon of 8 days."""
    lead = np.array([0.1, 0.3, 0.6, 0.9])
    errors = {MODEL: model, "last value": last, "VAR": [9.0] * 4}
    entries = {n: {"squared_error": np.square(e), "lead": lead, "channel": np.zeros(4, int)} for n, e in errors.items()}
    rows = pd.DataFrame({"rmse": {n: np.sqrt(np.mean(np.square(e))) for n, e in errors.items()}})
    return Backtest(rows, rows, rows.set_axis(["level"], axis=1), [0.0], 8.0, entries, ("m",), "d")


def test_the_verdict_says_how_far_to_use_the_model_and_what_to_use_instead():
    good, short, bad = (result(model, [1.0] * 4) for model in ([0.5] * 4, [0.5, 0.6, 1.2, 1.3], [2.0] * 4))
    assert good.verdict() == "use it, 8 d ahead: error 0.5 against 1 m of 'last value'."
    assert short.verdict().startswith("use it up to 4 d ahead, 'last value' beyond")
    assert bad.verdict().startswith("do NOT use the model, use 'last value' instead")
    assert good.beats_naive
    assert not bad.beats_naive


def test_exponential_smoothing_follows_a_level_a_slope_and_a_season():
    rng = np.random.default_rng(6)
    t = np.arange(240.0)
    x = 0.05 * t + np.sin(2 * np.pi * t / 12) + 0.1 * rng.standard_normal(240)
    train = series_of(x[:216])
    made = {name: classical.BASELINES[name]([train]) for name in ("exponential smoothing", "last season", "drift")}
    errors = {}
    for name, forecaster in made.items():
        assert forecaster is not None
        mean, std = forecaster(train, t[216:])
        errors[name] = np.sqrt(np.mean((mean[:, 0] - x[216:]) ** 2))
        assert (std > 0).all()
    assert errors["exponential smoothing"] < 0.25
    assert errors["exponential smoothing"] < min(errors["last season"], errors["drift"])


def test_an_origin_without_observations_in_its_horizon_is_left_out():
    times = np.concatenate([np.arange(40.0), np.arange(70.0, 100.0)])
    assert (choose_origins(arcta.Series(times, np.sin(times)), 30.0, 10.0, 8) < 40).any()
    for origin in choose_origins(arcta.Series(times, np.sin(times)), 30.0, 10.0, 8):
        assert ((times > origin) & (times <= origin + 10)).any()


def test_backtest_needs_room():
    series = series_of(np.sin(np.arange(60.0)))
    before, _ = arcta.split(series, at=0.8)
    fit = arcta.fit(
        arcta.LatentSDE(encoder="window", lookahead=0), before, training=arcta.Training(steps=1), progress=False
    )
    with pytest.raises(ValueError, match="shorter horizon"):
        backtest(fit, series, horizon=30.0)
    result = backtest(fit, series, horizon=4.0, num_origins=2, num_samples=8)
    assert set(result.table.index) >= {MODEL, "training mean", "last value", "VAR", "linear state space"}
    assert len(result.entries[MODEL]["squared_error"]) == len(result.entries["last value"]["squared_error"])


@pytest.mark.parametrize(
    ("family", "axes"), [("ou", 1), ("double-well", 1), ("pendulum", 2), ("lotka-volterra", 2), ("oscillators", 8)]
)
def test_the_survey_finds_the_size_of_the_state(family, axes):
    """The number of latent axes, and the noise to within a factor, on data the rules were not chosen on."""
    data = arcta.datasets.benchmark(family, seed=7)
    train = data.series.at_rows(data.series.times <= data.cut)
    layout, reading = read_data(arcta.LatentSDE(), train)
    assert reading.latent_size == axes
    ratio = np.median(np.array(reading.noise) * layout.scaling.scale) / data.noise
    assert 0.7 < ratio < 1.6


def test_kinds_of_channels():
    rng = np.random.default_rng(5)
    seen = [np.ones(200, bool)]
    slow = 20 + 5 * np.sin(np.arange(200) / 30)
    assert kind_of([rng.poisson(3.0, 200).astype(float)], seen) == "counts"
    assert kind_of([np.round(slow)], seen) == "real", "whole degrees are no counts"
    assert kind_of([(rng.random(200) < 0.3) * 1.0], seen) == "binary"
    assert kind_of([rng.standard_normal(200)], seen) == "real"


@pytest.mark.slow
def test_default_bound_on_a_rough_process_is_near_the_exact_log_likelihood():
    """The bridge and the kernel's rough part at work: noise and bound of an Ornstein–Uhlenbeck process, learned by defaults."""
    data = arcta.datasets.benchmark("ou", seed=101)
    train = data.series.at_rows(data.series.times <= data.cut)
    fit = arcta.fit(arcta.LatentSDE(), train, progress=False)
    terms = ("path_kl", "initial_kl", "parameter_kl")
    rows = fit.history[-8:]
    bound = np.mean([row["log_likelihood"] - sum(row[name] for name in terms) for row in rows])
    bound -= len(train) * np.log(fit.layout.scaling.scale[0])
    truth = exact.log_likelihood(
        np.array([[-1.0]]), np.array([1.0]), np.zeros(1), np.array([[0.5]]), train.times, train.values, 0.2**2
    )
    assert truth - 30 < bound < truth + 5
    assert fit.parameters().loc["noise[x0]", "median"] == pytest.approx(0.2, rel=0.15)
