"""Template fields accept the same values as in Airflow's standard operators, and are validated after rendering.

The tests read the fields from the operators, so they cover a new field automatically.
"""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from airflow.sdk import DAG, BaseOperator, ObjectStoragePath
from airflow.sdk.exceptions import AirflowFailException
from airflow.serialization.serialized_objects import DagSerialization

from paceline import operators
from paceline.airflow.values import is_template
from paceline.errors import InvalidInputError
from paceline.fleet import Fleet, Machine
from paceline.operators import (
    ApproveOperator,
    ArbiterOperator,
    DeadlineTrainingOperator,
    Docker,
    EvaluateOperator,
    ParameterServerOperator,
    ProfileOperator,
    PromoteOperator,
    ScheduleOperator,
    WorkerTrainingOperator,
    _arguments,
)
from paceline.run import MemoryState

GATE = Machine(name="gate", kind="nano", cores=1, memory_gib=1, cgroup_parent="/gate")
FLEET = Fleet(machines=(GATE,), parameter_server=GATE)
PLAN = {"workers": {"gate": {"samples": 10, "batch_size": 2}}}
TRAIN = {"script": "train.py", "deadline": "1m"}
VALID = {
    ApproveOperator: {"evaluation": {}},
    ArbiterOperator: {"pool": "training", "devices": 2, "conn_id": "airflow_api"},
    DeadlineTrainingOperator: TRAIN,
    EvaluateOperator: {
        "model": "flights", "registry": "/r", "challenger": "/c", "data": {"a": "/a"}, "metric": "auc",
        "script": "evaluate.py",
    },
    ParameterServerOperator: {"fleet": FLEET, "plan": PLAN, "deadline": "1m"},
    ProfileOperator: {"fleet": FLEET, "profiles": "/p", "script": "train.py"},
    PromoteOperator: {"evaluation": {}, "registry": "/r"},
    ScheduleOperator: {"fleet": FLEET, "profiles": "/p", "samples": 10},
    WorkerTrainingOperator: {**TRAIN, "fleet": FLEET, "worker": "gate", "plan": PLAN, "server_task_id": "server"},
}  # fmt: skip
# Attributes whose names differ from the arguments, because BaseOperator already uses the names of the arguments.
ARGUMENTS = {"output_path": "output", "pool_name": "pool"}
# Template fields that the operator inherits but that are not arguments of the operator.
NO_ARGUMENTS = {
    ParameterServerOperator: {"script", "command", "min_devices", "max_devices"},
    ProfileOperator: {"command"},
}
OPERATORS = [
    found
    for found in vars(operators).values()
    if isinstance(found, type) and issubclass(found, BaseOperator) and found.template_fields
]
FIELDS = [
    pytest.param(operator, field, id=f"{operator.__name__}-{field}")
    for operator in OPERATORS
    for field in operator.template_fields
    if field not in NO_ARGUMENTS.get(operator, ())
]
TEMPLATES = {
    "an XComArg": lambda first, dag: first.output,
    "an XComArg with a key": lambda first, dag: first.output["key"],
    "a mapped XComArg": lambda first, dag: first.output.map(str),
    "a DagParam": lambda first, dag: dag.param("x"),
    "a template": lambda first, dag: "{{ params.x }}",
    "a statement": lambda first, dag: "{% if params.x %}1{% endif %}",
    "a function": lambda first, dag: lambda context, jinja_env: "x",
    "a list with a template": lambda first, dag: ["{{ params.x }}"],
    "a list with an XComArg": lambda first, dag: ["a", first.output],
    "a dict with an XComArg": lambda first, dag: {"a": {"b": first.output}},
    "a tuple with a DagParam": lambda first, dag: (dag.param("x"),),
}
INVALID = {1: 2}  # invalid in every field: neither text, a number, a list nor a mapping of names
CONTEXT = {
    "task_state_store": MemoryState(),
    "ti": SimpleNamespace(
        dag_id="dag",
        run_id="run",
        task_id="task",
        map_index=-1,
        get_task_states=lambda **_: {},
        xcom_pull=lambda **_: [1, "two"],
    ),
}


def make_arguments(operator, field, value):
    """Return arguments of an operator that are valid except for ``field``, which has the given value."""
    made = {**VALID[operator], ARGUMENTS.get(field, field): value}
    if field == "command":
        del made["script"]
    return made


