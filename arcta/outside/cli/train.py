"""The commands that train: `fit` and `backtest`."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shlex
import signal
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from ...data.readers.source import Options
from ...data.series import Series
from ...data.store import Store, store
from ...task import backtest as rolling
from ...task.fit import fit as train
from ...task.fitted import Fit
from ...training import parallel
from ..config import Configuration
from ..report import report
from .options import Data, File, Key, Output, Reading, Settings, Table, Text, app, stored_options
from .terminal import duration, load_run, read_file, say, show, write_table


@Parameter(name="*")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """How a model is trained, and what is left of it."""

    latent: Annotated[int | None, Parameter(help="The number of latent axes (default: from the data).")] = None
    holdout: Annotated[float | None, Parameter(help="The last part of the time kept to score on; 0: none.")] = None
    report: Annotated[bool, Parameter(help="Write the report after training.")] = True
    resume: Annotated[bool, Parameter(negative="", help="Go on from the checkpoint in --out.")] = False
    force: Annotated[bool, Parameter(negative="", help="Replace a run that is in --out already.")] = False
    devices: Annotated[Text, Parameter(help="Share batches among this many devices, or all of the machine or job.")] = (
        None
    )
    ensemble: Annotated[int, Parameter(help="Train so many models at once and mix their forecasts.")] = 1
    spacing: Annotated[
        float | None, Parameter(help="Leave a .npy file or Zarr array on disk; its rows are so far apart.")
    ] = None
    times: Annotated[File, Parameter(help="Instead of --spacing: a file with the time of each row.")] = None


def _source(
    data: Path, job: Job, configuration: Configuration, quiet: bool
) -> tuple[list[Series] | Store, list[str], float]:
    """What to train on, the notes on it, and the part to hold out."""
    if job.spacing is None and job.times is None:
        found = read_file(data, configuration, quiet)
        return found.series, found.notes, 0.2 if job.holdout is None else job.holdout
    if job.spacing is not None and (job.times is not None or not job.spacing > 0):
        raise ValueError(
            f"--spacing needs a positive number, and no --times beside it; got {job.spacing:g}. Give one of them."
        )
    options = configuration.data
    given = [name for name, value in options._asdict().items() if value != Options._field_defaults[name]]
    unused = [name for name in given if name not in ("channels", "time_unit")]
    if unused:
        raise ValueError(f"a file that stays on disk is rows of numbers: leave --{unused[0].replace('_', '-')} out.")
    unit = options.time_unit or ""
    stored = store(data, step=job.spacing, times=job.times, channels=options.channels or None, time_unit=unit)
    say(repr(stored), quiet)
    return stored, ["stays on disk; nothing is held out"], job.holdout or 0.0


def run_as_batch_work() -> None:
    """Run this process as batch work: the exchange's own thread spins when it wakes while the computing one holds its lock, and as
    batch work it is not put first when it wakes."""
    if hasattr(os, "sched_setscheduler"):
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _meet(devices: str) -> None:
    """Join the other processes of a job, before anything else is done with JAX. What the library under the first exchange prints
    goes to standard error, not among the results."""
    sys.stdout.flush()
    results = os.dup(1)
    os.dup2(2, 1)
    try:
        run_as_batch_work()
        parallel.devices(devices)
    finally:
        os.dup2(results, 1)
        os.close(results)


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
        overwrite=job.force, devices=job.devices, ensemble=job.ensemble, progress=not output.quiet, about=about,
    )  # fmt: skip
    if job.devices is not None:
        first = parallel.is_first()
        parallel.disconnect()
        if not first:
            return
    _conclude(fitted, out, job, output)


def _conclude(fitted: Fit, out: Path, job: Job, output: Output) -> None:
    """Score on what was held out, write the report, say where everything is; who ends training early does not wait for that."""
    if fitted.stopped == "interrupted":
        show({"run": str(out), "stopped": fitted.stopped}, output.as_json)
        say(f"interrupted; what was reached is saved, `--resume --out {out}` goes on from there")
        raise SystemExit(128 + (fitted.ended_by or signal.SIGINT))
    size, rolled = fitted.reading.latent_size, None
    results: dict[str, object] = {"run": str(out), "stopped": fitted.stopped, "latent_size": size}
    if fitted.cuts:
        with contextlib.suppress(ValueError):  # too little is held out for a backtest
            rolled = rolling.backtest_held_out(fitted)
            results = {"verdict": rolled.verdict(), **results}
        if rolled is not None and len(rolled.verdicts()) > 1:
            results |= {f"verdict on {name}": told for name, told in list(rolled.verdicts().items())[:12]}
        prefix = "" if output.as_json else "held-out "
        results |= {prefix + name: value for name, value in fitted.score().items()}
    if fitted.structure is not None:
        evidence = ", ".join(f"{name} {value:.3f}" for name, value in fitted.about["evidence"].items())
        by = "structure" if fitted.by_structure else "latent SDE"
        results["forecasts by"] = f"{by} (nats per observation: {evidence})"
        results["smooths by"] = fitted.smooths_by
        seasons = [period.words(fitted.layout.time_unit) for period in fitted.structure.periods]
        results["seasons"] = "; ".join(seasons) or "none"
    if fitted.structure is not None and fitted.by_structure:
        results["structure"] = "; ".join(fitted.structure.words(fitted.layout.channels)[:6])
    if job.report:
        say("arcta: writing the report", output.quiet)
        results["report"] = str(report(fitted, out, result=rolled))
    show(results, output.as_json)


@app.command
def backtest(
    data: Data,
    *,
    run: Annotated[File, Parameter(help="A saved run; without one a model is trained on the first part.")] = None,
    horizon: Annotated[Text, Parameter(help="How far each forecast goes (default: half of the held-out span).")] = None,
    origins: Annotated[int, Parameter(help="From how many origins.")] = 8,
    start: Annotated[float, Parameter(help="The first origin, as a fraction of the time span.")] = 0.8,
    refit: Annotated[bool, Parameter(negative="", help="Train anew at each origin.")] = False,
    reading: Reading = Reading(),
    settings: Settings = Settings(),
    key: Key = 0,
    output: Table = Table(),
) -> None:
    """Forecasts from several origins in the past against last value, last season, VAR and a linear state-space model.

    Example: arcta backtest lynx.csv --time year --horizon 3
    """
    if run is not None:
        fitted = load_run(run)
        series = read_file(data, stored_options(fitted, reading), output.quiet).series
    else:
        configuration = settings.configuration(reading.settings())
        series = read_file(data, configuration, output.quiet).series
        options = {"key": key, "training": configuration.training, "progress": not output.quiet}
        fitted = train(configuration.model, series, holdout=1 - start, **options)
    reach = duration(horizon, fitted) if horizon else rolling.default_horizon(series)
    longest = max(series, key=len)
    begin = longest.times[0] + start * (longest.times[-1] - longest.times[0]) if len(series) == 1 else None

    def again(part: list[Series]) -> Fit:
        return train(fitted.spec, part, key=key, training=fitted.training, progress=False)

    result = rolling.backtest(
        fitted, series, horizon=reach, start=begin, num_origins=origins, refit=again if refit else None, key=key
    )
    _tell(result, output)


def _tell(result: rolling.Backtest, output: Table) -> None:
    table = result.table.join(result.by_lead.add_prefix("rmse ")).rename_axis("method").reset_index()
    verdict = result.verdict()
    if output.as_json:
        told = {"methods": table.to_dict("records"), "horizon": result.horizon, "origins": result.origins}
        more = {"beats_naive": result.beats_naive, "verdict": verdict, "verdicts": result.verdicts()}
        print(json.dumps({**told, **more}, indent=1))
        return
    say_verdict(result)
    if output.out is not None:
        write_table(table, output.out)
    else:
        print(table.to_string(index=False, float_format=lambda x: f"{x:.3f}"))


def say_verdict(result: rolling.Backtest) -> None:
    """The verdict first, and that on each of a few channels."""
    verdict, each = result.verdict(), result.verdicts()
    print(verdict[0].upper() + verdict[1:])
    if 1 < len(each) <= 12:
        print("\n".join(f"  {channel}: {told}" for channel, told in each.items()))
