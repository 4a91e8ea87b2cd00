"""Which deadline a training begins with, and what it counts from."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from paceline.contract import DEADLINE, Deadline, StoredDeadline
from paceline.errors import InvalidInputError

if TYPE_CHECKING:
    from airflow.sdk import Context

DEADLINE_FROM = ("run", "task")


def origin(context: Context, deadline_from: str) -> datetime:
    """The moment that a duration counts from: the start of the DAG run, or of this task.

    ``airflow dags test`` calls the logical date the start of its run; that run is due now, and starts no sooner.
    """
    now = datetime.now(timezone.utc)
    if deadline_from == "task":
        moments: list[datetime | None] = [context["ti"].start_date]
    else:
        moments = [context["dag_run"].start_date, getattr(context["dag_run"], "run_after", None)]
    known = [moment.astimezone(timezone.utc) for moment in moments if moment is not None]
    return min(max(known, default=now), now)


def first_deadline(store: Any, given: object, begin: datetime, *, log: Any, must_be_ahead: bool) -> Deadline:
    """The deadline to begin with: what somebody has set in ``store`` already, else what the DAG says, which is set now.

    Parameters
    ----------
    given:
        The operator's own deadline, as it was written; ``None`` for none.
    begin:
        The moment that durations count from.
    must_be_ahead:
        Refuse a deadline that has passed. A try that takes over a job has work to end all the same.
    """
    said = StoredDeadline.read(store.get(DEADLINE)).value
    if said is not None:
        try:
            return _read(said, begin, must_be_ahead)
        except InvalidInputError as error:
            log.warning("The deadline in the task state store is not taken. %s", error)
    if given is None:
        store.set(DEADLINE, StoredDeadline(None).to_json())
        return Deadline()
    deadline = _read(given, begin, must_be_ahead)
    if deadline.at is not None:
        store.set(DEADLINE, deadline.at.isoformat())
    else:
        store.set(DEADLINE, given if isinstance(given, (str, int, float)) else deadline.duration_s)
    return deadline


def _read(said: object, begin: datetime, must_be_ahead: bool) -> Deadline:
    deadline = Deadline.parse(said)
    passed_s = (datetime.now(timezone.utc) - begin).total_seconds()
    if must_be_ahead and deadline.seconds_after(begin) <= passed_s:
        raise InvalidInputError("deadline", said, f"a time that is still to come ({passed_s:.1f} s have passed)")
    return deadline
