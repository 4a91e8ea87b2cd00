"""Tracks the allocation of a job: current devices, decided devices and device-seconds. Used by the control loop."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from paceline.contract import RunTotals
from paceline.errors import JobLostError, ResizePendingError, RuntimeUnavailableError
from paceline.run._outage import Outage
from paceline.run._pending import PendingResize
from paceline.runtime import Job

if TYPE_CHECKING:
    from paceline.elastic.team import TeamJob

_MAX_PENDING_S = 60.0  # time to wait for added devices to join the job


class JobAllocation:
    """The allocation of one job.

    Parameters
    ----------
    job, outage:
        The job and the outage tracker of the control loop.
    devices:
        The current allocation.
    earlier:
        Totals of the run from an earlier controlling process.
    unconfirmed:
        Another allocation that may be in effect until the engine confirms ``devices``, or ``None``.
    team:
        The job if it is a team of containers, else ``None``. A team may use only some of its devices.
    pending:
        Reports a resize that the engine has not put in force yet.
    """

    def __init__(
        self,
        job: Job,
        outage: Outage,
        devices: float,
        earlier: RunTotals,
        unconfirmed: float | None = None,
        team: TeamJob | None = None,
        pending: PendingResize | None = None,
    ) -> None:
        self._job: Any = job
        self._is_scattered = hasattr(type(job), "devices_in_force")  # a ``ScatteredJob``
        self._outage = outage
        self._team = team
        self._pending = pending
        self.devices = self.target = self._requested = devices  # the current, the decided, the last one of ``resize``
        self._unconfirmed = unconfirmed
        self.device_s = earlier.device_s
        self.resizes = earlier.resizes
        self._counted_until_s = earlier.last_step_s
        self._earlier_in_use = earlier.in_use  # devices in use while no process controlled the job
        self._changed_s = -math.inf
        self.ended_s = math.inf  # end of a job that ended without a controlling process

    @property
    def upper_bound(self) -> float:
        """The largest allocation that may be in effect, because an engine may resize a job without answering."""
        return self.devices if self._unconfirmed is None else max(self.devices, self._unconfirmed)

    @property
    def in_use(self) -> float:
        """The devices that the job's containers use."""
        return self.devices if self._team is None else min(self._team.cores, self.devices)

    @property
    def _counted_devices(self) -> float:
        return self.in_use if self._earlier_in_use is None else self._earlier_in_use

    @property
    def is_changing(self) -> bool:
        """Whether the job may be on another allocation than ``devices``. An engine that defers a resize says which."""
        is_deferred = self._pending is not None and self._pending.active
        return self.target != self.devices and not is_deferred

    def count_until(self, now_s: float) -> None:
        """Add the device-seconds of the job's containers until ``now_s`` or, if earlier, until the job ended."""
        now_s = min(now_s, self.ended_s)
        if self._counted_until_s is not None:
            self.device_s += self._counted_devices * max(now_s - self._counted_until_s, 0.0)
            self._earlier_in_use = None
            now_s = max(now_s, self._counted_until_s)
        self._counted_until_s = now_s

    def count_until_end(self, ended_s: float) -> None:
        """Adjust the device-seconds to the time at which the job ended, which may precede the last step."""
        if self._counted_until_s is not None:
            self.device_s = max(self.device_s + self._counted_devices * (ended_s - self._counted_until_s), 0.0)
        self._counted_until_s = ended_s

    def replace(self, devices: float, now_s: float) -> None:
        """Set the allocation after the job starts or stops; do not count this change as a resize."""
        self.devices = self.target = self._requested = devices
        self._unconfirmed = None
        self._changed_s = now_s

    def devices_in_force(self, reported: int | None, now_s: float) -> float | None:
        """Return the number of devices that the job trains on if it differs from the allocation, else ``None``.

        A job that chooses its own devices (section IV-B of DECOR-NN) applies a new allocation later and reports this.
        """
        if reported is None or reported == math.ceil(self.devices - 1e-9):
            return None
        return None if now_s - self._changed_s > _MAX_PENDING_S else float(reported)

    def resize(self, now_s: float) -> None:
        """Resize the job to the decided allocation if it differs from the current allocation."""
        try:
            has_other_devices = self._is_scattered and self._job.devices_in_force() != self.devices
            is_requested = self.target == self.devices == self._requested
            if is_requested and self._unconfirmed is None and not has_other_devices:
                return
            self._requested = self.target
            self._job.resize(self.target)
        except ResizePendingError as pending:  # it may be in force at any time, unless the job counts its devices
            self._outage.record_answer()
            self._unconfirmed = None if self._is_scattered else self.target
            self._change(pending.devices, now_s)
            if self._pending is not None:
                self._pending.report(now_s, self.target, pending)
        except RuntimeUnavailableError as error:
            self._unconfirmed = max(self.upper_bound, self.target)
            self._outage.record_failure(error)
        except JobLostError:
            pass  # the job has just ended; the status check reports how
        else:
            self._outage.record_answer()
            self._unconfirmed = None
            self._change(self.target, now_s)
            if self._pending is not None:
                self._pending.clear(now_s, self.devices)

    def _change(self, devices: float, now_s: float) -> None:
        if devices != self.devices:
            self.devices = devices
            self._changed_s = now_s
            self.resizes += 1

    def add_to(self, run: RunTotals) -> RunTotals:
        """Return the totals of the run with those of the allocation, for the next controlling process."""
        allocation = {
            "last_step_s": self._counted_until_s,
            "device_s": self.device_s,
            "resizes": self.resizes,
            "allocated_devices": self.devices,
            "in_use": self.in_use,
        }
        return run.model_copy(update=allocation)
