"""The budget controller allocates the maximum, or the smallest sufficient allocation if a user sets a deadline."""

import json
import math

from paceline.control import BudgetController, Limits
from paceline.testing.plant import Plant
from paceline.testing.simulated_run import simulate_run

PLANT = Plant(batches=400, batch_s=0.5, startup_s=3.0, tail_s=0.5)


def test_budget_controller_allocates_the_maximum_within_the_ceiling():
    controller = BudgetController(Limits(0.1, 2.0))
    assert math.isinf(controller.deadline_s)
    run = simulate_run(PLANT, controller, ceilings={40.0: 0.6, 60.0: None})
    allocations = {now_s: devices for now_s, _, devices in run.samples}
    assert all(devices == 0.6 for now_s, devices in allocations.items() if 41 < now_s < 59)
    outside = [devices for now_s, devices in allocations.items() if now_s < 39 or 61 < now_s < run.finished_s - 2]
    assert all(devices == 2.0 for devices in outside)
    assert run.infeasible_s is None


def test_budget_controller_meets_a_deadline_set_later():
    run = simulate_run(PLANT, BudgetController(Limits(0.1, 2.0)), new_deadlines={20.0: 180.0})
    assert abs(run.finished_s - 180.0) < 2.0
    assert min(devices for now_s, _, devices in run.samples if now_s > 30) < 1.5


def test_budget_controller_state_round_trips_through_json():
    first, second = BudgetController(Limits(0.1, 2.0)), BudgetController(Limits(0.1, 2.0))
    simulate_run(PLANT, first)
    second.restore(json.loads(json.dumps(first.state(), allow_nan=False)))
    assert math.isinf(second.deadline_s)
    assert second.state() == first.state()
