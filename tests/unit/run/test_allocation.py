"""Which resizes a job receives, what is logged about those that are not in force yet, and which devices are counted."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from typing import Any

import pytest
from tests.unit.run.conftest import ProcessKilled, kill_process

from paceline.contract import Ceiling, RunTotals
from paceline.control import Limits
from paceline.errors import ResizePendingError, TrainingFailedError
from paceline.run import History, MemoryState
from paceline.run._allocation import JobAllocation
from paceline.run._journal import Journal
from paceline.run._outage import Outage
from paceline.run._pending import PendingResize


class QueueingJob:
    """A job whose further devices do not join."""

    has_engine = True

    def __init__(self) -> None:
        self.resizes: list[float] = []

    def devices_in_force(self) -> float:
        return 1.0

    def resize(self, devices: float) -> None:
        self.resizes.append(devices)
        if devices > 1.0:
            raise ResizePendingError(1.0, "Device 1 has not joined: no node has room")


def test_return_to_the_allocation_in_force_reaches_a_job_whose_devices_have_not_joined(clock: Any) -> None:
    job: Any = QueueingJob()
    journal = Journal(History(), logging.getLogger("test"))
    pending = PendingResize(journal)
    outage = Outage(job, journal, clock, clock.now)
    allocation = JobAllocation(job, outage, 1.0, RunTotals(began_s=0.0, last_step_s=None), pending=pending)
    for target in (3.0, 3.0, 1.0, 1.0):
        allocation.target = target
        allocation.resize(clock.now())
    assert job.resizes == [3.0, 3.0, 1.0]
    assert not pending.active
    assert allocation.devices == 1.0
    assert allocation.upper_bound == 1.0


def test_job_whose_engine_refuses_devices_continues_without_them(make_job, run, caplog, monkeypatch):
    job = make_job(core_s=60)
    resize = job.resize

    def resize_to_one_at_most(devices):
        if devices > 1.0 and job.elapsed_s < 30:
            raise ResizePendingError(job.devices, "exceeded quota")
        resize(devices)

    monkeypatch.setattr(job, "resize", resize_to_one_at_most)
    job.devices = 1.0
    outcome, exchange = run(job, 40, allocated_devices=1.0)
    kinds = [event["kind"] for event in exchange.state["history"]["events"]]
    assert "resize_pending" in kinds
    assert "engine_unreachable" not in kinds
    assert caplog.text.count("it stays 1 for now. exceeded quota") == 1
    assert outcome.resizes >= 1
    assert job.devices > 1.0


def test_deferred_resize_is_reported_once_and_the_controller_knows_what_is_in_force(make_job, run, caplog):
    job = make_job(core_s=60)
    resize, asked = job.resize, []

    def defer(devices):
        if job.elapsed_s < 25 and devices > 1.0:
            asked.append(devices)
            raise ResizePendingError(job.devices, f"Deferred: no room at {job.elapsed_s}")
        resize(devices)

    job.resize = defer
    outcome, exchange = run(job, 50, Ceiling(1.0, 1), later=[(10, Ceiling(2.0, 2))])
    events = exchange.state["history"]["events"]
    assert [one["kind"] for one in events] == ["ceiling", "resize_pending", "resized"]
    assert len(asked) > 5
    assert asked[-1] > asked[0], "the controller knows that the job is late, and by how much"
    assert "The engine is not responding" not in caplog.text
    assert abs(outcome.error_pct) < 2.0
    assert outcome.resizes == len({devices for _, devices in job.resizes})


def test_device_that_is_lost_without_a_resize_is_reported_and_asked_for_again(make_job, run):
    job = make_job(core_s=100)
    resize = job.resize

    class LosingJob(type(job)):
        """A job that has only one device from 20 to 30 s."""

        def devices_in_force(self):
            if 20 <= self.elapsed_s < 30 and self.devices == 2.0:
                self.devices = 1.0
            return self.devices

    def refuse(devices):
        if devices > 1.0 and 20 <= job.elapsed_s < 30:
            raise ResizePendingError(job.devices, "Device 1 has not joined: no node has room")
        resize(devices)

    job.__class__, job.resize = LosingJob, refuse
    _, exchange = run(job, 50, limits=Limits(1.0, 2.0, 1.0))
    kinds = [one["kind"] for one in exchange.state["history"]["events"]]
    assert kinds.count("resize_pending") == kinds.count("resized") == 1
    lost = [sample["devices"] for sample in exchange.samples if 21 < sample["t_s"] < 29]
    assert set(lost) == {1.0}, "the page shows what the job has"
    assert exchange.samples[-2]["devices"] == 2.0


class FakeTeam:
    """A fake of the team methods that the loop calls."""

    cores = 0.3

    def take_steps(self):
        return []


def test_last_known_devices_are_counted_for_the_time_without_control(make_job):
    team = FakeTeam()
    job = make_job(core_s=60)
    first = JobAllocation(job, None, 1.0, RunTotals(began_s=0.0), team=team)
    first.count_until(0.0)
    first.count_until(10.0)
    stored = first.add_to(RunTotals(began_s=0.0))
    team.cores = 1.0  # the team is scaled when the next process reattaches
    second = JobAllocation(job, None, 1.0, stored, team=team)
    second.count_until(70.0)
    assert second.device_s == pytest.approx(70 * 0.3)
    second.count_until(80.0)
    assert second.device_s == pytest.approx(70 * 0.3 + 10 * 1.0)


def test_only_devices_of_nodes_are_counted_for_a_team(make_job, run):
    outcome, exchange = run(make_job(core_s=60), 60, limits=Limits(1.0, 1.0), team=FakeTeam())
    assert outcome.device_seconds == pytest.approx(0.3 * outcome.finished_s, rel=0.02)
    assert exchange.samples[-2]["devices"] == 1.0


@pytest.mark.parametrize("exit_code", [0, 1])
def test_job_that_has_ended_holds_no_devices(make_job, run, exit_code):
    job = make_job(core_s=60)
    job.actions = [(20.0, lambda: job.kill(exit_code))]
    state = MemoryState()
    with nullcontext() if exit_code == 0 else pytest.raises(TrainingFailedError):
        run(job, 60, state=state)
    history = state["history"]
    *earlier, last = (dict(zip(history["columns"], row, strict=True)) for row in history["samples"])
    assert earlier[-1]["devices"] > 0
    assert last["devices"] == state["pace"]["devices"] == 0
    assert state["pace"]["used_devices"] is None
    assert last["setpoint_pct"] == pytest.approx(earlier[-1]["setpoint_pct"], abs=3.0), "the constant pace goes on"


@pytest.mark.parametrize("uncontrolled_s", [5.0, 100.0])
def test_devices_are_counted_from_the_start_of_the_job_to_its_end(make_job, run, uncontrolled_s):
    job = make_job(core_s=60)
    job.wait(uncontrolled_s)  # after 100 s, the job has ended before control begins
    held = job.devices
    outcome, _ = run(job, 200, job_started_s=0.0, allocated_devices=held, limits=Limits(held, held))
    assert outcome.device_seconds == pytest.approx(held * outcome.finished_s, rel=1e-3)
    assert outcome.mean_devices == pytest.approx(held, rel=1e-3)


def test_devices_counted_after_the_end_of_the_job_are_subtracted():
    allocation = JobAllocation(None, None, 1.0, RunTotals(began_s=0.0, last_step_s=10.0, device_s=10.0, in_use=1.0))
    allocation.ended_s = 9.0
    allocation.count_until(12.0)
    allocation.count_until_end(9.0)
    assert allocation.device_s == 9.0


def test_job_that_ended_without_control_counts_devices_until_its_end(make_job, run):
    job, state = make_job(core_s=60), MemoryState()
    job.actions = [(10, kill_process)]
    with pytest.raises(ProcessKilled):
        run(job, 80, state=state)
    stored = state["controller"]
    held = stored["run"]["allocated_devices"]
    job.wait(300.0)
    job.clock.sleep(600.0)
    outcome, _ = run(job, 80, state=state, allocated_devices=held, resumed=stored)
    assert outcome.mean_devices == pytest.approx(held, rel=0.2)
    assert outcome.device_seconds <= 2.0 * outcome.finished_s
