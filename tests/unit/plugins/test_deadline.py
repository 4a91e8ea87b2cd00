"""Every way to set a deadline accepts the same values, and rejects the others with the same message."""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any
from unittest.mock import Mock

import pytest
from airflow.models.task_state_store import TaskStateStoreModel as Stored
from fastapi import HTTPException
from pydantic import ValidationError
from sqlalchemy.orm import Session
from tests.samples import a_sample

from paceline.airflow import cli
from paceline.airflow.api import AirflowApiError
from paceline.contract import CEILING, DEADLINE, PACE, Ceiling, Deadline, StoredDeadline, finite
from paceline.control import BudgetController, DeadlineController, Limits
from paceline.errors import InvalidInputError
from paceline.operators import DeadlineTrainingOperator, _arguments
from paceline.plugins.web.deadline import DeadlineChange, TargetTask, change_deadline, check_deadline
from paceline.run import History, MemoryState
from paceline.run._commands import Commands
from paceline.run._journal import Journal
from paceline.run._queue import Queue
from paceline.run.settings import Settings

ORIGIN = datetime.now(timezone.utc) - timedelta(seconds=10)  # 10 s have passed
CURRENT_S = 900.0
AN_HOUR_LATER = (ORIGIN + timedelta(hours=1)).isoformat()
LOG = logging.getLogger("test")
LIMITS = Limits(0.1, 2.0)

NEEDS_FORM, IS_PAST, IS_UNIX_TIME = "expected a duration (", "expected a time in the future", "a Unix time?"
VALUES: list[tuple[Any, float | str]] = [
    ("20m", 1200),
    (" 1h30m ", 5400),
    ("PT20M", 1200),
    ("20", 20),
    (20, 20),
    (20.5, 20.5),
    (AN_HOUR_LATER, 3600),
    ({"deadline": "20m"}, 1200),
    ("5s", IS_PAST),
    (5, IS_PAST),
    ("2020-01-31T18:00:00Z", IS_PAST),
    ("2090-01-31T18:00:00", NEEDS_FORM),
    ("", NEEDS_FORM),
    ("soon", NEEDS_FORM),
    ("-5", NEEDS_FORM),
    ("inf", NEEDS_FORM),
    ("20m" + 100 * " ", NEEDS_FORM),
    (0, NEEDS_FORM),
    (-5, NEEDS_FORM),
    (math.nan, NEEDS_FORM),
    (math.inf, NEEDS_FORM),
    (True, NEEDS_FORM),
    ([], NEEDS_FORM),
    ({}, NEEDS_FORM),
    (1_764_352_000, IS_UNIX_TIME),
    ("1764352000", IS_UNIX_TIME),
]
NONE = ["none", " None ", None, {"deadline": None}, {"deadline": "none"}]

Way = Callable[[Any, float], float]


def sample_of(current_s: float) -> Any:
    deadline_s = None if math.isinf(current_s) else current_s
    return a_sample(t_s=10.0, updated_at=ORIGIN + timedelta(seconds=10), deadline_s=deadline_s).to_json()


def stored(value: Any) -> Any:
    return value if isinstance(value, dict) and value else {"deadline": value, "by": "anna"}


def seconds(raw: object, current_s: float) -> float:
    """Return the deadline that a running task reads from the store."""
    return StoredDeadline.read(raw).accept(ORIGIN, 10.0, current_s)


def set_in_the_dag(value: Any, current_s: float) -> float:
    team = {} if math.isinf(current_s) else None
    task = DeadlineTrainingOperator(task_id="train", command="python -m app", deadline=value, team=team)
    return _arguments._deadline(task).seconds_after(ORIGIN)


