"""Tests of what a container can write and reach, on a real engine: disk space, read-only root, private networks."""

from __future__ import annotations

import ipaddress
import json
import logging
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest
from tests.integration.jobs import ContainerHarness
from tests.waiting import until

from paceline.runtime import TeamNetwork
from paceline.testing.runtime_contract.harness import GATE, MIB, fail_on_leftovers, read_to_end, wait_for_line

pytestmark = pytest.mark.docker


@pytest.fixture
def harness(
    docker_client: docker.APIClient, docker_host: str, trainer_image: str, tmp_path: Path
) -> Iterator[ContainerHarness]:
    with fail_on_leftovers(ContainerHarness(docker_client, docker_host, trainer_image, tmp_path)) as made:
        yield made


# Prints the number of files of 16 MiB that it can write, up to eight, and the name of the error.
FILLS = """
import errno, os
written, error = 0, ""
try:
    for written in range(8):
        with open(f"part-{written}", "wb") as file:
            file.write(os.urandom(16 * 2**20))
            os.fsync(file.fileno())
    written = 8
except OSError as failed:
    error = errno.errorcode[failed.errno]
print(written, error)
"""


@pytest.mark.parametrize("read_only", [False, True])
def test_disk_limit_applies_or_the_log_says_once_that_the_engine_has_none(
    harness: ContainerHarness, caplog: pytest.LogCaptureFixture, read_only: bool
) -> None:
    seen = []
    with caplog.at_level(logging.WARNING, "paceline"):
        for number in range(2):
            spec = harness.spec(FILLS, name=f"{harness.mark}-{number}", disk_bytes=64 * MIB, read_only=read_only)
            job = harness.runtime.start(spec)
            seen += read_to_end(job)
            job.remove()
    warnings = [text for record in caplog.records if (text := record.getMessage()).startswith("disk: ")]
    if warnings:
        assert len(warnings) == 1
        assert "does not limit the total disk space of jobs (" in warnings[0]
        assert seen == ["8 "] * 2
    else:
        for written, error in map(str.split, seen):
            assert int(written) <= 4
            assert error in ("ENOSPC", "EDQUOT")


def test_no_disk_limit_is_requested_without_one(harness: ContainerHarness, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "paceline"):
        job = harness.runtime.start(harness.spec("", disk_bytes=None))
    read_to_end(job)
    host = harness.client.inspect_container(job.id)["HostConfig"]
    job.remove()
    assert not host.get("StorageOpt")
    assert not host.get("Ulimits")
    assert not caplog.records


READ_ONLY = """
import errno, json, os, pathlib, signal, subprocess, sys
def attempt(path):
    try:
        pathlib.Path(path, "x").write_text("x")
    except OSError as error:
        return errno.errorcode[error.errno]
    return "written"
folders = ["/", "/etc", "/var/tmp", "/paceline", "/paceline/input", "/paceline/sdk",
    ".", "/tmp", "/dev/shm", os.environ["HOME"], os.environ["PACELINE_OUTPUT"], os.environ["PACELINE_CHECKPOINT"]]
saved = pathlib.Path(os.environ["PACELINE_CHECKPOINT"], "step")
print("resumed at", saved.read_text() if saved.exists() else "0", flush=True)
if not saved.exists():
    print(json.dumps([attempt(folder) for folder in folders]), flush=True)
    program = pathlib.Path("/tmp/program")
    program.write_text("#!/bin/sh\\necho ran\\n")
    program.chmod(0o700)
    print(subprocess.run([program], capture_output=True, text=True).stdout.strip(), flush=True)
    print(pathlib.Path(os.environ["PACELINE_INPUT"], "data").read_text(), flush=True)
    saved.write_text("41")
    print("saved", flush=True)
    signal.pause()
"""


