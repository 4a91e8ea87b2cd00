"""Drift triggers emit one event per new drift, do not block the event loop, and continue after errors."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from airflow.models.trigger import Trigger
from airflow.serialization.encoders import encode_trigger
from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from paceline.airflow.windows import DataWindow
from paceline.drift import DriftReport, FeatureDrift
from paceline.errors import InvalidInputError
from paceline.sensors import DriftEventTrigger, DriftTrigger, triggers
from paceline.sensors._decision import TriggerState, decide_new_drift, decide_new_window, significance_of_check
from paceline.sensors.check import DriftCheck

NOON = datetime(2030, 1, 1, 12, tzinfo=timezone.utc)


def make_report(*drifted: str, rows: int = 500) -> DriftReport:
    features = tuple(FeatureDrift(name, "numeric", "drift") for name in drifted)
    return DriftReport("drift" if drifted else "no drift", "", 500, rows, features=features)


class FakeStateStore:
    """A fake of the state store that the triggerer provides for the trigger of one asset."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    async def aget(self, key: str) -> Any:
        return json.loads(self.values[key]) if key in self.values else None

    async def aset(self, key: str, value: Any) -> None:
        self.values[key] = json.dumps(value)


def write_window(path: Path, shift: float = 0.0, *, second: float = 0.0, seed: int = 0) -> str:
    rng = np.random.default_rng(seed)
    pd.DataFrame({"temp": rng.normal(shift, 1, 500), "wind": rng.normal(second, 1, 500)}).to_csv(path, index=False)
    return str(path)


async def first_payload(stream: AsyncIterator[TriggerEvent]) -> Any:
    return (await asyncio.wait_for(anext(stream), 30)).payload


# --- new drift -------------------------------------------------------------------------------------------------


SHORT = DriftReport("not enough data", "", 500, 3)


@pytest.mark.parametrize(
    ("checks", "fired"),
    [
        # Continued drift fires once although the window slides. New drift after a check without drift fires again.
        (
            [make_report(), make_report("temp"), make_report("temp", rows=501), make_report(), make_report("temp")],
            [1, 4],
        ),
        # Drift of a second feature fires. A feature that stops drifting and then drifts again does not fire.
        (
            [make_report("temp"), make_report("temp", "wind"), make_report("temp"), make_report("temp", "wind")],
            [0, 1],
        ),
        # A check with too little data does not change the state.
        ([SHORT, make_report("temp"), SHORT, make_report("temp")], [1]),
    ],
)
def test_trigger_fires_once_per_drift(checks: list[DriftReport], fired: list[int]) -> None:
    assert fired_checks(checks) == fired


def fired_checks(reports: list[DriftReport], cooldown_s: float | None = None, digests: str = "") -> list[int]:
    """Return the numbers of the hourly reports that fire. ``digests`` has the digest of each report's check."""
    state, fired = TriggerState(), []
    for hour, (report, digest) in enumerate(zip(reports, digests or "a" * len(reports), strict=True)):
        decision = decide_new_drift(report, state, digest, NOON + timedelta(hours=hour), cooldown_s)
        state = TriggerState.from_json(decision.state.to_json())
        if decision.fires:
            fired.append(hour)
    return fired


def test_state_of_a_different_check_is_ignored() -> None:
    assert fired_checks([make_report("temp")] * 3, digests="abb") == [0, 1]


def test_trigger_fires_again_for_lasting_drift_only_after_the_cooldown() -> None:
    lasting = [make_report("temp"), *[make_report("temp", "wind")] * 5]
    assert fired_checks(lasting, cooldown_s=2.5 * 3600) == [0, 3]
    # A new champion resets the drifted parts, but not the cooldown.
    assert fired_checks(lasting, cooldown_s=2.5 * 3600, digests="abbbbb") == [0, 3]


def test_trigger_fires_once_for_a_model_without_a_champion() -> None:
    missing = DriftReport("no champion", "churn has no champion yet.", 0, 0)
    assert fired_checks([missing, missing, make_report(), make_report("temp")], digests="abcc") == [0, 1, 3]


def windows_fired(path: Path, windows: list[pd.DataFrame]) -> list[int]:
    """Return the numbers of the windows whose check fires an event."""
    check = DriftCheck(write_window(path / "reference.csv"), str(path / "current.parquet"), window_column="batch")
    state, fired = TriggerState(), []
    for hour, frame in enumerate(windows):
        frame.to_parquet(path / "current.parquet")
        decision = decide_new_window(check, check.read_current(), state, NOON + timedelta(hours=hour), None)
        state = TriggerState.from_json(decision.state.to_json())
        if decision.fires:
            fired.append(hour)
    return fired


