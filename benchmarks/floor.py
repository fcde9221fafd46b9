"""How close to the Kalman smoother can a model come that has to learn its read-out? Four oscillators behind forty channels.

    python benchmarks/floor.py [--out benchmarks/results/floor.json]

On the oscillators of the families study: the smoother that knows everything, and the same one that knows dynamics and noise but has
the 160 weights from positions to channels by maximum likelihood from the same rows (EM from the true ones): a floor for what
learns more.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from arcta.data.datasets import SAMPLINGS, Benchmark, benchmark
from arcta.outside.study import machine
from arcta.predict.classical import kalman_smoother

ROUNDS = 40


def errors(data: Benchmark) -> tuple[float, float]:
    """RMSE of the signal, read-out known, and learned."""
    linear, rows = data.linear, data.series.times <= data.cut
    assert linear is not None
    gaps = np.round(np.diff(data.series.times[rows]), 9)
    known = {gap: linear.over(gap) for gap in np.unique(gaps)}
    size, (x, mask) = len(linear.F), (data.series.values[rows], data.series.mask[rows])
    steps = np.stack([known[gap][0] for gap in gaps])
    kicks = np.stack([known[gap][1] for gap in gaps]) + 1e-12 * np.eye(size)
    variance = np.full(len(linear.H), data.noise**2)
    H, found = np.array(linear.H), []
    used = np.any(H != 0, axis=0)  # channels see positions
    for turn in range(ROUNDS + 1):
        smooth = kalman_smoother(steps, kicks, H, variance, np.zeros(size), np.eye(size), x, mask)
        if turn in (0, ROUNDS):
            found.append(float(np.sqrt(np.mean((smooth.mean @ H.T - data.truth[rows]) ** 2))))
        z, S = smooth.mean[:, used], smooth.covariance[:, used][:, :, used]
        for channel in range(len(H)):
            seen = mask[:, channel]
            squares = z[seen].T @ z[seen] + S[seen].sum(axis=0)
            H[channel, used] = np.linalg.solve(squares, z[seen].T @ x[seen, channel])
    return found[0], found[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    out, rows = parser.parse_args().out, []
    for sampling in SAMPLINGS:
        for seed in range(2):
            known, learned = errors(benchmark("oscillators", sampling, seed=seed))
            rows.append({"sampling": sampling, "seed": seed, "known": known, "learned": learned})
            print(f"{sampling} {seed}  read-out known {known:.4f}  learned {learned:.4f}  ratio {learned / known:.3f}")
    ratio = float(np.sqrt(np.mean([r["learned"] ** 2 for r in rows]) / np.mean([r["known"] ** 2 for r in rows])))
    print(f"all together: {ratio:.3f}")
    if out is not None:
        out.write_text(
            json.dumps({"machine": machine(), "rounds": ROUNDS, "rows": rows, "ratio": ratio}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
