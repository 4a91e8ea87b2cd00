"""Simulated jobs of any length end at their deadline under the default controller, with and without disturbances."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.control import DeadlineController, Decision, Limits, Observation, PastRun
from paceline.control import make_controller as make_default
from paceline.errors import InvalidInputError
from paceline.testing.plant import Neighbour, Plant, amdahl
from paceline.testing.simulated_run import simulate_run

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


def make_plant(shortest_s: float, **kind: object) -> Plant:
    """Return a simulated job that takes ``shortest_s`` on two cores, in batches of 0.36 s to 3 s."""
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


def make_past_run(plant: Plant) -> PastRun:
    """Return the measurements of a run with the maximum allocation."""
    return PastRun(plant.batches, STARTUP_S, TAIL_S, 2.0, plant.speed(2.0, 0.0), 0.85, plant.epochs * plant.pause_s)


def make_controller(plant: Plant, deadline_s: float, **options: object) -> DeadlineController:
    # The default is one step per second. For a long job, at most 1000 steps in total keep the test fast.
    return DeadlineController(
        LIMITS, deadline_s, period_s=max(1.0, deadline_s / 1000), past=make_past_run(plant), **options
    )


@pytest.mark.parametrize("length", LENGTHS_S)
def test_jobs_of_all_kinds_and_lengths_end_at_their_deadline(length):
    errors = {}
    for kind, options in KINDS.items():
        plant = make_plant(LENGTHS_S[length], **options)
        shortest_s = plant.shortest_s(2.0)
        for d_c, changed_to in DEADLINES:
            if kind == "neighbours" and (changed_to or d_c) < 1.4:
                continue  # infeasible because of the neighbours
            deadline_s = d_c * shortest_s
            new_deadlines = {0.3 * deadline_s: changed_to * shortest_s} if changed_to else None
            run = simulate_run(
                plant, make_controller(plant, deadline_s), seed=1, new_deadlines=new_deadlines, pauses_known=True
            )
            errors[kind, d_c, changed_to] = run.error_pct
    assert statistics.mean(map(abs, errors.values())) <= 0.2, errors
    assert max(errors.values()) <= 1.0, errors


@pytest.mark.parametrize("d_c", [1.2, 1.5, 1.8])
@pytest.mark.parametrize("usable", [1.0, 1.37, 1.6])
def test_allocation_does_not_exceed_what_the_job_can_use(usable, d_c):
    """The job's threads wait for each other, so cores above its usable maximum would add cost but no speed."""
    plant = Plant(300, 0.36, lambda cores: cores**0.95, startup_s=3.0, tail_s=1.0, noise=0.05, usable_devices=usable)
    deadline_s = d_c * plant.shortest_s(2.0)
    past = PastRun(300, 3.0, 1.0, 1.0, plant.speed(1.0, 0.0), exponent=0.85, pauses_s=0.0)
    run = simulate_run(plant, DeadlineController(Limits(0.1, 2.0), deadline_s, past=past), seed=3)
    enough = [cores / 20 for cores in range(2, 41) if plant.shortest_s(cores / 20) <= deadline_s]
    assert abs(run.error_pct) <= 0.2
    assert run.device_seconds <= 1.03 * min(cores * plant.shortest_s(cores) for cores in enough)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("usable", [1.2, 1.45, 1.7])
def test_plan_expects_no_speed_up_from_cores_that_the_job_cannot_use(usable, seed):
    """Cores that the job cannot use add no speed, even if the speed-up exponent predicts more speed."""
    plant = Plant(340, 0.24, lambda cores: cores**0.9, startup_s=3.0, tail_s=1.0, noise=0.05, usable_devices=usable)
    first = DeadlineController(Limits(2.0, 2.0), deadline_s=1e4)
    simulate_run(plant, first, seed=seed)
    learned = first.learned()
    assert learned["usable_devices"] == pytest.approx(usable / 0.9, rel=0.05)
    past = PastRun(plant.batches, 3.0, 1.0, pauses_s=0.0, **learned)
    run = simulate_run(plant, DeadlineController(Limits(0.1, 2.0), plant.shortest_s(2.0), past=past), seed=seed + 10)
    assert -0.5 <= run.error_pct <= 1.0


