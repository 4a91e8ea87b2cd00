"""``ProfileOperator`` and ``ScheduleOperator`` without an engine. ``tests/soak/test_edge.py`` uses engines."""

from __future__ import annotations

import json
import threading
from contextlib import nullcontext
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
from airflow.sdk import DAG, TaskGroup, task_group
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from upath import UPath

from paceline.contract import SCHEDULE_XCOM
from paceline.errors import InvalidInputError, RuntimeUnavailableError
from paceline.fleet import BackgroundApp, Fleet, Machine
from paceline.operators import (
    Docker,
    ParameterServerOperator,
    ProfileOperator,
    ScheduleOperator,
    WorkerTrainingOperator,
    train_on_fleet,
)
from paceline.operators._team import network_name
from paceline.profiles import FUNCTIONS, DeviceProfile, Learned, Origin
from paceline.profiles.measured_training import MeasuredTraining
from paceline.profiles.store import ProfileStore
from paceline.run import MemoryState
from paceline.runtime import Usage
from paceline.runtime.checks import check_spec
from paceline.schedule import Assignment, Plan, State

GATE = Machine(name="gate", kind="nano", cores=1, memory_gib=1, cgroup_parent="/gate")
SERVER = GATE.model_copy(update={"name": "server", "cgroup_parent": "/server"})
FLEET = Fleet(machines=(GATE,), parameter_server=SERVER)
CONTEXT = {
    "ti": SimpleNamespace(dag_id="dag", run_id="run", task_id="task", map_index=-1, xcom_push=Mock()),
    "task_state_store": MemoryState(),
}


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("print('trains')")
    return path


@pytest.fixture
def profiles(tmp_path):
    return str(tmp_path / "profiles")


@pytest.fixture(autouse=True)
def no_engine(monkeypatch, tmp_path):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")


def profile_task(profiles, script, **arguments):
    return ProfileOperator(task_id="profile", fleet=FLEET, profiles=profiles, script=str(script), **arguments)


def schedule_task(profiles, **arguments):
    arguments = {"samples": 100, "measure_s": 0.0} | arguments
    return ScheduleOperator(task_id="schedule", fleet=FLEET, profiles=profiles, **arguments)


def fit_line(function):
    """Return a learned function that is a straight line, because a line is fast to fit."""
    features = np.linspace(0.0, 64.0, 8)[:, None] * np.ones(len(function.features))
    return Learned(function, ("polynomial of degree 1",), features, np.linspace(0.1, 0.2, 8), 1.0, 1.0)


def save_profile(profiles, task, *, days_old=1, **size):
    measured_at = (datetime.now(timezone.utc) - timedelta(days=days_old)).isoformat()
    fingerprint = task._fingerprint(task._training_spec(Path(profiles).parent), "nano")
    origin = Origin(fingerprint, **{"cores": 1, "memory_gib": 1, "gpus": 0} | size, measured_at=measured_at)
    learned = {function.name: fit_line(function) for function in FUNCTIONS}
    ProfileStore(UPath(profiles)).save(DeviceProfile("nano", learned, [4, 8, 16, 32], origin))


def test_valid_profile_is_reused_without_an_engine(profiles, script):
    task = profile_task(profiles, script)
    save_profile(profiles, task)
    result = task.execute(CONTEXT)
    assert (result["profiled"], result["report"]) == ({}, [])
    assert result["kept"]["nano"].startswith("measured at ")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda script: {}, "more than 90"),
        (lambda script: {"arguments": ["--more"]}, "with another training"),
        (lambda script: {"runtime": Docker(image="another")}, "with another training"),
        (lambda script: script.write_text("print('otherwise')") and {}, "with another training"),
        (lambda script: {"batch_sizes": [64]}, "with another training"),
    ],
)
def test_outdated_profile_is_measured_again(profiles, script, tmp_path, change, why):
    save_profile(profiles, profile_task(profiles, script), days_old=100 if "90" in why else 1)
    task = profile_task(profiles, script, **change(script))
    stale, kept = task._check_profiles(ProfileStore(UPath(profiles)), task._training_spec(tmp_path))
    assert kept == {}
    assert why in stale["nano"]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"format": 4}, r"format: Input should be 3"),
        ({"added_later": 1}, r"added_later: Extra inputs are not permitted"),
    ],
)
def test_profile_of_another_version_is_measured_again(profiles, script, tmp_path, change, why):
    task = profile_task(profiles, script)
    save_profile(profiles, task)
    path = Path(profiles) / "nano.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    stale, kept = task._check_profiles(ProfileStore(UPath(profiles)), task._training_spec(tmp_path))
    assert kept == {}
    assert stale["nano"].startswith("it has a profile that cannot be read (profiles: got ")
    assert why in stale["nano"]


