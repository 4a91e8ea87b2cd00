"""The results of past trainings, from which ``paceline simulate --from-airflow`` makes its jobs."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.utils.state import TaskInstanceState
from tests.samples import a_sample

from paceline.airflow import cli
from paceline.airflow.api import AirflowApi
from paceline.contract import PACE, RESULT, StoredResult, TrainingResult
from paceline.control import PastRun
from paceline.simulate.past import COLUMNS

from .server import Server, run_server
from .test_grants import empty_database  # noqa: F401

VIEWER = SimpleAuthManagerUser(username="vera", role="VIEWER")
ORIGIN = datetime.now(timezone.utc).replace(microsecond=0) - timedelta(hours=2)
# 400 s on one core, and 20 s that do not depend on the cores.
PAST = PastRun(4000, startup_s=15, tail_s=5, devices=2.0, batches_per_s=20.0, exponent=1.0, pauses_s=0.0)


@pytest.fixture
def server(empty_database: Path, tmp_path: Path) -> Iterator[Server]:  # noqa: F811
    with run_server(empty_database, tmp_path, SimpleAuthManager()) as server:
        yield server


def add_training(
    server: Server,
    dag_id: str,
    *,
    after_s: float = 0.0,
    deadline_s: float | None = 600.0,
    past: PastRun | None = PAST,
    quantum: float = 0.5,
    **task: Any,
) -> None:
    """Store a training that has started ``after_s`` seconds after the first, with its result and its last sample."""
    origin = ORIGIN + timedelta(seconds=after_s)
    result = TrainingResult(
        model="/models/1", runtime="process", origin=origin, finished_s=220.0, deadline_s=deadline_s, error_pct=None,
        met=True, mean_devices=1.0, device_seconds=220.0, resizes=0, restarts=0, step_ms_mean=1.0, step_ms_max=2.0,
        store_ms_mean=1.0, learned=None if past is None else past.to_dict(),
    )  # fmt: skip
    stored = StoredResult(try_number=1, max_tries=0, result=result)
    pace = a_sample(state="finished", quantum=quantum, min_devices=quantum, max_devices=2.0, deadline_s=deadline_s)
    values = {RESULT: stored.to_json(), PACE: pace.to_json()}
    server.add_task(dag_id, values, **{"state": TaskInstanceState.SUCCESS, "started_at": origin, **task})


@pytest.fixture
def simulate(server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Return a function that runs ``paceline simulate`` and returns its code, output and errors, without progress."""

    def connect(options: Any) -> AirflowApi:
        api = AirflowApi("http://testserver", {}, token="any")
        api._client = server.client(VIEWER)
        return api

    monkeypatch.setattr(cli, "_connect", connect)

    def run(*arguments: str) -> tuple[int, list[str], str]:
        code = cli.main(["simulate", *arguments])
        output = capsys.readouterr()
        errors = [line for line in output.err.splitlines() if line.startswith("paceline: ")]
        return code, output.out.splitlines(), "\n".join(errors)

    return run


def test_past_trainings_are_simulated_under_each_policy(server: Server, simulate: Any, tmp_path: Path) -> None:
    add_training(server, "late", after_s=30, deadline_s=300.0)
    add_training(server, "soon", deadline_s=700.0)
    add_training(server, "whenever", after_s=60, deadline_s=None)
    outcomes = tmp_path / "outcomes.csv"
    policies = ("--policy", "fifo", "--policy", "on_time")
    options = ("--nodes", "2", "--period", "10", "--outcomes", str(outcomes))
    code, lines, error = simulate("--from-airflow", *policies, *options)
    assert (code, error) == (0, "")
    assert lines[0] == "3 past trainings on 2 cores"
    assert [line.split()[:5] for line in lines[2:]] == [
        ["fifo", "3", "of", "3", "50.0"], ["on_time", "3", "of", "3", "100.0"],
    ]  # fmt: skip
    rows = [row for row in csv.DictReader(outcomes.open()) if row["policy"] == "fifo"]
    # Each takes 420 s on one core, and 820 s on half a core, which suffices without a deadline.
    assert [(row["name"], row["started_s"], row["departed_s"], row["met"]) for row in rows] == [
        ("soon r task", "0.0", "420.0", "True"),
        ("late r task", "30.0", "450.0", "False"),
        ("whenever r task", "420.0", "1240.0", ""),
    ]


