"""Durations count from the start of the run or the task, also where Airflow has an odd idea of that start."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from types import SimpleNamespace

import pytest

from paceline.operators._arguments import origin

NOW = datetime.now(timezone.utc)
MINUTE, YEAR = timedelta(minutes=1), timedelta(days=365)


@pytest.mark.parametrize(
    ("started", "due", "expected"),
    [
        (NOW - MINUTE, NOW - 2 * MINUTE, NOW - MINUTE),  # as runs are: started when they were due, or after
        (NOW - MINUTE, None, NOW - MINUTE),
        (NOW - YEAR, NOW - MINUTE, NOW - MINUTE),  # `airflow dags test DAG 2012-01-01`
    ],
)
def test_a_run_starts_when_it_started_and_not_before_it_was_due(started, due, expected):
    context = {"dag_run": SimpleNamespace(start_date=started, run_after=due)}
    assert origin(context, "run") == expected


def test_a_run_does_not_start_in_the_future_and_a_task_may_be_the_origin():
    context = {"dag_run": SimpleNamespace(start_date=NOW + YEAR, run_after=NOW)}
    assert origin(context, "run") <= datetime.now(timezone.utc)
    assert origin({"ti": SimpleNamespace(start_date=NOW - MINUTE)}, "task") == NOW - MINUTE
