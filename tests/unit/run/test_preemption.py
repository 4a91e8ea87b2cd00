"""A job that shares devices is preempted and resumed, and never uses more devices than granted."""

from __future__ import annotations

import pytest

from paceline.contract import Ceiling, Reason
from paceline.errors import RuntimeUnavailableError, TrainingFailedError
from paceline.run import MemoryState
from paceline.runtime.checks import check_devices


@pytest.mark.parametrize("exit_code", [143, 0], ids=["SIGTERM", "code that handles SIGTERM"])
def test_job_is_preempted_when_it_loses_all_devices_and_resumed_by_a_grant(make_job, run, exit_code):
    job = make_job(core_s=40)
    kill = job.kill
    job.kill = lambda code: kill(exit_code)
    preempts = Ceiling(0.0, 2, reason=Reason("can_wait", "others are late"))
    outcome, exchange = run(job, 120, Ceiling(1.0, 1), later=[(20, preempts), (50, Ceiling(1.5, 3))])
    assert (job.stopped, job.restarted) == (1, 1)
    preempted = [sample for sample in exchange.samples if sample["state"] == "preempted"]
    assert {(sample["devices"], sample["ceiling"], sample["grant"]) for sample in preempted} == {(0.0, 0.0, 2)}
    assert 28 <= preempted[-1]["t_s"] - preempted[0]["t_s"] <= 31
    assert abs(outcome.error_pct) < 1.0
    events = exchange.state["history"]["events"]
    assert [event["kind"] for event in events] == ["ceiling", "preempted", "ceiling", "resuming", "resumed"]
    assert (events[0]["reason"], events[0]["why"]) == ("can_wait", "others are late")
    assert outcome.learned is None, "an interrupted run has no measurements for the next run"


def test_sample_contains_a_grant_and_its_devices_never_exceed_the_grant(make_job, run):
    later = [(10 * n, Ceiling(0.3 + 0.2 * (n % 3), n + 1)) for n in range(1, 12)]
    _, exchange = run(make_job(core_s=60), 100, Ceiling(0.5, 1), later=later)
    granted = {1: 0.5} | {ceiling.grant: ceiling.devices for _, ceiling in later}
    assert {sample["grant"] for sample in exchange.samples} >= {1, 2, 5}
    for sample in exchange.samples:
        assert sample["devices"] <= granted[sample["grant"]] + 1e-9


def test_shared_job_keeps_its_ceiling_if_the_stored_ceiling_is_deleted(make_job, run):
    job = make_job(core_s=30)
    state = MemoryState()
    job.actions = [(10, lambda: state.delete("ceiling"))]
    outcome, exchange = run(job, 40, Ceiling(0.4, 1), state=state)
    assert exchange.state.get("ceiling") is None
    assert {sample["ceiling"] for sample in exchange.samples} == {0.4}
    assert max(sample["devices"] for sample in exchange.samples) <= 0.4
    assert not outcome.met


def test_job_that_ends_during_its_preemption_is_finished(make_job, run):
    job = make_job(core_s=20)

    def finish_on_stop(grace_s: float = 5.0) -> None:
        job._finished_s, job._exit_code = job.clock.now(), 0
        job._done = job.batches
        job._report("finish")

    job.stop = finish_on_stop
    outcome, exchange = run(job, 60, Ceiling(1.0, 1), later=[(10, Ceiling(0.0, 2))])
    assert outcome.finished_s < 12
    assert "preempted" not in {sample["state"] for sample in exchange.samples}


def test_preemption_is_retried_after_an_engine_outage(make_job, run):
    job = make_job(core_s=40)
    job.outage_between = (19.0, 31.0)
    outcome, exchange = run(job, 150, Ceiling(1.0, 1), later=[(20, Ceiling(0.0, 2)), (60, Ceiling(1.5, 3))])
    preempted = [sample["t_s"] for sample in exchange.samples if sample["state"] == "preempted"]
    assert 31 <= preempted[0] <= 34
    assert abs(outcome.error_pct) < 1.0


def test_job_started_after_its_deadline_gets_time_to_start(make_job, run):
    job = make_job(core_s=5, start_up_s=8.0)
    outcome, _ = run(job, 2.0, Ceiling(2.0, 1))
    assert outcome.finished_s > 2.0
    assert not outcome.met


def lose_responses(job, method, when):
    """Let the engine execute calls of ``method``, but lose the responses while ``when`` returns true."""
    original = getattr(job, method)

    def call_without_response(*arguments):
        original(*arguments)
        if when():
            raise RuntimeUnavailableError("no answer in time")

    setattr(job, method, call_without_response)


