"""The control loop of one job: read progress and commands, decide, resize, publish.

:class:`~paceline.run._training.Training` runs the loop. The loop does not depend on Airflow, because it receives
the job, an :class:`~paceline.run._live.Exchange` for the live state, and a clock.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from paceline.contract import DEADLINE, Ceiling, Outcome, PaceSample, RunTotals, finite
from paceline.control import Controller, Decision, Observation, PastRun
from paceline.errors import JobLostError, RuntimeUnavailableError, TaskStoppedError, TrainingFailedError
from paceline.run._allocation import JobAllocation
from paceline.run._commands import Commands
from paceline.run._engine_clock import end_of_job_s
from paceline.run._history import History
from paceline.run._journal import Journal
from paceline.run._live import Exchange
from paceline.run._outage import Outage
from paceline.run._pauses import Pauses
from paceline.run._pending import PendingResize
from paceline.run._preemption import Preemption
from paceline.run._publishing import Publisher
from paceline.run._sample import make_sample
from paceline.run._states import Cause, Lifecycle
from paceline.run._step_times import StepTimes
from paceline.run._utilization import JobUtilization
from paceline.run.clock import Clock, SystemClock
from paceline.run.feasibility import InfeasiblePolicy
from paceline.run.host import Stage
from paceline.run.lease import JobLease
from paceline.run.outcome import (
    WITHOUT_STEPS,
    describe_failure,
    describe_missing_progress,
    describe_tail,
    error_pct,
    measurements,
)
from paceline.run.output import Output
from paceline.run.reading import JobPosition, ProgressReader
from paceline.runtime import Job, JobStatus

if TYPE_CHECKING:
    from paceline.elastic.team import TeamJob

_MAX_FIRST_LINES_S = 10.0  # maximum time until the lines of a job that was taken over arrive
_MIN_STARTUP_S = 60.0  # minimum time to wait for the first report, even if the deadline is earlier
_MAX_RESTART_S = 900.0  # maximum time to wait for the first report; on few devices, libraries load slowly
_NOTABLE_CHANGE = 0.05  # log only larger relative changes of the number of batches


class PaceLoop:
    """Runs the control loop of one job until the job ends.

    Parameters
    ----------
    job:
        The job, started or reattached.
    controller:
        Decides on the allocation. The controller has made its first decision, or its state is restored.
    lifecycle:
        The current state of the training job.
    exchange:
        Live state: source of new deadlines and ceilings, destination of samples.
    origin:
        The time from which the deadline is counted; all times in seconds are relative to it.
    allocated_devices:
        The current allocation.
    job_started_s:
        Start of the job in seconds after ``origin``. Device-seconds are counted from this time. Default: now.
    restarted:
        Whether this process has restarted the job of an earlier process, which resumes from its checkpoint.
    needs_progress:
        Whether a job that has reported no progress has failed, even with exit code 0.
    on_infeasible:
        The response to a deadline that cannot be met: ``"best_effort"``, ``"fail"`` or ``"extend"``.
    history:
        The history of the run from an earlier controlling process.
    totals:
        The totals of the run from an earlier controlling process.
    clock, log:
        The clock, and the log for messages and the job's own output.
    stopped:
        Called at every step; returns whether this process has to end.
    check_need:
        Called at every step with the stage of the job; raises an error if the job can be of no use any more.
    past:
        Measurements of an earlier run.
    on_sample:
        Called with every published sample; must return quickly.
    team:
        The job if it is a team of containers, else ``None``. The loop adds the team's scaling steps to the history, but
        does not measure the utilization of a team, which keeps unused devices for its next scaling step.
    shared:
        The ceiling in effect, if an arbiter allocates the devices. A ceiling of 0 preempts the job; a later ceiling
        resumes it from its checkpoint.
    cores_per_device:
        Cores of CPU time that come with each device.
    lease_s:
        Time in seconds for which the job continues without control; ``None`` for a job without a lease.
    """

    def __init__(
        self,
        job: Job,
        controller: Controller,
        exchange: Exchange,
        *,
        lifecycle: Lifecycle | None = None,
        origin: datetime,
        allocated_devices: float,
        job_started_s: float | None = None,
        restarted: bool = False,
        needs_progress: bool = False,
        on_infeasible: str = "best_effort",
        history: History | None = None,
        totals: RunTotals | None = None,
        clock: Clock | None = None,
        log: logging.Logger | Any = None,
        stopped: Callable[[], bool] = lambda: False,
        check_need: Callable[[Stage], None] = lambda stage: None,
        past: PastRun | None = None,
        on_sample: Callable[[PaceSample], None] = lambda sample: None,
        team: TeamJob | None = None,
        shared: Ceiling | None = None,
        cores_per_device: float = 1.0,
        lease_s: float | None = None,
    ) -> None:
        self._log = log or logging.getLogger(__name__)
        self._job = job
        self._controller = controller
        self._exchange = exchange
        self._origin = origin
        self._clock = clock or SystemClock()
        self._stopped = stopped
        self._team = team
        self._journal = Journal(history or History(), self._log)
        self._publisher = Publisher(exchange, self._journal, controller, origin, on_sample)
        self._infeasible = InfeasiblePolicy(on_infeasible, self._journal)
        self._on_infeasible, self._missed_progress = on_infeasible, False
        self._needs_progress = needs_progress
        self._output = Output(self._log)
        began_s = self._now() if job_started_s is None else job_started_s
        earlier = totals or RunTotals(began_s=began_s, last_step_s=job_started_s)
        reported = earlier.reported
        pauses = Pauses(past.pause_s, from_same_task=not past.related) if past is not None else Pauses()
        self._reader = ProgressReader(self._output.add, self._log_malformed, pauses, reported)
        self._past_startup_s = past.startup_s if past is not None else None
        self._total = reported.total if reported else None
        self._logged_total = self._total or 0
        self._utilization = JobUtilization(cores_per_device)
        self._measured_s: float | None = None
        self._started_s = self._now()
        self._continues_control, self._began_s = totals is not None, earlier.began_s
        self._outage = Outage(job, self._journal, self._clock, self._now, earlier.restarts)
        self._check_need = check_need
        # The first step repeats the resize, because an earlier process may have ended before it stored its last resize.
        unconfirmed = shared.max_devices if shared is not None else allocated_devices if totals else None
        pending = PendingResize(self._journal)
        self._allocation = JobAllocation(job, self._outage, allocated_devices, earlier, unconfirmed, team, pending)
        self._lifecycle = lifecycle or Lifecycle()
        if self._lifecycle.state is None:
            self._lifecycle.enter("starting", by="task")
        self._preemption = Preemption(job, self._outage, pending)
        self._restarting = restarted  # the job was restarted and has not sent a report since then
        self._commands = Commands(
            origin, controller.deadline_s, self._journal, min_ceiling=controller.limits.quantum, shared=shared
        )
        self._decision = Decision(allocated_devices, 0.0, 0.0, None, None, True, controller.period_s)
        self._step_times = StepTimes()
        self._tail_source = ""  # of the forecast of what comes after the last batch, as logged last
        self._lease = None if lease_s is None else JobLease(job, lease_s)

    def run(self) -> Outcome:
        """Control the job until it ends.

        Raises
        ------
        TrainingFailedError
            The job failed, or never reported progress.
        DeadlineInfeasibleError
            The deadline cannot be met and ``on_infeasible`` is ``"fail"``; the job is still running.
        JobLostError
            The job no longer exists.
        TaskStoppedError
            ``stopped`` returned true; the job is still running.
        TrainingOverError, TrainingAbandonedError
            Raised by ``check_need``.
        """
        self._check_earlier_end()
        next_s = self._now()
        while True:
            began_s = self._now()
            period_s = self._step(began_s)
            self._step_times.add(self._now() - began_s)
            next_s = max(next_s + period_s, self._now())
            status = self._wait_for_step(next_s - self._now())
            if status is None:
                continue
            if self._outage.restart_after(status):
                if not self._outage.active:
                    self._on_restart("engine")
                continue
            self._read_reports(self._now())
            return self._finish(status)

    def _check_earlier_end(self) -> None:
        """Set the end time of a job that ended without a controlling process."""
        if not self._continues_control:
            return
        with contextlib.suppress(RuntimeUnavailableError, JobLostError):
            status = self._job.status()
            if status.state == "exited" and status.finished_s is not None:
                self._allocation.ended_s = self._ended_s(status.finished_s)

    def _step(self, now_s: float) -> float:
        """Run one control step; return the seconds until the next step."""
        allocation = self._allocation
        allocation.count_until(now_s)
        if self._lease is not None:
            self._lease.keep(now_s)
        position = self._read_reports(now_s)
        if self._commands.update(self._exchange.newest(), now_s):
            self._move_deadline(now_s)
        if self._commands.ceiling == 0 and (self._reader.trained_s is None or self._lifecycle.state == "preempted"):
            return self._preempted_step(now_s)
        if self._lifecycle.state == "preempted" and not self._resume(now_s):
            return self._preempted_step(now_s)
        self._read_usage()
        in_force = allocation.devices_in_force(self._reader.newest.devices if self._reader.newest else None, now_s)
        observation = Observation(
            now_s,
            position.done if position else None,
            position.total if position else 1,
            done_s=position.done_s if position else 0.0,
            allocated_devices=allocation.devices if in_force is None else in_force,
            pending=allocation.is_changing or in_force is not None,
            # Ignore a ceiling of 0 here: all batches are done and the job is about to end.
            ceiling=allocation.devices if self._commands.ceiling == 0 else self._commands.ceiling,
            in_pause=self._reader.pauses.in_pause(now_s) or self._outage.active or self._restarting,
            pauses_left_s=self._reader.pauses.left_s(now_s),
            pause_sd_s=self._reader.pauses.sd_s,
            busy=self._utilization.share if self._team is None else None,
            save_s=self._reader.newest.save_s if self._reader.newest else None,
            tail_s=self._reader.newest.tail_s if self._reader.newest else None,
            resize_s=self._reader.newest.resize_s if self._reader.newest else None,
            restarting=self._restarting,
        )
        decision = self._controller.step(observation)
        allocation.target = decision.devices
        if self._lifecycle.state == "training":
            self._check_feasibility(now_s, decision)
        elif position is None and now_s > max(self._controller.deadline_s, self._started_s + _MIN_STARTUP_S):
            self._miss_progress()
        if self._restarting and self._total is not None and now_s > self._started_s + _MAX_RESTART_S:
            raise TrainingFailedError(describe_missing_progress("since its restart", self._reader.last_malformed))
        if self._may_end_early and now_s <= self._controller.deadline_s:
            decision = replace(decision, feasible=True)
        self._decision = decision
        tail, has_deadline = decision.tail, math.isfinite(self._controller.deadline_s)
        if position is not None and has_deadline and tail is not None and tail.source != self._tail_source:
            self._tail_source = tail.source
            self._log.info(describe_tail(tail))
        allocation.resize(now_s)
        self._publish(now_s, decision)
        self._output.flush()
        return decision.next_s

    def _miss_progress(self) -> None:
        """At the deadline of a job without a forecast: fail if the user has chosen so, otherwise say it once."""
        if self._on_infeasible == "fail":
            raise TrainingFailedError(describe_missing_progress("by its deadline", self._reader.last_malformed))
        if not self._missed_progress:
            self._missed_progress = True
            message = "The deadline has passed, and the job has reported no progress: it continues without a forecast"
            self._log.warning(message)

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
        self._output.flush()
        return period_s

    def _is_training_done(self) -> bool:
        self._read_reports(self._now())
        return self._reader.trained_s is not None

    def _resume(self, now_s: float) -> bool:
        """Restart a preempted job on the largest allowed allocation; return whether it was restarted."""
        devices = self._controller.limits.quantize(self._controller.limits.max_devices, self._commands.ceiling)
        if not self._preemption.resume(now_s, devices):
            return False
        self._allocation.replace(devices, now_s)
        self._on_restart("arbiter")
        return True

    def _on_restart(self, by: Cause) -> None:
        """Record that the job was restarted in place and will resume from its checkpoint."""
        self._lifecycle.enter("starting", by=by)
        self._started_s = self._now()
        self._allocation.ended_s = math.inf
        self._restarting = True

    def _read_reports(self, now_s: float) -> JobPosition | None:
        reports = [report for report in self._reader.feed(self._job.read_lines(), now_s) if report.event != "report"]
        # Numbered lines may be older than the restart. Code that does not number its lines may not send "start", and
        # the first read may repeat its older lines.
        if any(report.event == "start" if report.number else now_s > self._started_s for report in reports):
            self._restarting = False
        if reports:
            total_before, self._total = self._total, reports[-1].total
            if total_before is None:
                self._logged_total = self._total
            elif self._total != total_before:
                # In distributed training, a worker's shard changes slightly at every epoch: log only larger changes.
                if abs(self._total - self._logged_total) > _NOTABLE_CHANGE * self._logged_total:
                    message = "The job now has %d %s in total"
                    self._journal.event(now_s, "total", message, self._total, reports[-1].unit)
                    self._logged_total = self._total
            elif any(report.event == "start" for report in reports):
                self._controller.interrupt(now_s)
                self._journal.event(now_s, "resumed", "Training resumes at %.1f %%", reports[-1].percent)
        position = self._reader.position
        if position is not None and not self._restarting and self._lifecycle.state != "preempted":
            if self._lifecycle.state == "starting":
                self._lifecycle.enter("training", by="job")
            self._lifecycle.enter("training" if self._reader.trained_s is None else "finishing", by="job")
        return position

    def _read_usage(self) -> None:
        try:
            usage = self._job.usage()
        except RuntimeUnavailableError as error:
            self._outage.record_failure(error)  # also detects outages between two resizes
            return
        except JobLostError:
            return  # the status check reports how the job ended
        if usage.measured_s != self._measured_s:
            self._measured_s = usage.measured_s
            self._outage.add_reading()
        self._utilization.add(usage, self._allocation.device_s)
        for step in self._team.take_steps() if self._team is not None else ():
            new, reason = step.configuration, step.reason
            nodes = {name: round(cores, 3) for name, cores in new.nodes.items()}
            self._journal.event(self._now(), "scaled", "%s. Now %s", reason, new, why=reason, nodes=nodes)

    def _move_deadline(self, now_s: float) -> None:
        self._controller.move_deadline(now_s, self._commands.deadline_s)
        self._infeasible.reset()

    @property
    def _may_end_early(self) -> bool:
        return self._reader.newest is not None and self._reader.newest.may_end_early

    def _check_feasibility(self, now_s: float, decision: Decision) -> None:
        controller, newest = self._controller, self._reader.newest
        assert newest is not None  # the job is training
        total = f"{self._total} {newest.unit}"
        extended_s = self._infeasible.apply(
            now_s, controller.began_s, controller.deadline_s, decision, total, may_end_early=self._may_end_early
        )
        if extended_s is not None:
            self._exchange.post({DEADLINE: self._commands.extend(extended_s, now_s)})
            self._move_deadline(now_s)

    def publish_end(self, state: Literal["detached", "failed"], by: Cause, *, stopped: bool = False) -> None:
        """Publish the last sample if control ends before the job ends; the sample has 0 devices if ``stopped``."""
        if self._lifecycle.state in ("finished", "failed"):  # the last sample is already published
            return
        now_s = self._now()
        self._allocation.count_until(now_s)
        if stopped:
            self._allocation.replace(0.0, now_s)
        self._lifecycle.enter(state, by=by)
        self._publish(now_s, self._decision)

    def _publish(self, now_s: float, decision: Decision) -> None:
        assert self._lifecycle.state is not None  # the constructor enters "starting"
        state, first_s = self._lifecycle.state, self._reader.first_s
        self._publisher.publish(
            now_s,
            lambda moment: make_sample(
                state,
                now_s,
                moment,
                self._controller,
                decision,
                self._reader.newest,
                allocated_devices=self._allocation.upper_bound,
                used_devices=self._utilization.devices,
                ceiling=self._commands.ceiling,
                grant=self._commands.grant,
                shared=self._commands.shared,
                startup_s=self._past_startup_s if first_s is None else max(first_s - self._began_s, 0.0),
                restarts=self._outage.restarts,
                resizes=self._allocation.resizes,
                step_ms=self._step_times.newest_ms,
            ),
            lambda: self._allocation.totals(self._began_s, self._outage.restarts, self._reader.reported()),
        )

    def _log_malformed(self, line: str, reason: str) -> None:
        self._output.warn(f"Progress line skipped ({reason}): {line:.200s}")

    def _wait_for_step(self, timeout_s: float) -> JobStatus | None:
        """Wait for the next step; return the status of a job that has ended, else ``None``."""
        self._raise_if_stopped()
        self._check_need(self._stage)
        if self._lifecycle.state == "preempted":
            self._clock.sleep(max(timeout_s, 0.0))
            return None
        try:
            if not self._job.wait(max(timeout_s, 0.0)):
                return None
            status = self._job.status()
        except RuntimeUnavailableError as error:
            self._outage.record_failure(error)
            self._clock.sleep(self._controller.period_s)
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
        is_waiting = self._reader.position is None and self._now() - self._started_s > _MAX_FIRST_LINES_S
        return "waiting" if is_waiting else "training"

    def _raise_if_stopped(self) -> None:
        if self._stopped():
            raise TaskStoppedError("the task was stopped")

    def _finish(self, status: JobStatus) -> Outcome:
        self._output.flush(ended=True)
        newest = self._reader.newest
        deadline_s = self._controller.deadline_s
        finished_s = self._ended_s(status.finished_s) if status.finished_s else self._now()
        self._allocation.count_until_end(finished_s)
        failure = describe_failure(status, self._output.last)
        has_steps = self._total is not None
        if failure is None and not has_steps and (self._reader.last_malformed or self._needs_progress):
            failure = describe_missing_progress("at all", self._reader.last_malformed)
        elif failure is None and not has_steps:
            self._log.warning(WITHOUT_STEPS)
        progress_pct = newest.percent if newest and has_steps else 0.0 if failure else 100.0
        setpoint_pct, met = min(progress_pct, 100.0), finished_s <= deadline_s
        last = Decision(self._allocation.devices, setpoint_pct, progress_pct, finished_s, finished_s, met, next_s=0.0)
        self._lifecycle.enter("failed" if failure else "finished", by="job")
        self._publish(finished_s, last)
        if status.state == "gone":
            raise JobLostError(failure)
        if failure:
            raise TrainingFailedError(failure, status.exit_code)
        interrupted = self._outage.restarts or self._preemption.count
        return Outcome(
            finished_s=finished_s,
            deadline_s=finite(deadline_s),
            error_pct=None if math.isinf(deadline_s) else error_pct(finished_s, deadline_s),
            met=met,
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
                self._reader,
                self._controller.learned(),
                self._total,
                self._began_s,
                finished_s,
                self._controller.limits.max_devices,
            ),
        )

    def _ended_s(self, engine_s: float) -> float:
        reader, origin_s = self._reader, self._origin.timestamp()
        offset_s = None if reader.clock_offset_s is None else reader.clock_offset_s + origin_s
        return end_of_job_s(engine_s - origin_s, offset_s, reader.trained_s or self._began_s, self._now())

    def _now(self) -> float:
        return self._clock.now() - self._origin.timestamp()
