"""A training task that ends loses no trained work despite faults, and leaves no job or key behind.

The engine, the store and Airflow are simulated and inject faults.
"""

from __future__ import annotations

import math

import pytest

from paceline.contract import CONTAINER, RESULT, JobRecord
from paceline.errors import (
    DetachedError,
    PacelineError,
    RuntimeUnavailableError,
    TaskStoppedError,
    TrainingAbandonedError,
    TrainingFailedError,
    TrainingOverError,
    UnsuitableCodeError,
)
from paceline.run import MemoryState
from paceline.run import _handle as handle_module
from paceline.run import _live as live_module

from .simulated_task import (
    KEPT_KEYS,
    SimulatedTask,
)


def test_only_the_result_of_a_finished_job_is_kept(task):
    result = task.run()
    assert result.model == "/models/1"
    assert abs(result.error_pct) < 2.0
    assert set(task.store) == KEPT_KEYS
    assert task.engine.jobs == {}


def test_store_failure_at_any_call_loses_no_trained_work(clock, caplog, monkeypatch):
    """The job starts once and trains once. This try or the next try returns the result."""
    monkeypatch.setattr(handle_module, "_RETRY_EVERY_S", 0.01)
    calls = 1
    while True:
        task = SimulatedTask(clock, caplog)
        task.store.fails_at = calls
        try:
            result = task.run()
        except RuntimeError:
            result = task.run()
        assert result.model == "/models/1", f"call {calls}"
        assert (task.engine.started, task.engine.jobs) == (1, {}), f"call {calls}"
        assert RESULT in task.store
        if task.store.calls < calls:
            break
        calls += 1
    assert calls > 20


def test_stored_result_is_returned_while_the_job_cannot_be_removed(task):
    task.engine.broken["remove"] = PacelineError("the engine does not answer")
    result = task.run()  # the result is valid although the engine cannot remove the job
    assert "but the job or its keys could not be removed" in task.log.text
    assert list(task.engine.jobs) == ["job-1"]
    assert JobRecord.read(task.store[CONTAINER]).id == "job-1"
    task.engine.broken["find_job"] = PacelineError("the engine has changed")
    assert task.run() == result  # Airflow retries the task, for example because writing the XCom failed
    assert list(task.engine.jobs) == ["job-1"]
    assert task.run() == result
    assert task.engine.jobs == {}
    assert set(task.store) == KEPT_KEYS
    assert task.engine.collected == ["job-1"]


def test_finished_job_is_removed_after_an_engine_outage(task, monkeypatch):
    monkeypatch.setattr(handle_module, "_RETRY_EVERY_S", 0.01)
    task.engine.broken["remove"] = RuntimeUnavailableError("the engine is restarting")
    assert task.run().model == "/models/1"
    assert (task.engine.jobs, set(task.store)) == ({}, KEPT_KEYS)


def test_task_ends_without_its_engine_when_the_training_is_over(task):
    def lose_the_engine():
        task.engine.jobs["job-1"].outage_between = (5.0, math.inf)

    def check_need(stage):
        if stage == "away":
            raise TrainingOverError("training has ended")

    task.engine.actions = [(5.0, lose_the_engine)]
    task.check_need = check_need
    with pytest.raises(TrainingOverError):
        task.run()
    assert task.clock.now() >= task.began.timestamp() + 35
    assert "engine_unreachable" in [event["kind"] for event in task.store["history"]["events"]]
    assert task.store["pace"]["state"] == "failed"


@pytest.mark.parametrize(
    ("status", "expected", "jobs"), [("active", TrainingAbandonedError, ["job-1"]), ("over", TaskStoppedError, [])]
)
def test_job_that_others_abandon_is_kept_unless_a_user_has_ended_its_task_too(task, status, expected, jobs):
    def check_need(stage):
        if task.clock.now() > task.began.timestamp() + 5:
            raise TrainingAbandonedError("no worker is left")

    task.check_need, task.status = check_need, status
    with pytest.raises(expected):
        task.run()
    assert list(task.engine.jobs) == jobs


def test_job_whose_code_cannot_train_is_removed_although_tries_are_left(task):
    def reject():
        raise UnsuitableCodeError("worker-0: rejected", 7)

    task.engine.actions = [(5.0, lambda: setattr(task.engine.jobs["job-1"], "usage", reject))]
    with pytest.raises(UnsuitableCodeError):
        task.run()
    assert task.engine.jobs == {}


@pytest.mark.parametrize("error", [PermissionError("no access to s3://models"), TrainingFailedError("output: ...")])
def test_output_that_cannot_be_collected_is_kept_after_the_last_try(task, error):
    task.max_tries = 1
    for _ in range(2):
        task.engine.broken["collect"] = error
        with pytest.raises(type(error)):
            task.run()
        assert list(task.engine.jobs) == ["job-1"]
    assert "clear the task to collect its output again" in task.log.text
    task.clear()
    assert task.run().model == "/models/1"
    assert (task.engine.started, task.engine.jobs, set(task.store)) == (1, {}, KEPT_KEYS)


def test_later_try_can_continue_with_the_job_or_the_result_of_an_earlier_try(task):
    task.engine.broken["collect"] = PermissionError("no access to s3://models")
    with pytest.raises(PermissionError):
        task.run()
    assert task.next_training().can_continue(), "the job has completed its training"
    task.run()
    assert task.next_training().can_continue(), "the result is stored"
    task.clear()
    assert not task.next_training().can_continue()