def add_job(session: Session, task_id: str, pace: Any, now: datetime) -> Stored:
    """Store the state of a job; return the row of its deadline."""
    task: dict[str, Any] = {"dag_run_id": 1, "dag_id": "dag", "run_id": "run", "task_id": task_id, "map_index": -1}
    session.query(Stored).filter_by(task_id=task_id).delete()
    session.add(Stored(**task, key=PACE, value=json.dumps(pace), updated_at=now))
    session.add(row := Stored(**task, key=DEADLINE, value='"15m"', updated_at=now))
    session.flush()
    return row


@pytest.fixture
def set_by_command(session: Session, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Way:
    def set_deadline(value: str, current_s: float) -> float:
        now = datetime.now(timezone.utc)
        row = add_job(session, "train", sample_of(current_s), now)
        seen = {"value": "15m", "updated_at": now.isoformat()}
        job = {"task_id": "train", "map_index": -1, "state": "running", "deadline": seen, "pace": None}

        def call(path: str, body: Any = None, *, method: str = "GET") -> Any:
            if method == "GET":
                return {"state": "running", "jobs": [job]}
            change, anna = DeadlineChange.model_validate(body), Mock(**{"get_name.return_value": "anna"})
            try:
                return change_deadline("dag", "run", change, session, anna)
            except HTTPException as error:
                raise AirflowApiError(error.status_code, error.detail) from None

        monkeypatch.setattr(cli, "_connect", lambda options: Mock(pages=call))
        if cli.main(["deadline", "set", "dag", "run", "train", "--", value]):
            assert json.loads(row.value) == "15m"
            raise ValueError(capsys.readouterr().err)
        session.refresh(row)
        stored = json.loads(row.value)
        assert stored["by"] == "anna"
        return seconds(stored, current_s)

    return set_deadline


@pytest.fixture
def set_on_the_page(session: Session) -> Way:
    def set_deadline(value: Any, current_s: float) -> float:
        now = datetime.now(timezone.utc)
        row = add_job(session, "train", sample_of(current_s), now)
        body = json.loads(json.dumps({"deadline": value, "jobs": [{"task_id": "train", "seen": now.isoformat()}]}))
        change, anna = DeadlineChange.model_validate(body), Mock(**{"get_name.return_value": "anna"})
        try:
            checked_s = check_deadline("dag", "run", change, session)
        except HTTPException:
            with pytest.raises(HTTPException) as refused:
                change_deadline("dag", "run", change, session, anna)
            assert refused.value.status_code == 422
            raise ValueError(refused.value.detail) from None
        finally:
            assert json.loads(row.value) == "15m"
        change_deadline("dag", "run", change, session, anna)
        session.refresh(row)
        new = json.loads(row.value)
        assert new["by"] == "anna"
        assert finite(seconds(new, current_s)) == checked_s
        return seconds(new, current_s)

    return set_deadline


@pytest.fixture
def way(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Way:
    """Return a way to set a deadline. It returns the new deadline in seconds, or raises an error with the message."""

    def checked(new_s: float, current_s: float) -> float:
        if caplog.messages:
            assert new_s == current_s, "a rejected deadline has no effect"
            raise ValueError(caplog.messages[0])
        return new_s

    def stored_before_the_try(value: Any, current_s: float) -> float:
        own = Deadline() if math.isinf(current_s) else Deadline(current_s)
        store = MemoryState(deadline=stored(value), pace=sample_of(current_s))
        return checked(Settings(deadline=own).deadline_in_force_s(store, ORIGIN, 10.0, LOG), current_s)

    def stored_while_the_job_waits(value: Any, current_s: float) -> float:
        store = MemoryState({DEADLINE: stored(value), CEILING: Ceiling(1.0, 1).to_json()})
        controller = BudgetController(LIMITS) if math.isinf(current_s) else DeadlineController(LIMITS, current_s)
        options: dict[str, Any] = {"pool": "pool", "clock": Mock(now=lambda: ORIGIN.timestamp() + 10.0), "log": LOG}
        Queue(controller, None, ORIGIN, on_infeasible="fail", **options).exchange(store)
        return checked(controller.deadline_s, current_s)

    def stored_while_the_job_runs(value: Any, current_s: float) -> float:
        run = Commands(ORIGIN, current_s, Journal(History(), LOG), min_ceiling=0.1)
        run.update({DEADLINE: {"deadline": None} if value is None else value}, 10.0)
        return checked(run.deadline_s, current_s)

    ways = {
        "before": stored_before_the_try,
        "waiting": stored_while_the_job_waits,
        "running": stored_while_the_job_runs,
        "dag": set_in_the_dag,
    }
    caplog.set_level(logging.WARNING, "test")
    return ways.get(request.param) or request.getfixturevalue(f"set_{request.param}")


WAYS = ("dag", "by_command", "on_the_page", "before", "waiting", "running")


def ways_for(value: Any) -> list[str]:
    return [way for way in WAYS if isinstance(value, str) or way != "by_command"]  # a shell passes text


@pytest.mark.parametrize("current_s", [CURRENT_S, math.inf])
@pytest.mark.parametrize(
    ("way", "value", "expected"),
    [(way, value, expected) for value, expected in VALUES for way in ways_for(value)],
    indirect=["way"],
    ids=lambda value: "an hour later" if value == AN_HOUR_LATER else None,  # the same name in each process of the tests
)
def test_deadline_is_accepted_or_rejected_alike_everywhere(
    way: Way, value: Any, expected: float | str, current_s: float
) -> None:
    if way is set_in_the_dag and expected == IS_PAST:
        assert way(value, current_s) < 10  # on_infeasible sets the response to a deadline that passed before the start
    elif isinstance(expected, str):
        with pytest.raises(ValueError, match=re.escape(f"deadline: got {value!r}, expected ")) as caught:
            way(value, current_s)
        assert expected in str(caught.value)
    else:
        assert way(value, current_s) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("way", "value"), [(way, value) for value in NONE for way in ways_for(value)], indirect=["way"]
)
def test_no_deadline_means_the_same_everywhere(way: Way, value: Any) -> None:
    assert math.isinf(way(value, math.inf))
    with pytest.raises(ValueError, match=r"deadline: got None, expected a duration .* a deadline cannot be removed"):
        way(value, CURRENT_S)


def test_deadline_in_effect_may_be_set_again_after_it_has_passed() -> None:
    assert StoredDeadline("30s").accept(ORIGIN, now_s=60.0, current_s=30.0) == 30.0
    with pytest.raises(InvalidInputError, match="a time in the future"):
        StoredDeadline("30s").accept(ORIGIN, now_s=60.0, current_s=31.0)


def test_page_gets_the_deadline_after_the_earliest_origin(session: Session) -> None:
    """Not every job of a run counts from the same time, so a point in time is a different number of seconds."""
    now = datetime.now(timezone.utc)
    for task_id, late_s in (("first", 0), ("second", 5)):
        add_job(session, task_id, a_sample(t_s=10.0 - late_s, updated_at=now, deadline_s=CURRENT_S).to_json(), now)
    targets = [TargetTask(task_id=task_id, seen=now) for task_id in ("second", "first")]
    change = DeadlineChange(deadline=(now + timedelta(seconds=90)).isoformat(), jobs=targets)
    assert check_deadline("dag", "run", change, session) == pytest.approx(100.0)
    change.deadline = "100s"  # of each job's own time
    assert check_deadline("dag", "run", change, session) == pytest.approx(105.0)
    change.jobs.append(TargetTask(task_id="unknown", seen=now))
    with pytest.raises(HTTPException, match="unknown is not training"):
        check_deadline("dag", "run", change, session)


@pytest.mark.parametrize("value", [{"map_index": 2**63}, {"map_index": -2}, {"seen": "0001-01-01T00:00:00+23:00"}])
def test_values_that_no_database_can_hold_are_invalid(value: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        TargetTask.model_validate({"task_id": "train", **value})
