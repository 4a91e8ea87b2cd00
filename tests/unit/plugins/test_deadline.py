"""The route for a new deadline rejects an invalid value before it reads a job."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import HTTPException

from paceline.plugins.web.deadline import DeadlineChange, TargetTask, change_deadline


@pytest.mark.parametrize("written", [1_900_000_000, "1900000000"])
def test_unix_time_is_rejected_with_a_hint(written: float | str) -> None:
    change = DeadlineChange(
        deadline=written, jobs=[TargetTask(task_id="train", map_index=-1, seen="2030-01-01T00:00:00Z")]
    )
    unused: Any = None
    with pytest.raises(HTTPException, match="a Unix time\\? write an ISO 8601 time") as caught:
        change_deadline("dag", "run", change, unused, unused)
    assert caught.value.status_code == 422
