"""The clock of a training task: the value of the live state's key ``clock``. Later processes count with it."""

from __future__ import annotations

from pydantic import Field

from paceline.contract._record import Moment, Record, Text


class StoredClock(Record):
    """The clock with which a task counts the time from ``origin``, on one machine until its next boot.

    Examples
    --------
    >>> clock = StoredClock(boot_id="0f9c", origin="2030-01-01T12:00:00Z", offset_s=1_893_400_000.0)
    >>> StoredClock.read(clock.to_json()) == clock
    True
    """

    boot_id: Text
    """The kernel's name for the time from a machine's boot to its shutdown."""
    origin: Moment
    """The time from which the deadline counts."""
    offset_s: float = Field(ge=-1e11, le=1e11)
    """Seconds since the epoch less seconds since the boot."""