def test_missing_engine_is_retried_and_missing_script_is_not(profiles, script, tmp_path):
    with pytest.raises(AirflowException, match="no Docker engine responds") as raised:
        profile_task(profiles, script).execute(CONTEXT)
    assert not isinstance(raised.value, AirflowFailException)
    save_profile(profiles, profile_task(profiles, script))
    with pytest.raises(RuntimeUnavailableError, match="no machine responds"):
        schedule_task(profiles).execute(CONTEXT)
    with pytest.raises(AirflowFailException, match=r"script: got .*none.py"):
        profile_task(profiles, tmp_path / "none.py").execute(CONTEXT)


def logged(capsys):
    """Return the messages that tasks have logged."""
    lines = capsys.readouterr().out.splitlines()
    return [line.partition("]")[2].partition(" [airflow.task")[0].strip() for line in lines]


def test_machines_are_measured_at_the_same_time_and_the_log_shows_each_step(profiles, script, monkeypatch, capsys):
    save_profile(profiles, profile_task(profiles, script))
    together = threading.Barrier(2)

    class Gauge:
        """A fake of ``EngineUsage`` that waits until both machines are measured."""

        def __init__(self, client, machine, others):
            self.machine, self.close = machine, Mock()

        def read(self):
            together.wait(timeout=10)
            return Usage(cpu_s=0.0, memory_bytes=2**28, measured_s=1.0)

    monkeypatch.setattr("paceline.fleet.usage.EngineUsage", Gauge)
    monkeypatch.setattr(Docker, "connect", lambda self: None)
    schedule_task(profiles)._schedule(CONTEXT)
    reading, age, *others = logged(capsys)
    assert reading == "Reading the profiles of nano"
    assert age.startswith("The profile of nano was measured at ")
    assert others == [
        "Measuring the load of 2 machines for 0 s",
        "gate uses 0 % CPU, 25 % memory",
        "server uses 0 % CPU, 25 % memory",
        "Choosing among 1 machines with the scheduler 'default'",
    ]


def test_log_shows_each_function_when_it_is_learned(profiles, script, tmp_path, capsys):
    task = profile_task(profiles, script)
    rng = np.random.default_rng(0)
    rows = {column: rng.uniform(0.1, 1.0, 16) for function in FUNCTIONS for column in function.features}
    rows |= {function.target: rng.uniform(0.1, 1.0, 16) for function in FUNCTIONS} | {"batch_size": np.full(16, 8.0)}
    task._fit_profile("nano", pd.DataFrame({**rows, "kind": "nano"}), task._training_spec(tmp_path))
    lines = logged(capsys)
    assert lines[0] == "Learning the functions of nano from 16 points"
    assert [line.partition(": error")[0] for line in lines[1:]] == [f"nano {function.name}" for function in FUNCTIONS]


def test_schedule_is_marked_for_the_overview(profiles, monkeypatch):
    plan = Plan((Assignment("gate", 100, 16, 0.1),), {}, 10.0)
    monkeypatch.setattr(ScheduleOperator, "_schedule", lambda self, _: (plan, {"gate": State(cpu=0.5, memory=0.1)}))
    push = Mock()
    result = schedule_task(profiles).execute({"ti": SimpleNamespace(xcom_push=push)})
    assert (set(result["workers"]), result["states"]) == ({"gate"}, {"gate": {"cpu": 0.5, "memory": 0.1}})
    push.assert_called_once_with(key=SCHEDULE_XCOM, value=True)


def test_invalid_arguments_are_rejected_by_name(profiles):
    with pytest.raises(InvalidInputError, match="script: got None, expected a Python file"):
        ProfileOperator(task_id="profile", fleet=FLEET, profiles=profiles, command="python -m app.train")
    with pytest.raises(InvalidInputError, match="runtime: got 'process'"):
        profile_task(profiles, "train.py", runtime="process")
    with pytest.raises(InvalidInputError, match="scheduler: got 'best', expected one of default, deep_edge, fair"):
        schedule_task(profiles, scheduler="best")
    for name in ("sample_bytes", "initialize_s", "measure_s"):
        with pytest.raises(InvalidInputError, match=f"{name}: got -1, expected a number of .*, at least 0"):
            schedule_task(profiles, **{name: -1})


