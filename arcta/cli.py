"""The command line: a thin layer over the task API. Heavy imports wait until a command runs.

Exit codes: 0 done, 1 training diverged or the machine failed, 2 something the user can mend, 130 Ctrl-C. Results go to standard
output or to a file, everything else to standard error.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import cyclopts
from cyclopts import Parameter

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .config import Configuration
    from .fitted import Fit
    from .prediction import Bands, Prediction
    from .read import Reading
    from .series import Series
    from .store import Store

app = cyclopts.App(
    name="arcta",
    help="Latent stochastic differential equations from noisy time series, learned without a solver.",
    help_format="plaintext",
)
app.register_install_completion_command(help="Tab completion for your shell: arcta --install-completion")

Data = Annotated[Path, Parameter(help="A .csv, .tsv, .parquet, .npz or .zarr file, or a folder of .png frames.")]
Run = Annotated[Path, Parameter(help="The folder of a saved run.")]
Key = Annotated[int, Parameter(help="The random seed.")]
Quiet = Annotated[bool, Parameter(name=["--quiet", "-q"], negative="", help="Print the result only.")]
Json = Annotated[bool, Parameter(name="--json", negative="", help="Print the result as JSON.")]
Out = Annotated[
    Path | None, Parameter(help="Write the table here (.csv, .tsv, .json, .parquet); default: print it as CSV.")
]
Time = Annotated[str | None, Parameter(help="The column of times; 'row' numbers the rows.")]
SeriesColumn = Annotated[str | None, Parameter(name="--series", help="The column that tells several series apart.")]
Inputs = Annotated[
    list[str] | None, Parameter(consume_multiple=True, negative="", help="Columns that are known inputs u(t).")
]
Channels = Annotated[list[str] | None, Parameter(consume_multiple=True, negative="", help="The columns to model.")]
Missing = Annotated[
    list[str] | None,
    Parameter(
        consume_multiple=True, negative="", help="Values that mean missing, e.g. -999.", allow_leading_hyphen=True
    ),
]
Decimal = Annotated[str | None, Parameter(help="The decimal mark of a text file.")]
Delimiter = Annotated[str | None, Parameter(help="The mark between columns of a text file.")]
Zone = Annotated[str | None, Parameter(name="--time-zone", help="The zone of dates that do not say theirs.")]
Unit = Annotated[str | None, Parameter(name="--time-unit", help="The unit in which times are counted.")]
Variable = Annotated[str | None, Parameter(help="Long tables: the column with the variables' names.")]
Value = Annotated[str | None, Parameter(help="Long tables: the column with the values.")]
Config = Annotated[Path | None, Parameter(help="A configuration from `arcta init`; options on the line override it.")]
Set = Annotated[
    list[str] | None,
    Parameter(
        name="--set",
        consume_multiple=True,
        negative="",
        help="Any setting, e.g. model.rotation=false training.steps=500.",
    ),
]


def compilation_cache() -> Path:
    """Keep compiled programs between runs, so that a second run of the same shapes does not compile again."""
    import jax

    base = os.environ.get("ARCTA_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "arcta"
    folder = Path(base) / "compiled"
    folder.mkdir(parents=True, exist_ok=True)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return folder


# Helpers -------------------------------------------------------------------------------------------------------------


def _say(text: str, quiet: bool = False) -> None:
    if not quiet:
        print(text, file=sys.stderr, flush=True)


def _settings(pairs: list[str] | None) -> dict[str, Any]:
    """`model.rotation=false` → {"model.rotation": False}; what is not JSON is text."""
    settings: dict[str, Any] = {}
    for pair in pairs or []:
        name, equals, text = pair.partition("=")
        if not equals:
            raise ValueError(f"--set needs name=value; got '{pair}'. Write e.g. --set training.steps=500.")
        try:
            settings[name] = json.loads(text)
        except json.JSONDecodeError:
            settings[name] = text
    return settings


def _configuration(config: Path | None, changes: dict[str, Any], pairs: list[str] | None) -> Configuration:
    from .config import Configuration, load_configuration

    base = load_configuration(config) if config is not None else Configuration()
    given = {
        name: tuple(value) if isinstance(value, list) else value for name, value in changes.items() if value is not None
    }
    return base.replace(given, "command line").replace(_settings(pairs), "--set")


def _number(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text


def _read(path: Path, configuration: Configuration, quiet: bool) -> Reading:
    from .read import describe, reading

    found = reading(path, configuration.data)
    _say(describe(found.series, found.notes), quiet)
    return found


def _on_disk(path: Path, spacing: float | None, times: Path | None, configuration: Configuration) -> Store:
    from .store import store

    if spacing is not None and (times is not None or not spacing > 0):
        raise ValueError(
            f"--spacing needs a positive number, and no --times beside it; got {spacing:g}. Give one of them."
        )
    options, usual = configuration.data, type(configuration)().data._asdict()
    unused = [k for k, v in options._asdict().items() if v != usual[k] and k not in ("channels", "time_unit")]
    if unused:
        raise ValueError(f"a file that stays on disk is rows of numbers: leave --{unused[0].replace('_', '-')} out.")
    return store(path, step=spacing, times=times, channels=options.channels or None, time_unit=options.time_unit or "")


def _load(run: Path) -> Fit:
    compilation_cache()
    from .fitted import load

    if not (run / "model.json").is_file():
        raise ValueError(f"there is no saved run at {run} (no model.json). Train one with: arcta fit DATA --out {run}")
    return load(run)


def _stored_options(fit: Fit, changes: dict[str, Any]) -> Configuration:
    """Read new data as the training data was read, unless told otherwise."""
    from .config import Configuration

    stored = {f"data.{k}": v for k, v in fit.about.get("reading", {}).items() if v not in (None, [])}
    if fit.summary.frame_shape is None and "data.variable" not in stored:
        stored["data.channels"] = list(fit.summary.channels)
    given = {k: tuple(v) if isinstance(v, list) else v for k, v in changes.items() if v is not None}
    return Configuration().replace(stored, "the run").replace(given, "command line")


def duration(text: str, fit: Fit) -> float:
    """`12` in the data's own unit, or `48h`, `10d`, `30min` where the data has dates."""
    match = re.fullmatch(r"\s*([0-9.eE+-]+?)\s*([a-zA-Z]*)\s*", text)
    try:
        number = float(match.group(1)) if match else float("nan")
    except ValueError:
        number = float("nan")
    unit = match.group(2) if match else ""
    if not number > 0:
        raise ValueError(f"a span of time must be a positive number, with or without a unit (48h, 10d); got '{text}'.")
    own = fit.summary.time_unit
    if unit in ("", own):
        return number
    scale = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
    if unit not in scale or own not in scale:
        raise ValueError(
            f"'{text}': the data counts time in {own or 'numbers without a unit'}; give the span in that unit."
        )
    return number * scale[unit] / scale[own]


