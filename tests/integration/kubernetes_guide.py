"""The files and commands in the guide of Kubernetes, for tests that use them."""

from __future__ import annotations

import re
from pathlib import Path

GUIDE = Path(__file__).parents[2] / "docs" / "kubernetes.md"
# Each file is a block that begins with a comment with its name.
FILES = dict(re.findall(r"```(?:yaml|python|dockerfile)\n# ([\w.-]+)[^\n]*\n(.*?)```", GUIDE.read_text(), re.DOTALL))
COMMANDS = [
    line.removeprefix("$ ")
    for block in re.findall(r"```console\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    for line in block.replace("\\\n", "").splitlines()
    if line.startswith("$ ")
]
