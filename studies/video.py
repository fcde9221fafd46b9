"""A neural SDE from video: 32 × 32 black and white frames of a pendulum, a 2-D latent state, a forecast of 30 s from five frames.

Data: an undamped pendulum released at rest from 90°, filmed at 15 Hz; the first 30 s are for training, five frames at 30 s are
given, and the 30 s from there on are forecast. On a GPU the paper's sampling and training are used, on a CPU a configuration
that trains in minutes.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np

import arcta
from arcta.outside.study import Study, markdown
from arcta.predict.figures import ACCENT, INK, MUTED, SECOND, new_figure

# Forecasts start where all five frames are seen, so no look-ahead is hidden in training.
SHARED: dict[str, Any] = {"latent_size": 2, "lookahead": 4, "lookahead_dropout": 0.0, "likelihood": "bernoulli"}
EVERY: dict[str, Any] = {"log_every": 100, "validate_every": 10**6, "checkpoint_every": 10**6}
MACHINE = arcta.LatentSDE(**SHARED, partition_size=64)
MACHINE_TRAINING = arcta.Training(
    steps=3000, num_draws=1, num_times=32, learning_rate=2e-3, warmup=0.1, kl_weight=20.0, kl_ramp=0.0, **EVERY
)
PAPER = arcta.LatentSDE(**SHARED, partition_size=128, activation="relu", kernel_sizes=(32, 32))
PAPER_TRAINING = arcta.Training(
    steps=10_000, num_draws=20, num_times=10, learning_rate=1e-3, schedule="exponential", kl_ramp=0.1, **EVERY
)
GIVEN = 5


def settings(quick: bool) -> tuple[arcta.LatentSDE, arcta.Training]:
    if jax.default_backend() != "cpu":
        return PAPER, PAPER_TRAINING
    if quick:
        return dataclasses.replace(MACHINE, partition_size=16), dataclasses.replace(
            MACHINE_TRAINING, steps=10, num_times=8
        )
    return MACHINE, MACHINE_TRAINING


def films(quick: bool) -> tuple[arcta.datasets.Video, arcta.datasets.Video]:
    """The training film and the one that follows."""
    half = 3.0 if quick else 30.0
    whole = arcta.datasets.pendulum_video(duration=2 * half, size=16 if quick else 32)
    early = whole.series.times < half
    return (
        arcta.datasets.Video(whole.series.at_rows(early), whole.states[early]),
        arcta.datasets.Video(whole.series.at_rows(~early), whole.states[~early]),
    )


def explained(z: np.ndarray, states: np.ndarray, new_z: np.ndarray, new_states: np.ndarray, degree: int) -> np.ndarray:
    """R² of angle and velocity on held-out frames, by polynomials in z fitted on the training frames."""

    def design(z: np.ndarray) -> np.ndarray:
        powers = [(i, j) for i in range(degree + 1) for j in range(degree + 1 - i)]
        return np.stack([z[:, 0] ** i * z[:, 1] ** j for i, j in powers], axis=1)

    weights = np.linalg.lstsq(design(z), states, rcond=None)[0]
    return 1 - np.mean((design(new_z) @ weights - new_states) ** 2, axis=0) / new_states.var(axis=0)


def overlap(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Intersection over union of thresholded frames."""
    return ((a > 0.5) & (b > 0.5)).sum(axis=1) / np.maximum(((a > 0.5) | (b > 0.5)).sum(axis=1), 1)


def measure(study: Study, seed: int) -> dict[str, Any]:
    """Train on the first film, forecast the second from five frames, draw it all."""
    train, test = films(study.quick)
    model, training = settings(study.quick)
    fit = arcta.fit(model, train.series, key=seed, training=training, progress=not study.quiet)
    given = test.series.at_rows(slice(0, GIVEN))
    origin = float(given.times[0])
    ahead = fit.forecast(test.series.times, given=given, origin=origin, num_samples=8 if study.quick else 64, key=1)
    seen, later = (fit.smooth(film.series, num_samples=16).states.mean(axis=0) for film in (train, test))
    linear, cubic = (explained(seen, train.states, later, test.states, degree) for degree in (1, 3))
    frames, still = test.series.values, train.series.values.mean(axis=0)
    lead = test.series.times - origin
    error, still_error = np.mean((ahead.mean - frames) ** 2, axis=1), np.mean((still - frames) ** 2, axis=1)
    iou = overlap(ahead.mean, frames)
    near = np.abs(lead - 10.0) <= 0.5 if not study.quick else lead > lead[-1] - 0.5
    if seed == 0:
        draw(study, ahead, test, error, still_error, iou)
    return {
        "seconds": fit.seconds,
        "r2_linear": linear.tolist(),
        "r2_cubic": cubic.tolist(),
        "reconstruction_iou": float(overlap(fit.smooth(train.series, num_samples=16).mean, train.series.values).mean()),
        "iou_at_10_s": float(iou[near].mean()),
        "least_iou_at_10_s": float(iou[near].min()),
        "iou_by_5_s": [float(iou[(lead >= t) & (lead < t + 5)].mean()) for t in np.arange(0, lead[-1], 5)],
        "frames_worse_than_mean": float(np.mean(error > still_error)),
        "mean_error": float(error.mean()),
        "mean_frame_error": float(still_error.mean()),
        "diffusion": fit.parameters()["median"].iloc[:2].tolist(),
    }


