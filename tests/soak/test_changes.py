"""Repeat the tests of tasks that are marked, deleted, cleared or changed at a bad moment."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from demo.airflow_process import AirflowProcess
from tests.integration import test_training_changes as changes
from tests.integration.test_training_changes import (
    start,
    test_changed_environment_keeps_the_checkpoint,
    test_cleared_task_trains_with_the_fixed_script,
    test_deleted_run_leaves_no_container,
    test_job_is_found_without_the_live_state,
    test_job_that_ends_at_once_runs_once,
    test_marked_task_leaves_a_short_lease_if_airflow_does_not_answer,
    test_wrong_clock_of_the_worker_does_not_count_as_elapsed_time,
)
from tests.integration.training import gates

__all__ = [
    "start",
    "test_changed_environment_keeps_the_checkpoint",
    "test_cleared_task_trains_with_the_fixed_script",
    "test_deleted_run_leaves_no_container",
    "test_job_is_found_without_the_live_state",
    "test_job_that_ends_at_once_runs_once",
    "test_marked_task_leaves_a_short_lease_if_airflow_does_not_answer",
    "test_wrong_clock_of_the_worker_does_not_count_as_elapsed_time",
]
pytestmark = changes.pytestmark


@pytest.fixture(scope="session")  # Airflow needs long to parse a file that was removed and added again
def dags(airflow: AirflowProcess) -> Iterator[None]:
    with gates.temporary_dag(airflow, "changes", changes.DAGS):
        yield
