"""One HTML page that opens offline: sections with figures as inline SVG, tables, settings and versions. No script, no CDN."""

from __future__ import annotations

import dataclasses
import html
import io
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..predict.figures import save_figure
from ..task.fitted import Fit
from ..training.files import make_own_folder, write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STYLE = """
body { font: 16px/1.55 system-ui, sans-serif; color: #1f2933; max-width: 62rem; margin: 2.5rem auto; padding: 0 1.25rem; }
h1 { font-size: 1.7rem; margin-bottom: .2rem; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .4rem; }
p.lead { color: #52606d; margin-top: 0; } figure { margin: .6rem 0; } figure svg { max-width: 100%; height: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
td, th { padding: .25rem .9rem .25rem 0; text-align: right; } th:first-child, td:first-child { text-align: left; }
thead th { border-bottom: 2px solid #cbd2d9; } tbody tr { border-bottom: 1px solid #e4e7eb; }
.numbers { display: flex; flex-wrap: wrap; gap: 1rem 2.4rem; margin: 1.2rem 0; }
.numbers b { display: block; font-size: 1.5rem; font-weight: 600; } .numbers span { color: #52606d; font-size: .9rem; }
code, pre { font: .85rem/1.45 ui-monospace, monospace; }
section { break-inside: avoid; } p.note { color: #52606d; font-size: .92rem; margin: .1rem 0 .5rem; } img { max-width: 100%; }
p.verdict { padding: .6rem .9rem; border-radius: 4px; } p.good { background: #e3f4ea; } p.warn { background: #fdeaea; }
ul.lights { list-style: none; padding-left: 0; } .light { padding: .1rem .55rem; border-radius: 4px; font-size: .85rem; }
.light.green { background: #bfe5cd; } .light.amber { background: #fbe3ae; } .light.red { background: #f5c2c2; }
pre { background: #f5f7fa; padding: .8rem 1rem; white-space: pre-wrap; border-radius: 4px; }
"""


# Of four laws with known truth: least and most of the truth's spread over the reported one, and of medians' bias in units of that.
SPREAD, BIAS = (0.77, 1.47), (-0.56, 0.29)
_CALIBRATED = (
    f" In simulations of four laws with known truth its spread was {SPREAD[0]:.2f} to {SPREAD[1]:.2f} times the one reported, and "
    f"medians were off by {BIAS[0]:+.2f} to {BIAS[1]:+.2f} of those, by quantity: see docs/studies/calibration.md."
)


def svg(figure: Figure) -> str:
    """A figure as inline SVG."""
    import matplotlib

    buffer = io.StringIO()
    # Ids are salted by figure so that several inline figures do not share clip paths.
    with matplotlib.rc_context({"svg.hashsalt": str(id(figure)), "svg.fonttype": "path"}):
        save_figure(figure, buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def drawn(figure: Figure, kind: str) -> bytes:
    """A figure as the content of a file."""
    buffer = io.BytesIO()
    save_figure(figure, buffer, format=kind, dpi=130)
    return buffer.getvalue()


def table(rows: Sequence[Mapping[str, Any]], first: str) -> str:
    """Rows of numbers as an HTML table; the column `first` holds their names."""

    def cell(value: Any) -> str:
        number = isinstance(value, float)
        return "" if number and value != value else html.escape(f"{value:.4g}" if number else str(value))

    columns = [first, *(name for name in rows[0] if name != first)]
    head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
    body = "".join("<tr>" + "".join(f"<td>{cell(row[name])}</td>" for name in columns) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def versions(*packages: str) -> dict[str, str]:
    """The versions of Python and of some packages."""
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}


class Section(NamedTuple):
    """A heading, a sentence, and a figure or HTML below it; `stem` names the figure's PNG, `above` is HTML before it."""

    heading: str
    body: Any
    stem: str = ""
    text: str = ""
    above: str = ""


def write_report(
    folder: str | Path,
    fit: Fit,
    *,
    title: str,
    lead: str,
    headline: Mapping[str, str],
    sections: Sequence[Section],
    command: str,
) -> Path:
    """Write `report.html` and `figures/*.png`.

    **Arguments:**

    - `headline`: the few numbers to read first, by name.
    - `sections`: what follows, in order; figures are drawn inline and saved as PNG beside the page.
    - `command`: what reproduces the page.
    """
    folder = Path(folder)
    make_own_folder(folder / "figures")
    parts = []
    for section in sections:
        body = section.body
        if not isinstance(body, str):
            write_atomically(folder / "figures" / f"{section.stem}.png", drawn(body, "png"))
            body = f"<figure>{svg(body)}</figure>"
        text = f"<p class='note'>{html.escape(section.text)}</p>" if section.text else ""
        parts.append(f"<section><h2>{html.escape(section.heading)}</h2>{text}{section.above}{body}</section>")
    parameters = fit.parameters().reset_index().to_dict("records")
    more = f"<p class='note'>and {len(parameters) - 60} more</p>" if len(parameters) > 60 else ""
    settings = {
        "model": {k: v for k, v in dataclasses.asdict(fit.spec).items() if v is not None},
        "training": dataclasses.asdict(fit.training),
        "seed": {"training": fit.about.get("seed")},
        "versions": versions("arcta", "jax", "equinox", "diffrax", "optax", "numpy"),
    }
    listing = "\n".join(
        f"{part}: " + ", ".join(f"{k}={v!r}" for k, v in items.items()) for part, items in settings.items()
    )
    numbers = "".join(f"<div><b>{html.escape(v)}</b><span>{html.escape(k)}</span></div>" for k, v in headline.items())
    page = (
        f"<!doctype html><html lang='en'><head><meta charset='utf-8'><title>{html.escape(title)}</title>"
        f"<meta name='viewport' content='width=device-width'><link rel='icon' href='data:,'><style>{_STYLE}</style></head><body>"
        f"<h1>{html.escape(title)}</h1><p class='lead'>{html.escape(lead)}</p><div class='numbers'>{numbers}</div>"
        f"{''.join(parts)}<section><h2>Parameters, noise and diffusion, with posteriors and priors</h2>"
        "<p class='note'>Median and 90 % interval. Noise is a standard deviation in the channel's unit; diffusion a variance "
        f"per unit of time of a latent axis, whose own scale is about one.{_CALIBRATED if fit.model.drift.believed else ''}</p>"
        f"{table(parameters[:60], 'parameter')}{more}</section>"
        f"<section><h2>Settings</h2><pre>{html.escape(listing)}</pre>"
        f"<p>Reproduce with <code>{html.escape(command)}</code>.</p></section></body></html>"
    )
    path = folder / "report.html"
    write_atomically(path, page.encode())
    return path
