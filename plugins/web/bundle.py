"""Reads the pages' script, which ``make ui`` builds, or a placeholder script that shows how to build the pages."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

STATIC = Path(__file__).parents[1] / "static"
SCRIPT = "pages.js"
NOT_BUILT = (
    "Paceline's pages have not been built. In a clone of Paceline, run `make ui` and restart the API server. "
    "A wheel of Paceline contains the built pages."
)


def bundle_url(page: str) -> str:
    """Return the URL of a page's script, relative to Airflow's base URL. The URL contains the script's version.

    >>> bundle_url("pace").startswith("paceline/static/pages.js?page=pace&version=")
    True
    """
    return f"paceline/static/{SCRIPT}?page={page}&version={version(read_script())}"


def version(script: str) -> str:
    """Return the version of a script, a short hash."""
    return sha256(script.encode()).hexdigest()[:12]


def read_script() -> str:
    """Return the pages' script, or a script that shows ``NOT_BUILT`` if the pages have not been built."""
    path = STATIC / SCRIPT
    return path.read_text() if path.is_file() else _message_script(NOT_BUILT)


def _message_script(message: str) -> str:
    text = json.dumps(message)
    return f'globalThis.AirflowPlugin = () => globalThis.React.createElement("p", {{ role: "alert" }}, {text});\n'
