"""Invalid arguments are rejected when the DAG is parsed. The error names the field, the value and what is accepted."""

from __future__ import annotations

import socket
from datetime import timedelta
from pathlib import Path
from unittest.mock import Mock

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException

from paceline.airflow.arguments import local_copies
from paceline.contract import TrainingResult
from paceline.control import Gains, Limits, PaperController
from paceline.elastic import Team
from paceline.errors import InvalidInputError, UnsuitableCodeError
from paceline.operators import DeadlineTrainingOperator, Docker, Kubernetes, Process, _arguments
from paceline.operators import train as train_module
from paceline.operators._team_runtime import open_runtime

VALID = {"task_id": "train", "command": "python -m app.train", "deadline": "20m"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"deadline": "-5m"}, "deadline: got '-5m', expected a duration"),
        ({"deadline": "tomorrow"}, "deadline: got 'tomorrow', expected a duration"),
        ({"deadline": 0}, "deadline: got 0, expected a duration"),
        ({"deadline": 1_900_000_000}, "deadline: got 1900000000, expected a duration of at most 365 days"),
        ({"deadline_from": "now"}, "deadline_from: got 'now', expected one of run, task"),
        ({"alpha": 0}, r"alpha: got 0, expected a number in \(0, 1\]"),
        ({"alpha": 1.2}, r"alpha: got 1.2, expected a number in \(0, 1\]"),
        ({"alpha": "high"}, r"alpha: got 'high', expected a number in \(0, 1\]"),
        ({"min_devices": 3, "max_devices": 2}, "min_devices: got 3.0, expected at most max_devices = 2"),
        ({"min_devices": -1}, "min_devices: got -1.0, expected a number of at least 0"),
        ({"max_devices": 0}, "max_devices: got 0.0, expected a number greater than 0"),
        ({"quantum": 0}, "quantum: got 0, expected a number greater than 0"),
        ({"quantum": "0.05"}, "quantum: got '0.05', expected a number greater than 0"),
        ({"quantum": "{{ params.quantum }}"}, "quantum: got '{{ params.quantum }}', expected a number greater than 0"),
        ({"control_period": 0}, "control_period: got 0, expected a number of seconds greater than 0"),
        ({"on_infeasible": "panic"}, "on_infeasible: got 'panic', expected one of best_effort, fail, extend"),
        ({"on_drain": "kill"}, "on_drain: got 'kill', expected one of leave, stop"),
        ({"runtime": "podman"}, "runtime: got 'podman', expected one of auto, docker, kubernetes, process, or"),
        ({"runtime": {1: 2}}, "runtime: got {1: 2}, expected one of auto, docker, kubernetes, process"),
        ({"cores_per_device": 0}, "cores_per_device: got 0, expected a number of cores greater than 0"),
        ({"cores_per_device": 4}, "cores_per_device: got 4, expected 1, unless the runtime's gpus and a quantum make"),
        ({"cores_per_device": 4, "runtime": Docker(gpus=1)}, "cores_per_device: got 4, expected 1, unless the runtime"),
        (
            {"quantum": 1, "runtime": Docker(gpus=0.5)},
            "quantum: got 1, expected a number below 1, or none, because the job has a part of a GPU",
        ),
        (
            {"quantum": 0.05, "runtime": Kubernetes(gpus=1)},
            "quantum: got 0.05, expected 1, or no quantum for an allocation of cores, because a job with "
            "runtime='kubernetes' has whole GPUs",
        ),
        ({"script": "train.py"}, "script: got 'train.py', expected a Python file, or command"),
        ({"command": 5}, "command: got 5, expected a list or a tuple"),
        ({"arguments": "--epochs 3"}, "arguments: got '--epochs 3', expected a list or a tuple"),
        ({"environment": "A=1"}, "environment: got 'A=1', expected a mapping of names to values"),
        ({"inputs": {1: "/data"}}, "inputs: got {1: '/data'}, expected a mapping of names to values"),
        ({"output": 5}, "output: got 5, expected a local path or an object storage URL"),
        ({"command": None}, "script: got None, expected a Python file, or command"),
        ({"deadline": None}, "deadline: got None, expected a duration"),
        ({"team": {}, "max_devices": "all"}, "max_devices: got 'all', expected a number"),
        ({"team": {}, "max_devices": 0}, "max_devices: got 0.0, expected a number of cores of at least 0.15"),
        ({"team": {}, "max_devices": 0.1}, "max_devices: got 0.1, expected .* at least 0.15, for one parameter"),
        (
            {"team": {"min_cores": 0.5}, "max_devices": 1},
            "max_devices: got 1.0, expected a number of cores of at least 1.5",
        ),
        ({"team": {}, "runtime": Docker(gpus=2)}, "runtime.gpus: got 2, expected 0, because a team trains on cores"),
        ({"team": {}, "runtime": "process"}, "runtime: got 'process', expected 'docker', 'kubernetes' or"),
        ({"team": {}, "runtime": Docker(network="bridge")}, "runtime.network: got 'bridge', expected None, because"),
        ({"team": 3}, r"team: got 3, expected paceline.elastic.Team\(...\), or a dict"),
        ({"team": "{{ params.team }}"}, "team: got '{{ params.team }}', expected paceline.elastic.Team"),
        ({"team": {"workers": 3}}, "team: got 'workers', expected the names start_share"),
        ({"team": {"max_workers": 1}}, r"team\['max_workers'\]: got 1, expected a whole number of at least 2"),
        ({"team": {"min_gain": "much"}}, r"team\['min_gain'\]: got 'much', expected a fraction"),
        ({"controller": 1.0}, r"controller: got 1.0, expected one of default, paper, or Gains\(...\)"),
        ({"controller": ["paper"]}, r"controller: got \['paper'\], expected one of default, paper, or Gains"),
        ({"controller": "fuzzy"}, "controller: got 'fuzzy', expected one of default, paper, or Gains"),
    ],
)
def test_invalid_argument_is_rejected_by_name(arguments, message):
    with pytest.raises(InvalidInputError, match=message):
        DeadlineTrainingOperator(**{**VALID, **arguments})