def make_batch(number: int, rows: int, shift: float) -> pd.DataFrame:
    rng = np.random.default_rng(number)
    return pd.DataFrame({"temp": rng.normal(shift, 1, rows), "wind": rng.normal(0, 1, rows), "batch": number})


def test_trigger_fires_once_for_each_window_with_drift_although_it_grows(tmp_path: Path) -> None:
    growing = [make_batch(1, rows, 1.0) for rows in range(50, 1050, 100)]
    following = [make_batch(2, 300, 0.0), make_batch(3, 300, 1.0), make_batch(3, 600, 1.0)]
    assert windows_fired(tmp_path, growing + following) == [1, 11]
    # A table that is loaded again, and a window that returns, do not fire again.
    emptied = [make_batch(3, 300, 1.0), make_batch(3, 0, 0.0), make_batch(3, 300, 1.0)]
    assert windows_fired(tmp_path, [*emptied, make_batch(4, 300, 1.0), make_batch(3, 300, 1.0)]) == [0, 3]


def test_growing_window_is_checked_at_each_quarter_with_less_significance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks: list[tuple[int, float]] = []

    def compare(self: DriftCheck, window: DataWindow, now: datetime, snapshot: Any) -> DriftReport:
        checks.append((window.rows, self.settings.significance))
        return make_report()

    monkeypatch.setattr(DriftCheck, "compare", compare)
    windows_fired(tmp_path, [make_batch(1, rows, 0.0) for rows in (99, 100, 124, 125, 125, 150, 157)])
    assert checks == [(rows, significance_of_check(0.01, number)) for number, rows in enumerate((100, 125, 157), 1)]


# --- serialization ---------------------------------------------------------------------------------------------

PARAMETERS: Any = {"reference_parameters": {"month": "2013-01"}, "current_parameters": ("2013-02", NOON)}


@pytest.mark.parametrize(
    "trigger",
    [
        DriftEventTrigger(reference="SELECT 1", current="SELECT 2", conn_id="store", **PARAMETERS, features=["temp"]),
        DriftTrigger(DriftCheck("a.csv", "b.csv", reference_parameters=("x", NOON.date())).to_dict(), 5.0, True),
    ],
)
def test_trigger_round_trips_through_serialization(trigger: Any) -> None:
    """Otherwise, Airflow would restart the trigger each time that it parses the DAG."""
    path, kwargs = trigger.serialize()
    stored = Trigger(path, encode_trigger({"classpath": path, "kwargs": kwargs})["kwargs"])
    assert BaseEventTrigger.hash(path, stored.kwargs) == BaseEventTrigger.hash(path, kwargs)
    again = type(trigger)(**json.loads(json.dumps(kwargs)))
    assert again.serialize() == (path, kwargs)


def test_parameters_that_cannot_be_stored_are_named() -> None:
    check = DriftCheck("SELECT 1", "SELECT 2", conn_id="store", current_parameters=({1},))  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match=r"current_parameters: got \{1\}, expected .*texts, numbers"):
        check.to_dict()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "current: got None, expected a SQL query"),
        (
            {"current": "SELECT 1", "fire_on": "new_window"},
            "window_column: got None, expected a column whose greatest value identifies the window",
        ),
        ({"current": "b.csv", "window_column": "day"}, "window_column: got 'day', expected None"),
        ({"current": "b.csv", "cooldown": "-1h"}, "cooldown: got '-1h', expected a duration"),
        (
            {"reference": "champion", "current": "b.csv", "model": "churn", "registry": "models"},
            "report_dir: got None, expected a folder that keeps the compared rows",
        ),
        (
            {"current": "b.csv", "poll_interval_s": 0},
            "poll_interval_s: got 0, expected a number of seconds greater than 0",
        ),
        ({"current": "b.csv", "poll_interval_s": "60"}, "poll_interval_s: got '60', expected a number of seconds"),
        ({"current": "b.csv", "features": "temp"}, "features: got 'temp', expected a list of column names"),
        ({"current": "b.csv", "fire_on": "always"}, "fire_on: got 'always', expected 'new_drift'"),
        ({"current": "b.csv", "settings": {"minimum_samples": 1}}, "minimum_samples: got 1, expected"),
    ],
)
def test_invalid_settings_are_rejected_when_the_dag_is_parsed(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match="^" + message):
        DriftEventTrigger(**{"reference": "a.csv", **options})


@pytest.mark.parametrize(
    "stored",
    [None, "state", {"parts": None, "check": 5}, {"rows": "many"}, {"fired_at": "yesterday"}, {"fired": 7}],
)
def test_stored_value_that_is_not_a_state_is_ignored(stored: object) -> None:
    state = TriggerState.from_json(stored)
    assert (state.parts, state.fired, state.rows, state.fired_at) == ((), (), 0, "")


