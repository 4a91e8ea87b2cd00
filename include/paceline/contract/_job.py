"""The record of a job. It is stored with the job, for the next try, and under the live state's key ``container``.

Users can edit the live state. So a try decides from the record that is stored with the job.
"""

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
    owner: Text = ""
    """Unique name of the controlling process. A process that reads another name here no longer controls the job."""
    code: Text = ""
    """Digest of the command and the files that the job was started with."""
    deferred: bool = False
    """Whether the controlling process runs in the triggerer, or hands the job over to it."""
    max_tries: int | None = None
    """The task's ``max_tries`` when the controlling process began: clearing a task changes it, a retry does not."""
    try_number: int | None = None
    """The task's try to which the controlling process belongs."""