@pytest.mark.parametrize(
    ("name", "value", "accepted"),
    [
        *[("measure_s", value, "a number of seconds greater than 0") for value in (0, -1, float("nan"), "fast", None)],
        *[
            ("batch_sizes", value, "different whole numbers of at least 1")
            for value in (8, "8", [], [0], [8, 8], ["a"], [1.5])
        ],
        *[("max_age", value, "a timedelta greater than 0") for value in (90, None, timedelta(0))],
        *[("neighbour_image", value, "the name of an image") for value in (None, "")],
    ],
)
def test_invalid_measurement_is_rejected_when_the_dag_is_parsed(profiles, script, name, value, accepted):
    with pytest.raises(InvalidInputError, match=f"^{name}: got .*, expected {accepted}"):
        profile_task(profiles, script, **{name: value})


def test_too_few_points_are_rejected_before_anything_starts(profiles, script):
    with pytest.raises(AirflowFailException, match=r"points: got 3, expected at least 8 \(machines to measure: 1\)"):
        profile_task(profiles, script, points=3).execute(CONTEXT)


def test_environment_with_a_path_is_part_of_the_fingerprint(profiles, script, tmp_path):
    prints = set()
    for value in (Path("/one"), Path("/two"), "/two"):
        task = profile_task(profiles, script, environment={"DATA": value})
        prints.add(task._fingerprint(task._training_spec(tmp_path), "nano"))
    assert len(prints) == 2


def test_training_may_run_as_root_while_it_is_measured(profiles, script, tmp_path):
    training = profile_task(profiles, script, runtime=Docker(user="0:0", allow_root=True))._training_spec(tmp_path)
    check_spec(MeasuredTraining("m", {"gate": GATE}, SERVER, training, {})._job_spec(GATE, ["python"]))


def test_error_names_missing_and_damaged_profiles(profiles):
    with pytest.raises(AirflowFailException, match="has no profile of nano; create it with a ProfileOperator"):
        schedule_task(profiles).execute(CONTEXT)
    UPath(profiles).mkdir()
    (UPath(profiles) / "nano.json").write_bytes(b"not a profile")
    with pytest.raises(AirflowFailException, match=r"profiles: got '.*nano.json', expected a device profile"):
        schedule_task(profiles).execute(CONTEXT)


@pytest.mark.parametrize(("field", "measured"), [("cores", 0.5), ("memory_gib", 4), ("gpus", 2)])
def test_schedule_rejects_a_profile_of_a_machine_of_another_size(profiles, script, field, measured):
    save_profile(profiles, profile_task(profiles, script), **{field: measured})
    current = getattr(GATE, field)
    message = (
        rf"fleet.machines.gate.{field}: got {current}, expected {measured}, as measured for the profile of nano at"
    )
    with pytest.raises(AirflowFailException, match=message):
        schedule_task(profiles).execute(CONTEXT)


def test_fingerprint_changes_with_the_background_applications(profiles, script, tmp_path):
    app_script = tmp_path / "app.py"
    app_script.write_text("first")

    def fingerprint(*apps):
        fleet = Fleet(machines=(GATE.model_copy(update={"background": apps}),), parameter_server=SERVER)
        task = ProfileOperator(task_id="profile", fleet=fleet, profiles=profiles, script=str(script))
        return task._fingerprint(task._training_spec(tmp_path), "nano")

    app = BackgroundApp(name="app", latency_ms=10, image="app", script=str(app_script))
    fingerprints = [fingerprint(), fingerprint(app), fingerprint(app.model_copy(update={"image": "another"}))]
    app_script.write_text("second")
    fingerprints.append(fingerprint(app))
    assert len(set(fingerprints)) == 4


