"""Which jobs ``paceline clean`` removes."""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from paceline.airflow import _clean, engine_connection
from paceline.airflow.runtimes import named_settings
from paceline.contract import RUN_START, JobRecord
from paceline.errors import RuntimeUnavailableError
from paceline.runtime import JobSpec, JobStatus, ProcessRuntime


def test_jobs_of_unknown_runs_are_orphans_on_request_when_they_are_old(capsys):
    def is_orphan(age_s: float, *options: str) -> bool:
        arguments = argparse.ArgumentParser()
        _clean.add_command(arguments.add_subparsers(), [], lambda _: None)
        status = JobStatus("running", started_s=time.time() - age_s)
        job = _clean.FoundJob(ProcessRuntime(), "job", {}, status, "unknown", None)
        return job.is_orphan(arguments.parse_args(["clean", *options]))

    assert not is_orphan(1e9)
    assert not is_orphan(6.9 * 86_400, "--unknown")
    assert is_orphan(7.1 * 86_400, "--unknown")
    assert is_orphan(3700, "--unknown", "--older-than", "1h")
    assert not is_orphan(3500, "--unknown", "--older-than", "1h")
    for invalid in ("soon", "90", "1.5", "90days", "none"):
        with pytest.raises(SystemExit):
            is_orphan(0, "--unknown", "--older-than", invalid)
        assert f"got {invalid!r}, expected a duration with its unit, such as 12h or 30d" in capsys.readouterr().err


RUNNING = JobStatus("running")
STOPPED = JobStatus("exited", exit_code=143, stopped=True)
COMPLETED = JobStatus("exited", exit_code=0)


class FakeAirflow:
    """A fake of the REST API in which every task of the run has one state."""

    first_start = "2030-01-01T00:00:00+00:00"

    def __init__(self, run_state: str, task_state: str | None) -> None:
        self._run_state, self._task_state = run_state, task_state
        self.stored: dict[str, object] = {}

    def dag_run(self, dag, run):
        return {"start_date": "2030-01-01T14:00:00Z", "state": self._run_state}  # a user has cleared the run

    def task_instance(self, dag, run, task, index):
        return {"state": self._task_state}

    def task_state(self, dag, run, task, key, map_index):
        return self.first_start if key == RUN_START else self.stored.get(key)

    def delete_task_state(self, dag, run, task, key, map_index):
        assert (dag, run, task, map_index) == ("dag", "run", "task", -1)
        self.stored.pop(key, None)


class FakeRuntime:
    """A fake runtime with one job."""

    def __init__(self, status: JobStatus, role: str | None) -> None:
        self._status = status
        self._labels = {"paceline.dag": "dag", "paceline.run": "run", "paceline.task": "task"}
        self._labels |= {"paceline.run_start": "2030-01-01T00:00:00+00:00"} | ({"paceline.role": role} if role else {})

    def jobs(self):
        return [("job", self._labels)]

    def reattach(self, job_id):
        return SimpleNamespace(status=lambda: self._status, close=lambda: None, remove=lambda: None)


@pytest.mark.parametrize(
    ("status", "role", "owner"),
    [
        (RUNNING, None, "none"),
        (STOPPED, None, "checkpoint"),
        (COMPLETED, None, "output"),
        (RUNNING, "server", "none"),
        (STOPPED, "server", "checkpoint"),
        (COMPLETED, "server", "none"),  # it has no output
        (RUNNING, "worker", "none"),
        (STOPPED, "worker", "none"),  # its checkpoint is on the server
        (COMPLETED, "worker", "output"),
    ],
)
def test_job_of_an_ended_task_is_kept_only_for_what_a_cleared_task_would_use(status, role, owner):
    (job,) = _clean.find_jobs(FakeAirflow("failed", "failed"), [FakeRuntime(status, role)])  # type: ignore[arg-type, list-item]
    assert job.owner == owner


