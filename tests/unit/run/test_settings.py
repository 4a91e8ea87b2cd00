"""The initial deadline of a training job is the user's deadline if it is valid, otherwise the DAG's deadline."""

from __future__ import annotations

import logging
import math
from datetime import datetime, timedelta, timezone

import pytest
from tests.samples import a_sample

from paceline.contract import DEADLINE, Deadline, StoredDeadline
from paceline.control import BudgetController, DeadlineController, Limits
from paceline.errors import InvalidInputError
from paceline.run import MemoryState
from paceline.run.settings import Settings

NOW = datetime.now(timezone.utc)
LOG = logging.getLogger("test")


def deadline_in_force_s(store, now_s=0.0, **settings):
    return Settings(**settings).deadline_in_force_s(store, NOW, now_s, LOG)


def test_job_without_a_deadline_accepts_a_users_deadline():
    store = MemoryState()
    assert math.isinf(deadline_in_force_s(store, deadline=Deadline()))
    assert store[DEADLINE] == {"deadline": None}
    store.set(DEADLINE, "20m")
    assert deadline_in_force_s(store, deadline=Deadline()) == 1200


@pytest.mark.parametrize("invalid", ["soon", -5, {"deadline": []}, True])
def test_invalid_stored_deadline_is_replaced_by_the_dags_deadline(invalid, caplog):
    store = MemoryState(deadline=invalid)
    assert deadline_in_force_s(store, deadline=Deadline.parse("30m"), written="30m") == 1800
    assert store[DEADLINE] == "30m"
    assert "The deadline in the task state store was rejected" in caplog.text


@pytest.mark.parametrize("rejected", ["soon", "5s", {"deadline": "55s", "by": "anna"}])
def test_next_try_keeps_the_deadline_of_the_last_sample_instead_of_a_rejected_one(rejected, caplog):
    store = MemoryState(deadline=rejected, pace=a_sample(deadline_s=900.0).to_json())
    assert deadline_in_force_s(store, 60.0, deadline=Deadline.parse("20m"), written="20m") == 900
    assert StoredDeadline.read(store[DEADLINE]).parse(optional=False).duration_s == 900
    assert "The deadline in the task state store was rejected" in caplog.text


def test_unix_time_as_a_stored_deadline_is_rejected(caplog):
    store = MemoryState(deadline="1900000000")
    assert deadline_in_force_s(store, deadline=Deadline.parse("20m"), written="20m") == 1200
    assert "a Unix time? write an ISO 8601 time" in caplog.text


def test_timedelta_longer_than_a_year_is_in_force_in_the_next_try_too():
    longest = timedelta(days=400)
    store, settings = MemoryState(), {"deadline": Deadline.parse(longest), "written": longest.total_seconds()}
    assert deadline_in_force_s(store, **settings) == longest.total_seconds()
    assert deadline_in_force_s(store, deadline=Deadline.parse("20m"), written="20m") == longest.total_seconds()


def test_deadline_that_has_passed_since_it_was_set_stays_in_force(caplog):
    store = MemoryState(deadline="55s", pace=a_sample(deadline_s=55.0).to_json())
    assert deadline_in_force_s(store, 60.0, deadline=Deadline.parse("20m"), written="20m") == 55
    assert store[DEADLINE] == "55s"
    assert not caplog.records


def test_controller_depends_on_the_deadline_even_if_it_has_passed():
    limits = Limits(0.1, 2.0)
    assert isinstance(Settings(deadline=Deadline()).make_controller(limits, math.inf, None), BudgetController)
    late = Settings(deadline=Deadline.parse(NOW - timedelta(seconds=30)))
    deadline_s = late.deadline_in_force_s(MemoryState(), NOW, 60.0, LOG)
    assert isinstance(late.make_controller(limits, deadline_s, None), DeadlineController)


def test_job_on_an_unknown_number_of_cores_needs_a_maximum():
    with pytest.raises(InvalidInputError, match=r"max_devices: got None, expected a number, because the runtime"):
        Settings(deadline=Deadline()).limits(math.inf, LOG)
    assert Settings(deadline=Deadline(), max_devices=4).limits(math.inf, LOG).max_devices == 4
