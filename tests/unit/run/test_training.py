"""What a training's tries leave behind, whatever ends them: nothing that took time to make is lost, nothing leaks.

The engine, the store and Airflow are simulated, and fail where a test wants it; one test goes through every call.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.contract import CONTAINER, RESULT, Deadline, JobRecord, StoredResult
from paceline.errors import (
    AskedToEndError,
    DeadlineInfeasibleError,
    DetachedError,
    JobLostError,
    PacelineError,
    RuntimeUnavailableError,
    TrainingFailedError,
)
from paceline.run import MemoryState, Training
from paceline.run import handle as handles
from paceline.run import training as trainings
from paceline.run.settings import Settings

from .conftest import SimulatedClock, SimulatedJob

LEFT = {"pace", "history", "result"}  # of a training that is done


class Job(SimulatedJob):
    """A job of the simulated engine, which remembers what it was asked."""

    def __init__(self, engine: Engine, name: str) -> None:
        super().__init__(engine.clock, core_s=20, batches=200)
        self.engine, self.id = engine, name
        self.at = list(engine.at)

    def resize(self, devices: float) -> None:
        if self.status().state != "running":  # an engine notes it for the next start
            self.devices = devices
        else:
            super().resize(devices)

    def remove(self) -> None:
        self.engine.fail_if_asked("remove")
        self.engine.jobs.pop(self.id, None)
        self.vanish()

    def collect(self) -> None:
        self.engine.fail_if_asked("collect")
        self.engine.collected.append(self.id)

    def restart(self) -> None:
        self.gone = False
        super().restart()

    def close(self) -> None:
        pass


class Engine:
    """An engine with one kind of job; ``at`` is what happens in each, and when."""

    name = "docker"

    def __init__(self, clock: SimulatedClock) -> None:
        self.clock = clock
        self.jobs: dict[str, Job] = {}
        self.started = 0
        self.collected: list[str] = []
        self.at: list[tuple[float, Callable[[], None]]] = []
        self.broken: dict[str, Exception] = {}  # what the next call of that name raises

    def fail_if_asked(self, name: str) -> None:
        if name in self.broken:
            raise self.broken.pop(name)

    def capacity(self) -> float:
        return 2.0

    def check(self, spec: Any) -> None:
        pass

    def start(self, spec: Any) -> Job:
        self.fail_if_asked("start")
        for job in self.jobs.values():  # of the same task: it is found by its name
            return job
        self.started += 1
        job = self.jobs[f"job-{self.started}"] = Job(self, f"job-{self.started}")
        return job

    def reattach(self, job_id: str, labels: Any) -> Job:
        self.fail_if_asked("reattach")
        if job_id not in self.jobs:
            raise JobLostError(f"no job {job_id}")
        return self.jobs[job_id]


class Store(MemoryState):
    """A task state store that fails when it is told to: at the call of that number."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.fails_at: int | None = None

    def _call(self) -> None:
        self.calls += 1
        if self.calls == self.fails_at:
            raise RuntimeError("the API server is away")

    def get(self, key: str, default: Any = None) -> Any:
        self._call()
        return super().get(key, default)

    def set(self, key: str, value: Any) -> None:
        self._call()
        super().set(key, value)

    def delete(self, key: str) -> None:
        self._call()
        super().delete(key)


class Task:
    """A task instance and its tries; each try is a process of its own with a host of its own."""

    def __init__(self, clock: SimulatedClock, caplog: pytest.LogCaptureFixture, *, tries: int = 3) -> None:
        self.clock, self.engine, self.store = clock, Engine(clock), Store()
        self.max_tries, self.try_number = tries - 1, 0
        self.began = datetime.fromtimestamp(clock.now(), timezone.utc)
        self.stands: str = "goes_on"
        self.settings: dict[str, Any] = {}
        self.log = caplog

    def host(self) -> Any:
        return SimpleNamespace(
            store=self.store,
            log=logging.getLogger("test"),
            try_number=self.try_number,
            max_tries=self.max_tries,
            pool="trainings",
            origin=lambda earlier: self.began,
            runtime=lambda name: self.engine,
            labels=dict,
            spec=lambda scratch, devices: None,
            team=lambda job: None,
            past_run=lambda: None,
            save_measurements=lambda past: None,
            collect=lambda job: job.collect() or "/models/1",
            job_is=lambda job: None,
            take=lambda sample: None,
            wait_for_callbacks=lambda: None,
            standing=lambda: self.stands,
        )

    def live(self, *, again: bool = False, on_drain: str = "leave") -> Any:
        """Live the next try's part of the training; ``again``: the same try, in another process."""
        self.try_number += not again
        deadline = {"deadline": Deadline.parse("40s"), "written": "40s"}
        settings = Settings(**{**deadline, **self.settings})
        self.training = Training(settings, self.host(), on_drain=on_drain, clock=self.clock)
        return self.training.live()

    def clear(self) -> None:
        """As a user does in the UI, with a task that does not run."""
        self.max_tries = self.try_number + self.max_tries

    def ask_to_end(self) -> None:
        self.training.ask_to_end()


