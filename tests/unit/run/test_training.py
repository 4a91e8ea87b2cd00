"""The tries of a training task lose no trained work under faults, and leave no job or key behind.

The engine, the store and Airflow are simulated and inject faults; two tests fail each call of the store in turn.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from tests.waiting import until

from paceline.contract import CONTAINER, CONTROLLER, RESULT, Deadline, JobRecord, StoredResult
from paceline.errors import (
    DeadlineInfeasibleError,
    DetachedError,
    JobLostError,
    PacelineError,
    RuntimeUnavailableError,
    TaskStoppedError,
    TrainingFailedError,
)
from paceline.run import MemoryState, Training
from paceline.run import _handle as handle_module
from paceline.run import _live as live_module
from paceline.run import _training as training_module
from paceline.run.settings import Settings

from .conftest import SimulatedClock, SimulatedJob

KEPT_KEYS = {"pace", "history", "result"}  # after the end of the job


class EngineJob(SimulatedJob):
    """A simulated job of the simulated engine."""

    def __init__(self, engine: SimulatedEngine, name: str) -> None:
        super().__init__(engine.clock, core_s=20, batches=200)
        self.engine, self.id = engine, name
        self.actions = list(engine.actions)

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

    def raise_if_broken(self, name: str) -> None:
        if name in self.broken:
            raise self.broken.pop(name)

    def capacity(self) -> float:
        return 2.0

    def check(self, spec: Any) -> None:
        pass

    def start(self, spec: Any) -> EngineJob:
        self.raise_if_broken("start")
        for job in self.jobs.values():  # return an existing job of the same name
            return job
        self.started += 1
        job = self.jobs[f"job-{self.started}"] = EngineJob(self, f"job-{self.started}")
        return job

    def reattach(self, job_id: str, labels: Any) -> EngineJob:
        self.raise_if_broken("reattach")
        if job_id not in self.jobs:
            raise JobLostError(f"no job {job_id}")
        self.jobs[job_id].replay_lines()
        return self.jobs[job_id]


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


class SimulatedTask:
    """A simulated task instance. Each try is a separate process with a separate host."""

    def __init__(self, clock: SimulatedClock, caplog: pytest.LogCaptureFixture, *, tries: int = 3) -> None:
        self.clock, self.engine, self.store = clock, SimulatedEngine(clock), FailingStore()
        self.max_tries, self.try_number = tries - 1, 0
        self.began = datetime.fromtimestamp(clock.now(), timezone.utc)
        self.status: str = "active"
        self.settings: dict[str, Any] = {}
        self.log = caplog

    def host(self) -> Any:
        return SimpleNamespace(
            store=self.store,
            log=logging.getLogger("test"),
            try_number=self.try_number,
            max_tries=self.max_tries,
            pool="training_pool",
            origin=lambda earlier: self.began,
            runtime=lambda name: self.engine,
            labels=dict,
            spec=lambda scratch, devices: None,
            team=lambda job: None,
            past_run=lambda: None,
            save_measurements=lambda past: None,
            collect=lambda job: job.collect() or "/models/1",
            set_job=lambda job: None,
            on_sample=lambda sample: None,
            wait_for_callbacks=lambda: None,
            task_status=lambda: self.status,
        )

    def run(self, *, same_try: bool = False, on_drain: str = "leave") -> Any:
        """Run the next try, or repeat the same try in another process if ``same_try`` is true."""
        self.try_number += not same_try
        deadline = {"deadline": Deadline.parse("40s"), "written": "40s"}
        settings = Settings(**{**deadline, **self.settings})
        self.training = Training(settings, self.host(), on_drain=on_drain, clock=self.clock)
        return self.training.run()

    def clear(self) -> None:
        """Clear the task, as a user can do in the UI."""
        self.max_tries = self.try_number + self.max_tries

    def request_stop(self) -> None:
        self.training.request_stop()


@pytest.fixture(autouse=True)
def long_timeouts(monkeypatch):
    """Extend the short timeouts that precede Airflow's limit, for slow machines."""
    monkeypatch.setattr(handle_module, "_QUICK_TIMEOUT_S", 60.0)
    monkeypatch.setattr(training_module, "_MAIN_THREAD_S", 60.0)


