"""The default controller ends simulated jobs at their deadline, however long they are and whatever disturbs them."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.control import DeadlineController, Limits, Observation, PastRun
from paceline.errors import InvalidInputError
from paceline.testing.plant import Neighbour, Plant, amdahl
from paceline.testing.simulated_run import pace

LIMITS = Limits(0.1, 2.0)
STARTUP_S, TAIL_S = 3.0, 0.5
LENGTHS_S = {"30 s": 30.0, "5 min": 300.0, "1 h": 3600.0, "10 h": 36000.0}
DEADLINES = [(1.0, None), (1.2, None), (1.5, None), (1.8, None), (1.5, 1.2), (1.8, 1.44)]
KINDS = {
    "undisturbed": {},
    "noise": {"noise": 0.1},
    "sublinear": {"noise": 0.05, "speedup": amdahl(0.5)},
    "hardly parallel": {"noise": 0.05, "speedup": amdahl(0.85)},
    "throttled threads": {"noise": 0.05, "throttling": 0.15},
    "validation": {"noise": 0.05, "epochs": 10, "pause": 0.02},
    "coarse batches": {"noise": 0.05, "batch": 8.0},
    "slow to resize": {"noise": 0.05, "resize_s": 2.5},
    "neighbours": {"noise": 0.05, "neighbours": [(0.4, 0.7, 0.3), (1.0, 1.1, 0.3)]},
}


def plant_of(shortest_s: float, **kind: object) -> Plant:
    """A job that takes ``shortest_s`` on two cores, with batches of a third of a second to three seconds."""
    options = dict(kind)
    batch_s = min(max(shortest_s / 3000, 0.36), 3.0) * options.pop("batch", 1.0)
    epochs = options.setdefault("epochs", 1)
    options["pause_s"] = shortest_s * options.pop("pause", 0.0)
    options["neighbours"] = [
        Neighbour(shortest_s * start, shortest_s * end, takes) for start, end, takes in options.pop("neighbours", [])
    ]
    training_s = shortest_s - STARTUP_S - TAIL_S - epochs * options["pause_s"]
    batches = int(training_s * options.get("speedup", amdahl(0.1))(2.0) / batch_s) // epochs * epochs
    return Plant(batches=batches, batch_s=batch_s, startup_s=STARTUP_S, tail_s=TAIL_S, **options)


def past_of(plant: Plant) -> PastRun:
    """What a run at full speed has shown."""
    return PastRun(plant.batches, STARTUP_S, TAIL_S, 2.0, plant.speed(2.0, 0.0), 0.85, plant.epochs * plant.pause_s)


def controller_of(plant: Plant, deadline_s: float, **options: object) -> DeadlineController:
    # As many steps for a long job as for a short one would be enough; one a second is what users have.
    return DeadlineController(LIMITS, deadline_s, period_s=max(1.0, deadline_s / 1000), past=past_of(plant), **options)


@pytest.mark.parametrize("length", LENGTHS_S)
def test_over_the_matrix_jobs_end_within_a_fifth_of_a_percent_on_average_and_never_one_percent_late(length):
    errors = {}
    for kind, options in KINDS.items():
        plant = plant_of(LENGTHS_S[length], **options)
        shortest_s = plant.shortest_s(2.0)
        for d_c, changed_to in DEADLINES:
            if kind == "neighbours" and (changed_to or d_c) < 1.4:
                continue  # not to be had beside them
            deadline_s = d_c * shortest_s
            moves = {0.3 * deadline_s: changed_to * shortest_s} if changed_to else None
            run = pace(plant, controller_of(plant, deadline_s), seed=1, moves=moves, pauses_known=True)
            errors[kind, d_c, changed_to] = run.error_pct
    assert statistics.mean(map(abs, errors.values())) <= 0.2, errors
    assert max(errors.values()) <= 1.0, errors


@pytest.mark.parametrize("d_c", [1.2, 1.5, 1.8])
@pytest.mark.parametrize("keeps_busy", [1.0, 1.37, 1.6])
def test_what_a_job_cannot_use_it_is_not_given(keeps_busy, d_c):
    """Its threads wait for each other: more cores than it keeps busy would be paid for and make it no faster."""
    plant = Plant(300, 0.36, lambda cores: cores**0.95, startup_s=3.0, tail_s=1.0, noise=0.05, keeps_busy=keeps_busy)
    deadline_s = d_c * plant.shortest_s(2.0)
    past = PastRun(300, 3.0, 1.0, 1.0, plant.speed(1.0, 0.0), exponent=0.85, pauses_s=0.0)
    run = pace(plant, DeadlineController(Limits(0.1, 2.0), deadline_s, past=past), seed=3)
    enough = [cores / 20 for cores in range(2, 41) if plant.shortest_s(cores / 20) <= deadline_s]
    assert abs(run.error_pct) <= 0.2
    assert run.device_seconds <= 1.03 * min(cores * plant.shortest_s(cores) for cores in enough)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("keeps_busy", [1.2, 1.45, 1.7])
def test_a_deadline_that_takes_all_a_job_can_use_is_not_left_to_what_more_cores_would_do(keeps_busy, seed):
    """What it cannot use brings it no further, whatever the exponent says of those cores."""
    plant = Plant(340, 0.24, lambda cores: cores**0.9, startup_s=3.0, tail_s=1.0, noise=0.05, keeps_busy=keeps_busy)
    first = DeadlineController(Limits(2.0, 2.0), deadline_s=1e4)
    pace(plant, first, seed=seed)
    learned = first.learned()
    assert learned["usable_devices"] == pytest.approx(keeps_busy / 0.9, rel=0.05)
    past = PastRun(plant.batches, 3.0, 1.0, pauses_s=0.0, **learned)
    run = pace(plant, DeadlineController(Limits(0.1, 2.0), plant.shortest_s(2.0), past=past), seed=seed + 10)
    assert -0.5 <= run.error_pct <= 1.0


@pytest.mark.parametrize(("deadline_s", "devices"), [(200, 0.55), (101, 1.5), (90, 4.0)])
def test_who_is_late_gets_everything_and_who_is_nearly_so_half_as_much_again_as_it_can_use(deadline_s, devices):
    past = PastRun(100, 0.0, 0.0, pauses_s=0.0, devices=1.0, batches_per_s=1.0, exponent=1.0, usable_devices=1.0)
    controller = DeadlineController(Limits(0.1, 4.0), deadline_s, past=past)
    controller.start(0.0)
    assert controller.step(Observation(0.0, 0, 100, held_devices=1.0)).devices == devices


def test_whole_devices_that_wait_are_still_joined_by_others():
    """A process that waits for its GPU or its data says nothing of what another process would bring."""
    controller = DeadlineController(Limits(1.0, 8.0, quantum=1.0), deadline_s=200.0, start_devices=1)
    devices, done, most = controller.start(0.0), 0.0, 0.0
    for second in range(200):
        now_s = float(second)
        decision = controller.step(Observation(now_s, int(done), 800, done_s=now_s, held_devices=devices, busy=0.3))
        devices = decision.devices
        most = max(most, devices)
        done = min(done + 1.0 * devices, 800)
    assert most == 8


@pytest.mark.parametrize("kind", ["undisturbed", "noise", "sublinear"])
@pytest.mark.parametrize("d_c", [1.2, 1.5, 1.8])
def test_no_more_core_seconds_are_held_than_on_the_best_constant_allocation(kind, d_c):
    plant = plant_of(120.0, **KINDS[kind])
    deadline_s = d_c * plant.shortest_s(2.0)
    run = pace(plant, controller_of(plant, deadline_s), seed=2)
    best = next(cores / 20 for cores in range(2, 41) if plant.shortest_s(cores / 20) <= deadline_s)
    assert run.device_seconds <= 1.03 * best * plant.shortest_s(best)


def test_a_first_run_of_a_job_knows_nothing_and_ends_within_one_percent_all_the_same():
    for d_c in (1.2, 1.5, 1.8):
        plant = plant_of(120.0, noise=0.05)
        deadline_s = d_c * plant.shortest_s(2.0)
        run = pace(plant, DeadlineController(LIMITS, deadline_s), seed=3)
        assert abs(run.error_pct) <= 1.0


@pytest.mark.parametrize(("d_c", "changed_to"), [(1.5, 1.2), (1.2, 1.8), (1.8, 1.44)])
def test_a_deadline_that_moves_asks_for_no_more_than_the_rest_needs(d_c, changed_to):
    plant = plant_of(200.0)
    shortest_s = plant.shortest_s(2.0)
    deadline_s = d_c * shortest_s
    moved_s = 0.3 * deadline_s
    run = pace(plant, controller_of(plant, deadline_s), moves={moved_s: changed_to * shortest_s})
    at_the_move = next(percent for moment, percent, _ in run.samples if moment >= moved_s)
    left_s = changed_to * shortest_s - TAIL_S - moved_s
    speed_needed = (1 - at_the_move / 100) * plant.batches / left_s
    needed = next(cores / 100 for cores in range(10, 1000) if plant.speed(cores / 100, 0) >= speed_needed)
    most = max(held for moment, _, held in run.samples if moved_s + 3 < moment < run.finished_s - TAIL_S - 1)
    assert most <= min(needed * 1.1 + 0.05, 2.0)
    assert abs(run.error_pct) <= 0.3


def test_a_job_that_stops_early_is_not_held_back():
    plant = plant_of(300.0, noise=0.05, stops_at=400)
    run = pace(plant, controller_of(plant, 450.0))
    assert run.finished_s < 450.0 * 0.7


def test_a_ceiling_is_kept_and_what_it_cost_is_made_up_for():
    plant = plant_of(200.0, noise=0.05)
    deadline_s = 1.5 * plant.shortest_s(2.0)
    run = pace(plant, controller_of(plant, deadline_s), ceilings={40.0: 0.63, 100.0: None})
    assert all(held <= 0.6 for moment, _, held in run.samples if 41 < moment < 100)
    assert abs(run.error_pct) <= 0.3


def test_an_infeasible_deadline_is_recognised_soon_and_a_feasible_one_never_taken_for_it():
    plant = plant_of(300.0, noise=0.05)
    shortest_s = plant.shortest_s(2.0)
    for known in (True, False):
        past = past_of(plant) if known else None
        told = pace(plant, DeadlineController(LIMITS, 0.7 * shortest_s, past=past)).infeasible_s
        assert told is not None
        assert told < 0.2 * shortest_s
        assert pace(plant, DeadlineController(LIMITS, 1.2 * shortest_s, past=past)).infeasible_s is None


@pytest.mark.parametrize("known", [True, False])
def test_first_batches_that_are_slow_raise_no_alarm_and_do_not_tell_others_what_the_job_needs(known):
    plant = plant_of(60.0, noise=0.02, speedup=amdahl(0.05))
    cold = replace(plant, neighbours=[Neighbour(0.0, STARTUP_S + 1.5, 0.8)])
    past = past_of(plant) if known else None
    assert pace(cold, DeadlineController(LIMITS, 1.5 * plant.shortest_s(2.0), past=past)).infeasible_s is None
    controller = DeadlineController(LIMITS, 120.0, past=past)
    slow = [
        controller.step(Observation(second, done, 300, done_s=second, held_devices=0.5))
        for second, done in ((4, 1), (6, 4))
    ]
    assert known or slow[-1].remaining is None
    # Then six batches a second: a twelfth of a second for each on one device, if speed were in proportion.
    told = [
        controller.step(Observation(4 + n, 6 * n, 300, done_s=4 + n, held_devices=0.5)).remaining for n in (3, 4, 5)
    ][-1]
    assert told is not None
    assert known or told.work_s / (300 - 30) < 0.13


def test_a_job_starts_on_a_whole_core_and_on_more_when_its_deadline_moves_meanwhile():
    plant = plant_of(200.0)
    controller = DeadlineController(LIMITS, 4000.0, past=past_of(plant))
    assert controller.start(0.0) == 1.0
    controller.move_deadline(1.0, 1.05 * plant.shortest_s(2.0))
    assert controller.step(Observation(1.0, None, 1, held_devices=1.0)).devices > 1.5


def test_a_job_that_was_given_little_at_first_takes_more_as_soon_as_it_may_before_it_has_said_anything():
    little, more = 0.1, 0.3
    controller = DeadlineController(LIMITS, 80.0)  # of a control loop: it was another one that started the job
    assert controller.step(Observation(1.0, None, 1, held_devices=little, ceiling=little)).devices == little
    assert controller.step(Observation(2.0, None, 1, held_devices=little, ceiling=more)).devices == pytest.approx(more)
    assert controller.step(
        Observation(3.0, 1, 300, done_s=3.0, held_devices=more, ceiling=more)
    ).devices == pytest.approx(more)
    with_whole_devices = DeadlineController(Limits(1, 4, quantum=1), 80.0, resize_s=10.0)
    assert with_whole_devices.step(Observation(1.0, None, 1, held_devices=1.0, ceiling=4.0)).devices == 1.0


def test_the_startup_counts_from_the_start_and_once_more_after_an_interruption_before_any_report():
    plant = plant_of(200.0)
    past = replace(past_of(plant), startup_s=30.0)
    needs_s = 30.0 + 1.05 * plant.shortest_s(2.0)
    starts, goes_on = (DeadlineController(LIMITS, 100.0 + needs_s, past=past) for _ in range(2))
    devices = starts.start(100.0)  # it had to wait for a hundred seconds
    assert devices > 1.5
    assert goes_on.step(Observation(101.0, None, 1, held_devices=devices)).devices >= devices
    paused = DeadlineController(LIMITS, 120.0 + needs_s, past=past)
    assert paused.start(0.0) == 1.0, "there is time enough"
    paused.interrupt(120.0)
    assert paused.step(Observation(120.0, None, 1, held_devices=1.0)).devices > 1.5


def test_a_controller_that_goes_on_keeps_what_the_job_holds_until_it_has_read_a_report():
    before = DeadlineController(LIMITS, 80.0)
    before.start(0.0)
    before.step(Observation(2.0, 5, 300, done_s=2.0, held_devices=1.0))
    after = DeadlineController(LIMITS, 80.0)
    after.restore(before.state())
    assert after.step(Observation(3.0, None, 1, held_devices=0.35)).devices == pytest.approx(0.35)


def test_a_wrong_idea_of_the_job_from_its_last_run_is_soon_forgotten():
    plant = plant_of(200.0, noise=0.05)
    past = PastRun(plant.batches // 3, 1.0, TAIL_S, 1.0, 4 * plant.speed(1.0, 0.0), 0.4, 0.0)
    run = pace(plant, DeadlineController(LIMITS, 1.5 * plant.shortest_s(2.0), past=past), seed=4)
    assert abs(run.error_pct) <= 0.5


def test_whole_gpus_change_hands_seldom_although_the_need_lies_between_two_numbers():
    limits = Limits(1, 4, quantum=1)
    plant = Plant(2000, 1.0, startup_s=10.0, tail_s=2.0, noise=0.05, resize_s=0.0, resize_pause_s=4.0)
    for d_c in (1.3, 1.5, 1.8):
        deadline_s = d_c * plant.shortest_s(4.0)
        past = PastRun(2000, 10.0, 2.0, 4.0, plant.speed(4.0, 0.0), 0.85, 0.0)
        run = pace(plant, DeadlineController(limits, deadline_s, period_s=5.0, past=past, resize_s=4.0), seed=5)
        assert all(held == int(held) for _, _, held in run.samples)
        assert run.resizes <= 12
        assert abs(run.error_pct) <= 1.0


kinds = st.fixed_dictionaries(
    {
        "noise": st.floats(0, 0.3),
        "speedup": st.floats(0, 0.95).map(amdahl),
        "throttling": st.floats(0, 0.3),
        "batch": st.floats(0.3, 10),
        "resize_s": st.sampled_from([0.0, 0.3, 3.0]),
        "neighbours": st.lists(st.tuples(st.floats(0, 1), st.floats(1, 2), st.floats(0, 0.9)), max_size=2),
    }
)


@settings(max_examples=40)
@given(kinds, st.floats(0.5, 4), st.none() | st.floats(0.5, 4), st.none() | st.floats(0.1, 3), st.integers(0, 99))
def test_limits_quantum_and_ceiling_are_kept_and_the_job_ends_whatever_happens(kind, d_c, changed_to, ceiling, seed):
    plant = plant_of(60.0, **kind)
    shortest_s = plant.shortest_s(2.0)
    moves = {0.3 * d_c * shortest_s: changed_to * shortest_s} if changed_to else None
    known = past_of(plant) if seed % 2 else None
    controller = DeadlineController(LIMITS, d_c * shortest_s, past=known)
    run = pace(plant, controller, seed=seed, moves=moves, ceilings={10.0: ceiling} if ceiling else None)
    late = 10.0 + 2 * (kind["resize_s"] + 1.0)  # a change that is under way comes first
    for moment, percent, held in run.samples:
        steps = held / LIMITS.quantum
        assert steps == pytest.approx(round(steps))
        assert LIMITS.min_devices <= held <= LIMITS.max_devices
        if ceiling and moment > late and percent < 100:
            assert held <= max(ceiling, LIMITS.quantum) + 1e-9


@settings(max_examples=20)
@given(st.floats(0, 0.1), st.floats(0, 0.8), st.floats(1.2, 3), st.integers(0, 99))
def test_the_allocation_does_not_swing(noise, serial, d_c, seed):
    plant = plant_of(600.0, noise=noise, speedup=amdahl(serial))
    run = pace(plant, controller_of(plant, d_c * plant.shortest_s(2.0)), seed=seed)
    held = [cores for moment, percent, cores in run.samples if 5 < percent < 95]
    half = len(held) // 2
    first, second = (max(part) - min(part) for part in (held[:half], held[half:]))
    assert second <= first + 0.2
    assert run.resizes <= 0.4 * run.steps


def test_alpha_leaves_its_share_of_the_deadline_free_and_is_refused_outside_its_range():
    plant = plant_of(100.0)
    run = pace(plant, controller_of(plant, 200.0, alpha=0.8))
    assert run.finished_s == pytest.approx(160.0, rel=0.003)
    for alpha in (0, 1.2, -0.5, True, math.nan):
        with pytest.raises(InvalidInputError, match=r"alpha: got .*, expected a number in \(0, 1\]"):
            DeadlineController(LIMITS, 60, alpha=alpha)


def test_a_controller_goes_on_from_its_state_without_a_bump():
    plant = plant_of(200.0)
    before = controller_of(plant, 300.0)
    for second in range(60):
        last = before.step(Observation(second, second * 2, plant.batches, done_s=second, held_devices=1.0)).devices
    after = DeadlineController(LIMITS, 60.0)
    after.restore(before.state())
    decision = after.step(Observation(61, 122, plant.batches, done_s=61, held_devices=last))
    assert after.deadline_s == 300.0
    assert abs(decision.devices - last) <= 0.1


def test_a_job_that_is_late_is_looked_at_no_more_often_than_any_other():
    controller = DeadlineController(LIMITS, 60.0)
    devices = controller.start(0.0)
    steps = {}
    for second in range(1, 100):
        decision = controller.step(Observation(second, second, 1000, done_s=second, held_devices=devices))
        devices, steps[second] = decision.devices, decision.next_s
    assert (devices, steps[30], steps[70], steps[99]) == (2.0, 1.0, 1.0, 1.0)
    assert steps[56] < 1.0  # shortly before the end, more often
