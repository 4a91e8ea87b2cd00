"""The pages have what users can write: names, arguments, commands, environment variables and routes."""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.airflow import cli
from paceline.plugins.web.app import create_app
from paceline.train import job

PROJECT = Path(__file__).parents[2]
DOCS = PROJECT / "docs"
REFERENCE = DOCS / "reference"
GUIDES = [PROJECT / "README.md", *sorted(DOCS.glob("*.md"))]
ENTRIES = set(re.findall(r"\.\. auto\w+:: (\S+)", "\n".join(path.read_text() for path in REFERENCE.glob("*.md"))))
# Exported for other packages of Paceline only.
INTERNAL = {
    "paceline.sensors.DriftTrigger",
    "paceline.fleet.EngineCheck",
    "paceline.fleet.check",
    "paceline.fleet.check_nodes",
    "paceline.train.adapters.keras.keras",  # the library itself, with a backend
}


@pytest.mark.parametrize("name", ["operators", "sensors", "train", "drift", "fleet", "registry"])
def test_each_exported_name_has_an_entry(name: str) -> None:
    documented = {entry.rpartition(".")[2] for entry in ENTRIES}
    package = importlib.import_module(f"paceline.{name}")
    exported = [one for one in package.__all__ if callable(getattr(package, one))]
    assert [one for one in exported if one not in documented and f"paceline.{name}.{one}" not in INTERNAL] == []


def imported_names(guide: Path) -> Iterator[str]:
    """Yield the names that the Python blocks of a guide import from Paceline, without modules."""
    for block in re.findall(r"^ *```python\n(.*?)^ *```", guide.read_text(), re.DOTALL | re.MULTILINE):
        for node in ast.walk(ast.parse(textwrap.dedent(block))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("paceline."):
                yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.name)
def test_each_name_that_a_guide_imports_has_an_entry(guide: Path) -> None:
    names = set(imported_names(guide))
    modules = {name for name in names if (PROJECT / "include" / name.replace(".", "/")).exists()}
    assert names - modules - ENTRIES - INTERNAL == set()


def arguments_of(package: str) -> set[str]:
    """Return the names of the parameters that users pass to the classes and functions of a package."""
    module = importlib.import_module(f"paceline.{package}")
    public = {name: getattr(module, name) for name in module.__all__ if f"paceline.{package}.{name}" not in INTERNAL}
    parameters = [
        parameter
        for made in public.values()
        if callable(made)
        for parameter in inspect.signature(made.__init__ if inspect.isclass(made) else made).parameters.values()
    ]
    return {one.name for one in parameters if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)} - {"self"}


@pytest.mark.parametrize("package", ["operators", "sensors"])
def test_each_argument_is_in_a_guide(package: str) -> None:
    words = set(re.findall(r"\w+", "\n".join(guide.read_text() for guide in GUIDES)))
    assert arguments_of(package) - words == set()


def commands(parser: argparse.ArgumentParser, path: str = "paceline") -> Iterator[str]:
    """Yield the commands of a parser, with those of its subparsers in place of their parents."""
    groups = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not groups:
        yield path
    for group in groups:
        for name, inner in group.choices.items():
            yield from commands(inner, f"{path} {name}")


def test_each_command_is_in_the_reference_and_in_a_guide() -> None:
    found = set(commands(cli._parser()))
    shown = re.findall(r"^```{program-output} (.*) --help$", (REFERENCE / "command-line.md").read_text(), re.MULTILINE)
    assert found == set(shown)
    text = "\n".join(guide.read_text() for guide in GUIDES)
    assert {command for command in found if command not in text} == set()


def test_each_environment_variable_is_in_a_table() -> None:
    of_jobs = {value for name, value in vars(job).items() if name.startswith("ENV_")}
    of_commands = set(re.findall(r"PACELINE_AIRFLOW_[A-Z]+", inspect.getsource(cli)))
    of_examples = set(re.findall(r"PACELINE_[A-Z]+", "".join(path.read_text() for path in PROJECT.glob("dags/*.py"))))
    pages = [DOCS / "deployment.md", REFERENCE / "training-code.md"]
    rows = "\n".join(re.findall(r"^\| (`[A-Z].*?) \|", "\n".join(page.read_text() for page in pages), re.MULTILINE))
    assert {*of_jobs, *of_commands, *of_examples} - set(re.findall(r"PACELINE_\w+", rows)) == set()


def test_each_route_is_in_the_reference() -> None:
    table = (REFERENCE / "live-state.md").read_text()
    shown = {(method, path) for method, path in re.findall(r"^\| `(\w+) /paceline(/api/\S+)` \|", table, re.MULTILINE)}
    schema = create_app().openapi()["paths"]
    routes = {(method.upper(), re.sub(r"{pool_name}", "{pool}", path)) for path in schema for method in schema[path]}
    assert routes == shown
