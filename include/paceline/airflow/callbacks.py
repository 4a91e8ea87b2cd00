"""Calls a DAG author's callbacks, usually notifiers, for alerts of training jobs and of drift checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

from paceline.errors import InvalidInputError

if TYPE_CHECKING:
    from airflow.sdk import Context

Callback = Callable[["Context"], Any]


def read_callbacks(field: str, value: Any) -> list[Callback]:
    """Return one or several callbacks as a list.

    >>> read_callbacks("on_drift_alert", [print, "mail"])
    Traceback (most recent call last):
    paceline.errors.InvalidInputError: on_drift_alert: got 'mail', expected a notifier or function, or a list of them
    """
    callbacks = list(value) if isinstance(value, (list, tuple)) else [value]
    for callback in callbacks:
        if not callable(callback):
            raise InvalidInputError(field, callback, "a notifier or function, or a list of them")
    return callbacks


def run_callbacks(
    field: str, callbacks: Sequence[Callback], context: Context, alert: Mapping[str, Any], log: Any
) -> None:
    """Call each callback with the task's context and, under the key ``paceline``, the alert. Log its errors."""
    for callback in callbacks:
        try:
            extended: Any = {**context, "paceline": dict(alert)}
            # A notifier overwrites its templates with the rendered values, so use a copy for each alert.
            copy(callback)(extended)
        except Exception:  # an error in a callback must not end the task
            log.exception("%s: %r failed", field, callback)
