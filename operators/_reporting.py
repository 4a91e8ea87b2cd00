"""Who hears of a running training: Airflow's metrics, at every sample, and the DAG author's callbacks, on alerts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import copy
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from paceline.contract import ALERTS, PaceSample
from paceline.run.alerts import Alert, Alerts

if TYPE_CHECKING:
    from airflow.sdk import Context

Callback = Callable[["Context"], Any]


class SampleReporter:
    """Takes in each sample of a run; what is slow is done beside the control loop.

    Parameters
    ----------
    context:
        Airflow's context of the task. Callbacks get it with the alert under ``paceline``.
    callbacks:
        Called for each alert, such as notifiers.
    log:
        Where alerts are told, and callbacks that fail.
    """

    def __init__(self, context: Context, callbacks: Sequence[Callback], log: Any) -> None:
        ti = context["ti"]
        self._context, self._callbacks, self._log = context, callbacks, log
        self._tags = {"dag_id": ti.dag_id, "task_id": ti.task_id}
        if ti.map_index is not None and ti.map_index >= 0:
            self._tags["map_index"] = str(ti.map_index)
        self._store = context["task_state_store"]
        self._alerts = Alerts(self._store.get(ALERTS))
        self._resizes = 0
        self._troubled = False
        self._waiting: SimpleQueue[Alert | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def take(self, sample: PaceSample) -> None:
        """Take in a sample, as published under ``pace``. Nothing that goes wrong in here ends a training."""
        try:
            self._take(sample)
        except Exception:
            if not self._troubled:  # once: samples come every second
                self._log.exception("This training's metrics or alerts do not work")
            self._troubled = True

    def _take(self, sample: PaceSample) -> None:
        self._measure(sample)
        alert = self._alerts.judge(sample)
        if alert is None:
            return
        self._log.warning("Deadline of %.1f s %s", sample.deadline_s, alert.message)
        if self._thread is None:
            self._thread = threading.Thread(target=self._call, name="paceline-alerts", daemon=True)
            self._thread.start()
        self._waiting.put(alert)

    def close(self, timeout_s: float = 30.0) -> None:
        """Wait for callbacks under way."""
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join(timeout_s)

    def _measure(self, sample: PaceSample) -> None:
        from airflow.sdk.observability import stats

        for name in ("progress_pct", "setpoint_pct", "devices", "deadline_s"):
            if getattr(sample, name) is not None:
                stats.gauge(f"paceline.{name}", getattr(sample, name), tags=self._tags)
        stats.gauge("paceline.error_pct", sample.setpoint_pct - sample.progress_pct, tags=self._tags)
        if sample.forecast_s is not None and sample.deadline_s is not None:
            stats.gauge("paceline.slack_s", sample.deadline_s - sample.forecast_s, tags=self._tags)
        if sample.step_ms is not None:
            stats.timing("paceline.control_step", sample.step_ms, tags=self._tags)
        if sample.resizes > self._resizes:
            stats.incr("paceline.resizes", sample.resizes - self._resizes, tags=self._tags)
            self._resizes = sample.resizes

    def _call(self) -> None:
        while (alert := self._waiting.get()) is not None:
            with suppress(Exception):  # a store that does not answer: a retry might tell it again
                self._store.set(ALERTS, self._alerts.to_json())
            context: Any = {**self._context, "paceline": alert.to_dict()}
            for callback in self._callbacks:
                try:
                    # A notifier fills its templates in for good: the next alert needs them again.
                    copy(callback)(context)
                except Exception:  # whatever a notifier raises: the training is more important
                    self._log.exception("on_deadline_alert: %r failed", callback)
