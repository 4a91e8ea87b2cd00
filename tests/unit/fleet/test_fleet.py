"""Tests of fleet files: parsing, validation errors that name machine and field, and the check of engines."""

import pytest

from paceline.airflow.cli import main
from paceline.errors import InvalidInputError
from paceline.fleet import BackgroundApp, Fleet, Link, Machine, check, load
from paceline.fleet._file import read

FLEET = """
defaults: {kind: nano, tier: edge, cores: 4, memory_gib: 4, link: {mbit_per_s: 100, delay_ms: 2}}
machines:
  - name: gate-1
    engine_conn_id: gate_1_docker
    queue: gate-1
    background: [{name: stitching, latency_ms: 200}]
  - {name: gate-2, data: [frames]}
  - {name: hall, kind: server, tier: cloud, cores: 32, gpus: 2, memory_gib: 128}
parameter_server: {name: store, kind: server, cores: 8, memory_gib: 32}
"""


@pytest.fixture
def write_fleet(tmp_path):
    def write_fleet(text):
        path = tmp_path / "fleet.yaml"
        path.write_text(text)
        return path

    return write_fleet


def test_load_applies_defaults(write_fleet):
    fleet = load(write_fleet(FLEET))
    gate, _, hall = fleet.machines
    assert gate.background == (BackgroundApp(name="stitching", latency_ms=200),)
    assert gate.link == Link(mbit_per_s=100, delay_ms=2)
    assert (gate.cores, gate.tier, gate.queue, hall.gpus, hall.tier) == (4.0, "edge", "gate-1", 2, "cloud")
    assert fleet.parameter_server.name == "store"
    assert fleet.kinds == ["nano", "server"]
    assert fleet.machine("gate-2").data == ("frames",)
    with pytest.raises(KeyError):
        fleet.machine("gate-3")


def test_parameter_server_may_be_a_worker_and_defaults_to_the_first_machine(write_fleet):
    named = FLEET.replace("{name: store, kind: server, cores: 8, memory_gib: 32}", "hall")
    assert load(write_fleet(named)).parameter_server.gpus == 2
    without = "\n".join(line for line in FLEET.splitlines() if not line.startswith("parameter_server"))
    assert load(write_fleet(without)).parameter_server.name == "gate-1"


MACHINE = {"name": "a", "kind": "nano", "cores": 4, "memory_gib": 4}


def background_apps(*latencies_ms):
    return {"background": [{"name": "x", "latency_ms": latency_ms} for latency_ms in latencies_ms]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], 'fleet: got .fleet., expected a mapping with "machines"'),
        ({"machines": []}, r"fleet.machines: got \[\], expected at least one machine"),
        ({"machines": [], "parameter_server": "a"}, r"fleet.machines: got \[\], expected at least one machine"),
        ({"machines": [MACHINE | {"queue": ""}]}, "fleet.machines.a.queue: got '', expected .* at least 1 character"),
        ({"machines": {}}, r"fleet.machines: got \{\}, expected a list of machines"),
        ({"machines": ["a"]}, r"fleet.machines: got \['a'\], expected a list of machines, each a mapping"),
        ({"machines": [MACHINE], "defaults": 3}, "fleet.defaults: got 3, expected a mapping"),
        ({"machines": [MACHINE], "parameter_server": "b"}, "fleet.parameter_server: got 'b', expected a machine, or"),
        ({"machines": [MACHINE | {"cores": 0}]}, "fleet.machines.a.cores: got 0, expected .* greater than 0"),
        ({"machines": [MACHINE | {"cores": float("nan")}]}, "fleet.machines.a.cores: got nan, expected"),
        ({"machines": [MACHINE | {"coers": 2}]}, "fleet.machines.a.coers: got 2, expected .* extra inputs are not"),
        ({"machines": [MACHINE | {"tier": "fog"}]}, "fleet.machines.a.tier: got 'fog', expected .*'edge' or 'cloud'"),
        ({"machines": [MACHINE | {"name": "A b"}]}, "fleet.machines.A b.name: got 'A b', expected"),
        (
            {"machines": [MACHINE, MACHINE]},
            "fleet: got .*, expected a valid fleet: two machines have the name 'a'",
        ),
        (
            {"machines": [MACHINE], "parameter_server": MACHINE | {"engine_conn_id": "other"}},
            "fleet: got .*, expected a valid fleet: the parameter server and a different machine have the name 'a'",
        ),
        (
            {"machines": [MACHINE | {"address": "gate.local"}]},
            "fleet.machines.a.address: got 'gate.local', expected a valid fleet: 'gate.local' is not an IPv4 address",
        ),
        ({"machines": [MACHINE | {"address": "::1"}]}, "fleet.machines.a.address: got '::1', .* not an IPv4 address"),
        ({"machines": [MACHINE | {"address": "10.0.0.1:"}]}, "a.address: got '10.0.0.1:', .* '' is not a port from 1"),
        (
            {"machines": [MACHINE | {"address": "10.0.0.1:²"}]},
            "a.address: got '10.0.0.1:²', .* '²' is not a port from 1",
        ),
        ({"machines": [MACHINE | background_apps(-1)]}, "fleet.machines.a.background.x.latency_ms: got -1, expected"),
        (
            {"machines": [MACHINE | background_apps(1, 1)]},
            "fleet.machines.a: got .* two applications have the name 'x'",
        ),
        ({"machines": [{"name": "a", "kind": "nano", "cores": 1}]}, "fleet.machines.a.memory_gib: got 'nothing'"),
        ({"machines": [MACHINE], "parameter_server": {"name": "s"}}, "fleet.parameter_server.kind: got 'nothing'"),
    ],
)
def test_validation_error_names_machine_and_field(content, message):
    with pytest.raises(InvalidInputError, match=message):
        read(content)


