"""The example DAGs are parsed without slow imports, have their tasks in order, and validate the trigger form."""

from __future__ import annotations

import itertools
import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import ParamValidationError

DAGS = Path(__file__).parents[3] / "dags"

_PARSE = """
import json, runpy, sys
# Imported by every DAG file and the DAG processor.
import airflow.sdk, airflow.sdk.definitions.decorators
from airflow.sdk import DAG, Asset, BaseHook, BaseSensorOperator, ObjectStoragePath, Param, ResumableJobMixin, task
from airflow.triggers.base import BaseEventTrigger
before = set(sys.modules)
for path in sys.argv[1:]:
    runpy.run_path(path)
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def _load_dag(name: str) -> DAG:
    dag: DAG = runpy.run_path(str(DAGS / f"{name}.py"))["dag"]
    return dag


def test_dag_parsing_does_not_import_slow_packages() -> None:
    paths = [DAGS / f"{name}.py" for name in ("retrain_on_drift", "retrain_on_edge", "watch_for_drift")]
    done = subprocess.run([sys.executable, "-c", _PARSE, *paths], capture_output=True, text=True, check=True)
    modules = json.loads(done.stdout.splitlines()[-1])
    heavy = {"torch", "pandas", "numpy", "sklearn", "scipy", "river", "matplotlib", "docker", "pyarrow"}
    assert heavy & {name.split(".")[0] for name in modules} == set()


def test_tasks_run_in_the_expected_order() -> None:
    dag, edge = _load_dag("retrain_on_drift"), _load_dag("retrain_on_edge")
    order = ["drift", "prepare", "train", "evaluate", "promote"]
    assert set(dag.task_ids) == set(order)
    on_edge = ["drift", "prepare", "profile", "schedule", "train.parameter_server", "train.result", *order[-2:]]
    workers = {"train.ewr", "train.jfk", "train.lga"}
    assert set(edge.task_ids) == {*on_edge, *workers}
    for checked, tasks in ((dag, order), (edge, on_edge)):
        for before, after in itertools.pairwise(tasks):
            assert after in checked.get_task(before).downstream_task_ids
    assert all("train.result" in edge.get_task(name).downstream_task_ids for name in workers)


@pytest.mark.parametrize("name", ["retrain_on_drift", "retrain_on_edge"])
def test_params_have_titles_and_valid_defaults(name: str) -> None:
    dag = _load_dag(name)
    for param in dag.params:
        assert dag.params.get_param(param).schema.get("title"), param
    dag.params.validate()


REJECTED = {
    "deadline": (None, ["60s"]),
    "alpha": (0, 1.2),
    "min_devices": (0,),
    "max_devices": (-1, "two"),
    "on_infeasible": ("panic",),
    "runtime": ("kubernetes",),
    "current_window": ("2013-07' OR 1=1 --",),
    "reference_window": ("July",),
    "hold_out_days": (0,),
    "epochs": (0.5,),
    "min_improvement": (-0.1,),
}
ACCEPTED = {"deadline": ("20m", 90, "2030-01-31T18:00:00Z"), "alpha": (1,), "max_devices": (1.5,)}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in REJECTED.items() for value in values])
def test_trigger_form_rejects_values_that_the_operator_rejects(name: str, value: object) -> None:
    with pytest.raises(ParamValidationError):
        _load_dag("retrain_on_drift").params.get_param(name).resolve(value)


def test_trigger_form_accepts_values_that_the_operator_accepts() -> None:
    params = _load_dag("retrain_on_drift").params
    for name, values in ACCEPTED.items():
        assert [params.get_param(name).resolve(value) for value in values] == list(values)


def test_storage_can_be_an_object_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_STORAGE", "s3://aws_default@bucket/paceline")
    assert _load_dag("retrain_on_drift").get_task("promote").registry == "s3://aws_default@bucket/paceline/registry"


@pytest.mark.parametrize(("value", "expected"), [("true", True), ("", False)])
def test_training_is_deferred_where_the_triggerer_uses_the_engine_of_the_workers(
    monkeypatch: pytest.MonkeyPatch, value: str, expected: bool
) -> None:
    monkeypatch.setenv("PACELINE_DEFERRABLE", value)
    assert _load_dag("retrain_on_drift").get_task("train").deferrable is expected
