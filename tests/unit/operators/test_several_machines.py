"""Tests of the operators that train on several machines: arguments, placement, results and skipped workers."""

from __future__ import annotations

import re
import threading
from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from paceline.contract import TrainingResult
from paceline.errors import (
    InvalidInputError,
    PacelineError,
    RuntimeUnavailableError,
    TrainingAbandonedError,
    TrainingFailedError,
    TrainingOverError,
)
from paceline.fleet import Fleet, Machine
from paceline.operators import (
    DeadlineTrainingOperator,
    Docker,
    FleetResultOperator,
    ParameterServerOperator,
    ProfileOperator,
    WorkerTrainingOperator,
    _others,
    train_on_fleet,
)
from paceline.train.job import EXIT_EXCLUDED, EXIT_NO_SERVER, EXIT_REJECTED

GATE = Machine(name="gate", kind="nano", cores=1, memory_gib=1)
HALL = GATE.model_copy(update={"name": "hall"})
ELSEWHERE = GATE.model_copy(update={"name": "hall", "engine_conn_id": "hall_docker"})
FLEET = Fleet(machines=(GATE, HALL), parameter_server=GATE)
PLAN = {"workers": {"gate": {"samples": 10, "batch_size": 2}}, "excluded": {"hall": "it is too busy"}}


def worker_task(machine=GATE, plan=PLAN, **arguments):
    defaults = {"task_id": "train", "script": "train.py", "deadline": "1m", "server_task_id": "server"}
    return WorkerTrainingOperator(fleet=FLEET, worker=machine.name, plan=plan, **defaults | arguments)


def context(server_state="running"):
    states = {"run": {"server": server_state}}
    return {
        "ti": SimpleNamespace(dag_id="dag", run_id="run", get_task_states=lambda **_: states),
    }


@pytest.mark.parametrize("runtime", ["process", "auto"])
def test_runtime_other_than_docker_is_rejected(runtime):
    with pytest.raises(InvalidInputError, match=f"runtime: got '{runtime}', expected 'docker'"):
        ParameterServerOperator(task_id="server", fleet=FLEET, plan=PLAN, deadline="1m", runtime=runtime)
    with pytest.raises(InvalidInputError, match=f"runtime: got '{runtime}', expected 'docker'"):
        worker_task(runtime=runtime)


def test_machines_of_several_engines_need_an_address_and_a_key():
    fleet = Fleet(machines=(GATE, ELSEWHERE), parameter_server=GATE)
    with pytest.raises(InvalidInputError, match=r"fleet.gate.address: got None, expected an address at which"):
        train_on_fleet(fleet=fleet, plan=PLAN, deadline="1m")
    server = GATE.model_copy(update={"address": "10.0.0.5"})
    with pytest.raises(InvalidInputError, match=r"fleet.key_conn_id: got None, expected a connection whose password"):
        train_on_fleet(fleet=Fleet(machines=(server, ELSEWHERE), parameter_server=server), plan=PLAN, deadline="1m")


def test_tasks_use_the_queue_executor_and_engine_of_their_machine():
    machine = GATE.model_copy(update={"queue": "site", "executor": "EdgeExecutor", "engine_conn_id": "site_docker"})
    fleet = Fleet(machines=(machine,), parameter_server=machine)
    with DAG("edge", schedule=None):
        group = train_on_fleet(fleet=fleet, plan={"workers": PLAN["workers"]}, script="train.py", deadline="1m")
    for task in (one for one in group if not isinstance(one, FleetResultOperator)):
        assert (task.queue, task.executor) == ("site", "EdgeExecutor")
        assert (task.runtime.engine_conn_id, task.runtime.memory) == ("site_docker", 2**30)


