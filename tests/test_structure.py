"""The house: files import only what stands before them."""

from __future__ import annotations

import ast
from pathlib import Path

import arcta

ORDER = """
compiled programs host series tables arrays read scaling survey windows store datasets nn kernel prior posterior sde
likelihood quadrature model elbo objective start train parallel ensemble checkpoint solve figures prediction forecast smooth
sample metrics run fitted fit classical solved baselines backtest report config demo study cli
""".split()  # noqa: SIM905
PACKAGE = Path(arcta.__file__).parent


def imports(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            names |= {node.module} if node.module else {alias.name for alias in node.names}
    return names


def test_reading_order_is_data_order():
    files = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}
    assert files == set(ORDER), "name a new file in ORDER and in CONTRIBUTING.md"
    for position, name in enumerate(ORDER):
        later = imports(PACKAGE / f"{name}.py") - set(ORDER[:position])
        assert not later, f"{name}.py imports {sorted(later)}, which stand after it"


def test_contributing_maps_every_file():
    text = (PACKAGE.parent / "CONTRIBUTING.md").read_text()
    missing = [name for name in ORDER if f"`{name}`" not in text]
    assert not missing
