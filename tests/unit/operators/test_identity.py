"""On one engine there may be the jobs of several Airflows, of runs with the same names: none takes another's."""

from __future__ import annotations

from datetime import datetime, timezone
from types import SimpleNamespace

from paceline.operators import DeadlineTrainingOperator
from paceline.operators._team import network_name

NOON = datetime(2030, 1, 1, 12, tzinfo=timezone.utc)


def context(began=NOON, map_index=-1):
    ti = SimpleNamespace(dag_id="retrain", run_id="scheduled__2030-01-01", task_id="train", map_index=map_index)
    return {"ti": ti, "dag_run": SimpleNamespace(start_date=began)}


def test_a_job_has_the_same_name_on_every_try_and_no_other_job_has_it():
    task = DeadlineTrainingOperator(task_id="train", script="train.py", deadline="1m")
    mine = task.job_name(context())
    assert mine == task.job_name(context())
    others = [task.job_name(context(NOON.replace(microsecond=1))), task.job_name(context(map_index=0))]
    assert len({mine, task.job_name(context(), "-challenger"), *others}) == 4


def test_so_has_the_network_of_a_training():
    mine = network_name(context(), "training")
    assert mine == network_name(context(), "training")
    assert (
        len({mine, network_name(context(NOON.replace(microsecond=1)), "training"), network_name(context(), "b")}) == 3
    )
