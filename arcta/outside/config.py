"""The whole configuration as a file: how to read, what to build, how to train; TOML in, TOML out, checked by type.

    [data]       read.Options      [model]      LatentSDE      [training]   Training

A field left out, or commented out, keeps its default.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ..data.readers.files import read_bytes
from ..data.readers.source import Options
from ..model.spec import LatentSDE
from ..training.settings import Training

SECTIONS: dict[str, Any] = {"data": Options, "model": LatentSDE, "training": Training}
HELD = (int, float, str, bool, type(None), tuple, typing.Literal)  # what a file can hold as it is


@dataclasses.dataclass(frozen=True)
class Configuration:
    """The three parts of a run."""

    data: Options = dataclasses.field(default_factory=Options)
    model: LatentSDE = dataclasses.field(default_factory=LatentSDE)
    training: Training = dataclasses.field(default_factory=Training)

    def replace(self, settings: Mapping[str, Any], where: str) -> Configuration:
        """With some settings changed: `{"model.latent_size": 3}`; `where` says in messages who asked."""
        parts = {name: _settings(getattr(self, name)) for name in SECTIONS}
        for key, value in settings.items():
            section, _, name = key.partition(".")
            if section not in SECTIONS:
                raise ValueError(
                    f"{where}: '{key}' must begin with data., model. or training.; write e.g. model.latent_size."
                )
            parts[section][name] = _checked(section, name, value, where)
        try:
            return Configuration(**{name: SECTIONS[name](**values) for name, values in parts.items()})
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None


def _settings(part: Options | LatentSDE | Training) -> dict[str, Any]:
    return {name: getattr(part, name) for name in part.__annotations__}


def _checked(section: str, name: str, value: Any, where: str) -> Any:
    hints = typing.get_type_hints(SECTIONS[section])
    if name not in hints:
        near = difflib.get_close_matches(name, list(hints), 1)
        advice = f"did you mean '{near[0]}'?" if near else f"known are {', '.join(hints)}."
        raise ValueError(f"{where}: [{section}] has no setting '{name}'; {advice}")
    try:
        return msgspec.convert(value, _convertible(hints[name]), strict=False)
    except (msgspec.ValidationError, RecursionError) as error:
        shown = (
            json.dumps(value, default=str, ensure_ascii=False)[:60] if not isinstance(error, RecursionError) else "…"
        )
        raise ValueError(f"{where}: {section}.{name} = {shown} does not fit ({error}). Fix that setting.") from None


def _convertible(hint: Any) -> Any:
    """`hint` with lists as tuples, and a mapping of names in place of what a file cannot hold (modules, functions)."""
    several = typing.get_origin(hint) in (types.UnionType, typing.Union)
    options = typing.get_args(hint) if several else (hint,)
    return typing.Union[tuple(_held(option) for option in options)]  # noqa: UP007


def _held(option: Any) -> Any:
    origin = typing.get_origin(option) or option
    if origin is Sequence:
        return tuple[(*typing.get_args(option), ...)]
    return option if origin in HELD else dict[str, str]


def load_configuration(path: str | Path) -> Configuration:
    """The configuration in a TOML file."""
    path = Path(path)
    if not path.exists():
        raise ValueError(f"there is no configuration at {path}. Write one with: arcta init {path}")
    try:
        content = tomllib.loads(_text(path))
    except RecursionError:
        raise ValueError(
            f"{path} nests brackets deeper than a configuration can. Write it anew with: arcta init."
        ) from None
    except ValueError as error:  # of TOML, of its encoding, of a number with thousands of digits
        raise ValueError(f"{path} is not TOML: {str(error).rstrip('.')}. Fix that line.") from None
    settings = {}
    for section, values in content.items():
        if section not in SECTIONS or not isinstance(values, dict):
            raise ValueError(
                f"{path}: '{section}' is not a section; the sections are {', '.join(SECTIONS)}. Rename it."
            )
        settings |= {f"{section}.{name}": value for name, value in values.items()}
    return Configuration().replace(settings, str(path))


def _text(path: Path) -> str:
    content = read_bytes(path)
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start} is not UTF-8") from None


def default_toml() -> str:
    """Every setting with its default; those that are read off the data are commented out."""
    lines = ["# arcta: every setting. Lines that begin with '# ' keep their default, which is read off the data.", ""]
    for section in SECTIONS:
        lines.append(f"[{section}]")
        for name, value in _settings(getattr(Configuration(), section)).items():
            lines.append(f"# {name} =" if value is None else f"{name} = {json.dumps(value, ensure_ascii=False)}")
        lines.append("")
    return "\n".join(lines)