def _times(at: str, fit: Fit) -> Any:
    """Times from a list (`1,2,3`), or from a file with one per line or in a column `time`."""
    import pandas as pd

    path = Path(at)
    items: list[str] = []
    if path.is_file():
        lines = [line.split(",")[0].strip() for line in path.read_text("utf-8-sig").splitlines()]
        items = [line for line in lines if line and (line[0].isdigit() or line[0] in "-+.")]
    else:
        items = [item.strip() for item in at.split(",") if item.strip()]
    if fit.summary.calendar is not None:
        try:
            return fit.summary.calendar.numbers(items)
        except (ValueError, pd.errors.ParserError) as error:
            raise ValueError(
                f"--at needs dates or a file of them; got '{at[:60]}' ({str(error).splitlines()[0]})."
            ) from None
    try:
        return [float(item) for item in items]
    except ValueError:
        raise ValueError(f"--at needs numbers (1,2,3) or a file with one in each line; got '{at[:60]}'.") from None


def _one_of(series: list[Series], name: str | None) -> list[Series]:
    if name is None:
        return series
    chosen = [item for item in series if item.name == name]
    if not chosen:
        raise ValueError(f"there is no series '{name}'; known are {', '.join(item.name for item in series[:8])}.")
    return chosen


def _table(predictions: Mapping[str, Prediction | Bands]) -> Any:
    """One table of means, standard deviations and quantiles; a column `series` if there are several."""
    import pandas as pd

    frames = {name: item.to_frame().reset_index() for name, item in predictions.items()}
    if len(frames) == 1:
        return next(iter(frames.values()))
    return pd.concat([frame.assign(series=name) for name, frame in frames.items()], ignore_index=True)


