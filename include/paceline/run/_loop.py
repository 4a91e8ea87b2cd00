"""The control loop of one job: read progress and commands, decide, resize, publish.

:class:`~paceline.run._training.Training` runs the loop. The loop does not depend on Airflow, because it receives
the job, an :class:`~paceline.run._live.Exchange` for the live state, and a clock.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from paceline.contract import DEADLINE, Outcome, RunTotals, finite, unit_of
from paceline.control import Controller, Decision, Observation
from paceline.errors import (
    JobLostError,
    RuntimeUnavailableError,
    TaskStoppedError,
    TrainingFailedError,
    UnsuitableCodeError,
)
from paceline.run._allocation import JobAllocation
from paceline.run._commands import Commands
from paceline.run._handover import ControlElsewhereError, Handover, Surroundings
from paceline.run._journal import Journal
from paceline.run._live import LiveValues
from paceline.run._outage import Outage
from paceline.run._pending import PendingResize
from paceline.run._preemption import Preemption
from paceline.run._progress import JobProgress
from paceline.run._publishing import Publisher, make_sample
from paceline.run._states import Cause
from paceline.run._step_times import StepTimes
from paceline.run._utilization import JobUtilization
from paceline.run.feasibility import InfeasiblePolicy, explain_usage
from paceline.run.host import Stage
from paceline.run.lease import JobLease
from paceline.run.outcome import (
    WITHOUT_STEPS,
    describe_failure,
    describe_missing_progress,
    error_pct,
    in_one_line,
    measurements,
    unsuitable_code,
)
from paceline.run.reading import JobPosition
from paceline.run.settings import Settings
from paceline.runtime import Job, JobStatus

if TYPE_CHECKING:
    from paceline.elastic.team import TeamJob

_SHORTEST_S = 0.01  # a deadline before its origin is stored as one just after it
_LAST_LINES_S = 5.0  # between two checks of a stop while the last lines of an ended job arrive
_MAX_FIRST_LINES_S = 10.0  # maximum time until the lines of a job that was taken over arrive
_MIN_STARTUP_S, _STARTUPS = 60.0, 2.0  # a job may start this long, or this many times as long as in an earlier run
_MIN_RESTART_S = 900.0  # a restart may take this long, or as long as a start; on few devices, libraries load slowly


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
        self._job, self._controller, self._exchange, self._team = job, controller, exchange, team
        self._settings, self._around = settings or Settings(), surroundings or Surroundings()
        self._origin, self._past, totals, shared = handover.origin, handover.past, handover.totals, handover.shared
        self._started_s, start_s = self._now(), handover.job_started_s
        earlier = totals or RunTotals(began_s=self._started_s if start_s is None else start_s, last_step_s=start_s)
        self._continues_control, self._began_s = totals is not None, earlier.began_s
        self._journal = Journal(handover.history, self._around.log)
        self._publisher = Publisher(exchange, self._journal, controller, self._origin, self._around.on_sample)
        self._infeasible = InfeasiblePolicy(self._settings.on_infeasible, self._journal)
        self._progress = JobProgress(job, self._journal, handover, controller.interrupt)
        shares_gpus = controller.limits.shares_gpus
        self._utilization = JobUtilization(self._settings.cores_per_device, shares_gpus=shares_gpus)
        self._outage = Outage(job, self._journal, self._around.clock, self._now, earlier)
        # The first step repeats the resize, because an earlier process may have ended before it stored its last resize.
        devices = handover.allocated_devices
        unconfirmed = shared.max_devices if shared is not None else devices if totals else None
        unit = unit_of(controller.limits.quantum, shares_gpus=shares_gpus)
        pending = PendingResize(self._journal, unit)
        self._allocation = JobAllocation(job, self._outage, devices, earlier, unconfirmed, team, pending)
        self._lifecycle = handover.lifecycle
        if self._lifecycle.state is None:
            self._lifecycle.enter("starting", by="task")
        self._preemption = Preemption(job, self._outage, pending, earlier.preemptions)
        self._restarting = handover.restarted or earlier.restarting  # the job has not sent a report since its restart
        first_s = self._progress.reader.first_s
        # Of the start or a restart. What an earlier process has measured may contain preemptions.
        self._slowest_start_s = first_s - self._began_s if first_s is not None and not earlier.preemptions else 0.0
        self._commands = Commands(
            self._origin,
            controller.deadline_s,
            self._journal,
            min_ceiling=controller.limits.quantum,
            shared=shared,
            unit=unit,
        )
        self._decision = Decision(devices, 0.0, 0.0, None, None, True, controller.period_s)
        self._step_times = StepTimes()
        self._lease = JobLease(job, self._settings.lease_s)

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
        status = self._find_earlier_end()
        next_s = self._now()
        while status is None:
            began_s = self._now()
            period_s = self._step(began_s)
            self._step_times.add(self._now() - began_s)
            self._leave_if_due()
            next_s = max(min(next_s, began_s) + period_s, self._now())
            status = yield from self._wait_for_step(next_s - self._now())
            if status is not None and self._restart_after(status):
                status = None
        self._leave_if_due(status)
        self._read_reports(self._now())
        return self._finish(status)

    def _find_earlier_end(self) -> JobStatus | None:
        """Return the status of a job that ended without a controlling process, after setting the time of its end.

        A stopped job has not ended: it was preempted, or stopped between its last batch and its end. Neither has a job
        that lost a device: it resumes.
        """
        if not self._continues_control:
            return None
        try:
            status = self._job.status()
            if status.state != "exited":
                return None
            if status.finished_s is not None:
                self._allocation.ended_s = self._progress.ended_s(status.finished_s, self._began_s, self._now())
            resumes = status.stopped or status.device_lost
            while not resumes and not self._job.wait(_LAST_LINES_S):
                self._raise_if_stopped()
        except (RuntimeUnavailableError, JobLostError):
            return None
        return None if resumes else status

    def _step(self, now_s: float) -> float:
        """Run one control step; return the seconds until the next step."""
        allocation = self._allocation
        allocation.count_until(now_s)
        self._lease.keep(now_s)
        position = self._read_reports(now_s)
        if self._commands.update(self._exchange.newest(), now_s):
            self._move_deadline(now_s)
        if self._commands.ceiling == 0 and not (self._progress.is_trained and self._lifecycle.state != "preempted"):
            return self._preempted_step(now_s)
        if self._lifecycle.state == "preempted" and not self._resume(now_s):
            return self._preempted_step(now_s)
        self._utilization.read(self._job, self._outage, allocation.device_s)
        reported_s = now_s if position is None else min(position.done_s, now_s)
        until_report_s = allocation.device_s - allocation.devices * (now_s - reported_s)
        self._utilization.add_report(self._progress.newest, until_report_s)
        self._record_scaling(now_s)
        decision = self._controller.step(self._observe(now_s, position))
        allocation.target = decision.devices
        if self._lifecycle.state == "training":
            decision = self._check_feasibility(now_s, decision)
        elif position is None and now_s > max(self._controller.deadline_s, self._started_s + self._startup_limit_s):
            waited_s, malformed = now_s - self._started_s, self._progress.reader.last_malformed
            self._infeasible.miss_progress(self._controller.deadline_s, waited_s, malformed)
        if self._restarting and self._progress.total is not None and now_s > self._started_s + self._restart_limit_s:
            malformed = self._progress.reader.last_malformed
            raise TrainingFailedError(describe_missing_progress("since its restart", malformed))
        if self._progress.may_end_early and now_s <= self._controller.deadline_s:
            decision = replace(decision, feasible=True)
        self._decision = decision
        if position is not None and decision.tail is not None and math.isfinite(self._controller.deadline_s):
            self._progress.log_tail(decision.tail)
        allocation.resize(now_s)
        self._publish(now_s, decision)
        self._progress.output.flush()
        return decision.next_s

    @property
    def _startup_limit_s(self) -> float:
        """Time to wait for the first report, even if the deadline is earlier."""
        return max(_MIN_STARTUP_S, _STARTUPS * self._past.startup_s if self._past is not None else 0.0)

    @property
    def _restart_limit_s(self) -> float:
        """Time to wait for the first report after a restart."""
        return max(_MIN_RESTART_S, _STARTUPS * self._slowest_start_s, self._startup_limit_s)

    def _observe(self, now_s: float, position: JobPosition | None) -> Observation:
        allocation, reader, newest = self._allocation, self._progress.reader, self._progress.newest
        whole_devices = None if newest is None or self._controller.limits.shares_gpus else newest.devices_in_force
        in_force = allocation.devices_in_force(whole_devices, now_s)
        return Observation(
            now_s,
            position.done if position else None,
            position.total if position else 1,
            done_s=position.done_s if position else 0.0,
            allocated_devices=allocation.devices if in_force is None else in_force,
            pending=allocation.is_changing or in_force is not None,
            # Ignore a ceiling of 0 here: all batches are done and the job is about to end.
            ceiling=allocation.devices if self._commands.ceiling == 0 else self._commands.ceiling,
            in_pause=reader.pauses.in_pause(now_s) or self._outage.active or self._restarting,
            pauses_left_s=reader.pauses.left_s(now_s),
            pause_sd_s=reader.pauses.sd_s,
            busy=self._utilization.share if self._team is None else None,
            save_s=newest.save_s if newest else None,
            tail_s=newest.tail_s if newest else None,
            resize_s=newest.resize_s if newest else None,
            restarting=self._restarting,
        )

    def _preempted_step(self, now_s: float) -> float:
        """Run a step without devices, stop the job if necessary, and return the seconds until the next step."""
        is_preempted = self._lifecycle.state == "preempted"
        must_stop = self._commands.ceiling == 0 and (not is_preempted or self._preemption.unconfirmed)
        if must_stop and self._preemption.preempt(now_s, self._is_training_done, repeated=is_preempted):
            self._restarting = False
            self._lifecycle.enter("preempted", by="arbiter")
        period_s = self._controller.period_s
        if self._lifecycle.state == "preempted":
            self._allocation.replace(self._preemption.unconfirmed, now_s)
            self._controller.interrupt(now_s)
            self._decision = replace(self._decision, devices=0.0, finish_s=None, earliest_s=None, next_s=period_s)
            self._publish(now_s, self._decision)
        self._progress.output.flush()
        return period_s

    def _is_training_done(self) -> bool:
        self._read_reports(self._now())
        return self._progress.is_trained

    def _resume(self, now_s: float) -> bool:
        """Restart a preempted job on the largest allowed allocation; return whether it was restarted."""
        devices = self._controller.limits.quantize(self._controller.limits.max_devices, self._commands.ceiling)
        if not self._preemption.resume(now_s, devices):
            return False
        self._allocation.replace(devices, now_s)
        self._on_restart("arbiter")
        return True

    def _restart_after(self, status: JobStatus) -> bool:
        """Restart a job that the engine or the loss of a device has ended; return whether control continues."""
        position = self._read_reports(self._now())
        if not self._outage.restart_after(status, position.done if position is not None else 0.0):
            return False
        if not self._outage.active:
            self._on_restart("engine")
        return True

    def _on_restart(self, by: Cause) -> None:
        """Record that the job was restarted in place and will resume from its checkpoint."""
        self._lifecycle.enter("starting", by=by)
        self._started_s = self._now()
        self._allocation.ended_s = math.inf
        self._restarting = True

    def _read_reports(self, now_s: float) -> JobPosition | None:
        reports = self._progress.read(now_s)
        # Numbered lines may be older than the restart. Code that does not number its lines may not send "start", and
        # the first read may repeat its older lines.
        if any(report.event == "start" if report.number else now_s > self._started_s for report in reports):
            self._restarting = False
        position = self._progress.reader.position
        if position is not None and not self._restarting and self._lifecycle.state != "preempted":
            if self._lifecycle.state == "starting":
                self._slowest_start_s = max(self._slowest_start_s, now_s - self._started_s)
                self._lifecycle.enter("training", by="job")
            self._lifecycle.enter("finishing" if self._progress.is_trained else "training", by="job")
        return position

    def _record_scaling(self, now_s: float) -> None:
        for step in self._team.take_steps() if self._team is not None else ():
            new, reason = step.configuration, step.reason
            nodes = {name: round(cores, 3) for name, cores in new.nodes.items()}
            self._journal.event(now_s, "scaled", "%s. Now %s", reason, new, why=reason, nodes=nodes)

    def _move_deadline(self, now_s: float) -> None:
        self._controller.move_deadline(now_s, self._commands.deadline_s)
        self._infeasible.reset()

    def _check_feasibility(self, now_s: float, decision: Decision) -> Decision:
        """Apply the user's choice to an infeasible deadline; return the decision, which an extension makes feasible."""
        controller, progress = self._controller, self._progress
        assert progress.newest is not None  # the job is training
        total, may_end_early = f"{progress.total} {progress.newest.unit}", progress.may_end_early
        extended_s = self._infeasible.apply(
            now_s,
            controller.began_s,
            controller.deadline_s,
            decision,
            total,
            usage=explain_usage(
                self._utilization.devices,
                self._allocation.devices,
                controller.limits.quantum,
                shares_gpus=controller.limits.shares_gpus,
            ),
            may_end_early=may_end_early,
        )
        if extended_s is None:
            return decision
        self._exchange.post({DEADLINE: self._commands.extend(extended_s, now_s)})
        self._move_deadline(now_s)
        return replace(decision, feasible=True)

    def publish_end(
        self, state: Literal["detached", "failed"], by: Cause, *, stopped: bool = False, reason: str | None = None
    ) -> None:
        """Publish the last sample if control ends before the job ends; the sample has 0 devices if ``stopped``."""
        if self._lifecycle.state in ("finished", "failed"):  # the last sample is already published
            return
        now_s = self._now()
        self._allocation.count_until(now_s)
        if stopped:
            self._allocation.replace(0.0, now_s)
        self._lifecycle.enter(state, by=by)
        self._publish(now_s, self._decision, reason)

    def _publish(self, now_s: float, decision: Decision, reason: str | None = None) -> None:
        assert self._lifecycle.state is not None  # the constructor enters "starting"
        state, first_s = self._lifecycle.state, self._progress.reader.first_s
        past_startup_s = self._past.startup_s if self._past is not None else None
        self._publisher.publish(
            now_s,
            lambda moment: make_sample(
                state,
                now_s,
                moment,
                self._controller,
                decision,
                self._progress.newest,
                allocated_devices=self._allocation.upper_bound,
                used_devices=self._utilization.devices,
                ceiling=self._commands.ceiling,
                grant=self._commands.grant,
                shared=self._commands.shared,
                startup_s=past_startup_s if first_s is None else max(first_s - self._began_s, 0.0),
                restarts=self._outage.restarts,
                resizes=self._allocation.resizes,
                step_ms=self._step_times.newest_ms,
                reason=None if reason is None else in_one_line(self._around.mask(reason)),
            ),
            self._totals,
        )

    def _totals(self) -> RunTotals:
        restarts, preemptions, reported = (
            self._outage.restarts,
            self._preemption.count,
            self._progress.reader.reported(),
        )
        run = RunTotals(
            began_s=self._began_s,
            restarts=restarts,
            restarts_without_progress=self._outage.without_progress,
            done_before=self._outage.most_done,
            preemptions=preemptions,
            restarting=self._restarting,
            reported=reported,
        )
        return self._allocation.add_to(run)

    def _leave_if_due(self, status: JobStatus | None = None) -> None:
        if self._around.leaves is None or not self._around.leaves(status):
            return
        totals = self._totals()
        if status is not None:  # the arbiter can grant the devices of the ended job to others meanwhile
            self._read_reports(self._now())
            self._progress.output.flush(ended=True)
            self._publish_end_of_job(status, self._describe_failure(status))
        self._publisher.leave(totals)
        raise ControlElsewhereError("another process continues the control of the job")

    def _wait_for_step(self, timeout_s: float) -> Generator[float, float, JobStatus | None]:
        """Wait for the next step; return the status of a job that has ended, else ``None``."""
        self._raise_if_stopped()
        self._around.check_need(self._stage)
        left_s = yield max(timeout_s, 0.0)
        if self._lifecycle.state == "preempted":
            self._around.clock.sleep(left_s)
            return None
        try:
            if not self._job.wait(left_s):
                return None
            status = self._job.status()
        except RuntimeUnavailableError as error:
            self._outage.record_failure(error)
            left_s = yield self._controller.period_s
            self._around.clock.sleep(left_s)
            return None
        if status.state == "running":
            return None
        self._raise_if_stopped()  # the stop request may have ended the job
        self._outage.record_answer()
        if status.stopped and self._is_training_done():
            return replace(status, stopped=False)  # the stop came after the last batch
        return status

    @property
    def _stage(self) -> Stage:
        if self._outage.is_long:
            return "away"
        # The lines of a job that was taken over arrive with the first steps.
        is_waiting = self._progress.reader.position is None and self._now() - self._started_s > _MAX_FIRST_LINES_S
        return "waiting" if is_waiting else "training"

    def _raise_if_stopped(self) -> None:
        if self._around.stopped():
            raise TaskStoppedError("the task was stopped")

    def _finish(self, status: JobStatus) -> Outcome:
        self._progress.output.flush(ended=True)
        failure = self._describe_failure(status)
        if failure is None and self._progress.total is None:
            self._journal.log.warning(WITHOUT_STEPS)
        finished_s = self._publish_end_of_job(status, failure)
        newest, deadline_s = self._progress.newest, self._controller.deadline_s
        if status.state == "gone":
            raise JobLostError(failure)
        # After the first batch of any try, there may be a checkpoint from which another try resumes.
        has_trained = self._progress.total is not None or self._restarting
        advice = None if has_trained else unsuitable_code(status, self._progress.output.last)
        if failure and advice:
            raise UnsuitableCodeError(f"{failure}\n{advice}", status.exit_code)
        if failure:
            raise TrainingFailedError(failure, status.exit_code)
        interrupted = self._outage.restarts or self._preemption.count
        return Outcome(
            finished_s=finished_s,
            deadline_s=finite(deadline_s),
            # A shared job may have waited for devices until then.
            error_pct=error_pct(finished_s, deadline_s, _SHORTEST_S if self._settings.shared else self._began_s),
            met=finished_s <= deadline_s,
            mean_devices=self._allocation.device_s / max(finished_s - self._began_s, 1e-9),
            device_seconds=self._allocation.device_s,
            resizes=self._allocation.resizes,
            restarts=self._outage.restarts,
            step_ms_mean=self._step_times.mean_ms,
            step_ms_max=self._step_times.max_ms,
            store_ms_mean=self._exchange.round_ms_mean,
            loss=newest.loss if newest else None,
            metrics=newest.metrics if newest else {},
            learned=None
            if interrupted
            else measurements(
                self._progress.reader,
                self._controller.learned(),
                self._progress.total,
                self._began_s,
                finished_s,
                self._controller.limits.max_devices,
            ),
        )

    def _describe_failure(self, status: JobStatus) -> str | None:
        progress = self._progress
        failure, malformed = describe_failure(status, progress.output.last), progress.reader.last_malformed
        if failure is None and progress.total is None and (malformed or self._settings.needs_progress):
            failure = describe_missing_progress("at all", malformed)
        return failure

    def _publish_end_of_job(self, status: JobStatus, failure: str | None) -> float:
        """Publish the last sample of a job that has ended; return the time of its end."""
        progress, newest = self._progress, self._progress.newest
        deadline_s, now_s, engine_s = self._controller.deadline_s, self._now(), status.finished_s
        finished_s = progress.ended_s(engine_s, self._began_s, now_s) if engine_s else now_s
        self._allocation.count_until_end(finished_s)
        has_steps = progress.total is not None
        progress_pct = newest.percent if newest and has_steps else 0.0 if failure else 100.0
        setpoint_pct, met = min(progress_pct, 100.0), finished_s <= deadline_s
        last = Decision(self._allocation.devices, setpoint_pct, progress_pct, finished_s, finished_s, met, next_s=0.0)
        self._lifecycle.enter("failed" if failure else "finished", by="job")
        self._publish(finished_s, last, failure)
        return finished_s

    def _now(self) -> float:
        return self._around.clock.now() - self._origin.timestamp()
