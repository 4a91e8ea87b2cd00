"""Keeps the run of a job as a small table: sampled every control step, thinned as it grows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.contract import RunEvent, StoredHistory
from paceline.contract.history import COLUMNS

MOST_SAMPLES = 500
MOST_EVENTS = 100
MOST_METRICS = 4  # a row of the state store is to stay small


class History:
    """Samples and events of a run, at most 500 samples whatever its length.

    When the table is full every second sample goes and from then on only every second one comes in: the whole run stays
    covered evenly. Events (deadline changes, restarts) are kept. The first four metrics that a job reports have columns
    of their own, ``metric.NAME``.

    Parameters
    ----------
    stored:
        The history of the tries before, as ``to_json`` returned it; one that cannot be read is left out.

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
        known = StoredHistory.read(stored) or StoredHistory()
        self._columns, self._rows, self._events = list(known.columns), list(known.samples), list(known.events)
        self._stride, self._count = known.stride, known.count
        self._newest: list[float | None] | None = None

    def add(self, metrics: Mapping[str, float] | None = None, **sample: float | None) -> None:
        """Take in one sample, by column name; columns left out are empty."""
        values = {**sample, **{f"metric.{name}": value for name, value in (metrics or {}).items()}}
        self._make_room(values)
        row = [_short(values.get(column)) for column in self._columns]
        self._newest = row
        if self._count % self._stride == 0:
            self._rows.append(row)
        self._count += 1
        if len(self._rows) >= MOST_SAMPLES:
            self._rows = self._rows[::2]
            self._stride *= 2

    def _make_room(self, values: Mapping[str, float | None]) -> None:
        """Give metrics that are new a column, and those who came before them an empty place in it."""
        new = [name for name in values if name.startswith("metric.") and name not in self._columns]
        for name in new[: max(len(COLUMNS) + MOST_METRICS - len(self._columns), 0)]:
            self._columns.append(name)
            for row in self._rows:
                row.append(None)

    def note(self, event: RunEvent) -> None:
        """Keep an event. The oldest go first when there are very many."""
        self._events.append(event)
        del self._events[:-MOST_EVENTS]

    def to_json(self) -> dict[str, Any]:
        """The value of the live state's key ``history``."""
        rows = self._rows
        if self._newest is not None and (not rows or rows[-1] is not self._newest):
            rows = [*rows, self._newest]
        stored = StoredHistory(
            columns=self._columns, samples=rows, events=self._events, stride=self._stride, count=self._count
        )
        return stored.to_json()


def _short(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
