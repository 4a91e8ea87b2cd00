"""Helpers for tests of sharing: run an arbiter, and watch the pool of cores that it shares among jobs."""

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
def running_arbiter(airflow: AirflowProcess, dag_id: str) -> Iterator[str]:
    """Run an arbiter DAG, whose task is ``arbiter``, during the block; yield the run's id."""
    run_id = airflow.run_dag(dag_id)
    try:
        yield run_id
    finally:
        task = airflow.task_instance(dag_id, run_id, "arbiter")
        airflow.api("PATCH", f"/dags/{dag_id}/dagRuns/{quote(run_id)}", {"state": "failed"})
        # The process ends at its next heartbeat. Until then, the pool of the next test would have two arbiters.
        until(lambda: not (task["pid"] and Path(f"/proc/{task['pid']}").exists()))


class PoolWatch:
    """Checks that neither the ceilings nor the CPU quotas of a pool's jobs exceed the pool in total.

    Cores may move between containers while these are inspected one by one. So ``check`` inspects all of them twice, and
    checks the sum only if no quota has changed. One query returns all ceilings.
    """

    def __init__(self, airflow: AirflowProcess, client: docker.APIClient, pool: str, cores: float) -> None:
        self._airflow, self._client, self._pool, self._cores = airflow, client, pool, cores
        self.states: dict[str, str] = {}  # run id to state
        self.ceilings: dict[str, tuple[int, float]] = {}  # run id to its newest grant: number and cores
        self.seen: set[str] = set()

    def __str__(self) -> str:
        return f"states {self.states}, ceilings {self.ceilings}"

    def check(self) -> None:
        """Read ceilings and quotas once, and check their sums."""
        self._read_ceilings()
        assert sum(cores for _, cores in self.ceilings.values()) <= self._cores + 1e-6, self.ceilings
        quotas = self._quotas()
        if quotas == self._quotas():
            assert sum(quotas.values()) <= self._cores + 0.01, quotas

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Check until a condition is true."""
        until(lambda: condition() or self.check(), self)

    def _read_ceilings(self) -> None:
        rows = self._airflow.pages(f"/pools/{quote(self._pool)}/jobs")
        self.states = {row["run_id"]: row["pace"]["state"] for row in rows if row["pace"]}
        self.seen.update(self.states.values())
        # A finished job has no allocation, even before its task has cleaned up.
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
                continue  # the container has just ended
            found[one["Id"]] = host["CpuQuota"] / host["CpuPeriod"]
        return found