def render_task(operator, field, value):
    """Return a task whose ``field`` is a template that renders to ``value``."""
    with DAG("dag", schedule=None) as dag:
        task = operator(task_id="task", **make_arguments(operator, field, dag.param("x")))
    task.render_template_fields({**CONTEXT, "dag_run": SimpleNamespace(conf={"x": value})})
    return task


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize(("operator", "field"), FIELDS)
def test_template_is_not_validated_when_parsed_and_sets_dependencies(operator, field, template):
    with DAG("dag", schedule=None, params={"x": 1}) as dag:
        value = TEMPLATES[template](BaseOperator(task_id="first"), dag)
        task = operator(task_id="task", **make_arguments(operator, field, value))
    assert getattr(task, field) is value
    assert task.upstream_task_ids == ({"first"} if "XComArg" in template else set())
    DagSerialization.to_dict(dag)


@pytest.mark.parametrize(("operator", "field"), FIELDS)
def test_invalid_rendered_value_is_rejected_by_name(operator, field):
    task = render_task(operator, field, INVALID)
    with pytest.raises(AirflowFailException, match=rf"^{ARGUMENTS.get(field, field)}: got {{1: 2}}, expected "):
        task.execute(CONTEXT)


@pytest.mark.parametrize(("operator", "field"), FIELDS)
def test_unknown_name_in_a_template_fails_the_task_without_retries_and_names_the_argument(operator, field):
    with DAG("dag", schedule=None):
        task = operator(task_id="task", **make_arguments(operator, field, "{{ params.typo }}"))
    message = rf"^{ARGUMENTS.get(field, field)}: got '{{{{ params.typo }}}}', expected a template that can be rendered"
    with pytest.raises(AirflowFailException, match=rf"{message} \(.*'typo'\)$"):
        task.render_template_fields({**CONTEXT, "task": task, "params": {}})


@pytest.mark.parametrize("template", ["{{ params.typo }}", "{% if %}"])
def test_template_of_a_runtime_or_of_a_mapped_task_names_the_argument(template):
    with DAG("dag", schedule=None):
        task = DeadlineTrainingOperator(task_id="task", **TRAIN, runtime=Docker(image=template))
        mapped = DeadlineTrainingOperator.partial(task_id="mapped", **TRAIN).expand(arguments=[["--day", template]])
    with pytest.raises(
        AirflowFailException, match=rf"^runtime\.image: got '{re.escape(template)}', expected a template"
    ):
        task.render_template_fields({**CONTEXT, "task": task, "params": {}})
    each = mapped.unmap({"arguments": ["--day", template]})
    with pytest.raises(AirflowFailException, match=r"^arguments: got .*, expected a template that can be rendered"):
        each.render_template_fields({**CONTEXT, "task": each, "params": {}})


@pytest.mark.parametrize(("operator", "field"), FIELDS)
def test_mapped_operator_accepts_templates(operator, field):
    with DAG("dag", schedule=None) as dag:
        template = BaseOperator(task_id="first").output
        made = make_arguments(operator, field, template)
        mapped = operator.partial(task_id="task", **made).expand(doc_md=["a", "b"])
        others = {name: value for name, value in made.items() if value is not template}
        each = operator.partial(task_id="each", **others).expand(**{ARGUMENTS.get(field, field): template})
    # Airflow finds a template field in ``partial`` only if the field has the same name as the argument.
    assert mapped.upstream_task_ids == (set() if field in ARGUMENTS else {"first"})
    assert each.upstream_task_ids == {"first"}
    assert getattr(mapped.unmap({"doc_md": "a"}), field) is template
    DagSerialization.to_dict(dag)


def render_training_task(**changed):
    with DAG("dag", schedule=None):
        first = BaseOperator(task_id="first")
        changed = {name: value(first) if callable(value) else value for name, value in changed.items()}
        task = DeadlineTrainingOperator(task_id="task", **{**TRAIN, **changed})
    task.render_template_fields({**CONTEXT, "params": {"none": None, "braces": "{{ x }}"}})
    return task


