"""A task or command that needs a missing library names the library and the extra that installs it."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from paceline.airflow.cli import main
from paceline.extras import MissingLibraryError, require
from paceline.fleet import Fleet, Machine
from paceline.operators import ArbiterOperator, ProfileOperator, ScheduleOperator
from paceline.run.picture import draw

GATE = Machine(name="gate", kind="nano", cores=1, memory_gib=1, cgroup_parent="/gate")
FLEET = Fleet(machines=(GATE,), parameter_server=GATE.model_copy(update={"name": "server", "cgroup_parent": "/server"}))
CONTEXT: Any = {"ti": SimpleNamespace(dag_id="dag", run_id="run", task_id="task", map_index=-1)}
TASKS = {
    "sklearn": lambda: ScheduleOperator(task_id="schedule", fleet=FLEET, profiles="profiles", samples=10),
    "pandas": lambda: ProfileOperator(task_id="profile", fleet=FLEET, profiles="profiles", script=__file__),
    "numpy": lambda: ArbiterOperator(task_id="arbiter", pool="training", devices=2, conn_id="airflow_api"),
}


@pytest.mark.parametrize("library", TASKS)
def test_task_without_a_library_fails_and_names_the_extra(monkeypatch: pytest.MonkeyPatch, library: str) -> None:
    task: Any = TASKS[library]()
    monkeypatch.setitem(sys.modules, library, None)
    message = rf"^{library} is not installed here: pip install 'airflow-paceline\[worker\]'$"
    with pytest.raises(AirflowFailException, match=message):
        task.execute(CONTEXT)


def test_command_without_a_library_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["simulate", "andreas-small", "--picture", "queue.png"]) == 1
    error = capsys.readouterr().err
    assert error == "paceline: scipy, matplotlib are not installed here: pip install 'airflow-paceline[worker]'\n"


def test_error_for_missing_matplotlib_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingLibraryError, match=r"matplotlib is not installed here: .*\[worker\]"):
        draw({}, tmp_path / "pace.png")


def test_installed_libraries_are_accepted() -> None:
    require("worker", "json", "sqlite3")
