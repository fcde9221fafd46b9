"""Synthetic systems with a known truth, and the MOCAP file: data to try things on.

Each generator returns plain `Series` and, where a study needs it, the noise-free truth.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from .series import Series


def simulate(
    drift: Callable[[np.ndarray], np.ndarray],
    start: Float[np.ndarray, " size"],
    times: Float[np.ndarray, " n"],
    *,
    dispersion: float | np.ndarray,
    substeps: int,
    rng: np.random.Generator,
) -> Float[np.ndarray, "n size"]:
    """dz = drift(z) dt + dispersion dβ at the given times: Heun's scheme, order 2 without noise, `substeps` in each step."""
    path = np.empty((len(times), len(start)))
    path[0] = z = np.asarray(start, float)
    for i in range(1, len(times)):
        step = (times[i] - times[i - 1]) / substeps
        for kick in dispersion * np.sqrt(step) * rng.standard_normal((substeps, *z.shape)):
            slope = drift(z)
            guess = z + step * slope + kick
            z = z + 0.5 * step * (slope + drift(guess)) + kick
        path[i] = z
    return path


def lotka_volterra_drift(z: Float[np.ndarray, "*n 2"]) -> Float[np.ndarray, "*n 2"]:
    """The paper's predator–prey system: ẋ = ⅔x − 4/3 xy, ẏ = xy − y."""
    x, y = z[..., 0], z[..., 1]
    slope = np.empty(z.shape)
    slope[..., 0], slope[..., 1] = 2 / 3 * x - 4 / 3 * x * y, x * y - y
    return slope


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


def four_species_drift(z: Float[np.ndarray, "*n 4"]) -> Float[np.ndarray, "*n 4"]:
    """Two prey x, two predators y that compete, each prey with a carrying capacity: the paper's appendix on Monte Carlo."""
    alpha, beta, gamma, capacity = (0.3, 0.3), (0.6, 0.3), (0.3, 0.6), (1.5, 1.5)
    delta, epsilon, xi, nu = (1.0, 1.0), (0.6, 0.3), (0.3, 0.6), (0.05, 0.025)
    x, y = (z[..., 0], z[..., 1]), (z[..., 2], z[..., 3])
    prey = [x[i] * (alpha[i] - beta[i] * y[0] - gamma[i] * y[1]) * (1 - x[i] / capacity[i]) for i in range(2)]
    rival = (-nu[0] * y[1], nu[1] * y[0])
    predators = [y[i] * (-delta[i] + epsilon[i] * x[0] + xi[i] * x[1] + rival[i]) for i in range(2)]
    return np.stack([*prey, *predators], axis=-1)


def four_species(*, seed: int = 0, duration: float = 350.0, rate: float = 10.0, noise: float = 0.01) -> Series:
    """Four species with dispersion 1e-3 from (0.9, 0.8, 0.2, 0.1), observed `rate` times per unit of time with noise."""
    rng = np.random.default_rng(seed)
    times = np.arange(round(duration * rate) + 1) / rate
    start = np.array([0.9, 0.8, 0.2, 0.1])
    truth = simulate(four_species_drift, start, times, dispersion=1e-3, substeps=10, rng=rng)
    values = truth + noise * rng.standard_normal(truth.shape)
    return Series(times, values, channels=("prey 1", "prey 2", "predator 1", "predator 2"), name="four-species")


def pendulum_frames(angles: Float[np.ndarray, " n"], *, size: int = 32) -> Float[np.ndarray, "n height width"]:
    """Black and white frames of a thick rod that hangs from the centre, 1 on the rod and 0 elsewhere."""
    y, x = np.mgrid[:size, :size] + 0.5 - size / 2
    along = np.sin(angles)[:, None, None] * x + np.cos(angles)[:, None, None] * y
    across = np.cos(angles)[:, None, None] * x - np.sin(angles)[:, None, None] * y
    length, half_width = 0.44 * size, 0.08 * size
    return ((np.abs(across) <= half_width) & (along >= -half_width) & (along <= length)).astype(float)


class Video(NamedTuple):
    """A video as a series, and the state behind each frame: angle and angular velocity."""

    series: Series
    states: Float[np.ndarray, "n 2"]