def test_parameter_server_gets_the_image_and_the_user_of_the_workers():
    image = "hub.example/trainer:3"
    runtime = Docker(image=image, pull=True, docker_conn_id="hub", user="0:0", allow_root=True)
    with DAG("edge", schedule=None):
        group = train_on_fleet(fleet=FLEET, plan=PLAN, script="train.py", deadline="1m", runtime=runtime)
    for task in (one for one in group if not isinstance(one, FleetResultOperator)):
        assert task.runtime == replace(runtime, memory=2**30)


@pytest.mark.parametrize(
    ("field", "value"), [("engine_conn_id", "mine"), ("memory", "{{ params.memory }}"), ("gpus", 1), ("network", "n")]
)
@pytest.mark.parametrize("operator", [ParameterServerOperator, WorkerTrainingOperator, ProfileOperator])
def test_runtime_of_a_fleet_must_not_set_what_the_file_determines(operator, field, value):
    arguments = {
        ParameterServerOperator: {"plan": PLAN, "deadline": "1m"},
        WorkerTrainingOperator: {"worker": "gate", "plan": PLAN, "server_task_id": "server", "deadline": "1m"},
        ProfileOperator: {"profiles": "/p"},
    }[operator] | ({} if operator is ParameterServerOperator else {"script": "train.py"})
    gate = GATE.model_copy(update={"cgroup_parent": "/gate"})
    fleet = Fleet(machines=(gate,), parameter_server=gate)
    with pytest.raises(InvalidInputError, match=rf"runtime\.{field}: got {re.escape(repr(value))}, expected "):
        operator(task_id="task", fleet=fleet, runtime=Docker(**{field: value}), **arguments)


def test_runtime_of_a_fleet_may_be_a_template():
    with DAG("edge", schedule=None):
        text = worker_task(task_id="text", runtime="{{ params.runtime }}")
        settings = worker_task(task_id="settings", runtime=Docker(image="{{ params.image }}"))
    for task, image in ((text, Docker.image), (settings, "trainer:9")):
        task.render_template_fields({"task": task, "params": {"image": "trainer:9", "runtime": "docker"}})
        task.read_templates({"task": task})
        assert task.runtime == Docker(image=image, memory=2**30)


def test_error_of_a_runtime_names_the_setting_unless_the_fleets_file_determines_it():
    errors = [InvalidInputError(field, "x", "another") for field in ("image", "engine_conn_id", "memory", "gpus")]
    named = [worker_task().describe(error).partition(":")[0] for error in errors]
    assert named == ["runtime.image", "engine_conn_id", "memory", "gpus"]


@pytest.mark.parametrize(("extra", "gpus"), [("{}", 3), ('{"gpus": 8}', 8)])
def test_runtime_gets_the_gpus_of_the_connection_else_of_the_fleet(monkeypatch, extra, gpus):
    monkeypatch.setenv("AIRFLOW_CONN_HALL_DOCKER", f'{{"conn_type": "generic", "host": "hall", "extra": {extra}}}')
    runtime = Mock()
    monkeypatch.setattr("paceline.runtime.DockerRuntime", runtime)
    machine = ELSEWHERE.model_copy(update={"gpus": 1})
    others = [machine.model_copy(update={"name": "cellar", "gpus": 2}), GATE.model_copy(update={"gpus": 5})]
    fleet = Fleet(machines=(machine, *others), parameter_server=machine)
    arguments = {"script": "train.py", "deadline": "1m", "server_task_id": "server", "plan": PLAN}
    task = WorkerTrainingOperator(task_id="train", fleet=fleet, worker="hall", **arguments)
    task.open_runtime(task.choose_runtime())
    assert runtime.call_args.kwargs["gpus"] == gpus


def fleet_result_of(results):
    task = FleetResultOperator(task_id="result", worker_task_ids={name: f"train.{name}" for name in "abc"})
    pulled = {f"train.{name}": result for name, result in results.items()}
    ti = SimpleNamespace(xcom_pull=lambda task_ids, map_indexes: pulled.get(task_ids))
    return task.execute({"ti": ti})


