"""What the control loop does with a job that is given no devices for a while: it is stopped, and goes on later."""

from __future__ import annotations

from paceline.errors import RuntimeUnavailableError
from paceline.pace.journal import Journal
from paceline.pace.outage import Outage
from paceline.runtime.base import Job

_GRACE_S = 10.0  # to end a batch on few devices, and to save a checkpoint


class Standstill:
    """Stops a job that shares its devices with others, and starts it again where its checkpoint is.

    Parameters
    ----------
    job, journal, outage:
        Those of the control loop.
    """

    def __init__(self, job: Job, journal: Journal, outage: Outage) -> None:
        self._job = job
        self._journal = journal
        self._outage = outage
        self.times = 0
        self.lasts = False
        self.starting = False  # started again, and not heard of since

    def begin(self, now_s: float) -> None:
        """Stop the job, unless it has ended by itself meanwhile or the engine is away; then it is tried again."""
        try:
            self._job.stop(_GRACE_S)
            status = self._job.status()
        except RuntimeUnavailableError as error:
            self._outage.begins(error)
            return
        if status.state != "exited" or status.exit_code == 0:
            return  # whoever waits for the job's end sees how it ended
        self.lasts = True
        self.times += 1
        self._journal.event(now_s, "paused", "Paused: others have the devices. Its checkpoint is kept")

    def end(self, now_s: float, devices: float) -> None:
        """Start the job again on ``devices``."""
        try:
            self._job.resize(devices)
            self._job.restart()
        except RuntimeUnavailableError as error:
            self._outage.begins(error)
            return
        self.lasts, self.starting = False, True
        self._journal.event(now_s, "unpaused", "Started again on %g devices", devices, devices=devices)

    def heard(self) -> None:
        """The job trains again."""
        self.starting = False