def test_time_without_a_zone_is_utc() -> None:
    state = TriggerState.from_json({"fired_at": "2030-01-01T11:30:00"})
    report = make_report("temp")
    assert not decide_new_drift(report, state, "check", NOON, 3600).fires
    assert decide_new_drift(report, state, "check", NOON, 1800).fires


# --- runs ------------------------------------------------------------------------------------------------------


def test_event_trigger_fires_once_per_drift_even_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triggers, "HANDOVER_S", 0.0)
    store = FakeStateStore()
    options: dict[str, Any] = {
        "reference": write_window(tmp_path / "reference.csv"),
        "current": write_window(tmp_path / "current.csv", 1.0, seed=1),
        "poll_interval_s": 0.02,
        "report_dir": str(tmp_path / "reports"),
    }

    def start_trigger() -> AsyncIterator[TriggerEvent]:
        trigger = DriftEventTrigger(**options)
        trigger.asset_state_store = store  # type: ignore[assignment]
        return trigger.run()

    checks_made, check = [], DriftCheck.compare
    monkeypatch.setattr(DriftCheck, "compare", lambda self, *rest: checks_made.append(self) or check(self, *rest))

    async def run_scenario() -> None:
        payload = await first_payload(stream := start_trigger())
        assert payload["drifted_features"] == ["temp"]
        assert Path(payload["report_html"].removeprefix("file://")).read_text().startswith("<!DOCTYPE html>")
        before, another = len(checks_made), asyncio.ensure_future(anext(stream))
        while len(checks_made) < before + 3:  # further checks find no new drift
            await asyncio.sleep(0.01)
        assert not another.done()
        another.cancel()

        write_window(tmp_path / "current.csv", 1.0, second=1.0, seed=2)
        payload = await first_payload(start_trigger())
        assert sorted(payload["drifted_features"]) == ["temp", "wind"]

    asyncio.run(run_scenario())


def test_event_trigger_continues_after_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reference, late = write_window(tmp_path / "reference.csv"), tmp_path / "late.csv"
    failed = threading.Event()
    read = DriftCheck.read_current

    def read_and_note_failure(self: DriftCheck, snapshot: Any) -> DataWindow:
        try:
            return read(self)
        except InvalidInputError:
            failed.set()
            raise

    monkeypatch.setattr(DriftCheck, "read_current", read_and_note_failure)

    async def run_scenario() -> Any:
        stream = DriftEventTrigger(reference=reference, current=str(late), poll_interval_s=0.02).run()
        waiting = asyncio.ensure_future(anext(stream))
        assert await asyncio.to_thread(failed.wait, 30)
        Path(write_window(tmp_path / "half.csv", 1.0)).replace(late)
        return (await asyncio.wait_for(waiting, 30)).payload

    assert asyncio.run(run_scenario())["drifted_features"] == ["temp"]


def test_drift_trigger_returns_the_report_and_fails_on_invalid_data(tmp_path: Path) -> None:
    reference = write_window(tmp_path / "a.csv")
    check = DriftCheck(reference, write_window(tmp_path / "b.csv", 1.0)).to_dict()
    trigger = DriftTrigger(check, 3600, report_dir=str(tmp_path / "reports"), folder=["dag", "run"], first_check_s=0.0)
    payload = json.loads(json.dumps(asyncio.run(first_payload(trigger.run()))))
    assert (
        DriftReport.from_dict(payload["report"]).drifted_features == payload["summary"]["drifted_features"] == ["temp"]
    )
    assert json.loads((tmp_path / "reports" / "dag" / "run" / "report.json").read_text()) == payload["report"]
    bad = DriftCheck(reference, str(tmp_path / "none.csv")).to_dict()
    with pytest.raises(InvalidInputError, match="a file that exists"):
        asyncio.run(first_payload(DriftTrigger(bad, 0.01).run()))


def test_slow_check_does_not_block_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    def read_slowly(self: DriftCheck, snapshot: Any) -> DataWindow:
        assert release.wait(30)
        return DataWindow(pd.DataFrame(), 500)

    monkeypatch.setattr(DriftCheck, "read_current", read_slowly)
    monkeypatch.setattr(DriftCheck, "compare", lambda self, window, now, snapshot: make_report("temp"))

    async def run_scenario() -> None:
        event = asyncio.ensure_future(anext(DriftEventTrigger(reference="a.csv", current="b.csv").run()))
        for _ in range(100):  # other triggers run during the slow check
            await asyncio.sleep(0)
        assert not event.done()
        release.set()
        assert (await asyncio.wait_for(event, 30)).payload["drifted_features"] == ["temp"]

    asyncio.run(run_scenario())
