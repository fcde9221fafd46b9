"""What the commands share: the application, and options as dataclasses, which cyclopts lays flat on the line."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import cyclopts
from cyclopts import Parameter

from ...task.fitted import Fit
from ..config import Configuration, load_configuration

app = cyclopts.App(
    name="arcta",
    help="Latent stochastic differential equations from noisy time series, learned without a solver.",
    help_format="plaintext",
    suppress_keyboard_interrupt=False,
)
app.register_install_completion_command(help="Tab completion for your shell: arcta --install-completion")


Data = Annotated[Path, Parameter(help="A .csv, .tsv, .parquet, .npz or .zarr file, or a folder of .png frames.")]
Run = Annotated[Path, Parameter(help="The folder of a saved run.")]
Key = Annotated[int, Parameter(help="The random seed.")]
Samples = Annotated[int, Parameter(help="The number of sample paths.")]
Only = Annotated[str | None, Parameter(help="One series of several, by name.")]
At = Annotated[str | None, Parameter(help="Times: 1,2,3 or a file with one in each line.")]
Words = Annotated[list[str] | None, Parameter(consume_multiple=True, negative="")]
Text = str | None
File = Path | None


@Parameter(name="*")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Reading:
    """How a file is read."""

    time: Annotated[Text, Parameter(help="The column of times; 'row' numbers the rows.")] = None
    series: Annotated[Text, Parameter(help="The column that tells several series apart.")] = None
    inputs: Annotated[Words, Parameter(help="Columns that are known inputs u(t).")] = None
    channels: Annotated[Words, Parameter(help="The columns to model.")] = None
    missing: Annotated[Words, Parameter(help="Values that mean missing: -999 NA, or --missing=- for a hyphen.")] = None
    decimal: Annotated[Text, Parameter(help="The decimal mark of a text file, if it does not tell by itself.")] = None
    delimiter: Annotated[Text, Parameter(help="The mark between columns of a text file.")] = None
    time_zone: Annotated[Text, Parameter(help="The zone of dates that do not say theirs.")] = None
    day_first: Annotated[bool | None, Parameter(help="Whether 01/02/2024 is the first of February.")] = None
    time_unit: Annotated[Text, Parameter(help="The unit in which times are counted.")] = None
    variable: Annotated[Text, Parameter(help="Long tables: the column with the variables' names.")] = None
    value: Annotated[Text, Parameter(help="Long tables: the column with the values.")] = None

    def settings(self) -> dict[str, object]:
        """Those that were given, as settings of a configuration."""
        given = {f"data.{name}": value for name, value in dataclasses.asdict(self).items() if value is not None}
        if self.missing is not None:
            given["data.missing"] = [_number(item) for item in self.missing]
        return given


@Parameter(name="*")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """The configuration: a file, and what overrides it."""

    config: Annotated[File, Parameter(help="From `arcta init`; options on the line override it.")] = None
    set_: Annotated[
        Words, Parameter(name="--set", help="Any setting, e.g. model.rotation=false training.steps=500.")
    ] = None
    steps: Annotated[int | None, Parameter(help="Training steps.")] = None
    season: Annotated[
        Words, Parameter(help="Periods in the data's unit of time, or 'none' (default: those that are found).")
    ] = None

    def configuration(self, changes: dict[str, object]) -> Configuration:
        """The configuration of the file, with what is said on the line; settings that are None were not given."""
        base = load_configuration(self.config) if self.config is not None else Configuration()
        changes = changes | {"training.steps": self.steps, "model.season": self._periods()}
        given = {name: value for name, value in changes.items() if value is not None}
        return base.replace(given, "command line").replace(parse_settings(self.set_ or ()), "--set")

    def _periods(self) -> list[float] | None:
        """As `model.season` has them; None if nothing was said."""
        if self.season is None or self.season == ["none"]:
            return None if self.season is None else []
        try:
            return [float(word) for word in self.season]
        except ValueError:
            said = " ".join(self.season)
            raise ValueError(f"--season needs periods, or none; got '{said}'. Write e.g. --season 12.") from None


@Parameter(name="*")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Output:
    """How results are printed."""

    as_json: Annotated[bool, Parameter(name="--json", negative="", help="Print the result as JSON.")] = False
    quiet: Annotated[bool, Parameter(name=["--quiet", "-q"], negative="", help="Print the result only.")] = False


@Parameter(name="*")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Table(Output):
    """Where a table goes."""

    out: Annotated[
        File, Parameter(help="Write the table here (.csv, .tsv, .json, .parquet); default: print it as CSV.")
    ] = None


def parse_settings(pairs: Sequence[str]) -> dict[str, object]:
    """`model.rotation=false` → {"model.rotation": False}; what is not JSON is text."""
    settings: dict[str, object] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise ValueError(f"--set needs name=value; got '{pair}'. Write e.g. --set training.steps=500.")
        try:
            settings[name] = json.loads(text)
        except (ValueError, RecursionError):
            settings[name] = text
    return settings


def _number(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text


def stored_options(fit: Fit, reading: Reading) -> Configuration:
    """Read new data as the training data was read, unless told otherwise."""
    stored = {f"data.{k}": v for k, v in fit.about.get("reading", {}).items() if v not in (None, [])}
    if fit.layout.frame_shape is None and "data.variable" not in stored:
        stored["data.channels"] = list(fit.layout.channels)
    return Configuration().replace(stored, "the run").replace(reading.settings(), "command line")
