"""Turns: a job that is late, or has no deadline, gets a promised end once it has waited long. One job at a time."""

from __future__ import annotations

from collections.abc import Iterable

from paceline.allocate.on_time._job import JobCase

_PATIENCE = 3.0  # time since the arrival after which a job may get its turn, relative to the shortest time of its work
MARGIN = 0.05  # later end than the earliest one, as a fraction of the time until then: other jobs may start meanwhile


def longest_waiting(cases: Iterable[JobCase], now_s: float) -> JobCase | None:
    """Return the job that is to have the next turn; ``None`` if no job has waited long for its work.

    Each job comes to its turn: its ratio grows, and that of a job that arrives later is smaller until it has waited
    as long for its work.
    """
    patient = (case for case in cases if case.waited(now_s) > _PATIENCE)
    return max(patient, key=lambda case: case.waited(now_s), default=None)
