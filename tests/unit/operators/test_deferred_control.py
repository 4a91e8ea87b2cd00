"""The control of a job in the triggerer: what it writes, why it ends, and what happens to the job then.

The job and its engine are simulated; the live state is a dictionary behind the exchange of the triggerer.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.models.trigger import Trigger
from airflow.serialization.decoders import smart_decode_trigger_kwargs
from airflow.serialization.encoders import encode_trigger
from tests.unit.run.conftest import SimulatedClock
from tests.unit.run.simulated_task import SimulatedTask, record_of, take_over_job

from paceline.airflow.runtimes import Docker
from paceline.airflow.steering import SteeringError, TakenOverError
from paceline.contract import ALERTS, DEADLINE, PACE, Deadline
from paceline.control import PastRun, PastTail
from paceline.errors import RuntimeUnavailableError
from paceline.operators import _deferred
from paceline.operators._deferred import DeferredJob, JobControl
from paceline.operators.triggers import TrainingTrigger
from paceline.run import ControlElsewhereError, Training
from paceline.run.settings import Settings

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
JOB = DeferredJob(Settings(), Docker().serialize(), "train", {"task": "train"}, NOW, "pool", 1, 2)


@pytest.mark.parametrize(
    "job",
    [
        JOB,
        DeferredJob(
            Settings(deadline=Deadline(600.0), written="10m", max_devices=2.0, lease_s=600.0),
            Docker(image="trainer:2", memory=10**9).serialize(),
            "train",
            {"task": "train"},
            NOW,
            "gpus",
            1,
            4,
            PastRun(270, 1.5, 0.5, 1.0, 9.0, 0.9, 0.0),
            (PastTail(1.0), PastTail(2.0, 0.5)),
            True,
            NOW,
        ),
    ],
)
def test_trigger_gets_the_same_job_after_it_was_stored(job: DeferredJob) -> None:
    path, kwargs = TrainingTrigger(job.to_json()).serialize()
    assert path == "paceline.operators.triggers.TrainingTrigger"
    stored = Trigger.encrypt_kwargs(encode_trigger({"classpath": path, "kwargs": kwargs})["kwargs"])
    decode: Any = smart_decode_trigger_kwargs
    decoded = {name: decode(value) for name, value in Trigger._decrypt_kwargs(stored).items()}
    assert DeferredJob.read(TrainingTrigger(**decoded).job) == job


class Live:
    """A deferred task whose job is simulated. ``before`` is called with the values of each exchange."""

    def __init__(self, task: SimulatedTask, **options: Any) -> None:
        self.task = task
        self.before: Callable[[Mapping[str, Any]], None] = lambda write: None
        self.options = options
        task.try_number += 1
        training = Training(task.make_settings(), task.host(), clock=task.clock, leaves=lambda status: status is None)
        with pytest.raises(ControlElsewhereError):
            training.run()
        self.control = self.new_control()

    @property
    def job(self) -> Any:
        (job,) = self.task.engine.jobs.values()
        return job

    def new_control(self) -> JobControl:
        task = self.task
        place = (Docker().serialize(), "train", {"task": "train"}, task.began, "pool")
        job = DeferredJob(task.make_settings(), *place, 1, task.max_tries, **self.options)
        instance = SimpleNamespace(dag_id="dag", task_id="train", map_index=-1)
        return JobControl(job, self, instance, task.clock, logging.getLogger("test"))  # type: ignore[arg-type]

    async def exchange(self, write: Mapping[str, Any], read: Sequence[str]) -> dict[str, Any]:
        await asyncio.sleep(0.001)
        self.before(write)
        self.task.store.update(write)
        return {key: self.task.store.get(key) for key in read}


@pytest.fixture
def task(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> SimulatedTask:
    caplog.set_level(logging.INFO)
    simulated = SimulatedTask(SimulatedClock(), caplog)
    settings = SimpleNamespace(open=lambda: simulated.engine)
    monkeypatch.setattr(_deferred, "stored_settings", lambda content: settings)
    return simulated


class Pause:
    """Stops the simulated job, and so its control, at a moment, until ``end``."""

    def __init__(self, live: Live, at_s: float) -> None:
        self.began, self._ended = threading.Event(), threading.Event()
        live.job.actions.append((at_s, self._wait))

    def _wait(self) -> None:
        self.began.set()
        assert self._ended.wait(60.0)

    def end(self) -> None:
        self._ended.set()

    async def until_begun(self) -> None:
        assert await asyncio.to_thread(self.began.wait, 60.0)


def test_values_of_failed_exchanges_are_written_later(task: SimulatedTask) -> None:
    live, failures = Live(task), []
    pause = Pause(live, 10.0)

    def fail(write: Mapping[str, Any]) -> None:
        if len(failures) < 5 and pause.began.is_set():
            failures.append(write)
            if len(failures) == 5:
                pause.end()
            raise SteeringError("away")

    live.before = fail
    assert asyncio.run(live.control.run()) == {"reason": "ended"}
    assert len(failures) == 5
    assert task.store[PACE]["state"] == "finishing"
    assert live.job.status().state == "exited"
    assert [text for text in task.log.messages if "API server" in text] == [
        "Airflow's API server is not responding: control continues without it. away",
        "Airflow's API server is responding again",
    ]


def test_new_deadline_arrives(task: SimulatedTask) -> None:
    live = Live(task)
    pause = Pause(live, 10.0)

    async def move() -> dict[str, Any]:
        control = asyncio.create_task(live.control.run())
        await pause.until_begun()
        task.store[DEADLINE] = "80s"
        read = asyncio.Event()
        live.before = lambda write: asyncio.get_running_loop().call_later(0.1, read.set) and None
        await read.wait()
        pause.end()
        return await control

    assert asyncio.run(move()) == {"reason": "ended"}
    assert task.store[PACE]["deadline_s"] == 80.0


@pytest.mark.parametrize("has_callbacks", [False, True])
def test_alert_calls_a_worker_process_if_the_dag_has_functions_for_it(task: SimulatedTask, has_callbacks: bool) -> None:
    task.settings = {"deadline": Deadline(9.0), "written": "9s"}
    live = Live(task, has_callbacks=has_callbacks)
    event = asyncio.run(live.control.run())
    if not has_callbacks:
        assert event == {"reason": "ended"}
        assert "infeasible" in task.store[ALERTS]["sent"]
        return
    assert (event["reason"], event["alert"]["kind"]) == ("alert", "infeasible")
    assert live.job.status().state == "running"
    task.store[ALERTS] = event["alerts"]  # as the worker process does
    assert asyncio.run(live.new_control().run())["alert"]["kind"] == "missed"


def test_time_limit_calls_a_worker_process(task: SimulatedTask) -> None:
    live = Live(task, ends_at=NOW)
    assert asyncio.run(live.control.run()) == {"reason": "timeout"}
    assert live.job.status().state == "running"


def test_engine_that_this_machine_cannot_reach_calls_a_worker_process(
    task: SimulatedTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = Live(task)

    def unreachable(name: str, labels: object) -> None:
        raise RuntimeUnavailableError("no such socket")

    monkeypatch.setattr(task.engine, "find_job", unreachable)
    monkeypatch.setattr("paceline.run._handle._RETRY_FOR_S", 0.05)
    assert asyncio.run(live.control.run()) == {"reason": "error"}
    assert "A worker process continues the control of the job: no such socket" in task.log.text


def run_until(live: Live, then: Callable[[asyncio.Task[Any]], Any]) -> Any:
    """Control the job until its tenth second, and await ``then(task)`` while the job waits."""
    pause = Pause(live, 10.0)

    async def run() -> Any:
        control = asyncio.create_task(live.control.run())
        await pause.until_begun()
        try:
            return await then(control)
        finally:
            pause.end()
            await asyncio.gather(control, return_exceptions=True)
            await asyncio.wait([live.control._thread])  # type: ignore[list-item]

    return asyncio.run(run())


def test_control_ends_when_another_process_steers_the_job(task: SimulatedTask) -> None:
    live = Live(task)

    def refuse(write: Mapping[str, Any]) -> None:
        raise TakenOverError("another process")

    async def take_over(control: asyncio.Task[Any]) -> None:
        live.before = refuse
        with pytest.raises(TakenOverError):
            await control

    run_until(live, take_over)
    assert live.job.status().state == "running"


@pytest.mark.parametrize("case", ["over", "elsewhere", "deferred", "unknown"])
def test_killed_trigger_removes_the_job_only_if_its_task_is_over(
    task: SimulatedTask, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """Airflow also kills the trigger of a triggerer that it believes to be dead, and starts it elsewhere."""
    live = Live(task)
    monkeypatch.setattr(_deferred, "_STOP_WITHIN_S", 0.1)

    def answer(write: Mapping[str, Any]) -> None:
        if case == "unknown":
            raise SteeringError("away")
        if case != "deferred":
            raise TakenOverError("over")

    async def kill(control: asyncio.Task[Any]) -> None:
        control.cancel()
        live.before = answer
        if case == "elsewhere":
            take_over_job(task)
        await live.control.kill()

    run_until(live, kill)
    assert len(task.engine.jobs) == (0 if case == "over" else 1)
    if case == "unknown":
        assert live.job.leases[-1] == 600.0
    if case == "deferred":
        owner = record_of(task).owner
        assert asyncio.run(live.new_control().run()) == {"reason": "ended"}
        assert record_of(task).owner != owner
