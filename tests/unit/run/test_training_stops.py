"""A stopped or replaced process of a training task leaves its job to the next one.

The engine, the store and Airflow are simulated and inject faults.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest
from tests.waiting import LONG_S, until

from paceline.contract import CONTAINER, CONTROLLER, RESULT
from paceline.errors import (
    DetachedError,
    RuntimeUnavailableError,
    TaskStoppedError,
    TrainingFailedError,
)
from paceline.run import _handle as handle_module
from paceline.run import _stopping as stopping_module
from paceline.run._stopping import Stopping

from .conftest import SimulatedJob
from .simulated_task import (
    EngineJob,
    SimulatedTask,
    TimeLimitReached,
    reach_time_limit,
    record_of,
    take_over_job,
)


def test_next_try_takes_over_the_job_after_any_other_error(task, monkeypatch):
    def fail(*arguments: Any) -> None:
        raise KeyError("internal error")

    task.engine.actions = [(8.0, lambda: fail())]
    with pytest.raises(KeyError):
        task.run()
    assert task.store["pace"]["state"] == "detached"
    assert task.store["pace"]["reason"] == "KeyError: 'internal error'"
    assert task.run().restarts == 0
    assert task.store["pace"]["reason"] is None
    assert task.engine.started == 1
    assert "taking it over" in task.log.text


def test_next_process_takes_over_the_job_after_a_stop_request(task):
    task.engine.actions = [(8.0, task.request_stop)]
    with pytest.raises(DetachedError, match="its job continues"):
        task.run()
    sample = task.store["pace"]
    assert (sample["state"], sample["devices"] > 0) == ("detached", True)
    assert task.engine.jobs["job-1"].status().state == "running"
    result = task.run(same_try=True)
    assert (task.engine.started, result.restarts) == (1, 0)
    assert abs(result.error_pct) < 2.0


def test_task_status_is_queried_before_the_job_is_touched(task, monkeypatch):
    queried, first = threading.Event(), []

    def query_status() -> str:
        queried.set()
        return "over"

    def renew(job: EngineJob, lease_s: float) -> None:
        if task.training.stop_requested.is_set():
            first.append(queried.wait(1.0))

    monkeypatch.setattr(handle_module, "_QUICK_TIMEOUT_S", LONG_S)
    monkeypatch.setattr(EngineJob, "renew", renew)
    host = task.host()
    host.task_status = query_status
    monkeypatch.setattr(task, "host", lambda: host)
    task.engine.actions = [(8.0, task.request_stop)]
    with pytest.raises(TaskStoppedError, match="its job is removed"):
        task.run()
    assert (first[:1], task.engine.jobs) == ([True], {})


def test_job_that_still_starts_is_removed_with_its_task(task, monkeypatch):
    """As a pod that waits for room: the main thread hangs in the start until Airflow kills the process."""
    monkeypatch.setattr(stopping_module, "_MAIN_THREAD_S", 0.0)
    monkeypatch.setattr(handle_module, "_QUICK_TIMEOUT_S", LONG_S)
    removed = threading.Event()
    removals: list[dict[str, str]] = []

    def remove_all(labels: dict[str, str]) -> None:
        removals.append(labels)
        removed.set()

    def start(spec: Any) -> EngineJob:
        task.request_stop()
        assert removed.wait(LONG_S)
        raise RuntimeUnavailableError("the pod has not run: the pod was deleted")

    task.status = "over"
    monkeypatch.setattr(task.engine, "remove_all", remove_all, raising=False)
    monkeypatch.setattr(task.engine, "start", start)
    with pytest.raises(TaskStoppedError, match="its job is removed"):
        task.run()
    assert removals == [task.host().labels()]


def test_slow_removal_of_a_job_that_still_starts_is_no_removal(task, monkeypatch):
    """The engine removes a container only after it has received all its files."""
    monkeypatch.setattr(stopping_module, "_MAIN_THREAD_S", 0.0)
    monkeypatch.setattr(handle_module, "_QUICK_TIMEOUT_S", 0.0)
    has_files, stopped = threading.Event(), threading.Event()
    carry_out = Stopping.carry_out

    def note(stopping: Stopping) -> Any:
        try:
            return carry_out(stopping)
        finally:
            stopped.set()

    def start(spec: Any) -> EngineJob:
        task.request_stop()
        assert stopped.wait(LONG_S)
        has_files.set()
        raise RuntimeUnavailableError("the container was removed")

    task.status = "over"
    monkeypatch.setattr(Stopping, "carry_out", note)
    monkeypatch.setattr(task.engine, "remove_all", lambda labels: has_files.wait(LONG_S), raising=False)
    monkeypatch.setattr(task.engine, "start", start)
    with pytest.raises(TaskStoppedError, match="its job could not be removed"):
        task.run()
    assert "The engine is still removing the job that was starting" in task.log.text


def test_job_is_removed_without_a_stop_after_a_late_answer(task, monkeypatch):
    monkeypatch.setattr(stopping_module, "_KILL_GRACE_S", 0.0)  # any answer is late
    stops: list[float] = []
    monkeypatch.setattr(EngineJob, "stop", lambda job, grace_s=5.0: stops.append(grace_s))
    task.status = "over"
    task.engine.actions = [(8.0, task.request_stop)]
    with pytest.raises(TaskStoppedError, match="its job is removed"):
        task.run()
    assert (stops, task.engine.jobs) == ([], {})


def test_job_stopped_with_on_drain_stop_is_resumed_by_the_next_process(task):
    task.engine.actions = [(8.0, task.request_stop)]
    with pytest.raises(DetachedError, match="its job is stopped"):
        task.run(on_drain="stop")
    assert (task.store["pace"]["state"], task.store["pace"]["devices"]) == ("detached", 0)
    task.run(same_try=True)
    assert (task.engine.started, task.engine.jobs) == (1, {})
    assert "it resumes from its checkpoint" in task.log.text


def test_suspended_process_does_not_touch_the_job_after_a_takeover(task, monkeypatch):
    """A suspended worker process continues after the next try has taken over the job."""
    monkeypatch.setattr(stopping_module, "_SUSPENDED_S", -1.0)  # check the owner at every control step

    task.engine.actions = [(8.0, lambda: take_over_job(task))]
    with pytest.raises(DetachedError, match="Another process has taken over the job"):
        task.run()
    assert task.engine.jobs["job-1"].status().state == "running"
    assert task.store["pace"]["state"] == "training"


def test_job_stopped_at_a_time_limit_is_resumed_by_the_next_try(task):
    task.engine.actions = [(8.0, reach_time_limit)]
    with pytest.raises(TimeLimitReached):
        task.run()
    assert task.store["pace"]["devices"] == 0
    task.training.request_stop()  # Airflow requests the stop after a time limit, which has no effect now
    task.max_tries = 1
    task.engine.jobs["job-1"].actions = [(task.engine.jobs["job-1"].elapsed_s + 3.0, reach_time_limit)]
    with pytest.raises(TimeLimitReached):
        task.run()
    assert (task.engine.jobs, set(task.store)) == ({}, {"pace", "history"})


@pytest.mark.parametrize("how", ["drain", "time limit"])
def test_stopped_job_with_exit_code_zero_is_resumed(task, how, monkeypatch):
    """Training code that handles SIGTERM may exit with code 0."""
    task.engine.actions = [(8.0, task.request_stop if how == "drain" else reach_time_limit)]
    monkeypatch.setattr(EngineJob, "kill", lambda job, code=137: SimulatedJob.kill(job, 0))
    with pytest.raises((DetachedError, TimeLimitReached)):
        task.run(on_drain="stop")
    job = task.engine.jobs["job-1"]
    assert (job.status().exit_code, job.status().stopped) == (0, True)
    task.run(same_try=True)
    assert (job.restarted, job._done) == (1, job.batches)


def test_finished_job_of_a_dead_process_is_not_restarted(task):
    """Whatever users write to the live state, and even if the process died before it stored anything."""
    task.engine.actions = [(8.0, task.request_stop)]
    with pytest.raises(DetachedError):
        task.run()
    job = task.engine.jobs["job-1"]
    job.kill(0)
    job.stored = None
    task.store["pace"] = {**task.store["pace"], "state": "preempted"}
    del task.store[CONTAINER]
    assert task.run(same_try=True).model == "/models/1"
    assert (job.restarted, task.engine.started, task.engine.jobs) == (0, 1, {})


@pytest.mark.parametrize("error", [TimeLimitReached(), KeyError("anything"), TrainingFailedError("exit code 1")])
@pytest.mark.parametrize("tries", [1, 3])
def test_suspended_process_that_raises_an_error_does_not_touch_the_job(clock, caplog, error, tries):
    task = SimulatedTask(clock, caplog, tries=tries)

    def continue_with_error() -> None:
        take_over_job(task)
        raise error

    task.engine.actions = [(8.0, continue_with_error)]
    with pytest.raises(type(error)):
        task.run()
    assert task.engine.jobs["job-1"].status().state == "running"
    assert record_of(task).owner == "another"
    assert task.store["pace"]["state"] != "detached"


def test_output_of_a_job_that_another_process_owns_is_not_collected(task):
    task.engine.actions = [(8.0, lambda: take_over_job(task))]
    with pytest.raises(DetachedError, match="Another process"):
        task.run()
    assert (task.engine.collected, list(task.engine.jobs)) == ([], ["job-1"])


def test_stop_request_is_handled_while_the_engine_hangs(task, monkeypatch):
    proceed, load_record = threading.Event(), EngineJob.load_record

    def load_or_hang(job):
        if task.training.stop_requested.is_set():
            proceed.wait()
        return load_record(job)

    monkeypatch.setattr(handle_module, "_QUICK_TIMEOUT_S", 0.01)
    monkeypatch.setattr(EngineJob, "load_record", load_or_hang)
    task.engine.actions = [(8.0, task.request_stop)]
    with pytest.raises(DetachedError, match="its job continues"):
        task.run()
    proceed.set()


def test_closed_supervisor_connection_ends_store_retries(task, monkeypatch):
    keys = []

    def fail(key, value):
        keys.append(key)
        raise EOFError("Request socket closed")

    def close_connection():
        until(lambda: CONTROLLER in task.store, "the first state, which another thread writes")
        monkeypatch.setattr(task.store, "set", fail)

    task.engine.actions = [(8.0, close_connection)]
    with pytest.raises((EOFError, DetachedError)):
        task.run()
    assert keys.count(RESULT) <= 1
    monkeypatch.undo()
    assert task.run().model == "/models/1"
    assert task.engine.started == 1