@pytest.fixture(autouse=True)
def nobody_is_in_a_hurry(monkeypatch):
    """What gives up after seconds, so that Airflow does not end it first, has more of them on a slow machine."""
    monkeypatch.setattr(handles, "_HURRY_S", 60.0)
    monkeypatch.setattr(trainings, "_MAIN_HAS_S", 60.0)


@pytest.fixture
def task(clock, caplog, monkeypatch):
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(handles, "_ASK_AGAIN_S", 0.01)
    return Task(clock, caplog)


def test_a_training_leaves_its_result_and_nothing_else(task):
    result = task.live()
    assert result.model == "/models/1"
    assert abs(result.error_pct) < 2.0
    assert set(task.store) == LEFT
    assert task.engine.jobs == {}


def test_a_store_that_fails_once_at_any_call_costs_no_training(clock, caplog, monkeypatch):
    """Whichever call it is: the job is started once, trains once, and its result comes with this try or the next."""
    monkeypatch.setattr(handles, "_ASK_AGAIN_S", 0.01)
    calls = 1
    while True:
        task = Task(clock, caplog)
        task.store.fails_at = calls
        try:
            result = task.live()
        except RuntimeError:
            result = task.live()
        assert result.model == "/models/1", f"call {calls}"
        assert (task.engine.started, task.engine.jobs) == (1, {}), f"call {calls}"
        assert RESULT in task.store
        if task.store.calls < calls:
            break
        calls += 1
    assert calls > 20


def test_a_result_that_is_stored_is_returned_by_the_next_try_although_the_job_was_not_removed(task):
    task.engine.broken["remove"] = PacelineError("the engine is away")
    result = task.live()  # what cannot be removed does not take the result back
    assert "something of it is left behind" in task.log.text
    assert list(task.engine.jobs) == ["job-1"]
    assert JobRecord.read(task.store[CONTAINER]).id == "job-1"
    task.engine.broken["reattach"] = PacelineError("the engine is another one")
    assert task.live() == result  # its XCom could not be written, say
    assert list(task.engine.jobs) == ["job-1"]
    assert task.live() == result
    assert task.engine.jobs == {}
    assert set(task.store) == LEFT
    assert task.engine.collected == ["job-1"]


def test_a_task_that_is_cleared_trains_anew(task):
    first = task.live()
    task.clear()
    second = task.live()
    assert task.engine.started == 2
    assert second.finished_s > first.finished_s
    assert StoredResult.read(task.store[RESULT]).try_number == 2


@pytest.mark.parametrize("error", [PermissionError("no access to s3://models"), TrainingFailedError("output: ...")])
def test_an_output_that_cannot_be_collected_is_kept_also_after_the_last_try(task, error):
    task.max_tries = 1
    for _ in range(2):
        task.engine.broken["collect"] = error
        with pytest.raises(type(error)):
            task.live()
        assert list(task.engine.jobs) == ["job-1"]
    assert "clear the task to collect its output again" in task.log.text
    task.clear()
    assert task.live().model == "/models/1"
    assert (task.engine.started, task.engine.jobs, set(task.store)) == (1, {}, LEFT)


