"""A duration is counted in elapsed time: setting a clock does not change whether the deadline was met."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from paceline.contract import CONTAINER, JobRecord
from paceline.errors import DetachedError, TrainingFailedError
from paceline.run import Training
from paceline.run import clock as clock_module
from paceline.run.clock import SystemClock

STEPS_S = [600.0, -600.0]
CLOCKS = [("worker",), ("engine",), ("worker", "engine")]


class Clocks:
    """The wall clocks of the worker and of the engine, which can be set. The time since boot cannot."""

    def __init__(self, task, monkeypatch):
        self.task, self.worker_s = task, 0.0
        true = task.clock
        fake = SimpleNamespace(
            time=lambda: true.now() + self.worker_s,
            monotonic=true.now,
            clock_gettime=lambda clock: true.now(),
            CLOCK_BOOTTIME=7,
            sleep=true.sleep,
        )
        monkeypatch.setattr(clock_module, "time", fake)
        monkeypatch.setattr(task, "next_training", self.next_training)

    def next_training(self, on_drain="leave"):
        settings = self.task.make_settings()
        return Training(settings, self.task.host(), on_drain=on_drain, clock=SystemClock())

    def set(self, clocks, step_s):
        if "worker" in clocks:
            self.worker_s = step_s
        if "engine" in clocks:
            for job in self.task.engine.jobs.values():
                job.clock_error_s = step_s


@pytest.fixture
def clocks(task, monkeypatch):
    return Clocks(task, monkeypatch)


def check_end(result):
    """The job is planned to end at its deadline of 40 s, or as soon as possible after an interruption."""
    assert result.met
    assert 0.0 < result.finished_s <= 40.0
    assert -5.0 < result.error_pct <= 0.0


@pytest.mark.parametrize("step_s", STEPS_S)
@pytest.mark.parametrize("which", CLOCKS)
@pytest.mark.parametrize("at_s", [0.5, 1.9, 3.0, 20.0, 38.0])
def test_clock_set_while_the_job_runs_does_not_change_the_error(task, clocks, which, at_s, step_s):
    task.engine.actions = [(at_s, lambda: clocks.set(which, step_s))]
    check_end(task.run())


@pytest.mark.parametrize("step_s", STEPS_S)
@pytest.mark.parametrize("which", CLOCKS)
@pytest.mark.parametrize("at_s", [1.0, 8.0])
def test_clock_set_between_two_worker_processes_does_not_change_the_error(task, clocks, which, at_s, step_s):
    task.engine.actions = [(at_s, task.request_stop)]
    with pytest.raises(DetachedError):
        task.run()
    clocks.set(which, step_s)
    check_end(task.run(same_try=True))


@pytest.mark.parametrize("step_s", STEPS_S)
@pytest.mark.parametrize("which", CLOCKS)
def test_clock_set_between_two_tries_does_not_change_the_error(task, clocks, which, step_s):
    job_fails = lambda: task.engine.jobs["job-1"].kill(1)  # noqa: E731
    task.engine.actions = [(8.0, job_fails)]
    with pytest.raises(TrainingFailedError):
        task.run()
    clocks.set(which, step_s)
    check_end(task.run())


@pytest.mark.parametrize("step_s", STEPS_S)
@pytest.mark.parametrize("which", CLOCKS)
def test_clock_set_after_an_unattended_end_does_not_change_the_error(task, clocks, which, step_s):
    """The job ends while no worker process controls it; its end time is known from the engine."""
    task.engine.actions = [(38.0, task.request_stop)]
    with pytest.raises(DetachedError):
        task.run()
    job = task.engine.jobs["job-1"]
    assert job.wait(60.0)
    task.clock.sleep(5.0)
    clocks.set(("worker",) if "worker" in which else (), step_s)  # the engine has already recorded the end
    check_end(task.run(same_try=True))


def test_later_process_on_another_boot_uses_its_own_clock(task, clocks, monkeypatch):
    task.engine.actions = [(8.0, task.request_stop)]
    with pytest.raises(DetachedError):
        task.run()
    record = JobRecord.read(task.store[CONTAINER])
    assert task.store["clock"]["origin"] == record.to_json()["origin"]
    task.store["clock"] = {**task.store["clock"], "boot_id": "another machine", "offset_s": 1e9}
    check_end(task.run(same_try=True))


@pytest.mark.parametrize("forged", [None, 5, {}, {"offset_s": "1"}, {"boot_id": "x", "offset_s": float("nan")}])
def test_invalid_stored_clock_is_replaced(task, clocks, forged):
    task.store["clock"] = forged
    check_end(task.run())
