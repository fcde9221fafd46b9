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
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from ..data.readers.source import Options
from ..model.spec import LatentSDE
from ..training.settings import Training

SECTIONS: dict[str, Any] = {"data": Options, "model": LatentSDE, "training": Training}


@dataclasses.dataclass(frozen=True)
class Configuration:
    """The three parts of a run."""

    data: Options = dataclasses.field(default_factory=Options)
    model: LatentSDE = dataclasses.field(default_factory=LatentSDE)
    training: Training = dataclasses.field(default_factory=Training)

    def replace(self, settings: Mapping[str, Any], where: str) -> Configuration:
        """With some settings changed: `{"model.latent_size": 3}`; `where` says in messages who asked."""
        parts: dict[str, dict[str, Any]] = {name: {} for name in SECTIONS}
        for key, value in settings.items():
            section, _, name = key.partition(".")
            if section not in SECTIONS:
                raise ValueError(
                    f"{where}: '{key}' must begin with data., model. or training.; write e.g. model.latent_size."
                )
            parts[section][name] = _checked(section, name, value, where)
        return Configuration(*(_replaced(getattr(self, name), changes, where) for name, changes in parts.items()))


def _fields(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _checked(section: str, name: str, value: Any, where: str) -> Any:
    hints = _fields(SECTIONS[section])
    if name not in hints:
        near = difflib.get_close_matches(name, list(hints), 1)
        advice = f"did you mean '{near[0]}'?" if near else f"known are {', '.join(hints)}."
        raise ValueError(f"{where}: [{section}] has no setting '{name}'; {advice}")
    hint = hints[name]
    if hint is Any or isinstance(hint, str):
        return value
    try:
        return msgspec.convert(value, _convertible(hint), strict=False)
    except msgspec.ValidationError as error:
        raise ValueError(f"{where}: {section}.{name} = {value!r} does not fit ({error}). Mend that setting.") from None


def _convertible(hint: Any) -> Any:
    """`hint` without what a file cannot hold (modules, functions)."""
    options = (
        typing.get_args(hint)
        if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union
        else (hint,)
    )
    plain = [
        o
        for o in options
        if o in (int, float, str, bool, type(None)) or typing.get_origin(o) in (tuple, typing.Literal)
    ]
    if typing.get_origin(hint) is None and not plain:
        return Any
    if any(typing.get_origin(o) is not None and o not in plain for o in options):
        plain.append(dict[str, str])
    return typing.Union[tuple(plain)] if plain else Any  # noqa: UP007


def _replaced(part: Any, changes: Mapping[str, Any], where: str) -> Any:
    if not changes:
        return part
    try:
        return part._replace(**changes) if hasattr(part, "_replace") else dataclasses.replace(part, **changes)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def load_configuration(path: str | Path) -> Configuration:
    """The configuration in a TOML file."""
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"there is no configuration at {path}. Write one with: arcta init {path}")
    try:
        content = tomllib.loads(path.read_text("utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not TOML: {error}. Mend that line.") from None
    settings = {}
    for section, values in content.items():
        if section not in SECTIONS or not isinstance(values, dict):
            raise ValueError(
                f"{path}: '{section}' is not a section; the sections are {', '.join(SECTIONS)}. Rename it."
            )
        settings |= {f"{section}.{name}": value for name, value in values.items()}
    return Configuration().replace(settings, str(path))


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{json.dumps(k)} = {_toml(v)}" for k, v in value.items()) + " }"
    if isinstance(value, tuple | list):
        return "[" + ", ".join(_toml(v) for v in value) + "]"
    return json.dumps(value, ensure_ascii=False)


def to_toml(configuration: Configuration) -> str:
    """Every setting with its value; those that are read off the data are commented out."""
    lines = ["# arcta: every setting. Lines that begin with '# ' keep their default, which is read off the data.", ""]
    for section in SECTIONS:
        part = getattr(configuration, section)
        lines.append(f"[{section}]")
        for name in _fields(SECTIONS[section]):
            value = getattr(part, name)
            lines.append(f"# {name} =" if value is None else f"{name} = {_toml(value)}")
        lines.append("")
    return "\n".join(lines)
