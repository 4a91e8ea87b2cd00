"""Decides whether drift starts a training, given the trainings that earlier drift has started.

Used by ``DriftSensor`` for the trainings of earlier runs, and by ``DriftEventTrigger`` for its earlier events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from paceline.errors import InvalidInputError

if TYPE_CHECKING:
    from airflow.sdk.types import RuntimeTaskInstanceProtocol

# Key of the XCom with which a sensor records that its run trains because of drift.
STARTED_KEY = "paceline_drift_started"
_RUNNING = ("queued", "running")
_ACCEPTED = 'a duration greater than 0 ("12h", "1d", "PT30M", seconds, a timedelta), or None'


@dataclass(frozen=True)
class StartedTraining:
    """A training that drift has started: the model, the time, and the DAG run."""

    model: str | None
    at: str
    run_id: str
    map_index: int = -1


def parse_cooldown(value: object) -> float | None:
    """Return a cooldown in seconds, or ``None`` for no cooldown.

    >>> parse_cooldown("1d"), parse_cooldown("None")
    (86400.0, None)
    >>> parse_cooldown("soon")
    Traceback (most recent call last):
    paceline.errors.InvalidInputError: cooldown: got 'soon', expected a duration greater than 0 ("12h", "1d", "PT30M", \
seconds, a timedelta), or None
    """
    if value in (None, "", "None"):
        return None
    from paceline.contract import Deadline

    try:
        duration_s = Deadline.parse(value, "cooldown").duration_s
    except InvalidInputError:
        duration_s = None
    if duration_s is None:
        raise InvalidInputError("cooldown", value, _ACCEPTED)
    return duration_s


def find_earlier_training(
    earlier: Iterable[StartedTraining], now: datetime, cooldown_s: float | None, run_state: Callable[[str], str]
) -> str:
    """Return why an earlier training makes a further one unnecessary now, or "" if drift is to start a training.

    >>> from datetime import timezone
    >>> noon = datetime(2030, 1, 1, 12, tzinfo=timezone.utc)
    >>> morning = StartedTraining("churn", "2030-01-01T06:00:00+00:00", "scheduled__6")
    >>> find_earlier_training([morning], noon, 86_400, lambda run_id: "success")
    'a training for drift started at 2030-01-01 06:00 UTC, and the cooldown lasts until 2030-01-02 06:00 UTC'
    >>> find_earlier_training([morning], noon, None, lambda run_id: "running")
    'run scheduled__6 is already training for drift'
    >>> find_earlier_training([morning], noon, 3600, lambda run_id: "failed")
    ''
    """
    latest = max(earlier, key=lambda training: datetime.fromisoformat(training.at), default=None)
    if latest is None:
        return ""
    if run_state(latest.run_id) in _RUNNING:
        return f"run {latest.run_id} is already training for drift"
    if not is_cooling_down(latest.at, now, cooldown_s):
        return ""
    began = datetime.fromisoformat(latest.at)
    end = began + timedelta(seconds=cooldown_s or 0.0)
    return f"a training for drift started at {_in_words(began)}, and the cooldown lasts until {_in_words(end)}"


def is_cooling_down(began: str, now: datetime, cooldown_s: float | None) -> bool:
    """Return whether a cooldown that began at a time (ISO 8601, or "" for never) lasts."""
    return bool(began and cooldown_s) and now < datetime.fromisoformat(began) + timedelta(seconds=cooldown_s or 0.0)


def load_started(ti: RuntimeTaskInstanceProtocol, model: str | None) -> list[StartedTraining]:
    """Return the trainings of ``model`` that a task has started in earlier runs of its DAG."""
    stored = ti.xcom_pull(task_ids=[ti.task_id], key=STARTED_KEY, include_prior_dates=True)
    trainings = [StartedTraining(**value) for value in stored if isinstance(value, dict)]
    return [
        training
        for training in trainings
        if training.run_id != ti.run_id and (training.model, training.map_index) == (model, ti.map_index)
    ]


def record_started(ti: Any, model: str | None, at: datetime) -> None:
    """Record that a task's run trains ``model`` because of drift."""
    training = StartedTraining(model, at.isoformat(), ti.run_id, ti.map_index)
    ti.xcom_push(key=STARTED_KEY, value=asdict(training))


def _in_words(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M} {time.tzname() or 'UTC'}"
