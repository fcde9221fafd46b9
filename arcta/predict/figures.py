"""Figures from plain arrays: bands, loss curves, vector fields. matplotlib is imported when one is drawn."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, MUTED, ACCENT, SECOND = "#1f2933", "#8a97a6", "#0b6e99", "#d1495b"
LONGEST_NAME = 40


def new_figure(rows: int, columns: int = 1, *, width: float = 9.0, height: float = 2.4) -> tuple[Figure, Any]:
    """A figure in the house style, made without pyplot (no global state); axes as a 2-D array."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height * rows), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(colors=INK, labelsize=9)
        axis.grid(color="#e4e8ec", linewidth=0.6)
        axis.set_axisbelow(True)
        for text in (axis.title, axis.xaxis.label, axis.yaxis.label):
            text.set_parse_math(False)  # names may hold $, and the house writes no formulas
    return figure, axes


def short_dates(axis: Axes, times: Any) -> None:
    """Few ticks that do not run into each other, where the times are dates."""
    if hasattr(times, "tz"):
        from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

        locator = AutoDateLocator(maxticks=8)
        axis.xaxis.set_major_locator(locator)
        axis.xaxis.set_major_formatter(ConciseDateFormatter(locator))


def shorten(name: str) -> str:
    """A name as it fits beside an axis: one line of at most 40 letters."""
    line = " ".join("".join(c if c.isprintable() else " " for c in name).split())
    return line if len(line) <= LONGEST_NAME else f"{line[: LONGEST_NAME - 1]}…"


def label(name: str, unit: str) -> str:
    """`name [unit]`, or the bare name."""
    return f"{shorten(name)} [{shorten(unit)}]" if unit else shorten(name)