def test_measured_machines_cover_every_application_of_a_kind(profiles, script):
    def machine(name, *apps):
        background = tuple(BackgroundApp(name=app, latency_ms=10, image="app", script=str(script)) for app in apps)
        return GATE.model_copy(update={"name": name, "cgroup_parent": f"/{name}", "background": background})

    machines = [machine("a"), machine("b", "one"), machine("c", "one"), machine("d", "two")]
    fleet = Fleet(machines=machines, parameter_server=SERVER)
    task = ProfileOperator(task_id="profile", fleet=fleet, profiles=profiles, script=str(script))
    assert {chosen.name for chosen in task._select_machines(["nano"])} == {"a", "b", "d"}


def test_anything_but_a_fleet_is_rejected_when_the_dag_is_parsed(profiles, script):
    plan = {"workers": {"gate": {"samples": 6}}}
    for fleet in ("fleet.yaml", None, {"machines": []}):
        for create in (
            lambda fleet: ProfileOperator(task_id="task", fleet=fleet, profiles=profiles, script=str(script)),
            lambda fleet: ScheduleOperator(task_id="task", fleet=fleet, profiles=profiles, samples=10),
            lambda fleet: ParameterServerOperator(task_id="task", fleet=fleet, plan=plan, deadline="1m"),
            lambda fleet: WorkerTrainingOperator(
                task_id="task", fleet=fleet, worker="gate", plan=plan, server_task_id="server", script="train.py"
            ),
            lambda fleet: train_on_fleet(fleet=fleet, plan=plan, script="train.py", deadline="1m"),
        ):
            with pytest.raises(
                InvalidInputError, match=r"fleet: got .*, expected a Fleet, such as paceline.fleet.load"
            ):
                create(fleet)


@pytest.mark.parametrize("name", ["result", "parameter_server"])
def test_machine_with_the_name_of_another_task_is_rejected_when_the_dag_is_parsed(name):
    fleet = Fleet(machines=(GATE.model_copy(update={"name": name}),), parameter_server=SERVER)
    with DAG("dag", schedule=None), pytest.raises(InvalidInputError, match=rf"fleet.{name}.name: got '{name}'"):
        train_on_fleet(fleet=fleet, plan={"workers": {name: {"samples": 6}}}, script="train.py", deadline="1m")


PLAN = {"workers": {"gate": {"samples": 6}}}
WORKER = {"fleet": FLEET, "worker": "gate", "plan": PLAN, "server_task_id": "server"}


@pytest.mark.parametrize(
    "train",
    [
        lambda **arguments: train_on_fleet(fleet=FLEET, plan=PLAN, **arguments),
        lambda **arguments: WorkerTrainingOperator(task_id="gate", **WORKER, **arguments),
        lambda **arguments: ParameterServerOperator(task_id="server", fleet=FLEET, plan=PLAN, deadline="1m"),
    ],
    ids=["group", "worker", "server"],
)
@pytest.mark.parametrize("inner", [False, True])
def test_distributed_training_in_a_mapped_group_is_rejected_when_the_dag_is_parsed(train, inner):
    @task_group
    def region(script):
        with TaskGroup("inner") if inner else nullcontext():
            train(script=script, deadline="1m")

    with (
        DAG("dag", schedule=None),
        pytest.raises(InvalidInputError, match="task_group: got 'region', expected a group"),
    ):
        region.expand(script=["north.py", "south.py"])


def test_groups_with_the_same_id_in_other_groups_have_networks_of_their_own():
    with DAG("dag", schedule=None) as dag:
        for region in ("north", "south"):
            with TaskGroup(region):
                train_on_fleet(fleet=FLEET, plan=PLAN, script="train.py", deadline="1m")
    tasks = dag.task_dict
    networks = {
        region: {
            network_name(CONTEXT, tasks[f"{region}.train.{name}"].training) for name in ("parameter_server", "gate")
        }
        for region in ("north", "south")
    }
    assert [len(names) for names in networks.values()] == [1, 1], "the tasks of a training meet in one network"
    assert networks["north"] != networks["south"]


def test_group_and_machine_given_wrongly_are_rejected_when_the_dag_is_parsed():
    plan = {"workers": {"gate": {"samples": 6}}}
    with DAG("dag", schedule=None):
        train_on_fleet(fleet=FLEET, plan=plan, script="train.py", deadline="1m")
        with pytest.raises(
            InvalidInputError, match="group_id: got 'train', expected an id that no other group or task"
        ):
            train_on_fleet(fleet=FLEET, plan=plan, script="train.py", deadline="1m")
        with pytest.raises(InvalidInputError, match="worker: got 'gate-9', expected a machine of the fleet: gate"):
            WorkerTrainingOperator(
                task_id="task", fleet=FLEET, worker="gate-9", plan=plan, server_task_id="server", script="train.py"
            )


