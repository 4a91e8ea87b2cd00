"""The test's side of trainings that wait at gates: opens them, follows a run, and leaves none behind."""

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
    """A DAG in this Airflow. In the end its runs are ended, and its file is read no more."""
    path = airflow.dags_folder / f"{dag_id}.py"
    path.write_text(text)
    try:
        yield dag_id
    finally:
        path.unlink()
        with contextlib.suppress(AirflowApiError):  # it was never read
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
        """A value of its task state store."""
        return self.airflow.task_state(self.dag_id, self.run_id, self.task_id, key)

    def instance(self) -> dict[str, Any]:
        """The task as the REST API describes it."""
        return self.airflow.task_instance(self.dag_id, self.run_id, self.task_id)

    @property
    def container(self) -> str:
        """Id of its container."""
        return str(self.store("container")["id"])

    def log(self, try_number: int = 1) -> str:
        """What the task has logged."""
        return self.airflow.task_log(self.dag_id, self.run_id, self.task_id, try_number)

    def result(self) -> dict[str, Any]:
        """What the task has returned."""
        return self.airflow.xcom(self.dag_id, self.run_id, self.task_id)

    def until(self, true: Callable[[dict[str, Any]], object], key: str = "pace") -> dict[str, Any]:
        """Wait until a value of its store, its newest sample by default, is as ``true`` says; return that value."""
        seen: dict[str, Any] = {"task": self.task_id}

        def there() -> Any:
            seen["state"] = self.instance()["state"]  # before the value: the last one is written before the task's end
            seen[key] = self.store(key)
            if seen[key] and true(seen[key]):
                return seen[key]
            assert seen["state"] not in ("failed", "success"), seen
            return None

        return until(there, seen)


def run_in(client: docker.APIClient, container: str, *command: str) -> str:
    """Run a command in a container, as its user and in its working folder; return what it says, "" if it fails."""
    execution = client.exec_create(container, list(command))["Id"]
    said = client.exec_start(execution).decode()
    return said if client.exec_inspect(execution)["ExitCode"] == 0 else ""


def open_gates(client: docker.APIClient, container: str, *gates: str) -> None:
    """Let a training go on that runs in a container."""
    run_in(client, container, "touch", *gates)
