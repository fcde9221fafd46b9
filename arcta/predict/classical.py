"""Forecasts to beat: beside the naive ones exponential smoothing, a vector autoregression and a linear state-space model.

Each is `fit` on training series and forecasts after a context; each returns a mean, a standard deviation of an
observation and says so when it does not apply. NumPy only, nothing here knows of the latent SDE. The last two work on a
regular grid of the data's typical step; values between grid points are held.

    z_{k+1} = A z_k + w_k,   x_k = C z_k + v_k,   w ~ N(0, Q), v ~ N(0, R)        linear state space, by EM
    x_k = c + Σ_p A_p x_{k−p} + e_k                                               VAR, ridge, order by held-out error
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from ..data.seasons import Season, find_seasons
from ..data.series import Series, typical_step
from .naive import (
    Forecast,
    Forecaster,
    drift,
    filled,
    last_season,
    last_value,
    standards,
    to_grid,
    training_mean,
)  # fmt: skip


class Smoothed(NamedTuple):
    """What a Kalman smoother knows: means and covariances by time, and cov(z_{k+1}, z_k)."""

    mean: Float[np.ndarray, "n size"]
    covariance: Float[np.ndarray, "n size size"]
    cross: Float[np.ndarray, "n_less_1 size size"]


def kalman_smoother(
    transition: Float[np.ndarray, "steps size size"],
    process: Float[np.ndarray, "steps size size"],
    read_out: Float[np.ndarray, "channels size"],
    noise: Float[np.ndarray, " channels"],
    start_mean: Float[np.ndarray, " size"],
    start_covariance: Float[np.ndarray, "size size"],
    values: Float[np.ndarray, "n channels"],
    mask: Bool[np.ndarray, "n channels"],
) -> Smoothed:
    """Rauch–Tung–Striebel smoother of a linear-Gaussian model, any entry of `values` missing.

    `transition[k]` and `process[k]` lead from row k to row k + 1; `noise` holds the variance of each channel. The update
    is in information form, so many channels cost no more than the state does.
    """
    n, size = len(values), len(start_mean)
    predicted, filtered = [], []
    m, P = start_mean, start_covariance
    weights = mask / noise
    for k in range(n):
        if k:
            A = transition[k - 1]
            m, P = A @ m, A @ P @ A.T + process[k - 1]
        predicted.append((m, P))
        weighted = read_out.T * weights[k]
        P = np.linalg.inv(np.linalg.inv(P) + weighted @ read_out)
        P = 0.5 * (P + P.T)
        m = m + P @ (weighted @ (np.where(mask[k], values[k], 0.0) - read_out @ m))
        filtered.append((m, P))
    means, covariances, cross = np.empty((n, size)), np.empty((n, size, size)), np.empty((n - 1, size, size))
    means[-1], covariances[-1] = m, P
    for k in range(n - 2, -1, -1):
        m_f, P_f = filtered[k]
        m_p, P_p = predicted[k + 1]
        gain = np.linalg.solve(P_p, transition[k] @ P_f).T
        cross[k] = P @ gain.T
        m, P = m_f + gain @ (m - m_p), P_f + gain @ (P - P_p) @ gain.T
        means[k], covariances[k] = m, P
    return Smoothed(means, covariances, cross)


def _lags(x: np.ndarray, count: int) -> np.ndarray:
    """Each row beside the ones before it, the latest first."""
    return np.concatenate([x[count - 1 - p : len(x) - p] for p in range(count)], axis=1)


def _autoregression(rows: Sequence[np.ndarray], order: int, ridge: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Coefficients (order·channels, channels) of standardised rows, and design and target they were fitted on."""
    lagged = [_lags(x[:-1], order) for x in rows]
    design, target = np.concatenate(lagged), np.concatenate([x[order:] for x in rows])
    gram = design.T @ design + ridge * len(design) * np.eye(design.shape[1])
    return np.linalg.solve(gram, design.T @ target), design, target


