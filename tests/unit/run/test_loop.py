"""The control loop meets the deadline despite faults. These tests simulate the job and the clock."""

from __future__ import annotations

import math
import re
import threading
from functools import partial

import pytest

from paceline.contract import Ceiling, RunTotals
from paceline.control import DeadlineController, Limits, PastRun
from paceline.errors import (
    DeadlineInfeasibleError,
    JobLostError,
    ResizePendingError,
    RuntimeUnavailableError,
    TaskStoppedError,
    TrainingFailedError,
    UnsuitableCodeError,
)
from paceline.run import Exchange, History, MemoryState
from paceline.run import _live as live
from paceline.run._allocation import JobAllocation
from paceline.run._utilization import JobUtilization
from paceline.run.outcome import WITHOUT_STEPS
from paceline.runtime import Usage


@pytest.mark.parametrize(("core_s", "deadline_s"), [(20, 25), (120, 75), (120, 400), (6_000, 4_000)])
def test_feasible_job_ends_within_one_percent_of_its_deadline(make_job, run, core_s, deadline_s):
    outcome, _ = run(make_job(core_s=core_s, batches=10_000, noise=0.3), deadline_s)
    assert abs(outcome.error_pct) < 1.0


@pytest.mark.parametrize(
    ("core_s", "deadline_s", "at_s", "written", "moved_s"),
    [
        pytest.param(95, 105, 31.5, 84, 84, id="cut to 80 %"),
        pytest.param(100, 80, 30, "160s", 160, id="later: devices are released"),
        pytest.param(100, 100, 10, "2030-03-17T17:49:00Z", 140, id="a time, counted from the origin"),
    ],
)
def test_changed_deadline_is_met(make_job, run, core_s, deadline_s, at_s, written, moved_s):
    state = MemoryState(deadline=str(deadline_s))
    job = make_job(core_s=core_s)
    job.actions = [(at_s, lambda: state.set("deadline", written))]
    outcome, _ = run(job, deadline_s, state=state)
    assert outcome.deadline_s == moved_s
    assert abs(outcome.error_pct) < 1.0


def test_reserve_for_the_time_after_the_last_batch_is_not_logged_without_a_deadline(make_job, run, caplog):
    run(make_job(core_s=20), math.inf)
    assert "After the last batch" not in caplog.text


def test_forecast_of_the_time_after_the_last_batch_is_logged_once_and_published(make_job, run, caplog):
    caplog.set_level("INFO")
    _, exchange = run(make_job(core_s=100), 100)
    assert caplog.text.count("After the last batch: 1.0 s (0.8 to 1.2 s), forecast from the typical time of a job") == 1
    assert exchange.state["pace"]["state"] == "finished"
    assert exchange.state["pace"]["forecast_low_s"] == exchange.state["pace"]["forecast_high_s"]


@pytest.mark.parametrize("invalid", ["soon", -5, 0, "", "1999-01-01T00:00:00Z", {"a": 1}, True, 12, "1e400"])
def test_invalid_live_deadline_is_rejected_and_logged(make_job, run, caplog, invalid):
    state = MemoryState(deadline=100)
    job = make_job(core_s=100)
    job.actions = [(30, lambda: state.set("deadline", invalid))]
    outcome, exchange = run(job, 100, state=state)
    assert outcome.deadline_s == 100
    assert abs(outcome.error_pct) < 1.0
    assert "New deadline rejected, the old deadline of 100.0 s remains" in caplog.text
    assert [event["kind"] for event in exchange.state["history"]["events"]] == ["deadline_refused"]


def test_allocation_stays_below_the_ceiling_until_it_is_removed(make_job, run):
    state = MemoryState(ceiling=0.72)
    job = make_job(core_s=60)
    job.actions = [(40, lambda: state.set("ceiling", None))]
    outcome, _ = run(job, 70, state=state)
    assert max(devices for t_s, devices in job.resizes if t_s < 40) <= 0.7
    assert max(devices for t_s, devices in job.resizes if t_s > 40) > 0.72
    assert abs(outcome.error_pct) < 2.0


@pytest.mark.parametrize("invalid", [0, -1, 0.02, "1", True, [], float("inf")])
def test_invalid_live_ceiling_is_rejected(make_job, run, caplog, invalid):
    state = MemoryState(ceiling=invalid)
    outcome, _ = run(make_job(core_s=60), 70, state=state)
    assert abs(outcome.error_pct) < 1.0
    assert "New ceiling rejected, the old ceiling remains. ceiling: got" in caplog.text


