"""Template fields of ``DriftSensor`` accept the same values as in Airflow's sensors and are validated when rendered."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG, BaseOperator, ObjectStoragePath
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from airflow.serialization.serialized_objects import DagSerialization

from paceline.errors import InvalidInputError
from paceline.sensors import DriftSensor

VALID = {"reference": "a.csv", "current": "b.csv"}
FIELDS = DriftSensor.template_fields
TEMPLATES: dict[str, Callable[[Any, Any], Any]] = {
    "an XComArg": lambda first, dag: first.output,
    "an XComArg with a key": lambda first, dag: first.output["key"],
    "a mapped XComArg": lambda first, dag: first.output.map(str),
    "a DagParam": lambda first, dag: dag.param("x"),
    "a template": lambda first, dag: "{{ params.x }}",
    "a function": lambda first, dag: lambda context, jinja_env: "x",
    "a list with an XComArg": lambda first, dag: ["a", first.output],
    "a dict with an XComArg": lambda first, dag: {"a": first.output},
}


def render_sensor(field: str, value: object, **options: Any) -> DriftSensor:
    """Return a sensor whose ``field`` is a template that renders to ``value``."""
    with DAG("dag", schedule=None) as dag:
        sensor = DriftSensor(task_id="drift", **{**VALID, **options, field: dag.param("x")})
    sensor.render_template_fields({"dag_run": SimpleNamespace(conf={"x": value})})  # type: ignore[typeddict-item]
    return sensor


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("field", FIELDS)
def test_template_is_not_validated_when_parsed_and_sets_dependencies(field: str, template: str) -> None:
    with DAG("dag", schedule=None, params={"x": 1}) as dag:
        value = TEMPLATES[template](BaseOperator(task_id="first"), dag)
        sensor = DriftSensor(task_id="drift", **{**VALID, field: value})
    assert getattr(sensor, field) is value
    assert sensor.upstream_task_ids == ({"first"} if "XComArg" in template else set())
    DagSerialization.to_dict(dag)


@pytest.mark.parametrize("field", FIELDS)
def test_mapped_sensor_accepts_templates(field: str) -> None:
    with DAG("dag", schedule=None):
        value = BaseOperator(task_id="first").output
        made = {**VALID, field: value}
        mapped = DriftSensor.partial(task_id="drift", **made).expand(doc_md=["a", "b"])
    assert mapped.upstream_task_ids == {"first"}
    assert getattr(mapped.unmap({"doc_md": "a"}), field) is value


@pytest.mark.parametrize("deferrable", [False, True])
@pytest.mark.parametrize("field", FIELDS)
def test_error_for_an_invalid_rendered_value_names_the_field(field: str, deferrable: bool) -> None:
    sensor = render_sensor(field, -5, deferrable=deferrable, silent_fail=deferrable)
    with pytest.raises(AirflowFailException, match=f"^{field}: got -5, expected "):
        sensor.execute({})


@pytest.mark.parametrize("deferrable", [False, True])
@pytest.mark.parametrize("option", ["soft_fail", "never_fail"])
def test_soft_fail_and_never_fail_skip_for_an_invalid_value(option: str, deferrable: bool) -> None:
    with pytest.raises(AirflowSkipException):
        render_sensor("features", "temp", deferrable=deferrable, **{option: True}).execute({})


@pytest.mark.parametrize("field", ["features", "categorical", "reference_parameters", "current_parameters"])
def test_text_instead_of_a_list_is_rejected_when_parsed_and_when_rendered(field: str) -> None:
    message = f"^{field}: got 'temp', expected a list"
    with pytest.raises(InvalidInputError, match=message):
        DriftSensor(task_id="drift", **{**VALID, field: "temp"})
    with pytest.raises(AirflowFailException, match=message):
        render_sensor(field, "temp").poke({})


def test_lists_and_paths_of_any_type_become_json_values(tmp_path: Path) -> None:
    place = tmp_path / "a.csv"
    place.write_text("temp,kind,wind\n" + "1,a,3\n2,b,4\n" * 60)
    with DAG("dag", schedule=None):
        columns = BaseOperator(task_id="first").output.map(str.lower)
        sensor = DriftSensor(
            task_id="drift",
            reference=ObjectStoragePath(f"file://{place}"),  # type: ignore[arg-type]
            current=place,  # type: ignore[arg-type]
            features=columns,  # type: ignore[arg-type]
            categorical=("{{ 'kind' }}",),
            report_dir="{{ '' }}",
        )
    pushed: dict[str, Any] = {}
    ti = SimpleNamespace(
        xcom_pull=lambda **_: ("TEMP", "KIND"), xcom_push=lambda key, value: pushed.update({key: value})
    )
    context: Any = {"ti": ti}
    sensor.render_template_fields(context)
    assert not sensor.poke(context), "no drift between a window and itself"
    assert (sensor.features, sensor.categorical, sensor.report_dir) == (["temp", "kind"], ["kind"], None)
    assert json.loads(json.dumps(sensor._check().to_dict()))["reference"] == f"file://{place}"


def test_parsing_a_sensor_does_not_import_the_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing the operators takes much longer than importing the sensors."""
    monkeypatch.setitem(sys.modules, "paceline.operators", None)
    DriftSensor(
        task_id="drift",
        reference="SELECT * FROM {{ params.table }}",
        current="b.csv",
        conn_id="{{ params.conn_id }}",
        current_parameters={"day": "{{ ds }}"},
        features=["temp", "{{ params.column }}"],
        report_dir="{{ params.reports }}",
    )
