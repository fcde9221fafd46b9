"""The house: files in reading order that import only what stands before them, parts behind interfaces, and its measures."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

import arcta
from arcta.parts import decoders, encoders, likelihoods, posterior, sde

PACKAGE = Path(arcta.__file__).parent
ORDER = """
runtime.memory runtime.compile runtime.threads runtime.host runtime.sums runtime.activations runtime.random runtime.small
runtime.process runtime.cache
data.dates data.calendar data.spans data.shown data.moments data.series
data.readers.source data.readers.files data.readers.numbers data.readers.columns
data.readers.digits data.readers.times data.readers.text data.readers.tables data.readers.arrays data.readers.frames
data.read data.split data.seasons data.scaling data.windows data.batches data.store data.datasets
linear.components linear.scales linear.learn linear.together linear.structure linear.find
parts.base parts.networks parts.convolutions parts.prior parts.kernel parts.posterior parts.encoders parts.local parts.decoders
parts.sde parts.physics parts.diffusion parts.likelihoods parts.channels parts.generative parts.chain parts.smoother parts.model
bound.quadrature bound.residual bound.elbo bound.objective bound.evidence bound.closed bound.widths bound.weights
model.spec model.survey model.reading model.check model.build model.fault model.start
training.settings training.progress training.loop training.files training.lock training.bundle training.checkpoint
training.ensemble training.parallel training.prepare
predict.solve predict.figures predict.prediction predict.recognise predict.trust predict.forecast predict.smooth predict.structural
predict.components predict.metrics predict.naive predict.classical
task.use task.window task.validation task.header task.run task.summary task.fitted task.compete task.train task.fit task.backtest
rivals.solved rivals.baselines
outside.page outside.report outside.config outside.reference outside.demo outside.study
outside.cli.signals outside.cli.options outside.cli.terminal outside.cli.train outside.cli.use outside.cli.runs outside.cli.commands
""".split()  # noqa: SIM905
VERBS = {"fit", "forecast", "read", "backtest", "elbo", "store", "__init__"}  # the public ones, and Series(…)


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


FILES = {module_of(path): path for path in PACKAGE.rglob("*.py") if path.stem not in ("__init__", "__main__")}


def imports(name: str) -> set[str]:
    """The modules of the package that a file imports, anywhere in it."""
    found: set[str] = set()
    here = name.split(".")[:-1]
    for node in ast.walk(parse(FILES[name])):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = [*here[: len(here) - node.level + 1], *(node.module or "").split(".")]
            base = [part for part in base if part]
            module = ".".join(base)
            found |= {module} if module in FILES else {f"{module}.{alias.name}" for alias in node.names}
    return found


def test_reading_order_is_data_order():
    assert set(FILES) == set(ORDER), "name a new file in ORDER and in CONTRIBUTING.md"
    for position, name in enumerate(ORDER):
        later = imports(name) - set(ORDER[:position])
        assert not later, f"{name} imports {sorted(later)}, which stand after it"


def test_contributing_maps_every_file_and_every_package_says_what_it_does():
    text = (PACKAGE.parent / "CONTRIBUTING.md").read_text()
    assert not [name for name in ORDER if f"`{name.rsplit('.', 1)[-1]}`" not in text]
    for init in PACKAGE.rglob("__init__.py"):
        assert ast.get_docstring(parse(init)), init


PARTS = {
    name
    for module in (decoders, encoders, likelihoods, posterior, sde)
    for name, thing in vars(module).items()
    if inspect.isclass(thing) and thing.__module__ == module.__name__
} | {"MLP", "LocalEncoder", "Model", "AbstractGenerative"}


def test_no_part_is_asked_what_it_is_outside_the_package_that_builds_it():
    asked = []
    for name, path in FILES.items():
        if name.startswith("model."):
            continue
        for node in ast.walk(parse(path)):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in ("isinstance", "hasattr")
            ):
                words = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
                words |= {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}
                parts = {"drift", "decoder", "encoder", "likelihood", "diffusion", "kernel", "bridge", "posterior"}
                if words & (PARTS | parts):
                    asked.append(f"{name}:{node.lineno}")
    assert not asked


def functions(path: Path) -> list[ast.FunctionDef]:
    return [node for node in ast.walk(parse(path)) if isinstance(node, ast.FunctionDef)]


@pytest.mark.parametrize("name", ORDER)
def test_files_and_functions_are_short(name):
    path = FILES[name]
    assert len(path.read_text().splitlines()) <= 400
    for function in functions(path):
        assert function.end_lineno - function.lineno + 1 <= 60, function.name
        count = len(function.args.args) + len(function.args.kwonlyargs)
        names = [argument.arg for argument in function.args.args[:1]]
        count -= names in (["self"], ["cls"])
        assert count <= 8 or function.name in VERBS, function.name


def test_any_is_rare_and_nothing_public_returns_it():
    words = sum(path.read_text().count("Any") for path in PACKAGE.rglob("*.py"))
    assert words < 100, words
    for name, thing in vars(arcta).items():
        for each in (thing, *(vars(thing).values() if inspect.isclass(thing) else ())):
            if inspect.isfunction(each) and not name.startswith("_") and not each.__name__.startswith("_"):
                assert "Any" not in str(inspect.signature(each).return_annotation).split("["), (name, each.__name__)
