"""``private_environment``: rendered when the task runs, and masked before the job starts."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import redact
from airflow.providers.openlineage.extractors.manager import ExtractorManager
from airflow.providers.openlineage.utils.utils import get_unknown_source_attribute_run_facet
from airflow.sdk import DAG, literal
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from airflow.utils.state import TaskInstanceState

from paceline.fleet import Fleet, Machine
from paceline.operators import DeadlineTrainingOperator, EvaluateOperator, ProfileOperator
from paceline.run import MemoryState

PRINT = "import os\nprint('the token is', os.environ['TOKEN'])\n"
FAIL = PRINT + "raise SystemExit(3)\n"


@pytest.fixture
def context() -> dict[str, Any]:
    now = datetime.now(timezone.utc)
    ti = SimpleNamespace(
        dag_id="dag", run_id="run", task_id="train", map_index=-1, try_number=1, max_tries=0, start_date=now,
        stats_tags={}, xcom_pull=lambda *_, **__: None,
    )  # fmt: skip
    secrets = {"password": "opensesame-1", "number": "0012345"}
    return {
        "ti": ti, "dag_run": SimpleNamespace(start_date=now), "task_state_store": MemoryState(), "secrets": secrets,
    }  # fmt: skip


@pytest.fixture
def job_environment(tmp_path: Path, context: Any) -> Callable[..., dict[str, str]]:
    """Return a function that returns the variables of a job, after the start of the task's try."""
    (tmp_path / "train.py").write_text(PRINT)

    def environment(variables: Any, **dag_arguments: Any) -> dict[str, str]:
        with DAG("dag", schedule=None, **dag_arguments):
            task = train(tmp_path, private_environment=variables)
        task.new_training(context)
        return dict(task.job_spec(context, tmp_path, 1.0).environment)

    return environment


def train(folder: Path, **arguments: Any) -> DeadlineTrainingOperator:
    script = str(folder / "train.py")
    return DeadlineTrainingOperator(task_id="train", script=script, deadline="1h", runtime="process", **arguments)


def is_masked(text: str) -> bool:
    return text not in str(redact(f"before {text} after"))


def test_template_is_rendered_when_the_task_runs_and_is_masked(job_environment: Callable[..., Any]) -> None:
    assert job_environment({"TOKEN": "{{ secrets.password }}"}) == {"TOKEN": "opensesame-1"}
    assert is_masked("opensesame-1")


def test_rendered_value_is_text_in_a_dag_with_native_objects(job_environment: Callable[..., Any]) -> None:
    native = {"render_template_as_native_obj": True}
    assert job_environment({"TOKEN": "{{ secrets.number }}"}, **native) == {"TOKEN": "0012345"}
    assert job_environment({"TOKEN": "{{ 12345e3 }}"}, **native) == {"TOKEN": "12345000.0"}


def test_second_start_of_a_try_does_not_render_a_rendered_value(tmp_path: Path, context: Any) -> None:
    (tmp_path / "train.py").write_text(PRINT)
    context["secrets"]["password"] = "opensesame {{ 1 + 1 }}"
    task = train(tmp_path, private_environment={"TOKEN": "{{ secrets.password }}"})
    for _ in range(2):  # a worker of a fleet may call it twice
        task.new_training(context)
    assert task.job_spec(context, tmp_path, 1.0).environment["TOKEN"] == "opensesame {{ 1 + 1 }}"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("opensesame-2\n", "opensesame-2\n"),
        ("opensesame-3 {# 7 #}", "opensesame-3 {# 7 #}"),
        (literal("opensesame-4 {{ x }}"), "opensesame-4 {{ x }}"),
        (1234567, "1234567"),
    ],
)
def test_value_without_a_template_is_unchanged_and_masked(
    job_environment: Callable[..., Any], value: Any, expected: str
) -> None:
    assert job_environment({"TOKEN": value}) == {"TOKEN": expected}
    assert is_masked(expected.strip())


