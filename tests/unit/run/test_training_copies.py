"""Tries of a task whose job was lost with its machine: they resume from the copy of its checkpoint."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.contract import CONTROLLER, ControllerState
from paceline.errors import JobLostError, TaskStoppedError, TrainingFailedError

from .simulated_task import SimulatedTask


class SimulatedCopies:
    """What a copier has stored: the job whose checkpoint it was, and what it has stored about it."""

    place = "s3://bucket/job"

    def __init__(self, task: SimulatedTask) -> None:
        self._task = task
        self.job: Any = None
        self.about: dict[str, Any] = {}

    def store(self) -> None:
        """Store the checkpoint of the running job, as the copier's thread does."""
        (self.job,) = self._task.engine.jobs.values()
        self.about = {"code": self._task.code, "max_tries": self._task.max_tries}

    def load(self, checkpoint: Path) -> dict[str, Any] | None:
        return self.about if self.job is not None else None

    def remove(self) -> None:
        self.job = None


@pytest.fixture
def copies(task: SimulatedTask, monkeypatch: pytest.MonkeyPatch) -> SimulatedCopies:
    task.copies = SimulatedCopies(task)

    def start(spec: Any, start: Any = task.engine.start) -> Any:
        job = start(spec)
        if spec.checkpoint is not None:
            job.continue_from(task.copies.job)
            job._report("start")
        return job

    monkeypatch.setattr(task.engine, "start", start)
    host = task.host

    def with_spec() -> Any:
        made = host()
        made.spec = lambda scratch, devices: SimpleNamespace(devices=devices, checkpoint=None)
        return made

    monkeypatch.setattr(task, "host", with_spec)
    monkeypatch.setattr("paceline.run._training.replace", lambda spec, **new: SimpleNamespace(**{**vars(spec), **new}))
    return task.copies


def lose_job(task: SimulatedTask, copies: SimulatedCopies | None) -> None:
    """Run a try whose job is lost at 8 s, after a copy if ``copies`` are given."""
    lost = [(8.0, lambda: task.engine.jobs.popitem()[1].remove_from_engine())]
    task.engine.actions = [(6.0, copies.store), *lost] if copies is not None else lost
    with pytest.raises(JobLostError):
        task.run()
    task.engine.actions = []


def test_next_try_resumes_from_the_copy_with_the_history_of_the_run(task, copies):
    lose_job(task, copies)
    before = ControllerState.read(task.store.get(CONTROLLER))
    result = task.run()
    assert task.engine.started == 2
    assert "Training resumes from the copy of the lost job's checkpoint in s3://bucket/job" in task.log.text
    assert "Training resumes at" in task.log.text
    assert before is not None
    assert result.device_seconds > before.run.device_s > 0
    assert copies.job is None, "the copies are removed with the job"


def test_without_a_copy_the_next_try_starts_from_the_beginning(task, copies):
    lose_job(task, None)
    task.run()
    assert (task.engine.started, "Training resumes" in task.log.text) == (2, False)


def test_copies_of_a_lost_job_outlive_the_last_try(task, copies):
    task.max_tries = 0
    lose_job(task, copies)
    assert "Copies of the checkpoint are kept in s3://bucket/job: clear the task to continue" in task.log.text
    task.clear()
    task.run()
    assert "resumes from the copy" in task.log.text
    assert copies.job is None


@pytest.mark.parametrize("choice", ["cleared", "restart"])
def test_changed_code_trains_from_the_beginning(task, copies, choice):
    if choice == "restart":
        task.settings["on_change"] = "restart"
    lose_job(task, copies)
    if choice == "cleared":
        task.clear()
    task.code = "fixed code"
    task.run()
    assert "have changed since the checkpoint in s3://bucket/job: training starts from the beginning" in task.log.text
    assert "Training resumes" not in task.log.text


def test_retry_with_changed_code_resumes_by_default(task, copies):
    lose_job(task, copies)
    task.code = "fixed code"
    task.run()
    assert "Training resumes" in task.log.text


def test_copies_of_a_job_that_has_failed_are_removed_after_the_last_try(task, copies):
    task.max_tries = 0
    task.engine.actions = [(6.0, copies.store), (8.0, lambda: task.engine.jobs["job-1"].kill(1))]
    with pytest.raises(TrainingFailedError):
        task.run()
    assert copies.job is None


def test_copies_of_a_job_that_a_user_ends_are_removed(task, copies):
    task.status = "over"
    task.engine.actions = [(6.0, copies.store), (8.0, task.request_stop)]
    with pytest.raises(TaskStoppedError):
        task.run()
    assert copies.job is None
