"""A simulated training task: its engine, its store and its tries, with injected faults."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.contract import Deadline, JobRecord
from paceline.errors import JobLostError, RuntimeUnavailableError
from paceline.run import Exchange, MemoryState, Training
from paceline.run.host import Host
from paceline.run.settings import Settings
from paceline.runtime import JobSpec

from .conftest import SimulatedClock, SimulatedJob

KEPT_KEYS = {"pace", "history", "result"}  # keys that remain after the end of the job


class EngineJob(SimulatedJob):
    """A simulated job of the simulated engine."""

    def __init__(self, engine: SimulatedEngine, name: str) -> None:
        super().__init__(engine.clock, core_s=20, batches=200)
        self.engine, self.id = engine, name
        self.actions = list(engine.actions)
        self.stored: Any = None
        self.spec = engine.spec
        self.leases: list[float] = []

    def renew(self, lease_s: float) -> None:
        self.leases.append(lease_s)

    def save_record(self, record: Any) -> None:
        self.engine.raise_if_broken("save_record")
        self.stored = record

    def load_record(self) -> Any:
        self.engine.raise_if_broken("load_record")
        return self.stored

    def resize(self, devices: float) -> None:
        if self.status().state != "running":  # an engine applies this resize when the job starts again
            self.devices = devices
        else:
            super().resize(devices)

    def remove(self) -> None:
        self.engine.raise_if_broken("remove")
        self.engine.jobs.pop(self.id, None)
        self.remove_from_engine()

    def collect(self) -> None:
        self.engine.raise_if_broken("collect")
        self.engine.collected.append(self.id)

    def restart(self) -> None:
        self.gone = False
        super().restart()

    def close(self) -> None:
        pass


class SimulatedEngine:
    """A simulated engine. Each of its jobs performs ``actions`` at the given times."""

    name = "docker"

    def __init__(self, clock: SimulatedClock) -> None:
        self.clock = clock
        self.jobs: dict[str, EngineJob] = {}
        self.started = 0
        self.collected: list[str] = []
        self.actions: list[tuple[float, Callable[[], None]]] = []
        self.broken: dict[str, Exception] = {}  # method name: the error that its next call raises
        self.spec = "spec"  # of the next job

    def raise_if_broken(self, name: str) -> None:
        if name in self.broken:
            raise self.broken.pop(name)

    def capacity(self) -> float:
        return 2.0

    def check(self, spec: Any) -> None:
        pass

    def start(self, spec: Any) -> EngineJob:
        self.raise_if_broken("start")
        self.started += 1
        job = self.jobs[f"job-{self.started}"] = EngineJob(self, f"job-{self.started}")
        return job

    def find_job(self, name: str, labels: Any) -> EngineJob | None:
        self.raise_if_broken("find_job")
        for job in self.jobs.values():
            job.replay_lines()
            return job
        return None

    def reattach(self, job_id: str, labels: Any) -> EngineJob:
        raise JobLostError(f"no job {job_id}")

    def has_same_spec(self, job: EngineJob, spec: Any) -> bool:
        return job.spec == self.spec

    def replace(self, job: EngineJob, spec: Any) -> EngineJob:
        started = self.start(spec)
        started.continue_from(job)
        job.remove()
        return started


class FailingStore(MemoryState):
    """A task state store whose call number ``fails_at`` fails."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.fails_at: int | None = None

    def _count_call(self) -> None:
        self.calls += 1
        if self.calls == self.fails_at:
            raise RuntimeError("the API server does not answer")

    def get(self, key: str, default: Any = None) -> Any:
        self._count_call()
        return super().get(key, default)

    def set(self, key: str, value: Any) -> None:
        self._count_call()
        super().set(key, value)

    def delete(self, key: str) -> None:
        self._count_call()
        super().delete(key)


class SimulatedHost(SimpleNamespace, Host):  # type: ignore[misc]  # inherits what the tests do not set
    """The host of one process."""


class SimulatedTask:
    """A simulated task instance. Each try is a separate process with a separate host."""

    def __init__(self, clock: SimulatedClock, caplog: pytest.LogCaptureFixture, *, tries: int = 3) -> None:
        self.clock, self.engine, self.store = clock, SimulatedEngine(clock), FailingStore()
        self.max_tries, self.try_number = tries - 1, 0
        self.began = datetime.fromtimestamp(clock.now(), timezone.utc)
        self.status: str = "active"
        self.check_need: Callable[[str], None] = lambda stage: None
        self.settings: dict[str, Any] = {}
        self.code = "code"
        self.copies: Any = None
        self.check_runtime: Callable[[], None] = lambda: None
        self.mask: Callable[[str], str] = str
        self.on_sample: Callable[[Any], None] = lambda sample: None
        self.log = caplog

    def host(self) -> Any:
        return SimulatedHost(
            store=self.store,
            log=logging.getLogger("test"),
            try_number=self.try_number,
            max_tries=self.max_tries,
            pool="training_pool",
            status_within_s=3.5,
            exchange=lambda on_failure: Exchange(self.store, on_failure=on_failure),
            origin=lambda earlier: self.began,
            runtime=lambda: self.engine,
            runtimes=lambda: [self.engine],
            check_runtime=lambda runtime: self.check_runtime(),
            job_name=lambda: "train",
            labels=lambda: {"task": "train"},
            code_digest=lambda: self.code,
            spec=lambda scratch, devices: JobSpec("train", ["python"], devices),
            output_place=lambda: "/models/1",
            past_run=lambda: None,
            past_tails=lambda runtime: [],
            collect=lambda job: job.collect() or "/models/1",
            checkpoint_copies=lambda: self.copies,
            mask=self.mask,
            on_sample=lambda sample: self.on_sample(sample),
            task_status=lambda: self.status,
            check_need=self.check_need,
        )

    def run(self, *, same_try: bool = False, on_drain: str = "leave") -> Any:
        """Run the next try, or repeat the same try in another process if ``same_try`` is true."""
        self.try_number += not same_try
        self.training = self.next_training(on_drain)
        return self.training.run()

    def next_training(self, on_drain: str = "leave") -> Training:
        """Return the training of a new process for the current try."""
        return Training(self.make_settings(), self.host(), on_drain=on_drain, clock=self.clock)

    def make_settings(self) -> Settings:
        return Settings(**{"deadline": Deadline.parse("40s"), "written": "40s", **self.settings})

    def let_jobs_train(self, seconds: float) -> None:
        """Let time pass, during which nobody waits for the end of a job."""
        end_s = self.clock.now() + seconds
        for job in list(self.engine.jobs.values()):
            with suppress(RuntimeUnavailableError):
                job.wait(end_s - self.clock.now())
        self.clock.sleep(max(end_s - self.clock.now(), 0.0))

    def clear(self) -> None:
        """Clear the task, as a user can do in the UI."""
        self.max_tries = self.try_number + self.max_tries

    def request_stop(self) -> None:
        self.training.request_stop()


class TimeLimitReached(BaseException):
    """Raised at a task's time limit. Like Airflow's class, it is not an ``Exception``."""


def reach_time_limit() -> None:
    raise TimeLimitReached


def record_of(task: SimulatedTask) -> JobRecord:
    """Return the record that is stored with the task's job."""
    (job,) = task.engine.jobs.values()
    record = JobRecord.read(job.load_record())
    assert record is not None
    return record


def take_over_job(task: SimulatedTask) -> None:
    (job,) = task.engine.jobs.values()
    job.save_record(record_of(task).model_copy(update={"owner": "another"}).to_json())
