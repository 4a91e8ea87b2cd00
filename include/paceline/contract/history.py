"""The history of a run: the value of the live state's key ``history``, written by the control loop for the pages."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, Field, model_validator
from typing_extensions import Self

from paceline.contract._record import Record, Rounded, Seconds, Text

COLUMNS = ("t_s", "progress_pct", "setpoint_pct", "devices", "deadline_s", "forecast_s", "loss")


class RunEvent(Record):
    """An event of a run, of the kind ``deadline``, ``restarted``, ``ceiling``, ``infeasible``, ...

    Fields without a value are not stored.
    """

    model_config = ConfigDict(json_schema_serialization_defaults_required=False)

    t_s: Seconds
    kind: str
    before_s: Rounded | None = None
    after_s: Rounded | None = None
    deadline_s: Rounded | None = None
    earliest_s: Rounded | None = None
    """The earliest possible end, if the deadline cannot be met."""
    by: Text | None = None
    """The user who changed a deadline, if known."""
    devices: float | None = None
    why: Text | None = None
    """The reason for a ceiling, or for the nodes of an elastic job."""
    reason: Text | None = None
    """The constant of the reason for a ceiling, to count by."""
    nodes: dict[str, float] | None = None
    """The cores of each node of an elastic job."""
    value: Text | None = None
    """The rejected value."""


class StoredHistory(Record):
    """Samples as rows of numbers, and events. ``stride`` is the number of control steps per sample.

    Examples
    --------
    >>> StoredHistory(samples=[[0, 0, 0, 1, 60, None, None]]).columns[:2]
    ['t_s', 'progress_pct']
    >>> StoredHistory.read({"columns": ["t_s"], "samples": [[1, 2]]}) is None
    True
    """

    version: int = 1
    columns: list[str] = Field(default_factory=lambda: list(COLUMNS))
    samples: list[list[float | None]] = Field(default_factory=list)
    events: list[RunEvent] = Field(default_factory=list)
    stride: int = Field(default=1, ge=1)
    count: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _check_columns(self) -> Self:
        if tuple(self.columns[: len(COLUMNS)]) != COLUMNS:
            raise ValueError(f"columns: expected {', '.join(COLUMNS)} first")
        if any(len(row) != len(self.columns) for row in self.samples):
            raise ValueError(f"samples: expected rows of {len(self.columns)} numbers, one for each column")
        return self

    def to_json(self) -> dict[str, Any]:
        """Return the stored form, which ``read`` accepts, without the empty fields of events."""
        return self.model_dump(mode="json", exclude_none=True)
