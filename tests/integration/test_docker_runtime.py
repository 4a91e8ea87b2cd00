"""What containers alone promise, beside the contract: what they may do, their networks, starts that are cut off."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import docker
import pytest
from tests.integration.jobs import MIB, Containers, finish, leaving_nothing
from tests.waiting import until

from paceline.errors import InvalidInputError, JobLostError, RuntimeUnavailableError
from paceline.runtime import DockerRuntime
from paceline.runtime.docker_stats import stats_now, usage_of

pytestmark = pytest.mark.docker


@pytest.fixture
def place(
    docker_client: docker.APIClient, docker_host: str, trainer_image: str, tmp_path: Path
) -> Iterator[Containers]:
    with leaving_nothing(Containers(docker_client, docker_host, trainer_image, tmp_path)) as made:
        yield made


LOOK_AROUND = """
import json, os, socket, paceline.train.progress as progress
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
def attempt(what):
    try:
        what()
    except OSError as error:
        return type(error).__name__
    return "done"
print(json.dumps({
    "caps": [status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")],
    "no_new_privileges": status["NoNewPrivs"],
    "ids": [os.getuid(), os.getgid()],
    "groups": sorted(set(os.getgroups())),
    "interfaces": sorted(os.listdir("/sys/class/net")),
    "connect": attempt(lambda: socket.create_connection(("172.17.0.1", 80), timeout=2)),
    "folder": os.getcwd(),
    "write_input": attempt(lambda: open(os.environ["PACELINE_INPUT"] + "/x", "w")),
    "write_sdk": attempt(lambda: open(progress.__file__, "a")),
    "write_root": attempt(lambda: open("/etc/x", "w")),
    "write_work": attempt(lambda: open("x", "w")),
    "init": open("/proc/1/comm").read().strip(),
}))
"""


def test_a_container_may_use_its_files_and_do_nothing_else(place: Containers) -> None:
    job = place.runtime.start(place.spec(LOOK_AROUND, max_processes=77))
    (said,) = finish(job)
    seen = json.loads(said)
    assert seen["caps"] == ["0000000000000000"] * 5
    assert seen["no_new_privileges"] == "1"
    assert seen["ids"] == [65532, 65532]
    assert 0 not in seen["groups"]
    assert seen["interfaces"] == ["lo"]
    assert seen["connect"] != "done"
    assert seen["folder"] == "/paceline/work"
    assert [seen["write_input"], seen["write_sdk"], seen["write_root"]] == ["PermissionError"] * 3
    assert seen["write_work"] == "done"
    assert seen["init"] in ("docker-init", "tini")
    host = place.client.inspect_container(job.id)["HostConfig"]
    assert (host["PidsLimit"], host["Memory"], host["MemorySwap"]) == (77, 256 * MIB, 256 * MIB)
    assert not host["Binds"]
    assert not host["Privileged"]
    job.remove()


def test_an_own_network_gives_up_names_soon_and_is_removed_with_its_last_container(
    place: Containers,
) -> None:
    network = f"{place.mark}-net"
    job = place.runtime.start(place.spec("print(open('/etc/resolv.conf').read())", own_network=network, alias="it"))
    lines = finish(job)
    assert {"timeout:1", "attempts:2"} <= {word for line in lines for word in line.split()}, lines
    assert place.runtime.has_network(network)
    job.remove()
    assert not place.runtime.has_network(network)


def test_a_container_that_is_removed_while_it_is_measured_reports_no_usage(place: Containers) -> None:
    job = place.runtime.start(place.spec("while True: pass"))

    def ask_until_gone() -> None:
        try:
            while usage_of(stats_now(place.client, job.id)) is not None:
                asked.append(True)
        except JobLostError:
            pass

    asked: list[bool] = []
    with ThreadPoolExecutor(8) as pool:  # so that the removal falls into some of the answers
        answers = [pool.submit(ask_until_gone) for _ in range(8)]
        until(lambda: asked)
        job.remove()
        for answer in answers:
            answer.result(60)


def test_a_container_that_was_created_but_never_started_is_made_anew(
    place: Containers, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A crash between create and start: what was put into the container by then is unknown.
    wanted = place.spec("print('done')")
    with monkeypatch.context() as crash:
        crash.setattr(DockerRuntime, "_discard", lambda *_: None)
        crash.setattr(place.client, "start", raising(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            place.runtime.start(wanted)
    left = place.client.inspect_container(f"paceline-{wanted.name}")
    assert left["State"]["Status"] == "created"
    with pytest.raises(JobLostError, match="never started"):
        place.runtime.reattach(left["Id"])
    job = place.runtime.start(wanted)
    assert job.id != left["Id"]
    assert finish(job) == ["done"]
    job.remove()


@pytest.mark.parametrize(
    ("step", "said"),
    [
        ("create_container", "create the container"),
        ("put_archive", "put the job's files into the container"),
        ("start", "start the container"),
    ],
)
@pytest.mark.parametrize("interrupted", [False, True], ids=["engine-away", "interrupted"])
def test_a_start_that_is_cut_off_at_any_step_leaves_nothing(
    place: Containers, monkeypatch: pytest.MonkeyPatch, step: str, said: str, interrupted: bool
) -> None:
    error = KeyboardInterrupt("cut off") if interrupted else ConnectionResetError("cut off")
    monkeypatch.setattr(place.client, step, raising(error))
    with pytest.raises(KeyboardInterrupt if interrupted else RuntimeUnavailableError, match="cut off") as raised:
        place.runtime.start(place.spec("print()", own_network=f"{place.mark}-net", alias="it"))
    assert interrupted or f"could not {said}" in str(raised.value)
    assert place.left() == []


def raising(error: BaseException) -> Callable[..., Any]:
    def cut_off(*_: object, **__: object) -> None:
        raise error

    return cut_off


def test_a_program_that_the_image_lacks_is_reported(place: Containers) -> None:
    wanted = place.spec(command=["no-such-program"])
    try:
        job = place.runtime.start(wanted)
    except Exception:
        assert place.left() == []
    else:  # an engine with an init starts it, and the init fails
        finish(job)
        assert job.status().exit_code == 127
        assert "could not be run" in job.status().reason
        job.remove()


def test_gpus_are_asked_of_the_engine_and_named_where_it_has_none(place: Containers) -> None:
    wanted = place.spec("import os; print(os.path.exists('/dev/nvidiactl'))", gpus=1)
    if any("nvidia" in name for name in place.client.info()["Runtimes"]):
        job = place.runtime.start(wanted)
        assert finish(job) == ["True"]
        job.remove()
    else:
        with pytest.raises(InvalidInputError, match="gpus: got 1, expected at most the GPUs that the engine can give"):
            place.runtime.start(wanted)
        assert place.left() == []


def test_an_engine_that_is_not_there_is_said_to_be_away(place: Containers) -> None:
    runtime = DockerRuntime(lambda: docker.APIClient("unix:///nowhere/docker.sock", version="auto"))
    with pytest.raises(RuntimeUnavailableError, match="connect to the Docker engine"):
        runtime.check(place.spec("print()"))
