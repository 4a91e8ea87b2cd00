"""The history of a run as a small table: one sample per control step, thinned as it grows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic_core import from_json, to_json

from paceline.contract import RunEvent, StoredHistory
from paceline.contract.history import COLUMNS

MAX_SAMPLES = 500
MAX_EVENTS = 100
MAX_METRICS = 4  # limits the size of the stored history


class History:
    """Samples and events of a run: at most 500 samples, evenly spread over the run.

    A full table drops every second sample and doubles its sampling interval. The history keeps the newest 100 events
    (deadline changes, restarts, ...). The first four metrics of a job have their own columns, ``metric.NAME``.

    Parameters
    ----------
    stored:
        The history of earlier tries, as returned by ``to_json``. An invalid value is ignored.

    Examples
    --------
    >>> history = History()
    >>> for second in range(10_000):
    ...     history.add(t_s=second, progress_pct=second / 100, devices=1.0)
    >>> rows = history.to_json()["samples"]
    >>> len(rows) <= 500, rows[0][0], rows[-1][0]
    (True, 0.0, 9999.0)
    """

    def __init__(self, stored: object = None) -> None:
        earlier = StoredHistory.read(stored) or StoredHistory()
        self._columns, self._stride, self._count = list(earlier.columns), earlier.stride, earlier.count
        # The JSON text of each row and event, made once: a thousand jobs write their history every few seconds.
        self._rows, self._events = list(map(_text, earlier.samples)), list(map(_event_text, earlier.events))
        self._newest: str | None = None

    def add(self, metrics: Mapping[str, float] | None = None, **sample: float | None) -> None:
        """Add a sample with one value per column; missing values are ``None``."""
        values = {**sample, **{f"metric.{name}": value for name, value in (metrics or {}).items()}}
        self._add_columns(values)
        row = _text([_rounded(column, values.get(column)) for column in self._columns])
        self._newest = row
        if self._count % self._stride == 0:
            self._rows.append(row)
        self._count += 1
        if len(self._rows) >= MAX_SAMPLES:
            self._rows = self._rows[::2]
            self._stride *= 2

    def _add_columns(self, values: Mapping[str, float | None]) -> None:
        """Add a column for each new metric; its values in earlier samples are ``None``."""
        new = [name for name in values if name.startswith("metric.") and name not in self._columns]
        for name in new[: max(len(COLUMNS) + MAX_METRICS - len(self._columns), 0)]:
            self._columns.append(name)
            self._rows = [f"{row[:-1]},null]" for row in self._rows]

    def add_event(self, event: RunEvent) -> None:
        """Add an event; keep only the newest 100 events."""
        self._events.append(_event_text(event))
        del self._events[:-MAX_EVENTS]

    def to_json(self) -> dict[str, Any]:
        """Return the value for the live state's key ``history``."""
        value: dict[str, Any] = from_json(self.to_text())
        return value

    def to_text(self) -> str:
        """Return the JSON text of that value."""
        rows = self._rows
        if self._newest is not None and (not rows or rows[-1] is not self._newest):
            rows = [*rows, self._newest]
        version = StoredHistory.model_fields["version"].default
        return (
            f'{{"version":{version},"columns":{_text(self._columns)},"samples":[{",".join(rows)}],'
            f'"events":[{",".join(self._events)}],"stride":{self._stride},"count":{self._count}}}'
        )

    def __len__(self) -> int:
        return len(self._rows)


def _text(values: list[Any]) -> str:
    return to_json(values, inf_nan_mode="null").decode()


def _event_text(event: RunEvent) -> str:
    return event.model_dump_json(exclude_none=True)


def _rounded(column: str, value: float | None) -> float | None:
    if value is None:
        return None
    # A loss or metric may be of any magnitude.
    return float(f"{value:.6g}") if column == "loss" or column.startswith("metric.") else round(float(value), 3)
