"""A job that shares its devices stands still when it has none, goes on later, and never has more than it was given."""

from __future__ import annotations

import pytest

from paceline.contract import Ceiling
from paceline.errors import RuntimeUnavailableError, TrainingFailedError
from paceline.run import MemoryState
from paceline.runtime.checks import check_devices


@pytest.mark.parametrize("exit_code", [143, 0], ids=["SIGTERM", "code that answers it and leaves with zero"])
def test_a_job_that_is_given_nothing_is_stopped_and_goes_on_when_it_is_given_something(make_job, run, exit_code):
    job = make_job(core_s=40)
    kill = job.kill
    job.kill = lambda code: kill(exit_code)
    outcome, exchange = run(
        job, 120, Ceiling(1.0, 1), at=[(20, Ceiling(0.0, 2, reason="others are late")), (50, Ceiling(1.5, 3))]
    )
    assert (job.stopped, job.restarted) == (1, 1)
    still = [sample for sample in exchange.samples if sample["state"] == "paused"]
    assert {(sample["devices"], sample["ceiling"], sample["grant"]) for sample in still} == {(0.0, 0.0, 2)}
    assert 28 <= still[-1]["t_s"] - still[0]["t_s"] <= 31
    assert abs(outcome.error_pct) < 1.0
    kinds = [event["kind"] for event in exchange.state["history"]["events"]]
    assert kinds == ["ceiling", "paused", "ceiling", "unpaused", "resumed"]
    assert outcome.learned is None, "what was seen of its start and end is not what the next run will see"


def test_every_sample_says_which_grant_it_has_taken_and_never_holds_more(make_job, run):
    at = [(10 * n, Ceiling(0.3 + 0.2 * (n % 3), n + 1)) for n in range(1, 12)]
    _, exchange = run(make_job(core_s=60), 100, Ceiling(0.5, 1), at=at)
    known = {1: 0.5} | {said.grant: said.devices for _, said in at}
    assert {sample["grant"] for sample in exchange.samples} >= {1, 2, 5}
    for sample in exchange.samples:
        assert sample["devices"] <= known[sample["grant"]] + 1e-9


def test_a_shared_job_keeps_its_ceiling_when_somebody_deletes_it(make_job, run):
    job = make_job(core_s=30)
    state = MemoryState()
    job.at = [(10, lambda: state.delete("ceiling"))]
    outcome, exchange = run(job, 40, Ceiling(0.4, 1), state=state)
    assert exchange.state.get("ceiling") is None
    assert {sample["ceiling"] for sample in exchange.samples} == {0.4}
    assert max(sample["devices"] for sample in exchange.samples) <= 0.4
    assert not outcome.met


def test_a_job_that_ends_while_it_is_being_stopped_has_ended(make_job, run):
    job = make_job(core_s=20)

    def too_late(grace_s: float = 5.0) -> None:
        job._finished_s, job._exit_code = job.clock.now(), 0
        job._done = job.batches
        job._report("finish")

    job.stop = too_late
    outcome, exchange = run(job, 60, Ceiling(1.0, 1), at=[(10, Ceiling(0.0, 2))])
    assert outcome.finished_s < 12
    assert "paused" not in {sample["state"] for sample in exchange.samples}


def test_an_engine_that_is_away_when_the_job_is_to_stop_is_asked_again(make_job, run):
    job = make_job(core_s=40)
    job.away_between = (19.0, 31.0)
    outcome, exchange = run(job, 150, Ceiling(1.0, 1), at=[(20, Ceiling(0.0, 2)), (60, Ceiling(1.5, 3))])
    still = [sample["t_s"] for sample in exchange.samples if sample["state"] == "paused"]
    assert 31 <= still[0] <= 34
    assert abs(outcome.error_pct) < 1.0


def test_a_job_that_begins_after_its_deadline_has_its_time_to_begin(make_job, run):
    job = make_job(core_s=5, start_up_s=8.0)
    outcome, _ = run(job, 2.0, Ceiling(2.0, 1))
    assert outcome.finished_s > 2.0
    assert not outcome.met


