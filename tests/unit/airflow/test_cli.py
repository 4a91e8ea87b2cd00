"""The output of the ``paceline`` command for a fake Airflow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from unittest.mock import Mock

import pytest
from tests.samples import a_sample

from paceline.airflow import cli
from paceline.airflow.api import AirflowApiError


class FakeAirflow:
    """A fake of the pages' API with running jobs."""

    def pages(self, path, *, recent):
        assert (path, recent) == ("/jobs", 0)
        pace = a_sample().to_json()
        jobs = [("dag", "run-0", -1), ("dag", "run-1", 3), ("other", "run-2", -1)]
        about = {"task_id": "train", "state": "running", "pace": pace}
        listed = [{"dag_id": dag, "run_id": run, "map_index": index, **about} for dag, run, index in jobs]
        return {"running": listed, "unstarted": []}


@pytest.mark.parametrize(("dag", "names"), [([], ["train", "train[3]", "train"]), (["dag"], ["train", "train[3]"])])
def test_status_lists_running_jobs(monkeypatch, capsys, dag, names):
    monkeypatch.setattr(cli, "_connect", lambda options: FakeAirflow())
    assert cli.main(["status", *dag]) == 0
    shown = capsys.readouterr().out.splitlines()[1:]
    assert [line.split()[2] for line in shown] == names


@pytest.mark.parametrize(
    ("sample", "shown"),
    [({}, "1.00 cores"), ({"quantum": 1.0}, "1.00 devices"), ({"shares_gpus": True}, "1.00 GPUs")],
)
def test_status_names_the_unit_of_an_allocation(monkeypatch, capsys, sample, shown):
    job = {"dag_id": "dag", "run_id": "r", "task_id": "train", "map_index": -1, "state": "running"}
    job["pace"] = a_sample(**sample).to_json()
    monkeypatch.setattr(
        cli, "_connect", lambda options: Mock(**{"pages.return_value": {"running": [job], "unstarted": []}})
    )
    assert cli.main(["status"]) == 0
    assert shown in capsys.readouterr().out


@pytest.mark.parametrize(
    ("sample", "shown"),
    [
        ({"progress_pct": 90.0, "feasible": False}, "cannot be met, 348 s late at best"),
        ({"progress_pct": 100.0, "feasible": False, "state": "finishing"}, "348 s late"),
        ({"progress_pct": 80.0, "feasible": False, "state": "finished"}, "348 s late"),  # a metric has ended it early
        ({"progress_pct": 80.0, "feasible": False, "state": "failed"}, "-"),
        ({"progress_pct": 100.0, "state": "finishing", "forecast_s": 238.0}, "2 s"),
    ],
)
def test_status_of_a_late_job_says_by_how_much(monkeypatch, capsys, sample, shown):
    pace = a_sample(**{"deadline_s": 240.0, "forecast_s": 588.0, "earliest_s": 588.0, **sample}).to_json()
    job = {"dag_id": "dag", "run_id": "r", "task_id": "train", "map_index": -1, "state": "running", "pace": pace}
    found = {"running": [job], "unstarted": []}
    monkeypatch.setattr(cli, "_connect", lambda options: Mock(**{"pages.return_value": found}))
    assert cli.main(["status"]) == 0
    heading, line = capsys.readouterr().out.splitlines()
    assert line[heading.index("SLACK") :] == shown


@pytest.mark.parametrize(
    ("state", "sample", "shown"),
    [("up_for_retry", "failed", "failed, waits for its next try"), ("queued", "finished", "finished  ")],
)
def test_status_of_a_job_between_two_processes_says_what_follows(monkeypatch, capsys, state, sample, shown):
    job = {"dag_id": "dag", "run_id": "r", "task_id": "train", "map_index": -1, "state": state}
    job["pace"] = a_sample(state=sample).to_json()
    found = {"running": [job], "unstarted": []}
    monkeypatch.setattr(cli, "_connect", lambda options: Mock(**{"pages.return_value": found}))
    assert cli.main(["status"]) == 0
    heading, line = capsys.readouterr().out.splitlines()
    assert line[heading.index("STATE") :].startswith(shown)


