"""Tests of the assignment of GPUs to containers of a real engine. The engine needs no GPU: no container uses one."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import docker
import pytest
from tests.integration.jobs import ContainerHarness

from paceline.errors import InvalidInputError, RuntimeUnavailableError
from paceline.runtime import DockerRuntime, docker_gpus, gpus
from paceline.testing.runtime_contract.harness import wait_for_line

pytestmark = pytest.mark.docker


class Engine(ContainerHarness):
    """A harness that creates containers with GPUs but does not start them."""

    def runtime_with(self, count: int) -> DockerRuntime:
        return DockerRuntime(self.client, gpus=count)

    def idle(self, name: str, ids: str, *, started: bool) -> str:
        """Create a container with the label of these GPUs that requests none from the engine."""
        labels = {"paceline.test": self.mark, "paceline.job": name, "paceline.gpus": ids}
        created = self.client.create_container(self._image, ["sleep", "300"], name=f"{self.mark}-{name}", labels=labels)
        if started:
            self.client.start(created["Id"])
        return str(created["Id"])

    def request_of(self, container: str) -> tuple[Any, str | None]:
        """Return the container's request for devices and its label."""
        details = self.client.inspect_container(container)
        (request,) = details["HostConfig"]["DeviceRequests"]
        assert request["Capabilities"] == [["gpu"]]
        return request["DeviceIDs"] or request["Count"], details["Config"]["Labels"].get("paceline.gpus")


@pytest.fixture
def engine(
    docker_client: docker.APIClient,
    docker_host: str,
    trainer_image: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Engine]:
    """Yield an engine whose containers are created but not started, because they request GPUs."""
    made = Engine(docker_client, docker_host, trainer_image, tmp_path)
    monkeypatch.setattr(gpus, "reported_by", lambda info: [])
    monkeypatch.setattr(gpus, "of_machine", lambda: [])
    start = docker_client.start

    def start_without_gpus(container: str) -> None:
        if not docker_client.inspect_container(container)["HostConfig"]["DeviceRequests"]:
            start(container)

    monkeypatch.setattr(docker_client, "start", start_without_gpus)
    yield made
    made.remove_leftovers()


def test_containers_get_different_gpus_until_too_few_are_free(engine: Engine) -> None:
    jobs = [engine.runtime_with(3).start(engine.spec(name=f"{engine.mark}-{n}", gpus=n)) for n in (1, 2)]
    assert [engine.request_of(job.id) for job in jobs] == [(["0"], "0"), (["1", "2"], "1,2")]
    with pytest.raises(
        RuntimeUnavailableError, match=r"gpus: got 1, expected at most 0, .*; in use: .*GPU 1,2 by"
    ) as e:
        engine.runtime_with(3).start(engine.spec(name=f"{engine.mark}-3", gpus=1))
    assert all(job.id[:12] in str(e.value) for job in jobs)
    with pytest.raises(InvalidInputError, match="gpus: got 4, expected at most 3"):
        engine.runtime_with(3).start(engine.spec(name=f"{engine.mark}-4", gpus=4))
    assert len(engine.leftovers()) == 2
    jobs[1].remove()
    job = engine.runtime_with(3).start(engine.spec(name=f"{engine.mark}-5", gpus=2))
    assert engine.request_of(job.id) == (["1", "2"], "1,2")


def test_running_and_paused_containers_of_any_installation_keep_their_gpus(engine: Engine) -> None:
    engine.idle("running", "0", started=True)
    engine.client.pause(engine.idle("paused", "1", started=True))
    job = engine.runtime_with(3).start(engine.spec(gpus=1))
    assert engine.request_of(job.id) == (["2"], "2")


def test_gpus_of_stopped_containers_are_assigned_last(engine: Engine) -> None:
    stopped = engine.idle("stopped", "0", started=True)
    engine.client.kill(stopped)
    engine.client.wait(stopped)
    jobs = [engine.runtime_with(2).start(engine.spec(name=f"{engine.mark}-{n}", gpus=1)) for n in (1, 2)]
    assert [engine.request_of(job.id) for job in jobs] == [(["1"], "1"), (["0"], "0")]


def test_stopped_container_resumes_once_no_other_container_uses_its_gpus(engine: Engine) -> None:
    stopped = engine.idle("stopped", "0,1", started=True)
    engine.client.kill(stopped)
    engine.client.wait(stopped)
    other = engine.idle("other", "1", started=True)
    job = engine.runtime_with(2).reattach(stopped)
    with pytest.raises(RuntimeUnavailableError, match=f"gpus: container {stopped[:12]} .*GPU 1 by .*{other[:12]}"):
        job.restart()
    assert job.status().state == "exited"
    engine.client.remove_container(other, force=True)
    job.restart()
    assert job.status().state == "running"


