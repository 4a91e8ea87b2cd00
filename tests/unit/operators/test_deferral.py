"""A job that waits for its first devices in the triggerer: what is handed over, and when the trigger ends."""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
from airflow.models.trigger import Trigger
from airflow.serialization.decoders import smart_decode_trigger_kwargs
from airflow.serialization.encoders import encode_trigger

from paceline.airflow import steering
from paceline.contract import CEILING, DEADLINE, PACE, Ceiling, Deadline, finite
from paceline.control import Gains, Limits, PastRun
from paceline.errors import InvalidInputError
from paceline.operators import DeadlineTrainingOperator, triggers
from paceline.operators.triggers import GrantTrigger
from paceline.run import WaitingJob
from paceline.run.clock import SystemClock
from paceline.run.settings import Settings

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
JOB = WaitingJob(Settings(deadline=Deadline(600.0), shared=True), Limits(0.1, 2.0), 600.0, None, NOW, "training")
LOG = logging.getLogger("test")


def clock() -> SystemClock:
    """Return a clock that starts at ``NOW``, whenever the test runs."""
    return SystemClock(NOW.timestamp())


@pytest.mark.parametrize(
    "job",
    [
        JOB,
        WaitingJob(
            Settings(deadline=Deadline(at=NOW), controller=Gains(1.5, 0.3), on_infeasible="extend"),
            Limits(1, 4, 1),
            250.5,
            PastRun(270, 1.5, 0.5, 1.0, 9.0, 0.9, 0.0),
            NOW,
            "gpus",
        ),
        WaitingJob(Settings(), Limits(0.1, 2.0), float("inf"), None, NOW, "training"),
    ],
)
def test_trigger_gets_the_same_job_after_it_was_stored(job: WaitingJob) -> None:
    path, kwargs = GrantTrigger(job.to_json()).serialize()
    assert path == "paceline.operators.triggers.GrantTrigger"
    stored = Trigger.encrypt_kwargs(encode_trigger({"classpath": path, "kwargs": kwargs})["kwargs"])
    decode: Any = smart_decode_trigger_kwargs
    decoded = {name: decode(value) for name, value in Trigger._decrypt_kwargs(stored).items()}
    again = WaitingJob.read(GrantTrigger(**decoded).job)
    assert again == job
    assert again.queue(clock(), LOG).step({})[PACE]["deadline_s"] == finite(job.deadline_s)


class FakeTask:
    """Answers each exchange with the next of ``answers``: the live state, or an error."""

    def __init__(self, answers: Sequence[Mapping[str, Any] | Exception]) -> None:
        self.answers, self.taken, self.hurried = iter(answers), 0, 0
        self.written: list[dict[str, Any]] = []

    async def take_over(self, task: object) -> FakeTask:
        self.taken += 1
        return self

    def hurry(self) -> None:
        self.hurried += 1

    async def exchange(self, take: Callable[[], Mapping[str, Any]], read: Sequence[str]) -> dict[str, Any]:
        assert set(read) == {CEILING, DEADLINE}
        self.written.append({key: json.loads(text) for key, text in take().items()})
        answer = next(self.answers)
        if isinstance(answer, Exception):
            raise answer
        return {key: None if value is None else json.dumps(value) for key, value in answer.items()}


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triggers, "_CANCELLED_WITHIN_S", 0.0)
    monkeypatch.setattr(triggers, "REPORTED_WITHIN_S", 0.0)
    monkeypatch.setattr(triggers, "_clock", clock)


def run_trigger(
    monkeypatch: pytest.MonkeyPatch,
    job: WaitingJob,
    *answers: Mapping[str, Any] | Exception,
    event: Mapping[str, Any] = MappingProxyType({}),
) -> FakeTask:
    """Run the trigger until it yields its event."""
    task = FakeTask(answers)
    monkeypatch.setattr(steering, "SteeredTask", task)
    trigger = GrantTrigger(job.to_json())
    trigger.task_instance = SimpleNamespace(task_id="train")

    async def first_event() -> Any:
        return await anext(trigger.run())

    assert asyncio.run(first_event()).payload == event
    assert next(task.answers, None) is None
    return task


WAITS, GRANTED = {CEILING: None}, {CEILING: Ceiling(0.5, 1).to_json()}


def test_trigger_publishes_the_request_until_devices_are_granted(monkeypatch: pytest.MonkeyPatch) -> None:
    task = run_trigger(monkeypatch, JOB, WAITS, {**WAITS, DEADLINE: "20m"}, GRANTED)
    assert [values.get(PACE, {}).get("deadline_s") for values in task.written] == [None, 600.0, 1200.0]
    assert task.hurried == 2, "the new deadline, and the grant"


def test_values_of_a_failed_exchange_are_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    task = run_trigger(monkeypatch, JOB, WAITS, steering.SteeringError("away"), steering.SteeringError("away"), GRANTED)
    assert [values.keys() for values in task.written] == [set(), {PACE}, {PACE}, {PACE}]


@pytest.mark.parametrize("before", [[], [WAITS]])
def test_trigger_that_airflow_does_not_cancel_takes_the_job_over_again(
    monkeypatch: pytest.MonkeyPatch, before: list[Mapping[str, Any]]
) -> None:
    task = run_trigger(monkeypatch, JOB, *before, steering.TakenOverError(), GRANTED)
    assert task.taken == 2


def test_event_waits_until_the_executor_has_reported_the_end_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow would attribute the report to the process that the event starts, and fail the task."""
    steps: list[str] = []

    async def settle() -> None:
        steps.append("reported")

    monkeypatch.setattr(triggers, "_settled", lambda: asyncio.ensure_future(settle()))
    task = run_trigger(monkeypatch, JOB, GRANTED)
    assert (steps, task.taken) == (["reported"], 1)


def test_refused_deadline_lets_the_task_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = Ceiling(0.0, 1, deadline_s=600.0, fits=False, earliest_s=900.0).to_json()
    job = WaitingJob(Settings(deadline=Deadline(600.0), on_infeasible="fail"), JOB.limits, 600.0, None, NOW, "training")
    run_trigger(monkeypatch, job, {CEILING: refused})


def test_worker_process_waits_if_the_trigger_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, Airflow would fail the try."""
    run_trigger(monkeypatch, JOB, WAITS, {CEILING: {"devices": "many"}}, event={"reason": "error"})


def test_hash_is_stored_again_if_airflow_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.sdk.bases.xcom import BaseXCom

    stored: list[tuple[str, str]] = []

    async def aset(key: str, value: str, **place: Any) -> None:
        stored.append((key, value))
        if len(stored) == 1:
            raise RuntimeError("database is locked")

    monkeypatch.setattr(BaseXCom, "aset", aset)
    monkeypatch.setattr(steering, "wait_random_exponential", lambda **limits: lambda state: 0.0)
    task = SimpleNamespace(id=uuid.uuid4(), dag_id="d", run_id="r", task_id="t", map_index=None)
    asyncio.run(steering.SteeredTask.take_over(task))
    assert len(stored) == 2
    assert stored[0] == stored[1]


def test_deferral_of_a_team_is_rejected_unless_it_waits_for_devices() -> None:
    options: dict[str, Any] = {"task_id": "train", "command": "python train.py", "deadline": "20m", "deferrable": True}
    assert DeadlineTrainingOperator(**options).deferrable
    with pytest.raises(InvalidInputError, match="deferrable: got True, expected False, because a worker process"):
        DeadlineTrainingOperator(**options, team={})
    assert DeadlineTrainingOperator(**options, team={}, shared=True).deferrable
