"""A job that has no deadline gets all there is; given one, it gets no more than that takes."""

import json
import math

from paceline.control import BudgetController, Limits
from paceline.testing.plant import Plant
from paceline.testing.simulated_run import pace

PLANT = Plant(batches=400, batch_s=0.5, startup_s=3.0, tail_s=0.5)


def test_it_holds_the_whole_budget_within_the_ceiling_and_says_when_it_will_be_done():
    controller = BudgetController(Limits(0.1, 2.0))
    assert math.isinf(controller.deadline_s)
    run = pace(PLANT, controller, ceilings={40.0: 0.6, 60.0: None})
    held = {moment: devices for moment, _, devices in run.samples}
    assert all(devices == 0.6 for moment, devices in held.items() if 41 < moment < 59)
    assert all(devices == 2.0 for moment, devices in held.items() if moment < 39 or 61 < moment < run.finished_s - 2)
    assert run.infeasible_s is None


def test_a_deadline_that_somebody_gives_it_is_kept():
    run = pace(PLANT, BudgetController(Limits(0.1, 2.0)), moves={20.0: 180.0})
    assert abs(run.finished_s - 180.0) < 2.0
    assert min(devices for moment, _, devices in run.samples if moment > 30) < 1.5


def test_its_state_is_json_and_brings_back_that_there_is_no_deadline():
    first, second = BudgetController(Limits(0.1, 2.0)), BudgetController(Limits(0.1, 2.0))
    pace(PLANT, first)
    second.restore(json.loads(json.dumps(first.state(), allow_nan=False)))
    assert math.isinf(second.deadline_s)
    assert second.state() == first.state()
