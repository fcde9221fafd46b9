"""Exact answers for linear-Gaussian SDEs, in NumPy and float64: Kalman filter, smoother, and a posterior made of them.

dz = F z dt + √q dβ, z(0) ~ N(m0, P0), x_i = z(t_i) + noise. This is the independent truth of several tests; it shares no
code with the package.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import expm, solve_continuous_lyapunov


def transition(F: np.ndarray, q: np.ndarray, step: float) -> tuple[np.ndarray, np.ndarray]:
    """exp(F h) and ∫ exp(F s) Q exp(F s)ᵀ ds by Van Loan's matrix exponential."""
    d = len(F)
    block = np.block([[-F, np.diag(q)], [np.zeros((d, d)), F.T]]) * step
    e = expm(block)
    A = e[d:, d:].T
    return A, A @ e[:d, d:]


def log_likelihood(F, q, m0, P0, times, xs, noise_variance) -> float:
    """Σ log p(x_i | x_<i) by the Kalman filter; NaN entries are missing."""
    m, P, total = m0.astype(float), P0.astype(float), 0.0
    for i, x in enumerate(xs):
        if i:
            A, Q = transition(F, q, times[i] - times[i - 1])
            m, P = A @ m, A @ P @ A.T + Q
        seen = ~np.isnan(x)
        if seen.any():
            H = np.eye(len(m))[seen]
            V = H @ P @ H.T + noise_variance * np.eye(seen.sum())
            error = x[seen] - H @ m
            total += -0.5 * (error @ np.linalg.solve(V, error) + np.linalg.slogdet(2 * np.pi * V)[1])
            gain = P @ H.T @ np.linalg.inv(V)
            m, P = m + gain @ error, P - gain @ H @ P
    return total


def joint(F, q, m0, P0, times, xs, noise_variance, query):
    """Posterior mean and covariance at the query times from the joint Gaussian: brute force, O((n d)³)."""
    d = len(m0)
    grid = np.concatenate([[times[0]], query, times])
    n = len(grid)
    since_start = [transition(F, q, t - times[0]) for t in grid]
    mean = np.concatenate([A @ m0 for A, _ in since_start])
    marginal = np.stack([A @ P0 @ A.T + Q for A, Q in since_start])
    decay = expm(F * np.abs(grid[:, None] - grid[None, :])[..., None, None])
    later = (grid[:, None] <= grid[None, :])[..., None, None]
    forward = marginal[:, None] @ np.swapaxes(decay, -1, -2)  # cov(z(s), z(t)) = P(s) exp(F (t − s))ᵀ for s ≤ t
    blocks = np.where(later, forward, np.swapaxes(np.swapaxes(forward, 0, 1), -1, -2))
    covariance = blocks.transpose(0, 2, 1, 3).reshape(n * d, n * d)
    observed = np.arange((1 + len(query)) * d, len(grid) * d)
    wanted = np.arange(d, (1 + len(query)) * d)
    V = covariance[np.ix_(observed, observed)] + noise_variance * np.eye(len(observed))
    gain = covariance[np.ix_(wanted, observed)] @ np.linalg.inv(V)
    post_mean = mean[wanted] + gain @ (xs.reshape(-1) - mean[observed])
    post_cov = covariance[np.ix_(wanted, wanted)] - gain @ covariance[np.ix_(observed, wanted)]
    count = len(query)
    return post_mean.reshape(count, d), np.stack(
        [post_cov[i * d : (i + 1) * d, i * d : (i + 1) * d] for i in range(count)]
    )


def simulate(F, q, m0, P0, times, noise_variance, rng):
    """One exact draw of the observations."""
    z = rng.multivariate_normal(m0, P0)
    xs = []
    for i in range(len(times)):
        if i:
            A, Q = transition(F, q, times[i] - times[i - 1])
            z = A @ z + rng.multivariate_normal(np.zeros(len(z)), Q)
        xs.append(z + np.sqrt(noise_variance) * rng.standard_normal(len(z)))
    return np.array(xs)


def stationary(F, q) -> np.ndarray:
    """P with F P + P Fᵀ + Q = 0."""
    return solve_continuous_lyapunov(F, -np.diag(q))