def test_a_job_that_fails_is_kept_for_the_next_try_and_removed_after_the_last(task):
    task.max_tries = 1
    task.engine.at = [(8.0, lambda: task.engine.jobs["job-1"].kill(1))]
    with pytest.raises(TrainingFailedError, match="exit code 1"):
        task.live()
    assert list(task.engine.jobs) == ["job-1"]
    task.engine.jobs["job-1"].at = [(20.0, lambda: task.engine.jobs["job-1"].kill(1))]
    with pytest.raises(TrainingFailedError):
        task.live()
    assert task.engine.jobs == {}
    assert set(task.store) == {"pace", "history"}
    assert task.store["pace"]["state"] == "failed"


def test_an_error_of_any_kind_leaves_the_job_to_the_next_try(task, monkeypatch):
    def fails(*arguments: Any) -> None:
        raise KeyError("a mistake of ours")

    task.engine.at = [(8.0, lambda: fails())]
    with pytest.raises(KeyError):
        task.live()
    assert task.store["pace"]["state"] == "detached"
    assert task.live().restarts == 0
    assert task.engine.started == 1
    assert "taking it up" in task.log.text


def test_who_has_to_go_leaves_the_job_and_the_next_process_takes_it_up(task):
    task.engine.at = [(8.0, task.ask_to_end)]
    with pytest.raises(DetachedError, match="its job trains on"):
        task.live()
    sample = task.store["pace"]
    assert (sample["state"], sample["devices"] > 0) == ("detached", True)
    assert task.engine.jobs["job-1"].status().state == "running"
    result = task.live(again=True)
    assert (task.engine.started, result.restarts) == (1, 0)
    assert abs(result.error_pct) < 2.0


def test_who_has_to_go_may_stop_the_job_which_resumes_from_its_checkpoint(task):
    task.engine.at = [(8.0, task.ask_to_end)]
    with pytest.raises(DetachedError, match="its job is stopped"):
        task.live(on_drain="stop")
    assert (task.store["pace"]["state"], task.store["pace"]["devices"]) == ("detached", 0)
    task.live(again=True)
    assert (task.engine.started, task.engine.jobs) == (1, {})
    assert "it resumes from its checkpoint" in task.log.text


def test_a_task_that_is_over_for_good_takes_its_job_with_it(task):
    task.stands = "over"
    task.engine.at = [(8.0, task.ask_to_end)]
    with pytest.raises(AskedToEndError, match="its job is removed"):
        task.live()
    assert task.engine.jobs == {}
    assert set(task.store) == {"pace", "history"}


def test_a_job_whose_removal_fails_is_not_forgotten(task):
    task.stands = "over"
    task.engine.at = [(8.0, task.ask_to_end)]
    task.engine.broken["remove"] = PacelineError("no engine")
    with pytest.raises(AskedToEndError, match="could not be removed"):
        task.live()
    assert {"ceiling", CONTAINER} & set(task.store) == {CONTAINER}
    assert list(task.engine.jobs) == ["job-1"]


def test_a_job_that_another_process_has_taken_up_is_let_go_of(task, monkeypatch):
    """A worker that was suspended wakes up: its retry has the job."""
    monkeypatch.setattr(trainings, "_SUSPENDED_S", -1.0)  # it asks at every step

    task.engine.at = [(8.0, lambda: taken_up_by_another(task))]
    with pytest.raises(DetachedError, match="Another process has taken up the job"):
        task.live()
    assert task.engine.jobs["job-1"].status().state == "running"
    assert task.store["pace"]["state"] == "training"


def test_a_time_limit_stops_what_may_hang_and_the_next_try_resumes_it(task):
    task.engine.at = [(8.0, expires)]
    with pytest.raises(TimeLimit):
        task.live()
    assert task.store["pace"]["devices"] == 0
    task.training.ask_to_end()  # as Airflow does then; everything is over
    task.max_tries = 1
    task.engine.jobs["job-1"].at = [(task.engine.jobs["job-1"].elapsed_s + 3.0, expires)]
    with pytest.raises(TimeLimit):
        task.live()
    assert (task.engine.jobs, set(task.store)) == ({}, {"pace", "history"})


def test_another_controller_may_steer_the_next_try(task):
    task.engine.at = [(8.0, task.ask_to_end)]
    with pytest.raises(DetachedError):
        task.live()
    task.settings = {"controller": "paper"}
    assert task.live().model == "/models/1"
    assert task.engine.started == 1


