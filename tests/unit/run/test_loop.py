"""The control loop brings a job to its deadline, whatever happens on the way. The job and the clock are simulated."""

from __future__ import annotations

import threading

import pytest

from paceline.contract import RunTotals
from paceline.control import Limits
from paceline.errors import (
    AskedToEndError,
    DeadlineInfeasibleError,
    JobLostError,
    RuntimeUnavailableError,
    TrainingFailedError,
)
from paceline.run import History, MemoryState
from paceline.run.allocation import JobAllocation
from paceline.run.busy import Busy
from paceline.run.live import Exchange
from paceline.runtime.base import Usage


@pytest.mark.parametrize(("core_s", "deadline_s"), [(20, 25), (120, 75), (120, 400), (6_000, 4_000)])
def test_a_feasible_job_ends_within_one_percent_of_its_deadline(make_job, run, core_s, deadline_s):
    outcome, _ = run(make_job(core_s=core_s, batches=10_000, noise=0.3), deadline_s)
    assert abs(outcome.error_pct) < 1.0


@pytest.mark.parametrize(
    ("core_s", "deadline_s", "at_s", "written", "moved_s"),
    [
        pytest.param(95, 105, 31.5, 84, 84, id="cut to 80 %"),
        pytest.param(100, 80, 30, "160s", 160, id="later: devices are given back"),
        pytest.param(100, 100, 10, "2030-03-17T17:49:00Z", 140, id="a time: counted from the origin"),
    ],
)
def test_a_deadline_that_is_moved_on_the_way_is_met(make_job, run, core_s, deadline_s, at_s, written, moved_s):
    state = MemoryState(deadline=str(deadline_s))
    job = make_job(core_s=core_s)
    job.at = [(at_s, lambda: state.set("deadline", written))]
    outcome, _ = run(job, deadline_s, state=state)
    assert outcome.deadline_s == moved_s
    assert abs(outcome.error_pct) < 1.0


@pytest.mark.parametrize("nonsense", ["soon", -5, 0, "", "1999-01-01T00:00:00Z", {"a": 1}, True, 12, "1e400"])
def test_a_live_deadline_that_is_nonsense_is_kept_out_and_the_log_says_so(make_job, run, caplog, nonsense):
    state = MemoryState(deadline=100)
    job = make_job(core_s=100)
    job.at = [(30, lambda: state.set("deadline", nonsense))]
    outcome, exchange = run(job, 100, state=state)
    assert outcome.deadline_s == 100
    assert abs(outcome.error_pct) < 1.0
    assert "New deadline not taken, the old one of 100.0 s stays" in caplog.text
    assert [event["kind"] for event in exchange.state["history"]["events"]] == ["deadline_refused"]


def test_the_ceiling_is_never_exceeded_and_may_be_lifted_again(make_job, run):
    state = MemoryState(ceiling=0.72)
    job = make_job(core_s=60)
    job.at = [(40, lambda: state.set("ceiling", None))]
    outcome, _ = run(job, 70, state=state)
    assert max(devices for t_s, devices in job.resizes if t_s < 40) <= 0.7
    assert max(devices for t_s, devices in job.resizes if t_s > 40) > 0.72
    assert abs(outcome.error_pct) < 2.0


@pytest.mark.parametrize("nonsense", [0, -1, 0.02, "1", True, [], float("inf")])
def test_a_ceiling_that_would_stop_the_job_is_kept_out(make_job, run, caplog, nonsense):
    state = MemoryState(ceiling=nonsense)
    outcome, _ = run(make_job(core_s=60), 70, state=state)
    assert abs(outcome.error_pct) < 1.0
    assert "New ceiling not taken, the old one stays. ceiling: got" in caplog.text


def test_an_impossible_deadline_is_reported_and_the_job_goes_on_with_everything(make_job, run, caplog):
    job = make_job(core_s=120)
    outcome, exchange = run(job, 40)
    assert not outcome.met
    assert caplog.text.count("cannot be met") == 1
    assert outcome.mean_devices > 1.8
    told_s = next(e["t_s"] for e in exchange.state["history"]["events"] if e["kind"] == "infeasible")
    assert told_s < 10


