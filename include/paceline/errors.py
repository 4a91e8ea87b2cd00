"""The one exception hierarchy of Paceline. Every part of the engine and every operator raises from here."""

from __future__ import annotations


class PacelineError(Exception):
    """Root of everything Paceline raises on purpose."""


class InvalidInputError(PacelineError, ValueError):
    """A value that a user gave cannot be used.

    The message always names the field, the value and what is accepted.

    Parameters
    ----------
    field:
        Name of the parameter, column or key, as the user wrote it.
    value:
        What was given.
    accepted:
        What would have been accepted, as a phrase that follows "expected".

    Examples
    --------
    >>> raise InvalidInputError("alpha", 1.2, "a number in (0, 1]")
    Traceback (most recent call last):
    paceline.errors.InvalidInputError: alpha: got 1.2, expected a number in (0, 1]
    """

    def __init__(self, field: str, value: object, accepted: str) -> None:
        self.field = field
        self.value = value
        self.accepted = accepted
        super().__init__(f"{field}: got {value!r}, expected {accepted}")

    def __reduce__(self) -> tuple[type[InvalidInputError], tuple[str, object, str]]:
        # Exceptions cross process boundaries in Airflow; the default would replay the message only.
        return type(self), (self.field, self.value, self.accepted)


class RuntimeUnavailableError(PacelineError):
    """The engine or machine that should run a job does not answer. Trying again later may help."""


class JobLostError(PacelineError):
    """A job that was started is not there any more (its container or process was removed by somebody)."""


class TrainingFailedError(PacelineError):
    """The training code ended without a usable result: it raised, was killed, or reported nothing.

    ``exit_code`` is the one it ended with, ``None`` where that is not what failed.
    """

    def __init__(self, message: str, exit_code: int | None = None) -> None:
        self.exit_code = exit_code
        super().__init__(message)

    def __reduce__(self) -> tuple[type[TrainingFailedError], tuple[str, int | None]]:
        return type(self), (str(self), self.exit_code)


class DeadlineInfeasibleError(PacelineError):
    """The deadline cannot be met even with every device, and ``on_infeasible="fail"`` was asked for."""


class AskedToEndError(PacelineError):
    """Whoever runs a training asked it to end before its job had."""


class DetachedError(PacelineError):
    """The process that steered a training has to go, and the training has not ended: the next one takes it up."""