@pytest.mark.parametrize("nonsense", ["yes", {"kind": "DeadlineController", "controller": {}, "run": {"began_s": 0}}])
def test_what_a_controller_has_stored_may_be_overwritten_by_anybody(task, nonsense):
    task.engine.at = [(8.0, task.ask_to_end)]
    with pytest.raises(DetachedError):
        task.live()
    task.store["controller"] = nonsense
    assert task.live().model == "/models/1"


@pytest.mark.parametrize("on_infeasible", ["best_effort", "extend"])
def test_a_deadline_that_has_passed_before_the_start_is_no_reason_not_to_train(task, on_infeasible):
    task.settings = {"on_infeasible": on_infeasible}
    task.clock.sleep(60.0)  # what comes before the training took too long
    result = task.live()
    assert "had passed when the training was to begin" in task.log.text
    assert result.met == (on_infeasible == "extend")


def test_a_job_whose_processes_are_gone_is_restarted_from_its_checkpoint(task):
    """Its machine was rebooted; its folder is still there."""
    task.engine.at = [(8.0, lambda: task.engine.jobs["job-1"].vanish())]
    with pytest.raises(JobLostError):
        task.live()
    job = task.engine.jobs["job-1"]
    assert task.live().model == "/models/1"
    assert (task.engine.started, job.restarted) == (1, 1)


def test_the_start_of_a_training_is_known_without_its_controllers_state(task):
    task.clock.sleep(30.0)  # before the start
    task.settings = {"deadline": Deadline.parse("200s"), "alpha": 0.9}
    task.engine.at = [(8.0, task.ask_to_end)]
    with pytest.raises(DetachedError):
        task.live()
    began_s = task.store["pace"]["began_s"]
    task.store["controller"] = {**task.store["controller"], "controller": {"nonsense": 1}}
    task.live()
    assert task.store["pace"]["began_s"] == pytest.approx(began_s, abs=1.0)
    assert began_s >= 30.0


def test_a_deadline_that_has_passed_fails_the_run_that_wants_it(task):
    task.settings = {"on_infeasible": "fail"}
    task.clock.sleep(60.0)
    with pytest.raises(DeadlineInfeasibleError, match=r"40\.0 s had passed when the training was to begin, at 60\.0"):
        task.live()
    assert (task.engine.started, dict(task.store)) == (0, {})


class TimeLimit(BaseException):
    """As Airflow's is, which a task cannot catch as an error."""


def expires() -> None:
    raise TimeLimit


def taken_up_by_another(task: Task) -> None:
    record = JobRecord.read(task.store[CONTAINER])
    task.store[CONTAINER] = record.model_copy(update={"owner": "another"}).to_json()


@pytest.mark.parametrize("how", ["drain", "time limit"])
def test_a_job_that_was_stopped_has_not_ended_well_whatever_its_exit_code_says(task, how, monkeypatch):
    """Code that answers SIGTERM itself may leave with the exit code 0."""
    task.engine.at = [(8.0, task.ask_to_end if how == "drain" else expires)]
    monkeypatch.setattr(Job, "stop", lambda job, grace_s=5.0: job.kill(0))
    with pytest.raises((DetachedError, TimeLimit)):
        task.live(on_drain="stop")
    job = task.engine.jobs["job-1"]
    assert JobRecord.read(task.store[CONTAINER]).stopped
    task.live(again=True)
    assert (job.restarted, job._done) == (1, job.batches)


def test_a_job_whose_task_died_while_it_stood_still_has_not_ended_well_either(task):
    task.engine.at = [(8.0, task.ask_to_end)]
    with pytest.raises(DetachedError):
        task.live()
    task.engine.jobs["job-1"].kill(0)
    task.store["pace"] = {**task.store["pace"], "state": "paused"}
    task.live(again=True)
    assert task.engine.jobs == {}
    assert "it resumes from its checkpoint" in task.log.text


def test_a_result_whose_answer_was_lost_is_not_made_twice_by_the_same_try(task, monkeypatch):
    def arrives_without_an_answer(key, value):
        MemoryState.set(task.store, key, value)
        if key == RESULT:
            task.ask_to_end()
            assert task.training.asked_to_end.wait(60)
            raise RuntimeError("the API server is away")

    monkeypatch.setattr(task.store, "set", arrives_without_an_answer)
    with pytest.raises(DetachedError):
        task.live()
    monkeypatch.undo()
    assert task.live(again=True).model == "/models/1"
    assert (task.engine.started, task.engine.jobs) == (1, {})