def test_templates_are_not_validated_when_the_dag_is_parsed():
    templated = ("deadline", "alpha", "min_devices", "max_devices", "on_infeasible", "runtime")
    DeadlineTrainingOperator(**VALID | {name: f"{{{{ params.{name} }}}}" for name in templated})


def test_number_of_gpus_limits_the_allocation_of_a_gpu_job():
    def max_devices(**arguments):
        task = DeadlineTrainingOperator(**VALID, **arguments)
        return _arguments.read(task, {}).limits(16.0, task.log).max_devices

    for runtime in (Docker(gpus=2), Process(gpus=2)):
        assert max_devices(runtime=runtime, quantum=1, min_devices=1) == 2
        assert max_devices(runtime=runtime) == 16  # the devices are cores, in addition to the GPUs
        assert max_devices(runtime=runtime, quantum=1, max_devices=1) == 1
        assert max_devices(runtime=runtime, quantum=2) == 2


@pytest.mark.parametrize(
    ("arguments", "shared_gpus", "limits"),
    [
        ({"quantum": 0.05}, 1, Limits(0.1, 1.0, 0.05, True)),
        ({"quantum": 0.25, "max_devices": 0.5}, 1, Limits(0.25, 0.5, 0.25, True)),
        ({"quantum": 0.1, "runtime": Process(gpus=2), "cores_per_device": 4}, 2, Limits(0.1, 2.0, 0.1, True)),
        ({"runtime": Process(gpus=0.25)}, 0.25, Limits(0.1, 0.25, 0.05, True)),
        ({"runtime": Docker(gpus=0.5), "max_devices": 1, "quantum": 0.1}, 0.5, Limits(0.1, 0.5, 0.1, True)),
        ({}, 0, Limits(0.1, 16.0, 0.05)),
        ({"quantum": 0.1, "runtime": Process()}, 0, Limits(0.1, 16.0, 0.1)),
        ({"quantum": 1, "min_devices": 1}, 0, Limits(1.0, 1.0, 1)),
    ],
)
def test_quantum_of_a_job_with_gpus_makes_them_the_devices(arguments, shared_gpus, limits):
    task = DeadlineTrainingOperator(**{**VALID, "runtime": Process(gpus=1), **arguments})
    settings = _arguments.read(task, {})
    assert settings.shared_gpus == shared_gpus
    assert settings.limits(16.0, task.log) == limits


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, r"min_devices: got 0.1, expected at most the 0.05 GPUs of the job"),
        ({"max_devices": 1}, r"min_devices: got 0.1, expected at most the 0.05 GPUs of the job"),
        ({"quantum": 0.5, "max_devices": 1}, r"quantum: got 0.5, expected at most the 0.05 GPUs of the job"),
    ],
)
def test_smallest_allocation_above_the_part_of_a_gpu_is_rejected(arguments, message):
    task = DeadlineTrainingOperator(**VALID, runtime=Process(gpus=0.05), **arguments)
    with pytest.raises(InvalidInputError, match=message):
        _arguments.read(task, {}).limits(16.0, task.log)


def test_quantum_of_a_worker_of_a_fleet_is_in_cores():
    class Worker(DeadlineTrainingOperator):
        on_fleet = True

    assert Worker(**VALID, runtime=Process(gpus=1), quantum=0.05).shared_gpus == 0


def test_cores_of_the_machine_limit_the_gpus_that_come_with_cores():
    task = DeadlineTrainingOperator(**VALID, runtime=Docker(gpus=8), quantum=1, min_devices=1, cores_per_device=4)
    settings = _arguments.read(task, {})
    assert [settings.limits(cores, task.log).max_devices for cores in (64.0, 16.0)] == [8, 4]
    assert settings.cores_per_device == 4


def test_deadline_is_optional_for_a_team():
    soon = {name: value for name, value in VALID.items() if name != "deadline"}
    assert DeadlineTrainingOperator(**soon, team=Team(), max_devices="{{ params.cores }}").deadline is None
    assert DeadlineTrainingOperator(**VALID, team=Team()).deadline == "20m"