def _write(table: Any, out: Path | None, as_json: bool = False) -> None:
    """A table as a file by its suffix, or printed; files appear whole or not at all."""
    import io

    from .checkpoint import write_atomically

    suffix = out.suffix.lower() if out is not None else (".json" if as_json else ".csv")
    writers = {
        ".csv": lambda: table.to_csv(index=False).encode(),
        ".tsv": lambda: table.to_csv(index=False, sep="\t").encode(),
        ".json": lambda: (table.to_json(orient="records", date_format="iso", indent=1) + "\n").encode(),
    }
    if suffix == ".parquet" and out is not None:
        buffer = io.BytesIO()
        table.to_parquet(buffer, index=False)
        content = buffer.getvalue()
    elif suffix in writers:
        content = writers[suffix]()
    else:
        raise ValueError(f"--out knows .csv, .tsv, .json and .parquet; got '{out}'. Use one of those suffixes.")
    if out is None:
        sys.stdout.write(content.decode())
    else:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, content)
        _say(f"wrote {out}")


def _show(values: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(values, indent=1))
        return
    for name, value in values.items():
        print(f"{name:<18} {value:.4g}" if isinstance(value, float) else f"{name:<18} {value}")


def _reading_changes(
    time: str | None, series: str | None, inputs: Any, channels: Any, missing: Any, decimal: str | None, delimiter: str | None,
    time_zone: str | None, time_unit: str | None, variable: str | None, value: str | None,
) -> dict[str, Any]:  # fmt: skip
    return {
        "data.time": time, "data.series": series, "data.inputs": inputs, "data.channels": channels,
        "data.missing": None if missing is None else [_number(item) for item in missing],
        "data.decimal": decimal, "data.delimiter": delimiter, "data.time_zone": time_zone, "data.time_unit": time_unit,
        "data.variable": variable, "data.value": value,
    }  # fmt: skip


# Commands ------------------------------------------------------------------------------------------------------------


@app.command
def fit(
    data: Data, *, out: Annotated[Path, Parameter(help="Folder for the run.")] = Path("run"), time: Time = None,
    series: SeriesColumn = None, inputs: Inputs = None, channels: Channels = None, missing: Missing = None,
    decimal: Decimal = None, delimiter: Delimiter = None, time_zone: Zone = None, time_unit: Unit = None,
    variable: Variable = None, value: Value = None,
    latent: Annotated[int | None, Parameter(help="The number of latent axes (default: from the data).")] = None,
    steps: Annotated[int | None, Parameter(help="Training steps.")] = None,
    holdout: Annotated[float | None, Parameter(help="The last part of the time kept to score on; default 0.2, 0: none.")] = None,
    config: Config = None, set_: Set = None, key: Key = 0,
    report: Annotated[bool, Parameter(help="Write the report after training.")] = True,
    resume: Annotated[bool, Parameter(negative="", help="Go on from the checkpoint in --out.")] = False,
    devices: Annotated[str | None, Parameter(help="Share batches among this many devices, or all of the machine or job.")] = None,
    ensemble: Annotated[int, Parameter(help="Train so many models at once and mix their forecasts.")] = 1,
    spacing: Annotated[float | None, Parameter(help="Leave a .npy file or Zarr array on disk; its rows are so far apart.")] = None,
    times: Annotated[Path | None, Parameter(help="Instead of --spacing: a file with the time of each row.")] = None,
    as_json: Json = False, quiet: Quiet = False,
) -> None:  # fmt: skip
    """Learn a model from a file, score it on the part held out, save it and write a report.

    Example: arcta fit lynx.csv --time year --out run
    """
    changes = _reading_changes(
        time, series, inputs, channels, missing, decimal, delimiter, time_zone, time_unit, variable, value
    ) | {"model.latent_size": latent, "training.steps": steps}
    configuration = _configuration(config, changes, set_)
    if spacing is None and times is None:
        found = _read(data, configuration, quiet)
        source, notes, holdout = found.series, found.notes, 0.2 if holdout is None else holdout
    else:
        source, notes = _on_disk(data, spacing, times, configuration), ["stays on disk; nothing is held out"]
        _say(repr(source), quiet)
    _say("arcta: choosing a model from the data", quiet)
    compilation_cache()
    from .fit import fit as train
    from .report import report as write

    command = "arcta " + " ".join(shlex.quote(word) for word in sys.argv[1:])
    about = {
        "command": command,
        "source": data.name,
        "notes": notes,
        "reading": {k: v for k, v in configuration.data._asdict().items() if v not in (None, ())},
    }
    fitted = train(
        configuration.model, source, key=key, holdout=holdout or 0.0, training=configuration.training, out=out, resume=resume,
        devices=devices, ensemble=ensemble, progress=not quiet, about=about,
    )  # fmt: skip
    if devices is not None:
        from . import parallel

        first = parallel.is_first()
        parallel.disconnect()
        if not first:
            return
    results: dict[str, Any] = {"run": str(out), "stopped": fitted.stopped, "latent_size": fitted.summary.latent_size}
    if fitted.cuts:
        results |= {f"held-out {name}" if not as_json else name: value for name, value in fitted.score().items()}
    if report:
        _say("arcta: writing the report", quiet)
        results["report"] = str(write(fitted, out))
    _show(results, as_json)
    if fitted.stopped == "interrupted":
        _say(f"interrupted; what was reached is saved, `--resume --out {out}` goes on from there")
        raise SystemExit(130)


