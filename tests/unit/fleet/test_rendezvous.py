"""The rendezvous of a job's containers: networks, addresses and keys."""

from __future__ import annotations

import pytest

from paceline.errors import InvalidInputError
from paceline.fleet import Machine
from paceline.fleet.rendezvous import Rendezvous
from paceline.runtime import DockerOptions, JobSpec, TeamNetwork

HALL = Machine(name="hall", kind="server", cores=8, memory_gib=32, address="10.0.0.5:7000", cgroup_parent="/hall")
GATE = Machine(name="gate", kind="nano", cores=4, memory_gib=4, engine_conn_id="gate_docker", cgroup_parent="/gate")
LOCAL = Machine(name="local", kind="nano", cores=4, memory_gib=4)
SPEC = JobSpec(name="job", command=["python"], devices=1)


def make_open_rendezvous(**arguments):
    return Rendezvous(**({"network": "net", "server": HALL, "open": True, "secret": "secret"} | arguments))


def test_one_engine_needs_no_open_port_and_no_key():
    closed = Rendezvous("net", HALL)
    server, worker = closed.server_spec(SPEC), closed.worker_spec(SPEC, LOCAL)
    assert server.team_network == TeamNetwork("net", "parameter-server")
    assert worker.team_network == TeamNetwork("net")
    assert worker.environment == {"PACELINE_SERVER": "parameter-server:29500", "PACELINE_WORKER": "local"}


def test_only_workers_on_other_engines_use_the_address():
    rendezvous = make_open_rendezvous()
    server, remote, local = (
        rendezvous.server_spec(SPEC),
        rendezvous.worker_spec(SPEC, GATE),
        rendezvous.worker_spec(SPEC, LOCAL),
    )
    published = {29500: ("10.0.0.5", 7000)}
    assert server.team_network == TeamNetwork("net", "parameter-server", external_access=True, published=published)
    assert remote.environment["PACELINE_SERVER"] == "10.0.0.5:7000"
    assert remote.team_network == TeamNetwork("net-gate", "gate", external_access=True)
    assert local.environment["PACELINE_SERVER"] == "parameter-server:29500"
    assert local.team_network == TeamNetwork("net")
    keys = {spec.environment["PACELINE_SERVER_KEY"] for spec in (server, remote, local)}
    assert len(keys) == 1


def test_each_machine_has_a_control_group_and_each_job_a_key():
    assert make_open_rendezvous().server_spec(SPEC).options == DockerOptions(cgroup_parent="/hall")
    assert make_open_rendezvous().worker_spec(SPEC, GATE).options == DockerOptions(cgroup_parent="/gate")
    specs = [make_open_rendezvous(network=name).server_spec(SPEC) for name in ("one", "other")]
    one, other = (spec.environment["PACELINE_SERVER_KEY"] for spec in specs)
    assert one != other
    assert "secret" not in one
    assert "secret" not in repr(make_open_rendezvous(secret="secret"))


def test_containers_are_labelled_as_server_and_workers():
    closed = Rendezvous("net", HALL)
    roles = [spec.labels["paceline.role"] for spec in (closed.server_spec(SPEC), closed.worker_spec(SPEC, LOCAL))]
    assert roles == ["server", "worker"]


def test_open_rendezvous_without_address_or_secret_is_rejected():
    with pytest.raises(InvalidInputError, match=r"fleet.hall.address: got None"):
        make_open_rendezvous(server=HALL.model_copy(update={"address": None}))
    with pytest.raises(InvalidInputError, match=r"fleet.key_conn_id: got None"):
        make_open_rendezvous(secret="")


@pytest.mark.parametrize("address", ["0.0.0.0", "0.0.0.0:29500", "hall.example", "10.0.0.5:0", "10.0.0.5:x", "10.0.0"])
def test_invalid_address_is_rejected(address):
    with pytest.raises(ValueError, match="address"):
        Machine(name="hall", kind="server", cores=8, memory_gib=32, address=address)
