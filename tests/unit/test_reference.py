"""The reference has an entry for each class and function of the packages whose names DAGs and training code import."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
# Exported for other packages of Paceline only.
INTERNAL = {
    "paceline.sensors.DriftTrigger",
    "paceline.fleet.EngineCheck",
    "paceline.fleet.check",
    "paceline.fleet.check_nodes",
}


@pytest.mark.parametrize("name", ["operators", "sensors", "train", "drift", "fleet", "registry"])
def test_each_exported_name_has_an_entry(name: str) -> None:
    text = "\n".join(path.read_text() for path in REFERENCE.glob("*.md"))
    documented = {entry.rpartition(".")[2] for entry in re.findall(r"\.\. auto\w+:: (\S+)", text)}
    package = importlib.import_module(f"paceline.{name}")
    exported = [one for one in package.__all__ if callable(getattr(package, one))]
    assert [one for one in exported if one not in documented and f"paceline.{name}.{one}" not in INTERNAL] == []