def test_later_try_cannot_continue_with_a_failed_job(task):
    task.engine.actions = [(8.0, lambda: task.engine.jobs["job-1"].kill(1))]
    with pytest.raises(TrainingFailedError):
        task.run()
    assert not task.next_training().can_continue()


def test_failed_job_is_kept_until_the_last_try(task):
    task.max_tries = 1
    task.engine.actions = [(8.0, lambda: task.engine.jobs["job-1"].kill(1))]
    with pytest.raises(TrainingFailedError, match="exit code 1"):
        task.run()
    assert list(task.engine.jobs) == ["job-1"]
    task.engine.jobs["job-1"].actions = [(20.0, lambda: task.engine.jobs["job-1"].kill(1))]
    with pytest.raises(TrainingFailedError):
        task.run()
    assert task.engine.jobs == {}
    assert set(task.store) == {"pace", "history"}
    assert task.store["pace"]["state"] == "failed"


def test_last_sample_says_why_the_job_has_failed(task):
    task.mask = lambda text: text.replace("hunter2", "***")

    def fail() -> None:
        job = task.engine.jobs["job-1"]
        job.append_lines("Traceback (most recent call last):", "ValueError: no login with hunter2", "")
        job.kill(1)

    task.engine.actions = [(8.0, fail)]
    with pytest.raises(TrainingFailedError, match="hunter2"):
        task.run()
    sample = task.store["pace"]
    assert (sample["state"], sample["reason"]) == (
        "failed",
        "script: ended with exit code 1, expected exit code 0. ... ValueError: no login with ***",
    )


@pytest.mark.parametrize("tries", [1, 2])
def test_last_sample_names_an_error_that_is_not_of_the_job(task, tries):
    task.max_tries = tries - 1
    task.check_need = lambda stage: (_ for _ in ()).throw(TrainingOverError("the fleet has ended"))
    with pytest.raises(TrainingOverError):
        task.run()
    assert (task.store["pace"]["state"], task.store["pace"]["reason"]) == ("failed", "the fleet has ended")


def test_process_that_leaves_a_job_gives_no_reason(task):
    task.engine.actions = [(8.0, task.request_stop)]
    with pytest.raises(DetachedError):
        task.run()
    assert (task.store["pace"]["state"], task.store["pace"]["reason"]) == ("detached", None)


def test_job_of_an_ended_task_is_removed(task):
    task.status = "over"
    task.engine.actions = [(8.0, task.request_stop)]
    with pytest.raises(TaskStoppedError, match="its job is removed"):
        task.run()
    assert task.engine.jobs == {}
    assert set(task.store) == {"pace", "history"}
    assert task.store["pace"]["reason"] == "the task was cleared or marked in Airflow, or its run has ended"


def test_record_of_a_job_is_kept_if_its_removal_fails(task):
    task.status = "over"
    task.engine.actions = [(8.0, task.request_stop)]
    task.engine.broken["remove"] = PacelineError("no engine")
    with pytest.raises(TaskStoppedError, match="could not be removed"):
        task.run()
    assert {"ceiling", CONTAINER} & set(task.store) == {CONTAINER}
    assert list(task.engine.jobs) == ["job-1"]


def test_result_stored_without_a_response_is_returned_by_the_same_try(task, monkeypatch):
    def store_value_then_fail(key, value):
        MemoryState.set(task.store, key, value)
        if key == RESULT:
            task.request_stop()
            assert task.training.stop_requested.wait(60)
            raise RuntimeError("the API server does not answer")

    monkeypatch.setattr(task.store, "set", store_value_then_fail)
    with pytest.raises(DetachedError):
        task.run()
    monkeypatch.undo()
    assert task.run(same_try=True).model == "/models/1"
    assert (task.engine.started, task.engine.jobs) == (1, {})


def test_store_failure_in_the_last_try_does_not_lose_a_running_job(clock, caplog, monkeypatch):
    monkeypatch.setattr(handle_module, "_RETRY_EVERY_S", 0.01)
    call, calls = 1, 2
    while call < calls:
        task = SimulatedTask(clock, caplog, tries=2)
        task.engine.actions = [(8.0, task.request_stop)]
        with pytest.raises(DetachedError):
            task.run()
        before = task.store.calls
        task.store.fails_at = before + call
        task.max_tries = 1
        assert task.run().model == "/models/1", f"call {call}"
        assert (task.engine.started, task.engine.jobs) == (1, {}), f"call {call}"
        call, calls = call + 1, task.store.calls - before
    assert calls > 12


def test_internal_error_in_the_last_try_keeps_the_stopped_job(task):
    def fail() -> None:
        raise KeyError("internal error")

    task.max_tries = 0
    task.engine.actions = [(8.0, fail)]
    with pytest.raises(KeyError):
        task.run()
    assert task.engine.jobs["job-1"].status().state == "exited"
    assert "was stopped and keeps its checkpoint: clear the task to continue" in task.log.text
    task.clear()
    task.run()
    assert (task.engine.started, task.engine.jobs) == (1, {})


def test_last_samples_are_stored_after_an_outage_of_the_store(task, monkeypatch):
    def fail_until_the_result(key, value):
        job = task.engine.jobs.get("job-1")
        if key != RESULT and RESULT not in task.store and job is not None and job.status().state == "exited":
            raise RuntimeError("the API server does not answer")
        MemoryState.set(task.store, key, value)

    monkeypatch.setattr(live_module, "_FINAL_RETRY_S", (0.0,))
    monkeypatch.setattr(task.store, "set", fail_until_the_result)
    task.run()
    assert task.store["history"]["samples"][-1][1] == 100.0
    assert task.store["pace"]["state"] == "finished"