def test_infeasible_deadline_is_reported_and_job_gets_all_devices(make_job, run, caplog):
    job = make_job(core_s=120)
    outcome, exchange = run(job, 40)
    assert not outcome.met
    assert caplog.text.count("cannot be met") == 1
    assert outcome.mean_devices > 1.8
    reported_s = next(e["t_s"] for e in exchange.state["history"]["events"] if e["kind"] == "infeasible")
    assert reported_s < 10


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


def test_infeasible_deadline_fails_the_run_if_configured(make_job, run):
    with pytest.raises(DeadlineInfeasibleError, match=r"deadline: 40\.0 s cannot be met: with all 3000 batches"):
        run(make_job(core_s=120), 40, on_infeasible="fail")


@pytest.mark.parametrize("on_infeasible", ["best_effort", "fail", "extend"])
def test_deadline_is_infeasible_if_the_host_gives_the_job_a_part_of_its_core(make_job, run, caplog, on_infeasible):
    job = make_job(core_s=150)
    job.actions = [(100, lambda: setattr(job, "gets", 0.24))]
    said = "because the job uses 0.2[345] of its 1.00 cores: its host is busy, or its script waits"
    if on_infeasible == "fail":
        with pytest.raises(DeadlineInfeasibleError, match=said):
            run(job, 250, limits=Limits(0.1, 1.0), on_infeasible=on_infeasible)
    else:
        outcome, exchange = run(job, 250, limits=Limits(0.1, 1.0), on_infeasible=on_infeasible)
        assert re.search(said, caplog.text)
        first_s = next(sample["t_s"] for sample in exchange.samples if not sample["feasible"])
        assert first_s < 170
        assert outcome.met == (on_infeasible == "extend")


def test_processes_of_a_data_parallel_job_are_not_its_share_of_the_gpus(make_job, run):
    job = make_job(core_s=60)
    job.processes = 2  # one for each GPU, whatever the share
    outcome, _ = run(job, 100.0, limits=Limits(0.1, 2.0, shares_gpus=True))
    assert abs(outcome.error_pct) < 1
    assert outcome.mean_devices < 1


