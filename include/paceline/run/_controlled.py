"""A run under control: its job, the parts of the control loop, what has been read so far, and the samples.

:class:`~paceline.run._loop.PaceLoop` makes it. The control step and the end of the job read and change it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from paceline.contract import RunTotals, unit_of
from paceline.control import Controller, Decision
from paceline.run._allocation import JobAllocation
from paceline.run._commands import Commands
from paceline.run._handover import Handover, Surroundings
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
from paceline.run.outcome import in_one_line
from paceline.run.reading import JobPosition
from paceline.run.settings import Settings
from paceline.runtime import Job, JobStatus

if TYPE_CHECKING:
    from paceline.elastic.team import TeamJob


class ControlledRun:
    """The run of a control loop. The parameters are those of :class:`~paceline.run._loop.PaceLoop`.

    Attributes
    ----------
    began_s, started_s:
        Start of the job, and its last start or restart. ``slowest_start_s`` is the longest of its start-ups.
    continues_control:
        Whether an earlier process has controlled the job.
    restarting:
        Whether the job has not sent a report since its restart.
    decision:
        The controller's last decision.
    """

    def __init__(
        self,
        job: Job,
        controller: Controller,
        exchange: LiveValues,
        handover: Handover,
        settings: Settings,
        surroundings: Surroundings,
        team: TeamJob | None,
    ) -> None:
        self.job, self.controller, self.exchange, self.team = job, controller, exchange, team
        self.settings, self.around = settings, surroundings
        self._origin, self.past, totals, shared = handover.origin, handover.past, handover.totals, handover.shared
        self.started_s, start_s = self.now(), handover.job_started_s
        earlier = totals or RunTotals(began_s=self.started_s if start_s is None else start_s, last_step_s=start_s)
        self.continues_control, self.began_s = totals is not None, earlier.began_s
        self.journal = Journal(handover.history, surroundings.log)
        self.publisher = Publisher(exchange, self.journal, controller, self._origin, surroundings.on_sample)
        self.progress = JobProgress(job, self.journal, handover, controller.interrupt)
        shares_gpus = controller.limits.shares_gpus
        self.utilization = JobUtilization(settings.cores_per_device, shares_gpus=shares_gpus)
        self.outage = Outage(job, self.journal, surroundings.clock, self.now, earlier)
        # The first step repeats the resize, because an earlier process may have ended before it stored its last resize.
        devices = handover.allocated_devices
        unconfirmed = shared.max_devices if shared is not None else devices if totals else None
        unit = unit_of(controller.limits.quantum, shares_gpus=shares_gpus)
        pending = PendingResize(self.journal, unit)
        self.allocation = JobAllocation(job, self.outage, devices, earlier, unconfirmed, team, pending)
        self.lifecycle = handover.lifecycle
        if self.lifecycle.state is None:
            self.lifecycle.enter("starting", by="task")
        self.preemption = Preemption(job, self.outage, pending, earlier.preemptions)
        self.restarting = handover.restarted or earlier.restarting
        first_s = self.progress.reader.first_s
        # What an earlier process has measured may contain preemptions.
        self.slowest_start_s = first_s - self.began_s if first_s is not None and not earlier.preemptions else 0.0
        self.commands = Commands(
            self._origin,
            controller.deadline_s,
            self.journal,
            min_ceiling=controller.limits.quantum,
            shared=shared,
            unit=unit,
        )
        self.decision = Decision(devices, 0.0, 0.0, None, None, True, controller.period_s)
        self.step_times = StepTimes()

    def now(self) -> float:
        """Return the time in seconds after the origin, from which the deadline is counted."""
        return self.around.clock.now() - self._origin.timestamp()

    def read_reports(self, now_s: float) -> JobPosition | None:
        """Read the job's new lines; enter the state that they show, and return the position of the job."""
        reports = self.progress.read(now_s)
        # Numbered lines may be older than the restart. Code that does not number its lines may not send "start", and
        # the first read may repeat its older lines.
        if any(report.event == "start" if report.number else now_s > self.started_s for report in reports):
            self.restarting = False
        position = self.progress.reader.position
        if position is not None and not self.restarting and self.lifecycle.state != "preempted":
            if self.lifecycle.state == "starting":
                self.slowest_start_s = max(self.slowest_start_s, now_s - self.started_s)
                self.lifecycle.enter("training", by="job")
            self.lifecycle.enter("finishing" if self.progress.is_trained else "training", by="job")
        return position

    def is_training_done(self) -> bool:
        """Read the job's new lines; return whether the last batch is done."""
        self.read_reports(self.now())
        return self.progress.is_trained

    def restart_after(self, status: JobStatus) -> bool:
        """Restart a job that the engine or the loss of a device has ended; return whether control continues."""
        position = self.read_reports(self.now())
        if not self.outage.restart_after(status, position.done if position is not None else 0.0):
            return False
        if not self.outage.active:
            self.on_restart("engine")
        return True

    def on_restart(self, by: Cause) -> None:
        """Record that the job was restarted in place and will resume from its checkpoint."""
        self.lifecycle.enter("starting", by=by)
        self.started_s = self.now()
        self.allocation.ended_s = math.inf
        self.restarting = True

    def publish(self, now_s: float, decision: Decision, reason: str | None = None) -> None:
        """Publish a sample of the job; ``reason`` says why it has failed or is detached."""
        assert self.lifecycle.state is not None  # the constructor enters "starting"
        state, first_s = self.lifecycle.state, self.progress.reader.first_s
        past_startup_s = self.past.startup_s if self.past is not None else None
        self.publisher.publish(
            now_s,
            lambda moment: make_sample(
                state,
                now_s,
                moment,
                self.controller,
                decision,
                self.progress.newest,
                allocated_devices=self.allocation.upper_bound,
                used_devices=self.utilization.devices,
                mean_devices=self.mean_devices(now_s),
                device_seconds=self.allocation.device_s,
                ceiling=self.commands.ceiling,
                grant=self.commands.grant,
                shared=self.commands.shared,
                startup_s=past_startup_s if first_s is None else max(first_s - self.began_s, 0.0),
                restarts=self.outage.restarts,
                resizes=self.allocation.resizes,
                step_ms=self.step_times.newest_ms,
                reason=None if reason is None else in_one_line(self.around.mask(reason)),
            ),
            self.totals,
        )

    def mean_devices(self, until_s: float) -> float:
        """Return the mean allocation from the start of the job until a time."""
        return self.allocation.device_s / max(until_s - self.began_s, 1e-9)

    def totals(self) -> RunTotals:
        """Return the totals of the run, for the next controlling process."""
        run = RunTotals(
            began_s=self.began_s,
            restarts=self.outage.restarts,
            restarts_without_progress=self.outage.without_progress,
            done_before=self.outage.most_done,
            preemptions=self.preemption.count,
            restarting=self.restarting,
            reported=self.progress.reader.reported(),
        )
        return self.allocation.add_to(run)
