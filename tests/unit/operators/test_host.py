"""``TaskHost`` distinguishes an ended task from a drained worker, although Airflow sends the same signal."""

from __future__ import annotations

import json
import logging
import threading
from types import SimpleNamespace

import pytest
from tests.waiting import LONG_S

from paceline.contract import StoredFiles
from paceline.errors import InvalidInputError, RuntimeUnavailableError
from paceline.fleet import Fleet, Machine
from paceline.operators import DeadlineTrainingOperator, Docker, Kubernetes, ParameterServerOperator, Process, _host
from paceline.operators._host import TaskHost
from paceline.operators._output import describe_empty_output
from paceline.run import MemoryState
from paceline.runtime import JobSpec, ProcessRuntime


@pytest.fixture
def task_status(monkeypatch):
    monkeypatch.setattr(_host, "is_dags_test", lambda: False)

    def query_status(get_task_states, map_index=-1):
        task = DeadlineTrainingOperator(task_id="train", script="train.py", deadline="1m")
        ti = SimpleNamespace(dag_id="dag", run_id="run", task_id="train", map_index=map_index, try_number=1)
        ti.max_tries, ti.get_task_states = 2, get_task_states
        return TaskHost(task, {"ti": ti, "task_state_store": None}, ()).task_status()

    return query_status


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("failed", "over"),  # marked by a user
        ("success", "over"),
        ("skipped", "over"),
        ("restarting", "over"),  # cleared while it ran
        ("running", "active"),  # the worker is drained
        ("up_for_retry", "active"),  # its heartbeats were missed
        ("queued", "active"),
        (None, "active"),
    ],
)
def test_task_is_over_only_if_it_has_ended(task_status, state, expected):
    assert task_status(lambda **what: {"run": {"train": state}}) == expected


@pytest.mark.parametrize(
    ("runtime", "checkpoint_to", "expected"),
    [
        (Kubernetes(), "auto", "file:///models/7.checkpoint/"),
        (Docker(), "auto", None),
        ("auto", "auto", None),
        (Kubernetes(), None, None),
        (Docker(), "/checkpoints", "file:///checkpoints/"),
    ],
)
def test_checkpoints_are_copied_to_a_folder_of_the_job(runtime, checkpoint_to, expected):
    arguments = {"script": "train.py", "deadline": "1m", "output": "/models/7"}
    task = DeadlineTrainingOperator(task_id="train", runtime=runtime, checkpoint_to=checkpoint_to, **arguments)
    ti = SimpleNamespace(dag_id="dag", run_id="run", task_id="train", map_index=-1, try_number=1, max_tries=2)
    host = TaskHost(task, {"ti": ti, "task_state_store": MemoryState()}, ())
    host.job_name = lambda: "dag-train-0b97"
    copies = host.checkpoint_copies()
    assert (copies and copies.place) == (expected and f"{expected}dag-train-0b97")


def test_copies_on_the_disk_of_an_executor_pod_are_rejected(monkeypatch):
    monkeypatch.setenv("AIRFLOW_IS_K8S_EXECUTOR_POD", "True")
    arguments = {"script": "train.py", "deadline": "1m", "output": "s3://bucket/7", "checkpoint_to": "/no-such-folder"}
    task = DeadlineTrainingOperator(task_id="train", **arguments)
    ti = SimpleNamespace(dag_id="dag", run_id="run", task_id="train", map_index=-1, try_number=1, max_tries=2)
    with pytest.raises(InvalidInputError, match="checkpoint_to: got '/no-such-folder', expected an object storage URL"):
        task.new_training({"ti": ti, "task_state_store": MemoryState()})


def test_specification_has_the_cores_of_each_gpu(tmp_path):
    script = tmp_path / "train.py"
    script.touch()
    task = DeadlineTrainingOperator(
        task_id="train",
        script=str(script),
        deadline="1m",
        runtime=Docker(gpus=2),
        quantum=1,
        min_devices=1,
        cores_per_device=4,
    )
    ti = SimpleNamespace(dag_id="dag", run_id="run", task_id="train", map_index=-1, try_number=1, max_tries=2)
    spec = TaskHost(task, {"ti": ti, "task_state_store": MemoryState()}, ()).spec(tmp_path, 2.0)
    assert (spec.devices, spec.gpus, spec.cores_per_device) == (2.0, 2, 4)


@pytest.mark.parametrize(("cores_per_device", "cores"), [(None, 16.0), (4, 8.0)])
def test_job_with_a_share_of_its_gpus_has_the_same_cores_for_every_share(tmp_path, cores_per_device, cores):
    script = tmp_path / "train.py"
    script.touch()
    task = DeadlineTrainingOperator(
        task_id="train",
        script=str(script),
        deadline="1m",
        runtime=Process(gpus=2),
        quantum=0.05,
        cores_per_device=cores_per_device,
    )
    ti = SimpleNamespace(dag_id="dag", run_id="run", task_id="train", map_index=-1, try_number=1, max_tries=2)
    host = TaskHost(task, {"ti": ti, "task_state_store": MemoryState()}, ())
    specs = [host.spec(tmp_path, share) for share in (0.3, 2.0)]
    assert [(spec.shares_gpus, spec.cores(16.0)) for spec in specs] == [(True, cores)] * 2