def test_exported_file_gives_the_same_results_and_can_be_edited(server: Server, simulate: Any, tmp_path: Path) -> None:
    add_training(server, "first", priority_weight=7)
    add_training(server, "second", after_s=100, deadline_s=None, quantum=0.05)
    file = tmp_path / "week" / "jobs.csv"
    assert simulate("--from-airflow", "--export", str(file)) == (0, [f"{file}: 2 past trainings"], "")
    first, second = csv.DictReader(file.open())
    assert tuple(first) == COLUMNS
    assert first == {
        "name": "first r task", "arrives_s": "0.0", "deadline_s": "600.0", "work_s": "400.0", "exponent": "1.0",
        "fixed_s": "20.0", "usable_devices": "", "min_devices": "0.5", "max_devices": "2.0", "quantum": "0.5",
        "priority_weight": "7",
    }  # fmt: skip
    assert (second["arrives_s"], second["deadline_s"]) == ("100.0", "")
    direct, read = simulate("--from-airflow", "--nodes", "2")[1], simulate(str(file), "--nodes", "2")[1]
    assert [line.split()[:-2] for line in direct[1:]] == [line.split()[:-2] for line in read]
    file.write_text(file.read_text().replace("600.0", "200.0"))
    policies = ("edf", "fifo", "greedy", "growing", "milp", "on_time", "on_time_promises", "priority")  # of an arbiter
    rows = [line.split() for line in simulate(str(file), "--nodes", "2")[1][1:]]
    assert [(row[0], row[4]) for row in rows] == [(name, "0.0") for name in policies]


def test_only_trainings_that_the_options_select_are_read(server: Server, simulate: Any) -> None:
    add_training(server, "here", pool="shared")
    add_training(server, "elsewhere")
    add_training(server, "on_gpus", quantum=1.0)
    add_training(server, "short", past=None)
    add_training(server, "failed", state=TaskInstanceState.FAILED)
    add_training(server, "runs", state=TaskInstanceState.RUNNING)
    code, lines, error = simulate("--from-airflow", "--nodes", "4")
    assert (code, lines[0]) == (0, "2 past trainings on 4 cores")
    assert sorted(error.splitlines()) == [
        "paceline: left out 1 of 4 trainings: allocated devices, see --unit",
        "paceline: left out 1 of 4 trainings: their speed was not learned, because they were too short or had another "
        "controller",
    ]
    assert simulate("--from-airflow", "--nodes", "4", "--pool", "shared")[1][0] == "1 past training on 4 cores"
    assert simulate("--from-airflow", "--nodes", "4", "--unit", "devices")[1][0] == "1 past training on 4 devices"
    assert simulate("--from-airflow", "--nodes", "4", "--jobs", "1")[1][0] == "1 past training on 4 cores"
    code, _, error = simulate("--from-airflow", "--nodes", "4", "--pool", "none")
    assert code == 1
    assert "--from-airflow: got 'http://localhost:8080', expected an Airflow in which trainings on cores" in error


def test_route_returns_the_newest_trainings_of_the_period_and_says_if_there_are_more(server: Server) -> None:
    for number in range(3):
        add_training(server, f"dag_{number}", after_s=number)
    client = server.client(VIEWER)

    def read(**query: Any) -> tuple[list[str], bool]:
        found = client.get("/paceline/api/jobs/results", params=query).json()
        return [one["dag_id"] for one in found["trainings"]], found["older"]

    assert read() == (["dag_0", "dag_1", "dag_2"], False)
    assert read(limit=2) == (["dag_1", "dag_2"], True)
    assert read(days=1e-9) == ([], False)
    assert client.get("/paceline/api/jobs/results", params={"days": 0}).status_code == 422


def test_value_that_a_user_has_edited_does_not_hide_the_others(server: Server, simulate: Any) -> None:
    add_training(server, "valid")
    server.add_task(
        "edited", {RESULT: {"try_number": "x"}, PACE: a_sample().to_json()}, state=TaskInstanceState.SUCCESS
    )
    add_training(server, "odd", past=None)
    assert simulate("--from-airflow", "--nodes", "2")[1][0] == "1 past training on 2 cores"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "TRACE: got None, expected a file or the name of a workload, or else --from-airflow"),
        (("modelarts", "--from-airflow"), "TRACE: got 'modelarts', expected"),
        (("--from-airflow",), "--nodes: got None, expected the number of cores in the pool, or --export"),
        (("modelarts", "--export", "jobs.csv"), "--export: got 'jobs.csv', expected --from-airflow"),
        (("--from-airflow", "--export", "/"), "--export: got '/', expected a file that can be written"),
        (
            ("--from-airflow", "--nodes", "1", "--unit", "devices"),
            "got 1, expected at least 2, the smallest",
        ),
    ],
)
def test_unusable_argument_is_named(server: Server, simulate: Any, arguments: Any, message: str) -> None:
    add_training(server, "first", quantum=0.5)
    add_training(server, "large", quantum=2.0)
    code, _, error = simulate(*arguments)
    assert code == 1
    assert message in error
