"""Describes Paceline's tasks to OpenLineage: the datasets that they read and write, and the drift report as a facet.

Airflow's OpenLineage provider calls ``get_openlineage_facets_on_complete`` of an operator after the task has ended,
and the operator calls this module, which needs the provider. The provider logs an error and then reports the task
without datasets, so this module handles no errors.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from airflow.providers.common.compat.openlineage.utils.sql import get_openlineage_facets_with_sql
from airflow.providers.openlineage.extractors import OperatorLineage
from airflow.providers.openlineage.extractors.manager import ExtractorManager
from airflow.sdk import BaseHook
from attrs import define
from openlineage.client.event_v2 import Dataset
from openlineage.client.facet_v2 import RunFacet, dataset_type_dataset, dataset_version_dataset
from openlineage.client.utils import RedactMixin

from paceline import __version__
from paceline.airflow.windows import CHAMPION, is_sql
from paceline.contract import DriftSummary, EvaluationResult, PromotionResult, TrainingResult, WindowSource

_REPOSITORY = "paceline/airflow-paceline"
_SCHEMA = f"https://raw.githubusercontent.com/{_REPOSITORY}/v{__version__}/docs/facets/PacelineDriftRunFacet.json"
_MAX_NAME = 100  # characters
_PLACEHOLDER = re.compile(r"%(\(\w+\))?s")
# OpenLineage has one URL scheme for each kind of store; fsspec accepts several.
_SCHEMES = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "local": "file"}


@define
class DriftedFeature(RedactMixin):
    """A feature that has drifted, with the values of :class:`~paceline.drift.FeatureDrift`."""

    name: str
    test: str
    effect: float | None
    adjustedPValue: float | None
    psi: float | None
    missingReference: float
    missingCurrent: float


@define
class PacelineDriftRunFacet(RunFacet):
    """The summary of a drift report. Its size is bounded: it has no histograms, and at most 20 drifted features.

    ``docs/facets/PacelineDriftRunFacet.json`` is the schema, and describes each field.
    """

    verdict: str
    retrain: bool
    conceptDrift: bool
    jointDrift: bool
    estimatedDrift: bool
    featureCount: int
    driftedFeatureCount: int
    driftedFeatures: list[DriftedFeature]
    referenceRows: int
    currentRows: int

    @staticmethod
    def _get_schema() -> str:
        return f"{_SCHEMA}#/$defs/PacelineDriftRunFacet"


def describe_check(sensor: Any, summary: DriftSummary | None) -> OperatorLineage[Any, Any]:
    """Return the lineage of a ``DriftSensor``: from both windows to the stored rows of the current window.

    ``summary`` is the sensor's result, or ``None`` if it has none. A champion as the reference represents the data on
    which it was trained.
    """
    inputs = _window_datasets(sensor.current, sensor.conn_id)
    if sensor.reference != CHAMPION:
        inputs += _window_datasets(sensor.reference, sensor.conn_id)
    if summary is None:
        return _lineage(sensor, inputs)
    if sensor.reference == CHAMPION and summary.reference_rows:
        inputs.append(_model_dataset(sensor.registry, f"{sensor.model}/champion"))
    window = summary.window
    stored = [] if window is None or window.source == sensor.current else [_file_dataset(window.source)]
    return _lineage(sensor, inputs, stored, paceline_drift=_drift_facet(summary))


def describe_training(task: Any, result: TrainingResult | None) -> OperatorLineage[Any, Any]:
    """Return the lineage of a ``DeadlineTrainingOperator``: from its inputs to the model, if it succeeded."""
    outputs = [_file_dataset(result.model)] if result else []
    return _lineage(task, map(_file_dataset, task.inputs.values()), outputs)


def describe_evaluation(task: Any, result: EvaluationResult | None) -> OperatorLineage[Any, Any]:
    """Return the lineage of an ``EvaluateOperator``: from both models and all data to the registered version."""
    window = WindowSource.read(task.data_window)
    inputs = [_file_dataset(value) for value in (task.challenger, *task.data.values(), *task.inputs.values())]
    if window is not None:
        inputs += _window_datasets(window.source, window.conn_id)
    if result is None:
        return _lineage(task, inputs)
    if result.champion_version is not None:
        inputs.append(_model_dataset(task.registry, f"{task.model}/champion", result.champion_version))
    return _lineage(task, inputs, [_model_dataset(task.registry, task.model, result.version)])


def describe_promotion(task: Any, result: PromotionResult | None) -> OperatorLineage[Any, Any]:
    """Return the lineage of a ``PromoteOperator``: from the version to the champion, if the task has promoted it."""
    if result is None:
        return _lineage(task, [])
    model, version = result.model, result.version
    champion = [_model_dataset(task.registry, f"{model}/champion", version)] if result.promoted else []
    return _lineage(task, [_model_dataset(task.registry, model, version)], champion)


def _lineage(
    task: Any, inputs: Iterable[Dataset], outputs: Iterable[Dataset] = (), **run_facets: RunFacet
) -> OperatorLineage[Any, Any]:
    """Return the lineage of a task, including its ``inlets`` and ``outlets``, which the provider would ignore."""
    convert = ExtractorManager.convert_to_ol_dataset
    return OperatorLineage(
        inputs=_unique([*inputs, *map(convert, task.inlets)]),
        outputs=_unique([*outputs, *map(convert, task.outlets)]),
        run_facets=run_facets,
    )


def _unique(datasets: Iterable[Dataset | None]) -> list[Dataset]:
    return list({(one.namespace, one.name): one for one in datasets if one is not None}.values())


def _window_datasets(source: str, conn_id: str | None) -> list[Dataset]:
    """Return the file of a window, or the tables of its query if the hook of its database supports OpenLineage."""
    if not is_sql(source):
        return [_file_dataset(source)]
    if conn_id is None:
        return []
    hook = BaseHook.get_hook(conn_id)
    # The provider's parser rejects the placeholders of Python's database drivers.
    query = _PLACEHOLDER.sub("NULL", source)
    # Without `use_connection`, the provider names the tables and does not query the database for their columns.
    found = get_openlineage_facets_with_sql(hook, query, conn_id, None, use_connection=False)
    return found.inputs if found else []


def _file_dataset(location: object) -> Dataset:
    """Return a file or folder by its path or URL, named as OpenLineage's specification requires.

    The name has no user information and no query, which may contain secrets.

    >>> _file_dataset("s3a://aws_default@lake/flights/2013-07.parquet")
    Dataset(namespace='s3://lake', name='flights/2013-07.parquet', facets={})
    >>> _file_dataset("/data/flights.csv")
    Dataset(namespace='file', name='/data/flights.csv', facets={})
    """
    text = str(location)
    if "://" not in text:
        return Dataset("file", str(Path(text).absolute()))
    parts = urlsplit(text)
    scheme = _SCHEMES.get(parts.scheme, parts.scheme)
    if scheme == "file":
        return Dataset("file", parts.path.rstrip("/") or "/")
    return Dataset(f"{scheme}://{parts.netloc.rpartition('@')[2]}", parts.path.strip("/") or "/")


def _model_dataset(registry: str, name: str, version: int | None = None) -> Dataset:
    """Return a model in a registry. Its namespace is the URL of the registry.

    >>> model = _model_dataset("/data/registry/", "churn", 3)
    >>> model.namespace, model.name, model.facets["version"].datasetVersion
    ('file:///data/registry', 'churn', '3')
    >>> _model_dataset("mlflow://mlflow_default", "churn").namespace
    'mlflow://mlflow_default'
    """
    place = _file_dataset(registry)
    namespace = f"file://{place.name}" if place.namespace == "file" else f"{place.namespace}/{place.name}".rstrip("/")
    facets: dict[str, Any] = {"datasetType": dataset_type_dataset.DatasetTypeDatasetFacet("MODEL")}
    if version is not None:
        facets["version"] = dataset_version_dataset.DatasetVersionDatasetFacet(str(version))
    return Dataset(namespace, name, facets=facets)


def _drift_facet(summary: DriftSummary) -> PacelineDriftRunFacet:
    return PacelineDriftRunFacet(
        verdict=summary.verdict,
        retrain=summary.retrain,
        conceptDrift=summary.concept_drift,
        jointDrift=summary.joint_drift,
        estimatedDrift=summary.estimated_drift,
        featureCount=summary.features,
        driftedFeatureCount=len(summary.drifted_features),
        driftedFeatures=[
            DriftedFeature(
                name=name[:_MAX_NAME],
                test=one.test,
                effect=one.effect,
                adjustedPValue=one.adjusted_p_value,
                psi=one.psi,
                missingReference=one.missing_reference,
                missingCurrent=one.missing_current,
            )
            for name, one in summary.statistics.items()  # at most 20 features
        ],
        referenceRows=summary.reference_rows,
        currentRows=summary.current_rows,
        producer=f"https://github.com/{_REPOSITORY}/tree/v{__version__}",
    )