@app.command
def forecast(
    run: Run, *, horizon: Annotated[str | None, Parameter(help="How far, in the data's unit or with one: 48h, 10d.")] = None,
    at: Annotated[str | None, Parameter(help="Times instead of a horizon: 1,2,3 or a file with one in each line.")] = None,
    given: Annotated[Path | None, Parameter(help="Forecast from this data instead; nothing is retrained.")] = None,
    future_inputs: Annotated[Path | None, Parameter(help="A table with the time and the known inputs to come.")] = None,
    only: Annotated[str | None, Parameter(help="One series of several, by name.")] = None,
    every: Annotated[str | None, Parameter(help="The step between forecast times (default: that of the data).")] = None,
    time: Time = None, series: SeriesColumn = None, inputs: Inputs = None, decimal: Decimal = None, delimiter: Delimiter = None,
    samples: Annotated[int, Parameter(help="The number of sample paths.")] = 256, key: Key = 0, out: Out = None,
    plot: Annotated[Path | None, Parameter(help="Draw the forecast into this .png or .svg.")] = None,
    as_json: Json = False, quiet: Quiet = False,
) -> None:  # fmt: skip
    """Forecast from the end of the training data, or of other data, also of series never seen.

    Example: arcta forecast run --horizon 48h --out forecast.csv
    """
    import numpy as np

    from .prediction import QUANTILES

    fitted = _load(run)
    changes = _reading_changes(time, series, inputs, None, None, decimal, delimiter, None, None, None, None)
    options = _stored_options(fitted, changes)
    context = _read(given, options, quiet).series if given is not None else fitted.context
    context = [item.on(fitted.summary.calendar, fitted.summary.time_unit) for item in _one_of(context, only)]
    if (horizon is None) == (at is None):
        raise ValueError("forecast needs exactly one of --horizon and --at; write e.g. --horizon 10.")
    step = duration(every, fitted) if every else fitted.summary.typical_step * fitted.summary.scaling.time_scale
    times: dict[str, Any] = {}
    for item in context:
        last = float(item.times[item.mask.any(axis=1)][-1])
        if at is not None:
            times[item.name] = _times(at, fitted)
        else:
            reach = duration(str(horizon), fitted)
            count = max(int(np.floor(reach / step + 1e-9)), 1)
            times[item.name] = last + (np.arange(1, count + 1) * step if reach >= step else np.array([reach]))
    known = _future_inputs(fitted, future_inputs, options, context)
    levels = QUANTILES if plot is None else None  # paths are kept to be drawn, not for the table
    result = fitted.forecast(times, given=context, inputs=known, num_samples=samples, quantiles=levels, key=key)
    predictions = result if isinstance(result, dict) else {context[0].name: result}
    _write(_table(predictions), out, as_json)
    if plot is not None:
        first = next(iter(predictions))
        item = next(c for c in context if c.name == first)
        span = float(predictions[first].times[-1] - item.times[-1])
        recent = item.at_rows(item.times > item.times[-1] - 3 * span)
        predictions[first].plot(context=recent).savefig(plot, dpi=130)
        _say(f"drew {plot}", quiet)


