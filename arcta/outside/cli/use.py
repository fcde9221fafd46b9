"""The commands that use a run: `forecast`, `smooth`, `sample`, `score`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

from cyclopts import Parameter

from .options import At, Key, Only, Output, Plot, Reading, Run, Samples, Table, app, stored_options
from .terminal import choose, duration, grid_step, load_run, read_file, say, show, times_of, to_table, write_table

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from ...data.series import Series
    from ...predict.prediction import Bands, Prediction
    from ...task.fitted import Fit
    from ..config import Configuration

Horizon = Annotated[str | None, Parameter(help="How far, in the data's unit or with one: 48h, 10d.")]
Every = Annotated[str | None, Parameter(help="The step between times (default: that of the data).")]
FutureInputs = Annotated[Path | None, Parameter(help="A table with the time and the known inputs to come.")]


@Parameter(name="*")
@dataclasses.dataclass(frozen=True, kw_only=True)
class When:
    """The times of a forecast."""

    horizon: Horizon = None
    at: At = None
    every: Every = None


@Parameter(name="*")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Drawing:
    """How many paths, from which seed, and a picture."""

    samples: Samples = 256
    key: Key = 0
    plot: Plot = None


def _on_the_models_clock(fitted: Fit, series: list[Series]) -> list[Series]:
    return [item.on(fitted.layout.calendar, fitted.layout.time_unit) for item in series]


def _times_ahead(fitted: Fit, item: Series, when: When) -> list[float] | np.ndarray:
    """The times to forecast a series at."""
    import numpy as np

    if when.at is not None:
        return times_of(when.at, fitted)
    last, step = float(item.times[item.mask.any(axis=1)][-1]), grid_step(when.every, fitted)
    reach = duration(str(when.horizon), fitted)
    count = max(int(np.floor(reach / step + 1e-9)), 1)
    return last + (np.arange(1, count + 1) * step if reach >= step else np.array([reach]))


@app.command
def forecast(
    run: Run,
    *,
    when: When = When(),
    given: Annotated[Path | None, Parameter(help="Forecast from this data instead; nothing is retrained.")] = None,
    future_inputs: FutureInputs = None,
    only: Only = None,
    reading: Reading = Reading(),
    drawing: Drawing = Drawing(),
    output: Table = Table(),
) -> None:
    """Forecast from the end of the training data, or of other data, also of series never seen.

    Example: arcta forecast run --horizon 48h --out forecast.csv
    """
    from ...predict.prediction import QUANTILES

    fitted = load_run(run)
    options = stored_options(fitted, reading)
    context = read_file(given, options, output.quiet).series if given is not None else fitted.context
    context = _on_the_models_clock(fitted, choose(context, only))
    if (when.horizon is None) == (when.at is None):
        raise ValueError("forecast needs exactly one of --horizon and --at; write e.g. --horizon 10.")
    times = {item.name: _times_ahead(fitted, item, when) for item in context}
    known = _future_inputs(fitted, future_inputs, options, context)
    levels = QUANTILES if drawing.plot is None else None  # paths are kept to be drawn, not for the table
    result = fitted.forecast(
        times, given=context, inputs=known, num_samples=drawing.samples, quantiles=levels, key=drawing.key
    )
    predictions = cast(
        "Mapping[str, Prediction | Bands]", result if isinstance(result, dict) else {context[0].name: result}
    )
    write_table(to_table(predictions), output.out, output.as_json)
    if drawing.plot is not None:
        item, first = context[0], predictions[context[0].name]
        recent = item.at_rows(item.times > item.times[-1] - 3 * float(first.times[-1] - item.times[-1]))
        first.plot(context=recent).savefig(drawing.plot, dpi=130)
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
    from ...data.read import reading

    wanted = options.data._replace(inputs=(), channels=tuple(names), variable=None, value=None)
    table = {item.name: item for item in reading(path, wanted).series}
    frames = {}
    for item in context:
        source = table.get(item.name) or (next(iter(table.values())) if len(table) == 1 else None)
        if source is None:
            raise ValueError(
                f"{path} has no future inputs for series '{item.name}'; it has {', '.join(list(table)[:5])}."
            )
        source = source.on(fitted.layout.calendar, fitted.layout.time_unit)
        frame = source.to_frame()
        frame.index = source.times
        frames[item.name] = frame
    return frames


@app.command
def smooth(
    run: Run,
    *,
    data: Annotated[Path | None, Parameter(help="Smooth this data instead of the training data.")] = None,
    every: Annotated[str | None, Parameter(help="A regular grid of this step (super-resolution, gaps filled).")] = None,
    at: At = None,
    only: Only = None,
    reading: Reading = Reading(),
    drawing: Drawing = Drawing(),
    output: Table = Table(),
) -> None:
    """Denoise, fill gaps, super-resolve: the posterior of the signal at the data's times, on a grid, or at any times inside.

    Example: arcta smooth run --every 1h --out smooth.csv
    """
    import numpy as np

    fitted = load_run(run)
    options = stored_options(fitted, reading)
    context = read_file(data, options, output.quiet).series if data is not None else fitted.context
    if every is not None and at is not None:
        raise ValueError("smooth takes one of --every and --at, not both. Leave one out.")
    context = _on_the_models_clock(fitted, choose(context, only))
    predictions = {}
    for item in context:
        times = times_of(at, fitted) if at is not None else None
        if every is not None:
            seen, step = item.times[item.mask.any(axis=1)], duration(every, fitted)
            times = seen[0] + step * np.arange(int(np.floor((seen[-1] - seen[0]) / step + 1e-9)) + 1)
        predictions[item.name] = fitted.smooth(item, times, num_samples=drawing.samples, key=drawing.key)
    write_table(to_table(predictions), output.out, output.as_json)
    if drawing.plot is not None:
        predictions[context[0].name].plot(truth=context[0], num_paths=0).savefig(drawing.plot, dpi=130)
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
    import numpy as np
    import pandas as pd

    from ...data.calendar import time_index
    from ...predict.forecast import InputTable, inputs_at

    fitted = load_run(run)
    layout, step = fitted.layout, grid_step(every, fitted)
    times = layout.scaling.origin + step * np.arange(int(np.floor(duration(horizon, fitted) / step + 1e-9)) + 1)
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
    data: Annotated[
        Path | None, Parameter(help="What came after the training data (default: what was held out).")
    ] = None,
    *,
    given: Annotated[Path | None, Parameter(help="The context to forecast from, if not the training data.")] = None,
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
    test = read_file(data, options, output.quiet).series
    context = read_file(given, options, output.quiet).series if given is not None else None
    if context is None and len(test) == 1 and len(fitted.context) == 1:
        context = fitted.context
    if context is not None and len(context) == len(test) == 1:
        (before,), (after,) = _on_the_models_clock(fitted, context), _on_the_models_clock(fitted, test)
        overlap = before.times[-1] >= after.times[0] > before.times[0]
        context = [before.at_rows(before.times < after.times[0])] if overlap else [before]
    show(dict(fitted.score(test, given=context, num_samples=samples, key=key)), output.as_json)
