"""The files and commands in the guide of Kubernetes, for tests that use them."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import yaml

GUIDE = Path(__file__).parents[2] / "docs" / "kubernetes.md"
_CONSOLES = re.findall(r"```console\n(.*?)```", GUIDE.read_text(), re.DOTALL)
# Each file is a block that begins with a comment with its name.
FILES = dict(re.findall(r"```(?:yaml|python|dockerfile)\n# ([\w.-]+)[^\n]*\n(.*?)```", GUIDE.read_text(), re.DOTALL))
COMMANDS = [line[2:] for block in _CONSOLES for line in textwrap.dedent(block).splitlines() if line.startswith("$ ")]


def guide_block(name: str) -> list[dict[str, Any]]:
    """Return the YAML documents of a file in the guide."""
    return list(yaml.safe_load_all(FILES[name]))


def guide_rules() -> list[dict[str, Any]]:
    """Return the rules of the guide's role."""
    return next(list(one["rules"]) for one in guide_block("paceline.yaml") if one["kind"] == "Role")