@pytest.mark.parametrize("deadline_s", [100.0, 250.0])
def test_job_with_a_share_of_a_gpu_meets_its_deadline_with_little_cpu_time(make_job, run, deadline_s):
    job = make_job(core_s=60)
    job.reports_gpu_time = True
    job.usage = lambda: Usage(0.02 * job.elapsed_s, 0, job.elapsed_s)
    outcome, exchange = run(job, deadline_s, limits=Limits(0.1, 1.0, shares_gpus=True))
    assert abs(outcome.error_pct) < 1
    middle = exchange.samples[len(exchange.samples) // 2]
    assert middle["shares_gpus"]
    assert middle["used_devices"] == pytest.approx(middle["devices"], abs=0.05)


def test_job_with_slow_batches_uses_its_share_of_a_gpu(make_job, run, monkeypatch):
    job = make_job(core_s=60, batches=50)
    job.reports_gpu_time, job.reports_every_s = True, 3.4
    utilizations = []
    step = DeadlineController.step

    def record(controller, observation):
        utilizations.append(observation.busy)
        return step(controller, observation)

    monkeypatch.setattr(DeadlineController, "step", record)
    run(job, 200.0, limits=Limits(0.1, 0.9, shares_gpus=True))
    measured = [busy for busy in utilizations if busy is not None]
    assert len(measured) > 100
    assert min(measured) > 0.95


def test_deadline_is_infeasible_if_the_job_cannot_use_its_share_of_a_gpu(make_job, run):
    job = make_job(core_s=60)
    job.reports_gpu_time, job.gets = True, 0.24
    said = "because the job uses 0.24 of its 0.95 GPUs: its host is busy, or its script waits"
    with pytest.raises(DeadlineInfeasibleError, match=said):
        run(job, 100.0, limits=Limits(0.1, 0.95, shares_gpus=True), on_infeasible="fail")


def test_infeasible_deadline_is_extended_if_configured(make_job, run):
    outcome, exchange = run(make_job(core_s=120), 40, on_infeasible="extend")
    assert exchange.state["deadline"] == outcome.deadline_s
    assert outcome.deadline_s == pytest.approx(66, rel=0.1)
    assert abs(outcome.error_pct) < 2.0
    infeasible = [sample for sample in exchange.samples if not sample["feasible"]]
    assert infeasible
    assert all(sample["earliest_s"] > sample["deadline_s"] for sample in infeasible), "infeasible, but not late"


@pytest.mark.parametrize("on_infeasible", ["best_effort", "fail", "extend"])
def test_job_that_may_end_early_is_not_infeasible_before_its_deadline(make_job, run, caplog, on_infeasible):
    """All batches would take three times the time, but a metric ends training after a quarter of them."""
    job = make_job(core_s=200, batches=2000)
    job.ends_at = 500
    outcome, exchange = run(job, 40, on_infeasible=on_infeasible)
    assert (outcome.met, outcome.deadline_s) == (True, 40)
    assert "cannot be met" not in caplog.text
    assert caplog.text.count("If training takes all 2000 batches") == 1
    assert all(sample["feasible"] for sample in exchange.samples)
    assert max(sample["devices"] for sample in exchange.samples) == 2.0
    assert [event["kind"] for event in exchange.state["history"]["events"]] == ["total"]


def test_job_that_may_end_early_fails_once_its_deadline_has_passed(make_job, run):
    job = make_job(core_s=200, batches=2000)
    job.ends_at = 1900
    with pytest.raises(DeadlineInfeasibleError, match=r"40\.0 s cannot be met: with all 2000 batches"):
        run(job, 40, on_infeasible="fail")
    assert job.elapsed_s > 40


def test_next_process_knows_that_a_job_may_end_early(make_job, run):
    """A batch may take longer than three control steps, so no new line has arrived before the decision."""
    job = make_job(core_s=200, batches=2000)
    job.ends_at = 500
    job.actions = [(10, kill_process)]
    state = MemoryState()
    with pytest.raises(ProcessKilled):
        run(job, 40, state=state)
    assert RunTotals.read(state["controller"]["run"]).reported.may_end_early


def test_engine_outage_does_not_delay_the_job(make_job, run, caplog):
    job = make_job(core_s=80)
    job.outage_between = (30, 50)
    outcome, _ = run(job, 110)
    assert abs(outcome.error_pct) < 1.0
    assert caplog.text.count("The engine is not responding") == 1
    assert "The engine is responding again after" in caplog.text


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
    assert exchange.samples[-1]["devices"] == 2.0


@pytest.mark.parametrize(("away_from_s", "killed_s"), [(30, 31), (31.5, 30.2)], ids=["during outage", "before outage"])
def test_job_stopped_by_an_engine_outage_is_restarted(make_job, run, caplog, away_from_s, killed_s):
    job = make_job(core_s=60)
    job.outage_between = (away_from_s, 40)
    job.actions = [(killed_s, lambda: job.kill(exit_code=143))]
    outcome, _ = run(job, 110)
    assert job.restarted == outcome.restarts == 1
    assert abs(outcome.error_pct) < 1.5
    assert "Training resumes at" in caplog.text


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


@pytest.mark.parametrize(
    ("fault", "error", "message"),
    [("kill", TrainingFailedError, "exit code 137"), ("remove_from_engine", JobLostError, "was removed while it ran")],
)
def test_killed_or_removed_job_fails_the_run_without_a_restart(make_job, run, fault, error, message):
    job = make_job(core_s=60)
    job.actions = [(20, getattr(job, fault))]
    with pytest.raises(error, match=message):
        run(job, 90)
    assert job.restarted == 0


@pytest.mark.parametrize(("error_s", "set_to_s"), [(30.0, 30.0), (-30.0, -30.0), (0.0, -3600.0), (0.0, 3600.0)])
def test_wrong_or_changing_engine_clock_does_not_affect_control(make_job, run, error_s, set_to_s):
    expected, _ = run(make_job(core_s=60), 80)
    job = make_job(core_s=60)
    job.clock_error_s = error_s
    job.actions = [(30.1, lambda: setattr(job, "clock_error_s", set_to_s))]
    outcome, exchange = run(job, 80 + expected.finished_s)
    began_s = exchange.samples[0]["t_s"]
    assert outcome.met
    assert outcome.finished_s - began_s > 60
    assert outcome.mean_devices == pytest.approx(outcome.device_seconds / (outcome.finished_s - began_s), rel=0.01)
    assert outcome.learned["tail_s"] == pytest.approx(expected.learned["tail_s"], abs=0.3)


@pytest.mark.parametrize("set_to_s", [-3600.0, 3600.0])
def test_engine_clock_set_after_the_last_line_does_not_change_the_end_time(make_job, run, set_to_s):
    expected, exchange = run(make_job(core_s=60), 80)
    tail_s, took_s = expected.learned["tail_s"], expected.finished_s - exchange.samples[0]["t_s"]
    job = make_job(core_s=60)
    job.actions = [(took_s - tail_s / 2, lambda: setattr(job, "clock_error_s", set_to_s))]
    outcome, exchange = run(job, 80 + expected.finished_s)
    assert outcome.finished_s - exchange.samples[0]["t_s"] == pytest.approx(took_s, abs=2.0)
    assert outcome.mean_devices == pytest.approx(expected.mean_devices, rel=0.1)


def test_script_that_reports_no_progress_before_its_deadline_fails_on_request(make_job, run):
    with pytest.raises(DeadlineInfeasibleError, match=r"deadline: 90.0 s has passed, .* no batch in 9\d s: it"):
        run(make_job(core_s=60, start_up_s=1000), 90, on_infeasible="fail")


@pytest.mark.parametrize(("startup_s", "waited_s"), [(5.0, 61.0), (100.0, 201.0)])
def test_start_up_may_take_longer_than_the_deadline_if_earlier_ones_did(make_job, run, startup_s, waited_s):
    past = PastRun(270, startup_s, 0.5, 1.0, 9.0, 0.9, 0.0)
    with pytest.raises(DeadlineInfeasibleError, match=rf"no batch in {waited_s:.0f} s"):
        run(make_job(core_s=60, start_up_s=1000), 20, on_infeasible="fail", past=past)


@pytest.mark.parametrize(("deadline_s", "met"), [(300, True), (90, False)])
def test_job_without_steps_ends_well(make_job, run, caplog, deadline_s, met):
    """A single call of `fit` has no steps: exit code 0 is a result, also after the deadline."""
    job = make_job(core_s=60, start_up_s=1000)
    job.actions = [(200, lambda: job.kill(exit_code=0))]
    outcome, exchange = run(job, deadline_s)
    assert (outcome.met, outcome.learned, outcome.loss, outcome.metrics) == (met, None, None, {})
    assert exchange.samples[-1]["state"] == "finished"
    assert exchange.samples[-1]["progress_pct"] == 100.0
    seen = ("reported no batch", "reported no progress")
    messages = [record.message for record in caplog.records if any(text in record.message for text in seen)]
    assert messages[-1:] == [WITHOUT_STEPS]
    assert len(messages) == (1 if met else 2)  # once after the deadline, once at the end


def test_job_that_needs_progress_fails_without_steps(make_job, run):
    """A worker of a fleet that has not joined the training does not have its model."""
    job = make_job(core_s=60, start_up_s=1000)
    job.actions = [(5, lambda: job.kill(exit_code=0))]
    with pytest.raises(TrainingFailedError, match="script: reported no progress at all, expected a loop over"):
        run(job, 300, needs_progress=True)


MISSING = "ModuleNotFoundError: No module named 'layers.dense'"


@pytest.mark.parametrize(
    ("lines", "exit_code", "advice"),
    [
        ([MISSING], 1, "module layers is not in the job. If it is your own, add files={'layers.py': 'layers.py'}"),
        (["ImportError: cannot import name 'dense' from 'layers' (layers.py)"], 1, "the code cannot be loaded"),
        (["    for batch in", "IndentationError: unexpected indent"], 1, "the code cannot be loaded"),
        (["FileNotFoundError: [Errno 2] No such file or directory: 'rows.csv'"], 1, "the file is not in the job"),
        (["python: can't open file '/job/trian.py': [Errno 2] No such file or directory"], 2, "the file is not in the"),
        (["usage: train.py [-h]", "train.py: error: unrecognized arguments: --epoch"], 2, "rejects its arguments"),
        ([MISSING, "worker 3 has ended"], 1, None),
        (["train.py: error: the database is down"], 1, None),
        (["RuntimeError: CUDA error: FileNotFoundError"], 1, None),
        # These may be faults of a machine or a mount, or not the reason.
        (["ImportError: libcuda.so.1: cannot open shared object file: No such file or directory"], 1, None),
        (["FileNotFoundError: [Errno 2] No such file or directory: '/mnt/rows.csv'"], 1, None),
        (["FileNotFoundError: the hub does not respond"], 1, None),
        ([MISSING], 137, None),
    ],
)
def test_script_that_would_end_in_the_same_way_is_not_tried_again(make_job, run, lines, exit_code, advice):
    job = make_job(core_s=60, start_up_s=1000)
    job.actions = [(20, lambda: (job.append_lines(*lines), job.kill(exit_code=exit_code)))]
    with pytest.raises(TrainingFailedError, match=f"ended with exit code {exit_code}") as raised:
        run(job, 300)
    assert isinstance(raised.value, UnsuitableCodeError) is (advice is not None)
    assert advice is None or (f"No further try follows: {advice}" in str(raised.value) or advice in str(raised.value))


def test_script_that_ends_after_minutes_is_tried_again(make_job, run):
    job = make_job(core_s=60, start_up_s=1000)
    job.actions = [(200, lambda: (job.append_lines(MISSING), job.kill(exit_code=1)))]
    with pytest.raises(TrainingFailedError) as raised:
        run(job, 300)
    assert not isinstance(raised.value, UnsuitableCodeError)


def test_script_that_has_trained_is_tried_again_in_any_case(make_job, run):
    job = make_job(core_s=60, start_up_s=1)
    job.actions = [(20, lambda: (job.append_lines(MISSING), job.kill(exit_code=1)))]
    with pytest.raises(TrainingFailedError) as raised:
        run(job, 300)
    assert type(raised.value) is TrainingFailedError, "another try resumes from the checkpoint"


def test_failed_job_without_steps_fails(make_job, run):
    job = make_job(core_s=60, start_up_s=1000)
    job.actions = [(5, lambda: job.kill(exit_code=1))]
    with pytest.raises(TrainingFailedError, match="ended with exit code 1"):
        run(job, 90)


def test_error_for_zero_batches_explains_the_cause(make_job, run):
    job = make_job(core_s=60, start_up_s=1000)
    job.append_lines('@paceline {"done": 0, "total": 0}')
    job.actions = [(5, lambda: job.kill(exit_code=0))]
    with pytest.raises(TrainingFailedError, match="total: got 0, expected a whole number of at least 1"):
        run(job, 90)


def test_large_output_is_logged_completely_and_unchanged(make_job, run, caplog):
    job, lines = make_job(core_s=30), [f"line {number}" for number in range(5_000)]
    job.append_lines(*lines)
    run(job, 60)
    assert [record.message for record in caplog.records if record.message.startswith("line ")] == lines


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
    assert exchange.state["controller"]["run"]["allocated_devices"] == 1.0


class ProcessKilled(Exception):
    """Raised to end the control loop, as if the controlling process were killed."""


def kill_process():
    raise ProcessKilled


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


@pytest.mark.parametrize("uncontrolled_s", [5.0, 100.0])
def test_devices_are_counted_from_the_start_of_the_job_to_its_end(make_job, run, uncontrolled_s):
    job = make_job(core_s=60)
    job.wait(uncontrolled_s)  # after 100 s, the job has ended before control begins
    held = job.devices
    outcome, _ = run(job, 200, job_started_s=0.0, allocated_devices=held, limits=Limits(held, held))
    assert outcome.device_seconds == pytest.approx(held * outcome.finished_s, rel=1e-3)
    assert outcome.mean_devices == pytest.approx(held, rel=1e-3)


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


def test_devices_counted_after_the_end_of_the_job_are_subtracted():
    allocation = JobAllocation(None, None, 1.0, RunTotals(began_s=0.0, last_step_s=10.0, device_s=10.0, in_use=1.0))
    allocation.ended_s = 9.0
    allocation.count_until(12.0)
    allocation.count_until_end(9.0)
    assert allocation.device_s == 9.0


def test_stop_request_takes_precedence_over_the_end_of_the_stopped_job(make_job, run):
    job, requests = make_job(core_s=60), []
    job.actions = [(10.3, lambda: (requests.append(True), job.kill(0)))]
    with pytest.raises(TaskStoppedError):
        run(job, 80, stopped=lambda: bool(requests))


def test_values_posted_during_a_write_are_written_on_close():
    class SlowState(MemoryState):
        def set(self, key, value):
            entered.set()
            assert proceed.wait(10)
            super().set(key, value)

    entered, proceed = threading.Event(), threading.Event()
    state = SlowState()
    exchange = Exchange(state)
    exchange.post({"pace": "training"})
    assert entered.wait(10)
    exchange.post({"pace": "finished"})
    closing = threading.Thread(target=exchange.close)
    closing.start()
    assert exchange._closed.wait(10)
    proceed.set()
    closing.join()
    assert state.get("pace") == "finished"


def test_writing_the_last_values_is_retried_after_a_failure(monkeypatch):
    monkeypatch.setattr(live, "_FINAL_RETRY_S", (0.0, 0.0, 0.0))

    class StateThatFailsTwice(MemoryState):
        left = 2

        def set(self, key, value):
            if value == "finished" and self.left:
                self.left -= 1
                raise OSError("the API server does not answer")
            super().set(key, value)

    state = StateThatFailsTwice()
    exchange = Exchange(state)
    exchange.post({"pace": "finished"})
    exchange.close()
    assert state.get("pace") == "finished"


def test_exchange_limits_the_rate_of_its_requests():
    state = MemoryState()
    exchange = Exchange(state, every_s=3600)
    exchange.post({"pace": 1})
    while "deadline" not in exchange.newest():
        pass
    exchange.post({"pace": 2})
    exchange.post({"pace": 3})
    assert state.get("pace") == 1
    exchange.close()  # close() does not wait for ``every_s``
    assert state.get("pace") == 3


@pytest.mark.parametrize(
    ("error", "disconnected"),
    [
        (OSError("the API server does not answer"), False),
        (EOFError("Request socket closed"), True),
        (BrokenPipeError(), True),
    ],
)
def test_store_failure_is_logged_once_and_closed_connection_is_detected(error, disconnected):
    class BrokenState(MemoryState):
        def set(self, key, value):
            raise error

    reported = []
    exchange = Exchange(BrokenState(), on_failure=reported.append)
    assert not exchange.disconnected
    exchange.post({"pace": 1})
    exchange.post({"pace": 2})
    exchange.close()
    assert exchange.disconnected == disconnected
    assert reported == ([] if disconnected else [error]), "the log uses the same closed connection"


def test_only_large_changes_of_the_total_are_recorded_as_events(make_job, run):
    job, history = make_job(core_s=60), History()
    job.actions = [(10 + step, lambda step=step: setattr(job, "batches", 3000 + 10 * step)) for step in range(5)]
    job.actions.append((40, lambda: setattr(job, "batches", 2500)))
    run(job, 80, history=history)
    totals = [event for event in history.to_json()["events"] if event["kind"] == "total"]
    assert [event["t_s"] for event in totals] == pytest.approx([40], abs=2)


def test_total_of_a_parameter_server_counts_samples(make_job, run, caplog):
    job, slow = make_job(core_s=60), make_job(core_s=120)
    job.unit = slow.unit = "samples"
    job.actions = [(10, lambda: setattr(job, "batches", 2500))]
    run(job, 80)
    assert "The job now has 2500 samples in total" in caplog.text
    with pytest.raises(DeadlineInfeasibleError, match="with all 3000 samples, the earliest"):
        run(slow, 40, on_infeasible="fail")


def test_invalid_sample_does_not_end_the_job(make_job, run, caplog, monkeypatch):
    monkeypatch.setattr(JobUtilization, "add", lambda busy, usage, device_s: setattr(busy, "devices", float("nan")))
    outcome, exchange = run(make_job(core_s=60), 80)
    assert abs(outcome.error_pct) < 1.0
    assert exchange.samples == []
    assert caplog.text.count("cannot be stored") == 1, "logged once, not every second"


def test_start_up_after_an_engine_outage_has_the_devices_of_a_first_start(make_job, run):
    job = make_job(core_s=20)
    job.loads_after_restart = True
    job.actions = [(30, lambda: job.kill(143)), (60, job.finish_loading)]
    job.outage_between = (31, 40)
    _, exchange = run(job, 200)
    assert job.restarted == 1
    assert max(sample["devices"] for sample in exchange.samples if 20 < sample["t_s"] < 30) < 0.4
    assert {sample["devices"] for sample in exchange.samples if 43 < sample["t_s"] < 60} == {1.0}