def test_team_may_be_a_dict():
    task = DeadlineTrainingOperator(**VALID, team={"max_workers": 3, "min_cores": 0.5})
    assert task.team == Team(max_workers=3, min_cores=0.5)
    assert _arguments.read(task, {}).min_devices == 1.5


@pytest.mark.parametrize(("deadline", "share"), [(None, 0.25), ("none", 0.25), ("20m", 1.0)])
def test_only_a_deadline_makes_a_team_start_on_all_its_devices(monkeypatch, deadline, share):
    started: list[Team] = []
    monkeypatch.setattr("paceline.elastic.runtime.TeamRuntime", lambda *_, options: started.append(options))
    task = DeadlineTrainingOperator(**{**VALID, "deadline": deadline}, team=Team())
    open_runtime(task, Docker(), {})
    assert [options.start_share for options in started] == [share]


def test_gains_are_those_of_the_paper_controller():
    task = DeadlineTrainingOperator(**VALID, controller=Gains(1.0, 0.1))
    settings = _arguments.read(task, {})
    controller = settings.make_controller(settings.limits(4.0, task.log), 60.0, None)
    assert isinstance(controller, PaperController)


@pytest.mark.parametrize(("field", "value"), [("max_devices", "0.1"), ("runtime", "process")])
def test_rendered_argument_that_does_not_suit_a_team_is_rejected(field, value):
    task = DeadlineTrainingOperator(**VALID, team=Team(), **{field: "{{ params.value }}"})
    setattr(task, field, value)
    with pytest.raises(InvalidInputError, match=f"{field}: got "):
        _arguments.read(task, {})


def test_code_that_cannot_train_fails_the_task_without_a_retry(monkeypatch):
    task = DeadlineTrainingOperator(**VALID)
    training = Mock(run=Mock(side_effect=UnsuitableCodeError("worker: the script ended without a loop", 0)))
    monkeypatch.setattr(task, "new_training", lambda context: training)
    monkeypatch.setattr("paceline.operators.train.check_later_inputs", lambda *_: None)
    with pytest.raises(AirflowFailException, match="worker: the script ended without a loop"):
        task.execute({})


def test_retries_are_on_by_default_and_private_environment_is_hidden():
    operator = DeadlineTrainingOperator(**VALID, private_environment={"TOKEN": "secret"})
    assert not any("secret" in str(getattr(operator, name, "")) for name in operator.template_fields)
    assert (operator.retries, operator.retry_exponential_backoff) == (4, 2)
    assert DeadlineTrainingOperator(**VALID, retries=0).retries == 0


def test_retries_of_the_task_or_of_its_dag_replace_the_default():
    def a_task(**arguments):
        with DAG("retrain", schedule=None, **arguments.pop("dag", {})):
            return DeadlineTrainingOperator(**VALID, **arguments)

    assert (a_task().retries, a_task().retry_delay) == (4, timedelta(seconds=5))
    quick = {"default_args": {"retries": 1, "retry_delay": timedelta(minutes=1)}}
    assert (a_task(dag=quick).retries, a_task(dag=quick).retry_delay) == (1, timedelta(minutes=1))
    assert a_task(dag=quick, retries=2).retries == 2


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, ", -1.70 % from its deadline of 60.0 s"),
        ({"deadline_s": None, "error_pct": None}, ""),
        (
            {"finished_s": 86_400.0, "deadline_s": 60.0, "error_pct": None},
            ", 23:59:00 after its deadline, which had passed before it began",
        ),
        (
            {"deadline_s": 0.001, "error_pct": None},
            ", too late, because its deadline was before the time from which it counts",
        ),
    ],
)
def test_deviation_from_a_deadline_of_the_past_is_a_time(changed, expected):
    result = TrainingResult(
        **{
            **{
                "finished_s": 59.0,
                "deadline_s": 60.0,
                "error_pct": -1.7,
                "met": True,
                "mean_devices": 1.0,
                "resizes": 3,
            },
            **{"restarts": 0, "device_seconds": 59.0, "step_ms_mean": 1.0, "step_ms_max": 2.0, "store_ms_mean": 9.0},
            **{"model": "/models/1", "runtime": "docker", "origin": "2030-01-01T12:00:00+00:00", **changed},
        }
    )
    assert train_module._describe_deviation(result) == expected


def test_missing_input_is_named_with_the_worker_and_the_path(tmp_path):
    task = DeadlineTrainingOperator(**{**VALID, "inputs": {"data": "no-such-file.csv"}})
    with pytest.raises(InvalidInputError) as raised:
        local_copies("inputs", task.inputs, tmp_path)
    place = f"an existing file or folder on this worker, {socket.gethostname()} ({Path.cwd()}/no-such-file.csv does not"
    assert place in str(raised.value)


@pytest.mark.parametrize("place", [None, 3, ""])
def test_input_that_is_no_place_is_rejected_when_the_dag_is_parsed(place):
    with pytest.raises(
        InvalidInputError, match=r"^inputs\['data'\]: got .*, expected a local path or an object storage"
    ):
        DeadlineTrainingOperator(**{**VALID, "inputs": {"data": place}})
