"""Registers Paceline's pages with Airflow: found by entry point, or as a file of the plugins folder.

Every Airflow process loads plugins when it starts, so nothing else is imported until the API server asks for the pages.
"""

from __future__ import annotations

import logging
from functools import cached_property
from typing import Any

from airflow.sdk.plugins_manager import AirflowPlugin

PREFIX = "/paceline"
log = logging.getLogger(__name__)


class PacelinePlugin(AirflowPlugin):
    """Pages in Airflow's own interface, and what they ask Airflow's API server for.

    "Retraining" is in the navigation, "Pace" is a tab of each DAG run and of each task of it.
    """

    name = "paceline"

    @cached_property
    def fastapi_apps(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The application below ``/paceline`` of the API server."""
        try:
            from paceline.plugins.web.app import create_app
        except ImportError:  # an Airflow whose insides are others: its API server is to start all the same
            log.exception("Paceline's pages have nobody to ask in this Airflow")
            return []
        return [{"app": create_app(), "url_prefix": PREFIX, "name": "Paceline"}]

    @cached_property
    def react_apps(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """Where Airflow shows the pages.

        Airflow knows a loaded bundle by the name of its page, and a bundle by its address: each name has its own.
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
