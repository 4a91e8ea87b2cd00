"""The event with which ``DriftTrigger`` resumes a deferred ``DriftSensor``."""

from __future__ import annotations

from typing import Annotated

from pydantic import PlainSerializer

from paceline.contract._drift_report import DriftReport
from paceline.contract._drift_summary import DriftSummary
from paceline.contract._record import Record, Text
from paceline.contract._short_report import fit_to_xcom


class DriftEvent(Record):
    """The check after which the trigger has ended. The stored form of the report fits into an XCom."""

    summary: DriftSummary
    report: Annotated[DriftReport, PlainSerializer(fit_to_xcom)]
    timeout_at: Text
    """Time at which the sensor times out (ISO 8601)."""
    cleared: bool
    """Whether the trigger has seen a check without an alarm."""
