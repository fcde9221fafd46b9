"""The embedded default: the paper's Lotka–Volterra set-up, its model and its training, as one place that all use.

Same system, noise and split as the paper (50 s at 10 Hz for training, 15 s for validation, noise 0.01 known, identity
decoder, drift of three layers of 64, R = 1, S = 10); other than there: a smooth activation, M = 128, cosine decay, the
rotation term. 1,000 steps of 10 drift values make 10,000.
"""

from __future__ import annotations

from .datasets import lotka_volterra
from .model import LatentSDE
from .series import Series, split
from .train import Training

MODEL = LatentSDE(
    decoder="identity",
    noise=0.01,
    lookahead=0,
    drift_sizes=(64, 64, 64),
    diffusion_start=1e-4,
    partition_size=128,
)
TRAINING = Training(steps=1000, num_draws=1, num_times=10, validate_every=250)


def data(seed: int = 0) -> tuple[Series, Series]:
    """Training series on [0, 50] s and validation series on (50, 65] s."""
    return split(lotka_volterra(seed=seed), time=50.0)
