"""Sends a training job's samples to Airflow's metrics, and its alerts to the DAG author's callbacks."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from queue import Queue
from typing import TYPE_CHECKING, Any, Protocol

from paceline.airflow.callbacks import Callback, run_callbacks
from paceline.contract import ALERTS, PaceSample
from paceline.run.alerts import Alerts

if TYPE_CHECKING:
    from airflow.sdk import Context

    from paceline.run import LiveState


class Task(Protocol):
    """A task instance, also that of a trigger."""

    dag_id: str
    task_id: str
    map_index: int | None


class SampleMetrics:
    """Sends the samples of one task to Airflow's metrics."""

    def __init__(self, task: Task) -> None:
        self._tags = {"dag_id": task.dag_id, "task_id": task.task_id}
        if task.map_index is not None and task.map_index >= 0:
            self._tags["map_index"] = str(task.map_index)
        self._resizes: int | None = None  # until the first sample of this process

    def send(self, sample: PaceSample) -> None:
        """Send a sample."""
        from airflow.sdk.observability import stats

        for name in ("progress_pct", "setpoint_pct", "devices", "deadline_s"):
            if getattr(sample, name) is not None:
                stats.gauge(f"paceline.{name}", getattr(sample, name), tags=self._tags)
        stats.gauge("paceline.error_pct", sample.setpoint_pct - sample.progress_pct, tags=self._tags)
        if sample.forecast_s is not None and sample.deadline_s is not None:
            stats.gauge("paceline.slack_s", sample.deadline_s - sample.forecast_s, tags=self._tags)
        if sample.step_ms is not None:
            stats.timing("paceline.control_step", sample.step_ms, tags=self._tags)
        if self._resizes is not None and sample.resizes > self._resizes:
            stats.incr("paceline.resizes", sample.resizes - self._resizes, tags=self._tags)
        self._resizes = sample.resizes


class SampleReporter:
    """Sends each sample to Airflow's metrics, and runs the callbacks for alerts in a separate thread.

    Parameters
    ----------
    context:
        Airflow's context of the task. Callbacks receive this context and, under the key ``paceline``, the alert.
    callbacks:
        Functions to call for each alert, for example notifiers.
    log:
        Log for alerts and for failures of callbacks.
    store:
        The task's state store.
    alerts:
        The alerts that another process of this try has sent. Default: those in the live state.
    turn:
        Entered for each callback, which may ask Airflow.
    """

    def __init__(
        self,
        context: Context,
        callbacks: Sequence[Callback],
        log: Any,
        store: LiveState,
        alerts: object = None,
        turn: AbstractContextManager[object] | None = None,
    ) -> None:
        self._context, self._callbacks, self._log = context, callbacks, log
        self._metrics = SampleMetrics(context["ti"])
        self._store, self._turn = store, turn or nullcontext()
        self._alerts = Alerts(self._store.get(ALERTS) if alerts is None else alerts)
        self._failed = False
        self._queue: Queue[dict[str, Any] | None] = Queue()
        self._thread: threading.Thread | None = None

    def report(self, sample: PaceSample) -> None:
        """Report a sample. An error in this method never ends the training job."""
        try:
            self._send(sample)
        except Exception:
            if not self._failed:  # log the error once, not for every sample
                self._log.exception("Could not report metrics or alerts of this training job")
            self._failed = True

    def _send(self, sample: PaceSample) -> None:
        self._metrics.send(sample)
        alert = self._alerts.evaluate(sample)
        if alert is None:
            return
        self._log.warning("Deadline of %.1f s %s", sample.deadline_s, alert.message)
        self.report_alert(alert.to_dict())

    def report_alert(self, alert: dict[str, Any]) -> None:
        """Run the callbacks for an alert."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run_callbacks, name="paceline-alerts", daemon=True)
            self._thread.start()
        self._queue.put(alert)

    @property
    def is_busy(self) -> bool:
        """Whether a callback is running or waits for others."""
        return self._queue.unfinished_tasks > 0

    def close(self, timeout_s: float = 30.0) -> None:
        """Wait for running callbacks, for at most ``timeout_s`` seconds."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(timeout_s)

    def _run_callbacks(self) -> None:
        while (alert := self._queue.get()) is not None:
            with suppress(Exception):  # if the store does not respond, a retry of the task may repeat the alert
                self._store.set(ALERTS, self._alerts.to_json())
            with self._turn:
                run_callbacks("on_deadline_alert", self._callbacks, self._context, alert, self._log)
            self._queue.task_done()
