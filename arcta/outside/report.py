"""A run as one page: `report` looks at a fit from all sides."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..data.read import describe
from ..data.series import Series
from ..predict.figures import (
    ACCENT,
    SECOND,
    calibration,
    data_overview,
    drift_curve,
    frame_strip,
    label,
    loss_curves,
    new_figure,
    phase_portrait,
    states_over_time,
)
from ..predict.prediction import Prediction
from ..task.backtest import Backtest, backtest, default_horizon
from ..task.fitted import Fit

if TYPE_CHECKING:
    pass


from .page import Section, table, write_report


def _gaps(times: np.ndarray, whole: np.ndarray) -> list[tuple[float, float]]:
    """Stretches without an observation, longer than five typical steps of the data."""
    steps = np.diff(times)
    typical = float(np.median(np.diff(whole))) if len(whole) > 1 else 0.0
    wide = np.flatnonzero(steps > max(5 * typical, 1.5 * float(np.median(steps)) if len(steps) else 0.0))
    return [(float(times[i]), float(times[i + 1])) for i in wide[:200]]


def _example(fit: Fit) -> Series:
    """The series to draw: the longest."""
    return max(fit.context, key=len)


def _shown(series: Series, times: Any) -> Any:
    return series.calendar.dates(times).tz_localize(None) if series.calendar else np.asarray(times)


def _time_label(series: Series) -> str:
    return "" if series.calendar else label("time", series.time_unit)


def _data_section(fit: Fit) -> Section:
    series = _example(fit)
    rows = []
    for i in range(min(len(series.channels), 6)):
        seen = series.mask[:, i]
        t = series.times[seen]
        if series.frame_shape:
            t, values, name = series.times, series.values.mean(axis=1), "mean pixel"
        else:
            values, name = series.values[seen, i], label(series.channels[i], series.units[i])
        gaps: Any = _gaps(t, series.times)
        if series.calendar and gaps:
            gaps = list(zip(_shown(series, [a for a, _ in gaps]), _shown(series, [b for _, b in gaps]), strict=True))
        rows.append((name, _shown(series, t), values, gaps))
        if series.frame_shape:
            break
    cut = fit.cuts.get(series.name)
    cut = _shown(series, [cut])[0] if cut is not None else None
    figure = data_overview(rows, cut=cut, xlabel=_time_label(series))
    words = describe(fit.context, fit.about.get("notes", ()))
    text = (
        f"Series '{series.name}'; gaps are shaded, the dashed line is where training ended." if cut is not None else ""
    )
    return Section("The data", figure, "data", text, f"<pre>{html.escape(words)}</pre>")


def _near(series: Series, cut: float, span: float) -> Series:
    rows = (series.times > cut - 2 * span) & (series.times <= cut)
    return series.at_rows(rows) if series.mask[rows].any() else series


def _forecast_section(fit: Fit, before: Series, after: Series, ahead: Prediction) -> Section:
    span = float(after.times[-1] - after.times[0]) or 1.0
    context = _near(before, float(before.times[-1]), span)
    heading = "Forecast against what was held out"
    text = (
        "Bands include observation noise; thin lines are sample paths without it. The model saw the grey points only."
    )
    if after.frame_shape:
        chosen = np.unique(np.linspace(0, len(after) - 1, 8).astype(int))
        shape = after.frame_shape
        strip = frame_strip(
            {
                "observed": after.values[chosen].reshape(-1, *shape),
                "forecast": ahead.mean[chosen].reshape(-1, *shape),
                "one path": ahead.signal[0, chosen].reshape(-1, *shape),
            },
            [f"t={after.when(t)}" for t in after.times[chosen]],
        )
        return Section(
            heading, strip, "forecast", "Mean forecast and one sampled path below the frames that were held out."
        )
    order = np.argsort(-after.mask.sum(axis=0), kind="stable")[:6]
    names = [after.channels[i] for i in sorted(order)]
    return Section(heading, ahead.plot(truth=after, context=context, channels=names), "forecast", text)


def gif(pairs: Sequence[np.ndarray], milliseconds: int = 80) -> bytes:
    """Frames `(height, width[, 3])` in [0, 1] as an animated GIF, enlarged to at least 128 pixels."""
    from PIL import Image

    factor = max(1, 128 // pairs[0].shape[0])
    pictures = []
    for frame in pairs:
        grey = (255 * np.clip(frame, 0, 1)).astype(np.uint8)
        image = Image.fromarray(grey)
        pictures.append(image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST))
    buffer = io.BytesIO()
    pictures[0].save(buffer, "GIF", save_all=True, append_images=pictures[1:], duration=milliseconds, loop=0)
    return buffer.getvalue()


def _film(folder: Path, after: Series, ahead: Prediction) -> Section:
    shape = after.frame_shape or (1, 1)
    rule = np.ones((shape[0], 2, *shape[2:]))
    frames = [
        np.concatenate([x.reshape(shape), rule, y.reshape(shape)], axis=1)
        for x, y in zip(after.values[:120], ahead.mean[:120], strict=True)
    ]
    content = gif(frames)
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    (folder / "figures" / "forecast.gif").write_bytes(content)
    image = f"<img alt='observed and forecast frames' src='data:image/gif;base64,{base64.b64encode(content).decode()}'>"
    return Section("Film: observed (left) and forecast (right)", image)


def _spread_section(fit: Fit, after: Series, ahead: Prediction) -> Section:
    """Both kinds of uncertainty over the horizon, channel by channel."""
    within, between = ahead.spreads()
    shown = range(min(len(ahead.channels), 4))
    figure, axes = new_figure(len(shown), height=1.9)
    times = _shown(after, ahead.times)
    for axis, i in zip(axes[:, 0], shown, strict=True):
        axis.plot(times, within[:, i], color=ACCENT, label="within a member: noise, dynamics, parameters")
        axis.plot(times, between[:, i], color=SECOND, label="between members: what the data left open")
        axis.set_ylabel(label(ahead.channels[i], ahead.units[i]), fontsize=9)
        axis.set_ylim(bottom=0)
    axes[0, 0].legend(frameon=False, fontsize=8)
    axes[-1, 0].set_xlabel(_time_label(after), fontsize=9)
    share = float(np.mean(between**2) / max(np.mean(within**2 + between**2), 1e-300))
    text = (
        f"Standard deviations of the forecast of {len(fit.members)} models trained from different seeds. Their disagreement makes "
        f"up {share:.0%} of the variance; where it is large, more data would help, where it is small, it would not."
    )
    return Section("Two kinds of uncertainty", figure, "uncertainty", text)


def _calibration_section(result: Backtest) -> Section:
    ranks = result.entries["latent SDE"]["pit"]
    levels = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95])
    covered = np.array([np.mean(np.abs(2 * ranks - 1) <= level) for level in levels])
    text = f"From {len(result.origins)} origins, {len(ranks):,} observations, none of them seen in training."
    return Section(
        "Calibration: do the bands mean what they say?", calibration(levels, covered, ranks), "calibration", text
    )


def _backtest_section(result: Backtest) -> Section:
    rows = [
        {"method": name, "rmse": row["rmse"], "CRPS": row["crps"], "inside 90 % band": f"{row['coverage_90']:.0%}"}
        | {f"rmse {part}": value for part, value in result.by_lead.loc[name].items()}
        for name, row in result.table.iterrows()
    ]
    kind = "good" if result.beats_naive else "warn"
    verdict = result.verdict()
    text = (
        f"Forecasts {result.horizon:.4g} ahead from {len(result.origins)} origins, no refit. Errors are in units of each channel's "
        "standard deviation in training, over all of the horizon and by quarters of it."
    )
    body = f"<p class='verdict {kind}'>{html.escape(verdict[0].upper() + verdict[1:])}</p>{table(rows, 'method')}"
    return Section("Against the forecasts to beat", body, text=text)


def _smooth_sections(fit: Fit, series: Series) -> list[Section]:
    rows = np.flatnonzero(series.mask.any(axis=1))
    part = series.at_rows(slice(rows[0], rows[min(len(rows) - 1, 400)] + 1))
    seen = part.times[part.mask.any(axis=1)]
    times = np.unique(np.concatenate([np.linspace(seen[0], seen[-1], 601), seen])) if not series.frame_shape else seen
    smooth = fit.smooth(part, times, num_samples=128, key=2)
    xlabel = _time_label(series)
    axes = _axis_names(fit)
    low, high = np.quantile(smooth.states, [0.05, 0.95], axis=0)
    states = states_over_time(_shown(series, times), smooth.states.mean(axis=0), low, high, axes, xlabel)
    sections = []
    if series.frame_shape:
        chosen = np.unique(np.linspace(0, len(part) - 1, 8).astype(int))
        strip = frame_strip(
            {
                "observed": part.values[chosen].reshape(-1, *series.frame_shape),
                "reconstructed": smooth.mean[np.searchsorted(times, part.times[chosen])].reshape(
                    -1, *series.frame_shape
                ),
            },
            [f"t={part.when(t)}" for t in part.times[chosen]],
        )
        sections.append(Section("Reconstructed frames", strip, "reconstruction"))
    else:
        figure = smooth.plot(truth=part, num_paths=0)
        sections.append(
            Section(
                "Smoothed: noise removed, gaps filled",
                figure,
                "smooth",
                "The first observations of the series drawn above.",
            )
        )
    sections.append(Section("The latent state, with 90 % bands", states, "states"))
    return sections


def _axis_names(fit: Fit) -> list[str]:
    own = fit.model.decoder.in_data_coordinates
    return list(fit.layout.channels) if own else [f"z{i}" for i in range(fit.reading.latent_size)]


def _drift_section(fit: Fit, series: Series) -> Section:
    rows = np.flatnonzero(series.mask.any(axis=1))[-2000:]
    states = fit.smooth(series.at_rows(slice(rows[0], None)), num_samples=1, key=3).states[0]
    inputs = fit.layout.scaling.input_shift if fit.layout.input_names else None
    low, high = np.quantile(states, [0.005, 0.995], axis=0)
    margin = 0.15 * (high - low) + 1e-9
    names = _axis_names(fit)
    note = "" if inputs is None else " Inputs are held at their means."
    if states.shape[1] == 1:
        z = np.linspace(low[0] - margin[0], high[0] + margin[0], 200)
        rate = fit.drift(z[:, None], inputs=inputs)[:, 0]
        q = fit.parameters()["median"].filter(like="diffusion").iloc[0]
        spread = np.full(len(z), np.sqrt(q))
        figure = drift_curve(z, rate, spread, states[:, 0], names=(names[0], f"d{names[0]}/dt"))
        return Section(
            "The learned drift", figure, "drift", f"Zero crossings from above are where the system rests.{note}"
        )
    first, second = np.sort(np.argsort(-states.var(axis=0), kind="stable")[:2])
    centre = np.median(states, axis=0)

    def field(points: np.ndarray) -> np.ndarray:
        full = np.tile(centre, (len(points), 1))
        full[:, [first, second]] = points
        return fit.drift(full, inputs=inputs)[:, [first, second]]

    pick = [first, second]
    figure = phase_portrait(
        {"learned drift": field},
        (low - margin)[pick],
        (high + margin)[pick],
        points=states[:, pick],
        names=(names[first], names[second]),
    )
    others = (
        "" if states.shape[1] == 2 else f" A slice: the other {states.shape[1] - 2} axes are held at their medians."
    )
    return Section(
        "Phase portrait of the learned drift", figure, "drift", f"Dots are the smoothed states.{others}{note}"
    )


def report(fit: Fit, folder: str | Path, *, horizon: float | None = None, num_origins: int = 8, key: int = 1) -> Path:
    """Look at a fit from all sides and write it down as one page: `report.html` below `folder`.

    With a held-out part (`fit(…, holdout=)`) that is forecast, scored, backtested and its bands checked; without one the
    page has the data, the smoothed states, the drift, the parameters and the training curves.
    """
    folder = Path(folder)
    series = _example(fit)
    pairs = fit.held_out()
    sections = [_data_section(fit)]
    last = fit.history[-1] if fit.history else {}
    headline: dict[str, str] = {}
    if pairs:
        before, after = next((pair for pair in pairs if pair[0].name == series.name), pairs[0])
        ahead = fit.forecast(after.times, given=before, inputs=after.inputs if after.input_names else None, key=key)
        sections.append(_forecast_section(fit, before, after, ahead))
        if after.frame_shape:
            sections.append(_film(folder, after, ahead))
        if fit.others:
            sections.append(_spread_section(fit, after, ahead))
        cut = fit.cuts[before.name]
        reach = horizon or default_horizon([item for item in fit.context if item.name == before.name], cut)
        names = {pair[0].name for pair in pairs}
        data = [item for item in fit.context if item.name in names]
        start = cut if len(data) == 1 else None
        try:
            result = backtest(fit, data, horizon=reach, start=start, num_origins=num_origins, key=key)
        except ValueError as error:
            sections.append(Section("Against the forecasts to beat", f"<p>{html.escape(str(error))}</p>"))
        else:
            sections += [_backtest_section(result), _calibration_section(result)]
            row = result.table.loc["latent SDE"]
            headline["error / that of the best naive forecast"] = (
                f"{row['rmse'] / result.table.loc[result.best_naive, 'rmse']:.2f}"
            )
            headline["inside the 90 % band"] = f"{row['coverage_90']:.0%}"
    sections += _smooth_sections(fit, series)
    sections.append(_drift_section(fit, series))
    if fit.history:
        sections.append(Section("Training", loss_curves(fit.history), "training"))
    channels = len(fit.layout.channels)
    headline |= {
        "channels": "frames" if fit.layout.frame_shape else str(channels),
        "latent axes": str(fit.reading.latent_size),
        "training steps": f"{int(last.get('step', 0)):,}",
        "optimisation": f"{fit.seconds:.0f} s",
    }
    source = fit.about.get("source") or ", ".join(item.name for item in fit.context[:3])
    rows = fit.about.get("rows") or sum(len(item) for item in fit.context)
    return write_report(
        folder,
        fit,
        title=f"Latent dynamics of {source}",
        lead=f"A latent SDE learned by arcta from {len(fit.context)} series with {rows:,} rows and {channels} channels.",
        headline=headline,
        sections=sections,
        command=fit.about.get("command") or "the script that trained this model",
    )
