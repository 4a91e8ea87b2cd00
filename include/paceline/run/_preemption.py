"""Preempts a job that temporarily has no devices: the control loop stops the job and resumes it later."""

from __future__ import annotations

from collections.abc import Callable

from paceline.errors import ResizePendingError, RuntimeUnavailableError
from paceline.run._outage import Outage
from paceline.run._pending import PendingResize
from paceline.runtime import Job

_GRACE_S = 10.0  # time for the job to end a batch on few devices and save a checkpoint


class Preemption:
    """Stops a job and later restarts it from its checkpoint.

    Parameters
    ----------
    job, outage, pending:
        The job, and the reports of the control loop about its engine.
    count:
        Number of earlier preemptions.
    """

    def __init__(self, job: Job, outage: Outage, pending: PendingResize, count: int = 0) -> None:
        self._job = job
        self._journal = pending.journal
        self._outage = outage
        self._pending = pending
        self.count = count
        self.unconfirmed = 0.0  # devices of a job that an engine may have restarted without answering

    def preempt(self, now_s: float, is_training_done: Callable[[], bool], *, repeated: bool) -> bool:
        """Stop the job; return whether it is stopped.

        Return false if the job has already ended or the engine does not respond; the caller then tries again.

        Parameters
        ----------
        now_s:
            The time, in seconds.
        is_training_done:
            Function that returns whether the job has reported its last batch; exit code 0 may also follow a SIGTERM.
        repeated:
            Whether the job was already stopped once, and an engine that did not answer may have restarted it.
        """
        try:
            self._job.stop(_GRACE_S)
            status = self._job.status()
        except RuntimeUnavailableError as error:
            self._outage.record_failure(error)
            return False
        if status.state != "exited" or (status.exit_code == 0 and is_training_done()):
            return False  # the control loop processes the end of the job
        self.unconfirmed = 0.0
        if not repeated:
            self.count += 1
            self._journal.event(now_s, "preempted", "Preempted: other jobs have the devices. The checkpoint is kept")
        return True

    def resume(self, now_s: float, devices: float) -> bool:
        """Restart the job on ``devices``; return whether it was restarted."""
        try:
            self._job.resize(devices)
            self._job.restart()
        except ResizePendingError as pending:  # no room yet
            self._outage.record_answer()
            self._pending.report(now_s, devices, pending)
            return False
        except RuntimeUnavailableError as error:
            self.unconfirmed = max(self.unconfirmed, devices)
            self._outage.record_failure(error)
            return False
        self._outage.record_answer()
        self._pending.clear(now_s, devices)
        self.unconfirmed = 0.0
        self._journal.event(now_s, "resuming", "Resuming on %g %s", devices, self._pending.unit, devices=devices)
        return True
