"""Ten thousand random schedules of arbiters that are killed, doubled or cut off at any step."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from tests.unit.arbiter.schedules import check_schedule, schedules

pytestmark = pytest.mark.timeout(3600)


@settings(max_examples=10_000)
@given(schedules)
def test_ceilings_never_exceed_pool_and_all_jobs_end(schedule: list[tuple[str, int]]) -> None:
    check_schedule(schedule)
