"""``TaskHost`` distinguishes an ended task from a drained worker, although Airflow sends the same signal."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from paceline.operators import DeadlineTrainingOperator, _host
from paceline.operators._host import TaskHost


@pytest.fixture
def task_status(monkeypatch):
    monkeypatch.setattr(_host, "_is_dags_test", lambda: False)

    def query_status(get_task_states, map_index=-1):
        task = DeadlineTrainingOperator(task_id="train", script="train.py", deadline="1m")
        ti = SimpleNamespace(dag_id="dag", run_id="run", task_id="train", map_index=map_index, try_number=1)
        ti.max_tries, ti.get_task_states = 2, get_task_states
        return TaskHost(task, {"ti": ti, "task_state_store": None}, ()).task_status()

    return query_status


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("failed", "over"),  # marked by a user
        ("success", "over"),
        ("skipped", "over"),
        ("restarting", "over"),  # cleared while it ran
        ("running", "active"),  # the worker is drained
        ("up_for_retry", "active"),  # its heartbeats were missed
        ("queued", "active"),
        (None, "active"),
    ],
)
def test_task_is_over_only_if_it_has_ended(task_status, state, expected):
    assert task_status(lambda **what: {"run": {"train": state}}) == expected


def test_specification_has_the_cores_of_each_gpu(tmp_path):
    script = tmp_path / "train.py"
    script.touch()
    task = DeadlineTrainingOperator(
        task_id="train", script=str(script), deadline="1m", gpus=2, quantum=1, min_devices=1, cores_per_device=4
    )
    ti = SimpleNamespace(dag_id="dag", run_id="run", task_id="train", map_index=-1, try_number=1, max_tries=2)
    spec = TaskHost(task, {"ti": ti, "task_state_store": None}, ()).spec(tmp_path, 2.0)
    assert (spec.devices, spec.gpus, spec.cores_per_device) == (2.0, 2, 4)


def test_mapped_task_queries_its_own_state(task_status):
    queries = []
    assert task_status(lambda **what: queries.append(what) or {"run": {"train_3": "failed"}}, map_index=3) == "over"
    assert queries == [{"dag_id": "dag", "map_index": 3, "task_ids": ["train"], "run_ids": ["run"]}]


def test_task_status_is_unknown_if_the_supervisor_does_not_respond(task_status, monkeypatch):
    monkeypatch.setattr(_host, "_QUERY_TIMEOUT_S", 0.01)
    never = threading.Event()
    assert task_status(lambda **what: never.wait() and {}) == "unknown"
    never.set()

    def fail(**what):
        raise EOFError("the supervisor has ended")

    assert task_status(fail) == "unknown"


def test_stopped_task_of_airflow_dags_test_counts_as_over(task_status, monkeypatch):
    monkeypatch.setattr(_host, "_is_dags_test", lambda: True)
    assert task_status(None) == "over"
