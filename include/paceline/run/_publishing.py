"""Publishes a run's newest sample at every control step, and its history and controller state every 5 s."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from pydantic import ValidationError

from paceline.contract import CONTROLLER, HISTORY, PACE, ControllerState, PaceSample, RunTotals, finite
from paceline.control import Controller
from paceline.run._journal import Journal
from paceline.run._live import Exchange

_SLOW_KEYS_EVERY_S = 5.0  # history and controller state are larger and less urgent than the newest sample
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
        exchange: Exchange,
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
        self._slow_keys_s = float("-inf")
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
        if journal.has_new_events or now_s - self._slow_keys_s >= _SLOW_KEYS_EVERY_S or sample.state in _FINAL_STATES:
            journal.has_new_events = False
            self._slow_keys_s = now_s
            state = ControllerState(
                kind=type(self._controller).__name__, controller=self._controller.state(), run=totals()
            )
            values[HISTORY] = journal.history.to_json()
            values[CONTROLLER] = state.to_json()
        return values
