"""The control loop of a job whose process is killed or asked to stop, and what it does not fail on."""

from __future__ import annotations

import pytest
from tests.unit.run.conftest import ProcessKilled, kill_process

from paceline.contract import RunTotals
from paceline.control import Limits
from paceline.errors import TaskStoppedError
from paceline.run import History, MemoryState
from paceline.run._utilization import JobUtilization


def test_next_try_resizes_the_job_to_the_stored_allocation_again(make_job, run):
    job, state, limits = make_job(core_s=60), MemoryState(), Limits(1.0, 1.0)
    job.actions = [(10, kill_process)]
    with pytest.raises(ProcessKilled):
        run(job, 60, state=state, limits=limits)
    job.devices = 0.1
    job.actions = [(job.elapsed_s + 5, kill_process)]
    stored = state["controller"]
    held = stored["run"]["allocated_devices"]
    with pytest.raises(ProcessKilled):
        run(job, 60, state=state, limits=limits, allocated_devices=held, resumed=stored)
    assert [devices for _, devices in job.resizes] == [1.0]


def test_next_process_continues_control_without_a_jump_in_the_allocation(make_job, run):
    job = make_job(core_s=95)
    state = MemoryState()
    job.actions = [(40, kill_process)]
    with pytest.raises(ProcessKilled):
        run(job, 110, state=state)
    held, before = job.devices, len(job.resizes)
    job.wait(8)  # meanwhile, no process controls the job
    earlier = {"history": History(state["history"]), "resumed": state["controller"]}
    outcome, exchange = run(job, 110, state=state, allocated_devices=held, **earlier)
    assert abs(outcome.error_pct) < 1.0
    assert abs(job.resizes[before][1] - held) <= 0.3
    assert exchange.state["history"]["samples"][0][0] < 1
    assert outcome.device_seconds == pytest.approx(outcome.mean_devices * outcome.finished_s, rel=0.01)


def test_next_process_knows_that_a_job_may_end_early(make_job, run):
    """A batch may take longer than three control steps, so no new line has arrived before the decision."""
    job = make_job(core_s=200, batches=2000)
    job.ends_at = 500
    job.actions = [(10, kill_process)]
    state = MemoryState()
    with pytest.raises(ProcessKilled):
        run(job, 40, state=state)
    assert RunTotals.read(state["controller"]["run"]).reported.may_end_early


def test_stop_request_takes_precedence_over_the_end_of_the_stopped_job(make_job, run):
    job, requests = make_job(core_s=60), []
    job.actions = [(10.3, lambda: (requests.append(True), job.kill(0)))]
    with pytest.raises(TaskStoppedError):
        run(job, 80, stopped=lambda: bool(requests))


def test_large_output_is_logged_completely_and_unchanged(make_job, run, caplog):
    job, lines = make_job(core_s=30), [f"line {number}" for number in range(5_000)]
    job.append_lines(*lines)
    run(job, 60)
    assert [record.message for record in caplog.records if record.message.startswith("line ")] == lines


def test_invalid_sample_does_not_end_the_job(make_job, run, caplog, monkeypatch):
    monkeypatch.setattr(JobUtilization, "add", lambda busy, usage, device_s: setattr(busy, "devices", float("nan")))
    outcome, exchange = run(make_job(core_s=60), 80)
    assert abs(outcome.error_pct) < 1.0
    assert [sample["state"] for sample in exchange.samples] == ["finished"], "it needs no measured use"
    assert caplog.text.count("cannot be stored") == 1, "logged once, not every second"
