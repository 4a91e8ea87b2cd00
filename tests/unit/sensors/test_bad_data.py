"""Bad data does not start training: sensors fail or wait, and triggers fire no event until the data is repaired."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from airflow.sdk.exceptions import AirflowSkipException, TaskDeferred

from paceline.drift import DriftReport, FeatureDrift, QualityProblem
from paceline.errors import BadDataError, InvalidInputError
from paceline.registry import FileRegistry
from paceline.sensors import DriftEventTrigger, DriftSensor, DriftSettings, DriftTrigger, QualitySettings
from paceline.sensors._decision import TriggerState, decide_new_drift
from paceline.sensors.check import DriftCheck

NOON = datetime(2030, 1, 2, 12, tzinfo=timezone.utc)


def write(path: Path, shift: float = 0.0, *, seed: int = 0, **columns: object) -> str:
    """Write a window of two hundred rows; its days end at midnight of 2 January 2030."""
    rng = np.random.default_rng(seed)
    rows = pd.DataFrame({"temp": rng.normal(shift, 1, 200), "wind": rng.normal(0, 1, 200)})
    rows["day"] = pd.date_range("2029-12-01", "2030-01-02", periods=200)
    rows.assign(**columns).to_parquet(path)
    return str(path)


class Task:
    """A fake of the context of a task instance that keeps its XComs."""

    def __init__(self, run_after: datetime = NOON) -> None:
        self.xcoms: dict[str, Any] = {}
        ti = SimpleNamespace(
            dag_id="dag",
            run_id="run",
            task_id="drift",
            map_index=-1,
            xcom_push=self._push,
            xcom_pull=lambda **_: [None],
        )
        self.context: Any = {"ti": ti, "dag_run": SimpleNamespace(run_after=run_after)}

    def _push(self, key: str, value: Any) -> None:
        self.xcoms[key] = value


def make_sensor(folder: Path, current: str, **options: Any) -> DriftSensor:
    return DriftSensor(
        task_id="drift",
        reference=write(folder / "reference.parquet"),
        current=current,
        time="day",
        report_dir=str(folder / "reports"),
        **options,
    )


BROKEN = {"wind": None}


@pytest.mark.parametrize("on_no_drift", ["wait", "skip", "succeed"])
def test_sensor_fails_on_bad_data_after_storing_the_report(tmp_path: Path, on_no_drift: Any) -> None:
    task, current = Task(), write(tmp_path / "current.parquet", 2.0, seed=1, **BROKEN)
    sensor = make_sensor(tmp_path, current, on_no_drift=on_no_drift)
    reason = "Bad data: wind: the share of missing values rose from 0.0% to 100.0%."
    with pytest.raises(BadDataError) as failure:
        sensor.poke(task.context)
    assert str(failure.value) == reason
    summary = task.xcoms["return_value"]
    assert (summary["verdict"], summary["reason"], summary["retrain"]) == ("bad data", reason, False)
    assert summary["quality"][0]["kind"] == "no values"
    assert (tmp_path / "reports" / "dag" / "run" / "drift" / "report.html").exists()
    assert DriftReport.from_dict(task.xcoms["report"]).verdict == "bad data"
    assert not any("started" in key for key in task.xcoms)


def test_bad_data_counts_as_no_drift_on_request(tmp_path: Path) -> None:
    current = write(tmp_path / "current.parquet", 2.0, seed=1, **BROKEN)

    def poke(on_no_drift: Any) -> Any:
        return make_sensor(tmp_path, current, on_no_drift=on_no_drift, on_bad_data="no_drift").poke(Task().context)

    assert not poke("wait").is_done
    with pytest.raises(AirflowSkipException, match=r"^Bad data: wind"):
        poke("skip")
    result = poke("succeed")
    assert (result.is_done, result.xcom_value["verdict"], result.xcom_value["retrain"]) == (True, "bad data", False)
    write(tmp_path / "current.parquet", 2.0, seed=1)
    assert poke("wait").xcom_value["verdict"] == "drift"


def test_invalid_reaction_is_rejected() -> None:
    with pytest.raises(InvalidInputError, match=r"^on_bad_data: got 'wait', expected 'fail' or 'no_drift'"):
        DriftSensor(task_id="drift", reference="a.csv", current="b.csv", on_bad_data="wait")  # type: ignore[arg-type]


def test_max_age_without_a_time_column_is_rejected_when_the_dag_is_parsed() -> None:
    settings = DriftSettings(quality=QualitySettings(max_age_s=60))
    with pytest.raises(InvalidInputError, match=r"^time: got None"):
        DriftSensor(task_id="drift", reference="a.csv", current="b.csv", settings=settings)


def test_age_of_rows_is_relative_to_the_date_of_a_scheduled_run(tmp_path: Path) -> None:
    current = write(tmp_path / "current.parquet", seed=1)
    settings = DriftSettings(quality=QualitySettings(max_age_s=86_400))

    def poke(run_after: datetime) -> str:
        sensor = make_sensor(tmp_path, current, settings=settings, on_no_drift="succeed", on_bad_data="no_drift")
        return str(sensor.poke(Task(run_after).context).xcom_value["verdict"])

    assert poke(NOON) == "no drift"
    assert poke(NOON + timedelta(days=1)) == "bad data"


def test_deferred_sensor_fails_on_bad_data(tmp_path: Path) -> None:
    current = write(tmp_path / "current.parquet", seed=1)
    task, sensor = Task(), make_sensor(tmp_path, current, deferrable=True)
    with pytest.raises(TaskDeferred) as deferred:
        sensor.execute(task.context)
    path, kwargs = deferred.value.trigger.serialize()
    trigger = DriftTrigger(**{**kwargs, "first_check_s": 0.0})
    assert path.endswith("DriftTrigger")
    write(tmp_path / "current.parquet", 2.0, seed=1, **BROKEN)
    event = asyncio.run(first_event(trigger))
    with pytest.raises(BadDataError, match=r"^Bad data: wind"):
        sensor.execute_complete(task.context, event)
    assert task.xcoms["return_value"]["retrain"] is False


@pytest.mark.parametrize("deferrable", [True, False])
@pytest.mark.parametrize(("option", "expected"), [("never_fail", AirflowSkipException), ("soft_fail", BadDataError)])
def test_sensor_skips_on_bad_data_if_requested_with_or_without_deferral(
    tmp_path: Path, deferrable: bool, option: str, expected: type[Exception]
) -> None:
    """Bad data is not a soft failure: it is neither a timeout nor an error that every retry would repeat."""
    current = write(tmp_path / "current.parquet", seed=1)
    task, sensor = Task(), make_sensor(tmp_path, current, deferrable=deferrable, **{option: True})
    if not deferrable:
        write(tmp_path / "current.parquet", 2.0, seed=1, **BROKEN)
        with pytest.raises(expected):
            sensor.execute(task.context)
        return
    with pytest.raises(TaskDeferred) as deferred:
        sensor.execute(task.context)
    trigger = DriftTrigger(**{**deferred.value.trigger.serialize()[1], "first_check_s": 0.0})
    write(tmp_path / "current.parquet", 2.0, seed=1, **BROKEN)
    event = asyncio.run(first_event(trigger))
    with pytest.raises(expected):
        sensor.resume_execution("execute_complete", {"event": event}, task.context)


@pytest.mark.parametrize("options", [{"on_bad_data": "no_drift"}, {"silent_fail": True}])
def test_deferred_sensor_waits_until_the_data_is_repaired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    current = write(tmp_path / "current.parquet", 2.0, seed=1, **BROKEN)
    sensor = make_sensor(tmp_path, current, deferrable=True, **options)
    with pytest.raises(TaskDeferred) as deferred:
        sensor.execute(Task().context)
    trigger = DriftTrigger(**{**deferred.value.trigger.serialize()[1], "first_check_s": 0.0, "poll_interval_s": 0.01})
    measured, measure = [], DriftCheck.measure

    def measure_and_repair(self: DriftCheck) -> Any:
        result = measure(self)
        measured.append(result[0].verdict)
        if len(measured) == 3:
            write(tmp_path / "current.parquet", 2.0, seed=1)
        return result

    monkeypatch.setattr(DriftCheck, "measure", measure_and_repair)
    assert asyncio.run(first_event(trigger))["summary"]["verdict"] == "drift"
    assert measured == ["bad data", "bad data", "bad data", "drift"]


async def first_event(trigger: Any) -> Any:
    return (await asyncio.wait_for(anext(trigger.run()), 30)).payload


# --- event trigger ---------------------------------------------------------------------------------------------


# The file is a new window each time that it is written.
@pytest.mark.parametrize(("fire_on", "expected"), [("new_drift", [2]), ("new_window", [2, 4])])
def test_event_trigger_fires_only_after_the_data_is_repaired(tmp_path: Path, fire_on: Any, expected: list[int]) -> None:
    trigger = DriftEventTrigger(
        reference=write(tmp_path / "reference.parquet"), current=str(tmp_path / "current.parquet"), fire_on=fire_on
    )
    state, fired = TriggerState(), []
    for number, columns in enumerate((BROKEN, {"wind": "n/a"}, {}, BROKEN, {})):
        write(tmp_path / "current.parquet", 2.0, seed=1, **columns)
        is_new, state, payload = asyncio.run(trigger._check_once(state))
        if is_new:
            assert payload["verdict"] == "drift"
            fired.append(number)
    assert fired == expected


def test_bad_data_does_not_change_the_state_of_an_event_trigger() -> None:
    problem = QualityProblem("no values", "wind", "", True)
    bad = DriftReport(
        "bad data", "", 500, 500, features=(FeatureDrift("temp", "numeric", "drift"),), quality=(problem,)
    )
    state = TriggerState("check", ("temp",), fired_at=NOON.isoformat())
    decision = decide_new_drift(bad, state, "other check", NOON, None)
    assert (decision.fires, decision.state) == (False, state)


def test_stale_data_starts_no_first_training(tmp_path: Path) -> None:
    FileRegistry(tmp_path / "registry")
    check = DriftCheck(
        "champion",
        write(tmp_path / "current.parquet"),
        model="churn",
        registry=str(tmp_path / "registry"),
        time="day",
        settings=DriftSettings(quality=QualitySettings(max_age_s=86_400)),
    )
    assert check.measure(NOON)[0].verdict == "no champion"
    report, _ = check.measure(NOON + timedelta(days=1))
    assert (report.verdict, report.needs_training) == ("bad data", False)
    assert report.reason.startswith("Bad data: day: the newest value is from 2030-01-02 00:00 UTC, 1 day, 12:00:00 ago")


def test_unknown_age_starts_no_first_training(tmp_path: Path) -> None:
    def check(time: str) -> DriftCheck:
        current, settings = str(tmp_path / "current.parquet"), DriftSettings(quality=QualitySettings(max_age_s=86_400))
        return DriftCheck("champion", current, model="churn", registry=registry, time=time, settings=settings)

    registry = str(tmp_path / "registry")
    FileRegistry(registry)
    write(tmp_path / "current.parquet", day=None)
    report, _ = check("day").measure(NOON)
    assert (report.verdict, report.reason) == (
        "bad data",
        "Bad data: day: no row has a time, so the age of the data is unknown.",
    )
    with pytest.raises(InvalidInputError, match=r"^time: got 'days', expected a column .*did you mean 'day'"):
        check("days").measure(NOON)


def test_check_with_quality_settings_round_trips_through_json() -> None:
    settings = DriftSettings(quality=QualitySettings(severe=["stale"], max_age_s=60.0))
    check = DriftCheck("a.csv", "b.csv", time="day", settings=settings)
    assert DriftCheck(**check.to_dict()) == check


def test_log_names_the_skipped_columns_and_the_infinite_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = {"tags": pd.Series([["a"]] * 200), "wind": [np.inf, *np.random.default_rng(0).permutation(199)]}
    current = write(tmp_path / "current.parquet", **odd)
    sensor = make_sensor(tmp_path, current, on_no_drift="succeed")
    sensor.reference = current
    lines: list[str] = []
    monkeypatch.setattr(sensor.log, "info", lambda text, *args: lines.append(text % args))
    sensor.poke(Task().context)
    assert "Not compared: tags (values such as ['a'] are not compared)" in lines
    assert "wind: 1 of 200 values of the current window are infinite or beyond 1e300; they count as missing." in lines
