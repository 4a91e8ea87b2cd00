"""Airflow's internals are named in one module of the pages; a missing name is a failed test of its own."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

PLUGINS = Path(__file__).parents[3] / "plugins"
INTERNALS = PLUGINS / "web" / "airflow_internals.py"


def imports(path: Path) -> list[tuple[str, str]]:
    """Return the modules of Airflow that a file imports from, each with a name."""
    nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
    return [
        (node.module, alias.name)
        for node in nodes
        for alias in node.names
        if not node.level and node.module is not None and node.module.split(".")[0] == "airflow"
    ]


@pytest.mark.parametrize(("module", "name"), imports(INTERNALS))
def test_airflow_has_what_the_pages_use(module: str, name: str) -> None:
    assert hasattr(importlib.import_module(module), name)


def test_other_modules_of_the_pages_use_only_what_airflow_promises_to_keep() -> None:
    files = [path for path in PLUGINS.rglob("*.py") if "node_modules" not in path.parts and path != INTERNALS]
    assert len(files) > 10
    others = {f"{path.name}: {module}" for path in files for module, _ in imports(path)}
    assert {one for one in others if not one.partition(": ")[2].startswith("airflow.sdk")} == set()