@pytest.mark.parametrize(("deadline_s", "devices"), [(200, 0.55), (101, 1.5), (90, 4.0)])
def test_late_job_gets_maximum_and_nearly_late_job_gets_150_percent_of_usable_cores(deadline_s, devices):
    past = PastRun(100, 0.0, 0.0, pauses_s=0.0, devices=1.0, batches_per_s=1.0, exponent=1.0, usable_devices=1.0)
    controller = DeadlineController(Limits(0.1, 4.0), deadline_s, past=past)
    controller.start(0.0)
    assert controller.step(Observation(0.0, 0, 100, allocated_devices=1.0)).devices == devices


def test_job_that_leaves_whole_devices_idle_may_get_more_devices():
    """A process that waits for its GPU or its data uses little CPU, but more devices may still make the job faster."""
    controller = DeadlineController(Limits(1.0, 8.0, quantum=1.0), deadline_s=200.0, start_devices=1)
    devices, done, largest = controller.start(0.0), 0.0, 0.0
    for second in range(200):
        now_s = float(second)
        decision = controller.step(
            Observation(now_s, int(done), 800, done_s=now_s, allocated_devices=devices, busy=0.3)
        )
        devices = decision.devices
        largest = max(largest, devices)
        done = min(done + 1.0 * devices, 800)
    assert largest == 8


@pytest.mark.parametrize("kind", ["undisturbed", "noise", "sublinear"])
@pytest.mark.parametrize("d_c", [1.2, 1.5, 1.8])
def test_core_seconds_are_within_3_percent_of_the_best_constant_allocation(kind, d_c):
    plant = make_plant(120.0, **KINDS[kind])
    deadline_s = d_c * plant.shortest_s(2.0)
    run = simulate_run(plant, make_controller(plant, deadline_s), seed=2)
    best = next(cores / 20 for cores in range(2, 41) if plant.shortest_s(cores / 20) <= deadline_s)
    assert run.device_seconds <= 1.03 * best * plant.shortest_s(best)


def test_first_run_without_measurements_ends_within_one_percent_of_its_deadline():
    for d_c in (1.2, 1.5, 1.8):
        plant = make_plant(120.0, noise=0.05)
        deadline_s = d_c * plant.shortest_s(2.0)
        run = simulate_run(plant, DeadlineController(LIMITS, deadline_s), seed=3)
        assert abs(run.error_pct) <= 1.0


@pytest.mark.parametrize(("d_c", "changed_to"), [(1.5, 1.2), (1.2, 1.8), (1.8, 1.44)])
def test_new_deadline_uses_no_more_devices_than_remaining_work_needs(d_c, changed_to):
    plant = make_plant(200.0)
    shortest_s = plant.shortest_s(2.0)
    deadline_s = d_c * shortest_s
    moved_s = 0.3 * deadline_s
    run = simulate_run(plant, make_controller(plant, deadline_s), new_deadlines={moved_s: changed_to * shortest_s})
    progress_pct = next(percent for now_s, percent, _ in run.samples if now_s >= moved_s)
    left_s = changed_to * shortest_s - TAIL_S - moved_s
    speed_needed = (1 - progress_pct / 100) * plant.batches / left_s
    needed = next(cores / 100 for cores in range(10, 1000) if plant.speed(cores / 100, 0) >= speed_needed)
    largest = max(devices for now_s, _, devices in run.samples if moved_s + 3 < now_s < run.finished_s - TAIL_S - 1)
    assert largest <= min(needed * 1.1 + 0.05, 2.0)
    assert abs(run.error_pct) <= 0.3


def test_job_that_stops_early_ends_early():
    plant = make_plant(300.0, noise=0.05, stops_at=400)
    run = simulate_run(plant, make_controller(plant, 450.0))
    assert run.finished_s < 450.0 * 0.7


def test_job_catches_up_after_a_low_ceiling():
    plant = make_plant(200.0, noise=0.05)
    deadline_s = 1.5 * plant.shortest_s(2.0)
    run = simulate_run(plant, make_controller(plant, deadline_s), ceilings={40.0: 0.63, 100.0: None})
    assert all(devices <= 0.6 for now_s, _, devices in run.samples if 41 < now_s < 100)
    assert abs(run.error_pct) <= 0.3


