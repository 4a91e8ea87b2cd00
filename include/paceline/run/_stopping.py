"""The end of a try whose process has to end: what happens to its job depends on whether the task goes on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from paceline.errors import DetachedError, PacelineError, TaskStoppedError
from paceline.run._handle import JobHandle
from paceline.run.host import Host, TaskStatus
from paceline.run.within import Pending
from paceline.runtime import Job

_KILL_GRACE_S = 1.0  # Airflow kills a task 5 s after SIGTERM
_MAIN_THREAD_S = 2.5  # after this time, another thread ends the try, because the main thread hangs in a call
_DOUBT_LEASE_S = 600.0  # lease of a job whose task may be over
_CUT_OFF_EVERY_S = 30.0  # between two checks of a process that is cut off from Airflow
_SUSPENDED_S = 10.0  # after a longer gap between two steps, Airflow may have started another process for the job


class Stopping:
    """A stop of this process, which a signal requests and the try then carries out.

    Parameters
    ----------
    handle, host:
        The try's access to its job, and its environment.
    requested:
        The event that ``request`` sets, and with which the handle gives up its retries.
    lease_s:
        Longest time for which the job runs without a controlling process.
    on_drain:
        Treatment of the job when this process has to end but its task does not: ``"leave"`` or ``"stop"``.
    """

    def __init__(
        self, handle: JobHandle, host: Host, requested: threading.Event, *, lease_s: float, on_drain: str
    ) -> None:
        self._handle, self._host, self.requested = handle, host, requested
        self._lease_s, self._on_drain = lease_s, on_drain
        self.finished = threading.Event()  # the try has ended
        self.was_requested = False
        self._lock = threading.Lock()
        self._outcome: tuple[Job | None, PacelineError] | None = None  # of the stop, with the job that it was for
        self._status: Pending[TaskStatus] | None = None  # the query that the request has started

    def request(self) -> None:
        """Request that the try ends soon. May be called from a signal handler in the thread of the try."""
        if self.was_requested or self.finished.is_set():
            return
        self.was_requested = True
        # Do not acquire a lock here, not even in an Event or the log: the interrupted thread may hold the lock.
        threading.Thread(target=self._stop_in_thread, name="paceline-end", daemon=True).start()

    def carry_out(self) -> PacelineError:
        """Carry out the stop, once per job; return the error that describes the outcome."""
        with self._lock:
            job = self._handle.job
            if self._outcome is None or self._outcome[0] is not job:  # a new job has started since the last request
                self._outcome = (job, self._stop_for_task_status())
        return self._outcome[1]

    def _stop_in_thread(self) -> None:
        self.requested.set()
        self._status = self._query_status()  # at once, because on a busy machine the answer takes seconds
        self._host.log.info("Stop requested")
        if not self.finished.wait(_MAIN_THREAD_S):
            self.carry_out()

    def _query_status(self) -> Pending[TaskStatus]:
        return Pending(self._host.task_status, default="unknown")

    def _stop_for_task_status(self) -> PacelineError:
        handle, query = self._handle, self._status or self._query_status()
        if handle.is_owner():  # in case this process is killed before it has an answer
            handle.renew(min(_DOUBT_LEASE_S, self._lease_s))
        status = query.result(self._host.status_within_s)
        if status == "over":
            handle.end_reason = "the task was cleared or marked in Airflow, or its run has ended"
            # After a late answer, there is no time for a grace period.
            gone = handle.discard(_KILL_GRACE_S if query.elapsed_s < _KILL_GRACE_S else 0.0)
            return TaskStoppedError(f"The task is over: its job {'is removed' if gone else 'could not be removed'}")
        if handle.job is None:
            return DetachedError("This worker process is ending but its task is not: the next process starts the job")
        if not handle.is_owner():
            return DetachedError("Another process has taken over the job; this process is disconnecting")
        if self._on_drain == "stop":
            handle.stop()
            return DetachedError("This worker process is ending: its job is stopped, and the next process resumes it")
        next_process = "the next process"
        if status == "active":
            handle.renew(self._lease_s)
        else:
            next_process += ", if the task is not over,"
            self._host.log.warning(
                "Airflow has not answered whether the task is over: unless another process takes over the job within "
                "%.0f minutes, the job ends after a checkpoint. If the task is over, `paceline clean --remove` removes "
                "the job at once",
                _DOUBT_LEASE_S / 60,
            )
        handle.publish_end("detached", "airflow")
        return DetachedError(f"This worker process is ending: its job continues, and {next_process} takes it over")


class StopCheck:
    """Checks whether control has to stop: on request, or because another process has taken over the job.

    That can happen while this process is suspended, or cut off from Airflow but not from the engine.

    Parameters
    ----------
    requested:
        Returns whether a stop is requested.
    is_owner:
        Returns whether this process owns the job; takes a call to the engine.
    is_cut_off:
        Returns whether the live state has not been exchanged lately.
    """

    def __init__(
        self, requested: Callable[[], bool], is_owner: Callable[[], bool], is_cut_off: Callable[[], bool]
    ) -> None:
        self._requested, self._is_owner, self._is_cut_off = requested, is_owner, is_cut_off
        self._last_s = self._checked_s = time.monotonic()

    def __call__(self) -> bool:
        now_s = time.monotonic()
        was_suspended, self._last_s = now_s - self._last_s > _SUSPENDED_S, now_s
        if self._requested():
            return True
        if not was_suspended and not (now_s - self._checked_s > _CUT_OFF_EVERY_S and self._is_cut_off()):
            return False
        self._checked_s = now_s
        return not self._is_owner()