def _future_inputs(fitted: Fit, path: Path | None, options: Configuration, context: list[Series]) -> Any:
    names = fitted.summary.input_names
    if not names:
        if path is not None:
            raise ValueError("this model was trained without inputs; leave --future-inputs out.")
        return None
    if path is None:
        raise ValueError(
            f"the model was trained with the inputs {', '.join(names)}, so a forecast needs them to come. Pass "
            f"--future-inputs FILE with the time and the columns {', '.join(names)}."
        )
    from .read import reading

    wanted = options.data._replace(inputs=(), channels=tuple(names), variable=None, value=None)
    table = {item.name: item for item in reading(path, wanted).series}
    frames = {}
    for item in context:
        source = table.get(item.name) or (next(iter(table.values())) if len(table) == 1 else None)
        if source is None:
            raise ValueError(
                f"{path} has no future inputs for series '{item.name}'; it has {', '.join(list(table)[:5])}."
            )
        source = source.on(fitted.summary.calendar, fitted.summary.time_unit)
        frame = source.to_frame()
        frame.index = source.times
        frames[item.name] = frame
    return frames


@app.command
def smooth(
    run: Run, *, data: Annotated[Path | None, Parameter(help="Smooth this data instead of the training data.")] = None,
    every: Annotated[str | None, Parameter(help="A regular grid of this step (super-resolution, gaps filled).")] = None,
    at: Annotated[str | None, Parameter(help="Times: 1,2,3 or a file with one in each line.")] = None,
    only: Annotated[str | None, Parameter(help="One series of several, by name.")] = None,
    time: Time = None, series: SeriesColumn = None, inputs: Inputs = None, decimal: Decimal = None, delimiter: Delimiter = None,
    samples: Annotated[int, Parameter(help="The number of samples.")] = 256, key: Key = 0, out: Out = None,
    plot: Annotated[Path | None, Parameter(help="Draw it into this .png or .svg.")] = None,
    as_json: Json = False, quiet: Quiet = False,
) -> None:  # fmt: skip
    """Denoise, fill gaps, super-resolve: the posterior of the signal at the data's times, on a grid, or at any times inside.

    Example: arcta smooth run --every 1h --out smooth.csv
    """
    import numpy as np

    fitted = _load(run)
    changes = _reading_changes(time, series, inputs, None, None, decimal, delimiter, None, None, None, None)
    context = _read(data, _stored_options(fitted, changes), quiet).series if data is not None else fitted.context
    if every is not None and at is not None:
        raise ValueError("smooth takes one of --every and --at, not both. Leave one out.")
    predictions = {}
    for item in _one_of(context, only):
        item = item.on(fitted.summary.calendar, fitted.summary.time_unit)
        times = _times(at, fitted) if at is not None else None
        if every is not None:
            seen, step = item.times[item.mask.any(axis=1)], duration(every, fitted)
            times = seen[0] + step * np.arange(int(np.floor((seen[-1] - seen[0]) / step + 1e-9)) + 1)
        predictions[item.name] = fitted.smooth(item, times, num_samples=samples, key=key)
    _write(_table(predictions), out, as_json)
    if plot is not None:
        first = next(iter(predictions))
        predictions[first].plot(truth=next(c for c in context if c.name == first), num_paths=0).savefig(plot, dpi=130)
        _say(f"drew {plot}", quiet)


