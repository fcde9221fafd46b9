"""What the commands share: the application, and options as dataclasses, which cyclopts lays flat on the line."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import cyclopts
from cyclopts import Parameter

if TYPE_CHECKING:
    from ...task.fitted import Fit
    from ..config import Configuration

app = cyclopts.App(
    name="arcta",
    help="Latent stochastic differential equations from noisy time series, learned without a solver.",
    help_format="plaintext",
)
app.register_install_completion_command(help="Tab completion for your shell: arcta --install-completion")


Data = Annotated[Path, Parameter(help="A .csv, .tsv, .parquet, .npz or .zarr file, or a folder of .png frames.")]
Run = Annotated[Path, Parameter(help="The folder of a saved run.")]
Key = Annotated[int, Parameter(help="The random seed.")]
Samples = Annotated[int, Parameter(help="The number of sample paths.")]
Only = Annotated[str | None, Parameter(help="One series of several, by name.")]
At = Annotated[str | None, Parameter(help="Times: 1,2,3 or a file with one in each line.")]
Plot = Annotated[Path | None, Parameter(help="Draw it into this .png or .svg.")]
Steps = Annotated[int | None, Parameter(help="Training steps.")]
Words = Annotated[list[str] | None, Parameter(consume_multiple=True, negative="")]
Hyphened = Annotated[list[str] | None, Parameter(consume_multiple=True, negative="", allow_leading_hyphen=True)]
Text = str | None


@Parameter(name="*")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Reading:
    """How a file is read."""

    time: Annotated[Text, Parameter(help="The column of times; 'row' numbers the rows.")] = None
    series: Annotated[Text, Parameter(help="The column that tells several series apart.")] = None
    inputs: Annotated[Words, Parameter(help="Columns that are known inputs u(t).")] = None
    channels: Annotated[Words, Parameter(help="The columns to model.")] = None
    missing: Annotated[Hyphened, Parameter(help="Values that mean missing, e.g. -999.")] = None
    decimal: Annotated[Text, Parameter(help="The decimal mark of a text file.")] = None
    delimiter: Annotated[Text, Parameter(help="The mark between columns of a text file.")] = None
    time_zone: Annotated[Text, Parameter(help="The zone of dates that do not say theirs.")] = None
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

    config: Annotated[Path | None, Parameter(help="From `arcta init`; options on the line override it.")] = None
    set_: Annotated[
        Words, Parameter(name="--set", help="Any setting, e.g. model.rotation=false training.steps=500.")
    ] = None
    steps: Steps = None

    def configuration(self, changes: dict[str, object]) -> Configuration:
        return configuration_of(self.config, changes | {"training.steps": self.steps}, self.set_)


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
        Path | None, Parameter(help="Write the table here (.csv, .tsv, .json, .parquet); default: print it as CSV.")
    ] = None


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


def settings_of(pairs: list[str] | None) -> dict[str, object]:
    """`model.rotation=false` → {"model.rotation": False}; what is not JSON is text."""
    settings: dict[str, object] = {}
    for pair in pairs or []:
        name, equals, text = pair.partition("=")
        if not equals:
            raise ValueError(f"--set needs name=value; got '{pair}'. Write e.g. --set training.steps=500.")
        try:
            settings[name] = json.loads(text)
        except json.JSONDecodeError:
            settings[name] = text
    return settings


def configuration_of(config: Path | None, changes: dict[str, object], pairs: list[str] | None) -> Configuration:
    """The configuration of a file, with what is said on the line; settings that are None were not given."""
    from ..config import Configuration, load_configuration

    base = load_configuration(config) if config is not None else Configuration()
    return base.replace(_given(changes), "command line").replace(settings_of(pairs), "--set")


def _given(changes: dict[str, object]) -> dict[str, object]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in changes.items() if v is not None}


def _number(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text


def stored_options(fit: Fit, reading: Reading) -> Configuration:
    """Read new data as the training data was read, unless told otherwise."""
    from ..config import Configuration

    stored = {f"data.{k}": v for k, v in fit.about.get("reading", {}).items() if v not in (None, [])}
    if fit.layout.frame_shape is None and "data.variable" not in stored:
        stored["data.channels"] = list(fit.layout.channels)
    return Configuration().replace(stored, "the run").replace(_given(reading.settings()), "command line")
