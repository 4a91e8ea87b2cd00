"""The job that an earlier try of a task has left, and what the next try does with it. Used by ``Training``."""

from __future__ import annotations

import contextlib
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.contract import PACE, PaceSample
from paceline.errors import InvalidInputError, JobLostError, ResizePendingError, RuntimeUnavailableError

if TYPE_CHECKING:
    from paceline.run._handle import JobHandle
    from paceline.run.host import Host
    from paceline.runtime import Job, JobSpec, Runtime

_CODE = "The script, its arguments or files have"
_ENVIRONMENT = "The inputs, the environment or the limits of the job have"


class EarlierJob:
    """The job of an earlier try, found when this object is created.

    Parameters
    ----------
    handle:
        This try's handle, which then refers to the job.
    host:
        The environment of the training run.
    on_change:
        What a retry does if the job's code has changed: ``"resume"`` or ``"restart"``.

    Attributes
    ----------
    record:
        The record that is stored with the job; ``None`` if there is no job, or its process died before the record.
    status:
        The job's status; ``None`` if there is no job.
    """

    def __init__(self, handle: JobHandle, host: Host, on_change: str = "resume") -> None:
        self._handle, self._host, self._on_change = handle, host, on_change
        self.record = handle.find()
        self.status = None if handle.job is None else handle.call_engine(handle.job.status)

    @cached_property
    def code(self) -> str:
        """The digest of the task's code; empty if a file is missing, for example while the DAGs are being deployed."""
        try:
            return self._host.code_digest()
        except InvalidInputError as error:
            self._host.log.warning("The code of the task cannot be compared with that of its job: %s", error)
            return ""

    @property
    def can_be_taken_over(self) -> bool:
        """Whether the job is running, or completed its training without being stopped."""
        status = self.status
        return status is not None and (status.state == "running" or (status.exit_code == 0 and not status.stopped))

    @property
    def has_other_code(self) -> bool:
        """Whether the task's code has changed since the start of the job."""
        return self.record is not None and self._is_other_code(self.record.code)

    def _is_other_code(self, code: str) -> bool:
        return "" not in (code, self.code) and code != self.code

    @property
    def _is_cleared(self) -> bool:
        return self.record is not None and self._is_of_earlier_clear(self.record.max_tries)

    def _is_of_earlier_clear(self, max_tries: int | None) -> bool:
        return max_tries not in (None, self._host.max_tries)

    def copied_checkpoint(self, folder: Path) -> Path | None:
        """Write the copy of a lost job's checkpoint to an empty ``folder``, and return it; ``None`` if there is none.

        A copy of other code is removed in the cases in which ``discard_if_outdated`` removes a job.
        """
        copies = self._host.checkpoint_copies()
        about = None if copies is None else copies.load(folder)
        if copies is None or about is None:
            return None
        is_cleared = self._is_of_earlier_clear(about.get("max_tries"))
        if self._is_other_code(about.get("code", "")) and (self._on_change == "restart" or is_cleared):
            self._host.log.warning(
                "%s changed since the checkpoint in %s: training starts from the beginning", _CODE, copies.place
            )
            copies.remove()
            return None
        self._host.log.warning("Training resumes from the copy of the lost job's checkpoint in %s", copies.place)
        return folder

    def discard_if_outdated(self) -> None:
        """Remove a job with other code if this try has to train from the beginning.

        A user who clears a task after a change of its code expects the new code to run from the beginning.
        """
        if self.status is None:
            return
        if self._is_cleared and self.record is not None and self.record.deferred:  # nobody was there to remove the job
            self._host.log.warning("The task was cleared while it was deferred: its job is removed")
            self.discard()
            return
        if not self.has_other_code or (self._on_change == "resume" and not self._is_cleared):
            return
        reason = "the task was cleared" if self._is_cleared else "on_change is 'restart'"
        self._host.log.warning(
            f"{_CODE} changed since the job of an earlier try started, and {reason}: training starts from the "
            f"beginning; the earlier job is removed ({self._progress()})"
        )
        if self._is_cleared:
            self.discard()
            return
        job = self._handle.job
        assert job is not None  # it has a status
        self._handle.call_engine(job.remove)
        self._forget()

    def discard(self) -> None:
        """Remove the job and its keys, including a user's deadline."""
        if self._handle.job is not None and not self._handle.discard():
            raise RuntimeUnavailableError("the job of the previous run could not be removed")
        self._handle.earlier_origin = None
        self._forget()

    def _forget(self) -> None:
        self._handle.job = self.record = self.status = None

    def log_takeover(self) -> None:
        """Log that this try continues the job."""
        assert self._handle.job is not None  # the caller has checked the job
        assert self.status is not None
        self._host.log.info("Job %s of an earlier try is %s: taking it over", self._handle.job.id, self.status.state)
        if self.has_other_code:
            effect = "it continues" if self.status.state == "running" else "it has trained"
            self._host.log.warning(
                f"{_CODE} changed since this job started: {effect} without the change. Clear the task to train from "
                "the beginning, or set on_change='restart'"
            )

    def restart(self, runtime: Runtime, spec: JobSpec) -> Job:
        """Restart the ended job. If its specification has changed, start a job that has its checkpoint."""
        job, call = self._handle.job, self._handle.call_engine
        assert job is not None  # the caller has checked the job
        try:
            is_same = call(lambda: runtime.has_same_spec(job, spec))
        except JobLostError:
            return runtime.start(spec)
        if is_same:
            self._host.log.info("Restarting the job of an earlier try: %s", self._start_of_restart())
            team = self._host.team(job)
            set_devices = job.resize if team is None else team.resume  # a team does not grow to its budget at once
            with contextlib.suppress(ResizePendingError):  # the control loop looks again
                call(lambda: set_devices(spec.devices))  # an earlier try may have chosen other devices
            call(job.restart)
            return job
        self._host.log.warning(
            f"{_CODE if self.has_other_code else _ENVIRONMENT} changed since the job of an earlier try started: a new "
            f"job resumes from its checkpoint ({self._progress()})"
        )
        return call(lambda: runtime.replace(job, spec))

    def _start_of_restart(self) -> str:
        sample = PaceSample.read(self._host.store.get(PACE))
        if sample is not None and sample.progress_pct <= 0:
            return "it starts from the beginning, because it had not trained yet"
        return f"it resumes from its checkpoint, if its script has saved one ({self._progress()})"

    def _progress(self) -> str:
        sample = PaceSample.read(self._host.store.get(PACE))
        return "progress unknown" if sample is None else f"it was at {sample.progress_pct:.1f} %"
