"""Turns: a job that is late, or has no deadline, gets a promised end once it has waited long. One job at a time."""

from __future__ import annotations

from collections.abc import Iterable

from paceline.allocate.on_time.job_case import JobCase

_PATIENCE = 5.0  # time since the arrival after which a job may get its turn, relative to the shortest time of its work
# Later end than the earliest one, relative to the time from the arrival until then: so fewer devices may suffice, and
# other jobs may start meanwhile.
MARGIN = 0.5
SHARE = 0.125  # of the pool that the turns take in the long run: a backlog of late jobs must not make other jobs late


def longest_waiting(cases: Iterable[JobCase], now_s: float) -> JobCase | None:
    """Return the job that is to have the next turn; ``None`` if no job has waited long for its work.

    Each job comes to its turn: its ratio grows, and that of a job that arrives later is smaller until it has waited
    as long for its work.
    """
    patient = (case for case in cases if case.waited(now_s) > _PATIENCE)
    return max(patient, key=lambda case: case.waited(now_s), default=None)