def test_an_impossible_deadline_fails_the_run_when_asked_to(make_job, run):
    with pytest.raises(DeadlineInfeasibleError, match=r"deadline: 40\.0 s cannot be met, the earliest possible end"):
        run(make_job(core_s=120), 40, on_infeasible="fail")


def test_an_impossible_deadline_is_extended_when_asked_to(make_job, run):
    outcome, exchange = run(make_job(core_s=120), 40, on_infeasible="extend")
    assert exchange.state["deadline"] == outcome.deadline_s
    assert outcome.deadline_s == pytest.approx(66, rel=0.1)
    assert abs(outcome.error_pct) < 2.0


def test_an_engine_that_is_away_for_a_while_costs_nothing_but_a_log_line(make_job, run, caplog):
    job = make_job(core_s=80)
    job.away_between = (30, 50)
    outcome, _ = run(job, 110)
    assert abs(outcome.error_pct) < 1.0
    assert caplog.text.count("The engine does not answer") == 1
    assert "The engine answers again after" in caplog.text


@pytest.mark.parametrize(("away_from_s", "killed_s"), [(30, 31), (31.5, 30.2)], ids=["while away", "before that"])
def test_a_job_that_its_engine_took_down_is_started_again(make_job, run, caplog, away_from_s, killed_s):
    job = make_job(core_s=60)
    job.away_between = (away_from_s, 40)
    job.at = [(killed_s, lambda: job.kill(exit_code=143))]
    outcome, _ = run(job, 110)
    assert job.restarted == outcome.restarts == 1
    assert abs(outcome.error_pct) < 1.5
    assert "Training goes on at" in caplog.text


def test_a_job_that_outlived_an_outage_and_is_killed_later_is_not_started_again(make_job, run, monkeypatch):
    job = make_job(core_s=60)
    monkeypatch.setattr(job, "usage", lambda: Usage(0.0, 0, measured_s=job.elapsed_s))
    job.away_between = (20, 21.5)
    job.at = [(40, job.kill)]
    with pytest.raises(TrainingFailedError, match="exit code 137"):
        run(job, 110)
    assert job.restarted == 0


def test_an_engine_that_answers_and_cannot_start_anything_yet_is_asked_again(make_job, run, monkeypatch):
    job = make_job(core_s=20)
    job.away_between = (6.0, 9.0)
    job.at = [(6.5, job.kill)]
    restart, refusals = job.restart, [RuntimeUnavailableError("the engine is still starting")]

    def reluctant() -> None:
        if refusals:
            raise refusals.pop()
        restart()

    monkeypatch.setattr(job, "restart", reluctant)
    outcome, _ = run(job, 60)
    assert outcome.restarts == job.restarted == 1


@pytest.mark.parametrize(
    ("accident", "error", "message"),
    [("kill", TrainingFailedError, "exit code 137"), ("vanish", JobLostError, "removed by somebody")],
)
def test_a_job_killed_or_removed_fails_the_run_and_is_not_restarted(make_job, run, accident, error, message):
    job = make_job(core_s=60)
    job.at = [(20, getattr(job, accident))]
    with pytest.raises(error, match=message):
        run(job, 90)
    assert job.restarted == 0


@pytest.mark.parametrize(("off_s", "set_to_s"), [(30.0, 30.0), (-30.0, -30.0), (0.0, -3600.0), (0.0, 3600.0)])
def test_an_engine_whose_clock_is_off_or_is_set_on_the_way_changes_nothing(make_job, run, off_s, set_to_s):
    expected, _ = run(make_job(core_s=60), 80)
    job = make_job(core_s=60)
    job.clock_is_off_s = off_s
    job.at = [(30.1, lambda: setattr(job, "clock_is_off_s", set_to_s))]
    outcome, exchange = run(job, 80 + expected.finished_s)
    began_s = exchange.samples[0]["t_s"]
    assert outcome.met
    assert outcome.finished_s - began_s > 60
    assert outcome.mean_devices == pytest.approx(outcome.device_seconds / (outcome.finished_s - began_s), rel=0.01)
    assert outcome.learned["tail_s"] == pytest.approx(expected.learned["tail_s"], abs=0.3)


