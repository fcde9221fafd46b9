"""Linear structures: covariances are those of their SDEs, the evidence is the Kalman filter's, the posterior the smoother's; scales
go there and back; and simulated series get the structure they were made with."""

from __future__ import annotations

import dataclasses

import linear
import numpy as np
import pandas as pd
import pytest
from scipy.linalg import expm

import arcta
from arcta.data.seasons import Season as Period
from arcta.linear.components import FREE, Cycle, Damped, Inputs, Level, Pairs, Points, Rough, Season, Slope, Smooth
from arcta.linear.find import find_structure, learn_again
from arcta.linear.learn import LinearModel, conclude, evidence, learn, start
from arcta.linear.scales import Scale
from arcta.linear.structure import from_json, remembered, to_json
from arcta.linear.together import Panel, Together, likelihood

TIMES = np.array([0.7, 1.3, 2.9, 4.0, 7.5])


def points(times: np.ndarray, inputs: np.ndarray | None = None) -> Points:
    return Points(np.asarray(times, float), np.zeros((len(times), 0)) if inputs is None else inputs)


def covariance_of_sde(F: np.ndarray, Q: np.ndarray, P0: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Of the first state of dz = F z dt + Q^½ dβ from N(0, P0) at time 0, by Van Loan's matrix exponential."""

    def spread(t: float) -> np.ndarray:
        d = len(F)
        e = expm(np.block([[-F, Q], [np.zeros((d, d)), F.T]]) * t)
        A = e[d:, d:].T
        return A @ P0 @ A.T + A @ e[:d, d:]

    K = np.empty((len(times), len(times)))
    for i, s in enumerate(times):
        for j, t in enumerate(times):
            K[i, j] = (spread(min(s, t)) @ expm(F * abs(s - t)).T)[0, 0]
    return K


def sde_of(name: str, θ: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """F, Q and the variance at the start, as the docstring of `components` has them."""
    p = np.exp(θ)
    none = np.zeros((2, 2))
    if name == "level":
        return np.zeros((1, 1)), np.diag(p), np.zeros((1, 1))
    if name == "slope":
        return np.array([[0, 1.0], [0, 0]]), np.diag([0, p[0]]), np.diag([0, (6 / 50) ** 2])
    if name == "damped":
        v, r = p
        return np.array([[0, 1], [0, -r]]), np.diag([0, 2 * r * v]), np.diag([0, v])
    if name == "rough":
        v, r = p
        return np.array([[-r]]), np.array([[2 * r * v]]), np.array([[v]])
    if name == "smooth":
        v, r = p
        return np.array([[0, 1], [-(r**2), -2 * r]]), np.diag([0, 4 * r**3 * v]), np.diag([v, r**2 * v])
    v, r, ω = p
    return np.array([[-r, ω], [-ω, -r]]), 2 * r * v * np.eye(2) + none, v * np.eye(2)


COMPONENTS = {
    "level": (Level(50.0), [-0.5]),
    "slope": (Slope(50.0), [-2.0]),
    "damped": (Damped(50.0), [-1.0, -0.7]),
    "rough": (Rough(50.0), [0.3, -0.5]),
    "smooth": (Smooth(50.0), [0.2, 0.1]),
    "cycle": (Cycle(50.0), [0.1, -2.0, 0.4]),
}


@pytest.mark.parametrize("name", COMPONENTS)
def test_a_components_covariance_is_that_of_its_sde(name):
    component, θ = COMPONENTS[name]
    ours, _ = component.covariance(Pairs(points(TIMES), points(TIMES)), np.array(θ))
    np.testing.assert_allclose(ours, covariance_of_sde(*sde_of(name, np.array(θ)), TIMES), rtol=1e-6, atol=1e-12)


def test_a_season_is_a_sum_of_damped_turning_pairs():
    """exp(−2 sin²(πτ/P)/ℓ²) = e^(−1/ℓ²) Σ_k I_k(1/ℓ²) cos(2πkτ/P): each harmonic has a positive share, and they sum to one."""
    from scipy.special import ive

    θ, τ = np.array([0.4, -0.3, -3.0]), TIMES[:, None] - TIMES[None, :]
    ours, _ = Season(50.0, 3.3).covariance(Pairs(points(TIMES), points(TIMES)), θ)
    x = np.exp(-2 * θ[1])
    pairs = sum((2 - (k == 0)) * ive(k, x) * np.cos(2 * np.pi * k * τ / 3.3) for k in range(40))
    np.testing.assert_allclose(ours, np.exp(θ[0] - np.exp(θ[2]) * np.abs(τ)) * pairs, rtol=1e-8)


@pytest.mark.parametrize("name", [*COMPONENTS, "season", "inputs"])
def test_derivatives_of_covariances_by_differences(name):
    rng = np.random.default_rng(0)
    extra = {"season": (Season(50.0, 3.3), [0.4, -0.3, -3.0]), "inputs": (Inputs(50.0), [-0.2, 0.3, 0.5])}
    component, θ = (COMPONENTS | extra)[name]
    θ, at = np.array(θ), points(TIMES, rng.standard_normal((5, 2)))
    _, changes = component.covariance(Pairs(at, at), θ)
    slopes = changes()
    assert len(slopes) == len(component.prior) == len(θ)
    for k, slope in enumerate(slopes):
        h = 1e-5 * np.eye(len(θ))[k]
        up, down = (component.covariance(Pairs(at, at), θ + s * h)[0] for s in (1, -1))
        np.testing.assert_allclose(slope, (up - down) / 2e-5, atol=1e-7)


def test_evidence_and_posterior_are_the_kalman_filters():
    """An Ornstein–Uhlenbeck process around an unknown level, as two states of a linear SDE; missing and irregular."""
    rng = np.random.default_rng(1)
    v, r, noise = 0.8, 0.4, 0.1
    times = np.cumsum(rng.exponential(1.0, 40))
    F, q = np.array([[-r, 0], [0, 0]]), np.array([2 * r * v, 0.0])
    P0 = np.diag([v, FREE])
    y = rng.standard_normal(40)
    # Seen is the sum of both states: turned so that it is the first.
    T = np.array([[1.0, 1.0], [0.0, 1.0]])
    back = np.linalg.inv(T)
    model = LinearModel((Rough(40.0),), np.log([noise, v, r]))
    ours, slope = evidence(model, (points(times), y))
    K = FREE + v * np.exp(-r * np.abs(times[:, None] - times[None, :])) + noise * np.eye(40)
    exact = -0.5 * (y @ np.linalg.solve(K, y) + np.linalg.slogdet(2 * np.pi * K)[1])
    assert ours == pytest.approx(exact, abs=1e-4)
    xs = np.stack([y, np.full(40, np.nan)], axis=1)
    A, Q = T @ F @ back, T @ np.diag(q) @ T.T
    m, P, total = np.zeros(2), T @ P0 @ T.T, 0.0
    for i, x in enumerate(xs[:, 0]):
        if i:
            step = times[i] - times[i - 1]
            e = expm(np.block([[-A, Q], [np.zeros((2, 2)), A.T]]) * step)
            Φ = e[2:, 2:].T
            m, P = Φ @ m, Φ @ P @ Φ.T + Φ @ e[:2, 2:]
        s = P[0, 0] + noise
        total += -0.5 * ((x - m[0]) ** 2 / s + np.log(2 * np.pi * s))
        m, P = m + P[:, 0] / s * (x - m[0]), P - np.outer(P[:, 0], P[0]) / s
    assert ours == pytest.approx(total, abs=1e-4)
    said = model.given((points(times), y), points(times[-1:] + 2.0))
    e = expm(A * 2.0)
    assert said.mean[0] == pytest.approx((e @ m)[0], abs=1e-4)
    for k in range(3):
        h = 1e-5 * np.eye(3)[k]
        up, down = (evidence(dataclasses.replace(model, θ=model.θ + s * h), (points(times), y))[0] for s in (1, -1))
        assert slope[k] == pytest.approx((up - down) / 2e-5, rel=1e-3, abs=1e-4)


def test_smoothing_inside_is_the_joint_gaussians():
    rng = np.random.default_rng(2)
    F, q, noise = np.array([[-0.5]]), np.array([0.6]), 0.05
    times = np.cumsum(rng.exponential(0.5, 60))
    x = linear.simulate(F, q, np.zeros(1), linear.stationary(F, q), times, noise, rng)
    query = np.linspace(times[0] + 0.1, times[-1] - 0.1, 9)
    mean, covariance = linear.joint(F, q, np.zeros(1), linear.stationary(F, q), times, x, noise, query)
    model = LinearModel((Rough(60.0),), np.log([noise, 0.6, 0.5]))
    said = model.given((points(times), x[:, 0]), points(query))
    # The unknown level adds little where there is data all around.
    np.testing.assert_allclose(said.mean, mean[:, 0], atol=0.03)
    np.testing.assert_allclose(np.diag(said.covariance), covariance[:, 0, 0], rtol=0.1)


@pytest.mark.parametrize("form", ["identity", "root", "log"])
def test_scales_go_there_and_back_with_their_jacobian(form):
    x = np.random.default_rng(0).lognormal(2.0, 0.7, 50)
    scale = Scale.fit(form, x)
    np.testing.assert_allclose(scale.back(scale.forth(x)), x, rtol=1e-10)
    h = 1e-6 * x
    np.testing.assert_allclose(
        np.exp(scale.log_slope(x)), (scale.forth(x + h) - scale.forth(x - h)) / (2 * h), rtol=1e-6
    )
    assert scale.back(np.linspace(-9, 9, 50)).min() >= 0


def test_means_on_a_logarithm_do_not_run_away():
    """Twenty values over four orders of magnitude, and a forecast as long as the data: its mean is not that of a few wild paths."""
    rng = np.random.default_rng(0)
    x = np.exp(4 + 2.5 * np.sin(np.arange(24) / 1.6) + 0.3 * rng.standard_normal(24))
    series = arcta.Series(np.arange(24.0), x)
    fit = arcta.fit(arcta.LatentSDE(structure="linear"), series, training=arcta.Training(steps=10), progress=False)
    ahead = fit.forecast(24.0 + np.arange(24))
    assert ahead.mean.max() < 30 * x.max()


def test_zeros_do_not_make_a_root_better_than_it_is():
    """A root is infinitely steep at zero, so that a density there would be, too."""
    x = np.concatenate([np.zeros(20), np.random.default_rng(0).uniform(1, 9, 80)])
    slopes = [np.mean(Scale.fit(form, x).log_slope(x)) for form in ("identity", "root")]
    assert abs(slopes[0] - slopes[1]) < 1.0


def test_what_is_looked_at_is_the_end_and_some_of_what_was_before():
    times = np.arange(5000.0)
    kept = remembered(times, 200, longest=300.0)
    assert len(np.unique(kept)) == 200
    assert (np.diff(kept) > 0).all()
    assert kept[-1] == 4999
    assert 2500 <= kept[0] < 4800
    assert np.array_equal(kept[-100:], np.arange(4900, 5000))


def monthly(seed: int, n: int = 144) -> arcta.Series:
    """Growth, a season that grows with it, and noise: what a logarithm makes additive."""
    rng = np.random.default_rng(seed)
    t = np.arange(n)
    level = 4.5 + 0.01 * t + np.cumsum(0.01 * rng.standard_normal(n))
    x = np.exp(
        level + 0.2 * np.sin(2 * np.pi * t / 12) + 0.1 * np.cos(4 * np.pi * t / 12) + 0.03 * rng.standard_normal(n)
    )
    return arcta.read(pd.DataFrame({"visits": x}, index=pd.date_range("2000-01-01", periods=n, freq="MS")))


def test_a_growing_season_gets_a_logarithm_a_trend_and_its_year():
    structure = find_structure([monthly(0)], [Period(12.0, 2, 0.5, "year")])
    best = structure.channels[0][0]
    assert best.scale.form == "log"
    assert any(type(part) is Season for part in best.model.components)
    assert any(type(part) in (Slope, Damped, Level) for part in best.model.components)
    again = from_json(to_json(structure))
    assert to_json(again) == to_json(structure)


def test_forecasts_of_a_default_fit_use_the_structure_where_itsevidence_is_better(tmp_path):
    """That it is found, said and saved, and that nothing positive gets a negative band."""
    series = monthly(3)
    train, test = arcta.split(series, at=0.85)
    few = arcta.Training(steps=20, log_every=10)
    fit = arcta.fit(arcta.LatentSDE(), train, training=few, progress=False)
    assert fit.by_structure
    assert [period.name for period in fit.structure.periods] == ["year"]
    ahead = fit.forecast(test.times, num_samples=200)
    error = np.sqrt(np.mean((ahead.mean - test.values) ** 2))
    season = np.sqrt(np.mean((train.values[-12:][np.arange(len(test)) % 12] - test.values) ** 2))
    assert error < 0.6 * season
    assert ahead.observations.min() > 0
    fit.save(tmp_path)
    again = arcta.load(tmp_path)
    np.testing.assert_array_equal(again.forecast(test.times, num_samples=200).observations, ahead.observations)
    gap = series.at_rows(np.r_[0:60, 72:144].astype(int))
    filled = fit.smooth(gap, series.times[60:72])
    assert np.mean(np.abs(np.log(filled.mean[:, 0] / series.values[60:72, 0]))) < 0.1
    plain = arcta.fit(arcta.LatentSDE(structure="none"), train, training=few, progress=False)
    assert plain.structure is None


def test_the_posterior_of_parameters_covers_the_truth():
    """Rate and variance of simulated Ornstein–Uhlenbeck processes: of the 80 intervals of 40 data sets 90 % ± 3 × 3.4 % cover."""
    inside = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        times = np.arange(200.0)
        K = np.exp(-0.3 * np.abs(times[:, None] - times[None, :])) + 0.1 * np.eye(200)
        y = np.linalg.cholesky(K) @ rng.standard_normal(200)
        piece = [(points(times), y)]
        model = conclude(learn(start([Rough(200.0)]), piece, 60), piece)
        spread = np.sqrt(np.sum(model.root**2, axis=1))
        inside += (np.abs(model.θ - np.log([0.1, 1.0, 0.3])) < 1.645 * spread)[1:].tolist()
    assert 0.8 < np.mean(inside) <= 1.0


def shared_model() -> Together:
    """Three channels, a fast and a slow process of each."""
    rng = np.random.default_rng(5)
    loadings = 0.7 * rng.standard_normal((2, 3, 3))
    return Together((Rough(50.0), Rough(50.0)), np.log([0.9, 0.1]), loadings, np.log([0.05, 0.1, 0.2]))


def test_channels_together_are_the_kalman_filters():
    """Six Ornstein–Uhlenbeck states read by the loadings; irregular times, entries missing."""
    rng, model = np.random.default_rng(6), shared_model()
    times = np.cumsum(rng.exponential(1.0, 30))
    seen, y = rng.random((30, 3)) < 0.6, rng.standard_normal((30, 3))
    panel = Panel(points(times), np.where(seen, y, 0.0), seen)
    rates, H = np.repeat(np.exp(model.θ), 3), np.concatenate(list(model.loadings), axis=1)
    m, P, total = np.zeros(6), np.eye(6), 0.0
    for i in range(30):
        if i:
            e = np.exp(-rates * (times[i] - times[i - 1]))
            m, P = e * m, e[:, None] * P * e + np.diag(1 - e**2)
        for c in np.flatnonzero(seen[i]):
            s = H[c] @ P @ H[c] + np.exp(model.noise[c])
            total += -0.5 * ((y[i, c] - H[c] @ m) ** 2 / s + np.log(2 * np.pi * s))
            gain = P @ H[c] / s
            m, P = m + gain * (y[i, c] - H[c] @ m), P - np.outer(gain, H[c] @ P)
    value, slope = likelihood(model, panel)
    assert value == pytest.approx(total, abs=1e-3)
    said, e = model.given(panel, points(times[-1:] + 2.0)), np.exp(-2.0 * rates)
    np.testing.assert_allclose(said.mean, H @ (e * m), atol=1e-4)
    np.testing.assert_allclose(said.covariance, H @ (e[:, None] * P * e + np.diag(1 - e**2)) @ H.T, atol=1e-4)
    for name in ("θ", "loadings", "noise"):
        whole = getattr(model, name)
        for at in [(0,) * whole.ndim, (1,) * whole.ndim]:
            h = np.zeros_like(whole)
            h[at] = 1e-5
            up, down = (likelihood(dataclasses.replace(model, **{name: whole + s * h}), panel)[0] for s in (1, -1))
            assert getattr(slope, name)[at] == pytest.approx((up - down) / 2e-5, rel=1e-3, abs=1e-4)


def shared_series(seed: int, n: int = 300) -> arcta.Series:
    """Two channels that follow one process closely, and one that has nothing to do with it."""
    rng = np.random.default_rng(seed)
    K = np.exp(-0.4 * np.abs(np.arange(n)[:, None] - np.arange(n)[None, :])) + 1e-9 * np.eye(n)
    common, other = np.linalg.cholesky(K) @ rng.standard_normal((n, 2)).T[0], rng.standard_normal(n)
    x = np.stack([common, 2 * common + 0.2 * rng.standard_normal(n) + 5, np.cumsum(other)], axis=1)
    return arcta.Series(np.arange(float(n)), x, channels=("a", "b", "c"))


def test_what_is_seen_of_one_channel_fills_the_other(tmp_path):
    """A block of one channel, filled from the other: as exact as the noise between them, and the bands know it."""
    whole = shared_series(0)
    hidden = np.zeros_like(whole.mask)
    hidden[100:160, 0] = hidden[170:180, 1] = True
    x = np.where(hidden, np.nan, whole.values)
    series = arcta.Series(whole.times, x, channels=whole.channels)
    structure = find_structure([series], [])
    assert structure.together is not None
    again = from_json(to_json(structure))
    assert to_json(again) == to_json(structure)
    few = arcta.Training(steps=20, log_every=10)
    fit = arcta.fit(arcta.LatentSDE(structure="linear"), series, training=few, progress=False)
    filled = fit.smooth(series, series.times, num_samples=200)
    error = filled.mean[100:160, 0] - whole.values[100:160, 0]
    assert np.sqrt(np.mean(error**2)) < 0.15  # the noise allows 0.1, the channel for itself 0.9
    low, high = np.quantile(filled.observations[:, 100:160, 0], [0.05, 0.95], axis=0)
    assert 0.75 < np.mean((low < whole.values[100:160, 0]) & (whole.values[100:160, 0] < high)) <= 1.0
    assert np.isfinite(filled.log_density(whole.values)).all()
    fit.save(tmp_path)
    np.testing.assert_array_equal(
        arcta.load(tmp_path).smooth(series, num_samples=20).signal, fit.smooth(series, num_samples=20).signal
    )


def test_channels_that_share_nothing_stay_apart():
    """Independent channels: what they share costs more than it explains, in 6 of 6."""
    for seed in range(6):
        rng = np.random.default_rng(seed)
        x = np.stack([np.cumsum(rng.standard_normal(80)), rng.standard_normal(80)], axis=1)
        assert find_structure([arcta.Series(np.arange(80.0), x)], []).together is None, seed


def test_a_longer_series_says_more_of_the_parameters():
    """Twice the observations: the candidates are those of before, their parameters and shares nearly those that a search from the
    start finds; more than are looked at, or fewer than were learned from, change nothing."""
    rng, n = np.random.default_rng(5), 80
    series = arcta.Series(np.arange(float(n)), np.cumsum(rng.standard_normal(n))[:, None] + rng.standard_normal((n, 1)))
    early = find_structure([series.at_rows(slice(0, 30))], ())
    late, again = find_structure([series], ()), learn_again(early, series)
    assert again.counts == early.counts == [30]

    def evidence_of(structure, names):
        return next(c.model.evidence for c in structure.channels[0] if c.words() == names)

    common = {c.words() for c in late.channels[0]} & {c.words() for c in again.channels[0]}
    assert common
    for names in common:  # spread and shift are those of the first thirty, hence not quite the same prior
        assert evidence_of(again, names) == pytest.approx(evidence_of(late, names), abs=2.0)
    assert learn_again(late, series.at_rows(slice(0, 30))).channels == late.channels
    assert again.channels != early.channels


def test_a_year_takes_part_unless_the_evidence_is_against_it():
    """Thirty quarters on a steep trend, a fifth of them missing: too few for a spectrum. Noise alone has none."""
    rng, t = np.random.default_rng(2), np.arange(30.0)
    x = 0.3 * t + 0.02 * np.array([1.0, -2.0, 3.0, -2.0])[(t % 4).astype(int)] + 0.005 * rng.standard_normal(30)
    seen = rng.random(30) > 0.2
    steep = arcta.Series(t[seen], x[seen, None])
    structure = find_structure([steep], [], {"year": 4.0})
    assert [period.name for period in structure.periods] == ["year"]
    said = LinearModel(structure.channels[0][0].model.components, structure.channels[0][0].model.θ)
    scale = structure.channels[0][0].scale
    hidden = scale.back(said.given((points(t[seen]), scale.forth(x[seen])), points(t[~seen])).mean)
    assert np.sqrt(np.mean((hidden - x[~seen]) ** 2)) < 0.02, "half of what the season is"
    assert find_structure([steep], [Period(4.0, 1, 0.5, "year")], {"year": 4.0}).periods == (
        Period(4.0, 1, 0.5, "year"),
    )
    rough = [arcta.Series(np.arange(200.0), np.cumsum(rng.standard_normal((200, 1)), axis=0)) for _ in range(5)]
    kept = [bool(find_structure([item], [], {"year": 12.0}).periods) for item in rough]
    assert sum(kept) <= 1