def test_job_whose_status_the_engine_does_not_report_is_listed_and_stays(monkeypatch):
    """As that of a container that is receiving its files."""
    runtime = FakeRuntime(RUNNING, None)

    def reattach(job_id):
        raise RuntimeUnavailableError("Read timed out.")

    monkeypatch.setattr(runtime, "reattach", reattach)
    (job,) = _clean.find_jobs(FakeAirflow("failed", "failed"), [runtime])  # type: ignore[arg-type, list-item]
    assert (job.status.state, job.owner) == ("running", "unread")
    options = argparse.Namespace(kept=True, checkpoints=True, unknown=True, older_than=0.0)
    assert not job.is_orphan(options), "it may have ended with an output or a checkpoint"


@pytest.mark.parametrize(("recorded", "left"), [("job", {"pace"}), ("newer", {"pace", "ceiling", "container"})])
def test_removed_job_leaves_no_record_for_which_an_arbiter_would_reserve_devices(monkeypatch, recorded, left):
    record = JobRecord(runtime="docker", id=recorded, origin="2030-01-01T12:00:00Z", devices=1.0)
    airflow = FakeAirflow("failed", "failed")
    airflow.stored = {"pace": {}, "ceiling": 1.0, "container": record.to_json()}
    monkeypatch.setattr(_clean, "report_folders", lambda remove: None)
    monkeypatch.setattr(_clean, "_available_runtimes", lambda *engines: [FakeRuntime(RUNNING, None)])
    arguments = argparse.ArgumentParser()
    _clean.add_command(arguments.add_subparsers(), [], lambda _: airflow)
    options = arguments.parse_args(["clean", "--remove"])
    assert options.run(options) == 0
    assert airflow.stored.keys() == left


def test_job_that_cannot_be_removed_is_named_and_the_others_are_removed(monkeypatch, capsys):
    def refuse():
        raise RuntimeUnavailableError("Read timed out.")

    runtime = FakeRuntime(RUNNING, None)
    monkeypatch.setattr(
        runtime, "reattach", lambda job: SimpleNamespace(status=lambda: RUNNING, close=lambda: None, remove=refuse)
    )
    airflow = FakeAirflow("failed", "failed")
    airflow.stored = {"pace": {}}
    monkeypatch.setattr(_clean, "report_folders", lambda remove: None)
    monkeypatch.setattr(_clean, "_available_runtimes", lambda *engines: [runtime, FakeRuntime(RUNNING, None)])
    arguments = argparse.ArgumentParser()
    _clean.add_command(arguments.add_subparsers(), [], lambda _: airflow)
    options = arguments.parse_args(["clean", "--remove"])
    assert options.run(options) == 1
    printed = capsys.readouterr().out
    assert "Could not remove job: Read timed out." in printed
    assert "Removed job" in printed, "the other jobs are removed"


@pytest.mark.parametrize("start", [None, "2030-01-01T00:00:01+00:00"])
def test_job_of_another_airflow_with_the_same_names_is_unknown(start):
    airflow = FakeAirflow("failed", "failed")
    airflow.first_start = start
    (job,) = _clean.find_jobs(airflow, [FakeRuntime(RUNNING, None)])  # type: ignore[arg-type, list-item]
    assert job.owner == "unknown"


def test_job_of_an_unscheduled_task_is_an_orphan_once_its_run_is_over():
    def owner(run_state: str, task_state: str | None) -> str:
        (job,) = _clean.find_jobs(FakeAirflow(run_state, task_state), [FakeRuntime(RUNNING, "worker")])  # type: ignore[arg-type, list-item]
        return job.owner

    assert (owner("running", None), owner("failed", None), owner("failed", "running")) == ("task", "none", "task")