def vector_autoregression(train: Sequence[Series]) -> Forecaster | None:
    """VAR on the regular grid, ridge-regularised; order and ridge by the error on the last fifth of the training data."""
    step = typical_step(train)
    mean, spread = standards(train)
    rows = [filled((to_grid(item, step).values - mean) / spread) for item in train]
    rows = [x for x in rows if len(x) > 12]
    if not rows:
        return None
    heads = [x[: int(0.8 * len(x))] for x in rows]

    def held_out_error(order: int, ridge: float) -> float:
        coefficients, *_ = _autoregression(heads, order, ridge)
        tails = [x[len(head) - order :] for x, head in zip(rows, heads, strict=True)]
        _, design, target = _autoregression(tails, order, ridge)
        return float(np.mean((design @ coefficients - target) ** 2))

    shortest = min(len(x) for x in heads)
    orders = [order for order in (1, 2, 4, 8) if 2 * order + 2 < shortest and order * len(mean) <= 400]
    choices = [(order, ridge) for order in orders for ridge in (1e-3, 1e-2, 1e-1)]
    order, ridge = min(choices, key=lambda choice: held_out_error(*choice), default=(1, 1e-2))
    coefficients, design, target = _autoregression(rows, order, ridge)
    noise = (target - design @ coefficients).std(axis=0)

    def forecast(context: Series, times: np.ndarray) -> Forecast:
        grid = to_grid(context, step, 4 * order + 8)
        past = filled((grid.values - mean) / spread)
        past = np.concatenate([np.zeros((max(order - len(past), 0), len(mean))), past])
        ahead = grid.steps_ahead(times)
        rng = np.random.default_rng(0)
        state = np.tile(past[-order:][::-1].reshape(1, -1), (65, 1))  # path 0 carries the mean
        paths = [state[:, : len(mean)]]
        for _ in range(int(ahead.max())):
            kicks = noise * rng.standard_normal((65, len(mean)))
            kicks[0] = 0
            fresh = np.clip(state @ coefficients + kicks, -20, 20)
            state = np.concatenate([fresh, state[:, : -len(mean)]], axis=1)
            paths.append(fresh)
        chosen = np.stack(paths)[ahead]
        return mean + spread * chosen[:, 0], spread * np.maximum(chosen[:, 1:].std(axis=1), 1e-6)

    return forecast


class StateSpace(NamedTuple):
    """z' = A z + w, x = C z + v with w ~ N(0, Q), v ~ N(0, R), from z ~ N(0, I)."""

    A: Float[np.ndarray, "size size"]
    Q: Float[np.ndarray, "size size"]
    C: Float[np.ndarray, "channels size"]
    R: Float[np.ndarray, " channels"]

    def smooth(self, x: Float[np.ndarray, "n channels"]) -> Smoothed:
        """The states behind the values on a grid, NaN where there are none."""
        size = len(self.A)
        A, Q = (np.broadcast_to(matrix, (len(x) - 1, size, size)) for matrix in (self.A, self.Q))
        return kalman_smoother(A, Q, self.C, self.R, np.zeros(size), np.eye(size), x, np.isfinite(x))

    def ahead(self, m: np.ndarray, P: np.ndarray, steps: int) -> tuple[np.ndarray, np.ndarray]:
        """Means and variances of x now and after each of some steps, from z ~ N(m, P)."""
        means, variances = [], []
        for _ in range(steps + 1):
            means.append(self.C @ m)
            variances.append(np.einsum("ca,ab,cb->c", self.C, P, self.C) + self.R)
            m, P = self.A @ m, self.A @ P @ self.A.T + self.Q
        return np.array(means), np.array(variances)


