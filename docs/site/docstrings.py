"""A griffe extension: the examples in docstrings (`!!! example`, then `>>>`) as blocks of code."""

from __future__ import annotations

import re
import textwrap

import griffe

EXAMPLE = re.compile(r"^( *)!!! example\n\n((?:\1    .*\n?|\n)+)", re.M)
PLAIN = re.compile(r"((?:^    +(?:>>>|\.\.\.|[^\s*-]).*\n?)+)", re.M)


def _fenced(match: re.Match[str]) -> str:
    return f"```python\n{textwrap.dedent(match[2]).strip()}\n```\n"


class Examples(griffe.Extension):
    """Rewrites docstrings before they are rendered."""

    def on_object(self, *, obj: griffe.Object, **kwargs: object) -> None:
        if obj.docstring is not None:
            obj.docstring.value = EXAMPLE.sub(_fenced, obj.docstring.value)
