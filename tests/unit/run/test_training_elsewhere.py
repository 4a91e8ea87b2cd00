"""A job whose control passes from a worker process to the triggerer and back, within one try.

The engine, the store and Airflow are simulated and inject faults.
"""

from __future__ import annotations

import json
from datetime import datetime, timezone

import pytest

from paceline.arbiter import DeviceRequest
from paceline.contract import CEILING, DEADLINE, Ceiling, Deadline
from paceline.errors import (
    DeadlineInfeasibleError,
    DetachedError,
    JobLostError,
    RuntimeUnavailableError,
    TaskStoppedError,
    TrainingFailedError,
)
from paceline.run import ControlElsewhereError, RemoteState, Training

from .simulated_task import TimeLimitReached, reach_time_limit, record_of, take_over_job


class Elsewhere:
    """The control of a task's job in the triggerer, which sees the live state of the moment at which it begins."""

    def __init__(self, task, *, leaves_at_s=float("inf")):
        self.task, host = task, task.host()
        self.state = RemoteState({key: json.dumps(value) for key, value in task.store.items()})
        host.store, host.exchange = self.state, lambda on_failure: self.state
        ends_s = task.clock.now() + leaves_at_s
        self.training = Training(
            task.make_settings(),
            host,
            clock=task.clock,
            leaves=lambda status: status is not None or task.clock.now() >= ends_s,
            continues=True,
        )

    def control(self, error=ControlElsewhereError):
        """Control the job until the process leaves it, and store what it has written."""
        with pytest.raises(error) as raised:
            self.run_steps()
        self.task.store.update({key: text and json.loads(text) for key, text in self.state.take().items()})
        return raised.value

    def run_steps(self):
        steps = self.training.steps()
        wait_s = next(steps)
        while True:
            self.task.let_jobs_train(wait_s)
            wait_s = steps.send(0.0)


def start(task, *, devices=None, **options):
    """Start a try that leaves the control of its job to another process after the first step.

    ``devices``: those that an arbiter has granted to a shared job.
    """
    task.try_number += 1
    if devices is not None:
        task.store.delete = lambda key: None  # else, a new try would wait for a new grant
        task.store[CEILING] = Ceiling(devices, 1).to_json()
    training = Training(
        task.make_settings(), task.host(), clock=task.clock, leaves=lambda status: status is None, **options
    )
    with pytest.raises(ControlElsewhereError):
        training.run()
    return training


def continue_try(task):
    """Continue the try in a worker process, which stays until the end."""
    task.training = Training(task.make_settings(), task.host(), clock=task.clock, continues=True)
    return task.training.run()


@pytest.fixture
def in_one_process(task):
    """Return the result of the same training without a second process."""
    alone = task.run()
    task.engine.started, task.try_number = 0, 0
    task.store.clear()
    task.began = datetime.fromtimestamp(task.clock.now(), timezone.utc)
    return alone


def test_result_is_that_of_one_process(in_one_process, task):
    training = start(task)
    assert training.record is not None
    assert training.record.deferred
    Elsewhere(task).control()
    (job,) = task.engine.jobs.values()
    assert job.status().state == "exited", "the output is still there"
    request = DeviceRequest.read("job", task.store["pace"], None)
    assert request is not None
    assert request.committed == 0.0, "the arbiter can grant its devices to others before a worker is free"
    setpoint_pct = task.store["pace"]["setpoint_pct"]
    assert setpoint_pct > 90.0
    result = continue_try(task)
    assert task.store["pace"]["setpoint_pct"] == pytest.approx(setpoint_pct, abs=0.1), "the pace is still known"
    assert task.engine.started == task.try_number == 1
    assert (result.model, result.met) == (in_one_process.model, in_one_process.met)
    assert result.error_pct == pytest.approx(in_one_process.error_pct, abs=1.0)
    assert result.device_seconds == pytest.approx(in_one_process.device_seconds, rel=0.05)
    assert task.engine.jobs == {}


def test_step_that_is_taken_early_does_not_delay_the_next_one(task):
    start(task)
    steps = Elsewhere(task).training.steps()
    wait_s = next(steps)
    for _ in range(5):
        task.let_jobs_train(wait_s / 4)
        assert steps.send(0.0) == pytest.approx(wait_s)


def test_control_passes_on_often_without_loss_of_its_state(in_one_process, task):
    """As when triggerers are replaced, or alerts call a worker process."""
    start(task)
    for _ in range(5):
        Elsewhere(task, leaves_at_s=4.0).control()
        assert record_of(task).deferred
    Elsewhere(task).control()
    result = continue_try(task)
    assert task.engine.started == 1
    assert result.error_pct == pytest.approx(in_one_process.error_pct, abs=2.0)
    assert result.device_seconds == pytest.approx(in_one_process.device_seconds, rel=0.1)