def test_a_store_that_fails_once_in_the_last_try_costs_no_running_training(clock, caplog, monkeypatch):
    monkeypatch.setattr(handles, "_ASK_AGAIN_S", 0.01)
    call, calls = 1, 2
    while call < calls:
        task = Task(clock, caplog, tries=2)
        task.engine.at = [(8.0, task.ask_to_end)]
        with pytest.raises(DetachedError):
            task.live()
        before = task.store.calls
        task.store.fails_at = before + call
        task.max_tries = 1
        assert task.live().model == "/models/1", f"call {call}"
        assert (task.engine.started, task.engine.jobs) == (1, {}), f"call {call}"
        call, calls = call + 1, task.store.calls - before
    assert calls > 12


def test_a_mistake_of_ours_in_the_last_try_stops_the_job_and_keeps_its_checkpoint(task):
    def mistake() -> None:
        raise KeyError("a mistake of ours")

    task.max_tries = 0
    task.engine.at = [(8.0, mistake)]
    with pytest.raises(KeyError):
        task.live()
    assert task.engine.jobs["job-1"].status().state == "exited"
    assert "is stopped and kept with its checkpoint: clear the task to go on" in task.log.text
    task.clear()
    task.live()
    assert (task.engine.started, task.engine.jobs) == (1, {})


@pytest.mark.parametrize("error", [TimeLimit(), KeyError("anything"), TrainingFailedError("late news")])
@pytest.mark.parametrize("tries", [1, 3])
def test_a_process_that_wakes_up_by_an_error_leaves_the_job_of_its_successor_alone(clock, caplog, error, tries):
    task = Task(clock, caplog, tries=tries)

    def wakes() -> None:
        taken_up_by_another(task)
        raise error

    task.engine.at = [(8.0, wakes)]
    with pytest.raises(type(error)):
        task.live()
    assert task.engine.jobs["job-1"].status().state == "running"
    assert JobRecord.read(task.store[CONTAINER]).owner == "another"
    assert task.store["pace"]["state"] != "detached"


def test_the_output_of_a_job_that_another_process_has_is_not_collected(task):
    task.engine.at = [(8.0, lambda: taken_up_by_another(task))]
    with pytest.raises(DetachedError, match="Another process"):
        task.live()
    assert (task.engine.collected, list(task.engine.jobs)) == ([], ["job-1"])


def test_a_store_that_hangs_is_not_waited_for_by_who_has_to_go(task, monkeypatch):
    hangs, get = threading.Event(), task.store.get

    def hanging(key, default=None):
        if key == CONTAINER and task.training.asked_to_end.is_set():
            hangs.wait()
        return get(key, default)

    monkeypatch.setattr(handles, "_HURRY_S", 0.01)
    monkeypatch.setattr(task.store, "get", hanging)
    task.engine.at = [(8.0, task.ask_to_end)]
    with pytest.raises(DetachedError, match="its job trains on"):
        task.live()
    hangs.set()


def test_a_cleared_task_does_not_take_the_job_that_could_not_be_removed_for_its_own(task):
    task.engine.broken["remove"] = PacelineError("the engine is away")
    task.live()
    task.clear()
    task.engine.broken["remove"] = PacelineError("the engine is still away")
    with pytest.raises(RuntimeUnavailableError, match="could not be removed"):
        task.live()
    task.live()
    assert (task.engine.started, task.engine.jobs) == (2, {})


def test_a_job_that_a_dead_process_has_started_gets_the_devices_that_are_decided_now(task):
    job = task.engine.start(None)
    job.devices = 0.3
    task.live()
    assert (task.engine.started, job.resizes[0]) == (1, (0.0, 1.0))


def test_whose_supervisor_has_gone_does_not_ask_its_store_again(task, monkeypatch):
    asked = []

    def gone(key, value):
        asked.append(key)
        raise EOFError("Request socket closed")

    task.engine.at = [(8.0, lambda: monkeypatch.setattr(task.store, "set", gone))]
    with pytest.raises((EOFError, DetachedError)):
        task.live()
    assert asked.count(RESULT) <= 1
    monkeypatch.undo()
    assert task.live().model == "/models/1"
    assert task.engine.started == 1
