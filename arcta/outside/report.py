"""A run as one page: `report` looks at a fit from all sides."""

from __future__ import annotations

import base64
import dataclasses
import html
import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..data.read import describe
from ..data.series import Series
from ..linear.structure import Structure
from ..predict import figures
from ..predict.figures import label
from ..predict.prediction import Prediction
from ..predict.structural import decompose
from ..task.backtest import Backtest, backtest_held_out
from ..task.fitted import Fit
from ..training.files import make_own_folder, write_atomically
from .page import Section, table, write_report

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_DRAWN = 600  # rows of a forecast
MOST_LIGHTS = 8  # series, the worst


def _gaps(times: np.ndarray, whole: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where stretches without an observation begin and end, those longer than five typical steps of the data."""
    steps = np.diff(times)
    shortest = max(5 * np.median(np.diff(whole)), 1.5 * np.median(steps)) if len(steps) else 0.0
    wide = np.flatnonzero(steps > shortest)[:200]
    return times[wide], times[wide + 1]


def _shown(series: Series, times: Any) -> Any:
    return series.calendar.dates(times).tz_localize(None) if series.calendar else np.asarray(times)


def _time_label(series: Series) -> str:
    return "" if series.calendar else label("time", series.time_unit)


def _data_section(fit: Fit, series: Series) -> Section:
    if series.frame_shape:
        columns = [("mean pixel", np.ones(len(series), bool), series.values.mean(axis=1))]
    else:
        names = [label(*pair) for pair in zip(series.channels, series.units, strict=True)]
        columns = list(zip(names, series.mask.T, series.values.T, strict=True))[:6]
    rows = []
    for name, seen, values in columns:
        times = series.times[seen]
        begins, ends = (_shown(series, edge) for edge in _gaps(times, series.times))
        rows.append((name, _shown(series, times), values[seen], list(zip(begins, ends, strict=True))))
    cut = _shown(series, [fit.cuts[series.name]])[0] if series.name in fit.cuts else None
    figure = figures.data_overview(rows, cut=cut, xlabel=_time_label(series))
    text = f"Series '{series.name}'; gaps are shaded, the dashed line is where training ended."
    words = describe(fit.context, fit.about.get("notes", ()))
    return Section("The data", figure, "data", text if cut is not None else "", f"<pre>{html.escape(words)}</pre>")


def _frames(series: Series, rows: Mapping[str, np.ndarray]) -> Figure:
    """Eight of the times of a series of frames, a row of pictures for each of `rows` (n, pixels)."""
    chosen = np.unique(np.linspace(0, len(series) - 1, 8).astype(int))
    shape = series.frame_shape or (1, 1)
    pictures = {name: frames[chosen].reshape(-1, *shape) for name, frames in rows.items()}
    return figures.frame_strip(pictures, [f"t={series.when(t)}" for t in series.times[chosen]])


def _forecast_section(before: Series, after: Series, ahead: Prediction) -> Section:
    heading = "Forecast against what was held out"
    if after.frame_shape:
        strip = _frames(after, {"observed": after.values, "forecast": ahead.mean, "one path": ahead.signal[0]})
        text = "Mean forecast and one sampled path below the frames that were held out."
        return Section(heading, strip, "forecast", text)
    span = float(after.times[-1] - after.times[0]) or 1.0
    recent = before.times > before.times[-1] - 2 * span
    context = before.at_rows(recent) if before.mask[recent].any() else before
    fullest = np.argsort(-after.mask.sum(axis=0), kind="stable")[:6]
    names = [after.channels[i] for i in sorted(fullest)]
    text = (
        "Bands include observation noise; thin lines are sample paths without it. The model saw the grey points only."
    )
    return Section(heading, ahead.plot(truth=after, context=context, channels=names), "forecast", text)


def _film(folder: Path, after: Series, ahead: Prediction) -> Section:
    """Observed and forecast frames side by side as an animated GIF, enlarged to at least 128 pixels."""
    from PIL import Image

    shape = after.frame_shape or (1, 1)
    rule = np.ones((shape[0], 2, *shape[2:]))
    factor = max(1, 128 // shape[0])
    pictures = []
    for observed, forecast in zip(after.values[:120], ahead.mean[:120], strict=True):
        frame = np.concatenate([observed.reshape(shape), rule, forecast.reshape(shape)], axis=1)
        image = Image.fromarray((255 * np.clip(frame, 0, 1)).astype(np.uint8))
        pictures.append(image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST))
    buffer = io.BytesIO()
    pictures[0].save(buffer, "gif", save_all=True, append_images=pictures[1:], duration=80, loop=0)
    make_own_folder(folder / "figures")
    write_atomically(folder / "figures" / "forecast.gif", buffer.getvalue())
    content = base64.b64encode(buffer.getvalue()).decode()
    film = f"<img alt='observed and forecast frames' src='data:image/gif;base64,{content}'>"
    return Section("Film: observed (left) and forecast (right)", film)


def _spread_section(fit: Fit, after: Series, ahead: Prediction) -> Section:
    """Both kinds of uncertainty over the horizon, channel by channel."""
    within, between = ahead.spreads()
    shown = range(min(len(ahead.channels), 4))
    figure, axes = figures.new_figure(len(shown), height=1.9)
    times = _shown(after, ahead.times)
    for axis, i in zip(axes[:, 0], shown, strict=True):
        axis.plot(times, within[:, i], color=figures.ACCENT, label="within a member: noise, dynamics, parameters")
        axis.plot(times, between[:, i], color=figures.SECOND, label="between members: what the data left open")
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
    levels = np.array([*np.arange(1, 10) / 10, 0.95])
    covered = np.array([np.mean(np.abs(2 * ranks - 1) <= level) for level in levels])
    text = f"From {len(result.origins)} origins, {len(ranks):,} observations, none of them seen in training."
    figure = figures.calibration(levels, covered, ranks)
    return Section("Calibration: do the bands mean what they say?", figure, "calibration", text)


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
    each = "".join(f"<li>{html.escape(f'{name}: {told}')}</li>" for name, told in list(result.verdicts().items())[:24])
    body = f"<p class='verdict {kind}'>{html.escape(verdict[0].upper() + verdict[1:])}</p>"
    body += (f"<ul>{each}</ul>" if len(result.by_channel.columns) > 1 else "") + table(rows, "method")
    return Section("Against the forecasts to beat", body, text=text)


def _headline(result: Backtest) -> dict[str, str]:
    row = result.table.loc["latent SDE"]
    ratio = row["rmse"] / result.table.loc[result.best_naive, "rmse"]
    return {
        "error / that of the best naive forecast": f"{ratio:.2f}",
        "inside the 90 % band": f"{row['coverage_90']:.0%}",
    }


def _smooth_sections(fit: Fit, series: Series) -> list[Section]:
    rows = np.flatnonzero(series.mask.any(axis=1))
    part = series.at_rows(slice(rows[0], rows[min(len(rows) - 1, 400)] + 1))
    seen = part.times[part.mask.any(axis=1)]
    times = np.unique(np.concatenate([np.linspace(seen[0], seen[-1], 601), seen])) if not series.frame_shape else seen
    smooth = fit.smooth(part, times, num_samples=128, key=2)
    text = "The first observations of the series drawn above."
    if fit.structure is not None and fit.by_structure:
        first = Section("Smoothed: noise removed, gaps filled", smooth.plot(truth=part, num_paths=0), "smooth", text)
        return [first, _components_section(fit, fit.structure, part, times)]
    latent = dataclasses.replace(fit, smooth_by_structure=False).smooth(part, times, num_samples=128, key=2).states
    low, high = np.quantile(latent, [0.05, 0.95], axis=0)
    mean, shown = latent.mean(axis=0), _shown(series, times)
    states = figures.states_over_time(shown, mean, low, high, _axis_names(fit), _time_label(series))
    if series.frame_shape:
        reconstructed = smooth.mean[np.searchsorted(times, part.times)]
        strip = _frames(part, {"observed": part.values, "reconstructed": reconstructed})
        first = Section("Reconstructed frames", strip, "reconstruction")
    else:
        figure = smooth.plot(truth=part, num_paths=0)
        first = Section("Smoothed: noise removed, gaps filled", figure, "smooth", text)
    return [first, Section("The latent state, with 90 % bands", states, "states")]


def _components_section(fit: Fit, structure: Structure, series: Series, times: np.ndarray) -> Section:
    """Trend, seasons and the rest of the channel that is observed most."""
    channel = int(np.argmax(series.mask.sum(axis=0)))
    parts = decompose(structure, series, channel, times)
    figure, axes = figures.new_figure(len(parts), height=1.5)
    for axis, (name, values) in zip(axes[:, 0], parts.items(), strict=True):
        axis.plot(_shown(series, times), values, color=figures.ACCENT)
        axis.set_ylabel(name, fontsize=9)
    axes[-1, 0].set_xlabel(_time_label(series), fontsize=9)
    form = structure.channels[channel][0].scale.form
    on = "" if form == "identity" else f" on the scale of its {form}"
    ours, theirs = (fit.about["evidence"][name] for name in ("structure", "latent SDE"))
    text = (
        f"The parts of {series.channels[channel]}{on}. Forecasts are made by these: their evidence is {ours:.3f} nats per "
        f"observation, the latent SDE's bound {theirs:.3f}."
    )
    listed = "".join(f"<li>{html.escape(words)}</li>" for words in structure.words(series.channels)[:24])
    return Section("What each channel is made of", figure, "components", text, listed and f"<ul>{listed}</ul>")


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
        figure = figures.drift_curve(z, rate, spread, states[:, 0], names=(names[0], f"d{names[0]}/dt"))
        text = f"Zero crossings from above are where the system rests.{note}"
        return Section("The learned drift", figure, "drift", text)
    pick = np.sort(np.argsort(-states.var(axis=0), kind="stable")[:2])
    centre = np.median(states, axis=0)

    def field(points: np.ndarray) -> np.ndarray:
        full = np.tile(centre, (len(points), 1))
        full[:, pick] = points
        return fit.drift(full, inputs=inputs)[:, pick]

    box = (low - margin)[pick], (high + margin)[pick]
    labels = names[pick[0]], names[pick[1]]
    figure = figures.phase_portrait({"learned drift": field}, *box, points=states[:, pick], names=labels)
    rest = states.shape[1] - 2
    others = f" A slice: the other {rest} axes are held at their medians." if rest else ""
    text = f"Dots are the smoothed states.{others}{note}"
    return Section("Phase portrait of the learned drift", figure, "drift", text)


def _trust_section(fit: Fit, key: int) -> Section:
    """A light for each series, the worst first."""
    trust = fit.trust(key=key)
    lines = [
        f"<li><span class='light {light.colour}'>{light.colour}</span> <b>{html.escape(light.name)}</b>: "
        f"{html.escape(light.verdict)} (k = {light.k:.2f})</li>"
        for light in trust.lights[:MOST_LIGHTS]
    ]
    left = len(trust.lights) - len(lines)
    lines += [f"<li>and {left} series that are no worse</li>"] * bool(left)
    text = (
        "Paths of the posterior are weighed against the model, stretch by stretch. The tail k of their weights says whether the "
        "posterior has found the model's own: green below 0.5, red from 0.7 on. It does not say whether the model is right."
    )
    body = f"<p>{html.escape(trust.words())}</p>" + (f"<ul class='lights'>{''.join(lines)}</ul>" if lines else "")
    return Section("Is the posterior good enough to believe?", body, text=text if lines else "")


def _thinned(after: Series) -> Series:
    """At most as many rows as a figure can show; all where a model needs the inputs at each."""
    if len(after) <= MOST_DRAWN or after.input_names:
        return after
    return after.at_rows(np.unique(np.linspace(0, len(after) - 1, MOST_DRAWN).astype(int)))


def report(
    fit: Fit,
    folder: str | Path,
    *,
    horizon: float | None = None,
    num_origins: int = 8,
    result: Backtest | None = None,
    key: int = 1,
) -> Path:
    """Look at a fit from all sides and write it down as one page: `report.html` below `folder`.

    With a held-out part (`fit(…, holdout=)`) that is forecast, scored, backtested and its bands checked; without one the
    page has the data, the smoothed states, the drift, the parameters and the training curves. `result`: a backtest that was made
    before.
    """
    folder = Path(folder)
    series = max(fit.context, key=len)
    pairs = fit.held_out()
    sections = [_data_section(fit, series)]
    headline: dict[str, str] = {}
    if pairs:
        before, after = next((pair for pair in pairs if pair[0].name == series.name), pairs[0])
        after = _thinned(after)
        ahead = fit.forecast(after.times, given=before, inputs=after.inputs if after.input_names else None, key=key)
        sections.append(_forecast_section(before, after, ahead))
        if after.frame_shape:
            sections.append(_film(folder, after, ahead))
        if fit.others:
            sections.append(_spread_section(fit, after, ahead))
        try:
            result = result or backtest_held_out(fit, horizon=horizon, num_origins=num_origins, key=key)
        except ValueError as error:
            sections.append(Section("Against the forecasts to beat", f"<p>{html.escape(str(error))}</p>"))
        else:
            sections += [_backtest_section(result), _calibration_section(result)]
            headline |= _headline(result)
    sections += [*_smooth_sections(fit, series), _trust_section(fit, key)]
    if not fit.by_structure:
        sections.append(_drift_section(fit, series))
    if fit.history:
        sections.append(Section("Training", figures.loss_curves(fit.history), "training"))
    channels, steps = len(fit.layout.channels), fit.history[-1]["step"] if fit.history else 0
    headline |= {
        "channels": "frames" if fit.layout.frame_shape else str(channels),
        "latent axes": str(fit.reading.latent_size),
        "training steps": f"{int(steps):,}",
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
