"""The administrator's options ``allowed_runtimes`` and ``allow_root`` of ``[paceline]``, which apply to all jobs."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowFailException
from demo.airflow_process import AirflowProcess

from paceline.errors import InvalidInputError, RuntimeUnavailableError
from paceline.fleet import Fleet, Machine
from paceline.operators import (
    DeadlineTrainingOperator,
    Docker,
    EvaluateOperator,
    ParameterServerOperator,
    ProfileOperator,
    ScheduleOperator,
    WorkerTrainingOperator,
    _restrictions,
)

GATE = Machine(name="gate", kind="nano", cores=1, memory_gib=1, cgroup_parent="/gate")
FLEET: dict[str, Any] = {"fleet": Fleet(machines=(GATE,), parameter_server=GATE)}
PLAN = {"workers": {"gate": {"samples": 10, "batch_size": 2}}}
TRAIN = {"script": "train.py", "deadline": "1m"}
JOBS: dict[Any, dict[str, Any]] = {
    DeadlineTrainingOperator: TRAIN,
    EvaluateOperator: {
        "model": "flights", "registry": "/r", "challenger": "/c", "data": {"a": "/a"}, "metric": "auc",
        "script": "evaluate.py",
    },
    ParameterServerOperator: {**FLEET, "plan": PLAN, "deadline": "1m"},
    ProfileOperator: {**FLEET, "profiles": "/p", "script": "train.py"},
    ScheduleOperator: {**FLEET, "profiles": "/p", "samples": 10},
    WorkerTrainingOperator: {**TRAIN, **FLEET, "worker": "gate", "plan": PLAN, "server_task_id": "server"},
}  # fmt: skip
CONTEXT: Any = {"ti": SimpleNamespace(dag_id="dag", run_id="run", task_id="task", get_task_states=lambda **_: {})}
NO_PROCESS = r"runtime: got 'process', expected 'docker', as set by the administrator in \[paceline\] allowed_runtimes"
NO_CONTAINER = (
    r"runtime: got 'docker', expected 'process', as set by the administrator in \[paceline\] allowed_runtimes"
)


@pytest.fixture(autouse=True)
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere.sock")


def allow(monkeypatch: pytest.MonkeyPatch, runtimes: str, *, uid: int = 0) -> None:
    """Set ``allowed_runtimes`` and the user of the worker process."""
    monkeypatch.setenv("AIRFLOW__PACELINE__ALLOWED_RUNTIMES", runtimes)
    monkeypatch.setattr("os.geteuid", lambda: uid)


def train(**arguments: Any) -> DeadlineTrainingOperator:
    return DeadlineTrainingOperator(task_id="train", **{**TRAIN, **arguments})


@pytest.mark.parametrize("operator", [DeadlineTrainingOperator, EvaluateOperator])
def test_forbidden_local_process_fails_the_task(monkeypatch: pytest.MonkeyPatch, operator: Any) -> None:
    allow(monkeypatch, "docker")
    task = operator(task_id="task", runtime="process", **JOBS[operator])
    with pytest.raises(AirflowFailException, match=NO_PROCESS):
        task.execute(CONTEXT)


@pytest.mark.parametrize("operator", JOBS)
def test_forbidden_container_fails_the_task(monkeypatch: pytest.MonkeyPatch, operator: Any) -> None:
    allow(monkeypatch, "process")
    task = operator(task_id="task", **{"runtime": "docker", **JOBS[operator]})
    with pytest.raises(AirflowFailException, match=NO_CONTAINER):
        task.execute(CONTEXT)


def test_forbidden_local_process_of_an_earlier_try_is_found_but_not_continued(monkeypatch: pytest.MonkeyPatch) -> None:
    allow(monkeypatch, "docker")
    assert "process" in [one.name for one in train().possible_runtimes()]
    with pytest.raises(InvalidInputError, match=NO_PROCESS):
        _restrictions.check_runtime("process")  # `Training` then removes the job


@pytest.mark.parametrize(
    ("runtimes", "uid", "expected"),
    [("", 1000, "process"), ("docker, process", 0, "process"), ("process", 0, "process")],
)
def test_auto_runtime_uses_an_allowed_local_process(
    monkeypatch: pytest.MonkeyPatch, runtimes: str, uid: int, expected: str
) -> None:
    allow(monkeypatch, runtimes, uid=uid)
    assert train().choose_runtime().name == expected


@pytest.mark.parametrize(
    ("runtimes", "uid", "reason"),
    [
        ("", 0, "the worker process runs as root, and [paceline] allowed_runtimes does not name 'process'"),
        ("docker", 1000, "[paceline] allowed_runtimes does not name 'process'"),
    ],
)
def test_auto_runtime_without_an_engine_fails_if_it_may_not_use_a_local_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], runtimes: str, uid: int, reason: str
) -> None:
    allow(monkeypatch, runtimes, uid=uid)
    with pytest.raises(RuntimeUnavailableError, match=r"no Docker engine responds at unix:///nowhere\.sock") as raised:
        train().choose_runtime()
    assert str(raised.value).endswith(f"; not running as a local process: {reason}")
    assert f"Not running as a local process: {reason}" in capsys.readouterr().out


def test_auto_runtime_fails_if_a_needed_container_is_forbidden(monkeypatch: pytest.MonkeyPatch) -> None:
    allow(monkeypatch, "process")
    with pytest.raises(InvalidInputError, match=NO_CONTAINER):
        train(script=None, command="python -m app").choose_runtime()


def test_auto_runtime_with_a_command_never_uses_a_local_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    allow(monkeypatch, "docker,process")
    with pytest.raises(RuntimeUnavailableError, match="no Docker engine responds"):
        train(script=None, command="python -m app").choose_runtime()
    assert "a container is needed by: command" in capsys.readouterr().out


def test_explicit_local_process_runs_as_root_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    allow(monkeypatch, "")
    assert train(runtime="process").choose_runtime().name == "process"


def test_fallback_to_a_local_process_is_a_warning_about_the_lost_isolation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    allow(monkeypatch, "docker,process")
    train().choose_runtime()
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "local process" in line]
    assert "warning" in line.lower()
    assert "no Docker engine responds" in line
    # Another test may have masked the word "secret" in this process.
    assert re.search(r"can read all files and \S+ that the worker's user \(uid 0\) can read", line)


@pytest.mark.parametrize("value", ["podman", "docker;process", "docker,,process"])
def test_invalid_list_of_runtimes_is_rejected_by_name(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    allow(monkeypatch, value)
    message = rf"\[paceline\] allowed_runtimes: got '{value}', expected names of .*: docker,kubernetes,process"
    with pytest.raises(AirflowFailException, match=message):
        train(runtime="process").execute(CONTEXT)


@pytest.mark.parametrize("operator", JOBS)
def test_forbidden_root_fails_the_task(monkeypatch: pytest.MonkeyPatch, operator: Any) -> None:
    monkeypatch.setenv("AIRFLOW__PACELINE__ALLOW_ROOT", "False")
    task = operator(task_id="task", runtime=Docker(allow_root=True), **JOBS[operator])
    with pytest.raises(
        AirflowFailException, match=r"^runtime\.allow_root: got True, expected False, as .* in \[paceline\] allow_root"
    ):
        task.execute(CONTEXT)


def test_options_are_declared_with_their_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIRFLOW__PACELINE__ALLOWED_RUNTIMES")
    assert (conf.get("paceline", "allowed_runtimes"), conf.getboolean("paceline", "allow_root")) == ("", True)


def test_worker_of_docker_compose_forbids_local_processes_and_root(project: Path) -> None:
    worker = yaml.safe_load((project / "docker-compose.yaml").read_text())["services"]["worker"]["environment"]
    options = {name: value for name, value in worker.items() if "PACELINE__" in name}
    assert options == {"AIRFLOW__PACELINE__ALLOWED_RUNTIMES": "docker", "AIRFLOW__PACELINE__ALLOW_ROOT": "False"}


def test_airflow_of_the_demo_falls_back_to_a_local_process_even_as_root(tmp_path: Path) -> None:
    assert AirflowProcess(tmp_path).env["AIRFLOW__PACELINE__ALLOWED_RUNTIMES"] == "docker,process"
