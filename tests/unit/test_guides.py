"""The Python blocks of the guides are Python, and the messages that they explain are those of the code."""

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


def test_explained_messages_are_those_of_the_code() -> None:
    """A message is spread over strings and values, so that the guide's parts between two ellipses have to be there."""
    source = "".join(
        path.read_text()
        for folder in ("include", "operators", "sensors", "plugins/web")
        for path in (PROJECT / folder).rglob("*.py")
    )
    source = re.sub(r'"\s*f?"', "", source)
    guide = (PROJECT / "docs" / "troubleshooting.md").read_text()
    cells = re.findall(r"^\| (.*?) \|", guide, re.MULTILINE)
    parts = [part.strip() for cell in cells for quoted in re.findall("`(.*?)`", cell) for part in quoted.split("…")]
    assert len(parts) > 20
    assert [part for part in parts if part not in source] == []
