"""Where the containers of a training find each other, and who else could."""

from __future__ import annotations

import pytest

from paceline.errors import InvalidInputError
from paceline.fleet import Fleet, Machine
from paceline.fleet.rendezvous import Rendezvous, check_open
from paceline.runtime import JobSpec

HALL = Machine(name="hall", kind="server", cores=8, memory_gib=32, address="10.0.0.5:7000", cgroup_parent="/hall")
GATE = Machine(name="gate", kind="nano", cores=4, memory_gib=4, engine_conn_id="gate_docker", cgroup_parent="/gate")
BESIDE = Machine(name="beside", kind="nano", cores=4, memory_gib=4)
SPEC = JobSpec(name="job", command=["python"], devices=1)


def meeting(**arguments):
    return Rendezvous(**({"network": "net", "server": HALL, "open": True, "secret": "secret"} | arguments))


def test_on_one_engine_nothing_is_open_and_no_key_is_needed():
    closed = Rendezvous("net", HALL)
    server, worker = closed.serve(SPEC), closed.join(SPEC, BESIDE)
    assert (server.own_network, server.alias, server.way_out) == ("net", "parameter-server", False)
    assert server.published == {}
    assert (worker.own_network, worker.alias, worker.way_out) == ("net", None, False)
    assert worker.environment == {"PACELINE_SERVER": "parameter-server:29500", "PACELINE_WORKER": "beside"}


def test_a_worker_elsewhere_goes_to_the_address_and_one_beside_does_not():
    server, elsewhere, beside = meeting().serve(SPEC), meeting().join(SPEC, GATE), meeting().join(SPEC, BESIDE)
    assert server.published == {29500: ("10.0.0.5", 7000)}
    assert elsewhere.environment["PACELINE_SERVER"] == "10.0.0.5:7000"
    assert (elsewhere.own_network, elsewhere.way_out) == ("net-gate", True)
    assert beside.environment["PACELINE_SERVER"] == "parameter-server:29500"
    assert beside.own_network == "net"
    keys = {spec.environment["PACELINE_SERVER_KEY"] for spec in (server, elsewhere, beside)}
    assert len(keys) == 1


def test_machines_have_their_own_control_group_and_trainings_a_key_each_that_is_not_the_secret():
    assert meeting().serve(SPEC).cgroup_parent == "/hall"
    assert meeting().join(SPEC, GATE).cgroup_parent == "/gate"
    one, other = (meeting(network=name).serve(SPEC).environment["PACELINE_SERVER_KEY"] for name in ("one", "other"))
    assert one != other
    assert "secret" not in one
    assert "secret" not in repr(meeting(secret="secret"))


def test_what_could_not_be_reached_or_by_everybody_is_refused():
    with pytest.raises(InvalidInputError, match=r"fleet.hall.address: got None"):
        meeting(server=HALL.model_copy(update={"address": None}))
    with pytest.raises(InvalidInputError, match=r"fleet.key_conn_id: got None"):
        meeting(secret="")
    check_open(Fleet(machines=(BESIDE,), parameter_server=HALL))


@pytest.mark.parametrize("address", ["0.0.0.0", "0.0.0.0:29500", "hall.example", "10.0.0.5:0", "10.0.0.5:x", "10.0.0"])
def test_an_address_is_one_of_the_machine(address):
    with pytest.raises(ValueError, match="address"):
        Machine(name="hall", kind="server", cores=8, memory_gib=32, address=address)
