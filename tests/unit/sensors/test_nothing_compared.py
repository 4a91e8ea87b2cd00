"""A check that has compared no feature is never "no drift": it fails, and names why each column was left out."""

from __future__ import annotations

import asyncio
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from paceline.drift import DriftSettings, QualitySettings, compare
from paceline.drift._columns import count_labels
from paceline.errors import NothingComparedError
from paceline.sensors import DriftSensor
from paceline.sensors._decision import TriggerState, decide_new_drift, decide_new_window
from paceline.sensors.check import DriftCheck
from paceline.sensors.triggers import DriftTrigger

REASON = "Nothing was compared: code: every category is too rare to compare (is the column an identifier?)."


NOON = datetime(2030, 1, 2, 12, tzinfo=timezone.utc)


@pytest.fixture
def window(tmp_path: Path) -> str:
    path = tmp_path / "codes.csv"
    pd.DataFrame({"code": [f"c{number}" for number in range(300)]}).to_csv(path, index=False)
    return str(path)


@pytest.mark.parametrize("on_no_drift", ["wait", "skip", "succeed"])
@pytest.mark.parametrize("on_bad_data", ["fail", "no_drift"])
def test_sensor_fails_if_nothing_is_compared_after_storing_the_report(
    tmp_path: Path, window: str, on_no_drift: Any, on_bad_data: Any
) -> None:
    xcoms: dict[str, Any] = {}
    ti = SimpleNamespace(
        dag_id="dag",
        run_id="run",
        task_id="drift",
        map_index=-1,
        xcom_push=lambda key, value: xcoms.update({key: value}),
    )
    context: Any = {"ti": ti, "dag_run": SimpleNamespace(run_after=NOON)}
    sensor = DriftSensor(
        task_id="drift",
        reference=window,
        current=window,
        report_dir=str(tmp_path / "reports"),
        on_no_drift=on_no_drift,
        on_bad_data=on_bad_data,
    )
    with pytest.raises(NothingComparedError) as failure:
        sensor.poke(context)
    assert str(failure.value) == REASON
    assert (xcoms["return_value"]["verdict"], xcoms["return_value"]["retrain"]) == ("nothing compared", False)
    assert "No feature was compared" in (tmp_path / "reports" / "dag" / "run" / "drift" / "report.html").read_text()


def test_waiting_trigger_resumes_the_task_if_nothing_is_compared(window: str) -> None:
    trigger = DriftTrigger(DriftCheck(window, window).to_dict(), 0.01, first_check_s=0.0, fail_on_bad_data=False)

    async def first() -> Any:
        return await anext(trigger.run())

    assert asyncio.run(asyncio.wait_for(first(), 60)).payload["summary"]["verdict"] == "nothing compared"


def test_event_trigger_keeps_its_state_if_nothing_is_compared(window: str) -> None:
    check = DriftCheck(window, window)
    report, current = check.measure(NOON)
    last = TriggerState("check", parts=("temp",))
    assert decide_new_drift(report, last, "check", NOON, None).state == last
    decision = decide_new_window(check, current, TriggerState(), NOON, None)
    assert (decision.fires, decision.state.check_count) == (False, 0)


def test_ignored_problems_of_all_columns_are_not_no_drift() -> None:
    before, after = pd.DataFrame({"temp": range(200)}), pd.DataFrame({"temp": ["x", "y"] * 100})
    report = compare(before, after, settings=DriftSettings(quality=QualitySettings(ignored=["changed type"])))
    assert report.verdict == "nothing compared"
    assert report.reason.startswith("Nothing was compared: temp: numbers became text")


def test_constant_columns_and_the_model_error_count_as_compared() -> None:
    frame = pd.DataFrame({"unit": ["kg"] * 300})
    assert compare(frame, frame).reason == "No drift: each compared feature has one value in both windows."
    errors = pd.DataFrame({"predicted": [0, 1] * 150, "late": [0, 1, 1] * 100})
    report = compare(errors, errors, prediction="predicted", actual="late")
    assert (report.verdict, report.reason) == ("no drift", "No drift in the model's error. No feature was compared.")


def test_decimals_and_whole_numbers_are_the_same_labels() -> None:
    assert count_labels(pd.Series([Decimal("1.00"), 1, 1.0, Decimal("2.50"), 2.5])) == {"1": 3, "2.5": 2}
