"""The commands about runs, studies and settings: `report`, `inspect`, `study`, `init`, `demo`."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from ...data.read import describe
from ...task.run import identity
from ...training.files import write_atomically
from .. import demo as lotka_volterra
from ..config import default_toml
from ..report import report as write_report
from ..study import FOLDER, Study, known
from .options import File, Key, Output, Run, Text, app
from .terminal import duration, load_run, say


@app.command
def report(
    run: Run, *, horizon: Annotated[Text, Parameter(help="The backtest's horizon.")] = None,
    origins: Annotated[int, Parameter(help="The backtest's number of origins.")] = 8, key: Key = 1,
    output: Output = Output(),
) -> None:  # fmt: skip
    """Write report.html into the run's folder: one page that opens offline.

    Example: arcta report run
    """
    fitted = load_run(run)
    say("arcta: writing the report", output.quiet)
    reach = duration(horizon, fitted) if horizon else None
    page = str(write_report(fitted, run, horizon=reach, num_origins=origins, key=key))
    print(json.dumps({"report": page}) if output.as_json else page)


@app.command
def inspect(run: Run, *, output: Output = Output()) -> None:
    """What is in a saved run: data, configuration, training, parameters.

    Example: arcta inspect run
    """
    fitted = load_run(run)
    last = dict(fitted.history[-1]) if fitted.history else {}
    if output.as_json:
        values = {
            **identity(fitted.spec, fitted.layout, fitted.reading, fitted.training),
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
    if output.quiet:
        return
    print(describe(fitted.context, fitted.about.get("notes", ())))
    layout, found = fitted.layout, fitted.reading
    print(
        f"likelihoods: {', '.join(sorted(set(found.kinds)))}; windows of {layout.partition_size}; smoothing over "
        f"{found.bandwidth * layout.scaling.time_scale:.3g} {layout.time_unit}"
    )
    print("last step: " + ", ".join(f"{k} {v:.4g}" for k, v in last.items()))
    print(fitted.parameters().head(40).to_string(float_format=lambda x: f"{x:.4g}"))
    print(f"made by: {fitted.about.get('command', 'a script')}")


@app.command
def study(
    name: Annotated[Text, Parameter(help="Which one; without a name they are listed.")] = None,
    *,
    seeds: Annotated[int | None, Parameter(help="How many seeds; default: the study's own number.")] = None,
    quick: Annotated[bool, Parameter(negative="", help="A smoke version of less than a minute.")] = False,
    data: Annotated[File, Parameter(help="The data file of a study that needs one (mocap: mocap35.mat).")] = None,
    out: Annotated[File, Parameter(help="Where to store result and figures.")] = None,
    output: Output = Output(),
) -> None:
    """Studies with stored results: run one by name, or list them. They live beside the package, in a clone of the repository.

    What the result file in the folder has already is not run again.

    Example: arcta study lotka-volterra --quick
    """
    if name is None:
        print("\n".join(known()) or "no studies here: they come with a clone of the repository")
        return
    if name not in known():
        raise ValueError(
            f"there is no study '{name}'; known are {', '.join(known()) or 'none here (use a clone of the repository)'}."
        )
    if seeds is not None and seeds < 1:
        raise ValueError(f"--seeds must be at least 1; got {seeds}. Leave it out for the study's own number.")
    folder = out or FOLDER / ("quick" if quick else "results") / name
    chosen = Study(name, folder, quick=quick, seeds=seeds, data=data, quiet=output.quiet)
    runpy.run_path(str(FOLDER / f"{name.replace('-', '_')}.py"))["run"](chosen)
    print(f"\n{chosen.file}")


@app.command
def init(
    config: Annotated[Path, Parameter(help="The file to write.")] = Path("arcta.toml"),
    *,
    force: Annotated[bool, Parameter(negative="", help="Overwrite it.")] = False,
    output: Output = Output(),
) -> None:
    """Write the whole configuration with its defaults, to be edited and passed as --config.

    Example: arcta init arcta.toml
    """
    if config.exists() and not force:
        raise ValueError(f"{config} exists; pass --force to overwrite it.")
    write_atomically(config, default_toml().encode())
    say(f"use it with: arcta fit DATA --config {config}", output.quiet)
    print(json.dumps({"configuration": str(config)}) if output.as_json else config)


@app.command
def demo(
    *,
    out: Annotated[Path, Parameter(help="Folder for the run, the report and its pictures.")] = Path("demo"),
    force: Annotated[bool, Parameter(negative="", help="Replace a run that is there already.")] = False,
    key: Key = 0,
    output: Output = Output(),
) -> None:
    """Learn Lotka–Volterra from noisy data, forecast it, and write a report.

    Example: arcta demo --out demo
    """
    fitted, scores, page = lotka_volterra.run(out, overwrite=force, key=key, progress=not output.quiet)
    values = int(fitted.history[-1]["drift_evaluations"])
    if output.as_json:
        told = {"drift_evaluations": values, "seconds": fitted.seconds, "report": str(page)}
        print(json.dumps({**scores, **told}, indent=1))
        return
    print(f"trained on 50 s of Lotka–Volterra: {values:,} drift values, {fitted.seconds:.2f} s after compilation")
    for name, value in scores.items():
        print(f"  {name:<12} {value:.4f}")
    print(f"report: {page}")