@app.command
def sample(
    run: Run, *, number: Annotated[int, Parameter(name=["--number", "-n"], help="How many trajectories.")] = 10,
    horizon: Annotated[str, Parameter(help="How long, in the data's unit or with one: 48h, 10d.")],
    every: Annotated[str | None, Parameter(help="The step between times (default: that of the data).")] = None,
    future_inputs: Annotated[Path | None, Parameter(help="A table with the time and the known inputs.")] = None,
    key: Key = 0, out: Out = None, as_json: Json = False, quiet: Quiet = False,
) -> None:  # fmt: skip
    """New trajectories from the learned prior: one row for each trajectory and time.

    Example: arcta sample run -n 10 --horizon 20 --out samples.csv
    """
    import numpy as np
    import pandas as pd

    fitted = _load(run)
    step = duration(every, fitted) if every else fitted.summary.typical_step * fitted.summary.scaling.time_scale
    start = fitted.summary.scaling.origin
    times = start + step * np.arange(int(np.floor(duration(horizon, fitted) / step + 1e-9)) + 1)
    known = _future_inputs(fitted, future_inputs, _stored_options(fitted, {}), fitted.context[:1])
    if known is not None:
        from .forecast import inputs_at

        known = inputs_at(fitted.summary, next(iter(known.values())), times)
    drawn = fitted.sample(times, inputs=known, num_samples=number, key=key)
    from .series import time_index

    index = time_index(times, fitted.summary.calendar, fitted.summary.time_unit)
    frames = [
        pd.DataFrame(path, columns=list(drawn.channels), index=index).reset_index().assign(sample=i)
        for i, path in enumerate(drawn.observations)
    ]
    _write(pd.concat(frames, ignore_index=True), out, as_json)


@app.command
def score(
    run: Run,
    data: Annotated[Path | None, Parameter(help="What came after the training data (default: what was held out).")] = None,
    *, given: Annotated[Path | None, Parameter(help="The context to forecast from, if not the training data.")] = None,
    time: Time = None, series: SeriesColumn = None, inputs: Inputs = None, decimal: Decimal = None, delimiter: Delimiter = None,
    samples: Annotated[int, Parameter(help="The number of sample paths.")] = 256, key: Key = 0,
    as_json: Json = False, quiet: Quiet = False,
) -> None:  # fmt: skip
    """Forecast what came later and compare: rmse, crps, log density, coverage.

    Example: arcta score run later.csv
    """
    fitted = _load(run)
    changes = _reading_changes(time, series, inputs, None, None, decimal, delimiter, None, None, None, None)
    options = _stored_options(fitted, changes)
    if data is None:
        _show(dict(fitted.score(num_samples=samples, key=key)), as_json)
        return
    test = _read(data, options, quiet).series
    context = _read(given, options, quiet).series if given is not None else None
    if context is None and len(test) == 1 and len(fitted.context) == 1:
        context = fitted.context
    if context is not None and len(context) == len(test) == 1:
        before, after = (
            context[0].on(fitted.summary.calendar, fitted.summary.time_unit),
            test[0].on(fitted.summary.calendar, fitted.summary.time_unit),
        )
        context = (
            [before.at_rows(before.times < after.times[0])]
            if before.times[-1] >= after.times[0] > before.times[0]
            else [before]
        )
    _show(dict(fitted.score(test, given=context, num_samples=samples, key=key)), as_json)