@pytest.mark.parametrize("set_to_s", [-3600.0, 3600.0])
def test_engine_clock_set_after_the_last_line_does_not_move_the_end(make_job, run, set_to_s):
    expected, exchange = run(make_job(core_s=60), 80)
    tail_s, took_s = expected.learned["tail_s"], expected.finished_s - exchange.samples[0]["t_s"]
    job = make_job(core_s=60)
    job.at = [(took_s - tail_s / 2, lambda: setattr(job, "clock_is_off_s", set_to_s))]
    outcome, exchange = run(job, 80 + expected.finished_s)
    assert outcome.finished_s - exchange.samples[0]["t_s"] == pytest.approx(took_s, abs=2.0)
    assert outcome.mean_devices == pytest.approx(expected.mean_devices, rel=0.1)


def test_a_script_silent_until_its_deadline_does_not_hold_its_worker_for_ever(make_job, run):
    with pytest.raises(TrainingFailedError, match="reported no progress by its deadline"):
        run(make_job(core_s=60, start_up_s=1000), 90)


def test_zero_batches_are_named(make_job, run):
    job = make_job(core_s=60, start_up_s=1000)
    job.say('@paceline {"done": 0, "total": 0}')
    job.at = [(5, lambda: job.kill(exit_code=0))]
    with pytest.raises(TrainingFailedError, match="total: got 0, expected a whole number of at least 1"):
        run(job, 90)


def test_prints_reach_the_log_unchanged_even_in_a_flood(make_job, run, caplog):
    job, prints = make_job(core_s=30), [f"line {number}" for number in range(5_000)]
    job.say(*prints)
    run(job, 60)
    assert [record.message for record in caplog.records if record.message.startswith("line ")] == prints


class Team:
    """What the loop asks a team of several jobs."""

    cores = 0.3

    def take_steps(self):
        return []


def test_what_a_team_had_while_nobody_controlled_it_counts_as_what_it_had_before(make_job):
    team = Team()
    job = make_job(core_s=60)
    first = JobAllocation(job, None, 1.0, RunTotals(began_s=0.0), team=team)
    first.account(0.0)
    first.account(10.0)
    stored = first.totals(0.0, 0, None)
    team.cores = 1.0  # it was given more as soon as it was found again
    second = JobAllocation(job, None, 1.0, stored, team=team)
    second.account(70.0)
    assert second.device_s == pytest.approx(70 * 0.3)
    second.account(80.0)
    assert second.device_s == pytest.approx(70 * 0.3 + 10 * 1.0)


def test_of_a_team_counts_what_its_nodes_have_not_all_that_they_may_share(make_job, run):
    outcome, exchange = run(make_job(core_s=60), 60, limits=Limits(1.0, 1.0), team=Team())
    assert outcome.device_seconds == pytest.approx(0.3 * outcome.finished_s, rel=0.02)
    assert exchange.state["controller"]["run"]["held_devices"] == 1.0


class Killed(Exception):
    """The process that controlled a job is gone."""


def kill():
    raise Killed


def test_allocation_is_set_again_by_the_next_try_as_the_stored_one_may_be_out_of_date(make_job, run):
    job, state, limits = make_job(core_s=60), MemoryState(), Limits(1.0, 1.0)
    job.at = [(10, kill)]
    with pytest.raises(Killed):
        run(job, 60, state=state, limits=limits)
    job.devices = 0.1
    job.at = [(job.elapsed_s + 5, kill)]
    stored = state["controller"]
    held = stored["run"]["held_devices"]
    with pytest.raises(Killed):
        run(job, 60, state=state, limits=limits, held_devices=held, resumed=stored)
    assert [devices for _, devices in job.resizes] == [1.0]


def test_control_goes_on_without_a_bump_in_another_process(make_job, run):
    job = make_job(core_s=95)
    state = MemoryState()
    job.at = [(40, kill)]
    with pytest.raises(Killed):
        run(job, 110, state=state)
    held, before = job.devices, len(job.resizes)
    job.wait(8)  # without anybody in control
    earlier = {"history": History(state["history"]), "resumed": state["controller"]}
    outcome, exchange = run(job, 110, state=state, held_devices=held, **earlier)
    assert abs(outcome.error_pct) < 1.0
    assert abs(job.resizes[before][1] - held) <= 0.3
    assert exchange.state["history"]["samples"][0][0] < 1
    assert outcome.device_seconds == pytest.approx(outcome.mean_devices * outcome.finished_s, rel=0.01)


