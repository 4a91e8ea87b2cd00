"""What the operators have in common that leave a running job to the triggerer."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow.sdk.bases.operator import TRIGGER_FAIL_REPR, TriggerFailureReason
from airflow.sdk.configuration import conf

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Context

UNNAMED_ENGINE = "no connection names its engine: the triggerer might ask another one"


def read_deferrable(deferrable: bool | None) -> bool:
    """Return whether a task is deferred: its argument, or else Airflow's default."""
    if deferrable is None:
        return bool(conf.getboolean("operators", "default_deferrable", fallback=False))
    return deferrable


def trigger_failure(next_method: str, kwargs: Mapping[str, Any]) -> str | None:
    """Return why the triggerer could not run the trigger of a task that continues now; ``None`` if it could."""
    if next_method != TRIGGER_FAIL_REPR or kwargs.get("error") != TriggerFailureReason.TRIGGER_FAILURE:
        return None
    return "\n".join(kwargs.get("traceback") or ())


def time_limit(task: BaseOperator, context: Context) -> datetime | None:
    """Return the end of the try's time limit, which counts from its start, also over several processes."""
    timeout = task.execution_timeout
    started = None if timeout is None else context["ti"].start_date
    return None if timeout is None or started is None else started + timeout
