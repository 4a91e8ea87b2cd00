"""How a training ended: what its task returns, and what the live state keeps of that until the task has returned it."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from paceline.contract.record import Moment, Record, Rounded, Seconds, Text


class Outcome(Record):
    """The figures of a training that has ended well.

    Seconds count from the moment that the deadline counts from. ``error_pct`` is equation (7) of DECOR-NN: negative for
    a run that ended before its deadline. It is ``None``, as ``deadline_s`` is, for a run without one.
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
    """What a control step costs."""
    step_ms_max: Rounded
    store_ms_mean: Rounded
    """What an exchange with the live state costs, beside the control steps."""
    loss: float | None = None
    metrics: dict[str, float] = Field(default_factory=dict)
    learned: dict[str, Any] | None = None
    """What the next run of the job begins with, see :class:`~paceline.control.PastRun`."""


class TrainingResult(Outcome):
    """What a training's task returns, as its XCom has it."""

    version: int = 1
    model: Text
    """Where the output is."""
    runtime: Text
    origin: Moment


class CollectedOutput(Record):
    """What a training has put where: the value of the live state's key ``output``.

    A training of the same task that is collected later removes what of this is not its own.
    """

    version: int = 1
    place: Text
    names: list[Text] = Field(default_factory=list)
    """Files and folders directly in it."""


class StoredResult(Record):
    """A result that is safe: the value of the live state's key ``result``, written before the job is removed.

    A later try of the same task returns it and trains nothing. A user who clears the task wants another training: that
    changes ``max_tries``, a retry does not.

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
        """Whether a try is one of those that made it: a later one, or the same in another process."""
        return try_number >= self.try_number and max_tries == self.max_tries
