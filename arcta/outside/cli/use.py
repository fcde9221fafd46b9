"""The commands that use a run: `forecast`, `smooth`, `sample`, `score`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

from cyclopts import Parameter

from ...data.calendar import time_index
from ...data.read import reading as read_data
from ...data.series import Series
from ...data.spans import grid, times_after
from ...predict.forecast import InputTable, inputs_at
from ...predict.prediction import QUANTILES
from ...task.fitted import Fit
from ..config import Configuration
from .options import At, File, Key, Only, Output, Reading, Run, Samples, Table, Text, app, stored_options
from .terminal import (
    duration,
    grid_step,
    load_run,
    read_file,
    say,
    show,
    times_of,
    to_table,
    write_figure,
    write_table,
)

if TYPE_CHECKING:
    import pandas as pd

Every = Annotated[Text, Parameter(help="The step between times (default: that of the data).")]
FutureInputs = Annotated[File, Parameter(help="A table with the time and the known inputs to come.")]


@Parameter(name="*")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Drawing:
    """How many paths, from which seed, and a picture."""

    samples: Samples = 256
    key: Key = 0
    plot: Annotated[File, Parameter(help="Draw it into this .png or .svg.")] = None


def _series(fitted: Fit, path: Path, options: Configuration, quiet: bool) -> list[Series]:
    """The series of a file, on the model's clock."""
    found = read_file(path, options, quiet).series
    return [item.on(fitted.layout.calendar, fitted.layout.time_unit) for item in found]


def _choose(series: list[Series], name: str | None) -> list[Series]:
    chosen = [item for item in series if name in (None, item.name)]
    if not chosen:
        raise ValueError(f"there is no series '{name}'; known are {', '.join(item.name for item in series[:8])}.")
    return chosen


@app.command
def forecast(
    run: Run,
    *,
    horizon: Annotated[Text, Parameter(help="How far, in the data's unit or with one: 48h, 10d.")] = None,
    at: At = None,
    every: Every = None,
    given: Annotated[File, Parameter(help="Forecast from this data instead; nothing is retrained.")] = None,
    future_inputs: FutureInputs = None,
    only: Only = None,
    reading: Reading = Reading(),
    drawing: Drawing = Drawing(),
    output: Table = Table(),
) -> None:
    """Forecast from the end of the training data, or of other data, also of series never seen.

    Example: arcta forecast run --horizon 48h --out forecast.csv
    """
    fitted = load_run(run)
    options = stored_options(fitted, reading)
    context = _choose(fitted.context if given is None else _series(fitted, given, options, output.quiet), only)
    if (horizon is None) == (at is None):
        raise ValueError("forecast needs exactly one of --horizon and --at; write e.g. --horizon 10.")
    if at is not None:
        times = {item.name: times_of(at, fitted) for item in context}
    else:
        reach, step = duration(str(horizon), fitted), grid_step(every, fitted)
        unit = fitted.layout.time_unit
        times = {item.name: times_after(item.last_observed, reach, unit, step) for item in context}
    known = _future_inputs(fitted, future_inputs, options, context)
    levels = QUANTILES if drawing.plot is None else None  # paths are kept to be drawn, not for the table
    result = fitted.forecast(
        times, given=context, inputs=known, num_samples=drawing.samples, quantiles=levels, key=drawing.key
    )
    predictions = result if isinstance(result, dict) else {context[0].name: result}
    write_table(to_table(predictions), output.out, output.as_json)
    if drawing.plot is not None:
        item, first = context[0], predictions[context[0].name]
        recent = item.at_rows(item.times > item.times[-1] - 3 * float(first.times[-1] - item.times[-1]))
        write_figure(first.plot(context=recent), drawing.plot)
        say(f"drew {drawing.plot}", output.quiet)


def _future_inputs(
    fitted: Fit, path: Path | None, options: Configuration, context: list[Series]
) -> dict[str, pd.DataFrame] | None:
    names = fitted.layout.input_names
    if not names:
        if path is not None:
            raise ValueError("this model was trained without inputs; leave --future-inputs out.")
        return None
    if path is None:
        raise ValueError(
            f"the model was trained with the inputs {', '.join(names)}, so a forecast needs them to come. Pass "
            f"--future-inputs FILE with the time and the columns {', '.join(names)}."
        )
    wanted = options.data._replace(inputs=(), channels=tuple(names), variable=None, value=None)
    table = {item.name: item for item in read_data(path, wanted).series}
    frames = {}
    for item in context:
        source = table.get(item.name) or (next(iter(table.values())) if len(table) == 1 else None)
        if source is None:
            raise ValueError(
                f"{path} has no future inputs for series '{item.name}'; it has {', '.join(list(table)[:5])}."
            )
        source = source.on(fitted.layout.calendar, fitted.layout.time_unit)
        frames[item.name] = source.to_frame().set_axis(source.times)
    return frames


