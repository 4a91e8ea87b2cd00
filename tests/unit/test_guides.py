"""The Python blocks of the guides are Python."""

from __future__ import annotations

import ast
import re
import textwrap
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
GUIDES = [PROJECT / "README.md", PROJECT / "CONTRIBUTING.md", *sorted((PROJECT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.name)
def test_python_blocks_can_be_parsed(guide: Path) -> None:
    for block in re.findall(r"^ *```python\n(.*?)^ *```", guide.read_text(), re.DOTALL | re.MULTILINE):
        ast.parse(textwrap.dedent(block))
