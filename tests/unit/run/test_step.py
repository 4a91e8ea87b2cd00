"""What control steps do about deadlines and ceilings, those that cannot be met, and shares of a GPU."""

from __future__ import annotations

import math
import re

import pytest

from paceline.control import DeadlineController, Limits, PastRun
from paceline.errors import DeadlineInfeasibleError
from paceline.run import History, MemoryState
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


def test_script_that_reports_no_progress_before_its_deadline_fails_on_request(make_job, run):
    with pytest.raises(DeadlineInfeasibleError, match=r"deadline: 90.0 s has passed, .* no batch in 9\d s: it"):
        run(make_job(core_s=60, start_up_s=1000), 90, on_infeasible="fail")


@pytest.mark.parametrize(("startup_s", "waited_s"), [(5.0, 61.0), (100.0, 201.0)])
def test_start_up_may_take_longer_than_the_deadline_if_earlier_ones_did(make_job, run, startup_s, waited_s):
    past = PastRun(270, startup_s, 0.5, 1.0, 9.0, 0.9, 0.0)
    with pytest.raises(DeadlineInfeasibleError, match=rf"no batch in {waited_s:.0f} s"):
        run(make_job(core_s=60, start_up_s=1000), 20, on_infeasible="fail", past=past)


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