def test_fleet_result_combines_the_workers_that_trained():
    one = TrainingResult(
        model="of a", runtime="docker", origin=datetime(2030, 1, 1, tzinfo=timezone.utc), finished_s=60.3,
        deadline_s=60.0, error_pct=0.5, met=False, mean_devices=1.5, device_seconds=20.0, resizes=0, restarts=0,
        step_ms_mean=1.0, step_ms_max=2.0, store_ms_mean=9.0, metrics={"auc": 0.8},
    ).to_json()  # fmt: skip
    result = fleet_result_of(
        {"a": one, "c": {**one, "model": "of c", "finished_s": 59.0, "error_pct": -1.7, "met": True}}
    )
    assert (result["model"], result["error_pct"], result["met"], result["device_seconds"]) == ("of a", 0.5, False, 40.0)
    assert set(result["workers"]) == {"a", "c"}
    assert (result["mean_devices"], result["metrics"]) == (3.0, {"auc": 0.8})
    later = {**one, "model": "of c", "finished_s": 59.0, "origin": "2030-01-01T00:00:02+00:00"}
    assert fleet_result_of({"a": one, "c": later})["model"] == "of c", "its time counts from its own origin"
    with pytest.raises(AirflowFailException, match=r"train\.a\.device_seconds: got 'many', expected a valid number"):
        fleet_result_of({"a": {**one, "device_seconds": "many"}})
    with pytest.raises(AirflowFailException, match="no worker finished the training"):
        fleet_result_of({})


def test_machine_outside_the_plan_is_skipped_and_invalid_plan_is_rejected():
    with pytest.raises(AirflowSkipException, match="hall does not train: it is too busy"):
        worker_task(HALL).execute(context())
    with pytest.raises(AirflowSkipException, match="the schedule does not include this machine"):
        worker_task(HALL, {"workers": PLAN["workers"]}).execute(context())


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ("nonsense", "plan: got 'nonsense', expected"),
        ({"workers": {"gate": {"samples": 0}}}, "plan.workers.gate.samples: got 0, expected a number greater than 0"),
        (
            {"workers": {"gate": {"samples": 1, "batch_size": 0}}},
            "plan.workers.gate.batch_size: got 0, expected a whole",
        ),
        ({"workers": {"gate": {"samples": 1, "batchsize": 4}}}, "plan.workers.gate: got 'batchsize', expected only"),
        (
            {"workers": {"gate": {"samples": 1}, "gate-9": {"samples": 1}}},
            "plan.workers: got 'gate-9', expected machines of the fleet: gate, hall",
        ),
        (
            {"workers": {"gate": {"samples": 1}}, "excluded": {"gate-9": "too slow"}},
            "plan.excluded: got 'gate-9', expected machines of the fleet: gate, hall",
        ),
        (
            {"workers": {"gate": {"samples": 1}}, "excluded": {"gate": "too slow"}},
            "plan.excluded: got 'gate', expected machines that are not among the plan's workers",
        ),
    ],
)
def test_invalid_plan_is_rejected_when_the_dag_is_parsed_or_the_plan_is_rendered(plan, message):
    with pytest.raises(InvalidInputError, match=message), DAG("edge", schedule=None):
        train_on_fleet(fleet=FLEET, plan=plan, script="train.py", deadline="1m")
    rendered = worker_task(plan="{{ params.plan }}")
    rendered.plan = plan
    with pytest.raises(AirflowFailException, match=message):
        rendered.execute(context())
    server = ParameterServerOperator(task_id="server", fleet=FLEET, plan="{{ params.plan }}", deadline="1m")
    server.plan = plan
    with pytest.raises(InvalidInputError, match=message):
        server.extend_spec(context(), Mock(files={}), Path())


@pytest.fixture
def count_removed_jobs(monkeypatch):
    """Return a function that returns how often a worker's job has been removed."""
    training = Mock(can_continue=Mock(return_value=False))
    monkeypatch.setattr(WorkerTrainingOperator, "new_training", lambda operator, context: training)
    return lambda: training.discard.call_count


