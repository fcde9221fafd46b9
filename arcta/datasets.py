"""Synthetic systems with a known truth, and the MOCAP file: data to try things on.

Each generator returns plain `Series` and, where a study needs it, the noise-free truth.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
from jaxtyping import Float

from .series import Series


def simulate(
    drift: Callable[[np.ndarray], np.ndarray],
    start: Float[np.ndarray, " size"],
    times: Float[np.ndarray, " n"],
    *,
    dispersion: float,
    substeps: int,
    rng: np.random.Generator,
) -> Float[np.ndarray, "n size"]:
    """dz = drift(z) dt + dispersion dβ at the given times: Heun's scheme, order 2 without noise, `substeps` in each step."""
    path = np.empty((len(times), len(start)))
    path[0] = z = np.asarray(start, float)
    for i in range(1, len(times)):
        step = (times[i] - times[i - 1]) / substeps
        for _ in range(substeps):
            kick = dispersion * np.sqrt(step) * rng.standard_normal(z.shape)
            slope = drift(z)
            guess = z + step * slope + kick
            z = z + 0.5 * step * (slope + drift(guess)) + kick
        path[i] = z
    return path


def lotka_volterra_drift(z: Float[np.ndarray, "*n 2"]) -> Float[np.ndarray, "*n 2"]:
    """The paper's predator–prey system: ẋ = ⅔x − 4/3 xy, ẏ = xy − y."""
    x, y = z[..., 0], z[..., 1]
    return np.stack([2 / 3 * x - 4 / 3 * x * y, x * y - y], axis=-1)


def lotka_volterra(*, seed: int = 0, duration: float = 65.0, rate: float = 10.0, noise: float = 0.01) -> Series:
    """Lotka–Volterra with dispersion 1e-3 from (0.9, 0.2), observed `rate` times per second with Gaussian noise.

    !!! example

        >>> import arcta
        >>> arcta.datasets.lotka_volterra(seed=0)
        Series('lotka-volterra': 651 times from 0 to 65, 2 channels (prey, predator), 1302 of 1302 entries observed)
    """
    rng = np.random.default_rng(seed)
    times = np.arange(round(duration * rate) + 1) / rate
    truth = simulate(lotka_volterra_drift, np.array([0.9, 0.2]), times, dispersion=1e-3, substeps=10, rng=rng)
    values = truth + noise * rng.standard_normal(truth.shape)
    return Series(times, values, channels=("prey", "predator"), name="lotka-volterra", time_unit="s")


def lorenz(*, seed: int = 0, duration: float = 10.0, rate: float = 200.0, noise: float = 1.0) -> Series:
    """The Lorenz system (σ, β, ρ) = (10, 8/3, 28) from (8, −2, 36.05), without diffusion, with Gaussian noise."""
    rng = np.random.default_rng(seed)
    times = np.arange(round(duration * rate) + 1) / rate

    def drift(z: np.ndarray) -> np.ndarray:
        x, y, w = z
        return np.array([10 * (y - x), x * (28 - w) - y, x * y - 8 / 3 * w])

    truth = simulate(drift, np.array([8.0, -2.0, 36.05]), times, dispersion=0.0, substeps=20, rng=rng)
    values = truth + noise * rng.standard_normal(truth.shape)
    return Series(times, values, channels=("x", "y", "z"), name="lorenz", time_unit="s")


def ornstein_uhlenbeck(
    times: Float[np.ndarray, " n"], *, rate: float = 1.0, diffusion: float = 1.0, noise: float = 0.1, seed: int = 0
) -> Series:
    """dz = −rate z dt + √diffusion dβ, drawn exactly at any times from its stationary law, with Gaussian noise."""
    rng = np.random.default_rng(seed)
    variance = diffusion / (2 * rate)
    z = np.sqrt(variance) * rng.standard_normal()
    path = [z]
    for step in np.diff(times):
        decay = np.exp(-rate * step)
        z = decay * z + np.sqrt(variance * (1 - decay**2)) * rng.standard_normal()
        path.append(z)
    return Series(times, np.array(path) + noise * rng.standard_normal(len(times)), name="ou")


MOCAP_SHA256 = "105484f138487f10209cce883d26e2e030d10a6df6f10159f4e6e253f9b03b8d"


def mocap(path: str | Path) -> tuple[list[Series], list[Series], list[Series]]:
    """CMU motion capture, subject 35: 16 training, 3 validation and 4 test sequences of 300 × 50, time step 0.1.

    **Arguments:** `path` of `mocap35.mat` as prepared for ODE²VAE. The file is checked before it is read.
    """
    from scipy.io import loadmat

    path = Path(path)
    if not path.is_file():
        raise ValueError(f"the MOCAP file is needed; nothing is at {path}. Pass the path of mocap35.mat.")
    if hashlib.sha256(path.read_bytes()).hexdigest() != MOCAP_SHA256:
        raise ValueError(f"{path} is not the MOCAP file (its sha256 differs); fetch mocap35.mat again.")
    content = loadmat(path)
    times = 0.1 * np.arange(300)

    def sequences(name: str, label: str) -> list[Series]:
        return [Series(times, values, name=f"{label}-{i}") for i, values in enumerate(content[name])]

    return sequences("Xtr", "train"), sequences("Xval", "validation"), sequences("Xtest", "test")
