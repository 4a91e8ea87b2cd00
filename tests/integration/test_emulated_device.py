"""Parts of this machine as devices: real containers compete inside a ceiling of cores and memory."""

from __future__ import annotations

import os
import time
from pathlib import Path

import docker
import pytest

from paceline.errors import PacelineError
from paceline.fleet.emulated import EmulatedDevice
from paceline.runtime import DockerRuntime, JobSpec

pytestmark = [
    pytest.mark.docker,
    pytest.mark.skipif(os.geteuid() != 0, reason="control groups are made by root"),
    pytest.mark.timeout(120),
]
BUSY = "while True: pass"


def spec(name: str, image: str, device: EmulatedDevice, program: str) -> JobSpec:
    command = ["python", "-c", program]
    return JobSpec(name=name, command=command, devices=0.5, image=image, cgroup_parent=device.cgroup_parent)


def test_two_busy_containers_share_the_cores_of_their_device(docker_client: docker.APIClient, trainer_image: str):
    runtime = DockerRuntime(docker_client)
    with EmulatedDevice("test-cores", cores=0.5, memory_bytes=2**29) as device:
        jobs = [runtime.start(spec(f"device-{number}", trainer_image, device, BUSY)) for number in (1, 2)]
        try:
            time.sleep(1)
            before = device.read()
            time.sleep(4)
            after = device.read()
        finally:
            for job in jobs:
                job.remove()
    cores = (after.cpu_s - before.cpu_s) / (after.measured_s - before.measured_s)
    assert cores == pytest.approx(0.5, rel=0.1)
    assert list(Path("/sys/fs/cgroup").glob("**/paceline-device-test-cores")) == []


def test_what_does_not_fit_into_its_memory_is_killed(docker_client: docker.APIClient, trainer_image: str):
    with EmulatedDevice("test-memory", cores=1.0, memory_bytes=2**26) as device:
        job = DockerRuntime(docker_client).start(
            spec("device-memory", trainer_image, device, "x = bytearray(2**28); print(len(x))")
        )
        try:
            assert job.wait(60)
            assert job.status().exit_code == 137
        finally:
            job.remove()


def test_two_devices_of_one_name_are_refused():
    with EmulatedDevice("test-name", 0.5, 2**26), pytest.raises(PacelineError, match="is there one of that name"):
        EmulatedDevice("test-name", 0.5, 2**26)
