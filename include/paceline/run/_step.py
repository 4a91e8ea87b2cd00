"""One control step: read progress and commands, decide, resize or preempt the job, publish.

:class:`~paceline.run._loop.PaceLoop` takes a step about once a second.
"""

from __future__ import annotations

import math
from dataclasses import replace

from paceline.contract import DEADLINE
from paceline.control import Decision, Observation
from paceline.errors import TrainingFailedError
from paceline.run._controlled import ControlledRun
from paceline.run.feasibility import InfeasiblePolicy, explain_usage
from paceline.run.lease import JobLease
from paceline.run.outcome import describe_missing_progress
from paceline.run.reading import JobPosition

_MIN_STARTUP_S, _STARTUPS = 60.0, 2.0  # a job may start this long, or this many times as long as in an earlier run
_MIN_RESTART_S = 900.0  # a restart may take this long, or as long as a start; on few devices, libraries load slowly


class ControlStep:
    """Takes the control steps of one job, and decides when it has waited too long for its deadline or its progress."""

    def __init__(self, controlled: ControlledRun) -> None:
        self._controlled = controlled
        self._infeasible = InfeasiblePolicy(controlled.settings.on_infeasible, controlled.journal)
        self._lease = JobLease(controlled.job, controlled.settings.lease_s)

    def take(self, now_s: float) -> float:
        """Run one control step; return the seconds until the next step."""
        controlled, controller, commands = self._controlled, self._controlled.controller, self._controlled.commands
        progress, allocation, lifecycle = controlled.progress, controlled.allocation, controlled.lifecycle
        allocation.count_until(now_s)
        self._lease.keep(now_s)
        position = controlled.read_reports(now_s)
        if commands.update(controlled.exchange.newest(), now_s):
            self._move_deadline(now_s)
        if commands.ceiling == 0 and not (progress.is_trained and lifecycle.state != "preempted"):
            return self._preempted(now_s)
        if lifecycle.state == "preempted" and not self._resume(now_s):
            return self._preempted(now_s)
        controlled.utilization.read(controlled.job, controlled.outage, allocation.device_s)
        reported_s = now_s if position is None else min(position.done_s, now_s)
        until_report_s = allocation.device_s - allocation.devices * (now_s - reported_s)
        controlled.utilization.add_report(progress.newest, until_report_s)
        self._record_scaling(now_s)
        decision = controller.step(self._observe(now_s, position))
        allocation.target = decision.devices
        if lifecycle.state == "training":
            decision = self._check_feasibility(now_s, decision)
        elif position is None and now_s > max(controller.deadline_s, controlled.started_s + self._startup_limit_s):
            waited_s, malformed = now_s - controlled.started_s, progress.reader.last_malformed
            self._infeasible.miss_progress(controller.deadline_s, waited_s, malformed)
        is_restarting = controlled.restarting and progress.total is not None
        if is_restarting and now_s > controlled.started_s + self._restart_limit_s:
            malformed = progress.reader.last_malformed
            raise TrainingFailedError(describe_missing_progress("since its restart", malformed))
        if progress.may_end_early and now_s <= controller.deadline_s:
            decision = replace(decision, feasible=True)
        controlled.decision = decision
        if position is not None and decision.tail is not None and math.isfinite(controller.deadline_s):
            progress.log_tail(decision.tail)
        allocation.resize(now_s)
        controlled.publish(now_s, decision)
        progress.output.flush()
        return decision.next_s

    @property
    def _startup_limit_s(self) -> float:
        """Time to wait for the first report, even if the deadline is earlier."""
        past = self._controlled.past
        return max(_MIN_STARTUP_S, _STARTUPS * past.startup_s if past is not None else 0.0)

    @property
    def _restart_limit_s(self) -> float:
        """Time to wait for the first report after a restart."""
        return max(_MIN_RESTART_S, _STARTUPS * self._controlled.slowest_start_s, self._startup_limit_s)

    def _observe(self, now_s: float, position: JobPosition | None) -> Observation:
        controlled, allocation, ceiling = (
            self._controlled,
            self._controlled.allocation,
            self._controlled.commands.ceiling,
        )
        pauses, newest = controlled.progress.reader.pauses, controlled.progress.newest
        whole_devices = None if newest is None or controlled.controller.limits.shares_gpus else newest.devices_in_force
        in_force = allocation.devices_in_force(whole_devices, now_s)
        return Observation(
            now_s,
            position.done if position else None,
            position.total if position else 1,
            done_s=position.done_s if position else 0.0,
            allocated_devices=allocation.devices if in_force is None else in_force,
            pending=allocation.is_changing or in_force is not None,
            # Ignore a ceiling of 0 here: all batches are done and the job is about to end.
            ceiling=allocation.devices if ceiling == 0 else ceiling,
            in_pause=pauses.in_pause(now_s) or controlled.outage.active or controlled.restarting,
            pauses_left_s=pauses.left_s(now_s),
            pause_sd_s=pauses.sd_s,
            busy=controlled.utilization.share if controlled.team is None else None,
            save_s=newest.save_s if newest else None,
            tail_s=newest.tail_s if newest else None,
            resize_s=newest.resize_s if newest else None,
            restarting=controlled.restarting,
        )

    def _preempted(self, now_s: float) -> float:
        """Run a step without devices, stop the job if necessary, and return the seconds until the next step."""
        controlled, preemption, lifecycle = self._controlled, self._controlled.preemption, self._controlled.lifecycle
        is_preempted = lifecycle.state == "preempted"
        must_stop = controlled.commands.ceiling == 0 and (not is_preempted or preemption.unconfirmed)
        if must_stop and preemption.preempt(now_s, controlled.is_training_done, repeated=is_preempted):
            controlled.restarting = False
            lifecycle.enter("preempted", by="arbiter")
        period_s = controlled.controller.period_s
        if lifecycle.state == "preempted":
            controlled.allocation.replace(preemption.unconfirmed, now_s)
            controlled.controller.interrupt(now_s)
            controlled.decision = replace(
                controlled.decision, devices=0.0, finish_s=None, earliest_s=None, next_s=period_s
            )
            controlled.publish(now_s, controlled.decision)
        controlled.progress.output.flush()
        return period_s

    def _resume(self, now_s: float) -> bool:
        """Restart a preempted job on the largest allowed allocation; return whether it was restarted."""
        controlled, limits = self._controlled, self._controlled.controller.limits
        devices = limits.quantize(limits.max_devices, controlled.commands.ceiling)
        if not controlled.preemption.resume(now_s, devices):
            return False
        controlled.allocation.replace(devices, now_s)
        controlled.on_restart("arbiter")
        return True

    def _record_scaling(self, now_s: float) -> None:
        team = self._controlled.team
        for step in team.take_steps() if team is not None else ():
            new, reason = step.configuration, step.reason
            nodes = {name: round(cores, 3) for name, cores in new.nodes.items()}
            self._controlled.journal.event(now_s, "scaled", "%s. Now %s", reason, new, why=reason, nodes=nodes)

    def _move_deadline(self, now_s: float) -> None:
        self._controlled.controller.move_deadline(now_s, self._controlled.commands.deadline_s)
        self._infeasible.reset()

    def _check_feasibility(self, now_s: float, decision: Decision) -> Decision:
        """Apply the user's choice to an infeasible deadline; return the decision, which an extension makes feasible."""
        controlled, controller, progress = self._controlled, self._controlled.controller, self._controlled.progress
        assert progress.newest is not None  # the job is training
        extended_s = self._infeasible.apply(
            now_s,
            controller.began_s,
            controller.deadline_s,
            decision,
            f"{progress.total} {progress.newest.unit}",
            usage=explain_usage(
                controlled.utilization.devices,
                controlled.allocation.devices,
                controller.limits.quantum,
                shares_gpus=controller.limits.shares_gpus,
            ),
            may_end_early=progress.may_end_early,
        )
        if extended_s is None:
            return decision
        controlled.exchange.post({DEADLINE: controlled.commands.extend(extended_s, now_s)})
        self._move_deadline(now_s)
        return replace(decision, feasible=True)