def test_resize_without_a_response_counts_until_the_engine_responds(make_job, run):
    job = make_job(core_s=100)
    lose_responses(job, "resize", lambda: 20 <= job.elapsed_s < 24)
    _, exchange = run(
        job, 90, Ceiling(0.5, 1), later=[(20, Ceiling(1.5, 2)), (22, Ceiling(0.5, 3)), (40, Ceiling(2.0, 4))]
    )
    lost = [devices for t_s, devices in job.resizes if 20 <= t_s < 24]
    assert max(lost) > 0.5
    for sample in exchange.samples:
        if 21 <= sample["t_s"] < 24:
            assert sample["devices"] >= max(lost), "the upper bound"
        if 25 <= sample["t_s"] < 40:
            assert sample["devices"] <= 0.5
    between = [devices for t_s, devices in job.resizes if 24 <= t_s < 40]
    assert between, "the resize is repeated, although the target equals the earlier allocation"
    assert max(between) <= 0.5


def test_job_whose_restart_is_unconfirmed_is_stopped_at_the_next_preemption(make_job, run):
    job = make_job(core_s=40)
    lose_responses(job, "restart", lambda: job.restarted == 1)
    later = [(20, Ceiling(0.0, 2)), (30, Ceiling(1.0, 3)), (30.5, Ceiling(0.0, 4)), (60, Ceiling(1.5, 5))]
    outcome, exchange = run(job, 150, Ceiling(1.0, 1), later=later)
    unconfirmed = [sample for sample in exchange.samples if sample["state"] == "preempted" and sample["devices"] > 0]
    assert [sample["devices"] for sample in unconfirmed] == [1.0]
    assert job.stopped == 2
    assert abs(outcome.error_pct) < 1.0


def test_process_that_takes_over_a_shared_job_repeats_the_resize(make_job, run):
    job = make_job(core_s=40)
    _, exchange = run(job, 100, Ceiling(0.5, 3, max_devices=1.5))
    assert job.resizes[0][0] == 0.0
    assert exchange.samples[0]["devices"] <= 0.5


def test_restarted_job_without_a_report_fails(make_job, run):
    job = make_job(core_s=40)
    job.restart = lambda: setattr(job, "_finished_s", None) or setattr(job, "batches", 0)  # the job hangs
    with pytest.raises(TrainingFailedError, match="since its restart"):
        run(job, 60, Ceiling(1.0, 1), later=[(20, Ceiling(0.0, 2)), (30, Ceiling(1.0, 3))])
    assert job.elapsed_s < 30 + 15 * 60 + 30


def test_restart_may_take_as_long_as_the_start(make_job, run):
    job = make_job(core_s=40, start_up_s=1200)
    job.loads_after_restart = True
    job.actions = [(1220 + 1200, job.finish_loading)]
    _, exchange = run(job, 3000, Ceiling(1.0, 1), later=[(1210, Ceiling(0.0, 2)), (1220, Ceiling(1.5, 3))])
    assert exchange.samples[-1]["progress_pct"] == 100.0


def test_job_that_completes_while_stopping_ends_after_its_resume(make_job, run):
    job = make_job(core_s=20)
    stop, resize = job.stop, job.resize

    def stop_after_the_last_batch(grace_s: float = 5.0) -> None:
        if not job.stopped:
            job._done = job.batches
            job._report("progress")
        stop(grace_s)

    def checked_resize(devices: float) -> None:
        check_devices(devices)
        resize(devices)

    job.stop, job.resize = stop_after_the_last_batch, checked_resize
    run(job, 60, Ceiling(1.0, 1), later=[(6, Ceiling(0.0, 2)), (20, Ceiling(1.0, 3))])
    assert job.restarted == 1


def test_program_without_start_lines_resumes_after_a_preemption(make_job, run):
    job = make_job(core_s=1500, batches=20_000)
    report = job._report
    job._report = lambda event: report("progress")
    outcome, _ = run(job, 4000, Ceiling(1.0, 1), later=[(6, Ceiling(0.0, 2)), (20, Ceiling(1.0, 3))])
    assert job.restarted == 1
    assert outcome.finished_s > 1000


@pytest.mark.parametrize(("ceilings", "expected"), [((1.0, 1.5), 1.0), ((0.4, 0.4), 0.4)], ids=["own maximum", "grant"])
def test_start_up_after_a_restart_has_the_devices_of_a_first_start(make_job, run, ceilings, expected):
    """Importing libraries on the small allocation that training needs would take ten times as long."""
    job = make_job(core_s=20)
    job.loads_after_restart = True
    job.actions = [(60, job.finish_loading)]
    first, second = (Ceiling(devices, grant) for devices, grant in zip(ceilings, (1, 3), strict=True))
    outcome, exchange = run(job, 200, first, later=[(30, Ceiling(0.0, 2)), (40, second)])
    assert (job.restarted, outcome.met) == (1, True)
    training = [sample["devices"] for sample in exchange.samples if 20 < sample["t_s"] < 30]
    assert max(training) < 0.4
    start_up = [sample["devices"] for sample in exchange.samples if 42 < sample["t_s"] < 60]
    assert set(start_up) == {expected}
    assert min(sample["devices"] for sample in exchange.samples if sample["t_s"] > 80) < 0.4
