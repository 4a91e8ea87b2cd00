"""Whether a worker process leaves the control of its job to the triggerer, and how it continues afterwards."""

from __future__ import annotations

import threading
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.bases.operator import TRIGGER_FAIL_REPR, TriggerFailureReason
from airflow.sdk.exceptions import AirflowFailException, AirflowTaskTimeout, TaskDeferralError, TaskDeferralTimeout
from airflow.sdk.log import mask_secret  # type: ignore[attr-defined]
from tests.samples import a_sample
from tests.waiting import until

from paceline.contract import ALERTS, CONTAINER, JobRecord
from paceline.operators import DeadlineTrainingOperator, Docker, Process, train
from paceline.run import MemoryState
from paceline.runtime import JobStatus

NAMED = Docker(engine_conn_id="site")
SENT = {"version": 1, "sent": ["missed"], "deadline_s": 100.0}
ERROR = {"reason": "error"}
ALERT = {"alert": {"kind": "missed", "message": "late"}, "alerts": SENT}


class FakeTraining:
    """Records the arguments of ``Training``."""

    def __init__(self, settings: Any, host: Any, **arguments: Any) -> None:
        self.host, self.arguments = host, arguments

    @property
    def leaves(self) -> Any:
        return self.arguments["leaves"]


@pytest.fixture(autouse=True)
def without_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "Training", FakeTraining)


@pytest.fixture
def context() -> Any:
    ti = SimpleNamespace(dag_id="dag", run_id="run", task_id="train", map_index=-1, try_number=1, max_tries=0)
    ti.start_date, ti.stats_tags = datetime.now(timezone.utc), {}
    return {"ti": ti, "dag_run": SimpleNamespace(start_date=ti.start_date), "task_state_store": MemoryState()}


def a_task(tmp_path: Path, **arguments: Any) -> DeadlineTrainingOperator:
    return DeadlineTrainingOperator(
        **{"task_id": "train", "command": ["train"], "deadline": "1h", "output": str(tmp_path), **arguments}
    )


@pytest.mark.parametrize(
    ("by_default", "arguments", "expected"),
    [
        (False, {}, False),
        (False, {"deferrable": True}, True),
        (False, {"deferrable": True, "runtime": "process"}, True),
        (True, {"runtime": NAMED}, True),
        (True, {"runtime": NAMED, "deferrable": False}, False),
        # By default, not if another machine could ask another engine for the job.
        (True, {}, False),
        (True, {"runtime": Docker()}, False),
        (True, {"runtime": Docker(docker_conn_id="registry")}, False),
        (True, {"runtime": Process()}, False),
        # The triggerer could not mask these.
        (False, {"deferrable": True, "private_environment": {"TOKEN": "x"}}, False),
        (False, {"deferrable": True, "environment": {"TOKEN": "opensesame-4711"}}, False),
        (False, {"deferrable": True, "command": "train --token=opensesame-4711"}, False),
        (False, {"deferrable": True, "command": ["train", "open\\sesame-4711"]}, False),
        (False, {"deferrable": True, "command": None, "script": "a.py", "arguments": ["opensesame-4711"]}, False),
        (False, {"deferrable": True, "checkpoint_to": "file:///checkpoints"}, True),
    ],
)
def test_control_is_left_to_the_triggerer(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    context: Any,
    by_default: bool,
    arguments: dict[str, Any],
    expected: bool,
) -> None:
    mask_secret("opensesame-4711")
    mask_secret("open\\sesame-4711")
    monkeypatch.setenv("AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE", str(by_default))
    task = a_task(tmp_path, **arguments)
    training: Any = task.new_training(context)
    assert (training.leaves is not None) == expected
    if task.deferrable:
        assert (task._why_not() is None) == expected


@pytest.mark.parametrize(("event", "here"), [({}, False), (ERROR, True)])
def test_worker_process_waits_for_devices_only_if_the_trigger_has_failed(
    tmp_path: Path, context: Any, event: dict[str, Any], here: bool
) -> None:
    task = a_task(tmp_path, shared=True, deferrable=True)
    found: list[Any] = []
    task.execute = lambda context: found.append(task.new_training(context))  # type: ignore[assignment, method-assign]
    since = datetime(2026, 1, 1, tzinfo=timezone.utc)
    task.execute_granted(context, event, since.isoformat())
    assert (found[0].arguments["waits_here"], found[0].arguments["waited_since"]) == (here, since)


