"""A training whose job does not start leaves the reason for Paceline's pages, in every way in which it can fail."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowSkipException,
    AirflowTaskTimeout,
)

from paceline.contract import CONTAINER, NOT_STARTED, JobRecord, StartFailure
from paceline.errors import TaskStoppedError
from paceline.fleet import Fleet, Machine
from paceline.operators import DeadlineTrainingOperator, Docker, WorkerTrainingOperator
from paceline.operators._start_failure import noting_start_failure
from paceline.run import MemoryState
from paceline.run import _handle as handle_module

NOW = datetime.now(timezone.utc)
GATE = Machine(name="gate", kind="nano", cores=1, memory_gib=1, cgroup_parent="/gate")
FLEET = Fleet(machines=(GATE,), parameter_server=GATE)


def a_context(**params: Any) -> Any:
    ti = SimpleNamespace(
        dag_id="retrain",
        run_id="run",
        task_id="train",
        map_index=-1,
        try_number=1,
        max_tries=4,
        start_date=NOW,
        xcom_pull=lambda **_: None,
        get_task_states=lambda **_: {},
    )
    run = SimpleNamespace(start_date=NOW, run_after=NOW, conf={})
    return {"ti": ti, "dag_run": run, "task_state_store": MemoryState(), "params": params}


def reason_of(context: Any) -> str | None:
    failure = StartFailure.read(context["task_state_store"].get(NOT_STARTED))
    return None if failure is None else failure.reason


def train(operator: Any = DeadlineTrainingOperator, **arguments: Any) -> DeadlineTrainingOperator:
    with DAG("retrain", schedule=None):
        defaults = {"task_id": "train", "script": "/nowhere/train.py", "deadline": "1h", "runtime": "process"}
        task: DeadlineTrainingOperator = operator(**{**defaults, **arguments})
    return task


def run(task: DeadlineTrainingOperator, context: Any) -> None:
    """Run a try, as Airflow does."""
    task.render_template_fields({**context, "task": task})
    task.execute(context)


@pytest.fixture(autouse=True)
def no_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere.sock")
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    monkeypatch.setattr(handle_module, "_RETRY_FOR_S", 0.0)
    monkeypatch.setattr(handle_module, "_RETRY_EVERY_S", 0.0)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({}, "script: got '/nowhere/train.py', expected an existing file"),
        ({"deadline": "{{ params.deadline }}"}, "deadline: got 'soon', expected a duration"),
        ({"alpha": "{{ params.typo }}"}, "alpha: got '{{ params.typo }}', expected a template that can be rendered"),
        ({"runtime": "docker"}, "no Docker engine responds at unix"),
        ({"runtime": Docker(image="{{ params.typo }}")}, "runtime.image: got '{{ params.typo }}', expected a template"),
        (
            {"deadline": "2020-01-01T00:00:00Z", "on_infeasible": "fail"},
            "deadline: got 2020-01-01T00:00:00+00:00, expected a time after the start of the run",
        ),
    ],
)
def test_failure_before_the_start_is_stored_with_its_reason(arguments: dict[str, Any], reason: str) -> None:
    task, context = train(**arguments), a_context(deadline="soon")
    with pytest.raises(AirflowException):
        run(task, context)
    assert reason in (reason_of(context) or "")


def test_forbidden_runtime_is_stored_as_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__PACELINE__ALLOWED_RUNTIMES", "docker")
    context = a_context()
    with pytest.raises(AirflowException):
        train().execute(context)
    assert "as set by the administrator in [paceline] allowed_runtimes" in (reason_of(context) or "")


def test_worker_of_a_fleet_with_an_invalid_plan_is_stored_as_the_reason() -> None:
    fleet = {"fleet": FLEET, "worker": "gate", "plan": "{{ params.plan }}", "server_task_id": "server"}
    task, context = train(WorkerTrainingOperator, **{**fleet, "runtime": "docker"}), a_context(plan="none")
    with pytest.raises(AirflowException):
        run(task, context)
    assert "plan" in (reason_of(context) or "")


def test_error_of_a_job_that_runs_is_no_failure_to_start() -> None:
    task, context = train(alpha="{{ params.typo }}"), a_context()
    record = JobRecord(runtime="process", id="1", origin=NOW, devices=1.0)
    context["task_state_store"].set(CONTAINER, record.to_json())
    with pytest.raises(AirflowException) as raised:  # the task continues after a deferral
        task.render_template_fields({**context, "task": task})
    assert not isinstance(raised.value, AirflowFailException), "the next try collects the output"
    assert reason_of(context) is None


def test_job_of_an_earlier_try_has_started() -> None:
    task, context = train(runtime="docker"), a_context()
    record = JobRecord(runtime="docker", id="1", origin=NOW, devices=1.0)
    context["task_state_store"].set(CONTAINER, record.to_json())
    with pytest.raises(AirflowException):
        run(task, context)
    assert reason_of(context) is None


def test_end_of_a_task_by_a_user_is_no_failure_to_start() -> None:
    context, task = a_context(), train()
    with pytest.raises(AirflowException), noting_start_failure(context, task.log, lambda: False):
        raise AirflowException("the task is over") from TaskStoppedError("the task is over")
    assert reason_of(context) is None


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (AirflowTaskTimeout("the task has timed out"), "AirflowTaskTimeout: the task has timed out"),
        (KeyError("missing"), "KeyError: 'missing'"),
        (AirflowSkipException("gate does not train"), None),
        (KeyboardInterrupt(), None),
    ],
)
def test_only_failures_are_stored(error: BaseException, reason: str | None) -> None:
    context, task = a_context(), train()
    with pytest.raises(type(error)), noting_start_failure(context, task.log, lambda: False):
        raise error
    assert reason_of(context) == reason


def test_state_store_that_does_not_respond_does_not_hide_the_error() -> None:
    task = train()
    with pytest.raises(KeyError, match="first"), noting_start_failure({}, task.log, lambda: False):  # type: ignore[typeddict-item]
        raise KeyError("first")
