"""The pages' script, built by ``make ui``, or a placeholder script that shows how to build the pages."""

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
    """Return the URL of a page's script, relative to Airflow's base URL. It contains the script's version.

    >>> bundle_url("pace").startswith("paceline/static/pages.js?page=pace&version=")
    True
    """
    return f"paceline/static/{SCRIPT}?page={page}&version={version(read_script())}"


def version(script: str) -> str:
    """Return a short hash of a script."""
    return sha256(script.encode()).hexdigest()[:12]


def read_script() -> str:
    """Return the pages' script; if the pages have not been built, return a script that shows ``NOT_BUILT``."""
    path = STATIC / SCRIPT
    return path.read_text() if path.is_file() else _message_script(NOT_BUILT)


def _message_script(message: str) -> str:
    text = json.dumps(message)
    return f'globalThis.AirflowPlugin = () => globalThis.React.createElement("p", {{ role: "alert" }}, {text});\n'
