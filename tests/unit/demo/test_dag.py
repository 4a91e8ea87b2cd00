"""The example DAG: light to parse, its form checks what is typed, and its tasks are in the right order."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import ParamValidationError

DAGS = Path(__file__).parents[3] / "dags"

_PARSE = """
import json, runpy, sys
# What every DAG file and the DAG processor bring in anyway.
import airflow.sdk, airflow.sdk.definitions.decorators
from airflow.sdk import DAG, Asset, BaseHook, BaseSensorOperator, ObjectStoragePath, Param, ResumableJobMixin, task
from airflow.triggers.base import BaseEventTrigger
before = set(sys.modules)
for path in sys.argv[1:]:
    runpy.run_path(path)
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def _read(name: str) -> DAG:
    import runpy

    found: DAG = runpy.run_path(str(DAGS / f"{name}.py"))["dag"]
    return found


@pytest.fixture(scope="module")
def dag() -> DAG:
    return _read("retrain_on_drift")


@pytest.fixture(scope="module")
def edge() -> DAG:
    return _read("retrain_on_edge")


def test_parsing_imports_nothing_heavy() -> None:
    paths = [DAGS / f"{name}.py" for name in ("retrain_on_drift", "retrain_on_edge", "watch_for_drift")]
    done = subprocess.run([sys.executable, "-c", _PARSE, *paths], capture_output=True, text=True, check=True)
    modules = json.loads(done.stdout.splitlines()[-1])
    heavy = {"torch", "pandas", "numpy", "sklearn", "scipy", "river", "matplotlib", "docker", "pyarrow"}
    assert heavy & {name.split(".")[0] for name in modules} == set()


def test_the_way_is_drift_prepare_train_evaluate_promote(dag: DAG) -> None:
    order = ["drift", "prepare", "train", "evaluate", "promote"]
    assert set(dag.task_ids) == set(order)
    for before, after in itertools.pairwise(order):
        assert after in dag.get_task(before).downstream_task_ids


def test_the_way_at_the_edge_has_the_machines_in_it(edge: DAG) -> None:
    order = ["drift", "prepare", "profile", "schedule", "train.parameter_server", "train.result", "evaluate", "promote"]
    for before, after in itertools.pairwise(order):
        assert after in edge.get_task(before).downstream_task_ids
    workers = {"train.ewr", "train.jfk", "train.lga"}
    assert set(edge.task_ids) == {*order, *workers}
    assert all(edge.get_task("train.result").task_id in edge.get_task(name).downstream_task_ids for name in workers)


@pytest.mark.parametrize("name", ["retrain_on_drift", "retrain_on_edge"])
def test_every_param_has_a_title_for_the_form_and_the_defaults_are_valid(name: str) -> None:
    dag = _read(name)
    for param in dag.params:
        assert dag.params.get_param(param).schema.get("title"), param
    dag.params.validate()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("deadline", None),
        ("deadline", ["60s"]),
        ("alpha", 0),
        ("alpha", 1.2),
        ("min_devices", 0),
        ("max_devices", -1),
        ("max_devices", "two"),
        ("on_infeasible", "panic"),
        ("runtime", "kubernetes"),
        ("current_window", "2013-07' OR 1=1 --"),
        ("reference_window", "July"),
        ("hold_out_days", 0),
        ("epochs", 0.5),
        ("min_improvement", -0.1),
    ],
)
def test_the_form_refuses_what_cannot_be_used(dag: DAG, name: str, value: Any) -> None:
    with pytest.raises(ParamValidationError):
        dag.params.get_param(name).resolve(value)


@pytest.mark.parametrize(
    ("name", "value"),
    [("deadline", "20m"), ("deadline", 90), ("deadline", "2030-01-31T18:00:00Z"), ("alpha", 1), ("max_devices", 1.5)],
)
def test_the_form_takes_what_the_operator_takes(dag: DAG, name: str, value: Any) -> None:
    assert dag.params.get_param(name).resolve(value) == value


def test_its_storage_can_be_moved_to_an_object_store() -> None:
    read = (
        "import runpy, sys; d = runpy.run_path(sys.argv[1])['dag']; "
        "print(d.get_task('train').output and d.get_task('promote').registry)"
    )
    done = subprocess.run(
        [sys.executable, "-c", read, DAGS / "retrain_on_drift.py"],
        env={**os.environ, "PACELINE_STORAGE": "s3://aws_default@bucket/paceline"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "s3://aws_default@bucket/paceline/registry"