def test_error_for_an_unreadable_file_names_the_file(write_fleet, tmp_path):
    with pytest.raises(InvalidInputError, match=r"nowhere.yaml', expected a readable file \(No such file"):
        load(tmp_path / "nowhere.yaml")
    with pytest.raises(InvalidInputError, match="expected YAML"):
        load(write_fleet("workers: [a: b: c]"))
    with pytest.raises(InvalidInputError, match=r"expected YAML \(line 2: found character '\\t' that cannot start"):
        load(write_fleet("machines:\n\t- {name: a}\n"))
    for text in ("machines: [{name: a}]\nmachines: [{name: b}]\n", "machines:\n- {name: a, cores: 1, name: b}\n"):
        with pytest.raises(InvalidInputError, match=r"expected YAML \(line 2: a second '(machines|name)'"):
            load(write_fleet(text))
    with pytest.raises(InvalidInputError, match=r"expected YAML \(month must be in 1..12"):
        load(write_fleet("machines: [{name: 2030-13-01}]"))
    with pytest.raises(InvalidInputError, match="expected YAML"):
        load(write_fleet("!!python/object/apply:os.system ['true']"))  # loading must not execute code in the file


class FakeEngine:
    """A fake of the Docker client for one engine."""

    def __init__(self, cores=4, memory_gib=4.0, images=("trainer",), runtimes=("runc",)):
        self._info = {"NCPU": cores, "MemTotal": memory_gib * 2**30, "Runtimes": dict.fromkeys(runtimes)}
        self._images = images

    def version(self):
        return {"Version": "28.2.2"}

    def info(self):
        return self._info

    def images(self, name):
        return [name] if name in self._images else []


def test_check_reports_differences_of_every_engine(write_fleet):
    engines = {
        "gate-2": FakeEngine(cores=2, memory_gib=3.8),
        "hall": FakeEngine(32, 128.0),
        "store": FakeEngine(8, 8.0, ()),
    }

    def connect(worker):
        if worker.name not in engines:
            raise ConnectionError("Connection refused\nand more details")
        return engines[worker.name]

    results = {one.machine: one for one in check(load(write_fleet(FLEET)), connect, image="trainer")}
    assert list(results) == ["gate-1", "gate-2", "hall", "store"]
    assert results["gate-1"].problems == ("its engine does not respond: Connection refused",)
    assert results["gate-2"].problems == ("has 2 cores, expected 4",)
    assert results["hall"].problems == ("its engine has no GPU runtime, expected 2 GPUs",)
    assert results["store"].problems == ("has 8.0 GiB of memory, expected 32", "image trainer is missing")
    assert (results["gate-2"].version, results["gate-2"].cores, results["gate-2"].ok) == ("28.2.2", 2, False)
    results = check(load(write_fleet(FLEET)), lambda worker: FakeEngine(64, 256.0, runtimes=("runc", "nvidia")))
    assert all(one.ok for one in results)


def test_check_compares_the_gpus_that_an_engine_reports(write_fleet):
    def problems_with(gpus):
        engine = FakeEngine(64, 256.0)
        engine.info()["DiscoveredDevices"] = [{"ID": f"nvidia.com/gpu={index}"} for index in range(gpus)]
        return [problem for one in check(load(write_fleet(FLEET)), lambda worker: engine) for problem in one.problems]

    assert problems_with(1) == ["its engine reports 1 of 2 GPUs"]
    assert problems_with(2) == []


def test_check_names_the_limits_that_an_engine_discards(write_fleet):
    engine = FakeEngine(64, 256.0, runtimes=("runc", "nvidia"))
    engine.info().update(CpuCfsQuota=True, MemoryLimit=False, PidsLimit=False)
    result = next(iter(check(load(write_fleet(FLEET)), lambda worker: engine)))
    memory, processes = result.problems
    assert memory.startswith("its engine discards the limit memory_bytes, which needs a kernel with cgroup_enable=")
    assert processes.startswith("its engine discards the limit max_processes")
    assert result.cores == 64


