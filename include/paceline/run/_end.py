"""The end of a controlled job: its last sample, and its outcome or the error that says why it has failed.

:class:`~paceline.run._loop.PaceLoop` calls these functions with the job's last status.
"""

from __future__ import annotations

from paceline.contract import Outcome, finite
from paceline.control import Decision
from paceline.errors import JobLostError, TrainingFailedError, UnsuitableCodeError
from paceline.run._controlled import ControlledRun
from paceline.run.outcome import (
    WITHOUT_STEPS,
    describe_failure,
    describe_missing_progress,
    error_pct,
    measurements,
    unsuitable_code,
)
from paceline.runtime import JobStatus

_SHORTEST_S = 0.01  # a deadline before its origin is stored as one just after it


def finish(controlled: ControlledRun, status: JobStatus) -> Outcome:
    """Publish the last sample; return the outcome of a job that has succeeded, else raise the error."""
    progress, allocation, controller = controlled.progress, controlled.allocation, controlled.controller
    outage, began_s = controlled.outage, controlled.began_s
    progress.output.flush(ended=True)
    failure = failure_of(controlled, status)
    if failure is None and progress.total is None:
        controlled.journal.log.warning(WITHOUT_STEPS)
    finished_s = publish_end_of_job(controlled, status, failure)
    newest, deadline_s = progress.newest, controller.deadline_s
    if status.state == "gone":
        raise JobLostError(failure)
    # After the first batch of any try, there may be a checkpoint from which another try resumes.
    has_trained = progress.total is not None or controlled.restarting
    advice = None if has_trained else unsuitable_code(status, progress.output.last)
    if failure and advice:
        raise UnsuitableCodeError(f"{failure}\n{advice}", status.exit_code)
    if failure:
        raise TrainingFailedError(failure, status.exit_code)
    interrupted = outage.restarts or controlled.preemption.count
    return Outcome(
        finished_s=finished_s,
        deadline_s=finite(deadline_s),
        # A shared job may have waited for devices until then.
        error_pct=error_pct(finished_s, deadline_s, _SHORTEST_S if controlled.settings.shared else began_s),
        met=finished_s <= deadline_s,
        mean_devices=controlled.mean_devices(finished_s),
        device_seconds=allocation.device_s,
        resizes=allocation.resizes,
        restarts=outage.restarts,
        step_ms_mean=controlled.step_times.mean_ms,
        step_ms_max=controlled.step_times.max_ms,
        store_ms_mean=controlled.exchange.round_ms_mean,
        loss=newest.loss if newest else None,
        metrics=newest.metrics if newest else {},
        learned=None
        if interrupted
        else measurements(
            progress.reader,
            controller.learned(),
            progress.total,
            began_s,
            finished_s,
            controller.limits.max_devices,
        ),
    )


def failure_of(controlled: ControlledRun, status: JobStatus) -> str | None:
    """Return a description of the failure of a job that has ended; ``None`` if it has succeeded."""
    progress = controlled.progress
    failure, malformed = describe_failure(status, progress.output.last), progress.reader.last_malformed
    if failure is None and progress.total is None and (malformed or controlled.settings.needs_progress):
        failure = describe_missing_progress("at all", malformed)
    return failure


def publish_end_of_job(controlled: ControlledRun, status: JobStatus, failure: str | None) -> float:
    """Publish the last sample of a job that has ended, without devices; return the time of its end."""
    progress, newest, allocation = controlled.progress, controlled.progress.newest, controlled.allocation
    deadline_s, now_s, engine_s = controlled.controller.deadline_s, controlled.now(), status.finished_s
    finished_s = progress.ended_s(engine_s, controlled.began_s, now_s) if engine_s else now_s
    allocation.count_until_end(finished_s)
    allocation.replace(0.0, finished_s)
    controlled.utilization.devices = None
    has_steps = progress.total is not None
    progress_pct = newest.percent if newest and has_steps else 0.0 if failure else 100.0
    setpoint_pct, met = controlled.controller.setpoint_pct(finished_s), finished_s <= deadline_s
    last = Decision(0.0, setpoint_pct, progress_pct, finished_s, finished_s, met, next_s=0.0)
    controlled.lifecycle.enter("failed" if failure else "finished", by="job")
    controlled.publish(finished_s, last, failure)
    return finished_s