def lose_answers(job, method, when):
    """Let the engine do what it is asked to, and its answers be lost at some time."""
    do = getattr(job, method)

    def ask(*arguments):
        do(*arguments)
        if when():
            raise RuntimeUnavailableError("no answer in time")

    setattr(job, method, ask)


def test_a_resize_whose_answer_is_lost_counts_as_done_until_the_engine_has_answered(make_job, run):
    job = make_job(core_s=100)
    lose_answers(job, "resize", lambda: 20 <= job.elapsed_s < 24)
    _, exchange = run(
        job, 90, Ceiling(0.5, 1), at=[(20, Ceiling(1.5, 2)), (22, Ceiling(0.5, 3)), (40, Ceiling(2.0, 4))]
    )
    lost = [devices for t_s, devices in job.resizes if 20 <= t_s < 24]
    assert max(lost) > 0.5
    for sample in exchange.samples:
        if 21 <= sample["t_s"] < 24:
            assert sample["devices"] >= max(lost), "it may hold that much"
        if 25 <= sample["t_s"] < 40:
            assert sample["devices"] <= 0.5
    between = [devices for t_s, devices in job.resizes if 24 <= t_s < 40]
    assert between, "asked again, although what is wanted is what was held before"
    assert max(between) <= 0.5


def test_a_start_whose_answer_is_lost_is_undone_when_others_need_the_devices_again(make_job, run):
    job = make_job(core_s=40)
    lose_answers(job, "restart", lambda: job.restarted == 1)
    at = [(20, Ceiling(0.0, 2)), (30, Ceiling(1.0, 3)), (30.5, Ceiling(0.0, 4)), (60, Ceiling(1.5, 5))]
    outcome, exchange = run(job, 150, Ceiling(1.0, 1), at=at)
    doubtful = [sample for sample in exchange.samples if sample["state"] == "paused" and sample["devices"] > 0]
    assert [sample["devices"] for sample in doubtful] == [1.0]
    assert job.stopped == 2
    assert abs(outcome.error_pct) < 1.0


def test_who_takes_over_a_job_asks_its_engine_for_what_it_should_hold(make_job, run):
    job = make_job(core_s=40)
    _, exchange = run(job, 100, Ceiling(0.5, 3, at_most=1.5))
    assert job.resizes[0][0] == 0.0
    assert exchange.samples[0]["devices"] <= 0.5


def test_a_job_that_is_started_again_and_says_nothing_fails(make_job, run):
    job = make_job(core_s=40)
    job.restart = lambda: setattr(job, "_finished_s", None) or setattr(job, "batches", 0)  # it hangs
    with pytest.raises(TrainingFailedError, match="since it was started again"):
        run(job, 60, Ceiling(1.0, 1), at=[(20, Ceiling(0.0, 2)), (30, Ceiling(1.0, 3))])
    assert job.elapsed_s < 30 + 15 * 60 + 30


def test_a_job_whose_last_batch_ends_while_it_is_stopped_waits_for_devices_and_ends_then(make_job, run):
    job = make_job(core_s=20)
    stop, resize = job.stop, job.resize

    def in_its_grace(grace_s: float = 5.0) -> None:
        if not job.stopped:
            job._done = job.batches
            job._report("progress")
        stop(grace_s)

    def strictly(devices: float) -> None:
        check_devices(devices)
        resize(devices)

    job.stop, job.resize = in_its_grace, strictly
    run(job, 60, Ceiling(1.0, 1), at=[(6, Ceiling(0.0, 2)), (20, Ceiling(1.0, 3))])
    assert job.restarted == 1


def test_a_program_that_does_not_say_when_it_starts_goes_on_after_a_pause_like_any_other(make_job, run):
    job = make_job(core_s=1500, batches=20_000)
    report = job._report
    job._report = lambda event: report("progress")
    outcome, _ = run(job, 4000, Ceiling(1.0, 1), at=[(6, Ceiling(0.0, 2)), (20, Ceiling(1.0, 3))])
    assert job.restarted == 1
    assert outcome.finished_s > 1000
