"""Which jobs are restarted after outages of the engine, lost devices and ended leases, and how often."""

from __future__ import annotations

from functools import partial

import pytest
from tests.unit.run.conftest import ProcessKilled, kill_process

from paceline.errors import RuntimeUnavailableError, TrainingFailedError
from paceline.run import MemoryState
from paceline.runtime import Usage


def test_engine_outage_does_not_delay_the_job(make_job, run, caplog):
    job = make_job(core_s=80)
    job.outage_between = (30, 50)
    outcome, _ = run(job, 110)
    assert abs(outcome.error_pct) < 1.0
    assert caplog.text.count("The engine is not responding") == 1
    assert "The engine is responding again after" in caplog.text


@pytest.mark.parametrize(("away_from_s", "killed_s"), [(30, 31), (31.5, 30.2)], ids=["during outage", "before outage"])
def test_job_stopped_by_an_engine_outage_is_restarted(make_job, run, caplog, away_from_s, killed_s):
    job = make_job(core_s=60)
    job.outage_between = (away_from_s, 40)
    job.actions = [(killed_s, lambda: job.kill(exit_code=143))]
    outcome, _ = run(job, 110)
    assert job.restarted == outcome.restarts == 1
    assert abs(outcome.error_pct) < 1.5
    assert "Training resumes at" in caplog.text


def test_restart_without_a_checkpoint_is_not_called_a_resumption(make_job, run, caplog):
    job = make_job(core_s=20)
    job.saved_share = 0.0
    job.outage_between = (10, 14)
    job.actions = [(11, lambda: job.kill(exit_code=143))]
    run(job, 110)
    assert "Training starts from the beginning: there was no checkpoint" in caplog.text
    assert "Training resumes" not in caplog.text


@pytest.mark.parametrize("exit_code", [0, 143])
def test_job_whose_lease_ended_is_restarted(make_job, run, exit_code):
    """The worker may have been cut off from the engine, without which it can renew no lease."""
    job = make_job(core_s=20)

    def end_lease() -> None:
        job.stopped += 1
        job.kill(exit_code)

    job.actions = [(8.0, end_lease)]
    outcome, exchange = run(job, 60)
    assert (outcome.restarts, job.restarted) == (1, 1)
    assert exchange.samples[-1]["progress_pct"] == 100.0


def stop_again(job):
    job.stopped += 1
    job.kill(0)


def test_job_stopped_again_and_again_resumes_as_long_as_it_makes_progress(make_job, run):
    job = make_job(core_s=60)
    job.actions = [(10.0 * number, partial(stop_again, job)) for number in range(1, 6)]
    outcome, _ = run(job, 150)
    assert job.restarted == outcome.restarts == 5


def test_job_stopped_again_and_again_without_progress_fails_the_run(make_job, run):
    job = make_job(core_s=200)
    job.loads_after_restart = True
    job.actions = [(5.0 * number, partial(stop_again, job)) for number in range(1, 9)]
    with pytest.raises(TrainingFailedError, match="the job was stopped, because its lease ended or another process"):
        run(job, 600)


def test_restarts_without_progress_are_counted_across_processes(make_job, run):
    job, state = make_job(core_s=200), MemoryState()
    job.loads_after_restart = True
    stops = [(5.0 * number, partial(stop_again, job)) for number in range(1, 9)]
    job.actions = [*stops[:2], (12.0, kill_process), *stops[2:]]
    with pytest.raises(ProcessKilled):
        run(job, 600, state=state)
    stored = state["controller"]
    with pytest.raises(TrainingFailedError, match="the job was stopped"):
        run(job, 600, state=state, allocated_devices=stored["run"]["allocated_devices"], resumed=stored)
    assert job.restarted == 3


def lose_device(job):
    job.device_lost = True
    job.kill(189)


def test_job_that_loses_devices_resumes_as_long_as_it_makes_progress(make_job, run, caplog):
    job = make_job(core_s=60)
    job.actions = [(10.0 * number, partial(lose_device, job)) for number in range(1, 6)]
    outcome, _ = run(job, 150)
    assert job.restarted == outcome.restarts == 5
    assert outcome.learned is None
    assert caplog.text.count("The job lost a device during a batch (exit code 189): restarting it") == 5


def test_job_that_loses_devices_without_progress_fails_the_run(make_job, run):
    job = make_job(core_s=200)
    job.loads_after_restart = True
    job.actions = [(5.0 * number, partial(lose_device, job)) for number in range(1, 9)]
    with pytest.raises(TrainingFailedError, match="exit code 189"):
        run(job, 600)
    assert job.restarted == 3


def test_next_process_restarts_a_job_that_lost_a_device_while_no_process_controlled_it(make_job, run):
    job, state = make_job(core_s=40), MemoryState()
    job.actions = [(10, kill_process)]
    with pytest.raises(ProcessKilled):
        run(job, 80, state=state)
    lose_device(job)
    job.clock.sleep(20.0)
    stored = state["controller"]
    held = stored["run"]["allocated_devices"]
    outcome, exchange = run(job, 80, state=state, allocated_devices=held, resumed=stored)
    assert (outcome.restarts, job.restarted) == (1, 1)
    assert exchange.samples[-1]["progress_pct"] == 100.0


def test_job_killed_after_surviving_an_outage_is_not_restarted(make_job, run, monkeypatch):
    job = make_job(core_s=60)
    monkeypatch.setattr(job, "usage", lambda: Usage(0.0, 0, measured_s=job.elapsed_s))
    job.outage_between = (20, 21.5)
    job.actions = [(40, job.kill)]
    with pytest.raises(TrainingFailedError, match="exit code 137"):
        run(job, 110)
    assert job.restarted == 0


def test_restart_is_retried_until_the_engine_starts_jobs(make_job, run, monkeypatch):
    job = make_job(core_s=20)
    job.outage_between = (6.0, 9.0)
    job.actions = [(6.5, job.kill)]
    restart, failures = job.restart, [RuntimeUnavailableError("the engine is still starting")]

    def restart_after_two_failures() -> None:
        if failures:
            raise failures.pop()
        restart()

    monkeypatch.setattr(job, "restart", restart_after_two_failures)
    outcome, _ = run(job, 60)
    assert outcome.restarts == job.restarted == 1


def test_start_up_after_an_engine_outage_has_the_devices_of_a_first_start(make_job, run):
    job = make_job(core_s=20)
    job.loads_after_restart = True
    job.actions = [(30, lambda: job.kill(143)), (60, job.finish_loading)]
    job.outage_between = (31, 40)
    _, exchange = run(job, 200)
    assert job.restarted == 1
    assert max(sample["devices"] for sample in exchange.samples if 20 < sample["t_s"] < 30) < 0.4
    assert {sample["devices"] for sample in exchange.samples if 43 < sample["t_s"] < 60} == {1.0}
