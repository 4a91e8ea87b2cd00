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


def spec(name: str, image: str, device: EmulatedDevice, program: str, cores: float = 0.5) -> JobSpec:
    command = ["python", "-c", program]
    return JobSpec(name=name, command=command, devices=cores, image=image, cgroup_parent=device.cgroup_parent)


@pytest.mark.alone
@pytest.mark.parametrize(("cores", "containers"), [(0.5, 2), (0.18, 3)])
def test_busy_containers_share_the_cores_of_their_device(
    docker_client: docker.APIClient, trainer_image: str, cores: float, containers: int
):
    runtime = DockerRuntime(docker_client)
    with EmulatedDevice("test-cores", cores, memory_bytes=2**29, processor=min(os.sched_getaffinity(0))) as device:
        jobs = [runtime.start(spec(f"device-{one}", trainer_image, device, BUSY, cores)) for one in range(containers)]
        try:
            time.sleep(1)
            before, each_before = device.read(), [job.usage() for job in jobs]
            time.sleep(6)
            after, each_after = device.read(), [job.usage() for job in jobs]
        finally:
            for job in jobs:
                job.remove()
    used = (after.cpu_s - before.cpu_s) / (after.measured_s - before.measured_s)
    assert used == pytest.approx(cores, rel=0.1)
    parts = [second.cpu_s - first.cpu_s for first, second in zip(each_before, each_after, strict=True)]
    assert min(parts) > 0.5 * max(parts), f"nobody is left out: {parts}"
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


def test_neighbours_do_not_keep_step():
    with EmulatedDevice("test-one", 0.333, 2**26), EmulatedDevice("test-other", 0.333, 2**26):
        quotas = [quota_and_period_us(name) for name in ("test-one", "test-other")]
    assert quotas[0][1] != quotas[1][1]
    # A container with all of its device's cores is refused by the kernel where the device has a fraction less.
    assert [quota / period for quota, period in quotas] == [0.333, 0.333]


def quota_and_period_us(name: str) -> tuple[int, int]:
    top = Path("/sys/fs/cgroup")
    for group in (folder / f"paceline-device-{name}" for folder in (top, *top.glob("*/"))):
        if (group / "cpu.max").exists():
            quota, period = (group / "cpu.max").read_text().split()
            return int(quota), int(period)
        if (group / "cpu.cfs_quota_us").exists():
            return int((group / "cpu.cfs_quota_us").read_text()), int((group / "cpu.cfs_period_us").read_text())
    raise AssertionError(f"no control group of {name}")


def test_two_devices_of_one_name_are_refused():
    with EmulatedDevice("test-name", 0.5, 2**26), pytest.raises(PacelineError, match="is there one of that name"):
        EmulatedDevice("test-name", 0.5, 2**26)
