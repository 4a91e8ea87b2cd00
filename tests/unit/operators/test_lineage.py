"""The datasets and facets that Airflow's OpenLineage provider gets from the operators and the drift sensor."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args
from unittest.mock import Mock

import attrs
import jsonschema
import numpy as np
import pandas as pd
import pytest
from airflow.providers.common.sql.hooks.sql import DbApiHook
from airflow.providers.openlineage.extractors import OperatorLineage
from airflow.providers.openlineage.extractors.manager import ExtractorManager
from airflow.providers.openlineage.sqlparser import DatabaseInfo
from airflow.sdk import Asset, BaseHook, Connection
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException
from airflow.utils.state import TaskInstanceState
from openlineage.client.facet_v2 import RunFacet
from openlineage.client.serde import Serde

from paceline.airflow import lineage
from paceline.contract import DriftVerdict, TrainingResult, WindowSource
from paceline.drift import DriftReport, FeatureDrift
from paceline.errors import InvalidInputError, TrainingFailedError
from paceline.operators import DeadlineTrainingOperator, EvaluateOperator, PromoteOperator
from paceline.operators import evaluate as evaluate_module
from paceline.operators import promote as promote_module
from paceline.operators.improvement import ResampleCollector
from paceline.registry import FileRegistry
from paceline.sensors import DriftSensor

SCHEMA = Path(__file__).parents[3] / "docs" / "facets" / "PacelineDriftRunFacet.json"
TI = SimpleNamespace(dag_id="retrain", run_id="monday", task_id="task", map_index=-1, xcom_push=Mock())
TRAINED = TrainingResult(
    model="s3://aws_default@models/runs/1", runtime="process", origin="2030-01-01T12:00:00+00:00", finished_s=59.0,
    deadline_s=60.0, error_pct=-1.7, met=True, mean_devices=1.0, resizes=3, restarts=0, device_seconds=59.0,
    step_ms_mean=1.0, step_ms_max=2.0, store_ms_mean=9.0,
)  # fmt: skip


def _names(datasets: list[Any]) -> list[tuple[str, str]]:
    return [(one.namespace, one.name) for one in datasets]


def _version(dataset: Any) -> str:
    assert dataset.facets["datasetType"].datasetType == "MODEL"
    return str(dataset.facets["version"].datasetVersion)


def _lineage_of(task: Any, state: TaskInstanceState = TaskInstanceState.SUCCESS) -> OperatorLineage[Any, Any]:
    """Return what the provider gets from a task that has ended in ``state``."""
    return ExtractorManager().extract_metadata(SimpleNamespace(run_id="monday"), task, state, TI)


@pytest.fixture
def windows(tmp_path: Path) -> Path:
    """Return a folder with windows of two features. Of these, ``usage`` differs in ``shifted``."""
    rng = np.random.default_rng(0)
    for name, shift in (("calm", 0.0), ("same", 0.0), ("shifted", 1.0)):
        frame = pd.DataFrame({"usage": rng.normal(shift, 1, 500), "age": rng.normal(40, 10, 500)})
        frame.to_parquet(tmp_path / f"{name}.parquet")
    return tmp_path


def _check(**arguments: Any) -> DriftSensor:
    """Run a sensor, which skips its task without drift. Return the sensor."""
    sensor = DriftSensor(task_id="drift", on_no_drift="skip", **arguments)
    dag_run = SimpleNamespace(run_after=pd.Timestamp("2030-01-01", tz="UTC").to_pydatetime())
    ti = SimpleNamespace(**{**vars(TI), "xcom_pull": lambda **options: []})
    with contextlib.suppress(AirflowSkipException):
        sensor.execute({"ti": ti, "dag_run": dag_run, "outlet_events": {}})  # type: ignore[typeddict-item]
    return sensor


def test_drift_sensor_reports_its_windows_and_the_drifted_features(windows: Path) -> None:
    found = _lineage_of(_check(reference=f"{windows}/calm.parquet", current=f"{windows}/shifted.parquet"))
    assert _names(found.inputs) == [("file", f"{windows}/shifted.parquet"), ("file", f"{windows}/calm.parquet")]
    assert found.outputs == []
    facet = found.run_facets["paceline_drift"]
    schema = json.loads(SCHEMA.read_text())
    described = schema["$defs"]["PacelineDriftRunFacet"]["allOf"][1]
    assert set(described["properties"]["verdict"]["enum"]) == set(get_args(DriftVerdict))
    inherited = {field.name for field in attrs.fields(RunFacet)}
    assert {field.name for field in attrs.fields(type(facet))} - inherited == set(described["required"])
    assert (facet.verdict, facet.retrain, facet.conceptDrift, facet.jointDrift) == ("drift", True, False, False)
    assert (facet.featureCount, facet.driftedFeatureCount) == (2, 1)
    assert (facet.referenceRows, facet.currentRows) == (500, 500)
    (usage,) = facet.driftedFeatures
    assert (usage.name, usage.test) == ("usage", "Kolmogorov-Smirnov")
    assert usage.effect == pytest.approx(0.38, abs=0.06)  # effect of a shift by one standard deviation
    assert usage.adjustedPValue < 1e-9 < 0.1 < usage.psi


def test_skipped_check_reports_its_verdict(windows: Path) -> None:
    sensor = _check(reference=f"{windows}/calm.parquet", current=f"{windows}/same.parquet")
    facet = _lineage_of(sensor, TaskInstanceState.SKIPPED).run_facets["paceline_drift"]
    assert (facet.verdict, facet.retrain, facet.driftedFeatures) == ("no drift", False, [])


def test_sensor_without_a_result_reports_only_its_windows(windows: Path) -> None:
    sensor = DriftSensor(task_id="drift", reference=f"{windows}/calm.parquet", current=f"{windows}/missing.parquet")
    with pytest.raises(InvalidInputError, match=r"missing\.parquet"):
        sensor.execute({"ti": TI})  # type: ignore[typeddict-item]
    found = _lineage_of(sensor, TaskInstanceState.FAILED)
    assert _names(found.inputs) == [("file", f"{windows}/missing.parquet"), ("file", f"{windows}/calm.parquet")]
    assert (found.outputs, found.run_facets) == ([], {})


def test_champion_and_stored_rows_have_the_same_dataset_names_in_all_tasks(windows: Path) -> None:
    registry = windows / "registry"
    champion = {"model": "churn", "registry": str(registry), "report_dir": str(windows / "reports")}
    first = _lineage_of(_check(reference="champion", current=f"{windows}/calm.parquet", **champion))
    assert _names(first.inputs) == [("file", f"{windows}/calm.parquet")], "there is no champion yet"
    assert first.run_facets["paceline_drift"].verdict == "no champion"

    (windows / "model").mkdir()
    (windows / "model" / "weights").write_text("1")
    data_window = {"source": f"{windows}/calm.parquet"}
    version = FileRegistry(registry).register(windows / "model", name="churn", data_window=data_window)
    FileRegistry(registry).promote("churn", version.version, reason="first")
    sensor = _check(reference="champion", current=f"{windows}/shifted.parquet", **champion)
    second = _lineage_of(sensor)
    assert _names(second.inputs) == [
        ("file", f"{windows}/shifted.parquet"),
        (f"file://{registry}", "churn/champion"),
    ]
    (stored,) = second.outputs
    assert sensor._summary is not None
    assert sensor._summary.window is not None
    assert Path(stored.name).is_file()
    evaluation = _evaluation(data_window=sensor._summary.window.to_json())
    assert (stored.namespace, stored.name) in _names(_lineage_of(evaluation).inputs)


def test_training_reports_its_inputs_and_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        DeadlineTrainingOperator, "new_training", lambda self, context: SimpleNamespace(run=lambda: TRAINED)
    )
    task = _training()
    task.execute({})  # type: ignore[typeddict-item]
    found = _lineage_of(task)
    assert _names(found.inputs) == [("s3://lake", "flights/2013-07.csv"), ("gs://lake", "holidays")]
    assert _names(found.outputs) == [("s3://models", "runs/1")]


def test_failed_training_has_no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Mock(side_effect=TrainingFailedError("exit code 1"))
    monkeypatch.setattr(DeadlineTrainingOperator, "new_training", lambda self, context: SimpleNamespace(run=run))
    task = _training()
    with pytest.raises(AirflowException):
        task.execute({})  # type: ignore[typeddict-item]
    found = _lineage_of(task, TaskInstanceState.FAILED)
    assert len(found.inputs) == 2
    assert found.outputs == []


def _training(**arguments: Any) -> DeadlineTrainingOperator:
    inputs = {"flights.csv": "s3://aws_default@lake/flights/2013-07.csv", "holidays": "gcs://google@lake/holidays/"}
    return DeadlineTrainingOperator(task_id="train", script="train.py", deadline="1h", inputs=inputs, **arguments)


def _evaluation(**arguments: Any) -> EvaluateOperator:
    return EvaluateOperator(
        **{
            "task_id": "evaluate",
            "model": "churn",
            "registry": "s3://aws_default@models/registry/",
            "challenger": TRAINED.model,
            "data": {"holdout.csv": "s3://aws_default@lake/holdout.csv"},
            "script": "evaluate.py",
            "metric": "auc",
            "runtime": "process",
            **arguments,
        }
    )


@pytest.fixture
def evaluate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], EvaluateOperator]:
    """Return a function that evaluates a model with a score of 0.7, and returns the operator."""
    monkeypatch.setattr(EvaluateOperator, "_score", lambda *arguments: ({"auc": 0.7}, ResampleCollector("auc")))
    unread = SimpleNamespace(paths={}, changed_file=lambda: None)  # the data is on S3
    monkeypatch.setattr(evaluate_module, "HoldOut", lambda *arguments: unread)
    monkeypatch.setattr(EvaluateOperator, "command_and_files", lambda self: ([], {}))
    (tmp_path / "trained").mkdir()
    (tmp_path / "trained" / "weights").write_text("1")
    runs = map(str, count())

    def run() -> EvaluateOperator:
        data_window = {"source": f"{tmp_path}/calm.parquet", "parameters": None, "conn_id": None}
        places = {"registry": f"{tmp_path}/registry", "challenger": f"{tmp_path}/trained"}
        task = _evaluation(**places, data_window=data_window)
        ti = SimpleNamespace(**{**vars(TI), "run_id": next(runs)})  # each run registers a version
        task.execute({"ti": ti})  # type: ignore[typeddict-item]
        return task

    return run


def test_evaluation_reports_the_training_data_and_the_version(
    evaluate: Callable[[], EvaluateOperator], tmp_path: Path
) -> None:
    first = _lineage_of(evaluate())
    read = [("file", f"{tmp_path}/trained"), ("s3://lake", "holdout.csv"), ("file", f"{tmp_path}/calm.parquet")]
    assert _names(first.inputs) == read
    (version,) = first.outputs
    assert (version.namespace, version.name, _version(version)) == (f"file://{tmp_path}/registry", "churn", "1")

    FileRegistry(tmp_path / "registry").promote("churn", 1, reason="first")
    second = _lineage_of(evaluate())
    champion = second.inputs.pop()
    assert _names(second.inputs) == read
    assert (champion.name, _version(champion)) == ("churn/champion", "1")
    assert _version(second.outputs[0]) == "2"


def test_failed_evaluation_has_no_version(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    task = _evaluation(registry=f"{tmp_path}/registry", challenger=f"{tmp_path}/missing")
    with pytest.raises(AirflowFailException):
        task.execute({"ti": TI})  # type: ignore[typeddict-item]
    found = _lineage_of(task, TaskInstanceState.FAILED)
    assert _names(found.inputs) == [("file", f"{tmp_path}/missing"), ("s3://lake", "holdout.csv")]
    assert found.outputs == []


@pytest.mark.parametrize("promoted", [True, False])
def test_promotion_reports_the_champion_only_if_promoted(
    evaluate: Callable[[], EvaluateOperator], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, promoted: bool
) -> None:
    monkeypatch.setattr(promote_module, "_was_sent", lambda context, outlet: False)  # needs a supervisor process
    results = [evaluate()._result]
    if not promoted:
        FileRegistry(tmp_path / "registry").promote("churn", 1, reason="first")
        results.append(evaluate()._result)  # equally good
    task = PromoteOperator(task_id="promote", evaluation=results[-1].to_json(), registry=f"{tmp_path}/registry/")
    assert task.get_openlineage_facets_on_complete(TI) == OperatorLineage(), "without a result, nothing is known"
    task.execute({"ti": TI})  # type: ignore[typeddict-item]
    found = _lineage_of(task)
    assert _names(found.inputs) == [(f"file://{tmp_path}/registry", "churn")]
    assert _version(found.inputs[0]) == str(len(results))
    assert _names(found.outputs) == ([(f"file://{tmp_path}/registry", "churn/champion")] if promoted else [])
    assert [_version(champion) for champion in found.outputs] == (["1"] if promoted else [])


class PostgreSQL(DbApiHook):
    """A hook that describes its database to OpenLineage in the same way as the hook of the PostgreSQL provider."""

    conn_name_attr = "conn_id"
    database = Connection(
        conn_id="warehouse", conn_type="postgres", host="db", schema="sales", login="ann", password="pa55word"
    )

    def get_connection(self, conn_id: str) -> Connection:  # type: ignore[override]
        return self.database

    def get_openlineage_database_info(self, connection: Connection) -> DatabaseInfo:  # type: ignore[override]
        authority = self.get_openlineage_authority_part(connection, default_port=5432)
        return DatabaseInfo(scheme="postgres", authority=authority, database=connection.schema)

    def get_openlineage_database_dialect(self, connection: Connection) -> str:
        return "postgres"


@pytest.mark.parametrize(
    ("query", "parameters"),
    [
        ("SELECT * FROM customers JOIN crm.plans USING (plan) WHERE day = '2030-01-01'", None),
        ("SELECT * FROM customers JOIN crm.plans USING (plan) WHERE token = %(token)s", {"token": "s3cr3t"}),
        ("SELECT * FROM customers JOIN crm.plans USING (plan) WHERE token = %s", ["s3cr3t"]),
        ("SELECT * FROM customers JOIN crm.plans USING (plan) WHERE token = :token;", {"token": "s3cr3t"}),
    ],
)
def test_query_is_reported_as_its_tables(monkeypatch: pytest.MonkeyPatch, query: str, parameters: Any) -> None:
    monkeypatch.setattr(BaseHook, "get_hook", lambda conn_id: PostgreSQL(conn_id=conn_id))
    windows = {"reference": query, "reference_parameters": parameters, "current": query}
    found = _lineage_of(DriftSensor(task_id="drift", conn_id="warehouse", current_parameters=parameters, **windows))
    assert sorted(_names(found.inputs)) == [
        ("postgres://db:5432", "sales.crm.plans"),
        ("postgres://db:5432", "sales.public.customers"),
    ]
    assert [secret for secret in ("ann", "pa55word", "s3cr3t") if secret in repr(found)] == []


def test_query_is_left_out_if_the_hook_does_not_describe_its_database(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_STORE", json.dumps({"conn_type": "sqlite", "host": str(tmp_path / "store.db")}))
    query = "SELECT * FROM customers"
    found = _lineage_of(DriftSensor(task_id="drift", conn_id="store", reference=query, current=f"{tmp_path}/a.csv"))
    assert _names(found.inputs) == [("file", f"{tmp_path}/a.csv")]


def test_names_omit_the_secrets_in_urls() -> None:
    sensor = DriftSensor(
        task_id="drift",
        reference="champion",
        model="churn",
        registry="s3://key:s3cr3t@models/registry",
        current="https://ann:s3cr3t@lake.example:8443/{{ ds }}/july.parquet?signature=s3cr3t#s3cr3t",
    )
    found = {"window": WindowSource(source=sensor.current), "reason": sensor.registry}
    sensor._summary = DriftReport("no drift", "", 500, 500).summary().model_copy(update=found)
    found = _lineage_of(sensor)
    assert _names(found.inputs) == [
        ("https://lake.example:8443", "{{ ds }}/july.parquet"),
        ("s3://models/registry", "churn/champion"),
    ]
    evaluation = _lineage_of(_evaluation(registry="s3://key:s3cr3t@models", inputs={"july": sensor.current}))
    assert len(evaluation.inputs) == 3
    assert "s3cr3t" not in repr(found) + repr(evaluation)


def test_declared_datasets_are_reported_too() -> None:
    task = _training(
        inlets=[Asset("file:///data/plans.csv"), Asset("flights")], outlets=[Asset("file:///data/log.csv")]
    )
    found = _lineage_of(task)
    assert _names(found.inputs)[2:] == [("file", "/data/plans.csv")]
    assert _names(found.outputs) == [("file", "/data/log.csv")]


def test_dataset_that_occurs_twice_is_reported_once(tmp_path: Path) -> None:
    window = f"{tmp_path}/july.csv"
    found = _lineage_of(DriftSensor(task_id="drift", reference=window, current=window))
    assert _names(found.inputs) == [("file", window)]


@pytest.mark.parametrize(("features", "length"), [(0, 1), (3, 10), (800, 5000)])
def test_facet_conforms_to_its_schema_at_any_size_of_the_report(features: int, length: int) -> None:
    drifted = [
        FeatureDrift(f"ä{number}".ljust(length, "x"), "numeric", "drift", "", "Kolmogorov-Smirnov", *[0.123456789] * 5)
        for number in range(features)
    ]
    report = DriftReport("drift", "", 500, 500, (*drifted, FeatureDrift("age", "numeric", "no drift")))
    facet = lineage._drift_facet(report.summary().model_copy(update={"retrain": True}))
    loaded = json.loads(Serde.to_json(facet))
    schema = json.loads(SCHEMA.read_text())
    definition = schema["$defs"]["PacelineDriftRunFacet"]["allOf"][1]
    jsonschema.validate(loaded, {"$defs": schema["$defs"], **definition})
    assert set(definition["properties"]) == set(loaded) - {"_producer", "_schemaURL"}
    assert loaded["driftedFeatureCount"] == features
    assert loaded["_producer"].startswith("https://github.com/paceline/airflow-paceline/tree/v")
    assert loaded["_schemaURL"].endswith("/docs/facets/PacelineDriftRunFacet.json#/$defs/PacelineDriftRunFacet")
    assert len(json.dumps(loaded)) < 10_000


def test_error_leaves_the_task_without_datasets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The provider logs errors, so the operators do not."""
    sensor = DriftSensor(task_id="drift", conn_id="missing", reference="SELECT 1 FROM t", current=f"{tmp_path}/a.csv")
    assert _lineage_of(sensor, TaskInstanceState.FAILED) == OperatorLineage()
    assert "The conn_id `missing` isn't defined" in capsys.readouterr().out
