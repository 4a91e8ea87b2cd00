"""A pace sample for tests."""

from __future__ import annotations

from typing import Any

from paceline.contract import PaceSample

_HALF_WAY: dict[str, Any] = {
    "state": "training", "t_s": 50.0, "updated_at": "2030-01-01T12:00:50+00:00", "progress_pct": 50.0,
    "setpoint_pct": 50.0, "devices": 1.0, "min_devices": 0.1, "max_devices": 2.0, "quantum": 0.05, "deadline_s": 100.0,
    "forecast_s": 100.0, "earliest_s": 75.0,
}  # fmt: skip


def a_sample(**changed: Any) -> PaceSample:
    """Return a pace sample of a job that is half done and on time, with the fields in ``changed``."""
    return PaceSample.model_validate({**_HALF_WAY, **changed})
