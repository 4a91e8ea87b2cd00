"""The result of a job: the return value of its task, and a copy that is stored until the task has returned it."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from paceline.contract._measured import Measured
from paceline.contract._record import Moment, Record, Rounded, Seconds, Text


class Outcome(Measured):
    """The measurements of a successful job.

    Times are in seconds, counted from the same time as the deadline. ``error_pct`` is equation (7) of DECOR-NN:
    negative for a run that ended before its deadline. Without a deadline, it is ``None``, like ``deadline_s``;
    also if the deadline had passed before the job began.
    """

    finished_s: Seconds
    deadline_s: Seconds | None
    error_pct: Rounded | None
    met: bool
    mean_devices: Rounded
    device_seconds: Rounded
    resizes: int
    restarts: int
    step_ms_mean: Rounded
    """Mean duration of a control step, in milliseconds."""
    step_ms_max: Rounded
    store_ms_mean: Rounded
    """Mean duration of an exchange with the state store, which runs in parallel with the control steps."""
    learned: dict[str, Any] | None = None
    """Measurements for the next run, see :class:`~paceline.control.PastRun`."""


class TrainingResult(Outcome):
    """The return value of a training task, in its XCom."""

    version: int = 1
    model: Text
    """Folder or URL of the output."""
    runtime: Text
    origin: Moment


class CollectedOutput(Record):
    """The collected output of a job: the value of the live state's key ``output``.

    A later job of the same task replaces this output and removes the files that the later job does not write.
    """

    version: int = 1
    place: Text
    names: list[Text] = Field(default_factory=list)
    """Files and folders directly in ``place``."""
    warning: Text | None = None
    """What is wrong with an output that should not be empty; ``None`` otherwise."""


class StoredResult(Record):
    """A stored result: the value of the live state's key ``result``, written before the job is removed.

    A later try of the same task returns the stored result instead of training. If a user clears the task, the task
    trains again: clearing a task changes ``max_tries``, a retry does not.

    Examples
    --------
    >>> outcome = dict(finished_s=59.0, deadline_s=60.0, error_pct=-1.7, met=True, mean_devices=1.0, resizes=3,
    ...     restarts=0, device_seconds=59.0, step_ms_mean=1.0, step_ms_max=2.0, store_ms_mean=9.0)
    >>> result = TrainingResult(model="/models/1", runtime="docker", origin="2030-01-01T12:00:00+00:00", **outcome)
    >>> stored = StoredResult(try_number=1, max_tries=2, result=result)
    >>> stored.is_for(1, 2), stored.is_for(2, 2), stored.is_for(2, 4)
    (True, True, False)
    """

    version: int = 1
    try_number: int
    max_tries: int
    result: TrainingResult

    def is_for(self, try_number: int, max_tries: int) -> bool:
        """Return whether a try may return this result: the try that stored it, or a later one of an uncleared task."""
        return try_number >= self.try_number and max_tries == self.max_tries
