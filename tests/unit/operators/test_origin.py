"""Deadlines count from the start of the run or the task, even if Airflow's date for the run is implausible."""

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
        (NOW - MINUTE, NOW - 2 * MINUTE, NOW - MINUTE),  # the usual case: started when due, or later
        (NOW - MINUTE, None, NOW - MINUTE),
        (NOW - YEAR, NOW - MINUTE, NOW - MINUTE),  # `airflow dags test DAG 2012-01-01`
    ],
)
def test_origin_of_a_run_is_not_before_the_run_was_due(started, due, expected):
    context = {"dag_run": SimpleNamespace(start_date=started, run_after=due)}
    assert origin(context, "run") == expected


def test_origin_is_not_in_the_future_and_can_be_the_start_of_the_task():
    context = {"dag_run": SimpleNamespace(start_date=NOW + YEAR, run_after=NOW)}
    assert origin(context, "run") <= datetime.now(timezone.utc)
    assert origin({"ti": SimpleNamespace(start_date=NOW - MINUTE)}, "task") == NOW - MINUTE
