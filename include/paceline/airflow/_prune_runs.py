"""What ``paceline prune`` asks Airflow: which runs have not ended, and which files these have been given."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from paceline.airflow.places import safe_name

if TYPE_CHECKING:
    from paceline.airflow.api import AirflowApi

_ACTIVE = ("queued", "running")
_PAGE = 100


class Runs:
    """The runs of an Airflow. A run has not ended while a task waits, is deferred, or asks a person.

    All methods remember Airflow's answers, and with ``again`` ask again.

    Parameters
    ----------
    api:
        Client of a user who may read all DAGs: Airflow leaves the others out of its lists.
    """

    def __init__(self, api: AirflowApi) -> None:
        self._api = api
        self._known: dict[tuple[str, str], bool] = {}
        self._listed: list[dict[str, Any]] | None = None
        self._given: dict[tuple[str, str], str] = {}

    def is_active(self, dag_id: str, run_id: str, *, again: bool = False) -> bool:
        """Return whether Airflow has this run and it has not ended."""
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

    def has_active_folder(self, path: str, *, again: bool = False) -> bool:
        """Return whether a run that has not ended writes its reports to a folder: below ``DAG/RUN``."""
        parents = {*pairwise(path.split("/"))}
        runs = self._active(again=again)
        return any((safe_name(one["dag_id"]), safe_name(one["dag_run_id"])) in parents for one in runs)

    def is_given(self, folder: str, *, again: bool = False) -> bool:
        """Return whether a run that has not ended has been given a path in a folder: by a parameter, or an asset event.

        ``folder`` is the end of the folder's path: another machine may have the files elsewhere.
        """
        named = re.compile(rf"/{re.escape(json.dumps(folder)[1:-1])}(?!\w)")
        return any(named.search(self._given_to(run)) for run in self._active(again=again))

    def is_given_version(self, model: str, version: int, *, again: bool = False) -> bool:
        """Return whether a run that has not ended has been given a version, as an evaluation and an event name it."""
        number = re.compile(rf'"version": "?{version}\b')
        texts = (self._given_to(run) for run in self._active(again=again))
        return any(f'"model": {json.dumps(model)}' in text and number.search(text) for text in texts)

    def _active(self, *, again: bool) -> list[dict[str, Any]]:
        if again or self._listed is None:
            found: list[dict[str, Any]] = []
            cursor: str | None = ""  # with offsets, a run that ends in the meantime would hide another one
            while cursor is not None:
                page = self._api.api("GET", "/dags/~/dagRuns", state=[*_ACTIVE], limit=_PAGE, cursor=cursor)
                found += page["dag_runs"]
                cursor = page["next_cursor"]
            self._listed = found
        return self._listed

    def _given_to(self, run: dict[str, Any]) -> str:
        """Return the parameters of a run, and the asset events that have started it, which do not change."""
        from paceline.airflow.api import AirflowApiError

        key = (run["dag_id"], run["dag_run_id"])
        if key not in self._given:
            path = f"/dags/{quote(run['dag_id'])}/dagRuns/{quote(run['dag_run_id'])}/upstreamAssetEvents"
            try:
                events = self._api.api("GET", path)["asset_events"]
            except AirflowApiError as error:
                if error.status != 404:
                    raise
                events = []  # the run has been deleted
            self._given[key] = json.dumps([run.get("conf"), [event.get("extra") for event in events]])
        return self._given[key]
