"""What the site needs beyond its pages: the repository's own files, links out of `docs/`, and that nothing asks the network.

`CONTRIBUTING.md` and `CHANGELOG.md` become pages, pictures of `studies/results` come along, and links to files that are not on the
site become their names. A link to what does not exist is a warning, and with `--strict` an error.
"""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
ADDED = {"contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#\s]+)(#[^)\s]*)?\)")
FENCE = re.compile(r"^```.*?^```$", re.M | re.S)
ASKS = re.compile(r"""<(?:script|link|img|iframe|source)\b[^>]*?(?:src|href)=["']?(https?:)?//(?!www\.w3\.org)[^>]*>""")
log = logging.getLogger("mkdocs.hooks.arcta")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for uri, name in ADDED.items():
        files.append(File.generated(config, uri, content=(ROOT / name).read_text()))
    for picture in sorted((ROOT / "studies" / "results").rglob("*.png")):
        uri = picture.relative_to(ROOT).as_posix()
        files.append(File.generated(config, uri, abs_src_path=str(picture)))
    return files


def on_page_markdown(markdown: str, page, config: MkDocsConfig, files: Files) -> str:
    """Links as the repository has them → links as the site has them."""
    uri = page.file.src_uri
    source = ROOT / ADDED[uri] if uri in ADDED else ROOT / "docs" / uri

    def site(match: re.Match[str]) -> str:
        mark, words, target, anchor = match.groups(default="")
        if "://" in target or target.startswith("mailto:"):
            return match[0]
        path = Path(os.path.normpath(source.parent / target))
        if not path.exists():
            log.warning("%s links to %s, which does not exist", uri, target)
            return match[0]
        place = next((to for to, name in ADDED.items() if ROOT / name == path), None)
        if place is None and path.is_relative_to(ROOT / "docs"):
            place = path.relative_to(ROOT / "docs").as_posix()
        elif place is None and files.get_file_from_path(path.relative_to(ROOT).as_posix()):
            place = path.relative_to(ROOT).as_posix()
        if place is None or not files.get_file_from_path(place):
            return words if "`" in words else f"{words} (`{path.relative_to(ROOT)}`)"
        return f"{mark}[{words}]({os.path.relpath(place, Path(uri).parent)}{anchor})"

    fences = FENCE.findall(markdown)
    plain = LINK.sub(site, FENCE.sub("\0", markdown))
    return re.sub("\0", lambda _: fences.pop(0), plain)


def on_post_build(config: MkDocsConfig) -> None:
    """No page may ask another machine for anything."""
    for page in Path(config.site_dir).rglob("*.html"):
        for found in ASKS.finditer(page.read_text()):
            log.warning("%s asks the network: %s", page.name, found[0][:120])