def job_command(task, tmp_path):
    task.read_templates(CONTEXT)
    if task.script is not None:
        task.script = tmp_path / "train.py"
        task.script.touch()
    return list(task.job_spec(CONTEXT, tmp_path, 1.0).command)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"arguments": lambda first: first.output}, ["python", "train.py", "1", "two"]),
        ({"arguments": lambda first: first.output.map(repr)}, ["python", "train.py", "1", "'two'"]),
        ({"arguments": ("--day", "{{ 1 + 1 }}")}, ["python", "train.py", "--day", "2"]),
        ({"script": None, "command": lambda first: first.output}, ["1", "two"]),
        ({"script": None, "command": "python -m '{{ 'my' }} app'"}, ["python", "-m", "my app"]),
        ({"script": None, "command": "{{ ['python', '-m', 'app'] }}"}, ["python", "-m", "app"]),  # as in DockerOperator
    ],
)
def test_list_is_read_from_an_xcom_or_a_template(tmp_path, changed, expected):
    assert job_command(render_training_task(**changed), tmp_path) == expected


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"arguments": "{{ '--epochs 3' }}"}, "arguments: got '--epochs 3', expected a list or a tuple"),
        ({"arguments": "{{ ['--epochs', '3'] }}"}, r"arguments: got .*, expected a list or a tuple"),
        ({"environment": "{{ {'A': 1} }}"}, "environment: got .*, expected a mapping of names to values"),
        ({"script": None, "command": "{{ '[1' }}"}, r"command: got '\[1', expected a command, as text or as a list"),
        ({"script": "{{ params.none }}"}, "script: got None, expected a Python file, or command"),
        ({"alpha": "{{ '1.5' }}"}, r"alpha: got '1.5', expected a number in \(0, 1\]"),
        ({"team": {}, "max_devices": "{{ 0.1 }}"}, "max_devices: got 0.1, expected a number of cores of at least"),
        ({"on_infeasible": "{{ params.braces }}"}, "on_infeasible: got '{{ x }}', expected one of best_effort"),
    ],
)
def test_rendered_values_are_validated_like_parsed_values(changed, message):
    with pytest.raises(InvalidInputError, match=message):
        _arguments.read(render_training_task(**changed), {})


@pytest.mark.parametrize(("option", "weight"), [(None, 5.0), ("1", 1.0), ("0", None), ("-2", None), ("much", None)])
def test_late_weight_is_an_option_of_airflow(monkeypatch, option, weight):
    if option is not None:
        monkeypatch.setenv("AIRFLOW__PACELINE__LATE_WEIGHT", option)
    if weight is not None:
        assert _arguments.read(render_training_task(), {}).late_weight == weight
        return
    with pytest.raises(
        InvalidInputError, match=rf"\[paceline\] late_weight: got '{option}', expected a number greater"
    ):
        _arguments.read(render_training_task(), {})


def test_rendered_text_is_converted_to_a_number_or_none():
    settings = _arguments.read(
        render_training_task(alpha="{{ 0.9 }}", min_devices="{{ 0.5 }}", max_devices="{{ params.none }}"), {}
    )
    assert (settings.alpha, settings.min_devices, settings.max_devices) == (0.9, 0.5, None)
    limited = render_training_task(max_devices="{{ 3 }}")
    assert _arguments.read(limited, {}).max_devices == 3.0
    task = render_training_task(output="{{ '' }}")
    _arguments.read(task, {})
    assert task.output_path is None, "empty text is absent"


def test_path_objects_are_accepted():
    task = render_training_task(output=ObjectStoragePath("s3://models/{{ 1 + 1 }}"), script=Path("{{ 'train' }}.py"))
    _arguments.read(task, {})
    assert (task.output_path, task.script) == ("s3://models/2", "train.py")


@pytest.mark.parametrize("operator", [ParameterServerOperator, ProfileOperator, WorkerTrainingOperator])
def test_rendered_runtime_other_than_docker_is_rejected_for_a_fleet(operator):
    with pytest.raises(AirflowFailException, match="runtime: got 'process', expected 'docker'"):
        render_task(operator, "runtime", "process").execute(CONTEXT)


def test_template_in_an_untemplated_argument_is_rejected():
    with pytest.raises(InvalidInputError, match=r"controller: got '{{ params.controller }}', expected one of"):
        DeadlineTrainingOperator(task_id="task", **TRAIN, controller="{{ params.controller }}")


@pytest.mark.parametrize("value", [None, 1, "20m", b"{{", ("a",), {"{{ x }}": 1}, [], Path("{{ x }}")])
def test_value_that_airflow_does_not_render_is_not_a_template(value):
    assert not is_template(value)
