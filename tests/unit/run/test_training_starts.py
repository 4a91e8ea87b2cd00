"""The first try of a training task, and tries that start or restart a job.

The engine, the store and Airflow are simulated and inject faults.
"""

from __future__ import annotations

import pytest

from paceline.contract import HISTORY, HISTORY_BEFORE, RESULT, Deadline, StoredResult
from paceline.errors import (
    DeadlineInfeasibleError,
    DetachedError,
    JobLostError,
    PacelineError,
    RuntimeUnavailableError,
    TrainingFailedError,
)
from paceline.run import _training as training_module


def test_cleared_task_starts_a_new_job(task):
    first = task.run()
    task.clear()
    second = task.run()
    assert task.engine.started == 2
    assert second.finished_s > first.finished_s
    assert StoredResult.read(task.store[RESULT]).try_number == 2


def test_history_of_the_job_before_is_kept(task):
    task.run()
    first = task.store[HISTORY]
    assert HISTORY_BEFORE not in task.store
    task.clear()
    task.run()
    assert task.store[HISTORY_BEFORE] == first != task.store[HISTORY]


def test_history_of_a_job_that_continues_is_one(task):
    task.engine.actions = [(8.0, lambda: task.engine.jobs["job-1"].kill(1))]
    with pytest.raises(TrainingFailedError):
        task.run()
    task.run()
    assert HISTORY_BEFORE not in task.store


def test_smallest_and_largest_allocation_are_checked_before_the_start(task):
    checked = []
    task.engine.check = checked.append
    task.settings = {"min_devices": 0.3, "max_devices": 1.5}
    task.run()
    assert [(one.min_devices, one.max_devices) for one in checked] == [(0.3, 1.5)]


@pytest.mark.parametrize(
    ("quantum", "alone", "expected"),
    [(1.0, 1, (5.0, True)), (1.0, 5, (2.0, True)), (1.0, None, (2.0, True)), (0.5, 1, (2.0, False))],
    ids=["whole devices in several places", "as many as in one place", "whole devices on one machine", "cores"],
)
def test_only_whole_devices_may_exceed_one_machine_where_the_runtime_can_scatter_them(task, quantum, alone, expected):
    checked = []
    task.engine.check, task.engine.scatters_above, task.engine.team_capacity = checked.append, alone, lambda: 8.0
    task.settings = {"min_devices": 1.0, "max_devices": 5.0, "quantum": quantum}
    task.run()
    assert [(one.max_devices, one.whole_devices) for one in checked] == [expected]


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
    assert (result.error_pct is None) == (on_infeasible == "best_effort"), "no deviation from a deadline of the past"


def test_deadline_before_the_start_of_the_run_is_named_as_it_was_written(task):
    task.settings = {"deadline": Deadline.parse("2020-01-01T00:00:00Z")}
    task.clock.sleep(5.0)
    task.run()
    assert "deadline: got 2020-01-01T00:00:00+00:00, expected a time after the start of the run, 20" in task.log.text


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


def test_past_deadline_fails_the_run_with_on_infeasible_fail(task):
    task.settings = {"on_infeasible": "fail"}
    task.clock.sleep(60.0)
    with pytest.raises(DeadlineInfeasibleError, match=r"40\.0 s had passed before training started, at 60\.0"):
        task.run()
    assert (task.engine.started, dict(task.store)) == (0, {})


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


def test_start_up_of_a_job_that_the_next_try_restarts_has_the_devices_of_a_first_start(task):
    """The job trained on a small allocation, on which importing libraries would take ten times as long."""
    task.settings = {"deadline": Deadline.parse("200s"), "written": "200s"}
    task.engine.actions = [(30.0, lambda: task.engine.jobs["job-1"].kill(1))]
    with pytest.raises(TrainingFailedError, match="exit code 1"):
        task.run()
    job, began_s, samples = task.engine.jobs["job-1"], task.clock.now(), []
    assert job.devices < 0.4
    job.loads_after_restart = True
    job.actions = [(job.elapsed_s + 20.0, job.finish_loading)]
    task.on_sample = lambda sample: samples.append((task.clock.now() - began_s, sample.devices))
    task.run()
    assert job.restarted == 1
    assert {devices for t_s, devices in samples if t_s < 19.0} == {1.0}
    assert min(devices for t_s, devices in samples if t_s > 40.0) < 0.4