def test_status_as_json_has_the_newest_samples(monkeypatch, capsys):
    monkeypatch.setattr(cli, "_connect", lambda options: FakeAirflow())
    assert cli.main(["status", "dag", "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert (first["dag_id"], first["run_id"], first["task_id"], first["map_index"]) == ("dag", "run-0", "train", -1)
    assert first["pace"] == second["pace"] == a_sample().to_json()


@pytest.mark.parametrize(
    ("state", "age", "shown"),
    [
        ("failed", timedelta(minutes=50), "was not started ("),
        ("failed", timedelta(minutes=70), None),
        ("up_for_retry", timedelta(days=2), "was not started yet, Airflow tries again ("),
    ],
)
def test_status_lists_trainings_that_did_not_start(monkeypatch, capsys, state, age, shown):
    job = {"dag_id": "dag", "run_id": "r", "task_id": "train", "map_index": 2, "state": state, "reason": "no engine"}
    job["at"] = (datetime.now(timezone.utc) - age).isoformat()
    found = {"running": [], "unstarted": [job, {**job, "dag_id": "other"}]}
    monkeypatch.setattr(cli, "_connect", lambda options: Mock(**{"pages.return_value": found}))
    assert cli.main(["status", "dag"]) == 0
    first, *others = capsys.readouterr().out.splitlines()
    assert first == "No training job is running."
    assert len(others) == (1 if shown else 0)
    for line in others:
        assert line.startswith(f"dag  r  train[2]  {shown}")
        assert line.endswith("): no engine")
    assert cli.main(["status", "dag", "--json"]) == 0
    listed = [(one["pace"], one["reason"]) for one in json.loads(capsys.readouterr().out)]
    assert listed == ([(None, "no engine")] if shown else [])


def test_error_for_an_invalid_url_names_the_url(monkeypatch, capsys):
    monkeypatch.setenv("PACELINE_AIRFLOW_TOKEN", "a token")
    assert cli.main(["status", "--url", "http://localhost:port"]) == 1
    assert "--url: got 'http://localhost:port', expected a reachable Airflow" in capsys.readouterr().err


@pytest.mark.parametrize("token", ["sécret", "se\ncret"])
def test_token_that_no_header_can_contain_is_rejected_and_not_printed(monkeypatch, capsys, token):
    monkeypatch.setenv("PACELINE_AIRFLOW_TOKEN", token)
    assert cli.main(["status", "--url", "http://127.0.0.1:9"]) == 1
    error = capsys.readouterr().err
    assert "PACELINE_AIRFLOW_TOKEN: got '(hidden)', expected printable ASCII characters" in error
    assert "cret" not in error


def test_engine_of_clean_that_does_not_respond_is_an_error(monkeypatch, capsys):
    monkeypatch.setenv("PACELINE_AIRFLOW_TOKEN", "a token")
    assert cli.main(["clean", "--url", "http://127.0.0.1:9", "--engine", "unix:///missing.sock"]) == 1
    assert "could not connect to the Docker engine" in capsys.readouterr().err


def test_interrupt_ends_the_command_without_traceback(monkeypatch):
    def interrupt(options):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_connect", interrupt)
    assert cli.main(["status"]) == 130


def test_closed_pipe_ends_the_command_without_traceback(tmp_path):
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text("machines: [{name: gate, kind: nano, cores: 1, memory_gib: 1}]")
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run(
        [sys.executable, "-m", "paceline.airflow.cli", "fleet", "check", str(fleet)],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        env={**os.environ, "DOCKER_HOST": "unix:///missing.sock"},
    )
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (1, "")


def test_unix_time_as_a_deadline_is_rejected_before_airflow_is_called(monkeypatch, capsys):
    monkeypatch.setattr(cli, "_connect", lambda options: pytest.fail("Airflow was called"))
    assert cli.main(["deadline", "set", "dag", "latest", "train", "1900000000"]) != 0
    assert "a Unix time? write an ISO 8601 time" in capsys.readouterr().err


class FleetAirflow:
    """A fake of the pages' API with a run in which a fleet trains, and another training task."""

    author = None

    def __init__(self) -> None:
        self.deadlines = {("train.gate-1", -1): "20m", ("train.gate-2", -1): "20m", ("training", -1): "1h"}
        self.deadlines |= {("mapped", index): "20m" for index in (0, 1)}
        self.without_job: list[tuple[str, int]] = []

    def pages(self, path, json=None, *, method="GET"):
        if method == "PUT":
            assert path == "/dags/dag/dagRuns/run/deadline"
            for job in json["jobs"]:
                assert job["seen"] == "2030-01-01T12:00:00Z"
                self.deadlines[job["task_id"], job["map_index"]] = json["deadline"]
            return None
        if path != "/dags/dag/dagRuns/run/jobs":
            return {"state": None, "jobs": []}
        jobs = [self._job(key, value) for key, value in self.deadlines.items()]
        kept = {**self._job(("train.gate-3", -1), "20m"), "state": "failed"}  # its job is stopped, with a checkpoint
        return {"state": "running", "jobs": [*jobs, kept, {**self._job(("train.result", -1), ""), "deadline": None}]}

    def api(self, method, path, **params):
        if path == "/dags/dag/dagRuns/run/taskInstances":
            assert params == {"state": ["running", "deferred"], "limit": 100}
            return {"task_instances": [{"task_id": task, "map_index": index} for task, index in self.without_job]}
        if path != "/dags/dag":
            raise AirflowApiError(404, f"{method} {path}: 404 The Dag with ID: `{path[6:]}` was not found")

    def _job(self, key, value):
        deadline = {"value": value, "by": self.author, "updated_at": "2030-01-01T12:00:00Z"}
        pace = a_sample(deadline_s=3600.0 if value == "1h" else 1200.0).to_json()
        return {"task_id": key[0], "map_index": key[1], "state": "running", "deadline": deadline, "pace": pace}


@pytest.mark.parametrize(
    ("task", "changed"),
    [
        ("train", {("train.gate-1", -1), ("train.gate-2", -1)}),
        ("train.gate-2", {("train.gate-2", -1)}),
        ("training", {("training", -1)}),
        ("mapped", {("mapped", 0), ("mapped", 1)}),
    ],
)
def test_deadline_is_set_for_all_running_tasks_of_a_group(monkeypatch, capsys, task, changed):
    airflow = FleetAirflow()
    monkeypatch.setattr(cli, "_connect", lambda options: airflow)
    assert cli.main(["deadline", "set", "dag", "run", task, "60s"]) == 0
    assert {key for key, value in airflow.deadlines.items() if value == "60s"} == changed
    assert len(capsys.readouterr().out.splitlines()) == len(changed)


def test_replaced_deadline_is_printed_with_its_author(monkeypatch, capsys):
    airflow = FleetAirflow()
    airflow.author = "anna"
    monkeypatch.setattr(cli, "_connect", lambda options: airflow)
    assert cli.main(["deadline", "set", "dag", "run", "training", "90m"]) == 0
    assert "Deadline of training in run: 1h (set by anna) -> 90m." in capsys.readouterr().out


def test_deadline_of_a_group_is_shown_by_task(monkeypatch, capsys):
    monkeypatch.setattr(cli, "_connect", lambda options: FleetAirflow())
    assert cli.main(["deadline", "show", "dag", "run", "train"]) == 0
    assert capsys.readouterr().out == "train.gate-1: 20m\ntrain.gate-2: 20m\n"
    assert cli.main(["deadline", "show", "dag", "run", "training"]) == 0
    assert capsys.readouterr().out == "1h\n"
    assert cli.main(["deadline", "set", "dag", "run", "evaluate", "60s"]) == 1
    assert "TASK: got 'evaluate', expected a running training task of run run of dag (" in capsys.readouterr().err
    assert cli.main(["deadline", "set", "dag", "walk", "train", "60s"]) == 1
    assert "RUN: got 'walk', expected the id of a run of dag" in capsys.readouterr().err
    assert cli.main(["deadline", "set", "cat", "run", "train", "60s"]) == 1
    error = capsys.readouterr().err
    assert error == "paceline: GET /dags/cat: 404 The Dag with ID: `cat` was not found\n"


@pytest.mark.parametrize(
    ("task", "named"),
    [("late", "late"), ("many", "many[0], many[1]"), ("fleet", "fleet.gate-1"), ("fle", None)],
)
def test_task_whose_job_has_not_started_is_named(monkeypatch, capsys, task, named):
    airflow = FleetAirflow()
    airflow.without_job = [("late", -1), ("many", 1), ("many", 0), ("fleet.gate-1", -1)]
    before = dict(airflow.deadlines)
    monkeypatch.setattr(cli, "_connect", lambda options: airflow)
    assert cli.main(["deadline", "set", "dag", "run", task, "60s"]) == 1
    assert airflow.deadlines == before
    says = f"; {named} is running, but has no training job yet: wait until `paceline status` lists it"
    error = capsys.readouterr().err
    assert error.startswith(f"paceline: TASK: got '{task}', expected a running training task of run run of dag (")
    assert error.endswith(f"){says}\n" if named else ")\n")


@pytest.mark.parametrize(
    ("stored", "shown"),
    [
        (None, "none (in force: 1200 s)"),  # rejected, because the job has a deadline
        ("soon", "soon (in force: 1200 s)"),
        ("1s", "1s (in force: 1200 s)"),
        ("20m", "20m"),
        ("2030-01-01T12:20:00+00:00", "2030-01-01T12:20:00+00:00"),
    ],
)
def test_deadline_that_the_job_has_rejected_is_shown_with_the_one_in_force(monkeypatch, capsys, stored, shown):
    airflow = FleetAirflow()
    airflow.deadlines["training", -1] = stored
    monkeypatch.setattr(cli, "_connect", lambda options: airflow)
    assert cli.main(["deadline", "show", "dag", "run", "training"]) == 0
    assert capsys.readouterr().out == f"{shown}\n"
