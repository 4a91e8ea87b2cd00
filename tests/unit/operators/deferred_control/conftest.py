"""Fixtures with a job that is controlled as in the triggerer.

The job and its engine are simulated; the live state is a dictionary behind the exchange of the triggerer.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.run.conftest import SimulatedClock
from tests.unit.run.simulated_task import SimulatedTask

from paceline.airflow.runtimes import Docker
from paceline.contract import TASK_STATES
from paceline.operators import _job_control, deferred, triggers
from paceline.operators._job_control import JobControl
from paceline.operators.deferred import DeferredJob, TrainingControl
from paceline.run import ControlElsewhereError, Training
from paceline.run.settings import Settings

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)


JOB = DeferredJob(Settings(), Docker().serialize(), "train", {"task": "train"}, NOW, "pool", 1, 2)


class Live:
    """A deferred task whose job is simulated. ``before`` is called with the values of each exchange."""

    def __init__(self, task: SimulatedTask, **options: Any) -> None:
        self.task, self.hurried = task, 0
        self.watched: Sequence[str] = ()
        self.tell: Callable[[], None] = lambda: None  # passes the commands to the control
        self.before: Callable[[Mapping[str, Any]], None] = lambda write: None
        self.options = options
        task.try_number += 1
        training = Training(task.make_settings(), task.host(), clock=task.clock, leaves=lambda status: status is None)
        with pytest.raises(ControlElsewhereError):
            training.run()

    @property
    def job(self) -> Any:
        (job,) = self.task.engine.jobs.values()
        return job

    async def run(self) -> dict[str, Any]:
        """Control the job as the trigger does, until a worker process is to continue."""
        self.control = self.new_control()
        return await self.control.run()

    def deferred(self) -> DeferredJob:
        task = self.task
        place = (Docker().serialize(), "train", {"task": "train"}, task.began, "pool")
        return DeferredJob(task.make_settings(), *place, task.try_number, task.max_tries, **self.options)

    def new_control(self) -> JobControl:
        task, job = self.task, self.deferred()
        instance = SimpleNamespace(dag_id="dag", task_id="train", map_index=-1)
        return TrainingControl(job, self, instance, task.clock, logging.getLogger("test"))  # type: ignore[arg-type]

    def hurry(self) -> None:
        self.hurried += 1

    def watch(self, tasks: Sequence[str]) -> None:
        self.watched = tasks

    @contextmanager
    def listening(self, read: Sequence[str], receive: Callable[[dict[str, Any]], None]) -> Iterator[None]:
        keys = [*read, TASK_STATES] if self.watched else read
        self.tell = lambda: receive(texts({key: self.task.store.get(key) for key in keys}))
        yield
        self.tell = lambda: None

    async def exchange(self, take: Callable[[], Mapping[str, Any]], read: Sequence[str]) -> dict[str, Any]:
        write = values(take())
        await asyncio.sleep(0.001)
        self.before(write)
        self.task.store.update(write)
        self.tell()
        return texts({key: self.task.store.get(key) for key in read})


def values(texts: Mapping[str, str | None]) -> dict[str, Any]:
    return {key: None if text is None else json.loads(text) for key, text in texts.items()}


def texts(values: Mapping[str, Any]) -> dict[str, str | None]:
    return {key: None if value is None else json.dumps(value) for key, value in values.items()}


@pytest.fixture(autouse=True)
def without_a_late_executor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triggers, "REPORTED_WITHIN_S", 0.0)
    monkeypatch.setattr(triggers, "_shorten_collections", lambda: None)


@pytest.fixture
def task(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> SimulatedTask:
    caplog.set_level(logging.INFO)
    simulated = SimulatedTask(SimulatedClock(), caplog)
    settings = SimpleNamespace(open=lambda: simulated.engine)
    monkeypatch.setattr(deferred, "stored_settings", lambda content: settings)

    async def wait(self: JobControl, seconds: float) -> None:
        await asyncio.to_thread(simulated.let_jobs_train, seconds)

    monkeypatch.setattr(JobControl, "_wait", wait)
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


def run_until(live: Live, then: Callable[[asyncio.Task[Any]], Any]) -> Any:
    """Control the job until its tenth second, and await ``then(task)`` while the job waits."""
    pause = Pause(live, 10.0)

    async def run() -> Any:
        control = asyncio.create_task(live.run())
        await pause.until_begun()
        try:
            return await then(control)
        finally:
            pause.end()
            await asyncio.gather(control, return_exceptions=True)
            await asyncio.wait([live.control._control])  # type: ignore[list-item]

    return asyncio.run(run())


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deferred, "STATUS_WITHIN_S", 0.3)
    monkeypatch.setattr(_job_control, "STATUS_WITHIN_S", 0.3)
    monkeypatch.setattr(_job_control, "_STOP_WITHIN_S", 0.3)
