"""Settings of runtimes: their checks, their templates, what Airflow stores and shows, and the lookup by name."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG, BaseOperator
from airflow.sdk.exceptions import AirflowFailException
from airflow.serialization.helpers import serialize_template_field
from airflow.serialization.serialized_objects import DagSerialization
from tests.unit.airflow.strangers import install

from paceline.airflow.runtimes import RuntimeSettings, installed_runtimes, named_settings
from paceline.airflow.values import is_template
from paceline.elastic.runtime import TeamRuntime
from paceline.errors import InvalidInputError, PacelineError
from paceline.operators import DeadlineTrainingOperator, Docker, EvaluateOperator, Kubernetes, Process
from paceline.operators._host import TaskHost
from paceline.run import MemoryState
from paceline.runtime import DockerOptions, JobSpec, ProcessRuntime

TRAIN: dict[str, Any] = {"script": "train.py", "deadline": "1m"}
SPEC = JobSpec(name="job", command=["python"], devices=1)
BAD_VALUES = [
    (Docker, "image", "", "the name of a container image"),
    (Docker, "image", None, "the name of a container image"),
    (Docker, "engine_conn_id", 5, "text, or None"),
    (Docker, "docker_conn_id", 5, "text, or None"),
    (Docker, "pull", "yes", "True or False"),
    (Docker, "read_only", "{{ params.x }}", "True or False"),
    (Docker, "network", 5, "text, or None"),
    (Docker, "user", "root", "'uid' or 'uid:gid'"),
    (Docker, "user", "0:0", "an unprivileged user"),
    (Docker, "allow_root", 1, "True or False"),
    *(
        (settings, field, value, accepted)
        for settings in (Docker, Kubernetes, Process)
        for field, value, accepted in (
            ("gpus", -1, "a whole number of GPUs"),
            ("gpus", "all", "a whole number of GPUs"),
            ("gpus", True, "a whole number of GPUs"),
            ("memory", "lots", "a number of bytes"),
            ("memory", "8m", "a number of bytes"),
            ("memory", True, "a number of bytes"),
            ("disk", "lots", "a number of bytes"),
        )
    ),
    *((settings, "max_processes", 0, "a whole number of at least 1") for settings in (Docker, Process)),
    (Kubernetes, "image", "", "the name of a container image"),
    (Kubernetes, "kubernetes_conn_id", None, "text"),
    (Kubernetes, "namespace", "", "text, or None"),
    (Kubernetes, "pod_template_file", 5, "text, or None"),
    (Kubernetes, "user", "0:0", "an unprivileged user"),
]
TEMPLATED = [(settings, field) for settings in (Docker, Kubernetes, Process) for field in settings.template_fields]
# A valid rendered value for each templated field.
RENDERED = {"image": "trainer:3", "memory": "8g", "disk": "8g", "user": "1000:1000"}
TEMPLATES = {
    "text": lambda first, dag: "{{ params.x }}",
    "an XComArg": lambda first, dag: first.output,
    "a DagParam": lambda first, dag: dag.param("x"),
    "a function": lambda first, dag: lambda context, jinja_env: context["params"]["x"],
}


@pytest.mark.parametrize(("settings", "field", "value", "accepted"), BAD_VALUES)
def test_bad_value_of_a_field_is_rejected_by_name(settings: Any, field: str, value: object, accepted: str) -> None:
    with pytest.raises(InvalidInputError, match=rf"^runtime\.{field}: got .*, expected {accepted}"):
        settings(**{field: value})


@pytest.mark.parametrize("settings", [Docker, Kubernetes, Process])
def test_settings_are_frozen_and_have_only_fields_of_their_own(settings: Any) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings().gpus = 1
    with pytest.raises(TypeError, match="network_mode"):
        settings(network_mode="bridge")
    with pytest.raises(TypeError, match="image"):
        Process(image="trainer:3")  # type: ignore[call-arg]


def test_settings_become_the_specification_of_the_job() -> None:
    spec = Docker(image="trainer:3", gpus=2, memory="2g", disk=None, network="bridge", user="7", read_only=True).extend(
        SPEC
    )
    assert (spec.image, spec.gpus, spec.memory_bytes, spec.disk_bytes) == ("trainer:3", 2, 2**31, None)
    assert (spec.options, spec.user, spec.read_only) == (DockerOptions(network="bridge"), "7", True)
    spec = Process(gpus=1, memory=2**30, max_processes=9, disk="1g").extend(SPEC)
    assert (spec.gpus, spec.memory_bytes, spec.max_processes, spec.disk_bytes) == (1, 2**30, 9, 2**30)
    assert spec.image is None


def test_only_some_runtimes_have_parts_of_gpus() -> None:
    assert [settings(gpus=0.25).extend(SPEC).gpus for settings in (Docker, Process)] == [0.25, 0.25]
    for value in (1.5, -0.5, True, "0.5"):
        with pytest.raises(
            InvalidInputError, match=r"runtime.gpus: got .*, expected a whole number of GPUs, 0 for none, or"
        ):
            Process(gpus=value)  # type: ignore[arg-type]
    with pytest.raises(
        InvalidInputError, match=r"runtime.gpus: got 0.25, expected a whole number of GPUs, 0 for none$"
    ):
        Kubernetes(gpus=0.25)  # type: ignore[arg-type]


def run_context(task: Any, value: str) -> Any:
    ti = SimpleNamespace(
        dag_id="dag", run_id="run", task_id="task", map_index=-1, get_task_states=lambda **_: {},
        xcom_pull=lambda **_: value,
    )  # fmt: skip
    return {"ti": ti, "task": task, "params": {"x": value}, "dag_run": SimpleNamespace(conf={"x": value})}


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize(("settings", "field"), TEMPLATED)
def test_template_in_a_field_is_rendered_and_sets_dependencies(settings: Any, field: str, template: str) -> None:
    with DAG("dag", schedule=None, params={"x": 1}) as dag:
        value = TEMPLATES[template](BaseOperator(task_id="first"), dag)
        written = settings(**{field: value})
        task = DeadlineTrainingOperator(task_id="task", **TRAIN, runtime=written)
        mapped = DeadlineTrainingOperator.partial(task_id="mapped", **TRAIN, runtime=written).expand(doc_md=["a", "b"])
    assert task.runtime is written
    assert is_template(written)
    for one in (task, mapped):
        assert one.upstream_task_ids == ({"first"} if "XComArg" in template else set())
    DagSerialization.to_dict(dag)
    expected = RENDERED.get(field, "name")
    for one in (task, mapped.unmap({"doc_md": "a"})):
        context = run_context(one, expected)
        one.render_template_fields(context)
        one.read_templates(context)
        assert one.runtime == settings(**{field: expected})
    assert getattr(written, field) is value, "the settings of the DAG file are unchanged"


@pytest.mark.parametrize(("settings", "field"), TEMPLATED)
def test_bad_rendered_value_fails_the_task_by_name(settings: Any, field: str) -> None:
    bad = {"image": ""}.get(field, "{{ literal }}") if field in RENDERED else 5
    with DAG("dag", schedule=None) as dag:
        task = DeadlineTrainingOperator(task_id="task", **TRAIN, runtime=settings(**{field: dag.param("x")}))
    task.render_template_fields(run_context(task, bad))  # type: ignore[arg-type]
    with pytest.raises(AirflowFailException, match=rf"^runtime\.{field}: got "):
        task.execute(run_context(task, "x"))


def test_rendered_text_of_an_absent_value_is_none() -> None:
    written = Docker(engine_conn_id="{{ params.x }}", memory="{{ params.none }}")
    task = DeadlineTrainingOperator(task_id="task", **TRAIN, runtime=written)
    task.render_template_fields({**run_context(task, ""), "params": {"x": "", "none": None}})
    assert task.runtime.checked() == Docker(engine_conn_id=None, memory=None)


def test_airflow_stores_and_shows_the_fields() -> None:
    def choose_image(context: Any, jinja_env: Any) -> str:
        return "trainer:3"

    settings = Docker(image=choose_image, memory="{{ params.memory }}", gpus=1)  # type: ignore[arg-type]
    shown = serialize_template_field(settings, "runtime")
    assert isinstance(shown, dict)
    assert set(shown) == {"name", *(field.name for field in dataclasses.fields(Docker))}
    assert (shown["name"], shown["memory"], shown["gpus"]) == ("docker", "{{ params.memory }}", 1)
    assert "0x" not in json.dumps(shown), "an address would change the DAG's version at every parse"
    assert DeadlineTrainingOperator.template_fields_renderers["runtime"] == "json"
    assert EvaluateOperator.template_fields_renderers["runtime"] == "json"


def stored_dag() -> str:
    with DAG("dag", schedule=None) as dag:
        first = BaseOperator(task_id="first")
        runtime = Docker(image=first.output, memory="{{ params.memory }}")  # type: ignore[arg-type]
        DeadlineTrainingOperator(task_id="task", **TRAIN, runtime=runtime)
        DeadlineTrainingOperator.partial(task_id="mapped", **TRAIN, runtime=runtime).expand(doc_md=["a", "b"])
        DeadlineTrainingOperator.partial(task_id="each", **TRAIN).expand(runtime=[Docker(), Process(memory="8g")])
    return json.dumps(DagSerialization.to_dict(dag), sort_keys=True)


def test_stored_dag_is_the_same_at_every_parse() -> None:
    assert stored_dag() == stored_dag()
    assert " object at 0x" not in stored_dag()


def test_task_may_be_mapped_over_runtimes() -> None:
    with DAG("dag", schedule=None):
        each = DeadlineTrainingOperator.partial(task_id="each", **TRAIN).expand(runtime=[Docker(), "process"])
    assert [each.unmap({"runtime": one}).runtime.name for one in (Docker(), "process")] == ["docker", "process"]


# --- names ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def misnamed(hall: Path) -> None:
    """An entry point whose name is not that of its settings."""
    install(hall, "other", "other = hall_of_a_stranger:Hall")


def test_names_of_the_built_in_runtimes_mean_their_defaults() -> None:
    assert installed_runtimes() == ["docker", "kubernetes", "process"]
    for runtime in (Docker(), Process()):
        assert DeadlineTrainingOperator(task_id="task", **TRAIN, runtime=runtime.name).runtime == runtime


def test_runtime_of_another_package_runs_jobs_like_those_of_paceline(
    hall: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AIRFLOW__PACELINE__ALLOWED_RUNTIMES")
    task = DeadlineTrainingOperator(task_id="task", **TRAIN, runtime="hall")
    runtime = task.choose_runtime().open()
    assert (runtime.name, [one.name for one in task.possible_runtimes()]) == ("hall", ["hall"])
    assert isinstance(runtime, ProcessRuntime)
    assert runtime.root == hall / "large"
    assert (task.runtime_settings.gpus, task.runtime_settings.image) == (0, None)
    settings = type(named_settings("hall"))
    small: RuntimeSettings = settings(room="small")  # type: ignore[call-arg]
    task = DeadlineTrainingOperator(task_id="task", **TRAIN, runtime=small)
    assert serialize_template_field(task.runtime, "runtime") == {"name": "hall", "room": "small"}
    with pytest.raises(InvalidInputError, match=r"^runtime\.room: got '', expected text"):
        settings(room="")  # type: ignore[call-arg]
    with pytest.raises(InvalidInputError, match="got 'hall', expected 'docker', 'kubernetes' or another runtime that"):
        DeadlineTrainingOperator(task_id="task", **TRAIN, runtime="hall", team={})


@pytest.mark.usefixtures("hall")
def test_administrator_may_allow_the_runtime_of_another_package(monkeypatch: pytest.MonkeyPatch) -> None:
    task = DeadlineTrainingOperator(task_id="task", **TRAIN, runtime="hall")
    for allowed in ("hall", "docker,hall"):
        monkeypatch.setenv("AIRFLOW__PACELINE__ALLOWED_RUNTIMES", allowed)
        assert task.choose_runtime().name == "hall"
    monkeypatch.setenv("AIRFLOW__PACELINE__ALLOWED_RUNTIMES", "docker,process")
    with pytest.raises(AirflowFailException, match="runtime: got 'hall', expected 'docker' or 'process', as set by"):
        task.execute(run_context(task, "x"))


@pytest.mark.usefixtures("misnamed")
def test_unknown_name_is_rejected_with_the_installed_names() -> None:
    for name in ("podman", "", None, ["docker"]):
        with pytest.raises(
            InvalidInputError, match=r"expected one of auto, docker, hall, kubernetes, other, process, or settings"
        ):
            DeadlineTrainingOperator(task_id="task", **TRAIN, runtime=name)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="runtime: got 'other', expected an entry point for a RuntimeSettings"):
        named_settings("other")


def test_settings_without_parentheses_are_rejected_when_the_dag_is_parsed() -> None:
    with pytest.raises(InvalidInputError, match=r"runtime: got 'Docker', expected settings such as Docker\(\.\.\.\)"):
        DeadlineTrainingOperator(task_id="train", script="train.py", runtime=Docker)


# --- teams and errors -------------------------------------------------------------------------------------------------


class ElsewhereRuntime(ProcessRuntime):
    name = "elsewhere"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Elsewhere(RuntimeSettings):
    """Settings of a stranger's runtime whose jobs form teams."""

    name = "elsewhere"
    forms_teams = True
    room: str = "large"

    def open(self) -> ElsewhereRuntime:
        return ElsewhereRuntime()


