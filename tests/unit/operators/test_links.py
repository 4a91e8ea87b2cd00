"""Links of operators, which are buttons on a task's page in Airflow."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from paceline.airflow.provider import get_provider_info
from paceline.operators import DeadlineTrainingOperator, EvaluateOperator, PromoteOperator
from paceline.operators.links import ContainerLogsLink, ModelLink

KEY: Any = SimpleNamespace()


def test_container_logs_link_uses_the_configured_url(monkeypatch: pytest.MonkeyPatch) -> None:
    task = DeadlineTrainingOperator(task_id="train", command="python train.py", deadline="20m")
    (link,) = task.operator_extra_links
    task.container_id = "abc/12 3"
    assert link.get_link(task, ti_key=KEY) == "", "no log system"
    monkeypatch.setenv("AIRFLOW__PACELINE__CONTAINER_LOGS_URL", "https://logs.example.com/?c={container}&from=1h")
    assert link.get_link(task, ti_key=KEY) == "https://logs.example.com/?c=abc%2F12%203&from=1h"
    task.container_id = None
    assert link.get_link(task, ti_key=KEY) == "", "no container yet"


def test_model_link_opens_the_models_page(monkeypatch: pytest.MonkeyPatch) -> None:
    scored = {"challenger": "/m", "data": {"h": "/h"}, "script": "e.py", "metric": "auc"}
    evaluate = EvaluateOperator(task_id="evaluate", model="flights-late", registry="/r", **scored)
    assert ModelLink().get_link(evaluate, ti_key=KEY) == "/plugin/retraining/models/flights-late"
    promote = PromoteOperator(task_id="promote", evaluation={}, registry="/r")
    assert ModelLink().get_link(promote, ti_key=KEY) == ""
    promote.promoted_model = "flights-late"
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://example.com/airflow/")
    assert ModelLink().get_link(promote, ti_key=KEY) == "/airflow/plugin/retraining/models/flights-late"


def test_links_are_registered_with_airflow() -> None:
    assert {f"{kind.__module__}.{kind.__name__}" for kind in (ContainerLogsLink, ModelLink)} < {
        *get_provider_info()["extra-links"]
    }