@pytest.mark.parametrize(
    ("server", "message"),
    [
        ("gate", "server: got 'gate', expected a mapping of arguments of the parameter server"),
        ({"plan": {}}, "server: got 'plan', expected other arguments"),
    ],
)
def test_arguments_of_the_server_given_wrongly_are_rejected_when_the_dag_is_parsed(server, message):
    plan = {"workers": {"gate": {"samples": 6}}}
    with DAG("dag", schedule=None), pytest.raises(InvalidInputError, match=message):
        train_on_fleet(fleet=FLEET, plan=plan, server=server, script="train.py", deadline="1m")


def test_machines_with_the_same_engine_and_cgroup_are_rejected(profiles, script):
    twin = GATE.model_copy(update={"name": "twin"})
    fleet = Fleet(machines=(GATE, twin), parameter_server=GATE)
    for operator in (ProfileOperator, ScheduleOperator):
        more = {"script": str(script)} if operator is ProfileOperator else {"samples": 10}
        with pytest.raises(InvalidInputError, match=r"fleet.twin.cgroup_parent: got '/gate', expected .* gate has"):
            operator(task_id="task", fleet=fleet, profiles=profiles, **more)


@pytest.mark.parametrize(
    ("field", "values", "message"),
    [
        ("script", ("x.py", "y.py"), r"y.background.app.script: got 'y.py', expected 'x.py', as on x of the same kind"),
        ("image", ("one", None), r"y.background.app.image: got None, expected 'one', as on x of the same kind, nano"),
    ],
)
def test_different_neighbours_with_one_name_are_rejected_on_machines_of_one_kind(
    profiles, script, field, values, message
):
    app = BackgroundApp(name="app", latency_ms=10, image="app", script="app.py")

    def machine(name, kind, value):
        background = (app.model_copy(update={field: value}),)
        place = {"name": name, "kind": kind, "cgroup_parent": f"/{name}"}
        return GATE.model_copy(update={"background": background, **place})

    def fleet(kind):
        return Fleet(machines=(machine("x", "nano", values[0]), machine("y", kind, values[1])), parameter_server=SERVER)

    for operator in (ProfileOperator, ScheduleOperator):
        more = {"script": str(script)} if operator is ProfileOperator else {"samples": 10}
        with pytest.raises(InvalidInputError, match=message):
            operator(task_id="task", fleet=fleet("nano"), profiles=profiles, **more)
        operator(task_id="other_kind", fleet=fleet("server"), profiles=profiles, **more)


def test_profile_has_absolute_scripts_and_removes_the_jobs_of_earlier_tries(profiles, script, monkeypatch):
    app = BackgroundApp(name="app", latency_ms=10, image="app", script=script.name)
    server = SERVER.model_copy(update={"background": (app,)})
    fleet = Fleet(machines=(GATE,), parameter_server=server)
    task = ProfileOperator(task_id="profile", fleet=fleet, profiles=profiles, script=str(script))
    monkeypatch.setattr(task, "get_dag", lambda: SimpleNamespace(folder=str(script.parent)))
    monkeypatch.setattr(Docker, "connect", lambda self: Mock())
    runtime, state = Mock(), MemoryState()
    monkeypatch.setattr("paceline.runtime.DockerRuntime", runtime)
    bench = Mock(side_effect=InterruptedError)
    monkeypatch.setattr("paceline.profiles.bench.Bench", bench)
    for hour in (12, 14):  # a user clears the run, which then begins anew
        run = SimpleNamespace(start_date=datetime(2030, 1, 1, hour, tzinfo=timezone.utc))
        with pytest.raises(InterruptedError):
            task._measure({**CONTEXT, "dag_run": run, "task_state_store": state}, Mock(), ["nano"])
    assert bench.call_args.args[1].background[0].script == str(script)
    removed = [one.args[0] for one in runtime.return_value.remove_all.call_args_list]
    assert removed == removed[:1] * 4, "the jobs of an earlier try have the same labels, on each of two engines"
    assert bench.call_args.kwargs["labels"] == removed[0]
