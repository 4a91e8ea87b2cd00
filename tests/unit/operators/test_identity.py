"""Names of jobs and networks are unique on an engine that several Airflow installations share."""

from __future__ import annotations

from datetime import datetime, timezone
from types import SimpleNamespace

import pytest

from paceline.operators import DeadlineTrainingOperator
from paceline.operators._identity import job_labels, unique_name
from paceline.operators._team import network_name
from paceline.run import MemoryState
from paceline.runtime import JobSpec
from paceline.runtime.checks import check_spec

NOON = datetime(2030, 1, 1, 12, tzinfo=timezone.utc)


def context(start=NOON, map_index=-1, state=None):
    ti = SimpleNamespace(dag_id="retrain", run_id="scheduled__2030-01-01", task_id="train", map_index=map_index)
    return {
        "ti": ti,
        "dag_run": SimpleNamespace(start_date=start),
        "task_state_store": MemoryState() if state is None else state,
    }


def test_job_name_is_unique_and_equal_for_all_tries():
    task = DeadlineTrainingOperator(task_id="train", script="train.py", deadline="1m")
    name = task.job_name(context())
    assert name == task.job_name(context())
    others = [task.job_name(context(NOON.replace(microsecond=1))), task.job_name(context(map_index=0))]
    assert len({name, task.job_name(context(), "-challenger"), *others}) == 4


def test_cleared_run_uses_the_names_and_labels_of_its_first_job():
    task, state = DeadlineTrainingOperator(task_id="train", script="train.py", deadline="1m"), MemoryState()
    first, cleared = context(state=state), context(NOON.replace(hour=14), state=state)
    assert task.job_name(first) == task.job_name(cleared) != task.job_name(context(NOON.replace(hour=14)))
    assert job_labels(first) == job_labels(cleared)


@pytest.mark.parametrize("readable", ["训练", "---", "Überwachung/日", "a" * 300])
def test_names_that_airflow_accepts_become_names_of_jobs(readable):
    check_spec(JobSpec(name=unique_name(readable, "a"), command=["python"], devices=1))
    assert unique_name(readable, "a") != unique_name(readable, "b")


def test_network_name_is_stable_and_unique():
    name = network_name(context(), "training")
    assert name == network_name(context(), "training")
    assert (
        len({name, network_name(context(NOON.replace(microsecond=1)), "training"), network_name(context(), "b")}) == 3
    )
