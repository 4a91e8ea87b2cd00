"""First runs end near their deadline if the trainer reports estimates or there is a related task's run."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from statistics import mean

import pytest
from tests.unit.control.test_deadline_controller import DEADLINES, KINDS, LENGTHS_S, LIMITS, make_past_run, make_plant

from paceline.control import DeadlineController, Limits, Observation, PastRun, PastTail, TailModel
from paceline.testing.plant import Plant
from paceline.testing.random_plants import Case, random_case, random_tail
from paceline.testing.simulated_run import PacedRun, simulate_run

CASES = [random_case(seed) for seed in range(100)]


def run_case(case: Case, past: PastRun | None = None, others: Sequence[PastTail] = ()) -> PacedRun:
    limits, tail = Limits(0.1, case.max_devices), TailModel(past, others)
    period_s = max(1.0, case.deadline_s / 1000)
    controller = DeadlineController(limits, case.deadline_s, period_s=period_s, past=past, tail=tail)
    return simulate_run(
        case.plant, controller, seed=case.seed, new_deadlines=case.new_deadlines, pauses_known=past is not None
    )


@pytest.fixture(scope="module")
def first_runs():
    """Return a run of each case whose trainer reports estimates."""
    return [run_case(case.with_reports(validation=True)) for case in CASES]


@pytest.mark.parametrize("related", [False, True])
def test_random_first_runs_end_near_their_deadline(first_runs, related):
    runs = [run_case(case, case.past_run(speed_sd=0.3)) for case in CASES] if related else first_runs
    errors = [run.error_pct for run in runs]
    assert mean(map(abs, errors)) <= 0.4, errors
    assert sum(error > 1 for error in errors) <= len(errors) / 20, errors


def test_short_first_runs_are_late_less_often_if_the_tails_of_other_jobs_are_known():
    others = [random_tail(random.Random(-number)) for number in range(1, 31)]
    cases = [random_case(seed, foretold=False) for seed in range(400)]
    short = [case.with_reports(validation=True) for case in cases if case.deadline_s < 200]
    late = [sum(run_case(case, others=known).error_pct > 1 for case in short) for known in ((), others)]
    assert late[1] <= 0.07 * len(short) < late[0]


def test_time_reserve_is_a_quantile_of_the_tails_of_other_jobs():
    tails = [PastTail(1.0 + 0.1 * number, save_s=0.01) for number in range(91)]
    for late_weight, expected_s in ((1.0, 5.5), (9.0, 9.1)):
        forecast = TailModel(others=tails, late_weight=late_weight).forecast(0.01, 1000.0)
        assert forecast.reserved_s == pytest.approx(expected_s, abs=0.3)
        assert (forecast.low_s, forecast.high_s) == pytest.approx((1.5, 9.6), abs=0.4)


def test_tails_of_other_jobs_are_corrected_by_checkpoints_only_if_these_foretell_them():
    saves_s = [0.1 * number for number in range(1, 41)]
    proportional = [PastTail(2.0 * save_s + 1.0, save_s) for save_s in saves_s]
    unrelated = [PastTail(2.0 * save_s + 1.0, other_s) for save_s, other_s in zip(saves_s, saves_s[::-1], strict=True)]
    assert TailModel(others=proportional).forecast(3.0, 1000.0).median_s == pytest.approx(7.0, abs=1.3)
    assert TailModel(others=unrelated).forecast(3.9, 1000.0).median_s == pytest.approx(5.1, abs=0.3)


def test_declared_tail_is_reserved():
    controller = DeadlineController(LIMITS, 1000.0)
    controller.step(Observation(10.0, 5, 500, allocated_devices=1.0, save_s=0.1, tail_s=30.0))
    assert 999.5 - controller.target_s == pytest.approx(30.0)


def test_uncertain_pause_after_the_last_batch_is_reserved():
    controllers = [DeadlineController(LIMITS, 1000.0) for _ in range(2)]
    for controller, sd_s in zip(controllers, (0.0, 10.0), strict=True):
        controller.step(Observation(10.0, 5, 500, allocated_devices=1.0, pauses_left_s=30.0, pause_sd_s=sd_s))
    assert 5 < controllers[0].target_s - controllers[1].target_s < 15


def test_job_that_is_late_after_its_last_batch_gets_the_cores_that_it_uses():
    controller = DeadlineController(Limits(0.1, 8.0), 100.0)
    controller.start(0.0)
    allocation = 2.0
    for second in range(90, 110):
        observation = Observation(second, 50, 50, done_s=90.0, allocated_devices=allocation, busy=1.0)
        decision = controller.step(observation)
        assert decision.finish_s >= second
        allocation = decision.devices
    assert allocation == 8.0
    for second in range(110, 115):
        observation = Observation(second, 50, 50, done_s=90.0, allocated_devices=allocation, busy=0.9 / allocation)
        allocation = controller.step(observation).devices
    assert allocation == 1.5, "half as much again as a single thread"


def test_job_that_has_nearly_ended_when_its_deadline_moves_ends_early_on_the_smallest_allocation():
    plant = make_plant(40.0)
    deadline_s = 1.5 * plant.shortest_s(2.0)
    past = make_past_run(plant)
    run = run_case(Case(plant, 2.0, deadline_s, {0.9 * deadline_s: 3 * deadline_s}, seed=1), past)
    assert run.error_pct < -10
    moved = [devices for now_s, _, devices in run.samples if now_s > 0.9 * deadline_s + 2.1]
    assert set(moved[:20]) == {0.1}


def test_first_runs_cost_little_more_than_the_best_constant_allocation(first_runs):
    costs = []
    for case, run in zip(CASES, first_runs, strict=True):
        best = None if case.new_deadlines else case.best_constant()
        if best is not None:
            costs.append(run.device_seconds / best)
    assert len(costs) > 40
    assert mean(costs) <= 1.03


def test_first_runs_of_all_kinds_and_lengths_end_near_their_deadline():
    errors = {}
    for length, shortest_s in LENGTHS_S.items():
        for kind, options in KINDS.items():
            plant = replace(make_plant(shortest_s, **options), save_s=0.1)
            plant = replace(plant, forecast_pause_s=1.3 * plant.pause_s)
            for d_c, changed_to in DEADLINES:
                if kind == "neighbours" and (changed_to or d_c) < 1.4:
                    continue  # infeasible because of the neighbours
                best_s = plant.shortest_s(2.0)
                new_deadlines = {0.3 * d_c * best_s: changed_to * best_s} if changed_to else None
                controller = DeadlineController(LIMITS, d_c * best_s, period_s=max(1.0, d_c * best_s / 1000))
                errors[length, kind, d_c, changed_to] = simulate_run(
                    plant, controller, seed=1, new_deadlines=new_deadlines
                ).error_pct
    assert mean(map(abs, errors.values())) <= 0.4, errors
    assert sum(error > 1 for error in errors.values()) <= len(errors) / 20, errors


def test_time_reserve_depends_on_the_duration_of_the_last_checkpoint():
    slow = Plant(batches=300, batch_s=1.0, startup_s=3.0, tail_s=20 + 0.4 * 20 + 0.35, save_s=20.0)
    assert -1.3 < run_case(Case(slow, 2.0, 1.5 * slow.shortest_s(2.0), {}, seed=0)).error_pct < 0.2
    unreported = replace(slow, save_s=None)
    assert run_case(Case(unreported, 2.0, 1.5 * slow.shortest_s(2.0), {}, seed=0)).error_pct > 5


def test_time_reserve_without_measurements_is_bounded():
    controllers = [DeadlineController(LIMITS, deadline_s) for deadline_s in (5.0, 40.0, 4000.0)]
    assert [round(one.tail.median_s, 3) for one in controllers] == [0.5, 0.8, 1.0]
    reserved_s = [0.9995 * one.deadline_s - one.target_s for one in controllers]
    assert reserved_s == pytest.approx([one.tail.reserved_s for one in controllers])
    assert all(one.tail.median_s < one.tail.reserved_s < one.tail.high_s for one in controllers)


def test_tolerances_and_alpha_are_relative_to_the_start():
    """An hour in a queue before the start does not affect the controller."""
    waited_s, time_s = 3600.0, 300.0
    for began_s in (0.0, waited_s):
        controller = DeadlineController(LIMITS, began_s + time_s, alpha=0.9)
        controller.start(began_s)
        assert controller.target_s - began_s == pytest.approx(time_s * (0.9 - 0.0005) - controller.tail.reserved_s)
        restored = DeadlineController(LIMITS, 1.0, alpha=0.9)
        restored.restore(controller.state())
        assert restored.target_s == controller.target_s
    late = DeadlineController(LIMITS, waited_s + 100.0)
    late.start(waited_s)
    for second in range(1, 40):
        decision = late.step(
            Observation(waited_s + second, second, 103, done_s=waited_s + second, allocated_devices=2.0)
        )
    assert waited_s + 101 < decision.earliest_s < waited_s + 104
    assert not decision.feasible, "2 s late of 100 s, without the time in the queue"


def test_wrong_speed_of_the_last_run_is_corrected():
    case = next(case for case in CASES if not case.plant.neighbours and not case.new_deadlines)
    past = replace(case.past_run(speed_sd=0.0), related=True)
    for factor in (0.2, 5.0):
        finished = run_case(case, replace(past, batches_per_s=factor * past.batches_per_s))
        assert abs(finished.error_pct) <= 0.5
        early = finished.infeasible_s is not None and finished.infeasible_s < 0.9 * finished.deadline_s
        assert not early, "another task's speed does not prove infeasibility"


def test_related_run_does_not_predict_remaining_work():
    assert CASES[0].past_run(speed_sd=0.0).remaining() is not None
    assert CASES[0].past_run(speed_sd=0.3).remaining() is None


def test_tail_of_a_related_run_is_corrected_by_the_checkpoint_duration():
    past = PastRun(100, 1.0, 5.0, 1.0, 1.0, 1.0, 0.0, save_s=2.0, related=True)
    controller = DeadlineController(LIMITS, 1000.0, past=past)
    targets = []
    for second, save_s in enumerate((None, 2.0, 30.0, 0.1), start=10):
        controller.step(Observation(second, 5, 500, allocated_devices=1.0, save_s=save_s))
        targets.append(round(999.5 - controller.target_s, 2))
    assert targets == [5.0, 5.0, 44.2, 2.34]


def test_restore_before_the_first_report_keeps_the_start():
    first = DeadlineController(LIMITS, 1000.0, alpha=0.9)
    first.start(100.0)
    second = DeadlineController(LIMITS, 1000.0, alpha=0.9)
    second.restore(first.state())
    second.step(Observation(260.0, None, 1, allocated_devices=1.0))
    assert second.target_s == first.target_s


def test_past_run_without_epochs_has_no_mean_pause():
    stored = CASES[0].past_run(speed_sd=0.0).to_dict()
    del stored["epochs"]
    assert PastRun.read(stored).pause_s is None
    assert PastRun.read({**stored, "epochs": 0}) is None