def pendulum_video(*, duration: float = 30.0, rate: float = 15.0, start: float = np.pi / 2, size: int = 32) -> Video:
    """An undamped pendulum (ẍ = −sin x) filmed in black and white from rest at angle `start`.

    !!! example

        >>> import arcta
        >>> arcta.datasets.pendulum_video(duration=2.0).series.frame_shape
        (32, 32)
    """
    times = np.arange(round(duration * rate)) / rate
    drift, rng = lambda z: np.array([z[1], -np.sin(z[0])]), np.random.default_rng(0)
    states = simulate(drift, np.array([start, 0.0]), times, dispersion=0.0, substeps=50, rng=rng)
    frames = pendulum_frames(states[:, 0], size=size)
    return Video(Series(times, frames, name="pendulum", time_unit="s"), states)


class Linear(NamedTuple):
    """dz = F z dt + √q dβ, signal = H z: what a Kalman smoother with known parameters needs."""

    F: Float[np.ndarray, "size size"]
    q: Float[np.ndarray, " size"]
    H: Float[np.ndarray, "channels size"]

    def over(self, step: float) -> tuple[Float[np.ndarray, "size size"], Float[np.ndarray, "size size"]]:
        """exp(F h) and ∫ exp(F s) Q exp(F s)ᵀ ds over one step, from one exponential of a block matrix."""
        from scipy.linalg import expm

        size = len(self.F)
        block = np.block([[-self.F, np.diag(self.q)], [np.zeros((size, size)), self.F.T]])
        e = expm(block * step)
        return e[size:, size:].T, e[size:, size:].T @ e[:size, size:]


class Benchmark(NamedTuple):
    """A synthetic series with its noise-free signal, the standard deviation of its noise, and where to cut it.

    `cut` is the end of the training part; `horizon` how far a forecast should reach: two periods of what oscillates, one
    relaxation time of what does not. `linear` is there for the linear families.
    """

    series: Series
    truth: Float[np.ndarray, "n channels"]
    noise: float
    cut: float
    horizon: float
    linear: Linear | None = None


class _Family(NamedTuple):
    drift: Callable[[np.ndarray], np.ndarray]
    dispersion: tuple[float, ...]
    start: tuple[float, ...]
    read_out: Float[np.ndarray, "channels size"]
    noise: float
    step: float
    cut: float
    horizon: float
    linear: bool = False


def _damped_pendulum(z: np.ndarray) -> np.ndarray:
    return np.array([z[1], -np.sin(z[0]) - 0.01 * z[1]])


def _families() -> dict[str, _Family]:
    # Four oscillators in a chain, coupled to their neighbours, and the 40 channels' weights on their positions.
    stiffness = np.diag([1.0, 1.7, 2.9, 4.4]) + 0.3 * (2 * np.eye(4) - np.eye(4, k=1) - np.eye(4, k=-1))
    F = np.block([[np.zeros((4, 4)), np.eye(4)], [-stiffness, -0.02 * np.eye(4)]])
    kicks, start = (0.0,) * 4 + (0.1,) * 4, (1.0, -0.5, 0.5, 0.3) + (0.0,) * 4
    weights = np.concatenate([np.random.default_rng(2023).standard_normal((40, 4)), np.zeros((40, 4))], axis=1)
    return {
        "ou": _Family(
            lambda z: -z, (1.0,), (0.0,), np.eye(1), noise=0.2, step=0.1, cut=100.0, horizon=1.0, linear=True
        ),
        "double-well": _Family(
            lambda z: z - z**3, (0.7,), (1.0,), np.eye(1), noise=0.2, step=0.2, cut=200.0, horizon=6.2
        ),
        "pendulum": _Family(
            _damped_pendulum, (0.0, 0.05), (1.0, 0.0), np.eye(1, 2), noise=0.1, step=0.2, cut=200.0, horizon=4 * np.pi
        ),
        "lotka-volterra": _Family(
            lotka_volterra_drift, (0.01, 0.01), (0.9, 0.2), np.eye(2), noise=0.05, step=0.1, cut=80.0, horizon=15.5
        ),
        "oscillators": _Family(
            lambda z: F @ z, kicks, start, weights, noise=0.5, step=0.2, cut=200.0, horizon=4 * np.pi, linear=True
        ),
    }


