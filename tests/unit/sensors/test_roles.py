"""Columns with a role (groups, season, segments, window) in triggers, deferred sensors and alerts."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from airflow.sdk.exceptions import TaskDeferred

from paceline.drift import DriftReport, DriftSettings, FeatureSettings
from paceline.errors import InvalidInputError
from paceline.run import MemoryState
from paceline.sensors import DriftEventTrigger, DriftSensor, DriftTrigger
from paceline.sensors._decision import TriggerState, decide_new_window, significance_of_check
from paceline.sensors.check import DriftCheck

NOON = datetime(2030, 1, 7, 12, tzinfo=timezone.utc)  # a Monday


def make_rows(seed: int, days: list[int], *, shift: float = 0.0, plan: str | None = None) -> pd.DataFrame:
    """Return rows of customers with ten equal rows each; weekends have higher values. ``plan`` limits the shift."""
    rng = np.random.default_rng(seed)
    day = np.repeat(days, 400)
    customer = np.arange(len(day)) // 10
    plans = rng.choice(["free", "pro"], customer.max() + 1, p=[0.9, 0.1])[customer]
    moved = shift * (np.ones(len(day)) if plan is None else plans == plan)
    frame = pd.DataFrame(rng.normal(size=(customer.max() + 1, 2))[customer], columns=["age", "pay"])
    frame["age"] += 2.0 * (day % 7 >= 5)
    frame["pay"] += moved
    at = pd.Timestamp("2029-01-01") + pd.to_timedelta(day, unit="D")  # a Monday
    return frame.assign(plan=plans, customer=customer + 100_000 * seed, day=day, at=at)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    return {name: str(tmp_path / f"{name}.parquet") for name in ("reference", "current")}


def write(files: dict[str, str], **windows: pd.DataFrame) -> None:
    for name, frame in windows.items():
        frame.to_parquet(files[name])


async def first_payload(trigger: Any) -> Any:
    return (await asyncio.wait_for(anext(trigger.run()), 60)).payload


def decide(files: dict[str, str], state: TriggerState | None = None, **options: Any) -> Any:
    """Run one check of an event trigger as the triggerer does: after it was stored and restored."""
    path, kwargs = DriftEventTrigger(**files, **options).serialize()
    assert path.endswith("DriftEventTrigger")
    restored = DriftEventTrigger(**json.loads(json.dumps(kwargs)))
    return restored._decide(state or TriggerState())[0]


# Each case: the role, the current window without drift, the window with drift, and what has drifted.
CASES = [
    ({"groups": "customer"}, make_rows(1, [7, 8]), make_rows(1, [7, 8], shift=2.0), ["pay"]),
    (
        {"season": "weekday", "time": "at", "groups": "customer"},
        make_rows(1, [12]),
        make_rows(1, [12], shift=2.0),
        ["pay"],
    ),
    (
        {"segments": "plan", "groups": "customer"},
        make_rows(1, [7, 8, 9, 10]),
        make_rows(1, [7, 8, 9, 10], shift=3.0, plan="pro"),
        ["(segment pro)"],
    ),
]
NAMES = ["groups", "season", "segments"]


@pytest.mark.parametrize(("roles", "equal", "drifted", "parts"), CASES, ids=NAMES)
def test_event_trigger_uses_the_roles_of_columns(
    files: dict[str, str], roles: dict[str, str], equal: pd.DataFrame, drifted: pd.DataFrame, parts: list[str]
) -> None:
    days = list(range(7)) if "season" in roles else [0, 1, 2, 3]
    write(files, reference=make_rows(0, days), current=equal)
    options = {**roles, "features": ["age", "pay"]}
    decision = decide(files, **options)
    assert decision.report.verdict == "no drift", decision.report.reason
    write(files, current=drifted)
    decision = decide(files, decision.state, **options)
    assert (decision.fires, decision.report.drifted_parts) == (True, parts)
    assert not decide(files, decision.state, **options).fires


@pytest.mark.parametrize(("roles", "equal", "drifted", "parts"), CASES, ids=NAMES)
def test_deferred_sensor_uses_the_roles_of_columns(
    files: dict[str, str], roles: dict[str, str], equal: pd.DataFrame, drifted: pd.DataFrame, parts: list[str]
) -> None:
    write(files, reference=make_rows(0, list(range(7)) if "season" in roles else [0, 1, 2, 3]), current=equal)
    sensor = DriftSensor(task_id="drift", **files, **roles, features=["age", "pay"], deferrable=True)
    pushed: dict[str, Any] = {}
    ti = SimpleNamespace(dag_id="dag", run_id="run", task_id="drift", map_index=-1)
    ti.xcom_push = lambda key, value: pushed.update({key: value})
    context: Any = {"ti": ti, "dag_run": SimpleNamespace(run_after=NOON), "task_state_store": MemoryState()}
    with pytest.raises(TaskDeferred) as deferred:
        sensor.execute(context)
    write(files, current=drifted)
    arguments = json.loads(json.dumps(deferred.value.trigger.serialize()[1]))
    event = asyncio.run(first_payload(DriftTrigger(**{**arguments, "first_check_s": 0.0})))
    result = sensor.execute_complete(context, event)
    assert result["verdict"] == "drift"
    assert DriftReport.from_dict(pushed["report"]).drifted_parts == parts


# --- the column of the window ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "roles",
    [
        {"groups": "day"},
        {"time": "day"},
        {"season": "day"},
        {"time": "at", "season": "weekday"},
        {"prediction": "age", "actual": "day"},
    ],
    ids=str,
)
def test_window_column_with_another_role_is_not_compared(files: dict[str, str], roles: dict[str, str]) -> None:
    write(files, reference=make_rows(0, list(range(14))), current=make_rows(1, list(range(7, 21))))
    decision = decide(files, **roles, fire_on="new_window", window_column="day", features=None)
    assert decision.report is not None
    assert "day" not in [feature.name for feature in decision.report.features]
    assert decision.state.window == "20"


def test_window_column_that_is_a_feature_is_compared(files: dict[str, str]) -> None:
    write(files, reference=make_rows(0, [0, 1]), current=make_rows(1, [7, 8]))
    decision = decide(files, fire_on="new_window", window_column="day", groups="customer", features=["day", "pay"])
    assert decision.report.drifted_features == ["day"]


def test_window_column_divides_no_segments() -> None:
    with pytest.raises(InvalidInputError, match=r"^segments: got 'day', expected a column other than window_column"):
        DriftEventTrigger(reference="a.csv", current="b.csv", fire_on="new_window", window_column="day", segments="day")


# --- windows without enough data ------------------------------------------------------------------------------------


def test_check_that_has_tested_nothing_spends_no_significance(files: dict[str, str]) -> None:
    check = DriftCheck(**files, groups="customer", features=["age", "pay"], window_column="day")
    grown = make_rows(1, [7, 7, 7])
    few = grown.assign(customer=grown["customer"] // 10)  # twelve groups of 100 rows
    write(files, reference=make_rows(0, [0, 1]))
    state, counts = TriggerState(), []
    for hour, rows in enumerate((300, 600, 900, 1200)):
        write(files, current=few[:rows])
        decision = decide_new_window(check, check.read_current(), state, NOON + timedelta(hours=hour), None)
        state = TriggerState.from_json(decision.state.to_json())
        counts.append((decision.report.verdict, state.check_count))
    assert counts == [("not enough data", 0)] * 3 + [("no drift", 1)]
    used = decision.report.settings["significance"]
    assert used == significance_of_check(0.01, 1)


def test_check_of_the_error_spends_significance_although_the_features_are_not_compared(files: dict[str, str]) -> None:
    check = DriftCheck(
        **files, season="plan", features=["age"], prediction="predicted", actual="late", window_column="day"
    )
    frames = [
        make_rows(seed, [day, day]).assign(plan=str(seed), late=1, predicted=lambda frame: (frame["pay"] > -1) * 1)
        for seed, day in ((0, 0), (1, 7))
    ]
    write(files, reference=frames[0], current=frames[1])
    decision = decide_new_window(check, check.read_current(), TriggerState(), NOON, None)
    assert decision.report is not None
    assert decision.report.concept is not None
    assert (decision.report.verdict, decision.report.concept.verdict) == ("not enough data", "no drift")
    assert decision.state.check_count == 1


# --- alerts -----------------------------------------------------------------------------------------------------------


def test_alert_names_the_drift_only_if_enough_of_the_importance_has_drifted(files: dict[str, str]) -> None:
    heard: list[dict[str, Any]] = []
    settings = DriftSettings(features={"age": FeatureSettings(importance=4.0)}, drift_share=0.5)
    state = MemoryState()
    ti = SimpleNamespace(dag_id="dag", run_id="run", task_id="drift", map_index=-1, xcom_push=lambda key, value: None)
    context: Any = {"ti": ti, "dag_run": SimpleNamespace(run_after=NOON), "task_state_store": state}

    def check(current: pd.DataFrame) -> list[dict[str, Any]]:
        write(files, current=current)
        sensor = DriftSensor(
            task_id="drift", **files, settings=settings, features=["age", "pay"],
            on_drift_alert=lambda context: heard.append(context["paceline"]),
        )  # fmt: skip
        sensor.poke(context)
        return heard

    write(files, reference=make_rows(0, [0, 1, 2, 3]))
    pay, both = make_rows(1, [7, 8, 9, 10], shift=2.0), make_rows(1, [7, 8, 9, 10], shift=2.0)
    both["age"] += 2.0
    assert check(pay) == []
    assert [one["drifted_features"] for one in check(both)] == [["pay", "age"]]
    assert heard[0]["message"] == "Drift in 2 of 2 features: pay, age."
    check(pay)  # resets the alert
    assert len(check(both)) == 2