def test_late_worker_is_skipped_and_its_earlier_job_is_removed(count_removed_jobs):
    with pytest.raises(AirflowSkipException, match="training ended before this worker started"):
        worker_task().execute(context("success"))
    assert count_removed_jobs() == 1


def test_worker_that_has_trained_before_the_end_of_training_is_taken_over(monkeypatch, count_removed_jobs):
    worker_task().new_training(None).can_continue.return_value = True
    monkeypatch.setattr(DeadlineTrainingOperator, "execute", lambda operator, context: {"model": "of an earlier try"})
    assert worker_task().execute(context("success")) == {"model": "of an earlier try"}
    assert count_removed_jobs() == 0


@pytest.mark.parametrize(
    ("error", "expected"),
    [(TrainingOverError("no engine"), AirflowSkipException), (RuntimeUnavailableError("no engine"), AirflowException)],
)
def test_late_worker_without_an_engine_is_skipped_if_another_has_the_model(count_removed_jobs, error, expected):
    worker_task().new_training(None).can_continue.side_effect = error
    with pytest.raises(AirflowException, match="no engine") as caught:
        worker_task().execute(context("success"))
    assert type(caught.value) is expected
    assert count_removed_jobs() == 0


@pytest.mark.parametrize(
    ("code", "expected", "cleared"),
    [
        (EXIT_EXCLUDED, AirflowSkipException, 1),
        (EXIT_REJECTED, AirflowFailException, 1),
        (EXIT_NO_SERVER, AirflowException, 0),
        (1, AirflowException, 0),
    ],
)
def test_exit_code_of_the_worker_decides_the_state_of_the_task(
    monkeypatch, count_removed_jobs, code, expected, cleared
):
    def fail_training(operator, context):
        raise AirflowException("ended") from TrainingFailedError("ended", code)

    monkeypatch.setattr(DeadlineTrainingOperator, "execute", fail_training)
    with pytest.raises(AirflowException) as caught:
        worker_task().execute(context())
    assert type(caught.value) is expected
    assert count_removed_jobs() == cleared


def test_worker_without_an_engine_is_skipped_when_the_training_is_over(monkeypatch, count_removed_jobs):
    def end_without_engine(operator, context):
        raise AirflowException("ended") from TrainingOverError("ended")

    monkeypatch.setattr(DeadlineTrainingOperator, "execute", end_without_engine)
    with pytest.raises(AirflowSkipException, match="gate has left the training"):
        worker_task().execute(context())
    assert count_removed_jobs() == 0  # the control loop has already tried this


def test_worker_whose_job_has_failed_while_it_was_deferred_says_why(monkeypatch):
    """A first process would skip it, because the training has ended before its job has started."""

    def fail(task, context):
        raise AirflowException("the server has excluded this machine") from TrainingFailedError("x", EXIT_REJECTED)

    monkeypatch.setattr(DeadlineTrainingOperator, "execute", fail)
    discarded = []
    training = SimpleNamespace(discard=lambda: discarded.append(1), can_continue=lambda: False)
    monkeypatch.setattr(WorkerTrainingOperator, "new_training", lambda task, context: training)
    with pytest.raises(AirflowSkipException, match="training ended before this worker started"):
        worker_task().execute(context("success"))
    with pytest.raises(AirflowFailException, match="the server has excluded this machine"):
        worker_task().execute_continued(context("success"), {"reason": "ended"})


