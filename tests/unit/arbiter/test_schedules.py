"""Arbiters that are killed, doubled or cut off at any step give no device out twice, and no job waits for ever."""

from __future__ import annotations

from hypothesis import given, settings
from tests.unit.arbiter.schedules import check_schedule, schedules


@settings(max_examples=150)
@given(schedules)
def test_ceilings_never_exceed_pool_and_all_jobs_end(schedule: list[tuple[str, int]]) -> None:
    check_schedule(schedule)
