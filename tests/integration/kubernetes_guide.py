"""The files and commands in the guides of Kubernetes and of fleets, for tests that use them."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import yaml

GUIDE = Path(__file__).parents[2] / "docs" / "kubernetes.md"
_CONSOLES = re.findall(r"```console\n(.*?)```", GUIDE.read_text(), re.DOTALL)
FLEET_GUIDE = GUIDE.with_name("fleet.md")
# Each file is a block that begins with a comment with its name.
_BLOCK = re.compile(r"```(?:yaml|python|dockerfile)\n# ([\w.-]+)[^\n]*\n(.*?)```", re.DOTALL)
FILES = dict(_BLOCK.findall(GUIDE.read_text()))
COMMANDS = [line[2:] for block in _CONSOLES for line in textwrap.dedent(block).splitlines() if line.startswith("$ ")]


def guide_block(name: str, guide: Path = GUIDE) -> list[dict[str, Any]]:
    """Return the YAML documents of a file in a guide."""
    return list(yaml.safe_load_all(dict(_BLOCK.findall(guide.read_text()))[name]))


def guide_rules() -> list[dict[str, Any]]:
    """Return the rules of the guide's role."""
    return next(list(one["rules"]) for one in guide_block("paceline.yaml") if one["kind"] == "Role")