def test_restart_is_undone_if_its_gpu_has_just_been_assigned(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = engine.idle("stopped", "0", started=True)
    engine.client.kill(stopped)
    engine.client.wait(stopped)
    job = engine.runtime_with(1).reattach(stopped)
    start = engine.client.start

    def start_after_another_assignment(container: str) -> None:
        engine.idle("other", "0", started=False)
        start(container)

    monkeypatch.setattr(engine.client, "start", start_after_another_assignment)
    with pytest.raises(RuntimeUnavailableError, match=r"GPU 0 by container .* \(created\)"):
        job.restart()
    assert job.status().state == "exited"


def test_processes_that_choose_the_same_gpu_end_with_different_gpus(engine: Engine) -> None:
    both_chose = threading.Barrier(2)
    first_choices = []

    def assign(name: str) -> str:
        attempts = 0

        def create(chosen: list[str]) -> str:
            nonlocal attempts
            attempts += 1
            if attempts == 1:
                first_choices.append(chosen)
                both_chose.wait(60)
            return engine.idle(f"{name}-{attempts}", ",".join(chosen), started=False)

        def remove(container: str) -> None:
            engine.client.remove_container(container, force=True)

        return docker_gpus.assign(engine.client, ["0", "1", "2", "3"], 1, create, remove)

    with ThreadPoolExecutor(2) as pool:
        containers = list(pool.map(assign, ("a", "b")))
    assert first_choices == [["0"], ["0"]]
    labels = [engine.client.inspect_container(one)["Config"]["Labels"]["paceline.gpus"] for one in containers]
    assert len(set(labels)) == 2
    assert sorted(engine.leftovers()) == sorted(containers)


def test_unknown_number_of_gpus_leaves_the_choice_to_the_engine(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        job = engine.runtime_with(0).start(engine.spec(gpus=2))
    assert engine.request_of(job.id) == (2, None)
    assert "gpus: the engine picks the job's GPUs and may share them" in caplog.text


LOCKS = """
import os, time
from pathlib import Path
from paceline.train.pacing._gpu_turns import GpuTurns
from paceline.train.pacing.share import CpuShare, read_control
paths, control = os.environ["PACELINE_GPU_TURNS"].split(":"), Path(os.environ["PACELINE_CONTROL"])
turns = GpuTurns(paths)
if not turns._try():
    print("busy", flush=True)
while not turns._held:
    time.sleep(0.01)
    turns._try()
print("taken", CpuShare().read(), [os.access(path, os.W_OK) for path in (*paths, control)], flush=True)
while read_control(control) != 0.4:
    time.sleep(0.01)
print("share 0.4", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("read_only", [False, True])
def test_containers_with_parts_of_a_gpu_lock_its_volume_in_turn(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, read_only: bool
) -> None:
    volume, create_host_config = f"{engine.mark}-gpu", engine.client.create_host_config
    monkeypatch.setattr(docker_gpus, "turns", lambda ids, folder: {f"{folder}/0": volume})
    monkeypatch.setattr(
        engine.client,
        "create_host_config",
        lambda **options: create_host_config(**{**options, "device_requests": None}),
    )
    cores = min(engine.runtime.capacity(), 2.0)
    shared = {"gpus": 0.5, "shares_gpus": True, "cores_per_device": cores, "devices": 0.3, "read_only": read_only}
    spec = engine.spec(LOCKS, **shared)
    try:
        first = engine.runtime_with(1).start(replace(spec, name=f"{engine.mark}-1"))
        wait_for_line(first, f"taken {cores} [False, False]")
        second = engine.runtime_with(1).start(replace(spec, name=f"{engine.mark}-2"))
        wait_for_line(second, "busy")
        with pytest.raises(RuntimeUnavailableError, match=r"gpus: got 0.5, expected at most 0, .*; free: none"):
            engine.runtime_with(1).start(replace(spec, name=f"{engine.mark}-3"))
        engine.runtime_with(1).reattach(first.id).resize(0.4)
        wait_for_line(first, "share 0.4")
        assert engine.quota_of(first) == cores
        engine.client.kill(first.id)
        wait_for_line(second, "taken")
    finally:
        engine.remove_leftovers()
        engine.client.remove_volume(volume)
