"""Bandwidth limits of containers by the kernel's token buckets at both ends of a virtual Ethernet pair."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest
from tests.integration.jobs import ContainerHarness
from tests.waiting import until

from paceline.errors import PacelineError
from paceline.fleet import Fleet, Link, Machine
from paceline.runtime import TeamNetwork
from paceline.runtime.docker_job import DockerJob
from paceline.testing.emulated_device import EmulatedDevice
from paceline.testing.emulated_link import emulate_links, limit_bandwidth
from paceline.testing.runtime_contract.harness import GATE, fail_on_leftovers, pass_gate, wait_for_line

pytestmark = [
    pytest.mark.docker,
    pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("tc"), reason="traffic control needs root and iproute2"),
    pytest.mark.timeout(120),
]

BYTES = 200_000  # more than a token bucket allows in one burst
ECHO = f"""
import socket
listener = socket.create_server(("0.0.0.0", 7000))
print("listens", flush=True)
peer, _ = listener.accept()
peer.recv({BYTES}, socket.MSG_WAITALL)
peer.sendall(b"x" * {BYTES})
peer.recv(1)
"""
ASK = f"""
import socket
gate()
peer = socket.create_connection(("echo", 7000))
peer.sendall(b"x" * {BYTES})
print(len(peer.recv({BYTES}, socket.MSG_WAITALL)), flush=True)
gate()
"""


@pytest.fixture
def harness(
    docker_client: docker.APIClient, docker_host: str, trainer_image: str, tmp_path: Path
) -> Iterator[ContainerHarness]:
    with fail_on_leftovers(ContainerHarness(docker_client, docker_host, trainer_image, tmp_path)) as made:
        yield made


def link_commands(harness: ContainerHarness, job: DockerJob) -> list[list[str]]:
    """Return two commands that show the traffic control of a container's link, inside the container and on the host."""
    pid = harness.client.inspect_container(job.id)["State"]["Pid"]
    inside = ["nsenter", "-t", str(pid), "-n"]
    links = subprocess.check_output([*inside, "ip", "-o", "link"], text=True)
    ((name, other),) = re.findall(r"^\d+: (\w+)@if(\d+):", links, re.MULTILINE)
    on_host = {path.joinpath("ifindex").read_text().strip(): path.name for path in Path("/sys/class/net").glob("veth*")}
    show = ["tc", "-s", "qdisc", "show", "dev"]
    return [[*inside, *show, name], [*show, on_host[other]]]


def read_buckets(link_commands: list[list[str]]) -> list[tuple[str, int]]:
    """Return the rate and the number of sent bytes of each token bucket."""
    output = "".join(subprocess.check_output(end, text=True) for end in link_commands)
    buckets = re.findall(r"^qdisc tbf .* rate (\w+) .*\n Sent (\d+) bytes", output, re.MULTILINE)
    return [(rate, int(sent)) for rate, sent in buckets]


def test_slow_link_limits_a_container_in_both_directions(harness: ContainerHarness) -> None:
    network = f"{harness.mark}-net"
    far = Machine(
        name="far", kind="part", cores=1, memory_gib=1, cgroup_parent="/paceline-device-far", link=Link(mbit_per_s=20)
    )
    near = Machine(name="near", kind="part", cores=1, memory_gib=1)

    def start_job(name: str, code: str, alias: str | None = None, **changes: Any) -> DockerJob:
        team = TeamNetwork(network, alias)
        spec = harness.spec(code, name=f"{harness.mark}-{name}", devices=0.5, team_network=team, **changes)
        return harness.runtime.start(spec)

    with (
        EmulatedDevice("far", cores=1, memory_bytes=2**30),
        emulate_links(harness.client, Fleet(machines=(far,), parameter_server=near)),
    ):
        echo = start_job("echo", ECHO, alias="echo")
        wait_for_line(echo, "listens")
        ask = start_job("ask", GATE + ASK, options=far.job_options())
        link_ends = link_commands(harness, ask)
        until(lambda: len(read_buckets(link_ends)) == 2)
        assert read_buckets(link_commands(harness, echo)) == []
        pass_gate(harness, ask)
        assert wait_for_line(ask, "at the gate") == [str(BYTES), "at the gate"]
        assert [rate for rate, _ in read_buckets(link_ends)] == ["20Mbit", "20Mbit"]
        assert min(sent for _, sent in read_buckets(link_ends)) > BYTES
        ask.remove()
        assert not Path("/sys/class/net", link_ends[1][-1]).exists()
        echo.remove()


def test_container_without_a_network_is_rejected(harness: ContainerHarness) -> None:
    job = harness.runtime.start(harness.spec("import signal; signal.pause()", devices=0.1))
    with pytest.raises(PacelineError, match="no network to limit"):
        limit_bandwidth(harness.client, job.id, Link(mbit_per_s=20))
    job.remove()
