"""The commands that train: `fit` and `backtest`."""

from __future__ import annotations

import dataclasses
import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from .options import Data, Key, Output, Reading, Settings, Table, app, compilation_cache, stored_options
from .terminal import duration, load_run, on_disk, read_file, say, show, write_table

if TYPE_CHECKING:
    from ...data.series import Series
    from ...data.store import Store
    from ...task.backtest import Backtest
    from ...task.fitted import Fit
    from ..config import Configuration


@Parameter(name="*")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """How a model is trained, and what is left of it."""

    latent: Annotated[int | None, Parameter(help="The number of latent axes (default: from the data).")] = None
    holdout: Annotated[float | None, Parameter(help="The last part of the time kept to score on; 0: none.")] = None
    report: Annotated[bool, Parameter(help="Write the report after training.")] = True
    resume: Annotated[bool, Parameter(negative="", help="Go on from the checkpoint in --out.")] = False
    devices: Annotated[
        str | None, Parameter(help="Share batches among this many devices, or all of the machine or job.")
    ] = None
    ensemble: Annotated[int, Parameter(help="Train so many models at once and mix their forecasts.")] = 1
    spacing: Annotated[
        float | None, Parameter(help="Leave a .npy file or Zarr array on disk; its rows are so far apart.")
    ] = None
    times: Annotated[Path | None, Parameter(help="Instead of --spacing: a file with the time of each row.")] = None


def _source(
    data: Path, job: Job, configuration: Configuration, quiet: bool
) -> tuple[list[Series] | Store, list[str], float]:
    """What to train on, the notes on it, and the part to hold out."""
    if job.spacing is None and job.times is None:
        found = read_file(data, configuration, quiet)
        return found.series, found.notes, 0.2 if job.holdout is None else job.holdout
    stored = on_disk(data, job.spacing, job.times, configuration)
    say(repr(stored), quiet)
    return stored, ["stays on disk; nothing is held out"], job.holdout or 0.0


def _meet(devices: str) -> None:
    """Join the other processes of a job, before anything else is done with JAX."""
    from ...training import parallel
    from . import process

    with process.results_apart():
        process.run_as_batch_work()
        parallel.devices(devices)


@app.command
def fit(
    data: Data,
    *,
    out: Annotated[Path, Parameter(help="Folder for the run.")] = Path("run"),
    reading: Reading = Reading(),
    settings: Settings = Settings(),
    job: Job = Job(),
    key: Key = 0,
    output: Output = Output(),
) -> None:
    """Learn a model from a file, score it on the part held out, save it and write a report.

    Example: arcta fit lynx.csv --time year --out run
    """
    configuration = settings.configuration(reading.settings() | {"model.latent_size": job.latent})
    source, notes, holdout = _source(data, job, configuration, output.quiet)
    say("arcta: choosing a model from the data", output.quiet)
    compilation_cache()
    from ...task.fit import fit as train
    from ...training import parallel

    if job.devices is not None:
        _meet(job.devices)
    about = {
        "command": "arcta " + " ".join(shlex.quote(word) for word in sys.argv[1:]),
        "source": data.name,
        "notes": notes,
        "reading": {k: v for k, v in configuration.data._asdict().items() if v not in (None, ())},
    }
    fitted = train(
        configuration.model, source, key=key, holdout=holdout, training=configuration.training, out=out, resume=job.resume,
        devices=job.devices, ensemble=job.ensemble, progress=not output.quiet, about=about,
    )  # fmt: skip
    if job.devices is not None:
        first = parallel.is_first()
        parallel.disconnect()
        if not first:
            return
    _conclude(fitted, out, job, output)


def _conclude(fitted: Fit, out: Path, job: Job, output: Output) -> None:
    """Score on what was held out, write the report, say where everything is."""
    results: dict[str, object] = {
        "run": str(out), "stopped": fitted.stopped, "latent_size": fitted.reading.latent_size
    }  # fmt: skip
    if fitted.cuts:
        results |= {f"held-out {name}" if not output.as_json else name: v for name, v in fitted.score().items()}
    if job.report:
        from ..report import report

        say("arcta: writing the report", output.quiet)
        results["report"] = str(report(fitted, out))
    show(results, output.as_json)
    if fitted.stopped == "interrupted":
        say(f"interrupted; what was reached is saved, `--resume --out {out}` goes on from there")
        raise SystemExit(130)


@Parameter(name="*")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Roll:
    """From where and how far forecasts are rolled."""

    run: Annotated[Path | None, Parameter(help="A saved run; without one a model is trained on the first part.")] = None
    horizon: Annotated[
        str | None, Parameter(help="How far each forecast goes (default: half of the held-out span).")
    ] = None
    origins: Annotated[int, Parameter(help="From how many origins.")] = 8
    start: Annotated[float, Parameter(help="The first origin, as a fraction of the time span.")] = 0.8
    refit: Annotated[bool, Parameter(negative="", help="Train anew at each origin.")] = False


@app.command
def backtest(
    data: Data,
    *,
    roll: Roll = Roll(),
    reading: Reading = Reading(),
    settings: Settings = Settings(),
    key: Key = 0,
    output: Table = Table(),
) -> None:
    """Forecasts from several origins in the past against last value, last season, VAR and a linear state-space model.

    Example: arcta backtest lynx.csv --time year --horizon 10
    """
    compilation_cache()
    from ...task.backtest import backtest as run_backtest
    from ...task.backtest import default_horizon
    from ...task.fit import fit as train

    if roll.run is not None:
        fitted = load_run(roll.run)
        series = read_file(data, stored_options(fitted, reading), output.quiet).series
    else:
        configuration = settings.configuration(reading.settings())
        series = read_file(data, configuration, output.quiet).series
        options = {"key": key, "training": configuration.training, "progress": not output.quiet}
        fitted = train(configuration.model, series, holdout=1 - roll.start, **options)
    reach = duration(roll.horizon, fitted) if roll.horizon else default_horizon(series)
    longest = max(series, key=len)
    begin = longest.times[0] + roll.start * (longest.times[-1] - longest.times[0]) if len(series) == 1 else None

    def again(part: list[Series]) -> Fit:
        return train(fitted.spec, part, key=key, training=fitted.training, progress=False)

    refit = again if roll.refit else None
    result = run_backtest(fitted, series, horizon=reach, start=begin, num_origins=roll.origins, refit=refit, key=key)
    _tell(result, output)


def _tell(result: Backtest, output: Table) -> None:
    table = result.table.join(result.by_lead.add_prefix("rmse ")).rename_axis("method").reset_index()
    verdict = result.verdict()
    if output.as_json:
        told = {"methods": table.to_dict("records"), "horizon": result.horizon, "origins": result.origins}
        print(json.dumps({**told, "beats_naive": result.beats_naive, "verdict": verdict}, indent=1))
        return
    if output.out is not None:
        write_table(table, output.out)
    else:
        print(table.to_string(index=False, float_format=lambda x: f"{x:.3f}"))
    print(verdict[0].upper() + verdict[1:])
