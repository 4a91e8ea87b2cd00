"""A run accepts valid deadlines and ceilings from the state store and rejects invalid values."""

from __future__ import annotations

import logging
import math
from datetime import datetime, timezone

import pytest

from paceline.contract import DEADLINE, Deadline
from paceline.run import History
from paceline.run._commands import Commands
from paceline.run._journal import Journal


def make_commands(deadline_s: float) -> Commands:
    journal = Journal(History(), logging.getLogger("test"))
    return Commands(datetime(2030, 1, 1, tzinfo=timezone.utc), deadline_s, journal, min_ceiling=0.1)


def test_run_without_a_deadline_accepts_a_new_deadline(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    run = make_commands(math.inf)
    assert not run.update({DEADLINE: {"deadline": None}}, 10.0)
    assert not caplog.records
    assert run.update({DEADLINE: "2m"}, 11.0)
    assert run.deadline_s == 120.0
    assert caplog.messages == ["Deadline set to 120.0 s"]


def test_deadline_of_a_run_cannot_be_removed(caplog: pytest.LogCaptureFixture) -> None:
    run = make_commands(60.0)
    assert not run.update({DEADLINE: {"deadline": None}}, 10.0)
    assert run.deadline_s == 60.0
    assert "the old deadline of 60.0 s remains. deadline: got None" in caplog.text


def test_unix_time_as_a_new_deadline_is_rejected(caplog: pytest.LogCaptureFixture) -> None:
    run = make_commands(60.0)
    assert not run.update({DEADLINE: {"deadline": 1_900_000_000, "by": "anna"}}, 10.0)
    assert run.deadline_s == 60.0
    assert "a Unix time? write an ISO 8601 time" in caplog.text


def test_extension_beyond_a_year_is_stored_in_a_form_that_is_accepted() -> None:
    run = make_commands(60.0)
    stored = run.extend(400 * 86_400.0, 20.0)
    assert not run.update({DEADLINE: stored}, 21.0)
    assert make_commands(60.0).update({DEADLINE: stored}, 21.0)
    assert run.deadline_s == 400 * 86_400.0


def test_old_deadline_read_after_an_extension_is_ignored() -> None:
    run = make_commands(60.0)
    run.update({DEADLINE: "1m"}, 10.0)
    assert run.extend(102.0, 20.0) == 102.0
    assert not run.update({DEADLINE: "1m"}, 21.0)  # the store still contains the old deadline
    assert not run.update({DEADLINE: 102.0}, 22.0)
    assert run.deadline_s == 102.0
    assert run.update({DEADLINE: "1m"}, 23.0)  # a user sets the same deadline again
    assert run.deadline_s == 60.0


def test_earlier_extension_read_after_a_later_one_is_ignored(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    run = make_commands(60.0)
    run.update({DEADLINE: "1m"}, 10.0)
    stored = [run.extend(deadline_s, 20.0) for deadline_s in (102.0, 130.0, 150.0)]
    for late in ("1m", *stored, stored[-1]):  # each write takes longer than the time to the next extension
        assert not run.update({DEADLINE: late}, 135.0)
    assert run.deadline_s == 150.0
    assert not caplog.messages
    assert run.update({DEADLINE: "5m"}, 136.0)  # the deadline that a user sets


def test_user_changes_a_deadline_back_after_an_extension() -> None:
    run = make_commands(60.0)
    run.update({DEADLINE: "1m"}, 10.0)
    run.extend(102.0, 20.0)
    assert run.update({DEADLINE: "5m"}, 21.0)  # before the extension was read back
    assert run.update({DEADLINE: "1m"}, 22.0)
    assert run.deadline_s == 60.0


def test_point_in_time_before_the_origin_is_not_a_new_deadline(caplog: pytest.LogCaptureFixture) -> None:
    before = "2029-12-31T23:59:00+00:00"
    run = make_commands(Deadline.parse(before).seconds_after(datetime(2030, 1, 1, tzinfo=timezone.utc)))
    assert not run.update({DEADLINE: before}, 10.0)
    assert not caplog.records
