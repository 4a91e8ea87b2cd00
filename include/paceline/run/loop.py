"""The control loop of one job: read progress, hear what changed, decide, resize, publish.

The training operator runs it. It knows nothing of Airflow: the job comes from a runtime, live state through an
:class:`~paceline.run.live.Exchange`, time from a clock.
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
from paceline.errors import AskedToEndError, JobLostError, RuntimeUnavailableError, TrainingFailedError
from paceline.run.allocation import JobAllocation
from paceline.run.busy import Busy
from paceline.run.clock import Clock, SystemClock
from paceline.run.feasibility import InfeasiblePolicy
from paceline.run.history import History
from paceline.run.journal import Journal
from paceline.run.live import Exchange
from paceline.run.orders import Orders
from paceline.run.outage import Outage
from paceline.run.outcome import describe_failure, describe_silence, error_pct
from paceline.run.output import Output
from paceline.run.pauses import Pauses
from paceline.run.preemption import Preemption
from paceline.run.publishing import Publisher
from paceline.run.reading import JobPosition, ProgressReader
from paceline.run.sample import sample
from paceline.run.states import Cause, Course
from paceline.runtime.base import Job, JobStatus

if TYPE_CHECKING:
    from paceline.elastic.team import TeamJob

_SILENT_AT_LEAST_S = 60.0  # a job that is started about at its deadline, or later, has to begin all the same
_STARTED_AGAIN_AT_MOST_S = 900.0  # on few devices, an interpreter and its libraries take their time
_CLOCK_IS_OFF_S = 1.5  # a line may be read a second late
_NOTABLE = 0.05  # a total that has moved by more is an event


class PaceLoop:
    """Runs the control loop of one job until the job has ended.

    Parameters
    ----------
    job:
        The job, started or reattached.
    controller:
        Decides how many devices; the one that has decided on how many the job was started, or goes on from a state.
    course:
        The states that the training has been in so far.
    exchange:
        Live state: new deadlines and ceilings come from it, samples go to it.
    origin:
        The moment that the deadline counts from; all times in seconds are after it.
    held_devices:
        What the job holds now.
    on_infeasible:
        What to do once the deadline cannot be met: ``"best_effort"``, ``"fail"`` or ``"extend"``.
    history:
        The run so far, when it goes on after a crash.
    totals:
        What the run had come to when another process had the job before.
    clock, log:
        The time, and where messages and the job's own output go.
    stopped:
        Asked at every step: has somebody asked this run to end?
    past:
        An earlier run of the same job.
    on_sample:
        Called with every sample that is published; it must not take long.
    team:
        The job, if it is a team of several: asked at every step what has been changed in it, for its history. What such
        a job holds and does not use yet, it will when it has scaled: that says nothing of what it could use.
    shared:
        The ceiling in force, for a job whose devices come from an arbiter: with a ceiling of 0 it is stopped, and
        started again from its checkpoint when it is given some.
    """

    def __init__(
        self,
        job: Job,
        controller: Controller,
        exchange: Exchange,
        *,
        course: Course | None = None,
        origin: datetime,
        held_devices: float,
        on_infeasible: str = "best_effort",
        history: History | None = None,
        totals: RunTotals | None = None,
        clock: Clock | None = None,
        log: logging.Logger | Any = None,
        stopped: Callable[[], bool] = lambda: False,
        past: PastRun | None = None,
        on_sample: Callable[[PaceSample], None] = lambda sample: None,
        team: TeamJob | None = None,
        shared: Ceiling | None = None,
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
        self._output = Output(self._log)
        earlier = totals or RunTotals(began_s=self._now())
        known = earlier.reported
        pauses = Pauses(past.pause_s, is_own=not past.related) if past is not None else Pauses()
        self._reader = ProgressReader(self._output.take, self._malformed, pauses, known)
        self._total = known.total if known else None
        self._told_total = self._total or 0
        self._busy = Busy()
        self._measured_s: float | None = None
        self._started_s = self._now()
        self._resumes, self._began_s = totals is not None, earlier.began_s
        self._outage = Outage(job, self._journal, self._clock, self._now, earlier.restarts)
        # The state that another process stored last may be older than its last resize: the first step makes sure.
        perhaps = shared.at_most if shared is not None else held_devices if totals else None
        self._allocation = JobAllocation(job, self._outage, held_devices, earlier, perhaps, team)
        self._course = course or Course()
        if self._course.state is None:
            self._course.becomes("starting", by="task")
        self._preemption = Preemption(job, self._journal, self._outage)
        self._again = False  # started again, and not heard of since
        self._orders = Orders(
            origin, controller.deadline_s, self._journal, least_ceiling=controller.limits.quantum, shared=shared
        )
        self._decision = Decision(held_devices, 0.0, 0.0, None, None, True, controller.period_s)
        self._steps, self._steps_sum_s, self._steps_max_s = 0, 0.0, 0.0
        self._step_ms: float | None = None

    def run(self) -> Outcome:
        """Control the job to its end.

        Raises
        ------
        TrainingFailedError
            The job ended without success, or never reported progress.
        DeadlineInfeasibleError
            The deadline cannot be met and ``on_infeasible`` is ``"fail"``; the job still runs then.
        JobLostError
            The job is not there any more.
        AskedToEndError
            ``stopped`` said so; the job still runs.
        """
        self._look_for_an_end_before()
        next_s = self._now()
        while True:
            began_s = self._now()
            period_s = self._step(began_s)
            took_s = self._now() - began_s
            self._steps, self._steps_sum_s = self._steps + 1, self._steps_sum_s + took_s
            self._steps_max_s = max(self._steps_max_s, took_s)
            self._step_ms = 1000 * took_s
            next_s = max(next_s + period_s, self._now())
            status = self._wait(next_s - self._now())
            if status is None:
                continue
            if self._outage.goes_on_after(status):
                if not self._outage.lasts:
                    self._start_again("engine")
                continue
            self._read(self._now())
            return self._end(status)

    def _look_for_an_end_before(self) -> None:
        """Count the allocation of a job that ended without a controlling process until its end."""
        if not self._resumes:
            return
        with contextlib.suppress(RuntimeUnavailableError, JobLostError):
            status = self._job.status()
            if status.state == "exited" and status.finished_s is not None:
                self._allocation.ended_s = self._ended_s(status.finished_s)

    def _step(self, now_s: float) -> float:
        """Do one control step; returns the seconds until the next."""
        allocation = self._allocation
        allocation.account(now_s)
        position = self._read(now_s)
        if self._orders.hear(self._exchange.newest(), now_s):
            self._move_deadline(now_s)
        if self._orders.ceiling == 0 and (self._reader.trained_s is None or self._course.state == "paused"):
            return self._stand_still(now_s)
        if self._course.state == "paused" and not self._go_on(now_s):
            return self._stand_still(now_s)
        self._take_usage()
        in_force = allocation.in_force(self._reader.newest.devices if self._reader.newest else None, now_s)
        seen = Observation(
            now_s,
            position.done if position else None,
            position.total if position else 1,
            done_s=position.done_s if position else 0.0,
            held_devices=allocation.devices if in_force is None else in_force,
            pending=allocation.wanted != allocation.devices or in_force is not None,
            ceiling=allocation.devices if self._orders.ceiling == 0 else self._orders.ceiling,  # it is about to end
            resting=self._reader.pauses.resting(now_s) or self._outage.lasts or self._again,
            pauses_left_s=self._reader.pauses.left_s(now_s),
            busy=self._busy.share if self._team is None else None,
            save_s=self._reader.newest.save_s if self._reader.newest else None,
        )
        decision = self._controller.step(seen)
        self._decision = decision
        allocation.wanted = decision.devices
        if self._course.state == "training":
            self._judge(now_s, decision)
        elif position is None and now_s > max(self._controller.deadline_s, self._started_s + _SILENT_AT_LEAST_S):
            raise TrainingFailedError(describe_silence("by its deadline", self._reader.last_malformed))
        if self._again and now_s > self._started_s + _STARTED_AGAIN_AT_MOST_S:
            raise TrainingFailedError(describe_silence("since it was started again", self._reader.last_malformed))
        allocation.resize(now_s)
        self._publish(now_s, decision)
        self._output.flush()
        return decision.next_s

    def _stand_still(self, now_s: float) -> float:
        """A step of a job that has been given nothing; returns the seconds until the next."""
        is_paused = self._course.state == "paused"
        to_be_stopped = self._orders.ceiling == 0 and (not is_paused or self._preemption.perhaps)
        if to_be_stopped and self._preemption.begin(now_s, self._has_trained, again=is_paused):
            self._again = False
            self._course.becomes("paused", by="arbiter")
        period_s = self._controller.period_s
        if self._course.state == "paused":
            self._allocation.have(self._preemption.perhaps, now_s)
            self._controller.interrupt(now_s)
            self._decision = replace(self._decision, devices=0.0, finish_s=None, earliest_s=None, next_s=period_s)
            self._publish(now_s, self._decision)
        self._output.flush()
        return period_s

    def _has_trained(self) -> bool:
        self._read(self._now())
        return self._reader.trained_s is not None

    def _go_on(self, now_s: float) -> bool:
        """Start a job again that stood still, on all that it may have; returns whether that has been done."""
        devices = self._controller.limits.quantize(self._controller.limits.max_devices, self._orders.ceiling)
        if not self._preemption.end(now_s, devices):
            return False
        self._allocation.have(devices, now_s)
        self._start_again("arbiter")
        return True

    def _start_again(self, by: Cause) -> None:
        """The job was started in place, and goes on from its checkpoint once it reports."""
        self._course.becomes("starting", by=by)
        self._started_s = self._now()
        self._allocation.ended_s = math.inf
        self._again = True

    def _read(self, now_s: float) -> JobPosition | None:
        news = [one for one in self._reader.feed(self._job.read_lines(), now_s) if one.event != "report"]
        # Not every program says when it starts; of one that numbers its lines, older ones may still be on their way.
        if any(one.event == "start" or (not one.number and now_s > self._started_s) for one in news):
            self._again = False
        if news:
            total_before, self._total = self._total, news[-1].total
            if total_before is None:
                self._told_total = self._total
            elif self._total != total_before:
                # A worker among several is given a few more or fewer at every epoch: nothing that people want to know.
                if abs(self._total - self._told_total) > _NOTABLE * self._told_total:
                    self._journal.event(now_s, "total", "The job is now %d batches in all", self._total)
                    self._told_total = self._total
            elif any(one.event == "start" for one in news):
                self._controller.interrupt(now_s)
                self._journal.event(now_s, "resumed", "Training goes on at %.1f %%", news[-1].percent)
        position = self._reader.position
        if position is not None and not self._again and self._course.state != "paused":
            if self._course.state == "starting":
                self._course.becomes("training", by="job")
            self._course.becomes("training" if self._reader.trained_s is None else "finishing", by="job")
        return position

    def _take_usage(self) -> None:
        try:
            usage = self._job.usage()
        except RuntimeUnavailableError as error:
            self._outage.begins(error)  # else one without a resize in it would be missed, and the job's end with it
            return
        except JobLostError:
            return  # what becomes of the job, its status tells
        if usage.measured_s != self._measured_s:
            self._measured_s = usage.measured_s
            self._outage.measured()
        self._busy.take(usage, self._allocation.device_s)
        for step in self._team.take_steps() if self._team is not None else ():
            now, nodes = step.configuration, {name: round(cores, 3) for name, cores in step.configuration.nodes.items()}
            self._journal.event(self._now(), "scaled", "%s. Now %s", step.reason, now, why=step.reason, nodes=nodes)

    def _move_deadline(self, now_s: float) -> None:
        self._controller.move_deadline(now_s, self._orders.deadline_s)
        self._infeasible.forget()

    def _judge(self, now_s: float, decision: Decision) -> None:
        controller = self._controller
        extended_s = self._infeasible.judge(now_s, controller.began_s, controller.deadline_s, decision)
        if extended_s is not None:
            self._exchange.post({DEADLINE: self._orders.extend(extended_s, now_s)})
            self._move_deadline(now_s)

    def leave(self, state: Literal["detached", "failed"], by: Cause, *, stopped: bool = False) -> None:
        """Say what has become of a job whose control ends before it does; ``stopped``: it holds nothing now."""
        if self._course.state in ("finished", "failed"):  # that has been said
            return
        now_s = self._now()
        self._allocation.account(now_s)
        if stopped:
            self._allocation.have(0.0, now_s)
        self._course.becomes(state, by=by)
        self._publish(now_s, self._decision)

    def _publish(self, now_s: float, decision: Decision) -> None:
        assert self._course.state is not None  # it is "starting" from the beginning
        state = self._course.state
        self._publisher.publish(
            now_s,
            lambda moment: sample(
                state,
                now_s,
                moment,
                self._controller,
                decision,
                self._reader.newest,
                held_devices=self._allocation.most,
                used_devices=self._busy.cores,
                ceiling=self._orders.ceiling,
                grant=self._orders.grant if self._orders.shared else None,
                restarts=self._outage.restarts,
                resizes=self._allocation.resizes,
                step_ms=self._step_ms,
            ),
            lambda: self._allocation.totals(self._began_s, self._outage.restarts, self._reader.reported()),
        )

    def _malformed(self, line: str, reason: str) -> None:
        self._log.warning("Progress line skipped (%s): %.200s", reason, line)

    def _wait(self, timeout_s: float) -> JobStatus | None:
        """Wait for the next step; returns the job's status when it has ended."""
        self._end_if_asked()
        if self._course.state == "paused":
            self._clock.sleep(max(timeout_s, 0.0))
            return None
        try:
            if not self._job.wait(max(timeout_s, 0.0)):
                return None
            status = self._job.status()
        except RuntimeUnavailableError as error:
            self._outage.begins(error)
            self._clock.sleep(self._controller.period_s)
            return None
        if status.state == "running":
            return None
        self._end_if_asked()  # a terminating process may have stopped the job
        self._outage.is_over()
        return status

    def _end_if_asked(self) -> None:
        if self._stopped():
            raise AskedToEndError("the task was asked to end")

    def _end(self, status: JobStatus) -> Outcome:
        self._output.flush(everything=True)
        newest = self._reader.newest
        deadline_s = self._controller.deadline_s
        finished_s = self._ended_s(status.finished_s) if status.finished_s else self._now()
        self._allocation.account(finished_s)
        problem = describe_failure(status, self._output.last)
        if problem is None and self._total is None:
            problem = describe_silence("at all", self._reader.last_malformed)
        progress_pct = newest.percent if newest and self._total else 0.0
        setpoint_pct, met = min(progress_pct, 100.0), finished_s <= deadline_s
        last = Decision(self._allocation.devices, setpoint_pct, progress_pct, finished_s, finished_s, met, next_s=0.0)
        self._course.becomes("failed" if problem else "finished", by="job")
        self._publish(finished_s, last)
        if status.state == "gone":
            raise JobLostError(problem)
        if problem:
            raise TrainingFailedError(problem, status.exit_code)
        return Outcome(
            finished_s=finished_s,
            deadline_s=finite(deadline_s),
            error_pct=None if math.isinf(deadline_s) else error_pct(finished_s, deadline_s),
            met=met,
            mean_devices=self._allocation.device_s / max(finished_s - self._began_s, 1e-9),
            device_seconds=self._allocation.device_s,
            resizes=self._allocation.resizes,
            restarts=self._outage.restarts,
            step_ms_mean=1000 * self._steps_sum_s / self._steps,
            step_ms_max=1000 * self._steps_max_s,
            store_ms_mean=self._exchange.round_ms_mean,
            loss=newest.loss if newest else None,
            metrics=newest.metrics if newest else {},
            learned=self._learned(finished_s),
        )

    def _ended_s(self, engine_s: float) -> float:
        """Return the job's end. An engine's time that cannot be is replaced by now: its clock was set after the job's
        last line."""
        now_s, ended_s = self._now(), self._on_our_clock(engine_s)
        earliest_s = self._reader.trained_s or self._began_s
        return min(ended_s, now_s) if ended_s > earliest_s - _CLOCK_IS_OFF_S else now_s

    def _on_our_clock(self, engine_s: float) -> float:
        """A time of the engine's clock. That may be off, as the job's lines tell; by little, they tell nothing."""
        moment_s, offset_s = engine_s - self._origin.timestamp(), self._reader.clock_offset_s
        by_lines_s = moment_s if offset_s is None else engine_s + offset_s
        return by_lines_s if abs(by_lines_s - moment_s) > _CLOCK_IS_OFF_S else moment_s

    def _learned(self, finished_s: float) -> dict[str, Any] | None:
        """What the next run of this job can begin with; nothing after an interruption, which will not come again."""
        reader, speed = self._reader, self._controller.learned()
        if reader.first_s is None or reader.trained_s is None or speed is None:
            return None
        if not self._total or self._outage.restarts or self._preemption.times:
            return None
        return PastRun(
            batches=self._total,
            startup_s=round(max(reader.first_s - self._began_s, 0.0), 3),
            tail_s=round(max(finished_s - reader.trained_s, 0.0), 3),
            pauses_s=round(reader.pauses.all_s, 3),
            epochs=reader.newest.epochs if reader.newest else None,
            save_s=reader.newest.save_s if reader.newest else None,
            **speed,
        ).to_dict()

    def _now(self) -> float:
        return self._clock.now() - self._origin.timestamp()
