"""``on_drift_alert``: called once for each change of the findings, in every mode, and never the cause of a failure."""

from __future__ import annotations

import asyncio
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from airflow.sdk import DAG, BaseNotifier
from airflow.sdk.exceptions import AirflowSkipException, TaskDeferred
from airflow.serialization.serialized_objects import DagSerialization

from paceline.errors import BadDataError, InvalidInputError, NothingComparedError
from paceline.operators import LogNotifier
from paceline.run import MemoryState
from paceline.sensors import DriftSensor, DriftTrigger
from paceline.sensors.check import DriftCheck
from paceline.sensors.retraining import StartedTraining

NOON = datetime(2030, 1, 2, 12, tzinfo=timezone.utc)


class Messages(BaseNotifier):
    """A notifier that keeps its rendered messages."""

    template_fields = ("conn_id", "message")

    def __init__(self, sent: list[tuple[str, str]]) -> None:
        super().__init__()
        self.conn_id, self.message = "slack_{{ paceline.model }}", "{{ paceline.kind }}: {{ paceline.message }}"
        self.sent = sent

    def notify(self, context: Any) -> None:
        self.sent.append((self.conn_id, self.message))


class Windows:
    """The files of both windows; the current one changes between two checks."""

    def __init__(self, folder: Path) -> None:
        self.reference, self.current = str(folder / "reference.parquet"), str(folder / "current.parquet")
        self._write(self.reference, 0)
        self.become("equal")

    def become(self, state: str) -> None:
        changes: dict[str, dict[str, Any]] = {
            "equal": {},
            "drifted": {"temp": 3.0},
            "drifted more": {"temp": 3.0, "wind": 3.0},
            "bad": {"wind": None},
        }
        self._write(self.current, 1, **changes[state])

    @staticmethod
    def _write(path: str, seed: int, **shifts: float | None) -> None:
        rng = np.random.default_rng(seed)
        rows = pd.DataFrame({"temp": rng.normal(0, 1, 200), "wind": rng.normal(0, 1, 200)})
        for column, shift in shifts.items():
            rows[column] = None if shift is None else rows[column] + shift
        rows.to_parquet(path)


@pytest.fixture
def windows(tmp_path: Path) -> Windows:
    return Windows(tmp_path)


class Task:
    """A fake of a task instance's context, with its stored state. ``started`` is the training of an earlier run."""

    def __init__(self, started: StartedTraining | None = None) -> None:
        self.xcoms: dict[str, Any] = {}
        ti = SimpleNamespace(
            dag_id="dag",
            run_id="run",
            task_id="drift",
            map_index=-1,
            xcom_push=lambda key, value: self.xcoms.update({key: value}),
            xcom_pull=lambda **_: [started and vars(started)],
            get_dagrun_state=lambda *_: "success",
        )
        state = MemoryState()
        self.context: Any = {"ti": ti, "dag_run": SimpleNamespace(run_after=NOON), "task_state_store": state}


def make_sensor(windows: Windows, *callbacks: Any, **options: Any) -> DriftSensor:
    return DriftSensor(
        task_id="drift", reference=windows.reference, current=windows.current, model="churn",
        on_drift_alert=list(callbacks), **options,
    )  # fmt: skip


def kinds(sent: list[tuple[str, str]]) -> list[str]:
    return [message.split(":")[0] for _, message in sent]


@pytest.mark.parametrize(
    ("state", "options", "error", "message"),
    [
        ("equal", {}, AirflowSkipException, None),
        ("drifted", {}, None, "drift: Drift in 1 of 2 features: temp."),
        ("bad", {}, BadDataError, "bad data: Bad data: wind: the share of missing values rose from 0.0% to 100.0%."),
        ("bad", {"on_bad_data": "no_drift"}, AirflowSkipException, "bad data: Bad data: wind: the share of missing"),
        ("equal", {"features": ["name"]}, NothingComparedError, "nothing compared: "),
    ],
)
def test_alert_of_a_check_is_templated_with_its_summary(
    windows: Windows, state: str, options: dict[str, Any], error: type[Exception] | None, message: str | None
) -> None:
    windows.become(state)
    for path in (windows.reference, windows.current):
        rows = pd.read_parquet(path)
        rows.assign(name=[f"name {number}" for number in range(len(rows))]).to_parquet(path)
    sent: list[tuple[str, str]] = []
    options = {"features": ["temp", "wind"], **options}
    sensor, task = make_sensor(windows, Messages(sent), on_no_drift="skip", **options), Task()
    if error is None:
        sensor.poke(task.context)
    else:
        with pytest.raises(error):
            sensor.poke(task.context)
    assert [conn_id for conn_id, _ in sent] == (["slack_churn"] if message else [])
    assert all(text.startswith(message or "") for _, text in sent)


