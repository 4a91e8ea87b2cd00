"""The exception hierarchy of Paceline."""

from __future__ import annotations


class PacelineError(Exception):
    """Base class of all errors that Paceline raises on purpose."""


class InvalidInputError(PacelineError, ValueError):
    """Raised for an invalid value from a user. The message names the field, the value and the accepted values.

    Parameters
    ----------
    field:
        Name of the parameter, column or key, as the user wrote it.
    value:
        The invalid value.
    accepted:
        The accepted values, as a phrase that follows "expected".

    Attributes
    ----------
    task_id:
        The task whose constructor has raised the error; ``None`` elsewhere.

    Examples
    --------
    >>> raise InvalidInputError("alpha", 1.2, "a number in (0, 1]")
    Traceback (most recent call last):
    paceline.errors.InvalidInputError: alpha: got 1.2, expected a number in (0, 1]
    """

    task_id: str | None = None

    def __init__(self, field: str, value: object, accepted: str) -> None:
        self.field = field
        self.value = value
        self.accepted = accepted
        super().__init__(f"{field}: got {describe_value(value)}, expected {accepted}")

    def __str__(self) -> str:
        message = super().__str__()
        return message if self.task_id is None else f"{message} (task {self.task_id!r})"

    def __reduce__(self) -> tuple[type[InvalidInputError], tuple[str, object, str], dict[str, str | None]]:
        # Airflow pickles exceptions. By default, unpickling would pass only the message to the constructor.
        return type(self), (self.field, self.value, self.accepted), {"task_id": self.task_id}


def describe_value(value: object) -> str:
    """Return ``repr(value)``, or the type of a value for which ``repr`` fails."""
    try:
        return repr(value)
    except Exception:  # Python does not convert integers of more than 4,300 digits to text
        return f"a value of type {type(value).__name__}"


class BadDataError(PacelineError):
    """Raised when data has severe quality problems, so that a model must not be trained on it."""


class NothingComparedError(PacelineError):
    """Raised when a drift check has compared no feature, so that it cannot find drift."""


class RuntimeUnavailableError(PacelineError):
    """Raised when the engine or machine of a job does not respond. A later retry may succeed."""


class ResizePendingError(RuntimeUnavailableError):
    """Raised when an engine answers that a new allocation is not in force yet. The job continues on the earlier one.

    Parameters
    ----------
    devices:
        The allocation in force.
    reason:
        Why the new allocation is not in force, as a phrase for the log.
    """

    def __init__(self, devices: float, reason: str) -> None:
        self.devices = devices
        self.reason = reason
        super().__init__(f"the allocation stays {devices:g} for now: {reason}")

    def __reduce__(self) -> tuple[type[ResizePendingError], tuple[float, str]]:
        return type(self), (self.devices, self.reason)


class JobLostError(PacelineError):
    """Raised when a job no longer exists, because its container or process was removed."""


class TrainingOverError(PacelineError):
    """Raised when a distributed training has ended without this job, which is not needed any more."""


class TrainingAbandonedError(PacelineError):
    """Raised when this job of a distributed training waits for tasks that have failed."""


class TrainingFailedError(PacelineError):
    """Raised when the training code fails: it raised an exception, was killed, or reported nothing.

    ``exit_code`` is the job's exit code, or ``None`` if the failure has no exit code.
    """

    def __init__(self, message: str, exit_code: int | None = None) -> None:
        self.exit_code = exit_code
        super().__init__(message)

    def __reduce__(self) -> tuple[type[TrainingFailedError], tuple[str, int | None]]:
        return type(self), (str(self), self.exit_code)


class UnsuitableCodeError(TrainingFailedError):
    """Raised when every further try of the training code would fail in the same way."""


class DeadlineInfeasibleError(PacelineError):
    """Raised when the deadline cannot be met even with all allowed devices, and ``on_infeasible`` is ``"fail"``."""


class TaskStoppedError(PacelineError):
    """Raised when a task is stopped before its job has ended."""


class DetachedError(PacelineError):
    """Raised when the controlling process ends before its job. The next process takes over the job."""


PERMANENT_ERRORS = (InvalidInputError, DeadlineInfeasibleError, TrainingAbandonedError, UnsuitableCodeError)
"""Errors after which a training task is not retried, because a further try cannot succeed."""