@pytest.fixture
def task(clock, caplog, monkeypatch):
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(handle_module, "_RETRY_EVERY_S", 0.01)
    return SimulatedTask(clock, caplog)


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
    task.engine.broken["reattach"] = PacelineError("the engine has changed")
    assert task.run() == result  # Airflow retries the task, for example because writing the XCom failed
    assert list(task.engine.jobs) == ["job-1"]
    assert task.run() == result
    assert task.engine.jobs == {}
    assert set(task.store) == KEPT_KEYS
    assert task.engine.collected == ["job-1"]


def test_cleared_task_starts_a_new_job(task):
    first = task.run()
    task.clear()
    second = task.run()
    assert task.engine.started == 2
    assert second.finished_s > first.finished_s
    assert StoredResult.read(task.store[RESULT]).try_number == 2


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


def test_next_try_takes_over_the_job_after_any_other_error(task, monkeypatch):
    def fail(*arguments: Any) -> None:
        raise KeyError("internal error")

    task.engine.actions = [(8.0, lambda: fail())]
    with pytest.raises(KeyError):
        task.run()
    assert task.store["pace"]["state"] == "detached"
    assert task.run().restarts == 0
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


def test_job_stopped_with_on_drain_stop_is_resumed_by_the_next_process(task):
    task.engine.actions = [(8.0, task.request_stop)]
    with pytest.raises(DetachedError, match="its job is stopped"):
        task.run(on_drain="stop")
    assert (task.store["pace"]["state"], task.store["pace"]["devices"]) == ("detached", 0)
    task.run(same_try=True)
    assert (task.engine.started, task.engine.jobs) == (1, {})
    assert "it resumes from its checkpoint" in task.log.text


def test_ended_task_removes_its_job(task):
    task.status = "over"
    task.engine.actions = [(8.0, task.request_stop)]
    with pytest.raises(TaskStoppedError, match="its job is removed"):
        task.run()
    assert task.engine.jobs == {}
    assert set(task.store) == {"pace", "history"}


def test_record_of_a_job_is_kept_if_its_removal_fails(task):
    task.status = "over"
    task.engine.actions = [(8.0, task.request_stop)]
    task.engine.broken["remove"] = PacelineError("no engine")
    with pytest.raises(TaskStoppedError, match="could not be removed"):
        task.run()
    assert {"ceiling", CONTAINER} & set(task.store) == {CONTAINER}
    assert list(task.engine.jobs) == ["job-1"]


def test_suspended_process_does_not_touch_the_job_after_a_takeover(task, monkeypatch):
    """A suspended worker process continues after the next try has taken over the job."""
    monkeypatch.setattr(training_module, "_SUSPENDED_S", -1.0)  # check the owner at every control step

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


def test_next_try_may_use_another_controller(task):
    task.engine.actions = [(8.0, task.request_stop)]
    with pytest.raises(DetachedError):
        task.run()
    task.settings = {"controller": "paper"}
    assert task.run().model == "/models/1"
    assert task.engine.started == 1


@pytest.mark.parametrize("invalid", ["yes", {"kind": "DeadlineController", "controller": {}, "run": {"began_s": 0}}])
def test_invalid_stored_controller_state_is_ignored(task, invalid):
    task.engine.actions = [(8.0, task.request_stop)]
    with pytest.raises(DetachedError):
        task.run()
    task.store["controller"] = invalid
    assert task.run().model == "/models/1"


@pytest.mark.parametrize("on_infeasible", ["best_effort", "extend"])
def test_job_starts_even_if_its_deadline_has_passed(task, on_infeasible):
    task.settings = {"on_infeasible": on_infeasible}
    task.clock.sleep(60.0)  # earlier tasks of the DAG have taken too long
    result = task.run()
    assert "had passed before training started" in task.log.text
    assert result.met == (on_infeasible == "extend")


def test_job_without_processes_is_restarted_from_its_checkpoint(task):
    """After a reboot of the machine, the job's folder still exists, but its processes do not."""
    task.engine.actions = [(8.0, lambda: task.engine.jobs["job-1"].remove_from_engine())]
    with pytest.raises(JobLostError):
        task.run()
    job = task.engine.jobs["job-1"]
    assert task.run().model == "/models/1"
    assert (task.engine.started, job.restarted) == (1, 1)


def test_start_time_survives_an_invalid_controller_state(task):
    task.clock.sleep(30.0)  # the task starts later than the run
    task.settings = {"deadline": Deadline.parse("200s"), "alpha": 0.9}
    task.engine.actions = [(8.0, task.request_stop)]
    with pytest.raises(DetachedError):
        task.run()
    began_s = task.store["pace"]["began_s"]
    task.store["controller"] = {**task.store["controller"], "controller": {"invalid": 1}}
    task.run()
    assert task.store["pace"]["began_s"] == pytest.approx(began_s, abs=1.0)
    assert began_s >= 30.0