@pytest.mark.parametrize(("key", "plan", "expected"), [("key", ["gate", "hall"], "key"), ("key", ["gate"], None)])
def test_deferred_job_names_the_key_of_a_training_on_several_engines(key, plan, expected):
    server = GATE.model_copy(update={"address": "10.0.0.5"})
    fleet = Fleet(machines=(server, ELSEWHERE), parameter_server=server, key_conn_id=key)
    shares = {"workers": {name: {"samples": 10, "batch_size": 2} for name in plan}}
    with DAG("edge", schedule=None):
        group = train_on_fleet(fleet=fleet, plan=shares, script="train.py", deadline="1m", deferrable=True)
    tasks = [one for one in group if not isinstance(one, FleetResultOperator)]
    assert {task.key_conn_id() for task in tasks} == {expected}
    assert all(task.deferrable for task in tasks)
    assert [task.need().task_ids for task in tasks] == [
        [f"train.{name}" for name in plan],
        ["train.parameter_server", "train.hall"],
        ["train.parameter_server", "train.gate"],
    ]


@pytest.fixture
def fleet_states():
    """Return a function that asks a task of a training whether it is needed, if the others have these states."""
    with DAG("dag", schedule=None):
        server = ParameterServerOperator(task_id="server", fleet=FLEET, plan=PLAN, deadline="1m")
        gate = worker_task(GATE, task_id="gate")
        worker_task(HALL, task_id="hall")
        worker_task(HALL, task_id="elsewhere", server_task_id="another")

    def check_need(task, stage, **states):
        states = {"elsewhere": "success", **states}

        def task_states(*, task_ids, **_):
            return {"run": {name: states[name] for name in task_ids}}

        ti = SimpleNamespace(dag_id="dag", run_id="run", get_task_states=task_states)
        {"server": server, "gate": gate}[task].check_need({"ti": ti}, stage)

    return check_need


@pytest.mark.parametrize(
    ("stage", "server", "other", "error"),
    [
        ("away", "success", "success", "the engine of this worker does not respond"),
        ("away", "success", "running", None),
        ("away", "running", "success", None),
        ("waiting", "success", "running", "training ended before this worker started"),
        ("waiting", "running", "running", None),
        ("waiting", "up_for_retry", "running", None),
        ("training", "success", "success", None),
        ("training", "failed", "running", "server will not serve this worker: its state is 'failed'"),
        ("waiting", "upstream_failed", None, "its state is 'upstream_failed'"),
    ],
)
def test_worker_learns_of_the_end_of_its_server(fleet_states, stage, server, other, error):
    with pytest.raises(PacelineError, match=error) if error else nullcontext():
        fleet_states("gate", stage, server=server, gate="running", hall=other)


@pytest.mark.parametrize(
    ("gate", "error"),
    [("failed", r"no worker is left \(gate is failed\)"), ("skipped", "no worker is left"), ("up_for_retry", None)],
)
def test_server_learns_of_the_end_of_its_workers(fleet_states, gate, error):
    with pytest.raises(TrainingAbandonedError, match=error) if error else nullcontext():
        fleet_states("server", "waiting", gate=gate, hall="running")  # the plan has no samples for the hall


def test_question_is_asked_in_a_thread_and_its_answer_counts_for_its_stage(monkeypatch):
    monkeypatch.setattr(_others, "_INTERVAL_S", 0.0)
    asked, answer = threading.Event(), threading.Event()

    def ask(stage):
        asked.set()
        answer.wait()
        raise TrainingOverError(stage)

    question = _others.Question(ask)
    question.check("waiting")
    assert asked.wait(10)
    question.check("waiting")  # Airflow has not answered yet
    answer.set()
    question._thread.join()
    with pytest.raises(TrainingOverError, match="waiting"):
        question.check("waiting")
    question.check("training")  # asks again


def test_question_that_airflow_does_not_answer_is_asked_again(monkeypatch):
    monkeypatch.setattr(_others, "_INTERVAL_S", 0.0)
    question = _others.Question(Mock(side_effect=[ConnectionError, TrainingOverError("ended")]))
    for _ in range(2):
        question.check("training")
        question._thread.join()
    with pytest.raises(TrainingOverError):
        question.check("training")
