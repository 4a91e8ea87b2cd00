"""Decides whether drift starts training, given the training jobs that earlier drift has started.

Used by ``DriftSensor`` for the training jobs of earlier runs, and by ``DriftEventTrigger`` for its earlier events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from paceline.errors import InvalidInputError

if TYPE_CHECKING:
    from airflow.sdk.types import RuntimeTaskInstanceProtocol

# Key of the XCom with which a sensor records that its run trains because of drift.
STARTED_KEY = "paceline_drift_started"
_RUNNING = ("queued", "running")
_MAX_S = 1e9
_ACCEPTED = 'a duration greater than 0 and up to 30 years ("12h", "1d", "PT30M", seconds, a timedelta), or None'


@dataclass(frozen=True)
class StartedTraining:
    """A training job that drift has started: the model, the time, and the DAG run."""

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
    paceline.errors.InvalidInputError: cooldown: got 'soon', expected a duration greater than 0 and up to 30 years \
("12h", "1d", "PT30M", seconds, a timedelta), or None
    """
    if value in (None, "", "None"):
        return None
    from paceline.contract import Deadline

    try:
        duration_s = Deadline.parse(value, "cooldown", max_s=_MAX_S).duration_s
    except InvalidInputError:
        duration_s = None
    if duration_s is None or duration_s > _MAX_S:  # a timedelta may be longer
        raise InvalidInputError("cooldown", value, _ACCEPTED)
    return duration_s


@dataclass(frozen=True)
class Hold:
    """Why drift does not start training now, and the end of the cooldown if that is the reason."""

    reason: str
    until: datetime | None = None


def find_hold(
    earlier: Iterable[StartedTraining], now: datetime, cooldown_s: float | None, run_state: Callable[[str], str]
) -> Hold | None:
    """Return why drift must not start training now, or ``None``.

    >>> from datetime import timezone
    >>> noon = datetime(2030, 1, 1, 12, tzinfo=timezone.utc)
    >>> morning = StartedTraining("churn", "2030-01-01T06:00:00+00:00", "scheduled__6")
    >>> find_hold([morning], noon, 86_400, lambda run_id: "success").reason
    'an earlier training job started at 2030-01-01 06:00 UTC, and the cooldown lasts until 2030-01-02 06:00 UTC; \
set it to None to train before'
    >>> find_hold([morning], noon, None, lambda run_id: "running").reason
    'run scheduled__6 is already training because of drift'
    >>> find_hold([morning], noon, 3600, lambda run_id: "failed") is None
    True
    """
    latest = max(earlier, key=lambda training: parse_time(training.at), default=None)
    if latest is None:
        return None
    if run_state(latest.run_id) in _RUNNING:
        return Hold(f"run {latest.run_id} is already training because of drift")
    if not is_cooling_down(latest.at, now, cooldown_s):
        return None
    began = parse_time(latest.at)
    end = began + timedelta(seconds=cooldown_s or 0.0)
    return Hold(
        f"an earlier training job started at {_in_words(began)}, and the cooldown lasts until {_in_words(end)}; "
        "set it to None to train before",
        end,
    )


def parse_time(text: str) -> datetime:
    """Parse a stored time (ISO 8601); a time without a zone is UTC."""
    time = datetime.fromisoformat(text)
    return time if time.tzinfo else time.replace(tzinfo=timezone.utc)


def is_cooling_down(began: str, now: datetime, cooldown_s: float | None) -> bool:
    """Return whether a cooldown that began at a time (ISO 8601, or "" for never) is still in effect."""
    return bool(began and cooldown_s) and now < parse_time(began) + timedelta(seconds=cooldown_s or 0.0)


def load_started(ti: RuntimeTaskInstanceProtocol, model: str | None) -> list[StartedTraining]:
    """Return the training jobs of ``model`` that a task has started in earlier runs of its DAG."""
    stored = ti.xcom_pull(task_ids=[ti.task_id], key=STARTED_KEY, include_prior_dates=True)
    known = {field.name for field in fields(StartedTraining)}
    trainings = [
        StartedTraining(**{key: entry for key, entry in value.items() if key in known})
        for value in stored
        if isinstance(value, dict)
    ]
    # Without a model, each mapped task has training jobs of its own.
    return [
        training
        for training in trainings
        if training.run_id != ti.run_id
        and training.model == model
        and (model is not None or training.map_index == ti.map_index)
    ]


def record_started(ti: Any, model: str | None, at: datetime) -> None:
    """Record that a task's run trains ``model`` because of drift."""
    training = StartedTraining(model, at.isoformat(), ti.run_id, ti.map_index)
    ti.xcom_push(key=STARTED_KEY, value=asdict(training))


def _in_words(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M} {time.tzname() or 'UTC'}"