def test_a_job_that_ended_while_nobody_controlled_it_held_its_devices_until_then(make_job, run):
    job, state = make_job(core_s=60), MemoryState()
    job.at = [(10, kill)]
    with pytest.raises(Killed):
        run(job, 80, state=state)
    stored = state["controller"]
    held = stored["run"]["held_devices"]
    job.wait(300.0)
    job.clock.sleep(600.0)
    outcome, _ = run(job, 80, state=state, held_devices=held, resumed=stored)
    assert outcome.mean_devices == pytest.approx(held, rel=0.2)
    assert outcome.device_seconds <= 2.0 * outcome.finished_s


def test_who_is_asked_to_end_does_not_take_the_end_of_a_stopped_job_for_its_own(make_job, run):
    job, asked = make_job(core_s=60), []
    job.at = [(10.3, lambda: (asked.append(True), job.kill(0)))]
    with pytest.raises(AskedToEndError):
        run(job, 80, stopped=lambda: bool(asked))


def test_what_is_posted_last_is_written_although_a_round_was_under_way():
    class Slow(MemoryState):
        def set(self, key, value):
            entered.set()
            assert let_go.wait(10)
            super().set(key, value)

    entered, let_go = threading.Event(), threading.Event()
    state = Slow()
    exchange = Exchange(state)
    exchange.post({"pace": "training"})
    assert entered.wait(10)
    exchange.post({"pace": "finished"})
    closing = threading.Thread(target=exchange.close)
    closing.start()
    assert exchange._closed.wait(10)
    let_go.set()
    closing.join()
    assert state.get("pace") == "finished"


def test_the_store_is_not_asked_more_often_than_it_may_be():
    state = MemoryState()
    exchange = Exchange(state, every_s=3600)
    exchange.post({"pace": 1})
    while "deadline" not in exchange.newest():
        pass
    exchange.post({"pace": 2})
    exchange.post({"pace": 3})
    assert state.get("pace") == 1
    exchange.close()  # waits for nobody's hour
    assert state.get("pace") == 3


@pytest.mark.parametrize(
    ("error", "cut_off"),
    [(OSError("the API server is away"), False), (EOFError("Request socket closed"), True), (BrokenPipeError(), True)],
)
def test_a_store_that_fails_is_reported_once_and_one_whose_other_end_has_gone_is_told_apart(error, cut_off):
    class Broken(MemoryState):
        def set(self, key, value):
            raise error

    told = []
    exchange = Exchange(Broken(), on_trouble=told.append)
    assert not exchange.cut_off
    exchange.post({"pace": 1})
    exchange.post({"pace": 2})
    exchange.close()
    assert exchange.cut_off == cut_off
    assert told == ([] if cut_off else [error]), "a log that goes the same way has nowhere to go"


def test_a_total_that_moves_a_little_is_no_event_and_one_that_moves_much_is(make_job, run):
    job, history = make_job(core_s=60), History()
    job.at = [(10 + step, lambda step=step: setattr(job, "batches", 3000 + 10 * step)) for step in range(5)]
    job.at.append((40, lambda: setattr(job, "batches", 2500)))
    run(job, 80, history=history)
    totals = [event for event in history.to_json()["events"] if event["kind"] == "total"]
    assert [event["t_s"] for event in totals] == pytest.approx([40], abs=2)


def test_a_sample_that_cannot_be_stored_does_not_end_the_training(make_job, run, caplog, monkeypatch):
    monkeypatch.setattr(Busy, "take", lambda busy, usage, device_s: setattr(busy, "cores", float("nan")))
    outcome, exchange = run(make_job(core_s=60), 80)
    assert abs(outcome.error_pct) < 1.0
    assert exchange.samples == []
    assert caplog.text.count("cannot be stored") == 1, "said once, not every second"
