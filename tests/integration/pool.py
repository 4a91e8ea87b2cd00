"""Helpers for tests of a shared pool: run an arbiter, and check the ceilings and quotas of the pool's jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import docker
from demo.airflow_process import AirflowProcess
from tests.waiting import until


@contextmanager
def running_arbiter(airflow: AirflowProcess, dag_id: str) -> Iterator[str]:
    """Run an arbiter's DAG, with the task ``arbiter``, for the duration of the block, and yield the run's id."""
    run_id = airflow.run_dag(dag_id)
    try:
        yield run_id
    finally:
        task = airflow.task_instance(dag_id, run_id, "arbiter")
        airflow.api("PATCH", f"/dags/{dag_id}/dagRuns/{quote(run_id)}", {"state": "failed"})
        # The process ends at its next heartbeat. Wait for that, because a pool may have only one arbiter.
        until(lambda: not (task["pid"] and Path(f"/proc/{task['pid']}").exists()))


class PoolWatch:
    """A watch over one pool that checks the sum of the jobs' ceilings and the sum of their CPU quotas.

    Cores may move between containers while ``check`` inspects one container after another. So ``check`` inspects all
    containers twice, and checks the sum only if no quota has changed. One query returns all ceilings.
    """

    def __init__(self, airflow: AirflowProcess, client: docker.APIClient, pool: str, cores: float) -> None:
        self._airflow, self._client, self._pool, self._cores = airflow, client, pool, cores
        self.states: dict[str, str] = {}  # run id to state
        self.ceilings: dict[str, tuple[int, float]] = {}  # run id to the number and cores of its newest grant
        self.seen: set[str] = set()

    def __str__(self) -> str:
        return f"states {self.states}, ceilings {self.ceilings}"

    def check(self) -> None:
        """Check once that neither the ceilings nor the quotas exceed the pool in total."""
        self._read_ceilings()
        assert sum(cores for _, cores in self.ceilings.values()) <= self._cores + 1e-6, self.ceilings
        quotas = self._read_quotas()
        if quotas == self._read_quotas():
            assert sum(quotas.values()) <= self._cores + 0.01, quotas

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Repeat ``check`` until the condition is true."""
        until(lambda: condition() or self.check(), self)

    def _read_ceilings(self) -> None:
        rows = self._airflow.pages(f"/pools/{quote(self._pool)}/jobs")["jobs"]
        self.states = {row["run_id"]: row["pace"]["state"] for row in rows if row["pace"]}
        self.seen.update(self.states.values())
        # A finished job has no allocation, even if its task has not cleaned up yet.
        self.ceilings = {
            row["run_id"]: (row["ceiling"].get("grant", 0), row["ceiling"]["devices"])
            for row in rows
            if row["ceiling"] and self.states.get(row["run_id"]) not in ("finished", "failed")
        }

    def _read_quotas(self) -> dict[str, float]:
        quotas = {}
        labels = [f"paceline.pool={self._pool}"]
        for one in self._client.containers(filters={"label": labels, "status": "running"}):
            try:
                host: dict[str, Any] = self._client.inspect_container(one["Id"])["HostConfig"]
            except docker.errors.NotFound:
                continue  # the container has just ended
            quotas[one["Id"]] = host["CpuQuota"] / host["CpuPeriod"]
        return quotas
