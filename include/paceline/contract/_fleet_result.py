"""The combined result of a distributed training, which ``FleetResultOperator`` returns."""

from __future__ import annotations

from paceline.contract._measured import Measured
from paceline.contract._record import Record, Rounded, Seconds, Text


class WorkerResult(Record):
    """The measurements of one worker, as in ``Outcome``."""

    finished_s: Seconds
    error_pct: Rounded | None
    mean_devices: Rounded
    device_seconds: Rounded


class FleetResult(WorkerResult, Measured):
    """The measurements of the worker that ended last; ``device_seconds`` and ``mean_devices`` are sums."""

    model: Text
    runtime: Text
    deadline_s: Seconds | None
    met: bool
    """Whether every worker met its deadline."""
    workers: dict[Text, WorkerResult]