def continued(task: DeadlineTrainingOperator, context: Any, event: dict[str, Any]) -> Any:
    """Return the training with which a worker process continues after the event of the trigger."""
    found: list[Any] = []

    def execute(context: Any) -> None:
        found.append(task.new_training(context))

    task.execute = execute  # type: ignore[assignment, method-assign]
    task.execute_continued(context, event)
    assert found[0].arguments["continues"]
    return found[0]


@pytest.mark.parametrize("event", [{"reason": "ended"}, {"reason": "ended", **ALERT}, {"reason": "timeout"}, ERROR])
def test_worker_process_controls_the_job_to_its_end(tmp_path: Path, context: Any, event: dict[str, Any]) -> None:
    assert continued(a_task(tmp_path, deferrable=True), context, event).leaves is None


def test_checks_before_a_start_do_not_leave_a_running_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, context: Any
) -> None:
    def check(task: object, context: object) -> None:
        raise AirflowFailException("an upstream task was cleared")

    monkeypatch.setattr(train, "check_later_inputs", check)
    result = SimpleNamespace(deadline_s=None, finished_s=1.0, mean_devices=1.0, to_json=lambda: {"model": "m"})
    monkeypatch.setattr(FakeTraining, "run", lambda self: result, raising=False)
    with pytest.raises(AirflowFailException):
        a_task(tmp_path, deferrable=True).execute(context)
    assert a_task(tmp_path, deferrable=True).execute_continued(context, ERROR) == {"model": "m"}


def test_worker_process_leaves_again_once_the_callbacks_have_ended(tmp_path: Path, context: Any) -> None:
    """Meanwhile, it controls the job: a callback may take long."""
    began, release, calls = threading.Event(), threading.Event(), []

    def call_back(context: Any) -> None:
        began.set()
        assert release.wait(60.0)
        calls.append(context["paceline"]["kind"])

    task = a_task(tmp_path, deferrable=True, on_deadline_alert=call_back)
    training = continued(task, context, {"reason": "alert", **ALERT})
    assert began.wait(60.0)
    assert not training.leaves(None)
    assert context["task_state_store"].get(ALERTS) == SENT, "a retry does not repeat the alert"
    training.host.on_sample(a_sample(t_s=103.0))  # of a missed deadline, as before
    release.set()
    until(lambda: training.leaves(None), "the end of the callback")
    assert not training.leaves(JobStatus("exited", 0))
    assert calls == ["missed"]


@pytest.mark.parametrize(("hours", "is_over"), [(3, False), (1, True)])
def test_time_limit_counts_from_the_start_of_the_try(tmp_path: Path, context: Any, hours: float, is_over: bool) -> None:
    """Airflow's own limit begins again with each process."""
    context["ti"].start_date -= timedelta(hours=2)
    task = a_task(tmp_path, deferrable=True, execution_timeout=timedelta(hours=hours))
    host = continued(task, context, {"reason": "timeout"}).host
    if not is_over:
        host.check_need("training")
        return
    with pytest.raises(AirflowTaskTimeout, match="execution_timeout"):
        host.check_need("training")


@pytest.mark.parametrize(
    ("reason", "deferred", "expected"),
    [
        (TriggerFailureReason.TRIGGER_FAILURE, True, None),
        (TriggerFailureReason.TRIGGER_FAILURE, False, TaskDeferralError),
        (TriggerFailureReason.TRIGGER_FAILURE, None, TaskDeferralError),
        (TriggerFailureReason.TRIGGER_TIMEOUT, True, TaskDeferralTimeout),
    ],
)
def test_worker_process_controls_the_job_of_a_trigger_that_cannot_run(
    tmp_path: Path, context: Any, reason: str, deferred: bool | None, expected: Any
) -> None:
    task, found = a_task(tmp_path, deferrable=True), []
    task.execute = lambda context: found.append(task.new_training(context))  # type: ignore[assignment, method-assign]
    if deferred is not None:
        record = JobRecord(runtime="docker", id="a", origin=datetime.now(timezone.utc), devices=1.0, deferred=deferred)
        context["task_state_store"].set(CONTAINER, record.to_json())
    kwargs = {"error": reason.value, "traceback": ["No module named paceline"]}
    if expected is not None:
        with pytest.raises(expected):
            task.resume_execution(TRIGGER_FAIL_REPR, kwargs, context)
        return
    task.resume_execution(TRIGGER_FAIL_REPR, kwargs, context)
    assert found[0].arguments["continues"]
    assert found[0].leaves is None