FAMILIES = tuple(_families())
SAMPLINGS = ("regular", "irregular", "missing")


def benchmark(family: str, sampling: str = "regular", *, seed: int = 0) -> Benchmark:
    """One of five systems with known truth, to measure forecasts, bands and smoothing on.

    `ou` and `double-well` (one channel), `pendulum` (its angle alone is seen), `lotka-volterra`, and `oscillators` (four
    coupled ones seen through 40 channels). Half as much again as the training part is held out after `cut`.

    **Arguments:** `sampling`: `"regular"`, `"irregular"` (independent exponential gaps of the same mean) or `"missing"`
    (half of the entries, at random).

    !!! example

        >>> import arcta
        >>> arcta.datasets.benchmark("ou", "irregular", seed=1).series.channels
        ('x0',)
    """
    system = _families()[family]
    rng = np.random.default_rng([seed, FAMILIES.index(family), SAMPLINGS.index(sampling)])
    count = round(1.5 * system.cut / system.step)
    gaps = rng.exponential(system.step, count) + 1e-3 * system.step if sampling == "irregular" else system.step
    times = np.cumsum(np.full(count, 1.0) * gaps) - (0 if sampling == "irregular" else system.step)
    noise_rng, path_rng = rng.spawn(2)
    start, dispersion = np.array(system.start), np.array(system.dispersion)
    states = simulate(system.drift, start, times, dispersion=dispersion, substeps=20, rng=path_rng)
    truth = states @ system.read_out.T
    values = truth + system.noise * noise_rng.standard_normal(truth.shape)
    if sampling == "missing":
        values[noise_rng.uniform(size=values.shape) < 0.5] = np.nan
    linear = None
    if system.linear:
        F = np.stack([system.drift(axis) for axis in np.eye(len(start))], axis=1)
        linear = Linear(F, dispersion**2, system.read_out)
    return Benchmark(Series(times, values, name=family), truth, system.noise, system.cut, system.horizon, linear)


MOCAP_URL = "https://www.dropbox.com/s/p75wc1j53itonuo/mocap35.mat?dl=1"
MOCAP_SHA256 = "105484f138487f10209cce883d26e2e030d10a6df6f10159f4e6e253f9b03b8d"


def _download_mocap(path: Path) -> None:
    """Fetch the file whole or not at all."""
    import urllib.request

    partial = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with urllib.request.urlopen(MOCAP_URL, timeout=60) as response:
            partial.write_bytes(response.read())
        partial.replace(path)
    except OSError as error:
        raise ValueError(
            f"{path.name} could not be fetched ({error}). Get it from {MOCAP_URL} and pass its path, or set ARCTA_MOCAP to it."
        ) from None
    finally:
        partial.unlink(missing_ok=True)


def mocap(path: str | Path | None = None, *, download: bool = False) -> tuple[list[Series], list[Series], list[Series]]:
    """CMU motion capture, subject 35: 16 training, 3 validation and 4 test sequences of 300 × 50, time step 0.1.

    **Arguments:** `path` of `mocap35.mat` as prepared for ODE²VAE (default: the environment variable `ARCTA_MOCAP`, else
    `mocap35.mat` here); with `download` it is fetched to that place if nothing is there. The file is checked before it is
    read.
    """
    from scipy.io import loadmat

    path = Path(path or os.environ.get("ARCTA_MOCAP") or "mocap35.mat")
    if not path.is_file() and download:
        _download_mocap(path)
    if not path.is_file():
        raise ValueError(
            f"the MOCAP file is needed; nothing is at {path}. Pass the path of mocap35.mat, or download=True."
        )
    if hashlib.sha256(path.read_bytes()).hexdigest() != MOCAP_SHA256:
        raise ValueError(f"{path} is not the MOCAP file (its sha256 differs); fetch mocap35.mat again.")
    content = loadmat(path)
    times = 0.1 * np.arange(300)

    def sequences(name: str, label: str) -> list[Series]:
        # Four joints that never move were left with residues of rounding, some 1e-14 of a radian.
        angles = np.round(content[name], 12)
        return [Series(times, values, name=f"{label}-{i}") for i, values in enumerate(angles)]

    return sequences("Xtr", "train"), sequences("Xval", "validation"), sequences("Xtest", "test")
