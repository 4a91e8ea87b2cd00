"""The test's side of trainings that wait at gates: opens gates, follows runs, and ends them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import docker
from tests.waiting import until

from paceline.airflow.api import AirflowApiError
from paceline.airflow.demo.airflow_process import AirflowProcess


@contextlib.contextmanager
def dag(airflow: AirflowProcess, dag_id: str, text: str) -> Iterator[str]:
    """Add a DAG to this Airflow for the block; afterwards, remove its file and end its runs."""
    path = airflow.dags_folder / f"{dag_id}.py"
    path.write_text(text)
    try:
        yield dag_id
    finally:
        path.unlink()
        with contextlib.suppress(AirflowApiError):  # the file was never parsed
            for run in airflow.api("GET", f"/dags/{dag_id}/dagRuns", state=["queued", "running"])["dag_runs"]:
                airflow.api("PATCH", f"/dags/{dag_id}/dagRuns/{run['dag_run_id']}", {"state": "failed"})


@dataclass(frozen=True)
class Training:
    """A training task of a run."""

    airflow: AirflowProcess
    dag_id: str
    run_id: str
    task_id: str = "train"

    def store(self, key: str) -> Any:
        """Return a value of the task's state store."""
        return self.airflow.task_state(self.dag_id, self.run_id, self.task_id, key)

    def instance(self) -> dict[str, Any]:
        """Return the task instance from the REST API."""
        return self.airflow.task_instance(self.dag_id, self.run_id, self.task_id)

    @property
    def container(self) -> str:
        """Id of the task's container."""
        return str(self.store("container")["id"])

    def log(self, try_number: int = 1) -> str:
        """Return the task's log."""
        return self.airflow.task_log(self.dag_id, self.run_id, self.task_id, try_number)

    def result(self) -> dict[str, Any]:
        """Return the task's result."""
        return self.airflow.xcom(self.dag_id, self.run_id, self.task_id)

    def until(self, condition: Callable[[dict[str, Any]], object], key: str = "pace") -> dict[str, Any]:
        """Wait for ``condition`` of a value of the store, by default the newest sample; return the value."""
        seen: dict[str, Any] = {"task": self.task_id}

        def found() -> Any:
            seen["state"] = self.instance()[
                "state"
            ]  # read before the value: the last value is written before the task ends
            seen[key] = self.store(key)
            if seen[key] and condition(seen[key]):
                return seen[key]
            assert seen["state"] not in ("failed", "success"), seen
            return None

        return until(found, seen)


def run_in(client: docker.APIClient, container: str, *command: str) -> str:
    """Run a command in a container, with its user and working folder; return the output, "" on failure."""
    execution = client.exec_create(container, list(command))["Id"]
    output = client.exec_start(execution).decode()
    return output if client.exec_inspect(execution)["ExitCode"] == 0 else ""


def open_gates(client: docker.APIClient, container: str, *gates: str) -> None:
    """Open gates of a training in a container."""
    run_in(client, container, "touch", *gates)