def test_checkpoints_are_removed_on_request_without_the_outputs():
    def removed(*options: str) -> list[bool]:
        arguments = argparse.ArgumentParser()
        _clean.add_command(arguments.add_subparsers(), [], lambda _: None)
        jobs = [
            _clean.FoundJob(ProcessRuntime(), "job", {}, STOPPED, owner, None) for owner in ("checkpoint", "output")
        ]
        return [job.is_orphan(arguments.parse_args(["clean", *options])) for job in jobs]

    assert (removed(), removed("--checkpoints"), removed("--kept")) == ([False, False], [True, False], [True, True])


@pytest.mark.parametrize(
    ("owner", "options"), [("output", "--remove --kept"), ("checkpoint", "--remove --checkpoints")]
)
def test_line_of_a_kept_job_names_the_options_that_remove_it(owner, options):
    job = _clean.FoundJob(ProcessRuntime(), "job", {}, COMPLETED, owner, None)
    assert _clean._table_row(job)[-1].endswith(f", or remove it with {options}")
    arguments = argparse.ArgumentParser()
    _clean.add_command(arguments.add_subparsers(), [], lambda _: None)
    assert job.is_orphan(arguments.parse_args(["clean", *options.split()]))


@pytest.fixture
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this machine have no Docker engine and no cluster, whatever its environment says."""
    for name in ("DOCKER_HOST", "KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    # The library reads $KUBECONFIG when it is imported.
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", "/nowhere/config")
    monkeypatch.setattr(engine_connection, "_LOCAL_ENGINE", f"unix://{tmp_path}/docker.sock")


@pytest.mark.usefixtures("bare_machine")
def test_missing_engine_and_unnamed_cluster_are_not_reported(capsys):
    assert [runtime.name for runtime in _clean._available_runtimes(None, "kubernetes_default")] == ["process"]
    assert capsys.readouterr().out == ""


@pytest.mark.usefixtures("bare_machine")
@pytest.mark.parametrize(
    ("variable", "value", "runtime"),
    [
        ("DOCKER_HOST", "unix:///nowhere/docker.sock", "docker"),
        ("KUBECONFIG", "/nowhere/config", "kubernetes"),
        ("AIRFLOW_CONN_KUBERNETES_DEFAULT", '{"extra": {"kube_config_path": "/nowhere/config"}}', "kubernetes"),
    ],
)
def test_configured_runtime_that_does_not_respond_is_reported(monkeypatch, capsys, variable, value, runtime):
    monkeypatch.setenv(variable, value)
    assert [found.name for found in _clean._available_runtimes(None, "kubernetes_default")] == ["process"]
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"Cannot list the jobs of the runtime {runtime}: ")


@pytest.mark.usefixtures("hall")
def test_jobs_of_a_strangers_runtime_are_listed_and_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # the jobs of other tests are elsewhere
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    runtime = named_settings("hall").open()
    labels = {"paceline.dag": "dag", "paceline.run": "night", "paceline.run_start": FakeAirflow.first_start}
    jobs = {
        task: runtime.start(
            JobSpec(task, ["python", "-c", "import signal; signal.pause()"], 0.1, labels={**labels, **extra})
        )
        for task, extra in (("ours", {"paceline.task": "train"}), ("foreign", {}))
    }

    def clean(*options: str) -> str:
        parser = argparse.ArgumentParser()
        _clean.add_command(parser.add_subparsers(), [], lambda _: FakeAirflow("failed", "failed"))
        arguments = parser.parse_args(["clean", *options])
        assert arguments.run(arguments) == 0
        return capsys.readouterr().out

    listed = clean()
    assert "Cannot list the jobs of the runtime docker" in listed
    rows = [line.split()[:5] for line in listed.splitlines()]
    assert ["paceline-ours", "running", "dag", "night", "train"] in rows
    assert ["paceline-foreign", "running", "dag", "night", "-"] in rows
    assert "Orphaned jobs: 1 of 2. Add --remove to remove them." in listed
    assert "Removed paceline-ours" in clean("--remove")
    assert [job_id for job_id, _ in runtime.jobs()] == [jobs["foreign"].id]
    assert jobs["ours"].status().state == "gone"
    jobs["foreign"].remove()
