"""The allocation of a job: current devices, decided devices, and device-seconds so far. Owned by the control loop."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from paceline.contract import Reported, RunTotals
from paceline.errors import JobLostError, RuntimeUnavailableError
from paceline.run._outage import Outage
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
        Another allocation that may be in force until the engine confirms ``devices``, or ``None``.
    team:
        The job if it is a team, else ``None``. A team may use only part of its allocation.
    """

    def __init__(
        self,
        job: Job,
        outage: Outage,
        devices: float,
        earlier: RunTotals,
        unconfirmed: float | None = None,
        team: TeamJob | None = None,
    ) -> None:
        self._job = job
        self._outage = outage
        self._team = team
        self.devices = self.target = devices  # the current and the decided allocation
        self._unconfirmed = unconfirmed
        self.device_s = earlier.device_s
        self.resizes = earlier.resizes
        self._counted_until_s = earlier.last_step_s
        self._in_use_before = earlier.in_use  # unchanged while no process controlled the job
        self._changed_s = -math.inf
        self.ended_s = math.inf  # end of a job that ended without a controlling process

    @property
    def upper_bound(self) -> float:
        """The largest possible allocation: an engine that did not answer may still have resized the job."""
        return self.devices if self._unconfirmed is None else max(self.devices, self._unconfirmed)

    @property
    def in_use(self) -> float:
        """The devices that the job's containers use."""
        return self.devices if self._team is None else min(self._team.cores, self.devices)

    @property
    def _counted_devices(self) -> float:
        return self.in_use if self._in_use_before is None else self._in_use_before

    def count_until(self, now_s: float) -> None:
        """Add the device-seconds of the job's containers until ``now_s``, or until the end of the job if earlier."""
        now_s = min(now_s, self.ended_s)
        if self._counted_until_s is not None:
            self.device_s += self._counted_devices * max(now_s - self._counted_until_s, 0.0)
            self._in_use_before = None
            now_s = max(now_s, self._counted_until_s)
        self._counted_until_s = now_s

    def count_until_end(self, ended_s: float) -> None:
        """Add or subtract device-seconds up to the end of the job, which may precede the last step."""
        if self._counted_until_s is not None:
            self.device_s = max(self.device_s + self._counted_devices * (ended_s - self._counted_until_s), 0.0)
        self._counted_until_s = ended_s

    def replace(self, devices: float, now_s: float) -> None:
        """Set the allocation after a start or a stop of the job; neither counts as a resize."""
        self.devices = self.target = devices
        self._unconfirmed = None
        self._changed_s = now_s

    def devices_in_force(self, reported: int | None, now_s: float) -> float | None:
        """Return the devices that the job trains on if they differ from the allocation, else ``None``.

        A job that chooses its own devices (section IV-B of DECOR-NN) adopts a new allocation later and reports it.
        """
        if reported is None or reported == math.ceil(self.devices - 1e-9):
            return None
        return None if now_s - self._changed_s > _MAX_PENDING_S else float(reported)

    def resize(self, now_s: float) -> None:
        """Resize the job to the decided allocation if it differs from the current one."""
        if self.target == self.devices and self._unconfirmed is None:
            return
        try:
            self._job.resize(self.target)
        except RuntimeUnavailableError as error:
            self._unconfirmed = max(self.upper_bound, self.target)
            self._outage.record_failure(error)
        except JobLostError:
            pass  # the job has just ended; the status check reports how
        else:
            self._outage.record_answer()
            self._unconfirmed = None
            if self.target != self.devices:
                self.devices = self.target
                self._changed_s = now_s
                self.resizes += 1

    def totals(self, began_s: float, restarts: int, reported: Reported | None) -> RunTotals:
        """Return the totals for the next controlling process."""
        return RunTotals(
            began_s=began_s,
            restarts=restarts,
            last_step_s=self._counted_until_s,
            device_s=self.device_s,
            resizes=self.resizes,
            held_devices=self.devices,
            in_use=self.in_use,
            reported=reported,
        )
