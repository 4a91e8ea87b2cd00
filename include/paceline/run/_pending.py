"""Reports a new allocation that the engine has not put in force yet, once for each reason. The control loop uses it."""

from __future__ import annotations

import logging

from paceline.contract import Unit
from paceline.errors import ResizePendingError
from paceline.run._journal import Journal


class PendingResize:
    """The last resize, while it is not in force.

    >>> from paceline.run._history import History
    >>> pending = PendingResize(Journal(History(), logging.getLogger("example")))
    >>> for now_s in (1.0, 2.0):
    ...     pending.report(now_s, 2.0, ResizePendingError(0.5, "Deferred: no room"))
    >>> pending.active
    True
    >>> pending.clear(3.0, 2.0)
    >>> [event["kind"] for event in pending.journal.history.to_json()["events"]]
    ['resize_pending', 'resized']
    """

    def __init__(self, journal: Journal, unit: Unit = "cores") -> None:
        self.journal, self.unit = journal, unit
        self._reason = ""

    @property
    def active(self) -> bool:
        """Whether the engine has answered that the last resize is not in force."""
        return bool(self._reason)

    def report(self, now_s: float, wanted: float, pending: ResizePendingError) -> None:
        """Log the reason, unless it was the last one. Numbers in the details of a reason change all the time."""
        reason = pending.reason.partition(":")[0]
        if reason == self._reason:
            return
        self._reason = reason
        message = "Waiting for an allocation of %g %s: it stays %g for now. %s"
        values = (wanted, self.unit, pending.devices, pending.reason)
        details = {"devices": pending.devices, "why": pending.reason}
        self.journal.event(now_s, "resize_pending", message, *values, level=logging.WARNING, **details)

    def clear(self, now_s: float, devices: float) -> None:
        """Log that the allocation is in force, if it had to wait."""
        if self.active:
            self._reason = ""
            self.journal.event(now_s, "resized", "The allocation is now %g %s", devices, self.unit, devices=devices)
