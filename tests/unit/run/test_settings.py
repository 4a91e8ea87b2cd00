"""The deadline that a training begins with is a user's, if somebody has set one that can be read, else the DAG's."""

from __future__ import annotations

import logging
import math
from datetime import datetime, timezone

import pytest

from paceline.contract import DEADLINE, Deadline
from paceline.control import BudgetController, DeadlineController, Limits
from paceline.run import MemoryState
from paceline.run.settings import Settings

NOW = datetime.now(timezone.utc)
LOG = logging.getLogger("test")


def in_force(store, **settings):
    return Settings(**settings).deadline_in_force(store, LOG).seconds_after(NOW)


def test_a_training_without_a_deadline_stores_that_it_has_none_until_a_user_sets_one():
    store = MemoryState()
    assert math.isinf(in_force(store, deadline=Deadline()))
    assert store[DEADLINE] == {"deadline": None}
    store.set(DEADLINE, "20m")
    assert in_force(store, deadline=Deadline()) == 1200


@pytest.mark.parametrize("nonsense", ["soon", -5, {"deadline": []}, True])
def test_a_stored_deadline_that_cannot_be_read_makes_room_for_the_one_of_the_dag(nonsense, caplog):
    store = MemoryState(deadline=nonsense)
    assert in_force(store, deadline=Deadline.parse("30m"), written="30m") == 1800
    assert store[DEADLINE] == "30m"
    assert "The deadline in the task state store is not taken" in caplog.text


def test_who_has_no_deadline_is_steered_by_its_budget_and_one_that_has_passed_can_still_be_steered_to():
    limits = Limits(0.1, 2.0)
    assert isinstance(Settings(deadline=Deadline()).make_controller(limits, math.inf, None), BudgetController)
    late = Settings(deadline=Deadline.parse("1m")).make_controller(limits, -30.0, None)
    assert isinstance(late, DeadlineController)
    assert late.deadline_s > 0
