"""A pool of cores that an arbiter shares among trainings, watched from outside. Called by the tests of sharing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import docker
from tests.waiting import until

from paceline.airflow.demo.airflow_process import AirflowProcess


@contextmanager
def an_arbiter(airflow: AirflowProcess, dag_id: str) -> Iterator[str]:
    """A run of an arbiter, its only task called ``arbiter``, for as long as the block lasts; yields the run's id."""
    run_id = airflow.run_dag(dag_id)
    try:
        yield run_id
    finally:
        task = airflow.task_instance(dag_id, run_id, "arbiter")
        airflow.api("PATCH", f"/dags/{dag_id}/dagRuns/{quote(run_id)}", {"state": "failed"})
        # The process learns of it at its next heartbeat. Until then the pool of the next test would have two arbiters.
        until(lambda: not (task["pid"] and Path(f"/proc/{task['pid']}").exists()))


class Watch:
    """Looks at the ceilings and the CPU quotas of a pool's trainings: neither may add up to more than the pool.

    Containers cannot be inspected at one moment, and cores move from one to another between two of them. So all are
    inspected twice, and count when nothing has changed meanwhile. Ceilings come from one query.
    """

    def __init__(self, airflow: AirflowProcess, client: docker.APIClient, pool: str, cores: float) -> None:
        self._airflow, self._client, self._pool, self._cores = airflow, client, pool, cores
        self.states: dict[str, str] = {}  # run to state
        self.ceilings: dict[str, tuple[int, float]] = {}  # run to the newest grant: its number, and the cores
        self.seen: set[str] = set()

    def __str__(self) -> str:
        return f"states {self.states}, ceilings {self.ceilings}"

    def look(self) -> None:
        """Read everything once, and check the sums."""
        self._read_ceilings()
        assert sum(cores for _, cores in self.ceilings.values()) <= self._cores + 1e-6, self.ceilings
        quotas = self._quotas()
        if quotas == self._quotas():
            assert sum(quotas.values()) <= self._cores + 0.01, quotas

    def wait_until(self, what: Callable[[], bool]) -> None:
        """Look until something is true."""
        until(lambda: what() or self.look(), self)

    def _read_ceilings(self) -> None:
        rows = self._airflow.pages(f"/pools/{quote(self._pool)}/trainings")
        self.states = {row["run_id"]: row["pace"]["state"] for row in rows if row["pace"]}
        self.seen.update(self.states.values())
        # A training that has ended holds nothing, although its task may not have tidied up yet.
        self.ceilings = {
            row["run_id"]: (row["ceiling"].get("grant", 0), row["ceiling"]["devices"])
            for row in rows
            if row["ceiling"] and self.states.get(row["run_id"]) not in ("finished", "failed")
        }

    def _quotas(self) -> dict[str, float]:
        found = {}
        labels = [f"paceline.pool={self._pool}"]
        for one in self._client.containers(filters={"label": labels, "status": "running"}):
            try:
                host: dict[str, Any] = self._client.inspect_container(one["Id"])["HostConfig"]
            except docker.errors.NotFound:
                continue  # it ended just now
            found[one["Id"]] = host["CpuQuota"] / host["CpuPeriod"]
        return found
