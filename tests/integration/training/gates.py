"""Helpers for tests of jobs that wait at gates: add a DAG, wait for a task's state, and open gates."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import docker
from demo.airflow_process import AirflowProcess
from tests.waiting import until

from paceline.airflow.api import AirflowApiError


@contextlib.contextmanager
def temporary_dag(airflow: AirflowProcess, dag_id: str, text: str) -> Iterator[str]:
    """Add a DAG to Airflow for the duration of the block. At the end, remove the DAG's file and end its runs.

    Each id is used once: Airflow removes a DAG some time after its file, and would then remove a second DAG of that id.
    """
    known = airflow.api("GET", "/dags", dag_id_pattern=dag_id, exclude_stale=False)["dags"]
    assert dag_id not in [dag["dag_id"] for dag in known]
    path = airflow.dags_folder / f"{dag_id}.py"
    path.write_text(text)
    try:
        yield dag_id
    finally:
        path.unlink()
        with contextlib.suppress(AirflowApiError):  # Airflow has never parsed the file
            for run in airflow.api("GET", f"/dags/{dag_id}/dagRuns", state=["queued", "running"])["dag_runs"]:
                airflow.api("PATCH", f"/dags/{dag_id}/dagRuns/{run['dag_run_id']}", {"state": "failed"})


@dataclass(frozen=True)
class TrainingTask:
    """A training task in a DAG run."""

    airflow: AirflowProcess
    dag_id: str
    run_id: str
    task_id: str = "train"

    def stored_value(self, key: str) -> Any:
        """Return the value of a key in the task's state store."""
        return self.airflow.task_state(self.dag_id, self.run_id, self.task_id, key)

    def instance(self) -> dict[str, Any]:
        """Return the task instance from the REST API."""
        return self.airflow.task_instance(self.dag_id, self.run_id, self.task_id)

    @property
    def container(self) -> str:
        """The id of the task's container."""
        return str(self.stored_value("container")["id"])

    def log(self, try_number: int = 1) -> str:
        """Return the task's log."""
        return self.airflow.task_log(self.dag_id, self.run_id, self.task_id, try_number)

    def result(self) -> dict[str, Any]:
        """Return the task's result."""
        return self.airflow.xcom(self.dag_id, self.run_id, self.task_id)

    def wait_until(self, condition: Callable[[dict[str, Any]], object], key: str = "pace") -> dict[str, Any]:
        """Wait until a stored value, by default the newest pace sample, meets ``condition``. Return the value."""
        seen: dict[str, Any] = {"task": self.task_id}

        def read_value() -> Any:
            # Read the task's state before the value, because a task writes its last value before it ends.
            seen["state"] = self.instance()["state"]
            seen[key] = self.stored_value(key)
            if seen[key] and condition(seen[key]):
                return seen[key]
            assert seen["state"] not in ("failed", "success"), seen
            return None

        return until(read_value, seen)


def run_in_container(client: docker.APIClient, container: str, *command: str) -> str:
    """Run a command in a container as its user, in its working folder. Return the output, or "" on failure."""
    execution = client.exec_create(container, list(command))["Id"]
    output = client.exec_start(execution).decode()
    return output if client.exec_inspect(execution)["ExitCode"] == 0 else ""


def open_gates(client: docker.APIClient, container: str, *gates: str) -> None:
    """Open gates of the training job that runs in a container."""
    run_in_container(client, container, "touch", *gates)
