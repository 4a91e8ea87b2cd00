"""Registers Paceline's pages with Airflow, through an entry point or as a file in the plugins folder.

Every Airflow process loads plugins at startup, so other imports are deferred until the API server needs the pages.
"""

from __future__ import annotations

import logging
from functools import cached_property
from typing import Any

from airflow.sdk.plugins_manager import AirflowPlugin

PREFIX = "/paceline"
log = logging.getLogger(__name__)


class PacelinePlugin(AirflowPlugin):
    """Pages in Airflow's UI, and the API that they call on Airflow's API server.

    "Retraining" is in the navigation. "Pace" is a tab of each DAG run and of each task instance.
    """

    name = "paceline"

    @cached_property
    def fastapi_apps(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The application below ``/paceline`` on the API server."""
        try:
            from paceline.plugins.web.app import create_app
        except ImportError:  # Airflow's internals differ between versions; its API server must start anyway
            log.exception("Paceline's API is unavailable: this Airflow version lacks modules that the API imports")
            return []
        return [{"app": create_app(), "url_prefix": PREFIX, "name": "Paceline"}]

    @cached_property
    def react_apps(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The pages and their places in Airflow's UI.

        Airflow caches a loaded bundle by page name and by URL, so each page name has its own URL.
        """
        from paceline.plugins.web.bundle import bundle_url

        pace = {"name": "Pace", "bundle_url": bundle_url("pace"), "icon": _icon("pace.svg")}
        return [
            {
                "name": "Retraining",
                "bundle_url": bundle_url("retraining"),
                "icon": _icon("pace.svg"),
                "destination": "nav",
                "category": "browse",
                "url_route": "retraining",
            },
            {**pace, "destination": "dag_run", "url_route": "pace"},
            {**pace, "destination": "task_instance", "url_route": "task-pace"},
        ]


def _icon(name: str) -> str:
    return f"{PREFIX.lstrip('/')}/static/{name}"