def test_new_deadline_is_met_elsewhere(task):
    start(task)
    elsewhere = Elsewhere(task)
    (job,) = task.engine.jobs.values()
    job.actions.append((10.0, lambda: elsewhere.state.succeed({DEADLINE: "60s"})))
    elsewhere.control()
    task.store[DEADLINE] = "60s"
    result = continue_try(task)
    assert result.deadline_s == 60.0
    assert result.error_pct == pytest.approx(0.0, abs=5.0)


def test_job_that_failed_elsewhere_fails_the_same_try_and_is_restarted_by_the_next(task):
    start(task)
    (job,) = task.engine.jobs.values()
    job.actions.append((5.0, lambda: job.kill(1)))
    Elsewhere(task).control()
    with pytest.raises(TrainingFailedError, match="exit code 1"):
        continue_try(task)
    assert job.restarted == 0
    assert task.run().model == "/models/1"
    assert (job.restarted, task.try_number) == (1, 2)


def test_job_that_was_lost_elsewhere_fails_the_same_try(task):
    start(task)
    (job,) = task.engine.jobs.values()
    job.remove()
    Elsewhere(task).control(JobLostError)
    with pytest.raises(JobLostError, match="no longer exists"):
        continue_try(task)
    assert task.engine.started == 1


def test_error_elsewhere_leaves_the_job_to_the_worker_process(task):
    task.settings = {"on_infeasible": "fail", "deadline": task.make_settings().deadline.parse("9s"), "written": "9s"}
    start(task)
    Elsewhere(task).control(DeadlineInfeasibleError)
    assert len(task.engine.jobs) == 1
    with pytest.raises(DeadlineInfeasibleError):
        continue_try(task)
    assert task.engine.jobs == {}


def test_process_that_has_to_end_leaves_the_job_as_it_is(task):
    start(task)
    elsewhere = Elsewhere(task)
    (job,) = task.engine.jobs.values()
    job.actions.append((5.0, elsewhere.training.stop_requested.set))
    elsewhere.control(TaskStoppedError)
    assert job.status().state == "running"
    assert task.store["pace"]["state"] == "training"
    Elsewhere(task).control()
    assert continue_try(task).model == "/models/1"


@pytest.mark.parametrize("owner", ["first", "second"])
def test_only_the_owner_removes_the_job_of_a_task_that_is_over(task, owner):
    start(task)
    first = Elsewhere(task)
    (job,) = task.engine.jobs.values()
    job.actions.append((5.0, first.training.stop_requested.set))
    first.control(TaskStoppedError)
    second = Elsewhere(task, leaves_at_s=3.0)
    second.control()
    task.status = "over"
    {"first": first, "second": second}[owner].training.end()
    assert len(task.engine.jobs) == (1 if owner == "first" else 0)
    if owner == "first":
        assert job.leases[-1] == task.make_settings().lease_s, "the lease of the other process is not shortened"


def test_stop_removes_the_job_that_the_control_has_not_found_yet(task):
    start(task)
    task.status = "over"
    training = Elsewhere(task).training
    training.stop_requested.set()
    assert "its job is removed" in str(training.end())
    assert task.engine.jobs == {}


@pytest.mark.parametrize("next_try", ["cleared", "cleared, without a record yet", "retry"])
@pytest.mark.parametrize("ends", [True, False])
def test_process_of_an_earlier_try_spares_the_job_of_the_next(task, next_try, ends):
    start(task)
    earlier = Elsewhere(task)
    if next_try != "retry":
        task.clear()
    start(task)
    (job,) = task.engine.jobs.values()
    if next_try == "cleared, without a record yet":
        job.stored = None
    before = job.stored
    task.status = "over"
    if ends:
        earlier.training.stop_requested.set()
        assert "Another try of the task controls" in str(earlier.training.end())
    else:
        earlier.control(JobLostError if job.stored is None else DetachedError)
    assert list(task.engine.jobs.values()) == [job]
    assert job.stored == before


def test_stopped_process_does_not_become_the_owner(task):
    start(task)
    owner = record_of(task).owner
    elsewhere = Elsewhere(task)
    elsewhere.training.stop_requested.set()
    elsewhere.control(TaskStoppedError)
    assert record_of(task).owner == owner


@pytest.mark.parametrize("status", ["over", "active", "unknown"])
def test_requested_stop_removes_the_job_if_the_task_is_over(task, status):
    start(task)
    elsewhere = Elsewhere(task)
    (job,) = task.engine.jobs.values()
    task.status = status

    def stop():
        elsewhere.training.request_stop()
        assert elsewhere.training.stop_requested.wait(60.0)

    job.actions.append((5.0, stop))
    elsewhere.control(TaskStoppedError if status == "over" else DetachedError)
    if status == "over":
        assert task.engine.jobs == {}
        assert task.store["pace"]["devices"] == 0.0
        assert task.store["container"] is None
    else:
        assert job.leases[-1] == (task.make_settings().lease_s if status == "active" else 600.0)
        assert task.store["pace"]["state"] == "detached"


