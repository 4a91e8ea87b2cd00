"""The control loop of one job: when a step is due, when the job has ended, and when another process continues.

:class:`~paceline.run._training.Training` runs the loop. ``_step.py`` is one step, ``_end.py`` the end of the job. The
loop does not depend on Airflow, because it receives the job, an :class:`~paceline.run._live.Exchange` for the live
state, and a clock.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from paceline.contract import Outcome
from paceline.control import Controller
from paceline.errors import JobLostError, RuntimeUnavailableError, TaskStoppedError
from paceline.run._controlled import ControlledRun
from paceline.run._end import failure_of, finish, publish_end_of_job
from paceline.run._handover import ControlElsewhereError, Handover, Surroundings
from paceline.run._live import LiveValues
from paceline.run._states import Cause
from paceline.run._step import ControlStep
from paceline.run.host import Stage
from paceline.run.settings import Settings
from paceline.runtime import Job, JobStatus

if TYPE_CHECKING:
    from paceline.elastic.team import TeamJob

_LAST_LINES_S = 5.0  # between two checks of a stop while the last lines of an ended job arrive
_MAX_FIRST_LINES_S = 10.0  # maximum time until the lines of a job that was taken over arrive


class PaceLoop:
    """Runs the control loop of one job until the job ends.

    Parameters
    ----------
    job:
        The job, started or reattached.
    controller:
        Decides on the allocation. The controller has made its first decision, or its state is restored.
    exchange:
        Live state: source of new deadlines and ceilings, destination of samples.
    handover:
        The state of the job, and what earlier processes have left.
    settings:
        The user's settings, of which the loop uses those that are not the controller's.
    surroundings:
        The clock, the log, and what to call at every step.
    team:
        The job if it is a team of containers, else ``None``. The loop adds the team's scaling steps to the history, but
        does not measure the utilization of a team, which keeps unused devices for its next scaling step.
    """

    def __init__(
        self,
        job: Job,
        controller: Controller,
        exchange: LiveValues,
        handover: Handover,
        settings: Settings | None = None,
        surroundings: Surroundings | None = None,
        *,
        team: TeamJob | None = None,
    ) -> None:
        self._job, self._around = job, surroundings or Surroundings()
        settings = settings or Settings()
        self._controlled = ControlledRun(job, controller, exchange, handover, settings, self._around, team)
        self._step = ControlStep(self._controlled)

    def run(self) -> Outcome:
        """Control the job until it ends.

        Raises
        ------
        TrainingFailedError
            The job failed, or never reported progress. UnsuitableCodeError: see ``unsuitable_code``.
        DeadlineInfeasibleError
            The deadline cannot be met and ``on_infeasible`` is ``"fail"``; the job is still running.
        JobLostError
            The job no longer exists.
        TaskStoppedError
            ``stopped`` returned true; the job is still running.
        TrainingOverError, TrainingAbandonedError
            Raised by ``check_need``.
        ControlElsewhereError
            ``leaves`` returned true.
        """
        steps, wait_s = self.steps(), 0.0
        try:
            wait_s = next(steps)
            while True:
                wait_s = steps.send(wait_s)
        except StopIteration as end:
            outcome: Outcome = end.value
            return outcome

    def steps(self) -> Generator[float, float, Outcome]:
        """Control the job as :meth:`run` does, but let the caller wait between two steps, and choose a thread for each.

        Yields the seconds until the next step, and receives those of them that the loop is to wait for the end of the
        job. A caller that waits itself may take the step earlier.
        """
        controlled, status = self._controlled, self._find_earlier_end()
        next_s = controlled.now()
        while status is None:
            began_s = controlled.now()
            period_s = self._step.take(began_s)
            controlled.step_times.add(controlled.now() - began_s)
            self._leave_if_due()
            next_s = max(min(next_s, began_s) + period_s, controlled.now())
            status = yield from self._wait_for_step(next_s - controlled.now())
            if status is not None and controlled.restart_after(status):
                status = None
        self._leave_if_due(status)
        controlled.read_reports(controlled.now())
        return finish(controlled, status)

    def _find_earlier_end(self) -> JobStatus | None:
        """Return the status of a job that ended without a controlling process, after setting the time of its end.

        A stopped job has not ended: it was preempted, or stopped between its last batch and its end. Neither has a job
        that lost a device: it resumes.
        """
        controlled = self._controlled
        if not controlled.continues_control:
            return None
        try:
            status = self._job.status()
            if status.state != "exited":
                return None
            if status.finished_s is not None:
                ended_s = controlled.progress.ended_s(status.finished_s, controlled.began_s, controlled.now())
                controlled.allocation.ended_s = ended_s
            resumes = status.stopped or status.device_lost
            while not resumes and not self._job.wait(_LAST_LINES_S):
                self._raise_if_stopped()
        except (RuntimeUnavailableError, JobLostError):
            return None
        return None if resumes else status

    def publish_end(
        self, state: Literal["detached", "failed"], by: Cause, *, stopped: bool = False, reason: str | None = None
    ) -> None:
        """Publish the last sample if control ends before the job ends; the sample has 0 devices if ``stopped``."""
        controlled = self._controlled
        if controlled.lifecycle.state in ("finished", "failed"):  # the last sample is already published
            return
        now_s = controlled.now()
        controlled.allocation.count_until(now_s)
        if stopped:
            controlled.allocation.replace(0.0, now_s)
        controlled.lifecycle.enter(state, by=by)
        controlled.publish(now_s, controlled.decision, reason)

    def _leave_if_due(self, status: JobStatus | None = None) -> None:
        if self._around.leaves is None or not self._around.leaves(status):
            return
        controlled, totals = self._controlled, self._controlled.totals()
        if status is not None:  # the arbiter can grant the devices of the ended job to others meanwhile
            controlled.read_reports(controlled.now())
            controlled.progress.output.flush(ended=True)
            publish_end_of_job(controlled, status, failure_of(controlled, status))
        controlled.publisher.leave(totals)
        raise ControlElsewhereError("another process continues the control of the job")

    def _wait_for_step(self, timeout_s: float) -> Generator[float, float, JobStatus | None]:
        """Wait for the next step; return the status of a job that has ended, else ``None``."""
        controlled, outage = self._controlled, self._controlled.outage
        self._raise_if_stopped()
        self._around.check_need(self._stage)
        left_s = yield max(timeout_s, 0.0)
        if controlled.lifecycle.state == "preempted":
            self._around.clock.sleep(left_s)
            return None
        try:
            if not self._job.wait(left_s):
                return None
            status = self._job.status()
        except RuntimeUnavailableError as error:
            outage.record_failure(error)
            left_s = yield controlled.controller.period_s
            self._around.clock.sleep(left_s)
            return None
        if status.state == "running":
            return None
        self._raise_if_stopped()  # the stop request may have ended the job
        outage.record_answer()
        if status.stopped and controlled.is_training_done():
            return replace(status, stopped=False)  # the stop came after the last batch
        return status

    @property
    def _stage(self) -> Stage:
        controlled = self._controlled
        if controlled.outage.is_long:
            return "away"
        # The lines of a job that was taken over arrive with the first steps.
        waited_s = controlled.now() - controlled.started_s
        is_waiting = controlled.progress.reader.position is None and waited_s > _MAX_FIRST_LINES_S
        return "waiting" if is_waiting else "training"

    def _raise_if_stopped(self) -> None:
        if self._around.stopped():
            raise TaskStoppedError("the task was stopped")