def test_mapped_task_queries_its_own_state(task_status):
    queries = []
    assert task_status(lambda **what: queries.append(what) or {"run": {"train_3": "failed"}}, map_index=3) == "over"
    assert queries == [{"dag_id": "dag", "map_index": 3, "task_ids": ["train"], "run_ids": ["run"]}]


def test_task_status_is_unknown_if_the_supervisor_does_not_respond(task_status, monkeypatch):
    monkeypatch.setattr(_host, "_QUERY_TIMEOUT_S", 0.01)
    never = threading.Event()
    assert task_status(lambda **what: never.wait() and {}) == "unknown"
    never.set()

    def fail(**what):
        raise EOFError("the supervisor has ended")

    assert task_status(fail) == "unknown"


def test_task_status_is_queried_again_after_an_error_of_the_api_server(task_status, monkeypatch):
    monkeypatch.setattr(_host, "_QUERY_TIMEOUT_S", LONG_S)
    answers = iter([RuntimeError("503"), RuntimeError("the database is locked"), {"run": {"train": "failed"}}])

    def answer(**what):
        result = next(answers)
        if isinstance(result, Exception):
            raise result
        return result

    assert task_status(answer) == "over"


def test_stopped_task_of_airflow_dags_test_counts_as_over(task_status, monkeypatch):
    monkeypatch.setattr(_host, "is_dags_test", lambda: True)
    assert task_status(None) == "over"


@pytest.fixture
def collect_output_of(tmp_path, caplog):
    """Return a function that runs a local job and collects its output; it returns the warnings of the task's log."""

    def run_and_collect(code, make_task=DeadlineTrainingOperator, **arguments):
        script, library = tmp_path / "train.py", tmp_path / "library.py"
        script.write_text(code)
        library.touch()
        files = {"train.py": script, "lib/net.py": library}
        job = ProcessRuntime(tmp_path / "jobs").start(JobSpec("train", ["python", "train.py"], 1.0, files=files))
        try:
            assert job.wait(LONG_S)
            task = make_task(task_id="train", deadline="1m", output=str(tmp_path / "output"), **arguments)
            ti = SimpleNamespace(dag_id="dag", run_id="run", task_id="train", map_index=-1, try_number=1, max_tries=0)
            host = TaskHost(task, {"ti": ti, "task_state_store": MemoryState()}, ())
            host.log = logging.getLogger("task")  # Airflow's own log passes no records to pytest
            host.collect(job)
        finally:
            job.remove()
        return [record.message for record in caplog.records if record.name == "task"]

    return run_and_collect


EMPTY = "The output is empty: the job wrote no files to paceline.train.output_dir()"
SAVES_BESIDE_ITS_OUTPUT = "open('model.pt', 'w').close()"
OF_TASK = {"script": "dags/train.py", "files": {"lib/net.py": "dags/library.py"}}


@pytest.mark.parametrize(
    ("code", "more"),
    [
        (SAVES_BESIDE_ITS_OUTPUT, ". Files in its working folder are lost with the job: 'model.pt'"),
        ("pass", ""),
    ],
)
def test_empty_output_is_a_warning_that_names_files_of_the_working_folder(collect_output_of, code, more):
    assert collect_output_of(code, **OF_TASK) == [EMPTY + more]


def test_job_with_an_output_gets_no_warning(collect_output_of):
    saves = "import os, pathlib; pathlib.Path(os.environ['PACELINE_OUTPUT'], 'model.pt').touch(); "
    assert collect_output_of(saves + SAVES_BESIDE_ITS_OUTPUT, **OF_TASK) == []


def test_output_has_a_record_of_its_task_and_files_beside_it(collect_output_of, tmp_path):
    collect_output_of("import os, pathlib; pathlib.Path(os.environ['PACELINE_OUTPUT'], 'model.pt').touch()", **OF_TASK)
    stored = StoredFiles.read(json.loads((tmp_path / "output.paceline.json").read_text()))
    assert stored == StoredFiles(kind="output", dag_id="dag", run_id="run", task_id="train", names=["model.pt"])


def test_record_that_cannot_be_written_is_a_warning(collect_output_of, tmp_path):
    (tmp_path / "output.paceline.json").mkdir()
    saves = "import os, pathlib; pathlib.Path(os.environ['PACELINE_OUTPUT'], 'model.pt').touch()"
    (warning,) = collect_output_of(saves, **OF_TASK)
    assert warning.startswith("paceline prune will not find file://")


def test_parameter_server_whose_workers_save_the_model_gets_no_warning(collect_output_of):
    gate = Machine(name="gate-1", kind="nano", cores=4, memory_gib=4)
    plan = {"workers": {"gate-1": {"samples": 600, "batch_size": 32}}}
    fleet = Fleet(machines=[gate], parameter_server=gate)
    assert collect_output_of(SAVES_BESIDE_ITS_OUTPUT, ParameterServerOperator, fleet=fleet, plan=plan) == []


def test_empty_output_is_a_warning_even_if_the_engine_does_not_answer():
    def fail(placed):
        raise RuntimeUnavailableError("no engine")

    assert describe_empty_output(SimpleNamespace(work_files=fail), ()) == EMPTY
