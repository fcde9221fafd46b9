"""Forecasts to beat: the last value, the last season, a vector autoregression and a linear state-space model.

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
from jaxtyping import Bool, Float, Int

from ..data.series import Series


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


# Regular grids -------------------------------------------------------------------------------------------------------


class Grid(NamedTuple):
    """A series on a regular grid from `start` on: the mean of what falls into each cell, NaN where nothing does."""

    start: float
    step: float
    values: Float[np.ndarray, "n channels"]

    def steps_ahead(self, times: Float[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """How many cells after the last one, at least none."""
        return np.maximum(np.rint((times - self.start) / self.step).astype(int) - (len(self.values) - 1), 0)


def to_grid(series: Series, step: float, max_rows: int = 2000) -> Grid:
    """The last `max_rows` cells of a series."""
    seen = series.times[series.mask.any(axis=1)]
    span = seen[-1] - max(seen[0], seen[-1] - (max_rows - 1) * step)
    count = int(np.floor(span / step + 1e-6)) + 1
    start = seen[-1] - (count - 1) * step
    rows = series.times >= start - 0.5 * step
    cell = np.rint((series.times[rows] - start) / step).astype(int)
    inside = (cell >= 0) & (cell < count)
    total, number = np.zeros((2, count, len(series.channels)))
    np.add.at(total, cell[inside], series.values[rows][inside])
    np.add.at(number, cell[inside], series.mask[rows][inside])
    return Grid(float(start), step, np.where(number > 0, total / np.maximum(number, 1), np.nan))


def _filled(values: np.ndarray) -> np.ndarray:
    """Gaps filled by straight lines, zeros where a channel has nothing."""
    rows, result = np.arange(len(values)), np.zeros_like(values)
    for c in range(values.shape[1]):
        seen = np.isfinite(values[:, c])
        if seen.any():
            result[:, c] = np.interp(rows, rows[seen], values[seen, c])
    return result


def typical_step(data: Sequence[Series]) -> float:
    """The median step between observed rows."""
    steps = np.concatenate([np.diff(item.times[item.mask.any(axis=1)]) for item in data])
    return float(np.median(steps)) if len(steps) else 1.0


def season(data: Sequence[Series]) -> float | None:
    """The period of the strongest repeat: the first high peak of the autocorrelation after its first dip below zero."""
    step = typical_step(data)
    x = _filled(to_grid(max(data, key=len), step, 20_000).values)
    n = len(x)
    if n < 16:
        return None
    x = x - x.mean(axis=0)
    power = np.abs(np.fft.rfft(x, 2 * n, axis=0)) ** 2
    scale = np.maximum(np.var(x, axis=0) * n, 1e-300)
    correlation = np.mean(np.fft.irfft(power, axis=0)[:n] / scale, axis=1) * n / (n - np.arange(n))
    dip = np.argmax(correlation < 0)
    part = correlation[dip : n // 2]
    if correlation[dip] >= 0 or len(part) < 3:
        return None
    peaks = np.flatnonzero((part[1:-1] >= part[:-2]) & (part[1:-1] > part[2:])) + 1
    high = [p for p in peaks if part[p] > max(0.3, 0.8 * part[peaks].max())]
    return float((dip + high[0]) * step) if high else None


# Forecasters: fit(train) → forecast(context, times) → (mean, standard deviation) --------------------------------------

Forecast = tuple[Float[np.ndarray, "n channels"], Float[np.ndarray, "n channels"]]
Forecaster = Callable[[Series, Float[np.ndarray, " n"]], Forecast]


def _moments(train: Sequence[Series]) -> tuple[np.ndarray, np.ndarray]:
    mask, values = np.concatenate([s.mask for s in train]), np.concatenate([s.values for s in train])
    count = np.maximum(mask.sum(axis=0), 1)
    mean = values.sum(axis=0) / count
    return mean, np.maximum(np.sqrt(np.sum((values - mean) ** 2 * mask, axis=0) / count), 1e-9)


def training_mean(train: Sequence[Series]) -> Forecaster:
    """The mean and the spread of the training data, whatever came last."""
    mean, spread = _moments(train)
    return lambda context, times: (np.tile(mean, (len(times), 1)), np.tile(spread, (len(times), 1)))


def last_value(train: Sequence[Series]) -> Forecaster:
    """The last observed value of each channel; the spread is that of a random walk with the training data's steps, at most
    √2 times the training data's own."""
    step = typical_step(train)
    mean, spread = _moments(train)
    grids = [to_grid(item, step).values for item in train]
    with np.errstate(all="ignore"):
        jumps = np.sqrt(np.nan_to_num(np.nanmean(np.concatenate([np.diff(g, axis=0) for g in grids]) ** 2, axis=0)))

    def forecast(context: Series, times: np.ndarray) -> Forecast:
        held = np.array(
            [context.values[seen, c][-1] if (seen := context.mask[:, c]).any() else mean[c] for c in range(len(mean))]
        )
        walk = jumps * np.sqrt(np.maximum(times - context.times[-1], step) / step)[:, None]
        return np.tile(held, (len(times), 1)), np.clip(walk, 1e-9, 1.41 * spread)

    return forecast


def last_season(train: Sequence[Series]) -> Forecaster | None:
    """What was observed one period before (or two, …); None if nothing repeats."""
    period = season(train)
    if period is None:
        return None
    mean, spread = _moments(train)

    def before(context: Series, times: np.ndarray) -> np.ndarray:
        result = np.tile(mean, (len(times), 1))
        for c in range(len(mean)):
            seen = context.mask[:, c]
            t, x = context.times[seen], context.values[seen, c]
            if len(t):
                back = times - period * np.ceil(np.maximum(times - t[-1], 0) / period)
                result[:, c] = np.interp(back, t, x)
        return result

    errors = []
    for item in train:
        inside = item.times > item.times[0] + period
        if inside.any():
            shifted = Series(item.times + period, np.where(item.mask, item.values, np.nan))
            miss = before(shifted, item.times[inside]) - item.values[inside]
            errors.append(np.where(item.mask[inside], miss, np.nan))
    with np.errstate(all="ignore"):
        scatter = np.sqrt(np.nan_to_num(np.nanmean(np.concatenate(errors) ** 2, axis=0))) if errors else spread
    scatter = np.where(scatter > 0, scatter, spread)
    return lambda context, times: (before(context, times), np.tile(scatter, (len(times), 1)))


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
    mean, spread = _moments(train)
    rows = [_filled((to_grid(item, step).values - mean) / spread) for item in train]
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
        past = _filled((grid.values - mean) / spread)
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
    mean, spread = _moments(train)
    grids = [(to_grid(item, step, 1000).values - mean) / spread for item in train][:8]
    grids = [g for g in grids if len(g) > 12]
    if not grids:
        return None
    model = _first_state_space([_filled(g) for g in grids], min(max(2, 2 * len(mean)), 8))
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


BASELINES: dict[str, Callable[[Sequence[Series]], Forecaster | None]] = {
    "training mean": training_mean,
    "last value": last_value,
    "last season": last_season,
    "VAR": vector_autoregression,
    "linear state space": linear_state_space,
}
NAIVE = ("training mean", "last value", "last season")