def draw(
    study: Study, ahead: arcta.Prediction, test: Any, error: np.ndarray, still: np.ndarray, iou: np.ndarray
) -> None:
    """Frames with samples overlaid, the latent SDE, the error over time, and a GIF."""
    from PIL import Image

    height, width = test.series.frame_shape
    truth = test.series.values.reshape(-1, height, width)
    mean = ahead.mean.reshape(-1, height, width)
    samples = ahead.signal[:10].mean(axis=0).reshape(-1, height, width)
    lead = test.series.times - test.series.times[0]
    chosen = np.linspace(0, len(lead) - 1, 10).astype(int)
    drawn, axes = new_figure(3, 10, width=13.0, height=1.5)
    for column, i in enumerate(chosen):
        overlay = np.stack([samples[i], 0.6 * truth[i], truth[i]], axis=-1)
        for axis, picture in zip(axes[:, column], (truth[i], mean[i], overlay), strict=True):
            axis.imshow(picture, cmap="gray", vmin=0, vmax=1)
            axis.set_xticks([])
            axis.set_yticks([])
            axis.grid(False)
        axes[0][column].set_title(f"{lead[i]:.1f} s", fontsize=9)
    for axis, name in zip(axes[:, 0], ("film", "mean forecast", "10 samples (red)\nover the film"), strict=True):
        axis.set_ylabel(name, fontsize=8)
    study.save_figure("frames", drawn)
    drawn, axes = new_figure(3, 1, width=11.0, height=2.1)
    for axis, color in zip(axes[:2, 0], (ACCENT, SECOND), strict=True):
        i = 0 if color == ACCENT else 1
        low, high = np.quantile(ahead.states[..., i], [0.05, 0.95], axis=0)
        axis.fill_between(lead, low, high, color=color, alpha=0.2, linewidth=0)
        axis.plot(lead, ahead.states[:5, :, i].T, color=color, linewidth=0.6)
        axis.set_ylabel(f"latent axis {i}", fontsize=9)
    axes[2][0].plot(lead, error, color=ACCENT, label="mean forecast")
    axes[2][0].plot(lead, still, color=MUTED, label="training mean frame")
    axes[2][0].plot(lead, 0.1 * iou, color=INK, linewidth=0.8, label="overlap / 10")
    axes[2][0].set_ylabel("mean squared pixel error", fontsize=9)
    axes[2][0].set_xlabel("seconds since the first frame given", fontsize=9)
    axes[2][0].legend(frameon=False, fontsize=8, ncol=3)
    study.save_figure("latent", drawn)
    single = ahead.signal[0].reshape(-1, height, width)
    strips = np.concatenate(
        [truth, np.full((len(truth), height, 1), 0.5), mean, np.full((len(truth), height, 1), 0.5), single], axis=2
    )
    pages = [
        Image.fromarray((255 * np.clip(page, 0, 1)).astype(np.uint8)).resize((6 * page.shape[1], 6 * height), 0)
        for page in strips[::2]
    ]
    study.out.mkdir(parents=True, exist_ok=True)
    pages[0].save(study.out / "forecast.gif", save_all=True, append_images=pages[1:], duration=133, loop=0)


def run(study: Study) -> None:
    model, training = settings(study.quick)
    chosen = {"model": repr(model), "training": repr(training), "quick": study.quick}
    jobs = [{"seed": seed} for seed in range(study.num_seeds(2))]
    rows = study.measure(jobs, lambda seed: measure(study, seed), chosen)
    table = [
        {
            "seed": row["seed"],
            "R² of angle, velocity: linear": ", ".join(f"{r:.3f}" for r in row["r2_linear"]),
            "cubic": ", ".join(f"{r:.3f}" for r in row["r2_cubic"]),
            "IoU at 10 ± 0.5 s: mean, least": f"{row['iou_at_10_s']:.2f}, {row['least_iou_at_10_s']:.2f}",
            "IoU by 5 s": " ".join(f"{x:.2f}" for x in row["iou_by_5_s"]),
            "frames worse than the mean frame": f"{100 * row['frames_worse_than_mean']:.0f} %",
            "training": f"{row['seconds'] / 60:.1f} min",
        }
        for row in rows
    ]
    study.finish({"table": table}, {"scores": markdown(table)})
