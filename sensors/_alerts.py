"""Alerts of a drift sensor: calls ``on_drift_alert`` once for each change of the findings, however often it checks.

``DriftSensor`` calls ``alert_once`` after each check. The task's state store keeps the findings of the last alert, so
retries, reschedules and deferrals do not repeat it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from paceline.airflow.callbacks import Callback, run_callbacks

if TYPE_CHECKING:
    from airflow.sdk import Context

    from paceline.contract import DriftSummary

FIELD = "on_drift_alert"
_STATE_KEY = "paceline_drift_alert"
ALARMS = ("drift", "bad data", "nothing compared")
_PARTS = ("concept_drift", "joint_drift", "estimated_drift")


def alert_once(
    callbacks: Sequence[Callback], context: Context, summary: DriftSummary, log: Any, cleared: bool = False
) -> None:
    """Call the callbacks if the check of a ``summary`` has found what the last alert did not contain.

    A check without an alarm resets what is known, and so does ``cleared``: there was such a check since the last call.
    An error in this function never fails the check.
    """
    try:
        store = context["task_state_store"]
        stored = store.get(_STATE_KEY)
        known = stored if isinstance(stored, list) and not cleared else []
        found: list[Any] = _findings(summary)
        if found[:1] == known[:1]:  # the same verdict
            found = [*known, *(one for one in found if one not in known)]
        if found == known:
            return
        store.set(_STATE_KEY, found)
    except Exception:  # rather repeat an alert than lose it
        log.exception("%s: the task's state is not available; an alert may be repeated", FIELD)
        found = _findings(summary)
    if found:
        alert = {**summary.to_json(), "kind": summary.verdict, "message": summary.reason}
        run_callbacks(FIELD, callbacks, context, alert, log)


def _findings(summary: DriftSummary) -> list[str]:
    """Return the verdict and what has drifted or is bad; an empty list without an alarm."""
    if summary.verdict not in ALARMS:
        return []
    bad = [f"{one.kind} {one.column}" for one in summary.quality if one.severe]
    parts = [f"({part})" for part in _PARTS if getattr(summary, part)]
    segments = [f"(segment {name})" for name in summary.drifted_segments]
    return [summary.verdict, *summary.drifted_features, *parts, *segments, *bad]