@app.command
def smooth(
    run: Run,
    *,
    data: Annotated[File, Parameter(help="Smooth this data instead of the training data.")] = None,
    every: Annotated[Text, Parameter(help="A regular grid of this step (super-resolution, gaps filled).")] = None,
    at: At = None,
    only: Only = None,
    reading: Reading = Reading(),
    drawing: Drawing = Drawing(),
    output: Table = Table(),
) -> None:
    """Denoise, fill gaps, super-resolve: the posterior of the signal at the data's times, on a grid, or at any times inside.

    Example: arcta smooth run --every 1h --out smooth.csv
    """
    fitted = load_run(run)
    options = stored_options(fitted, reading)
    context = _choose(fitted.context if data is None else _series(fitted, data, options, output.quiet), only)
    if every is not None and at is not None:
        raise ValueError("smooth takes one of --every and --at, not both. Leave one out.")
    predictions = {}
    for item in context:
        times = times_of(at, fitted) if at is not None else None
        if every is not None:
            seen = item.times[item.mask.any(axis=1)]
            times = grid(seen[0], seen[-1] - seen[0], duration(every, fitted))
        predictions[item.name] = fitted.smooth(item, times, num_samples=drawing.samples, key=drawing.key)
    write_table(to_table(predictions), output.out, output.as_json)
    if drawing.plot is not None:
        write_figure(predictions[context[0].name].plot(truth=context[0], num_paths=0), drawing.plot)
        say(f"drew {drawing.plot}", output.quiet)


@app.command
def sample(
    run: Run,
    *,
    number: Annotated[int, Parameter(name=["--number", "-n"], help="How many trajectories.")] = 10,
    horizon: Annotated[str, Parameter(help="How long, in the data's unit or with one: 48h, 10d.")],
    every: Every = None,
    future_inputs: FutureInputs = None,
    key: Key = 0,
    output: Table = Table(),
) -> None:
    """New trajectories from the learned prior: one row for each trajectory and time.

    Example: arcta sample run -n 10 --horizon 20 --out samples.csv
    """
    import pandas as pd

    fitted = load_run(run)
    layout = fitted.layout
    times = grid(layout.scaling.origin, duration(horizon, fitted), grid_step(every, fitted))
    found = _future_inputs(fitted, future_inputs, stored_options(fitted, Reading()), fitted.context[:1])
    known = None if found is None else inputs_at(layout, cast(InputTable, next(iter(found.values()))), times)
    drawn = fitted.sample(times, inputs=known, num_samples=number, key=key)
    index = time_index(times, layout.calendar, layout.time_unit)
    frames = [
        pd.DataFrame(path, columns=list(drawn.channels), index=index).reset_index().assign(sample=i)
        for i, path in enumerate(drawn.observations)
    ]
    write_table(pd.concat(frames, ignore_index=True), output.out, output.as_json)


@app.command
def score(
    run: Run,
    data: Annotated[File, Parameter(help="What came after the training data (default: what was held out).")] = None,
    *,
    given: Annotated[File, Parameter(help="The context to forecast from, if not the training data.")] = None,
    reading: Reading = Reading(),
    samples: Samples = 256,
    key: Key = 0,
    output: Output = Output(),
) -> None:
    """Forecast what came later and compare: rmse, crps, log density, coverage.

    Example: arcta score run later.csv
    """
    fitted = load_run(run)
    if data is None:
        show(dict(fitted.score(num_samples=samples, key=key)), output.as_json)
        return
    options = stored_options(fitted, reading)
    test = _series(fitted, data, options, output.quiet)
    context = fitted.context if given is None else _series(fitted, given, options, output.quiet)
    if len(context) == len(test) == 1:
        before, begin = context[0], test[0].times[0]
        if before.times[-1] >= begin > before.times[0]:
            context = [before.at_rows(before.times < begin)]
    show(dict(fitted.score(test, given=context, num_samples=samples, key=key)), output.as_json)