@app.command
def backtest(
    data: Data, *,
    run: Annotated[Path | None, Parameter(help="A saved run; without one a model is trained on the first part.")] = None,
    horizon: Annotated[str | None, Parameter(help="How far each forecast goes (default: half of the held-out span).")] = None,
    origins: Annotated[int, Parameter(help="From how many origins.")] = 8,
    start: Annotated[float, Parameter(help="The first origin, as a fraction of the time span.")] = 0.8,
    refit: Annotated[bool, Parameter(negative="", help="Train anew at each origin.")] = False,
    time: Time = None, series: SeriesColumn = None, inputs: Inputs = None, channels: Channels = None, missing: Missing = None,
    decimal: Decimal = None, delimiter: Delimiter = None, time_zone: Zone = None, time_unit: Unit = None,
    variable: Variable = None, value: Value = None, steps: Annotated[int | None, Parameter(help="Training steps.")] = None,
    config: Config = None, set_: Set = None, key: Key = 0, out: Out = None, as_json: Json = False, quiet: Quiet = False,
) -> None:  # fmt: skip
    """Forecasts from several origins in the past against last value, last season, VAR and a linear state-space model.

    Example: arcta backtest lynx.csv --time year --horizon 10
    """
    changes = _reading_changes(
        time, series, inputs, channels, missing, decimal, delimiter, time_zone, time_unit, variable, value
    ) | {"training.steps": steps}
    if run is not None:
        fitted = _load(run)
        configuration = _stored_options(fitted, {k: v for k, v in changes.items() if k.startswith("data.")})
        found = _read(data, configuration, quiet)
        model, training = fitted.spec, fitted.training
    else:
        configuration = _configuration(config, changes, set_)
        found = _read(data, configuration, quiet)
        compilation_cache()
        from .fit import fit as train

        model, training = configuration.model, configuration.training
        fitted = train(model, found.series, key=key, holdout=1 - start, training=training, progress=not quiet)
    from .backtest import backtest as roll
    from .backtest import default_horizon
    from .fit import fit as train_again

    reach = duration(horizon, fitted) if horizon else default_horizon(found.series)
    longest = max(found.series, key=len)
    begin = longest.times[0] + start * (longest.times[-1] - longest.times[0]) if len(found.series) == 1 else None
    again = (lambda part: train_again(model, part, key=key, training=training, progress=False)) if refit else None
    result = roll(fitted, found.series, horizon=reach, start=begin, num_origins=origins, refit=again, key=key)
    table = result.table.join(result.by_lead.add_prefix("rmse ")).rename_axis("method").reset_index()
    if as_json:
        print(
            json.dumps(
                {
                    "methods": table.to_dict("records"),
                    "horizon": reach,
                    "origins": result.origins,
                    "beats_naive": result.beats_naive,
                    "verdict": result.verdict(),
                },
                indent=1,
            )
        )
    elif out is not None:
        _write(table, out)
    else:
        print(table.to_string(index=False, float_format=lambda x: f"{x:.3f}"))
    if not as_json:
        print(result.verdict()[0].upper() + result.verdict()[1:])


@app.command
def report(
    run: Run, *, horizon: Annotated[str | None, Parameter(help="The backtest's horizon.")] = None,
    origins: Annotated[int, Parameter(help="The backtest's number of origins.")] = 8, key: Key = 1,
    as_json: Json = False, quiet: Quiet = False,
) -> None:  # fmt: skip
    """Write report.html into the run's folder: one page that opens offline.

    Example: arcta report run
    """
    fitted = _load(run)
    from .report import report as write

    _say("arcta: writing the report", quiet)
    reach = duration(horizon, fitted) if horizon else None
    page = str(write(fitted, run, horizon=reach, num_origins=origins, key=key))
    print(json.dumps({"report": page}) if as_json else page)


@app.command
def inspect(run: Run, *, as_json: Json = False, quiet: Quiet = False) -> None:
    """What is in a saved run: data, configuration, training, parameters.

    Example: arcta inspect run
    """
    fitted = _load(run)
    from .read import describe

    last = dict(fitted.history[-1]) if fitted.history else {}
    if as_json:
        from .run import identity

        values = {
            **identity(fitted.spec, fitted.summary, fitted.training),
            "stopped": fitted.stopped,
            "series": [item.name for item in fitted.context],
            "cuts": dict(fitted.cuts),
            "last": last,
            "about": dict(fitted.about),
            "parameters": fitted.parameters().reset_index().to_dict("records"),
        }
        print(json.dumps(values, indent=1))
        return
    print(repr(fitted))
    if quiet:
        return
    print(describe(fitted.context, fitted.about.get("notes", ())))
    summary = fitted.summary
    print(
        f"likelihoods: {', '.join(sorted(set(summary.kinds)))}; windows of {summary.partition_size}; smoothing over "
        f"{summary.bandwidth * summary.scaling.time_scale:.3g} {summary.time_unit}"
    )
    print("last step: " + ", ".join(f"{k} {v:.4g}" for k, v in last.items()))
    print(fitted.parameters().head(40).to_string(float_format=lambda x: f"{x:.4g}"))
    print(f"made by: {fitted.about.get('command', 'a script')}")


