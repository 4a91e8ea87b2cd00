"""What the control loop does with a job that is given no devices for a while: it is stopped, and goes on later."""

from __future__ import annotations

from collections.abc import Callable

from paceline.errors import RuntimeUnavailableError
from paceline.run.journal import Journal
from paceline.run.outage import Outage
from paceline.runtime.base import Job

_GRACE_S = 10.0  # to end a batch on few devices, and to save a checkpoint


class Preemption:
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
        self.perhaps = 0.0  # devices on which it may run all the same: the engine did not answer

    def begin(self, now_s: float, has_trained: Callable[[], bool], *, again: bool) -> bool:
        """Stop the job; returns whether it stands still.

        It does not if it has ended by itself meanwhile or the engine is away; then it is tried again.

        Parameters
        ----------
        now_s:
            The time.
        has_trained:
            Whether it has said that its last batch is done. Code that answers SIGTERM itself may leave with the exit
            code 0 before that.
        again:
            It stood still before, and may have been started by an engine that did not answer.
        """
        try:
            self._job.stop(_GRACE_S)
            status = self._job.status()
        except RuntimeUnavailableError as error:
            self._outage.begins(error)
            return False
        if status.state != "exited" or (status.exit_code == 0 and has_trained()):
            return False  # whoever waits for the job's end sees how it ended
        self.perhaps = 0.0
        if not again:
            self.times += 1
            self._journal.event(now_s, "paused", "Paused: others have the devices. Its checkpoint is kept")
        return True

    def end(self, now_s: float, devices: float) -> bool:
        """Start the job again on ``devices``; returns whether it has been."""
        try:
            self._job.resize(devices)
            self._job.restart()
        except RuntimeUnavailableError as error:
            self.perhaps = max(self.perhaps, devices)
            self._outage.begins(error)
            return False
        self._outage.is_over()
        self.perhaps = 0.0
        self._journal.event(now_s, "unpaused", "Started again on %g devices", devices, devices=devices)
        return True
