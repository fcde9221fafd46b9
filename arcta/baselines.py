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
from jaxtyping import Bool, Float

from .series import Series


class Smoothed(NamedTuple):
    """What a Kalman smoother knows: means and covariances by time, the filter's last state, cov(z_{k+1}, z_k)."""

    mean: Float[np.ndarray, "n size"]
    covariance: Float[np.ndarray, "n size size"]
    last_mean: Float[np.ndarray, " size"]
    last_covariance: Float[np.ndarray, "size size"]
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
    last = filtered[-1]
    means, covariances, cross = np.empty((n, size)), np.empty((n, size, size)), np.empty((max(n - 1, 0), size, size))
    means[-1], covariances[-1] = m, P = last
    for k in range(n - 2, -1, -1):
        m_f, P_f = filtered[k]
        m_p, P_p = predicted[k + 1]
        gain = np.linalg.solve(P_p, transition[k] @ P_f).T
        cross[k] = P @ gain.T
        m, P = m_f + gain @ (m - m_p), P_f + gain @ (P - P_p) @ gain.T
        means[k], covariances[k] = m, P
    return Smoothed(means, covariances, *last, cross)
