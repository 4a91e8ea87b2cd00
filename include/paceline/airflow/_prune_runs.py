"""What ``paceline prune`` asks Airflow: which runs have not ended, and which files these have been given."""

from __future__ import annotations

import json
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from paceline.airflow.places import safe_name

if TYPE_CHECKING:
    from paceline.airflow.api import AirflowApi

_ACTIVE = ("queued", "running")
_PAGE = 100


class Runs:
    """The runs of an Airflow. A run has not ended while a task waits, is deferred, or asks a person.

    Parameters
    ----------
    api:
        Client of a user who may read all DAGs: Airflow leaves the others out of its lists.
    """

    def __init__(self, api: AirflowApi) -> None:
        self._api = api
        self._known: dict[tuple[str, str], bool] = {}

    def is_active(self, dag_id: str, run_id: str, *, again: bool = False) -> bool:
        """Return whether Airflow has this run and it has not ended. With ``again``, ask again."""
        from paceline.airflow.api import AirflowApiError

        run = (dag_id, run_id)
        if again or run not in self._known:
            try:
                self._known[run] = self._api.dag_run(*run)["state"] in _ACTIVE
            except AirflowApiError as error:
                if error.status != 404:
                    raise
                self._known[run] = False  # it has been deleted
        return self._known[run]

    def has_active_folder(self, dag: str, run: str, *, again: bool = False) -> bool:
        """Return whether a run that has not ended writes its reports to the folder ``dag/run``."""
        if again:
            vars(self).pop("_active", None)
        return any((safe_name(one["dag_id"]), safe_name(one["dag_run_id"])) == (dag, run) for one in self._active)

    def is_given(self, path: str) -> bool:
        """Return whether a run that has not ended has been given a path: by a parameter, or by an asset event."""
        return any(json.dumps(path)[1:-1] in given for given in self._given)

    @cached_property
    def _active(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        while True:
            page = self._api.api("GET", "/dags/~/dagRuns", state=[*_ACTIVE], limit=_PAGE, offset=len(found))["dag_runs"]
            found += page
            if len(page) < _PAGE:
                return found

    @cached_property
    def _given(self) -> list[str]:
        texts = []
        for run in self._active:
            path = f"/dags/{quote(run['dag_id'])}/dagRuns/{quote(run['dag_run_id'])}/upstreamAssetEvents"
            events = self._api.api("GET", path)["asset_events"]
            texts.append(json.dumps([run.get("conf"), [event.get("extra") for event in events]]))
        return texts
