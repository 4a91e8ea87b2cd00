"""Defaults of Airflow's own arguments, such as ``retries``: of a plain task and of a mapped one."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk import DAG

from paceline.fleet import Fleet, Machine
from paceline.operators import ArbiterOperator, DeadlineTrainingOperator, WorkerTrainingOperator

_GATE = Machine(name="gate-1", kind="nano", cores=4, memory_gib=4)
_FLEET = {
    "fleet": Fleet(machines=[_GATE], parameter_server=_GATE),
    "plan": {"workers": {"gate-1": {"samples": 600, "batch_size": 32}}},
}
_FIVE_S = timedelta(seconds=5)
CASES: list[tuple[type, dict[str, Any], dict[str, list[Any]], tuple[int, timedelta, float]]] = [
    (DeadlineTrainingOperator, {"script": "t.py", "deadline": "1h"}, {"arguments": [["a"], ["b"]]}, (4, _FIVE_S, 2)),
    (
        WorkerTrainingOperator,
        {"script": "t.py", "deadline": "1h", "server_task_id": "server", "worker": "gate-1", **_FLEET},
        {"arguments": [["a"], ["b"]]},
        (3, _FIVE_S, 2),
    ),
    (ArbiterOperator, {"devices": 2, "conn_id": "airflow"}, {"pool": ["north", "south"]}, (3, _FIVE_S, 0)),
]
retrying = pytest.mark.parametrize(("operator", "arguments", "mapped", "expected"), CASES)


def retries_of(task: Any) -> tuple[int, timedelta, float]:
    """Return what Airflow's scheduler reads from a task."""
    return task.retries, task.retry_delay, task.retry_exponential_backoff


@retrying
def test_plain_and_mapped_tasks_have_the_same_retries(
    operator: Any, arguments: Any, mapped: Any, expected: Any
) -> None:
    with DAG("retrain", schedule=None):
        plain = operator(task_id="plain", **arguments, **{name: values[0] for name, values in mapped.items()})
        expanded = operator.partial(task_id="mapped", **arguments).expand(**mapped)
    assert retries_of(plain) == retries_of(expanded) == expected


@retrying
def test_retries_of_the_dag_or_of_the_task_replace_the_defaults_of_plain_and_mapped_tasks(
    operator: Any, arguments: Any, mapped: Any, expected: Any
) -> None:
    del expected
    own = {"retries": 7, "retry_delay": timedelta(minutes=1), "retry_exponential_backoff": 3}
    plain_arguments = {**arguments, **{name: values[0] for name, values in mapped.items()}}
    with DAG("retrain", schedule=None, default_args=own):
        assert retries_of(operator(task_id="plain", **plain_arguments)) == tuple(own.values())
        expanded = operator.partial(task_id="mapped", **arguments).expand(**mapped)
        assert retries_of(expanded) == tuple(own.values())
        assert operator(task_id="fewer", **plain_arguments, retries=1).retries == 1
        assert operator.partial(task_id="none", **arguments, retries=0).expand(**mapped).retries == 0
