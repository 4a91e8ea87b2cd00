"""What a job holds, what was decided for it, and how many device-seconds that has come to. Kept by the control loop."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from paceline.contract import Reported, RunTotals
from paceline.errors import JobLostError, RuntimeUnavailableError
from paceline.run.outage import Outage
from paceline.runtime.base import Job

if TYPE_CHECKING:
    from paceline.elastic.team import TeamJob

_PENDING_AT_MOST_S = 60.0  # a device that has not joined by then will not


class JobAllocation:
    """The devices of one job.

    Parameters
    ----------
    job, outage:
        Those of the control loop.
    devices:
        What the job holds now.
    earlier:
        What the run had come to, when another process had the job before.
    perhaps:
        What it may hold instead, as far as its engine has not been asked; ``None`` if that is sure.
    team:
        The job, if it is a team of several: what it holds is what they may share, of which its nodes have a part.
    """

    def __init__(
        self,
        job: Job,
        outage: Outage,
        devices: float,
        earlier: RunTotals,
        perhaps: float | None = None,
        team: TeamJob | None = None,
    ) -> None:
        self._job = job
        self._outage = outage
        self._team = team
        self.devices = self.wanted = devices  # given to the job, and decided
        self._perhaps = perhaps
        self.device_s = earlier.device_s
        self.resizes = earlier.resizes
        self._until_s = earlier.last_step_s
        self._in_use_then = earlier.in_use  # while nobody controlled the job, that stayed
        self._given_s = -math.inf
        self.ended_s = math.inf  # end of a job that ended without a controlling process

    @property
    def most(self) -> float:
        """What the job holds at most: an engine that did not answer may have done what it was asked."""
        return self.devices if self._perhaps is None else max(self.devices, self._perhaps)

    @property
    def in_use(self) -> float:
        """What of it the job's containers have."""
        return self.devices if self._team is None else min(self._team.cores, self.devices)

    def account(self, now_s: float) -> None:
        """Count what the job's containers had up to now, or to its end if that came before."""
        now_s = min(now_s, self.ended_s)
        if self._until_s is not None:
            in_use = self.in_use if self._in_use_then is None else self._in_use_then
            self.device_s += in_use * max(now_s - self._until_s, 0.0)
            self._in_use_then = None
        self._until_s = now_s

    def have(self, devices: float, now_s: float) -> None:
        """The job was started on so many, or stopped: others than before, without a resize."""
        self.devices = self.wanted = devices
        self._perhaps = None
        self._given_s = now_s

    def in_force(self, reported: int | None, now_s: float) -> float | None:
        """The devices that the job trains on, while these are others than it was given; ``None`` when it has them.

        A job that sees to its devices itself (section IV-B of DECOR-NN) takes them when it can and says so.
        """
        if reported is None or reported == math.ceil(self.devices - 1e-9):
            return None
        return None if now_s - self._given_s > _PENDING_AT_MOST_S else float(reported)

    def resize(self, now_s: float) -> None:
        """Give the job what was decided, if that is another number."""
        if self.wanted == self.devices and self._perhaps is None:
            return
        try:
            self._job.resize(self.wanted)
        except RuntimeUnavailableError as error:
            self._perhaps = max(self.most, self.wanted)
            self._outage.begins(error)
        except JobLostError:
            pass  # it ended just now: its status will tell how
        else:
            self._outage.is_over()
            self._perhaps = None
            if self.wanted != self.devices:
                self.devices = self.wanted
                self._given_s = now_s
                self.resizes += 1

    def totals(self, began_s: float, restarts: int, reported: Reported | None) -> RunTotals:
        """For whoever has the job next."""
        return RunTotals(
            began_s=began_s,
            restarts=restarts,
            last_step_s=self._until_s,
            device_s=self.device_s,
            resizes=self.resizes,
            held_devices=self.devices,
            in_use=self.in_use,
            reported=reported,
        )
