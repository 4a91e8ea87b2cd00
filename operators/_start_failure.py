"""Notes in the live state why a try of a training task has started no job, for Paceline's pages and its command."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import (
    AirflowException,
    AirflowRescheduleException,
    AirflowSkipException,
    AirflowTaskTimeout,
)
from airflow.sdk.log import redact  # type: ignore[attr-defined]

from paceline.contract import NOT_STARTED, StartFailure
from paceline.errors import PacelineError, TaskStoppedError, TrainingOverError
from paceline.run.outcome import in_one_line
from paceline.run.within import within

if TYPE_CHECKING:
    from airflow.sdk import Context

_SAVE_TIMEOUT_S = 5.0


@contextmanager
def noting_start_failure(context: Context, log: Any, has_job: Callable[[], bool]) -> Iterator[None]:
    """Store an error of the block as the reason why no job was started, unless ``has_job`` returns true.

    The other ends of a task are no failures: skipped, rescheduled, deferred, or ended by a user.
    """
    try:
        yield
    except (AirflowSkipException, AirflowRescheduleException):
        raise
    except (Exception, AirflowTaskTimeout) as error:
        if not isinstance(error.__cause__, (TrainingOverError, TaskStoppedError)):
            _note(context, log, has_job, error)
        raise


def _note(context: Context, log: Any, has_job: Callable[[], bool], error: BaseException) -> None:
    is_plain = isinstance(error, (PacelineError, AirflowException))
    message = str(error) if is_plain and str(error) else f"{type(error).__name__}: {error}"
    reason = in_one_line(str(redact(message)))

    def store() -> bool:
        if not has_job():
            failure = StartFailure(at=datetime.now(timezone.utc), reason=reason)
            context["task_state_store"].set(NOT_STARTED, failure.to_json())
        return True

    if not within(_SAVE_TIMEOUT_S, store, default=False):
        log.info("Could not store for Paceline's pages why the job was not started")
