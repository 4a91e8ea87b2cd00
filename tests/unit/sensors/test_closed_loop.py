"""From drift to promotion and back: each change starts training once, and the new champion ends the drift.

The tests simulate one DAG run per day. The sensor, its data and the registry are real; the task instance is a fake.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from airflow.sdk.exceptions import AirflowSkipException, TaskDeferred

from paceline.contract import DriftEvent, DriftReport
from paceline.errors import InvalidInputError
from paceline.registry import FileRegistry
from paceline.sensors import DriftEventTrigger, DriftSensor, DriftSettings
from paceline.sensors._decision import TriggerState
from paceline.sensors.check import DriftCheck
from paceline.sensors.retraining import STARTED_KEY, load_started

FIRST_DAY = datetime(2030, 1, 1, tzinfo=timezone.utc)
MODEL = "churn"


@dataclass
class Production:
    """A simulated production system with a daily run of a drift sensor, and training if the sensor succeeds."""

    folder: Path
    options: dict[str, Any]
    rows: pd.DataFrame
    window_days: int = 1
    xcoms: list[tuple[int, str, Any]] = field(default_factory=list)
    states: dict[str, str] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.registry = FileRegistry(self.folder / "registry")

    def run_day(self, day: int, *, better: bool = True, state: str = "success") -> bool:
        """Run the sensor on a day. If it succeeds, register a model, and promote it if it is ``better``."""
        window = self.rows[self.rows["day"].between(day - self.window_days + 1, day)]
        window.to_parquet(self.folder / "current.parquet", index=False)
        sensor = DriftSensor(
            task_id="drift",
            reference="champion",
            model=MODEL,
            registry=str(self.folder / "registry"),
            current=str(self.folder / "current.parquet"),
            report_dir=str(self.folder / "reports"),
            features=["usage", "age"],
            on_no_drift="skip",
            **self.options,
        )
        try:
            summary: Any = sensor.poke(self._context(day)).xcom_value
        except AirflowSkipException as skip:
            self.reasons[day] = str(skip)
            return False
        assert summary["retrain"]
        self.states[f"day-{day}"] = state
        self.reasons[day] = summary["reason"]
        model = self.folder / f"model-{day}"
        model.mkdir()
        (model / "weights").write_text(str(day))
        version = self.registry.register(model, name=MODEL, data_window=summary["window"])
        if better:
            self.registry.promote(MODEL, version.version, reason="better")
        return True

    def _context(self, day: int) -> Any:
        def pull(**options: Any) -> list[Any]:
            assert options["include_prior_dates"]
            return [value for at, key, value in self.xcoms if key == options["key"] and at <= day] or [None]

        ti = SimpleNamespace(
            dag_id="retrain",
            run_id=f"day-{day}",
            task_id="drift",
            map_index=-1,
            xcom_pull=pull,
            xcom_push=lambda key, value: self.xcoms.append((day, key, value)),
            get_dagrun_state=lambda dag_id, run_id: self.states[run_id],
        )
        return {"ti": ti, "dag_run": SimpleNamespace(run_after=FIRST_DAY + timedelta(days=day))}

    def trained_days(self, days: int, **options: Any) -> list[int]:
        """Return the days of ``days`` on which training starts."""
        return [day for day in range(days) if self.run_day(day, **options)]


def make_rows(days: int, usage_shifts: tuple[int, ...] = (), error_days: tuple[int, int] = (0, 0)) -> pd.DataFrame:
    """Return 300 rows a day. From each day of ``usage_shifts`` on, the usage is higher by one standard deviation.

    The share of wrong predictions is 5 %, and 40 % on the days from ``error_days[0]`` to before ``error_days[1]``.
    """
    rng = np.random.default_rng(0)
    parts = []
    for day in range(-20, days):
        late = rng.integers(0, 2, 300)
        wrong = rng.random(300) < (0.4 if error_days[0] <= day < error_days[1] else 0.05)
        parts.append(
            pd.DataFrame(
                {
                    "day": day,
                    "usage": rng.normal(sum(day >= start for start in usage_shifts), 1, 300),
                    "age": rng.normal(40, 10, 300),
                    "predicted": np.where(wrong, 1 - late, late),
                    "late": late,
                }
            )
        )
    return pd.concat(parts, ignore_index=True)


def test_each_change_of_a_month_leads_to_one_training(tmp_path: Path) -> None:
    production = Production(tmp_path, {}, make_rows(30, usage_shifts=(12, 21)))
    assert production.trained_days(30) == [0, 12, 21]
    assert production.reasons[0] == f"churn has no champion yet in {tmp_path}/registry."
    assert [promotion.version for promotion in production.registry.history(MODEL)] == [1, 2, 3]


def test_drift_that_persists_after_training_starts_it_again_after_the_cooldown(tmp_path: Path) -> None:
    production = Production(tmp_path, {"cooldown": "5d"}, make_rows(30, usage_shifts=(12,)))
    assert production.run_day(0)
    trained = [day for day in range(1, 30) if production.run_day(day, better=False)]
    assert trained == [12, 17, 22, 27]
    assert production.reasons[13].endswith(
        "Training does not start: an earlier training job started at 2030-01-13 00:00 UTC, and the cooldown lasts "
        "until 2030-01-18 00:00 UTC; set it to None to train before."
    )


def test_drift_starts_no_training_while_an_earlier_run_trains(tmp_path: Path) -> None:
    production = Production(tmp_path, {}, make_rows(30, usage_shifts=(12,)))
    assert production.run_day(0)
    assert production.run_day(12, better=False, state="running")
    assert not production.run_day(13)
    assert production.reasons[13].endswith("Training does not start: run day-12 is already training because of drift.")
    production.states["day-12"] = "failed"
    assert production.run_day(14)


def test_rise_in_the_error_leads_to_one_training_if_labels_are_a_week_late(tmp_path: Path) -> None:
    # The new champion predicts from the day after its training on. Its predecessor's wrong predictions get their
    # labels for a week after that, and leave the window of two weeks after another week.
    rows = make_rows(60, error_days=(10, 20))
    options = {"cooldown": "22d", "prediction": "predicted", "actual": "late", "time": "day"}
    production = Production(tmp_path, options, rows, window_days=14)
    trained = []
    for day in range(60):
        production.rows = rows.assign(late=rows["late"].where(rows["day"] <= day - 7))
        if production.run_day(day):
            trained.append(day)
    assert trained[0] == 0
    assert len(trained) == 2
    assert 17 <= trained[1] <= 22, "labels of day 10 arrive on day 17; the cooldown after the first training ends on 22"
    assert "share of wrong predictions rose" in production.reasons[trained[1]]


@pytest.mark.parametrize("fire_on", ["new_drift", "new_window"])
def test_event_trigger_compares_with_the_rows_of_the_last_training(tmp_path: Path, fire_on: Any) -> None:
    """``current`` of a trigger is not templated: at each check, the same file has other rows."""
    registry, rng = FileRegistry(tmp_path / "registry"), np.random.default_rng(0)
    options: dict[str, Any] = {"reference": "champion", "model": MODEL, "registry": str(tmp_path / "registry")}
    options |= {"current": str(tmp_path / "current.parquet"), "report_dir": str(tmp_path / "reports")}
    state, fired = TriggerState(), []
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").touch()
    for day, shift in enumerate((0, 0, 1, 1, 2, 2, 2, 0)):
        pd.DataFrame({"usage": rng.normal(shift, 1, 500)}).to_parquet(tmp_path / "current.parquet")
        trigger = DriftEventTrigger(fire_on=fire_on, **options)  # after a restart
        is_new, state, payload = asyncio.run(trigger._check_once(state))
        if is_new:
            fired.append(day)
            version = registry.register(tmp_path / "model", name=MODEL, data_window=payload["window"])
            registry.promote(MODEL, version.version, reason="better")
    assert fired == [0, 2, 4, 7]


def test_champion_without_a_source_of_its_training_data_is_rejected(tmp_path: Path) -> None:
    production = Production(tmp_path, {}, make_rows(1))
    assert production.run_day(0)
    version = production.registry.register(tmp_path / "model-0", name=MODEL, data_window={"days": "January"})
    production.registry.promote(MODEL, version.version, reason="by hand")
    with pytest.raises(InvalidInputError, match=r"version 2 is \{'days': 'January'\}$"):
        production.run_day(0)


def test_too_few_rows_start_no_first_training(tmp_path: Path) -> None:
    production = Production(tmp_path, {}, make_rows(1).head(99).assign(day=0))
    assert not production.run_day(0)
    assert production.reasons[0] == "current: got 99 rows, expected at least 100 (minimum_samples)"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": None}, "model: got None, expected a value, because the reference is the champion"),
        ({"registry": None}, "registry: got None, expected a value, because the reference is the champion"),
        ({"report_dir": None}, "report_dir: got None, expected a folder that keeps the compared rows"),
        ({"settings": DriftSettings(error="auc")}, "error: got 'auc', expected another kind of error"),
    ],
)
def test_parameters_that_do_not_suit_the_champion_are_rejected(options: dict[str, Any], message: str) -> None:
    valid = {"model": MODEL, "registry": "models", "report_dir": "reports"}
    with pytest.raises(InvalidInputError, match=f"^{message}"):
        DriftSensor(task_id="drift", reference="champion", current="b.csv", **{**valid, **options})


def test_templated_window_needs_no_folder_for_its_rows() -> None:
    DriftSensor(task_id="drift", reference="champion", model=MODEL, registry="models", current="{{ ds }}.parquet")


def test_mapped_tasks_share_the_training_jobs_of_their_model() -> None:
    stored = [{"model": model, "at": "2030-01-01", "run_id": "a", "map_index": 1, "new": 1} for model in (MODEL, None)]
    found = {
        (model, index): len(
            load_started(
                SimpleNamespace(task_id="drift", run_id="b", map_index=index, xcom_pull=lambda **_: stored), model
            )
        )
        for model in (MODEL, "other", None)
        for index in (0, 1)
    }
    assert [key for key, count in found.items() if count] == [(MODEL, 0), (MODEL, 1), (None, 1)]


def test_deferred_sensor_waits_for_the_end_of_the_cooldown_but_not_beyond_its_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    production = Production(tmp_path, {}, make_rows(1))
    production.run_day(0)
    now = FIRST_DAY + timedelta(hours=1)
    monkeypatch.setattr("paceline.sensors.drift.timezone.utcnow", lambda: now)
    sensor = DriftSensor(
        task_id="drift", reference="a.csv", current="b.csv", cooldown="3h", timeout=3600, deferrable=True
    )
    context = production._context(1)
    production.xcoms = [(0, STARTED_KEY, {"model": None, "at": FIRST_DAY.isoformat(), "run_id": "day-0"})]
    report, timeout_at = DriftReport("drift", "Drift.", 9, 9), (now + timedelta(minutes=20)).isoformat()
    event = DriftEvent(summary=report.summary(), report=report, timeout_at=timeout_at, cleared=False).to_json()
    with pytest.raises(TaskDeferred) as deferred:
        sensor.execute_complete(context, event)
    assert deferred.value.timeout == timedelta(minutes=20)
    trigger: Any = deferred.value.trigger
    assert (trigger.first_check_s, trigger.timeout_at) == (2 * 3600, event["timeout_at"])


def test_missing_champion_of_a_misspelt_model_is_reported_with_similar_models(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_text("1")
    registry = FileRegistry(tmp_path / "registry")
    for name in ("churn", "demand"):
        registry.register(tmp_path / "model", name=name)
    make_rows(1, usage_shifts=()).to_parquet(tmp_path / "a.parquet")
    arguments = {"reference": "champion", "current": str(tmp_path / "a.parquet"), "registry": str(registry.root)}
    reasons = [DriftCheck(model=name, **arguments).run().reason for name in ("churns", "churn", "fares")]
    missing = [f"{name} has no champion yet in {registry.root}." for name in ("churns", "churn", "fares")]
    assert reasons == [f"{missing[0]} It has churn: is the name of the model right?", *missing[1:]]
