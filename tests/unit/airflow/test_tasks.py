"""Errors of the constructors of Paceline's tasks name the task."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from airflow.sdk import BaseOperator

from paceline import operators
from paceline.airflow.tasks import CheckedTask
from paceline.errors import InvalidInputError
from paceline.operators import DeadlineTrainingOperator, PromoteOperator
from paceline.sensors import DriftSensor

TASKS = [one for one in vars(operators).values() if isinstance(one, type) and issubclass(one, BaseOperator)]


@pytest.mark.parametrize("kind", [*TASKS, DriftSensor])
def test_each_task_of_paceline_names_itself_in_its_errors(kind: type) -> None:
    assert issubclass(kind, CheckedTask)


@pytest.mark.parametrize(
    ("kind", "arguments", "message"),
    [
        (DeadlineTrainingOperator, {"script": "train.py", "deadline": "1h", "alpha": 2}, "alpha: got 2"),
        (DeadlineTrainingOperator, {"script": "train.py", "deadline": "1h", "environment": 2}, "environment: got 2"),
        (PromoteOperator, {"evaluation": {}, "registry": "/m", "confidence": 2}, "confidence: got 2"),
        (DriftSensor, {"reference": "a.csv", "current": "b.csv", "features": "age"}, "features: got 'age'"),
    ],
)
def test_error_of_an_argument_names_the_task_once(kind: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError) as raised:
        kind(task_id="second", **arguments)
    assert str(raised.value).startswith(message)
    assert str(raised.value).count("(task 'second')") == 1


def test_error_from_another_process_still_names_the_task() -> None:
    with pytest.raises(InvalidInputError) as raised:
        DeadlineTrainingOperator(task_id="train", script="train.py", deadline="soon")
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)
