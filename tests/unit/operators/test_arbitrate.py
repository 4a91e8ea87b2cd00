"""The arbiter's task: what it takes, and how it reads what trainings say."""

from __future__ import annotations

import logging
from datetime import timedelta

import pytest

from paceline.airflow.api import AirflowApiError
from paceline.arbiter import Arbiter, DeviceRequest, Grant
from paceline.contract import Ceiling
from paceline.errors import InvalidInputError
from paceline.operators import ArbiterOperator
from paceline.operators.arbitrate import POLICIES, _key, _policy, _PoolLog, _request

GOOD = {"task_id": "arbiter", "pool": "trainings", "devices": 2, "conn_id": "airflow_api"}


WRONG = {
    "devices": (0, "many", True),
    "policy": ("fair",),
    "every": (0,),
    "lifetime": (-1,),
    "quantum": (0, "x", float("nan")),
    "pool": (None, ""),
}


@pytest.mark.parametrize(("field", "value"), [(field, value) for field, values in WRONG.items() for value in values])
def test_wrong_argument_is_named(field, value):
    with pytest.raises(InvalidInputError, match=field):
        ArbiterOperator(**{**GOOD, field: value})


def test_templates_wait_for_the_run():
    made = ArbiterOperator(**{**GOOD, "devices": "{{ params.devices }}", "policy": "{{ params.policy }}"})
    assert made.pool == "default_pool", "it takes no slot from those it is there for"
    assert ArbiterOperator(**{**GOOD, "every": timedelta(minutes=5)}).every == timedelta(minutes=5)


def row(**changed):
    return {
        "dag_id": "night", "run_id": "r1", "task_id": "train", "map_index": -1, "state": "running",
        "started_at": "2030-01-01T12:00:00Z", "priority_weight": 1, "lost": False, "pace": None,
        "ceiling": None, **changed,
    }  # fmt: skip


def sample(**changed):
    """A sample of a training that waits."""
    return {
        "state": "waiting", "t_s": 5.0, "updated_at": "2030-01-01T12:00:05+00:00", "progress_pct": 0.0,
        "setpoint_pct": 0.0, "devices": 0.0, "min_devices": 0.1, "max_devices": 2.0, "quantum": 0.05,
        "deadline_s": 6e9, "grant": 0, "metrics": {}, "remaining": None, **changed,
    }  # fmt: skip


def test_mapped_tasks_have_different_keys():
    assert _key(row()) == "night r1 train"
    assert _key(row(map_index=3)) == "night r1 train[3]"


def test_a_task_that_has_said_nothing_holds_nothing_and_a_lost_one_all_that_it_was_granted():
    assert _request("a", row(), "on_time") is None
    granted = Ceiling(0.5, 3, at_most=1.0).to_json()
    silent = _request("a", row(ceiling=granted), "on_time")
    assert (silent.lost, silent.committed) == (True, 1.0)
    pace = sample(state="training", devices=0.8, deadline_s=60.0, grant=3)
    heard = _request("a", row(ceiling=granted, pace=pace), "on_time")
    assert (heard.lost, heard.committed) == (False, 0.8)
    lost = _request("a", row(ceiling=granted, pace=pace, lost=True), "on_time")
    assert (lost.lost, lost.committed) == (True, 1.0)
    alone = _request("a", row(pace={**pace, "grant": None}, lost=True), "on_time")
    assert (alone.lost, alone.committed) == (True, 2.0), "one that shares nothing may hold all that it may have"
    over = _request("a", row(ceiling=granted, pace={**pace, "state": "finished"}, lost=True), "on_time")
    assert over.committed == 0.0


class Api:
    """An Airflow whose tasks may vanish between a look and a word to them."""

    def __init__(self, rows, gone=()):
        self.rows, self.gone, self.told = rows, gone, {}

    def pages(self, path):
        assert path == "/pools/trainings/trainings"
        return self.rows

    def put_task_state(self, dag_id, run_id, task_id, key, value, *, map_index=-1):
        if run_id in self.gone:
            raise AirflowApiError(404, "Task instance not found")
        self.told[run_id] = (key, value["devices"])


def test_a_run_that_was_deleted_meanwhile_keeps_nobody_else_waiting(caplog):
    api = Api([row(run_id=name, pace=sample()) for name in ("r1", "r2", "r3")], gone=("r1",))
    told = _PoolLog(logging.getLogger("test"))
    ArbiterOperator(**GOOD)._look(api, Arbiter(2.0), told)
    assert {run_id: devices > 0 for run_id, (_, devices) in api.told.items()} == {"r2": True, "r3": True}
    assert caplog.text.count("night r1 train could not be sent its ceiling") == 1
    assert told.summary()["grants"] == 2


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_decides_and_airflows_priority_weight_counts_under_the_one_of_that_name(policy):
    pace = sample(min_devices=1.5)
    early = row(run_id="early", pace=pace)
    important = row(run_id="important", pace=pace, started_at="2030-01-01T12:01:00Z", priority_weight=7)
    api = Api([early, important])
    operator = ArbiterOperator(**{**GOOD, "policy": policy})
    operator._look(api, Arbiter(2.0, policy=_policy(policy, 60.0)), _PoolLog(logging.getLogger("test")))
    assert [run_id for run_id, (_, devices) in api.told.items() if devices > 0] == [
        "important" if policy == "priority" else "early"
    ]


def test_grants_of_somebody_else_are_told_once(caplog):
    told = _PoolLog(logging.getLogger("test"))
    mine, theirs = (DeviceRequest.of_a_lost_one("a", Ceiling(0.5, number)) for number in (3, 4))
    told.take(Grant("a", mine.ceiling, None))
    told.look([mine])
    assert "Somebody else" not in caplog.text
    told.look([theirs])
    told.look([theirs])
    assert caplog.text.count("Somebody else gives out devices of this pool") == 1
