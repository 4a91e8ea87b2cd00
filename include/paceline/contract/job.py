"""The job of a training, as the live state's key ``container`` says where it is: what the next try reconnects to."""

from __future__ import annotations

from pydantic import Field

from paceline.contract.record import Moment, Record, Text


class JobRecord(Record):
    """Which job trains, since when, and who steers it.

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
    """What the runtime finds it by."""
    origin: Moment
    """The moment that the deadline counts from."""
    devices: float = Field(gt=0)
    """What it was started on."""
    stopped: bool = False
    """A task has stopped it, or is about to: whatever its exit code is, it has not ended by itself."""
    owner: Text = ""
    """Who steers it: another for every process that has taken it up. Who finds another one here has lost the job."""
