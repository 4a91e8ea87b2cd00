"""Makes a run's newest sample, and publishes it at every control step; history and controller state every 5 s."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from pydantic import ValidationError

from paceline.contract import (
    CONTROLLER,
    HISTORY,
    PACE,
    ControllerState,
    PaceSample,
    Remaining,
    RunTotals,
    State,
    finite,
)
from paceline.control import Controller, Decision
from paceline.run._journal import Journal
from paceline.run._live import JsonText, LiveValues
from paceline.train.progress import Progress

_MEMORY_EVERY_S = 5.0  # history and controller state are larger and less urgent than the newest sample
_ROWS_PER_S = 20.0  # a longer history is written less often: every 25 s with 500 rows
# The fields of the job's last report that a sample contains, too.
_REPORTED = ("epoch", "epochs", "loss", "metrics", "threads", "devices_in_force")
_FINAL_STATES = ("finished", "failed", "detached")


class Publisher:
    """Writes the samples of one run to its live state.

    Parameters
    ----------
    exchange, journal, controller:
        The exchange, the journal and the controller of the control loop.
    origin:
        The time from which the deadline is counted.
    on_sample:
        Called with every sample; must return quickly.
    """

    def __init__(
        self,
        exchange: LiveValues,
        journal: Journal,
        controller: Controller,
        origin: datetime,
        on_sample: Callable[[PaceSample], None],
    ) -> None:
        self._exchange = exchange
        self._journal = journal
        self._controller = controller
        self._origin = origin
        self._on_sample = on_sample
        self._memory_s = self._history_s = float("-inf")
        self._rejected = False

    def publish(self, now_s: float, make: Callable[[datetime], PaceSample], totals: Callable[[], RunTotals]) -> None:
        """Publish a sample. If a value is invalid, drop the sample, so that training continues."""
        try:
            self._exchange.post(self._record_sample(now_s, make(self._origin + timedelta(seconds=now_s)), totals))
        except ValidationError as error:
            if not self._rejected:  # log only once: samples are published every second
                self._journal.log.error("The sample at %.1f s cannot be stored: %s", now_s, error)
            self._rejected = True

    def _record_sample(self, now_s: float, sample: PaceSample, totals: Callable[[], RunTotals]) -> dict[str, Any]:
        journal = self._journal
        journal.history.add(
            t_s=now_s,
            progress_pct=sample.progress_pct,
            setpoint_pct=sample.setpoint_pct,
            devices=sample.devices,
            deadline_s=finite(self._controller.deadline_s),
            forecast_s=sample.forecast_s,
            loss=sample.loss,
            metrics=sample.metrics,
        )
        self._on_sample(sample)
        values: dict[str, Any] = {PACE: sample.to_json()}
        is_now = journal.has_new_events or sample.state in _FINAL_STATES
        if is_now or now_s - self._memory_s >= _MEMORY_EVERY_S:
            self._memory_s = now_s
            values[CONTROLLER] = self._memory(totals())
        if is_now or now_s - self._history_s >= max(_MEMORY_EVERY_S, len(journal.history) / _ROWS_PER_S):
            journal.has_new_events = False
            self._history_s = now_s
            values[HISTORY] = JsonText(journal.history.to_text())
        return values

    def leave(self, totals: RunTotals) -> None:
        """Write what another process needs to continue the control now."""
        values = {HISTORY: JsonText(self._journal.history.to_text()), CONTROLLER: self._memory(totals)}
        self._exchange.post(values)

    def _memory(self, totals: RunTotals) -> dict[str, Any]:
        state = ControllerState(kind=type(self._controller).__name__, controller=self._controller.state(), run=totals)
        return state.to_json()


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
    mean_devices: float | None = None,
    device_seconds: float | None = None,
    ceiling: float | None,
    grant: int = 0,
    shared: bool = False,
    startup_s: float | None = None,
    restarts: int = 0,
    resizes: int = 0,
    step_ms: float | None = None,
    reason: str | None = None,
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
    mean_devices, device_seconds:
        The mean allocation and the device-seconds since the start of the job; ``None`` before it.
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
    reason:
        Why the job has failed or is detached.
    """
    return PaceSample(
        state=state,
        reason=reason,
        t_s=now_s,
        updated_at=updated_at,
        progress_pct=decision.progress_pct,
        setpoint_pct=decision.setpoint_pct,
        devices=allocated_devices,
        min_devices=controller.limits.min_devices,
        max_devices=controller.limits.max_devices,
        quantum=controller.limits.quantum,
        shares_gpus=controller.limits.shares_gpus,
        used_devices=used_devices,
        mean_devices=mean_devices,
        device_seconds=device_seconds,
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
        **({} if newest is None else {name: getattr(newest, name) for name in _REPORTED}),
    )


def _shifted(finish_s: float | None, seconds: float, now_s: float) -> float | None:
    """Return ``finish_s`` plus ``seconds``, but no time in the past; ``None`` if it is unknown."""
    return None if finish_s is None else finite(max(finish_s + seconds, min(finish_s, now_s)))
