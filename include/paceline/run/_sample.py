"""Creates the samples that the control loop publishes under the key ``pace``."""

from __future__ import annotations

from datetime import datetime

from paceline.contract import PaceSample, Remaining, State, finite
from paceline.control import Controller, Decision
from paceline.train.progress import Progress


def make_sample(
    state: State,
    now_s: float,
    updated_at: datetime,
    controller: Controller,
    decision: Decision,
    newest: Progress | None,
    *,
    allocated_devices: float,
    used_devices: float | None,
    ceiling: float | None,
    grant: int = 0,
    shared: bool = False,
    startup_s: float | None = None,
    restarts: int = 0,
    resizes: int = 0,
    step_ms: float | None = None,
) -> PaceSample:
    """Return a sample. Times are in seconds after the origin, from which the deadline is counted.

    Parameters
    ----------
    state, now_s, updated_at:
        State of the job, and the time of the sample: in seconds, and as a datetime with a time zone.
    controller, decision:
        The controller and its last decision.
    newest:
        The job's last report.
    allocated_devices, used_devices, ceiling:
        The allocation, the devices in use, and the upper limit of the allocation.
    grant:
        Number of the arbiter's grant in effect; 0 before the first.
    shared:
        Whether the job waits for grants from an arbiter.
    startup_s:
        Time from the start of the container to the first batch.
    restarts, resizes:
        Numbers of restarts and resizes of the job so far.
    step_ms:
        Duration of the last control step.
    """
    return PaceSample(
        state=state,
        t_s=now_s,
        updated_at=updated_at,
        progress_pct=decision.progress_pct,
        setpoint_pct=decision.setpoint_pct,
        devices=allocated_devices,
        min_devices=controller.limits.min_devices,
        max_devices=controller.limits.max_devices,
        quantum=controller.limits.quantum,
        used_devices=used_devices,
        ceiling=ceiling,
        grant=grant,
        shared=shared,
        startup_s=startup_s,
        restarts=restarts,
        resizes=resizes,
        step_ms=step_ms,
        deadline_s=finite(controller.deadline_s),
        alpha=controller.alpha,
        began_s=controller.began_s,
        forecast_s=finite(decision.finish_s),
        forecast_low_s=_shifted(decision.finish_s, -decision.margins_s[0], now_s),
        forecast_high_s=_shifted(decision.finish_s, decision.margins_s[1], now_s),
        earliest_s=finite(decision.earliest_s),
        feasible=decision.feasible,
        remaining=Remaining.read(decision.remaining.to_dict()) if decision.remaining else None,
        epoch=newest.epoch if newest else None,
        epochs=newest.epochs if newest else None,
        loss=newest.loss if newest else None,
        metrics=newest.metrics if newest else {},
        threads=newest.threads if newest else None,
        devices_in_force=newest.devices if newest else None,
    )


def _shifted(finish_s: float | None, seconds: float, now_s: float) -> float | None:
    """Return ``finish_s`` plus ``seconds``, but no time in the past; ``None`` if it is unknown."""
    return None if finish_s is None else finite(max(finish_s + seconds, min(finish_s, now_s)))
