"""Which resizes a job receives, and what is logged about those that are not in force yet."""

from __future__ import annotations

import logging
from typing import Any

from paceline.contract import RunTotals
from paceline.errors import ResizePendingError
from paceline.run._allocation import JobAllocation
from paceline.run._history import History
from paceline.run._journal import Journal
from paceline.run._outage import Outage
from paceline.run._pending import PendingResize


class QueueingJob:
    """A job whose further devices do not join."""

    has_engine = True

    def __init__(self) -> None:
        self.resizes: list[float] = []

    def devices_in_force(self) -> float:
        return 1.0

    def resize(self, devices: float) -> None:
        self.resizes.append(devices)
        if devices > 1.0:
            raise ResizePendingError(1.0, "Device 1 has not joined: no node has room")


def test_return_to_the_allocation_in_force_reaches_a_job_whose_devices_have_not_joined(clock: Any) -> None:
    job: Any = QueueingJob()
    journal = Journal(History(), logging.getLogger("test"))
    pending = PendingResize(journal)
    outage = Outage(job, journal, clock, clock.now)
    allocation = JobAllocation(job, outage, 1.0, RunTotals(began_s=0.0, last_step_s=None), pending=pending)
    for target in (3.0, 3.0, 1.0, 1.0):
        allocation.target = target
        allocation.resize(clock.now())
    assert job.resizes == [3.0, 3.0, 1.0]
    assert not pending.active
    assert allocation.devices == 1.0
    assert allocation.upper_bound == 1.0