def test_engine_has_the_gpus_of_all_machines_that_share_it():
    first, second = (Machine(name=name, kind="server", cores=8, gpus=2, memory_gib=8) for name in ("first", "second"))
    elsewhere = Machine(name="hall", kind="server", cores=8, gpus=4, memory_gib=8, engine_conn_id="hall_docker")
    fleet = Fleet(machines=(first, elsewhere), parameter_server=second)
    assert [fleet.engine_gpus(machine) for machine in (first, second, elsewhere)] == [4, 4, 4]
    assert Fleet(machines=(first,), parameter_server=first).engine_gpus(first) == 2


def test_fleet_check_command_lists_machines_and_fails_if_one_is_unreachable(write_fleet, capsys, monkeypatch):
    monkeypatch.setattr(
        "paceline.airflow._fleet_command._connect", lambda worker: FakeEngine(64, 256.0, runtimes=("runc", "nvidia"))
    )
    monkeypatch.setenv("AIRFLOW_CONN_FLEET_KEY", "http://:secret@")
    assert main(["fleet", "check", str(write_fleet(SEVERAL_ENGINES))]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["MACHINE", "KIND", "TIER", "ENGINE", "CORES", "MEMORY"]
    assert lines[1].split() == ["gate-1", "nano", "edge", "28.2.2", "64", "256", "GiB", "ok"]
    assert len(lines) == 4
    monkeypatch.setattr("paceline.airflow._fleet_command._connect", lambda worker: 1 / 0)
    assert main(["fleet", "check", str(write_fleet(SEVERAL_ENGINES))]) == 1
    assert "its engine does not respond: division by zero" in capsys.readouterr().out
    assert main(["fleet", "check", "nowhere.yaml"]) == 1
    assert "fleet: got 'nowhere.yaml', expected a readable file" in capsys.readouterr().err


SEVERAL_ENGINES = """
defaults: {kind: nano, cores: 4, memory_gib: 4}
machines:
  - {name: gate-1, engine_conn_id: gate_1_docker}
  - {name: gate-2, engine_conn_id: gate_2_docker}
  - {name: hall, engine_conn_id: hall_docker, address: 10.0.0.5}
parameter_server: hall
key_conn_id: fleet_key
"""


@pytest.mark.parametrize(
    ("correct", "wrong", "fault"),
    [
        (", address: 10.0.0.5", "", "fleet.hall.address: got None, expected an address at which"),
        ("key_conn_id: fleet_key", "", "fleet.key_conn_id: got None, expected a connection whose password"),
        ("fleet_key", "no_key", "fleet.key_conn_id: got 'no_key', expected a connection that exists"),
        ("fleet_key", "empty_key", "fleet.key_conn_id: got 'empty_key', expected a connection with a password"),
        ("gate_2", "gate_1", "fleet.gate-2.cgroup_parent: got None, expected another cgroup_parent, because gate-1"),
        ("gate-2", "result", "fleet.result.name: got 'result', expected another name, because a task"),
        ("gate-2", "parameter_server", "fleet.parameter_server.name: got 'parameter_server', expected another name"),
        (
            "engine_conn_id: gate_2_docker",
            "queue: gate-2",
            "fleet.gate-2.engine_conn_id: got None, expected a connection, because the engine is also needed outside",
        ),
    ],
)
def test_fleet_check_command_names_faults_of_the_fleet(write_fleet, capsys, monkeypatch, correct, wrong, fault):
    monkeypatch.setattr("paceline.airflow._fleet_command._connect", lambda worker: FakeEngine())
    monkeypatch.setenv("AIRFLOW_CONN_FLEET_KEY", "http://:secret@")
    monkeypatch.setenv("AIRFLOW_CONN_EMPTY_KEY", "http://")
    assert main(["fleet", "check", str(write_fleet(SEVERAL_ENGINES.replace(correct, wrong)))]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("fleet.")] == [line for line in lines if line.startswith(fault)]
    assert len(lines) == 5


def test_fleet_check_command_connects_to_no_other_engine_instead_of_an_undefined_one(write_fleet, capsys, monkeypatch):
    monkeypatch.setenv("AIRFLOW_CONN_FLEET_KEY", "http://:secret@")
    fleet = SEVERAL_ENGINES.replace("engine_conn_id: gate_2_docker", "queue: gate-2")
    assert main(["fleet", "check", str(write_fleet(fleet))]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert "fleet.gate-2.engine_conn_id: got None, expected a connection, because" in lines[2]
    assert lines[1].endswith(
        "got 'gate_1_docker', expected a connection that exists (in a shell: $AIRFLOW_CONN_GATE_1_DOCKER)"
    )
    assert "does not respond" not in "".join(lines)
