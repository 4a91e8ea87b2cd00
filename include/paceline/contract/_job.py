"""The record of a job: the value of the live state's key ``container``. The next try reconnects to the job."""

from __future__ import annotations

from pydantic import Field

from paceline.contract._record import Moment, Record, Text


class JobRecord(Record):
    """The job, its origin, and the process that controls it.

    Examples
    --------
    >>> record = JobRecord(runtime="docker", id="4f0c", origin="2030-01-01T12:00:00Z", devices=1.5, owner="a")
    >>> JobRecord.read(record.to_json()) == record
    True
    """

    version: int = 1
    runtime: Text
    """Name of the runtime: ``"docker"`` or ``"process"``."""
    id: Text
    """The runtime's identifier of the job."""
    origin: Moment
    """The time from which the deadline counts."""
    started_at: Moment | None = None
    """The time at which the task requested the start of the job."""
    devices: float = Field(gt=0)
    """The allocation at the start."""
    stopped: bool = False
    """Whether the task has stopped the job. If so, the exit code does not show whether training is complete."""
    owner: Text = ""
    """Unique name of the controlling process. A process that reads another name here no longer controls the job."""