@pytest.mark.parametrize(("deadline_s", "expected"), [(200.0, 72.0), (100_000.0, 40.0), (math.inf, 40.0)])
def test_setpoint_after_an_extension_starts_at_the_progress(deadline_s, expected):
    """A late job that has new time is not behind any more."""
    controller = DeadlineController(LIMITS, 100.0)
    controller.start(0.0)
    step = {"total": 100, "allocated_devices": 2.0, "busy": 1.0}
    for second in range(1, 121):
        seen = Observation(float(second), second // 3, done_s=float(second), **step)
        decision = controller.step(seen)
    assert (decision.setpoint_pct, decision.progress_pct) == (100.0, 40.0)
    controller.move_deadline(120.5, deadline_s)
    assert controller.step(seen._replace(now_s=121.0)).setpoint_pct == 40.0
    assert controller.step(seen._replace(now_s=163.0)).setpoint_pct == pytest.approx(expected, abs=1.0)


def test_infeasible_deadline_is_reported_early_and_feasible_deadline_is_not():
    plant = make_plant(300.0, noise=0.05)
    shortest_s = plant.shortest_s(2.0)
    for known in (True, False):
        past = make_past_run(plant) if known else None
        infeasible_s = simulate_run(plant, DeadlineController(LIMITS, 0.7 * shortest_s, past=past)).infeasible_s
        assert infeasible_s is not None
        assert infeasible_s < 0.2 * shortest_s
        assert simulate_run(plant, DeadlineController(LIMITS, 1.2 * shortest_s, past=past)).infeasible_s is None


def watch_job(busy_from_100_s: float, steps: int, max_devices: float = 1.0) -> Decision:
    """Return the last decision for a job of 300 batches of 1 s, which loses a part of its core after 100 s."""
    controller = DeadlineController(Limits(0.1, max_devices), 400.0)
    controller.start(0.0)
    done = 0.0
    for second in range(steps):
        speed = 1.0 if second < 100 else busy_from_100_s
        busy = min(speed, 0.9)
        decision = controller.step(
            Observation(float(second), int(done), 300, done_s=float(second), allocated_devices=1.0, busy=busy)
        )
        done += speed
    return decision


def test_deadline_is_infeasible_on_the_part_of_the_core_that_the_job_gets_for_long():
    decision = watch_job(0.24, 200)
    assert not decision.feasible
    assert decision.finish_s == pytest.approx(100 + 200 / 0.24, rel=0.1)
    assert decision.earliest_s == pytest.approx(decision.finish_s, rel=0.2)


def test_setpoint_goes_on_from_its_value_if_the_tail_gets_longer_or_training_restarts():
    controller = DeadlineController(LIMITS, 100.0)
    controller.start(0.0)
    seen = Observation(10.0, done=0, total=100, allocated_devices=1.0, done_s=10.0)
    controller.step(seen)
    ahead = seen._replace(now_s=40.0, done=80, done_s=40.0)
    setpoint_pct, target_s = controller.step(ahead).setpoint_pct, controller.target_s
    assert setpoint_pct == pytest.approx(33.0, abs=2.0)
    saving = controller.step(ahead._replace(now_s=41.0, tail_s=20.0))
    assert controller.target_s < target_s - 10.0
    assert saving.setpoint_pct == pytest.approx(setpoint_pct, abs=2.0)
    restarted = controller.step(ahead._replace(now_s=42.0, done=None, restarting=True))
    assert restarted.setpoint_pct == pytest.approx(saving.setpoint_pct, abs=2.0)


@pytest.mark.parametrize(("busy", "steps", "max_devices"), [(0.24, 120, 1.0), (1.0, 200, 1.0), (0.24, 200, 2.0)])
def test_deadline_stays_feasible_for_a_moment_or_with_more_cores(busy, steps, max_devices):
    assert watch_job(busy, steps, max_devices).feasible


@pytest.mark.parametrize("stops", ["pause", "preemption"])
def test_slow_seconds_after_a_stop_do_not_make_the_deadline_infeasible(stops):
    controller = DeadlineController(Limits(0.1, 1.0), 420.0)
    controller.start(0.0)
    for second in range(20):
        controller.step(Observation(float(second), second, 300, done_s=float(second), allocated_devices=1.0, busy=0.9))
    for second in range(20, 80):
        if stops == "preemption":
            controller.interrupt(float(second))
        else:
            paused = Observation(float(second), 19, 300, done_s=19.0, allocated_devices=1.0, busy=0.9, in_pause=True)
            controller.step(paused)
    for second in range(80, 85):  # reads its data again
        slow = Observation(float(second), 19, 300, done_s=19.0, allocated_devices=1.0, busy=0.1)
        assert controller.step(slow).feasible, second


@pytest.mark.parametrize("known", [True, False])
def test_slow_first_batches_do_not_affect_feasibility_or_remaining_work(known):
    plant = make_plant(60.0, noise=0.02, speedup=amdahl(0.05))
    cold = replace(plant, neighbours=[Neighbour(0.0, STARTUP_S + 1.5, 0.8)])
    past = make_past_run(plant) if known else None
    assert simulate_run(cold, DeadlineController(LIMITS, 1.5 * plant.shortest_s(2.0), past=past)).infeasible_s is None
    controller = DeadlineController(LIMITS, 120.0, past=past)
    slow = [
        controller.step(Observation(second, done, 300, done_s=second, allocated_devices=0.5))
        for second, done in ((4, 1), (6, 4))
    ]
    assert known or slow[-1].remaining is None
    # After that, 6 batches/s on half a device, which is 1/12 s per batch on one device with linear speed-up.
    remaining = [
        controller.step(Observation(4 + n, 6 * n, 300, done_s=4 + n, allocated_devices=0.5)).remaining
        for n in (3, 4, 5)
    ][-1]
    assert remaining is not None
    assert known or remaining.work_s / (300 - 30) < 0.13


def test_next_run_does_not_learn_the_speed_from_the_tail():
    controller = DeadlineController(Limits(0.1, 2.0), 300.0)
    controller.set_start(0.0)
    for second in range(31):
        controller.step(Observation(float(second), 10 * second, 300, done_s=float(second), allocated_devices=0.5))
    learned = controller.learned()
    for second in range(31, 61):  # the job saves its model
        controller.step(Observation(float(second), 300, 300, done_s=30.0, allocated_devices=1.0))
    assert controller.learned() == learned


def test_job_gets_one_core_at_start_up_and_more_after_an_earlier_deadline():
    plant = make_plant(200.0)
    controller = DeadlineController(LIMITS, 4000.0, past=make_past_run(plant))
    assert controller.start(0.0) == 1.0
    controller.move_deadline(1.0, 1.05 * plant.shortest_s(2.0))
    assert controller.step(Observation(1.0, None, 1, allocated_devices=1.0)).devices > 1.5


def test_allocation_follows_a_rising_ceiling_before_the_first_report():
    low, high = 0.1, 0.3
    controller = DeadlineController(LIMITS, 80.0)  # without start(), because another process has started the job
    assert controller.step(Observation(1.0, None, 1, allocated_devices=low, ceiling=low)).devices == low
    assert controller.step(Observation(2.0, None, 1, allocated_devices=low, ceiling=high)).devices == pytest.approx(
        high
    )
    assert controller.step(
        Observation(3.0, 1, 300, done_s=3.0, allocated_devices=high, ceiling=high)
    ).devices == pytest.approx(high)
    with_whole_devices = DeadlineController(Limits(1, 4, quantum=1), 80.0, resize_s=10.0)
    assert with_whole_devices.step(Observation(1.0, None, 1, allocated_devices=1.0, ceiling=4.0)).devices == 1.0


def test_start_up_time_counts_from_the_start_and_from_an_interruption():
    plant = make_plant(200.0)
    past = replace(make_past_run(plant), startup_s=30.0)
    needs_s = 30.0 + 1.05 * plant.shortest_s(2.0)
    started, restored = (DeadlineController(LIMITS, 100.0 + needs_s, past=past) for _ in range(2))
    devices = started.start(100.0)  # the job has waited in a queue for 100 s
    assert devices > 1.5
    assert restored.step(Observation(101.0, None, 1, allocated_devices=devices)).devices >= devices
    interrupted = DeadlineController(LIMITS, 120.0 + needs_s, past=past)
    assert interrupted.start(0.0) == 1.0, "one device is enough at first"
    interrupted.interrupt(120.0)
    assert interrupted.step(Observation(120.0, None, 1, allocated_devices=1.0)).devices > 1.5


def test_restored_controller_keeps_the_allocation_until_a_report():
    before = DeadlineController(LIMITS, 80.0)
    before.start(0.0)
    before.step(Observation(2.0, 5, 300, done_s=2.0, allocated_devices=1.0))
    after = DeadlineController(LIMITS, 80.0)
    after.restore(before.state())
    assert after.step(Observation(3.0, None, 1, allocated_devices=0.35)).devices == pytest.approx(0.35)


def test_wrong_measurements_of_the_last_run_are_corrected():
    plant = make_plant(200.0, noise=0.05)
    past = PastRun(plant.batches // 3, 1.0, TAIL_S, 1.0, 4 * plant.speed(1.0, 0.0), 0.4, 0.0)
    run = simulate_run(plant, DeadlineController(LIMITS, 1.5 * plant.shortest_s(2.0), past=past), seed=4)
    assert abs(run.error_pct) <= 0.5


def test_job_that_needs_a_fraction_of_a_gpu_is_rarely_resized():
    limits = Limits(1, 4, quantum=1)
    plant = Plant(2000, 1.0, startup_s=10.0, tail_s=2.0, noise=0.05, resize_s=0.0, resize_pause_s=4.0)
    for d_c in (1.3, 1.5, 1.8):
        deadline_s = d_c * plant.shortest_s(4.0)
        past = PastRun(2000, 10.0, 2.0, 4.0, plant.speed(4.0, 0.0), 0.85, 0.0)
        run = simulate_run(plant, DeadlineController(limits, deadline_s, period_s=5.0, past=past, resize_s=4.0), seed=5)
        assert all(devices == int(devices) for _, _, devices in run.samples)
        assert run.resizes <= 12
        assert abs(run.error_pct) <= 1.0


@pytest.mark.parametrize("d_c", [1.3, 1.5, 1.8])
@pytest.mark.parametrize("takes_s", [0.1, 30.0])
def test_later_plans_reserve_the_time_that_the_first_resize_took(takes_s, d_c):
    """If they reserved the 3 s of the last run, the job with resizes of 30 s would end 2 to 5 % late."""
    plant = Plant(2000, 1.0, startup_s=10.0, tail_s=2.0, noise=0.05, resize_pause_s=takes_s)
    past = PastRun(2000, 10.0, 2.0, 4.0, plant.speed(4.0, 0.0), 0.85, 0.0)
    controller = DeadlineController(
        Limits(1, 4, quantum=1), d_c * plant.shortest_s(4.0), period_s=5.0, past=past, resize_s=3.0
    )
    run = simulate_run(plant, controller, seed=5)
    assert run.resizes <= 6
    assert -5.0 < run.error_pct < 0.1


@pytest.mark.parametrize(("known", "reserved_s"), [(None, 0.5), (2.5, 2.5)])
def test_time_of_a_resize_is_that_of_the_last_run_or_typical(known, reserved_s):
    """A job of one core has no resizes that interrupt training."""
    past = PastRun(2000, 10.0, 2.0, 4.0, 4.0, 0.85, 0.0, resize_s=known)
    whole, shared = (make_default("default", Limits(1, 4, quantum), 600.0, past=past) for quantum in (1, 0.05))
    assert (whole._resize_s, shared._resize_s) == (reserved_s, 0.0)


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
def test_limits_quantum_and_ceiling_hold_for_random_jobs(kind, d_c, changed_to, ceiling, seed):
    plant = make_plant(60.0, **kind)
    shortest_s = plant.shortest_s(2.0)
    new_deadlines = {0.3 * d_c * shortest_s: changed_to * shortest_s} if changed_to else None
    known = make_past_run(plant) if seed % 2 else None
    controller = DeadlineController(LIMITS, d_c * shortest_s, past=known)
    run = simulate_run(
        plant, controller, seed=seed, new_deadlines=new_deadlines, ceilings={10.0: ceiling} if ceiling else None
    )
    in_force_s = 10.0 + 2 * (kind["resize_s"] + 1.0)  # the last resize is complete
    for now_s, percent, devices in run.samples:
        steps = devices / LIMITS.quantum
        assert steps == pytest.approx(round(steps))
        assert LIMITS.min_devices <= devices <= LIMITS.max_devices
        if ceiling and now_s > in_force_s and percent < 100:
            assert devices <= max(ceiling, LIMITS.quantum) + 1e-9


@settings(max_examples=20)
@given(st.floats(0, 0.1), st.floats(0, 0.8), st.floats(1.2, 3), st.integers(0, 99))
def test_allocation_does_not_oscillate(noise, serial, d_c, seed):
    plant = make_plant(600.0, noise=noise, speedup=amdahl(serial))
    run = simulate_run(plant, make_controller(plant, d_c * plant.shortest_s(2.0)), seed=seed)
    allocations = [cores for _, percent, cores in run.samples if 5 < percent < 95]
    half = len(allocations) // 2
    first, second = (max(part) - min(part) for part in (allocations[:half], allocations[half:]))
    assert second <= first + 0.2
    assert run.resizes <= 0.4 * run.steps


def test_alpha_sets_the_target_end_and_is_validated():
    plant = make_plant(100.0)
    run = simulate_run(plant, make_controller(plant, 200.0, alpha=0.8))
    assert run.finished_s == pytest.approx(160.0, rel=0.003)
    for alpha in (0, 1.2, -0.5, True, math.nan):
        with pytest.raises(InvalidInputError, match=r"alpha: got .*, expected a number in \(0, 1\]"):
            DeadlineController(LIMITS, 60, alpha=alpha)


def test_restored_controller_does_not_change_the_allocation():
    plant = make_plant(200.0)
    before = make_controller(plant, 300.0)
    for second in range(60):
        last = before.step(Observation(second, second * 2, plant.batches, done_s=second, allocated_devices=1.0)).devices
    after = DeadlineController(LIMITS, 60.0)
    after.restore(before.state())
    decision = after.step(Observation(61, 122, plant.batches, done_s=61, allocated_devices=last))
    assert after.deadline_s == 300.0
    assert abs(decision.devices - last) <= 0.1


def test_control_period_of_a_late_job_is_not_shortened():
    controller = DeadlineController(LIMITS, 60.0)
    devices = controller.start(0.0)
    steps = {}
    for second in range(1, 100):
        decision = controller.step(Observation(second, second, 1000, done_s=second, allocated_devices=devices))
        devices, steps[second] = decision.devices, decision.next_s
    assert (devices, steps[30], steps[70], steps[99]) == (2.0, 1.0, 1.0, 1.0)
    assert steps[56] < 1.0  # the control period is shorter shortly before the end


@pytest.mark.parametrize(
    "damaged",
    [
        {"deadline_s": "60"}, {"deadline_s": 10**400}, {"began_s": []}, {"ramp": [0, "0", 60]}, {"total": None},
        {"usable": "all"}, {"usable": -1}, {"speed": {"log_speed": {}}}, {"speed": {"exponent": 0}},
        {"speed": {"covariance": [0.1, None, 0.1]}}, {"speed": {"observed": "many"}},
    ],
    ids=str,
)  # fmt: skip
def test_damaged_state_is_not_restored(damaged):
    before = DeadlineController(LIMITS, 60.0)
    for second in range(10):
        before.step(Observation(second, 2 * second, 100, 1.0, done_s=second))
    state = before.state()
    damaged = {name: {**state[name], **value} if name == "speed" else value for name, value in damaged.items()}
    with pytest.raises((TypeError, ValueError)):
        DeadlineController(LIMITS, 60.0).restore({**state, **damaged})