def test_passed_deadline_fails_the_run_with_on_infeasible_fail(task):
    task.settings = {"on_infeasible": "fail"}
    task.clock.sleep(60.0)
    with pytest.raises(DeadlineInfeasibleError, match=r"40\.0 s had passed before training started, at 60\.0"):
        task.run()
    assert (task.engine.started, dict(task.store)) == (0, {})


class TimeLimitReached(BaseException):
    """Raised at a task's time limit. Like Airflow's class, it is not an ``Exception``."""


def reach_time_limit() -> None:
    raise TimeLimitReached


def take_over_job(task: SimulatedTask) -> None:
    record = JobRecord.read(task.store[CONTAINER])
    task.store[CONTAINER] = record.model_copy(update={"owner": "another"}).to_json()


@pytest.mark.parametrize("how", ["drain", "time limit"])
def test_stopped_job_with_exit_code_zero_is_resumed(task, how, monkeypatch):
    """Training code that handles SIGTERM may exit with code 0."""
    task.engine.actions = [(8.0, task.request_stop if how == "drain" else reach_time_limit)]
    monkeypatch.setattr(EngineJob, "stop", lambda job, grace_s=5.0: job.kill(0))
    with pytest.raises((DetachedError, TimeLimitReached)):
        task.run(on_drain="stop")
    job = task.engine.jobs["job-1"]
    assert JobRecord.read(task.store[CONTAINER]).stopped
    task.run(same_try=True)
    assert (job.restarted, job._done) == (1, job.batches)


def test_paused_job_with_exit_code_zero_is_resumed(task):
    task.engine.actions = [(8.0, task.request_stop)]
    with pytest.raises(DetachedError):
        task.run()
    task.engine.jobs["job-1"].kill(0)
    task.store["pace"] = {**task.store["pace"], "state": "paused"}
    task.run(same_try=True)
    assert task.engine.jobs == {}
    assert "it resumes from its checkpoint" in task.log.text


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
    assert JobRecord.read(task.store[CONTAINER]).owner == "another"
    assert task.store["pace"]["state"] != "detached"


def test_output_of_a_job_that_another_process_owns_is_not_collected(task):
    task.engine.actions = [(8.0, lambda: take_over_job(task))]
    with pytest.raises(DetachedError, match="Another process"):
        task.run()
    assert (task.engine.collected, list(task.engine.jobs)) == ([], ["job-1"])


def test_stop_request_is_handled_while_the_store_hangs(task, monkeypatch):
    proceed, get = threading.Event(), task.store.get

    def get_or_hang(key, default=None):
        if key == CONTAINER and task.training.stop_requested.is_set():
            proceed.wait()
        return get(key, default)

    monkeypatch.setattr(handle_module, "_QUICK_TIMEOUT_S", 0.01)
    monkeypatch.setattr(task.store, "get", get_or_hang)
    task.engine.actions = [(8.0, task.request_stop)]
    with pytest.raises(DetachedError, match="its job continues"):
        task.run()
    proceed.set()


def test_cleared_task_does_not_reuse_a_job_that_cannot_be_removed(task):
    task.engine.broken["remove"] = PacelineError("the engine does not answer")
    task.run()
    task.clear()
    task.engine.broken["remove"] = PacelineError("the engine still does not answer")
    with pytest.raises(RuntimeUnavailableError, match="could not be removed"):
        task.run()
    task.run()
    assert (task.engine.started, task.engine.jobs) == (2, {})


def test_job_of_a_dead_process_is_resized_to_the_new_decision(task):
    job = task.engine.start(None)
    job.devices = 0.3
    task.run()
    assert (task.engine.started, job.resizes[0]) == (1, (0.0, 1.0))


def test_devices_are_counted_from_the_start_of_a_job_without_control(task, monkeypatch):
    def fail(*args, **options):
        raise RuntimeError("the process fails before control begins")

    monkeypatch.setattr(training_module, "PaceLoop", fail)
    with pytest.raises(RuntimeError, match="before control begins"):
        task.run()
    monkeypatch.undo()
    task.clock.sleep(5.0)
    result = task.run()
    assert task.engine.started == 1
    assert result.device_seconds == pytest.approx(result.mean_devices * result.finished_s, rel=0.01)


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
