"""The pages as a browser gets them: one script, made by ``make ui``, or one that says that it has not been made."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

STATIC = Path(__file__).parents[1] / "static"
SCRIPT = "pages.js"
NOT_BUILT = (
    "Paceline's pages have not been built. In a clone of Paceline, run `make ui` and start the API server again; "
    "a wheel has them."
)


def bundle_url(page: str) -> str:
    """Where the script of a page is, from Airflow's base address; another one whenever the script is another.

    >>> bundle_url("pace").startswith("paceline/static/pages.js?page=pace&version=")
    True
    """
    return f"paceline/static/{SCRIPT}?page={page}&version={version(read_script())}"


def version(script: str) -> str:
    """Short name of a script: another one whenever it is another."""
    return sha256(script.encode()).hexdigest()[:12]


def read_script() -> str:
    """The script, or one that shows in its place what is missing."""
    path = STATIC / SCRIPT
    return path.read_text() if path.is_file() else _told(NOT_BUILT)


def _told(message: str) -> str:
    said = json.dumps(message)
    return f'globalThis.AirflowPlugin = () => globalThis.React.createElement("p", {{ role: "alert" }}, {said});\n'