def _first_state_space(filled: Sequence[np.ndarray], size: int) -> StateSpace:
    """Principal components or lags as states, and the regression of each on the one before."""
    channels = filled[0].shape[1]
    if channels >= size:
        vectors = np.linalg.svd(np.concatenate(filled), full_matrices=False)[2][:size]
        C, scores = vectors.T, [x @ vectors.T for x in filled]
    else:
        lags = -(-size // channels)
        C, scores = np.eye(channels, size), [_lags(x, lags)[:, :size] for x in filled]
    before, after = np.concatenate([z[:-1] for z in scores]), np.concatenate([z[1:] for z in scores])
    A = np.linalg.solve(before.T @ before + 1e-3 * len(before) * np.eye(size), before.T @ after).T
    return StateSpace(A, np.diag((after - before @ A.T).var(axis=0) + 1e-3), C, np.full(channels, 0.1))


def _improve(model: StateSpace, grids: Sequence[np.ndarray]) -> StateSpace:
    """One step of expectation–maximisation."""
    channels, size = model.C.shape
    zz_before, zz_after, cross = (np.zeros((size, size)) for _ in range(3))
    xz, grams = np.zeros((channels, size)), np.zeros((channels, size, size))
    xx, seen, steps = np.zeros(channels), np.zeros(channels), 0
    for g in grids:
        mask = np.isfinite(g)
        x = np.where(mask, g, 0.0)
        s = model.smooth(g)
        second = s.covariance + s.mean[:, :, None] * s.mean[:, None, :]
        zz_before, zz_after = zz_before + second[:-1].sum(axis=0), zz_after + second[1:].sum(axis=0)
        cross = cross + s.cross.sum(axis=0) + s.mean[1:].T @ s.mean[:-1]
        grams = grams + np.einsum("nc,nab->cab", mask * 1.0, second, optimize=True)
        xz, xx, seen = xz + x.T @ s.mean, xx + (x**2).sum(axis=0), seen + mask.sum(axis=0)
        steps += len(g) - 1
    A = np.linalg.solve(zz_before + 1e-6 * np.eye(size), cross.T).T
    Q = (zz_after - A @ cross.T - cross @ A.T + A @ zz_before @ A.T) / max(steps, 1)
    C = np.linalg.solve(grams + 1e-3 * np.eye(size), xz[..., None])[..., 0]
    R = (xx - 2 * np.sum(C * xz, axis=1) + np.einsum("ca,cab,cb->c", C, grams, C)) / np.maximum(seen, 1)
    return StateSpace(A, 0.5 * (Q + Q.T) + 1e-6 * np.eye(size), C, np.maximum(R, 1e-4))


def linear_state_space(train: Sequence[Series], *, iterations: int = 25) -> Forecaster | None:
    """A linear-Gaussian state-space model by expectation–maximisation on the regular grid, gaps left as gaps."""
    step = typical_step(train)
    mean, spread = standards(train)
    grids = [(to_grid(item, step, 1000).values - mean) / spread for item in train][:8]
    grids = [g for g in grids if len(g) > 12]
    if not grids:
        return None
    model = _first_state_space([filled(g) for g in grids], min(max(2, 2 * len(mean)), 8))
    for _ in range(iterations):
        model = _improve(model, grids)
    model = model._replace(A=model.A / max(np.abs(np.linalg.eigvals(model.A)).max(), 1.0))

    def forecast(context: Series, times: np.ndarray) -> Forecast:
        grid = to_grid(context, step, 300)
        s = model.smooth((grid.values - mean) / spread)
        ahead = grid.steps_ahead(times)
        means, variances = model.ahead(s.mean[-1], s.covariance[-1], int(ahead.max()))
        return mean + spread * means[ahead], spread * np.sqrt(variances[ahead])

    return forecast


def exponential_smoothing(train: Sequence[Series], seasons: Sequence[Season] | None = None) -> Forecaster | None:
    """Holt and Winters: level, damped slope and additive season on the regular grid, each forgetting at a rate of its own; channel
    by channel, the rates by one-step errors."""
    from scipy.optimize import minimize

    step = typical_step(train)
    mean, spread = standards(train)
    found = [round(s.period / step) for s in (find_seasons(train) if seasons is None else seasons)]
    grid = filled((to_grid(max(train, key=len), step, 600).values - mean) / spread)
    periods = [m for m in found if m >= 2 and 2 * m < len(grid)]
    m = min(periods, default=1)
    if len(grid) < max(12, 2 * m + 4):
        return None

    def loss(raw: np.ndarray, x: np.ndarray) -> float:
        return float(np.mean(_smooth_on(_rates(raw, m), x, m)[1][m:] ** 2))

    start = np.array([-0.5, -3.0, -2.0, 2.0])
    rates = [
        _rates(minimize(loss, start, args=(x,), method="Nelder-Mead", options={"maxiter": 120}).x, m) for x in grid.T
    ]

    def forecast(context: Series, times: np.ndarray) -> Forecast:
        seen = to_grid(context, step, 600)
        past, ahead = filled((seen.values - mean) / spread), seen.steps_ahead(times)
        steps = np.arange(1, int(ahead.max()) + 2)
        values, spreads = [], []
        for (α, β, γ, φ), x in zip(rates, past.T, strict=True):
            (level, slope, seasonal), errors = _smooth_on((α, β, γ, φ), x, m)
            damp = np.cumsum(φ**steps)
            mean_ahead = level + slope * damp + seasonal[(len(x) + steps - 1) % m]
            weights = α + β * damp + γ * (steps % m == 0)
            growth = np.concatenate([[1.0], 1 + np.cumsum(weights**2)[:-1]])
            values.append(np.concatenate([[level], mean_ahead])[ahead])
            spreads.append(np.std(errors[m:]) * np.sqrt(np.concatenate([[1.0], growth])[ahead]))
        return mean + spread * np.stack(values, axis=1), spread * np.maximum(np.stack(spreads, axis=1), 1e-6)

    return forecast


def _rates(raw: np.ndarray, m: int) -> tuple[float, float, float, float]:
    α, β, γ, φ = 1 / (1 + np.exp(-raw))
    return float(α), float(α * β), float((1 - α) * γ) if m > 1 else 0.0, float(φ)


def _smooth_on(
    rates: tuple[float, float, float, float], x: np.ndarray, m: int
) -> tuple[tuple[float, float, np.ndarray], np.ndarray]:
    """The last level, slope and season, and the one-step errors."""
    α, β, γ, φ = rates
    first = x[: 2 * m]
    level, slope = float(first.mean()), float((x[m : 2 * m].mean() - x[:m].mean()) / m) if m > 1 else 0.0
    seasonal = np.mean(first.reshape(2, m), axis=0) - level if m > 1 else np.zeros(1)
    errors = np.empty(len(x))
    for k, value in enumerate(x.tolist()):
        error = value - level - φ * slope - seasonal[k % m]
        level, slope = level + φ * slope + α * error, φ * slope + β * error
        seasonal[k % m] += γ * error
        errors[k] = error
    return (level, slope, seasonal), errors


BASELINES: dict[str, Callable[..., Forecaster | None]] = {
    "training mean": training_mean,
    "last value": last_value,
    "last season": last_season,
    "drift": drift,
    "exponential smoothing": exponential_smoothing,
    "VAR": vector_autoregression,
    "linear state space": linear_state_space,
}
SEASONAL = ("last season", "exponential smoothing")  # which take the seasons of the training data, if they are known
