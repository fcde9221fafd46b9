"""Things as a notebook shows them: a sentence and a small table."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

ROWS, COLUMNS = 6, 8


def small_table(sentence: str, frame: pd.DataFrame, rows: int = ROWS) -> str:
    """HTML of a sentence over the first and last rows of a table; names are escaped."""
    table = frame.to_html(max_rows=rows, max_cols=COLUMNS, escape=True, float_format=lambda x: f"{x:.4g}", border=0)
    return f"<div><p><code>{html.escape(sentence)}</code></p>{table}</div>"