def test_failing_notifier_is_logged_and_neither_fails_the_check_nor_stops_the_others(
    windows: Windows, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(context: Any) -> None:
        raise RuntimeError("Slack does not respond")

    windows.become("drifted")
    sent: list[tuple[str, str]] = []
    sensor, task = make_sensor(windows, fail, Messages(sent), on_no_drift="skip"), Task()
    del task.context["task_state_store"]  # an outage of the store neither
    assert sensor.poke(task.context).xcom_value["verdict"] == "drift"
    assert kinds(sent) == ["drift"]
    log = capsys.readouterr().out
    assert "on_drift_alert: <function" in log
    assert "Slack does not respond" in log


def test_waiting_sensor_alerts_once_for_each_change(windows: Windows) -> None:
    sent: list[tuple[str, str]] = []
    # Drift does not start training, because an earlier run has trained and the cooldown lasts.
    task = Task(StartedTraining("churn", datetime.now(timezone.utc).isoformat(), "earlier"))
    steps = ["drifted", "drifted", "drifted more", "drifted", "equal", "drifted", "bad", "bad", "equal", "bad"]
    heard = []
    for step in steps:
        windows.become(step)
        # A sensor that reschedules itself is a new object for each check.
        sensor = make_sensor(windows, Messages(sent), cooldown="1d", on_bad_data="no_drift", mode="reschedule")
        assert not sensor.poke(task.context).is_done
        heard.append(len(sent))
    assert heard == [1, 1, 2, 2, 2, 3, 4, 4, 4, 5]
    assert kinds(sent) == ["drift", "drift", "drift", "bad data", "bad data"]
    assert "Training does not start: an earlier training job started at" in sent[0][1]


def test_retry_does_not_repeat_the_alert(windows: Windows) -> None:
    windows.become("bad")
    sent: list[tuple[str, str]] = []
    task = Task()
    for _ in range(2):
        with pytest.raises(BadDataError):
            make_sensor(windows, Messages(sent)).poke(task.context)
    assert kinds(sent) == ["bad data"]


@pytest.mark.parametrize(
    "options", [{"on_bad_data": "no_drift"}, {"silent_fail": True}], ids=["bad data is no drift", "silent_fail"]
)
def test_deferred_sensor_alerts_when_the_data_becomes_bad_again(
    windows: Windows, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    sent: list[tuple[str, str]] = []
    task, sensor = Task(), make_sensor(windows, Messages(sent), deferrable=True, **options)
    states = iter(["bad", "bad", "equal", "bad", "bad", "drifted"])
    measured, measure = [], DriftCheck.measure

    def measure_next(self: DriftCheck, now: datetime | None = None) -> Any:
        windows.become(next(states))
        result = measure(self, now)
        measured.append((result[0].verdict, len(sent)))
        return result

    async def first_event(trigger: DriftTrigger) -> Any:
        return (await asyncio.wait_for(anext(trigger.run()), 60)).payload

    monkeypatch.setattr(DriftCheck, "measure", measure_next)
    with pytest.raises(TaskDeferred) as deferred:
        sensor.execute(task.context)
    for _ in range(10):
        arguments = deferred.value.trigger.serialize()[1]
        event = asyncio.run(first_event(DriftTrigger(**{**arguments, "first_check_s": 0.0, "poll_interval_s": 0.01})))
        try:
            result = sensor.execute_complete(task.context, event)
        except TaskDeferred as again:
            deferred.value.trigger = again.trigger
        else:
            break
    assert result["verdict"] == "drift"
    assert measured == [
        ("bad data", 0), ("bad data", 1), ("no drift", 1), ("bad data", 1), ("bad data", 2), ("drift", 2),
    ]  # fmt: skip
    assert kinds(sent) == ["bad data", "bad data", "drift"]


def test_trigger_without_alerts_does_not_resume_the_task_on_bad_data(windows: Windows) -> None:
    sensor = DriftSensor(
        task_id="drift", reference=windows.reference, current=windows.current, deferrable=True, on_bad_data="no_drift"
    )
    with pytest.raises(TaskDeferred) as deferred:
        sensor.execute(Task().context)
    assert deferred.value.trigger.serialize()[1]["last_verdict"] is None


def test_invalid_callback_is_rejected_when_the_dag_is_parsed(windows: Windows) -> None:
    with pytest.raises(InvalidInputError, match=r"^on_drift_alert: got 'slack', expected a notifier or function"):
        make_sensor(windows, "slack")


def test_log_notifier_logs_the_findings(windows: Windows, capsys: pytest.CaptureFixture[str]) -> None:
    windows.become("drifted")
    make_sensor(windows, LogNotifier(), on_no_drift="skip").poke(Task().context)
    assert "dag.drift: Drift in 1 of 2 features: temp." in capsys.readouterr().out


def test_route_of_a_dag_is_a_default_argument_that_airflow_can_store(windows: Windows) -> None:
    with DAG("retrain", schedule=None, default_args={"on_drift_alert": LogNotifier()}) as dag:
        sensor = DriftSensor(task_id="drift", reference=windows.reference, current=windows.current)
        DriftSensor.partial(task_id="each", reference=windows.reference, on_drift_alert=LogNotifier()).expand(
            current=[windows.current]
        )
    assert [type(callback) for callback in sensor.on_drift_alert] == [LogNotifier]
    assert DagSerialization.from_dict(DagSerialization.to_dict(dag)).task_ids == ["drift", "each"]