@app.command
def study(
    name: Annotated[str | None, Parameter(help="Which one; without a name they are listed.")] = None,
    *,
    seeds: Annotated[int | None, Parameter(help="How many seeds; default: the study's own number.")] = None,
    quick: Annotated[bool, Parameter(negative="", help="A smoke version of less than a minute.")] = False,
    data: Annotated[
        Path | None, Parameter(help="The data file of a study that needs one (mocap: mocap35.mat).")
    ] = None,
    out: Annotated[Path | None, Parameter(help="Where to store result and figures.")] = None,
    quiet: Quiet = False,
) -> None:
    """Studies with stored results: run one by name, or list them. They live beside the package, in a clone of the repository.

    What the result file in the folder has already is not run again.

    Example: arcta study lotka-volterra --quick
    """
    import runpy

    from .study import FOLDER, Study, known

    if name is None:
        print("\n".join(known()) or "no studies here: they come with a clone of the repository")
        return
    if name not in known():
        raise ValueError(
            f"there is no study '{name}'; known are {', '.join(known()) or 'none here (use a clone of the repository)'}."
        )
    if seeds is not None and seeds < 1:
        raise ValueError(f"--seeds must be at least 1; got {seeds}. Leave it out for the study's own number.")
    compilation_cache()
    folder = out or FOLDER / ("quick" if quick else "results") / name
    chosen = Study(name, folder, quick=quick, seeds=seeds, data=data, quiet=quiet)
    runpy.run_path(str(FOLDER / f"{name.replace('-', '_')}.py"))["run"](chosen)
    print(f"\n{chosen.file}")


@app.command
def init(
    config: Annotated[Path, Parameter(help="The file to write.")] = Path("arcta.toml"),
    *,
    force: Annotated[bool, Parameter(negative="", help="Overwrite it.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write the whole configuration with its defaults, to be edited and passed as --config.

    Example: arcta init arcta.toml
    """
    from .checkpoint import write_atomically
    from .config import Configuration, to_toml

    if config.exists() and not force:
        raise ValueError(f"{config} exists; pass --force to overwrite it.")
    write_atomically(config, to_toml(Configuration()).encode())
    _say(f"use it with: arcta fit DATA --config {config}", quiet)
    print(json.dumps({"configuration": str(config)}) if as_json else config)


@app.command
def demo(
    *,
    out: Annotated[Path, Parameter(help="Folder for the run, the report and its pictures.")] = Path("demo"),
    key: Key = 0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Learn Lotka–Volterra from noisy data, forecast it, and write a report.

    Example: arcta demo --out demo
    """
    compilation_cache()
    from . import demo as lotka_volterra

    fitted, scores, page = lotka_volterra.run(out, key=key, progress=not quiet)
    values = int(fitted.history[-1]["drift_evaluations"])
    if as_json:
        print(
            json.dumps(
                {**scores, "drift_evaluations": values, "seconds": fitted.seconds, "report": str(page)}, indent=1
            )
        )
        return
    print(f"trained on 50 s of Lotka–Volterra: {values:,} drift values, {fitted.seconds:.2f} s after compilation")
    for name, value in scores.items():
        print(f"  {name:<12} {value:.4f}")
    print(f"report: {page}")


def main() -> None:
    """Entry point: one sentence and exit code 2 for what the user can mend, 1 for divergence or a lost process, 130 for Ctrl-C."""
    import warnings

    def plain(message: Any, category: Any, filename: str, lineno: int, file: Any = None, line: Any = None) -> None:
        print(f"arcta: note: {message}", file=sys.stderr)

    warnings.showwarning = plain
    try:
        app()
    except (ValueError, FloatingPointError) as error:
        print(f"arcta: {' '.join(str(error).split())}", file=sys.stderr)
        raise SystemExit(2) from None
    except OSError as error:
        print(
            f"arcta: {error.strerror or error}: {error.filename or ''}. Check the path and the space left.",
            file=sys.stderr,
        )
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except Exception as error:
        if type(error).__name__ not in ("TrainingDiverged", "PeerLost"):
            raise
        print(f"arcta: {error}", file=sys.stderr)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