def save_figure(figure: Figure, target: str | Path | io.StringIO | io.BytesIO, **options: Any) -> None:
    """Write a figure; letters that the font lacks are drawn as boxes."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")
        figure.savefig(target, **options)


def draw_bands(
    axis: Axes,
    times: Any,
    mean: Float[np.ndarray, " n"],
    bands: Sequence[tuple[float, Float[np.ndarray, " n"], Float[np.ndarray, " n"]]],
    paths: Iterable[Float[np.ndarray, " n"]],
) -> None:
    """A mean, central bands (coverage, low, high) from wide to narrow, and a few sample paths."""
    for coverage, low, high in sorted(bands, key=lambda band: -band[0]):
        shade = 0.18 if coverage > 0.7 else 0.3
        axis.fill_between(times, low, high, color=ACCENT, alpha=shade, linewidth=0, label=f"{coverage:.0%} band")
    for i, sample in enumerate(paths):
        axis.plot(times, sample, color=ACCENT, linewidth=0.6, alpha=0.8, label="sample paths" if i == 0 else None)
    axis.plot(times, mean, color=ACCENT, linewidth=1.8, label="mean")
    short_dates(axis, times)


def draw_points(axis: Axes, times: Any, values: np.ndarray, *, color: str, name: str) -> None:
    """Observations as dots; many of them as a picture inside the drawing, which would be megabytes otherwise."""
    axis.plot(times, values, ".", color=color, markersize=3, label=name, rasterized=len(times) > 800)


def loss_curves(history: Sequence[Mapping[str, int | float]]) -> Figure:
    """The terms of the bound, and the validation error where there is one, against the step."""
    validated = any("validation" in row for row in history)
    figure, axes = new_figure(1, 3 if validated else 2, width=11.0 if validated else 8.0, height=2.8)
    steps = [row["step"] for row in history]
    fit, kl = axes[0, :2]
    fit.plot(steps, [row["log_likelihood"] for row in history], color=ACCENT, linewidth=1.5)
    for name, color in (("path_kl", SECOND), ("initial_kl", MUTED), ("parameter_kl", INK)):
        values = [max(row[name], 1e-3) for row in history]
        kl.plot(steps, values, color=color, linewidth=1.5, label=name.replace("_", " "))
    kl.legend(frameon=False, fontsize=8)
    if validated:
        points = [(row["step"], row["validation"]) for row in history if "validation" in row]
        axes[0, 2].plot(*zip(*points, strict=True), "o-", color=ACCENT, markersize=3, linewidth=1.5)
    titles = ("log-likelihood [nats]", "KL terms [nats]", "validation error of the forecast")
    for i, axis in enumerate(axes[0]):
        axis.set_title(titles[i], fontsize=10)
        axis.set_xlabel("step", fontsize=9)
        axis.set_yscale("log" if i else "linear")
    return figure


def phase_portrait(
    fields: Mapping[str, Callable[[np.ndarray], np.ndarray]],
    low: Float[np.ndarray, " 2"],
    high: Float[np.ndarray, " 2"],
    *,
    points: Float[np.ndarray, "n 2"],
    names: tuple[str, str],
) -> Figure:
    """Vector fields side by side on one box, coloured by speed on one scale, with the data's path over each.

    **Arguments:** `fields` maps a title to a function of points `(n, 2)` that returns their velocities.
    """
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    x, y = np.meshgrid(np.linspace(low[0], high[0], 25), np.linspace(low[1], high[1], 25))
    grid = np.stack([x.ravel(), y.ravel()], axis=1)
    velocities = {title: np.asarray(field(grid)).reshape(*x.shape, 2) for title, field in fields.items()}
    speeds = {title: np.linalg.norm(v, axis=-1) for title, v in velocities.items()}
    scale = ScalarMappable(Normalize(0, max(speed.max() for speed in speeds.values())), "viridis")
    figure, axes = new_figure(1, len(fields), width=4.6 * len(fields), height=4.0)
    for axis, (title, v) in zip(axes[0], velocities.items(), strict=True):
        colors = {"color": speeds[title], "cmap": scale.cmap, "norm": scale.norm}
        axis.streamplot(x, y, *np.moveaxis(v, -1, 0), **colors, density=1.1, linewidth=1, arrowsize=0.8)
        axis.plot(points[:, 0], points[:, 1], ".", color=SECOND, markersize=2, alpha=0.6)
        axis.set(
            title=title,
            xlabel=shorten(names[0]),
            ylabel=shorten(names[1]),
            xlim=(low[0], high[0]),
            ylim=(low[1], high[1]),
        )
    figure.colorbar(scale, ax=axes[0].tolist(), label="speed", shrink=0.85)
    return figure


def data_overview(
    rows: Sequence[tuple[str, Any, np.ndarray, Sequence[tuple[Any, Any]]]], *, cut: Any = None, xlabel: str = "time"
) -> Figure:
    """What was observed, channel by channel, with its gaps shaded.

    **Arguments:** `rows`: for each channel its label, times, values and the gaps (begin, end); `cut`: where the held-out
    part begins.
    """
    figure, axes = new_figure(len(rows), height=1.5)
    for axis, (name, times, values, gaps) in zip(axes[:, 0], rows, strict=True):
        for begin, end in gaps:
            axis.axvspan(begin, end, color=SECOND, alpha=0.12, linewidth=0)
        draw_points(axis, times, values, color=ACCENT, name=name)
        if cut is not None:
            axis.axvline(cut, color=INK, linewidth=1.0, linestyle="--")
        axis.set_ylabel(name, fontsize=9)
        short_dates(axis, times)
    axes[-1, 0].set_xlabel(xlabel, fontsize=9)
    return figure


def calibration(levels: np.ndarray, covered: np.ndarray, ranks: np.ndarray) -> Figure:
    """Left: how often central bands cover, against what they promise. Right: where observations fall in the forecast
    distribution (PIT), flat if it is right."""
    figure, axes = new_figure(1, 2, width=9.0, height=3.0)
    left, right = axes[0]
    left.plot([0, 1], [0, 1], color=MUTED, linewidth=1, linestyle="--")
    left.plot(levels, covered, "o-", color=ACCENT, markersize=4, linewidth=1.6)
    left.set(xlabel="promised coverage", ylabel="observed coverage", xlim=(0, 1), ylim=(0, 1))
    right.hist(ranks, bins=np.linspace(0, 1, 11), density=True, color=ACCENT, alpha=0.7, edgecolor="white")
    right.axhline(1, color=MUTED, linewidth=1, linestyle="--")
    right.set(xlabel="rank of the observation in its forecast", ylabel="density", xlim=(0, 1))
    return figure


def drift_curve(
    z: np.ndarray, rate: np.ndarray, spread: np.ndarray, visited: np.ndarray, *, names: tuple[str, str]
) -> Figure:
    """A one-dimensional drift with one standard deviation of its diffusion over one unit of time, and where the state was."""
    figure, axes = new_figure(1, width=7.0, height=3.2)
    axis = axes[0, 0]
    axis.axhline(0, color=MUTED, linewidth=1)
    axis.fill_between(z, rate - spread, rate + spread, color=ACCENT, alpha=0.15, linewidth=0, label="± diffusion")
    axis.plot(z, rate, color=ACCENT, linewidth=1.8, label="drift")
    ground = np.full(len(visited), axis.get_ylim()[0])
    axis.plot(visited, ground, "|", color=SECOND, markersize=8, alpha=0.3, rasterized=True)
    axis.set(xlabel=shorten(names[0]), ylabel=shorten(names[1]))
    axis.legend(frameon=False, fontsize=8)
    return figure


def states_over_time(
    times: Any, mean: np.ndarray, low: np.ndarray, high: np.ndarray, names: Sequence[str], xlabel: str
) -> Figure:
    """Latent axes with their 90 % bands."""
    figure, axes = new_figure(len(names), height=1.4)
    for i, (axis, name) in enumerate(zip(axes[:, 0], names, strict=True)):
        axis.fill_between(times, low[:, i], high[:, i], color=ACCENT, alpha=0.25, linewidth=0)
        axis.plot(times, mean[:, i], color=ACCENT, linewidth=1.2)
        axis.set_ylabel(shorten(name), fontsize=9)
        short_dates(axis, times)
    axes[-1, 0].set_xlabel(xlabel, fontsize=9)
    return figure


def components_over_time(frame: pd.DataFrame, channel: str | None = None) -> Figure:
    """The parts of a channel (default: the first), one below the other: of what `fit.components()` gives."""
    channels = list(dict.fromkeys(frame.columns.get_level_values(0)))
    chosen = channels[0] if channel is None else channel
    if chosen not in channels:
        raise ValueError(
            f"there is no channel '{chosen}'; the channels are {', '.join(channels[:8])}. Use one of them."
        )
    parts = frame[chosen]
    dated = hasattr(parts.index, "tz")
    times = parts.index.tz_localize(None) if dated else parts.index  # pyright: ignore[reportAttributeAccessIssue]
    figure, axes = new_figure(parts.shape[1], height=1.5)
    for axis, (name, values) in zip(axes[:, 0], parts.items(), strict=True):
        style = {"linestyle": "", "marker": ".", "markersize": 3} if name == "noise" else {"linewidth": 1.5}
        axis.plot(times, values, color=ACCENT, **style)
        axis.set_ylabel(shorten(str(name)), fontsize=9)
        short_dates(axis, times)
    scale = frame.attrs.get("scales", {}).get(chosen, "identity")
    said = {"log": "parts multiply to it", "root": "parts add up to its square root"}.get(scale, "parts add up to it")
    axes[0, 0].set_title(f"{shorten(str(chosen))}: {said}", fontsize=10)
    axes[-1, 0].set_xlabel("" if dated else str(parts.index.name), fontsize=9)
    return figure


def frame_strip(rows: Mapping[str, np.ndarray], titles: Sequence[str]) -> Figure:
    """Rows of pictures on one scale of grey: by name, arrays (count, height, width[, 3])."""
    count = len(titles)
    figure, axes = new_figure(len(rows), count, width=1.4 * count + 0.6, height=1.5)
    for line, (name, frames) in zip(axes, rows.items(), strict=True):
        for i, axis in enumerate(line):
            axis.imshow(np.clip(frames[i], 0, 1), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            axis.set(xticks=[], yticks=[])
            axis.grid(visible=False)
            if line is axes[0]:
                axis.set_title(titles[i], fontsize=8)
        line[0].set_ylabel(name, fontsize=9)
    return figure