def test_runtime_of_another_package_forms_teams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIRFLOW__PACELINE__ALLOWED_RUNTIMES")
    task = DeadlineTrainingOperator(task_id="task", script="train.py", runtime=Elsewhere(), team={})
    context = run_context(task, "x")
    context["ti"].try_number, context["ti"].max_tries = 1, 2
    host = TaskHost(task, {**context, "task_state_store": MemoryState()}, ())
    for runtime in (host.runtime(), *host.runtimes()):
        assert isinstance(runtime, TeamRuntime)
        assert runtime.name == "elsewhere"


def test_runtime_that_is_chosen_for_the_job_has_to_form_teams(monkeypatch: pytest.MonkeyPatch) -> None:
    task = DeadlineTrainingOperator(task_id="task", script="train.py", team={})
    monkeypatch.setattr(task, "choose_runtime", Process)
    context = run_context(task, "x")
    context["ti"].try_number, context["ti"].max_tries = 1, 2
    host = TaskHost(task, {**context, "task_state_store": MemoryState()}, ())
    with pytest.raises(InvalidInputError, match="got 'process', expected 'docker', 'kubernetes' or another"):
        host.runtime()
    assert [one.name for one in host.runtimes()] == ["docker"]


@pytest.mark.parametrize(
    ("runtime", "field", "named"),
    [
        (Docker(), "image", "runtime.image"),
        ("auto", "image", "runtime.image"),
        (Elsewhere(), "room", "runtime.room"),
        (Elsewhere(), "image", "image"),
        (Docker(), "devices", "devices"),
        (Docker(), "runtime.image", "runtime.image"),
    ],
)
def test_error_of_a_runtime_names_the_setting_as_the_user_wrote_it(runtime: Any, field: str, named: str) -> None:
    task = DeadlineTrainingOperator(task_id="task", **TRAIN, runtime=runtime)
    assert task.describe(InvalidInputError(field, "x", "another")) == f"{named}: got 'x', expected another"
    assert task.describe(PacelineError("image: x")) == "image: x"