def test_each_line_of_a_value_is_masked(job_environment: Callable[..., Any]) -> None:
    job_environment({"KEY": "  first-line-of-a-key\n\n     \nsecond-line-of-a-key\n"})
    assert is_masked("first-line-of-a-key")
    assert is_masked("second-line-of-a-key")
    assert str(redact("1\n\n2     3")) == "1\n\n2     3"


@pytest.mark.parametrize("value", ["", " ", "        ", "\n", "1", "no"])
def test_empty_or_short_value_masks_nothing(job_environment: Callable[..., Any], value: str) -> None:
    assert job_environment({"TOKEN": value}) == {"TOKEN": value}
    line = f"1 batch of 10, no loss yet{value}\n"
    assert str(redact(line)) == line


def test_private_values_are_in_no_template_field_and_no_attribute_for_lineage(tmp_path: Path, context: Any) -> None:
    """Airflow stores and shows the template fields of a task; OpenLineage's provider sends a task's attributes."""
    (tmp_path / "train.py").write_text(PRINT)
    gate = Machine(name="gate", kind="nano", cores=1, memory_gib=1)
    private = {"private_environment": {"TOKEN": "opensesame-5"}}
    with DAG("dag", schedule=None):
        training = train(tmp_path, **private)
        fleet = Fleet(machines=(gate,), parameter_server=gate)
        profile = ProfileOperator(task_id="p", fleet=fleet, profiles="/p", script="train.py", **private)
    training.new_training(context)
    for task in (training, profile):
        metadata = ExtractorManager().extract_metadata(
            SimpleNamespace(run_id="run"), task, TaskInstanceState.SUCCESS, context["ti"]
        )
        assert "opensesame-5" not in f"{[getattr(task, name) for name in task.template_fields]} {metadata}"
        assert "opensesame-5" not in str(get_unknown_source_attribute_run_facet(task))


@pytest.mark.parametrize("value", ["opensesame {{", "{% opensesame"])
def test_error_of_an_invalid_template_does_not_contain_the_value(tmp_path: Path, context: Any, value: str) -> None:
    (tmp_path / "train.py").write_text(PRINT)
    with DAG("dag", schedule=None):
        task = train(tmp_path, private_environment={"TOKEN": value})
    with pytest.raises(AirflowFailException, match=r"^private_environment\['TOKEN'\]: got '\*\*\*', expected a valid"):
        task.execute(context)


@pytest.mark.parametrize("value", ["opensesame", ["opensesame"], {1: "opensesame"}])
def test_value_other_than_a_mapping_is_rejected_without_showing_it(tmp_path: Path, value: Any) -> None:
    with pytest.raises(ValueError, match=r"private_environment: got <class .*>, expected a mapping of names") as error:
        train(tmp_path, private_environment=value)
    assert "opensesame" not in str(error.value)


def test_error_of_a_failed_training_masks_private_values(tmp_path: Path, context: Any) -> None:
    """A task's callbacks get the error, and may send it to a chat room."""
    (tmp_path / "train.py").write_text(FAIL)
    with pytest.raises(AirflowException, match=r"(?s)exit code 3.*the token is \*\*\*") as error:
        train(tmp_path, private_environment={"TOKEN": "opensesame-6"}).execute(context)
    assert "opensesame" not in str(error.value)


def test_error_of_a_failed_evaluation_masks_private_values(tmp_path: Path, context: Any) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_text("1")
    (tmp_path / "score.py").write_text(FAIL)
    task = EvaluateOperator(
        task_id="evaluate", model="flights", registry=str(tmp_path / "registry"), challenger=str(tmp_path / "model"),
        data={"rows": str(tmp_path / "score.py")}, metric="auc", script=str(tmp_path / "score.py"), runtime="process",
        private_environment={"TOKEN": "{{ secrets.password }}"},
    )  # fmt: skip
    with pytest.raises(AirflowException, match=r"(?s)exit code 3.*the token is \*\*\*") as error:
        task.execute(context)
    assert "opensesame" not in str(error.value)
