"""How often are the right seasons found, and how often one where there is none? 300 simulated series.

    python benchmarks/seasons.py [--seed 0] [--out benchmarks/results/seasons.json]

One, two, three periods or none; a trend or not; noise of 5 to 100 % of the amplitude of the weakest season; regular or irregular
times, gaps, single values missing. Every season has been seen at least four times and has up to three harmonics; no period is a
small multiple of another, which would be a harmonic of it. Without a season: white noise, an autoregression, or a random walk.
Right: every period within 3 %, and no other. Rules were chosen on seeds from 1000 on.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np

import arcta
from arcta.data.seasons import find_seasons
from arcta.outside.study import machine

PERIODS = (4, 7, 12, 24, 30.44, 52, 96, 168)


def choose_periods(rng: np.random.Generator, count: int, n: int) -> list[float]:
    """Some that fit into n rows, none a small multiple of another."""
    chosen: list[float] = []
    for period in rng.permutation([*PERIODS, rng.uniform(5, 60)]):
        ratios = [max(period / other, other / period) for other in chosen]
        apart = all(ratio > 1.6 and min(abs(ratio - k) for k in (2, 3, 4)) > 0.1 for ratio in ratios)
        if 4 * period <= n and apart and len(chosen) < count:
            chosen.append(float(period))
    return chosen


def noise(rng: np.random.Generator, kind: str, n: int) -> np.ndarray:
    e = rng.standard_normal(n)
    if kind == "walk":
        return 0.3 * np.cumsum(e)
    if kind == "autoregression":
        φ = rng.uniform(0.3, 0.9)
        for i in range(1, n):
            e[i] = φ * e[i - 1] + np.sqrt(1 - φ**2) * e[i]
    return e


def simulate(seed: int) -> tuple[arcta.Series, list[float]]:
    """A series and its periods."""
    rng = np.random.default_rng(seed)
    count, n = int(rng.choice(4, p=[0.3, 0.35, 0.2, 0.15])), int(rng.choice([120, 200, 400, 1000, 2000]))
    periods = choose_periods(rng, count, n)
    times = np.cumsum(rng.exponential(1.0, n)) if rng.random() < 0.25 else np.arange(float(n))
    x, amplitudes = np.zeros(n), []
    for period in periods:
        amplitudes.append(rng.uniform(0.5, 1.5))
        for k in range(1, int(rng.integers(1, 4)) + 1):
            phase = 2 * np.pi * k * times / period + rng.uniform(0, 2 * np.pi)
            x += amplitudes[-1] * rng.uniform(0.3, 0.8) ** (k - 1) * np.cos(phase)
    kind = "white" if periods else str(rng.choice(["white", "autoregression", "walk"]))
    x += rng.uniform(0.05, 1.0) * min(amplitudes, default=1.0) * noise(rng, kind, n)
    x += rng.uniform(-4, 4) * (times / times[-1]) ** rng.integers(0, 3)
    kept = np.ones(n, bool)
    hole = rng.choice(["none", "gap", "missing"])
    if hole == "gap":
        begin = int(rng.uniform(0.2, 0.6) * n)
        kept[begin : begin + n // 8] = False
    elif hole == "missing":
        kept = rng.random(n) > 0.3
    return arcta.Series(times[kept], x[kept]), periods


def judge(seed: int) -> tuple[bool, bool]:
    """Whether there is a season, and whether what was found is right."""
    series, periods = simulate(seed)
    found = [season.period for season in find_seasons([series])]
    hit = all(any(abs(p / q - 1) < 0.03 for q in found) for p in periods)
    extra = any(all(abs(p / q - 1) >= 0.03 for p in periods) for q in found)
    return bool(periods), hit and not extra


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    began = time.perf_counter()
    told = [judge(options.seed + i) for i in range(options.count)]
    with_season = [right for seasonal, right in told if seasonal]
    without = [right for seasonal, right in told if not seasonal]
    result = {
        "seasonal": len(with_season),
        "right": sum(with_season) / max(len(with_season), 1),
        "without": len(without),
        "false": 1 - sum(without) / max(len(without), 1),
        "seconds_each": (time.perf_counter() - began) / len(told),
    }
    print("\n".join(f"{name:14} {value:.3f}" for name, value in result.items()))
    if options.out:
        settings = {"seed": options.seed, "count": options.count, "machine": machine()}
        options.out.write_text(json.dumps({**settings, **result}, indent=1) + "\n")


if __name__ == "__main__":
    main()
