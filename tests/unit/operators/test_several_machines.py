"""The operators of a training on several machines refuse what cannot work, before anything starts."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from paceline.errors import InvalidInputError, TrainingFailedError
from paceline.fleet import Fleet, Worker
from paceline.operators import (
    DeadlineTrainingOperator,
    ParameterServerOperator,
    WorkerTrainingOperator,
    train_on_fleet,
)
from paceline.train.asynchronous.plan import EXIT_LEFT_OUT, EXIT_NO_SERVER, EXIT_SENT_AWAY

GATE = Worker(name="gate", kind="nano", cores=1, memory_gib=1)
PLAN = {"workers": {"gate": {"samples": 10, "batch_size": 2}}, "left_out": {"hall": "it is too busy"}}


def worker(machine=GATE, plan=PLAN, **arguments):
    arguments = {"task_id": "train", "script": "train.py", "deadline": "1m"} | arguments
    return WorkerTrainingOperator(worker=machine, plan=plan, server_task_id="server", **arguments)


def context(server_state="running"):
    states = {"run": {"server": server_state}}
    return {"ti": SimpleNamespace(dag_id="dag", run_id="run", get_task_states=lambda **_: states)}


@pytest.mark.parametrize("runtime", ["process", "auto"])
def test_a_server_that_would_listen_to_everybody_is_refused(runtime):
    with pytest.raises(InvalidInputError, match=f"runtime: got '{runtime}', expected 'docker'"):
        ParameterServerOperator(task_id="server", plan=PLAN, deadline="1m", runtime=runtime)
    with pytest.raises(InvalidInputError, match=f"runtime: got '{runtime}', expected 'docker'"):
        worker(runtime=runtime)


def test_machines_of_several_engines_are_refused_with_the_reason():
    other = GATE.model_copy(update={"name": "hall", "docker_conn_id": "hall_docker"})
    with pytest.raises(InvalidInputError, match="fleet: got 'None, hall_docker', expected machines of one engine"):
        train_on_fleet(fleet=Fleet(workers=(GATE, other), parameter_server=GATE), plan=PLAN, deadline="1m")


def test_a_machine_that_the_plan_leaves_out_is_skipped_with_its_reason():
    hall = GATE.model_copy(update={"name": "hall"})
    with pytest.raises(AirflowSkipException, match="hall does not train: it is too busy"):
        worker(hall).execute(context())
    with pytest.raises(AirflowSkipException, match="the schedule does not choose it"):
        worker(hall, {"workers": PLAN["workers"]}).execute(context())


def test_a_worker_that_comes_too_late_is_skipped():
    with pytest.raises(AirflowSkipException, match="the others were done before it began"):
        worker().execute(context("success"))


def test_a_plan_that_is_none_fails_without_another_try():
    with pytest.raises(AirflowFailException, match="plan: got 'nonsense', expected"):
        worker(plan="nonsense").execute(context())


@pytest.mark.parametrize(
    ("code", "server_state", "expected"),
    [
        (EXIT_LEFT_OUT, "running", AirflowSkipException),
        (EXIT_SENT_AWAY, "running", AirflowFailException),
        (EXIT_NO_SERVER, "running", AirflowException),
        (1, "running", AirflowException),
    ],
)
def test_how_a_worker_ended_decides_about_its_task(monkeypatch, code, server_state, expected):
    def end(operator, context):
        raise AirflowException("ended") from TrainingFailedError("ended", code)

    monkeypatch.setattr(DeadlineTrainingOperator, "execute", end)
    monkeypatch.setattr(WorkerTrainingOperator, "_discard", lambda operator, context: None)
    with pytest.raises(AirflowException) as caught:
        worker().execute(context(server_state))
    assert type(caught.value) is expected
