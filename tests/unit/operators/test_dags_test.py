"""`airflow dags test` answers one request at a time; ``TaskHost`` makes requests in several threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.execution_time.supervisor import InProcessSupervisorComms, set_supervisor_comms
from tests.waiting import LONG_S

from paceline.operators import DeadlineTrainingOperator
from paceline.operators._host import TaskHost


class GatedSupervisor:
    """Answers a request once the gate is open."""

    def __init__(self) -> None:
        self.asked, self.gate = threading.Semaphore(0), threading.Event()
        self.comms = InProcessSupervisorComms(supervisor=self)  # type: ignore[arg-type]

    def _handle_request(self, message: Any, *_: object) -> None:
        self.asked.release()
        assert self.gate.wait(LONG_S)
        self.comms.messages.append(message)


class Store:
    """A task state store that asks Airflow's supervisor, as the real one does."""

    def get(self, key: str) -> Any:
        from airflow.sdk.execution_time.task_runner import SUPERVISOR_COMMS

        return SUPERVISOR_COMMS.send(key)  # type: ignore[arg-type]


@pytest.fixture
def supervisor() -> Iterator[GatedSupervisor]:
    one = GatedSupervisor()
    with set_supervisor_comms(one.comms):
        yield one


def test_requests_of_two_threads_wait_for_one_another(supervisor: GatedSupervisor) -> None:
    task = DeadlineTrainingOperator(task_id="train", script="train.py", deadline="1m")
    ti = SimpleNamespace(dag_id="dag", run_id="run", task_id="train", map_index=-1, try_number=1, max_tries=0)
    host = TaskHost(task, {"ti": ti, "task_state_store": Store()}, ())
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(host.store.get, "pace")
        assert supervisor.asked.acquire(timeout=LONG_S)
        second = threads.submit(host.store.get, "output")  # Airflow hides the supervisor meanwhile
        supervisor.gate.set()
        assert first.result(LONG_S) == "pace"
        assert second.result(LONG_S) == "output"


def test_callback_for_an_alert_waits_for_other_requests(supervisor: GatedSupervisor) -> None:
    asked = threading.Event()

    def notify(context: Any) -> None:
        context["task_state_store"].get("recipient")
        asked.set()

    task = DeadlineTrainingOperator(task_id="train", script="train.py", deadline="1m")
    ti = SimpleNamespace(dag_id="dag", run_id="run", task_id="train", map_index=-1, try_number=1, max_tries=0)
    host = TaskHost(task, {"ti": ti, "task_state_store": Store()}, [notify])
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(host.store.get, "pace")
        assert supervisor.asked.acquire(timeout=LONG_S)
        host.report_alert({"kind": "late"}, {})
        supervisor.gate.set()
        assert first.result(LONG_S) == "pace"
        host.wait_for_callbacks()
    assert asked.is_set()
