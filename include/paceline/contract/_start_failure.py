"""Why a training task has ended before its job started: the value of the live state's key ``not_started``."""

from __future__ import annotations

from paceline.contract._record import Moment, Record, Text


class StartFailure(Record):
    """The error of a try that has started no job. A later sample of the task's job replaces it.

    Examples
    --------
    >>> failure = StartFailure(at="2030-01-01T12:00:00Z", reason="script: got 'train.py', expected an existing file")
    >>> StartFailure.read(failure.to_json()) == failure
    True
    """

    version: int = 1
    at: Moment
    """The end of the try."""
    reason: Text
    """The error, in one line."""