def test_read_only_job_writes_only_to_its_folders_and_keeps_them_over_a_restart(
    harness: ContainerHarness, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    data.write_text("the input")
    job = harness.runtime.start(harness.spec(READ_ONLY, read_only=True, inputs={"data": data}))
    lines = wait_for_line(job, "saved")
    job.collect(tmp_path / "running")
    harness.signal(job, signal.SIGKILL)
    lines += read_to_end(job)
    job.restart()
    lines += read_to_end(job)
    job.collect(tmp_path / "ended")
    details = harness.client.inspect_container(job.id)
    job.remove()
    first, written, ran, read, saved, resumed = lines
    assert (first, ran, read, saved, resumed) == ("resumed at 0", "ran", "the input", "saved", "resumed at 41")
    rejected = json.loads(written)[:6]
    assert set(rejected) <= {"EROFS", "EACCES"}
    assert json.loads(written)[6:] == ["written"] * 6
    assert [(tmp_path / name / "x").read_text() for name in ("running", "ended")] == ["x", "x"]
    assert details["HostConfig"]["ReadonlyRootfs"]
    volumes = {mount["Name"] for mount in details["Mounts"]}
    assert len(volumes) == 1
    assert not volumes & {volume["Name"] for volume in harness.client.volumes()["Volumes"] or ()}


# Connects to every address of ADDRESSES, and to the host name "first".
CONNECTS = """
import json, socket
def connect(address):
    try:
        socket.create_connection(address, timeout=5).close()
    except OSError:
        return False
    return True
print(json.dumps([connect(("first", 5000)), *(connect(tuple(address)) for address in ADDRESSES)]))
"""
LISTENS = GATE + "import socket; server = socket.create_server(('', 5000)); gate()"


def test_private_network_reaches_its_jobs_but_not_the_machine_of_the_engine(harness: ContainerHarness) -> None:
    """The test's listener shows that jobs in a network with external access reach the machine."""
    with socket.create_server(("", 0), backlog=16) as listener:
        port = listener.getsockname()[1]
        jobs, addresses = [], []
        for kind in ("open", "closed"):
            network = f"{harness.mark}-{kind}"
            team = TeamNetwork(network, "first", external_access=kind == "open")
            jobs.append(harness.runtime.start(harness.spec(LISTENS, name=network, team_network=team)))
            wait_for_line(jobs[-1], "at the gate")
            (config,) = harness.client.inspect_network(network)["IPAM"]["Config"]
            addresses.append((str(next(ipaddress.ip_network(config["Subnet"]).hosts())), port))
        reached = {}
        for kind in ("open", "closed"):
            code = f"ADDRESSES = {addresses!r}\n{CONNECTS}"
            name = f"{harness.mark}-{kind}"
            jobs.append(
                harness.runtime.start(harness.spec(code, name=f"{name}-second", team_network=TeamNetwork(name)))
            )
            reached[kind] = json.loads(read_to_end(jobs[-1])[-1])
    for job in jobs:
        job.remove()
    if not reached["open"][1]:
        pytest.skip("jobs cannot reach this machine through any network: a firewall, or an engine elsewhere")
    assert reached["open"][0]
    assert reached["closed"] == [True, False, False]


STOPS = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
print("up", flush=True)
while True: signal.pause()
"""


@pytest.mark.parametrize("limit_at_end", [1, 100])
def test_lease_ends_a_job_that_has_used_all_its_processes(harness: ContainerHarness, limit_at_end: int) -> None:
    client = harness.client
    job = harness.runtime.start(harness.spec(STOPS, lease_s=20.0))

    def limit_processes(limit: int) -> None:
        client._result(client._post_json(client._url("/containers/{0}/update", job.id), data={"PidsLimit": limit}))

    wait_for_line(job, "up")
    limit_processes(1)
    # The watcher of the lease cannot start `sleep` for the next second, and waits in Python.
    until(lambda: any("time.sleep" in process for row in client.top(job.id)["Processes"] for process in row))
    limit_processes(limit_at_end)
    job.renew(1.0)
    assert job.wait(100)
    assert (job.status().exit_code, job.status().stopped) == (0, True)
    job.remove()