def test_process_that_is_cut_off_from_airflow_notices_another_one(task, monkeypatch):
    """It still reaches the engine: without this check, both would control the job."""
    monkeypatch.setattr("paceline.run._stopping._CUT_OFF_EVERY_S", 0.0)
    start(task)
    elsewhere = Elsewhere(task)
    (job,) = task.engine.jobs.values()
    job.actions.append((5.0, lambda: take_over_job(task)))
    job.actions.append((9.0, elsewhere.state.fail))
    elsewhere.control(TaskStoppedError)
    assert job.status().state == "running"


def test_cleared_task_does_not_continue_a_deferred_job(task):
    """Nobody was there to remove the job, for example because no triggerer was running."""
    start(task)
    task.clear()
    assert task.run().model == "/models/1"
    assert task.engine.started == 2
    assert "The task was cleared while it was deferred" in task.log.text


def test_cleared_task_continues_a_job_that_a_worker_process_has_kept(task, monkeypatch):
    """The worker process could not reach the engine, so that the job's own record still says that it is deferred."""
    task.max_tries = 0
    start(task)
    monkeypatch.setattr("paceline.run._handle._RETRY_FOR_S", 0.0)
    monkeypatch.setattr("paceline.run._handle._RETRY_EVERY_S", 0.0)
    with monkeypatch.context() as broken:
        broken.setattr(task.engine, "find_job", lambda *args: (_ for _ in ()).throw(RuntimeUnavailableError("down")))
        with pytest.raises(RuntimeUnavailableError):
            continue_try(task)
    assert record_of(task).deferred
    task.clear()
    assert task.run().model == "/models/1"
    assert task.engine.started == 1


@pytest.mark.parametrize("tries", [1, 2])
def test_time_limit_stops_the_job_or_removes_it_after_the_last_try(task, tries):
    task.max_tries = tries - 1
    start(task)
    (job,) = task.engine.jobs.values()
    task.check_need = lambda stage: reach_time_limit()
    with pytest.raises(TimeLimitReached):
        continue_try(task)
    assert (job.stopped, len(task.engine.jobs)) == ((1, 1) if tries == 2 else (0, 0))
    assert task.store["pace"]["devices"] == 0.0


def test_job_that_has_ended_in_time_is_collected_after_the_time_limit(task):
    task.max_tries = 0
    start(task)
    Elsewhere(task).control()
    task.check_need = lambda stage: reach_time_limit()
    assert continue_try(task).model == "/models/1"


@pytest.mark.parametrize("code", [0, 1])
def test_ended_job_is_not_preempted_while_it_waits_for_a_worker(task, code):
    """Its script has reported no progress, so that exit code 0 could be that of a preempted job."""
    task.settings = {"shared": True}
    start(task, waits_here=False, devices=2.0)
    (job,) = task.engine.jobs.values()
    job.read_lines = list
    if code:
        job.actions.append((5.0, lambda: job.kill(code)))
    Elsewhere(task).control()
    task.store[CEILING] = Ceiling(0.0, 2, max_devices=2.0).to_json()
    if code:
        with pytest.raises(TrainingFailedError, match="exit code 1"):
            continue_try(task)
    else:
        assert continue_try(task).model == "/models/1"
    assert (job.stopped, job.restarted) == (0, 0)


def test_start_up_after_a_restart_passes_on(task):
    """The lines before the restart arrive again: they are no progress of the restarted job."""
    task.settings = {"deadline": Deadline.parse("120s"), "written": "120s"}
    start(task)
    (job,) = task.engine.jobs.values()
    job.actions.append((10.0, lambda: job.kill(1)))
    Elsewhere(task).control()
    with pytest.raises(TrainingFailedError):
        continue_try(task)
    restart = job.restart

    def restart_silently():
        restart()
        job.read_lines = list

    job.restart = restart_silently
    start(task)
    states = []
    task.on_sample = lambda sample: states.append(sample.state)
    Elsewhere(task, leaves_at_s=20.0).control()
    assert states[0] == "starting"
    assert "training" not in states


def test_preempted_job_teaches_no_later_run(task):
    """Its measurements contain the time without devices."""
    task.settings = {"shared": True}
    start(task, waits_here=False, devices=2.0)
    (job,) = task.engine.jobs.values()
    elsewhere = Elsewhere(task)

    def set_ceiling(devices, grant):
        elsewhere.state.succeed({CEILING: Ceiling(devices, grant, max_devices=2.0).to_json()})

    job.actions.append((5.0, lambda: set_ceiling(0.0, 2)))
    task.on_sample = lambda sample: set_ceiling(2.0, 3) if sample.state == "preempted" else None
    elsewhere.control()
    assert job.restarted == 1
    assert continue_try(task).learned is None
