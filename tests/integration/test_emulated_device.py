"""Emulated devices limit the cores and memory of real containers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest
from tests.integration.jobs import ContainerHarness, quota_of_group
from tests.waiting import until

from paceline.errors import PacelineError
from paceline.fleet import Fleet, Machine
from paceline.fleet.usage import EngineUsage
from paceline.runtime import DockerOptions
from paceline.testing.emulated_device import EmulatedDevice
from paceline.testing.runtime_contract.harness import fail_on_leftovers

pytestmark = [
    pytest.mark.docker,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can create control groups"),
    pytest.mark.timeout(120),
]


@pytest.fixture
def harness(
    docker_client: docker.APIClient, docker_host: str, trainer_image: str, tmp_path: Path
) -> Iterator[ContainerHarness]:
    with fail_on_leftovers(ContainerHarness(docker_client, docker_host, trainer_image, tmp_path)) as made:
        yield made


def test_emulated_device_limits_its_containers_and_is_removed(harness: ContainerHarness) -> None:
    processor = min(os.sched_getaffinity(0))
    with EmulatedDevice("test-cores", 0.5, memory_bytes=2**29, processor=processor) as device:
        jobs = [
            harness.runtime.start(
                harness.spec(
                    "while True: pass",
                    name=f"{harness.mark}-{one}",
                    devices=0.5,
                    options=DockerOptions(cgroup_parent=device.cgroup_parent),
                )
            )
            for one in range(2)
        ]
        assert quota_of_group(device._group) == pytest.approx(0.5)
        for job in jobs:
            pid = harness.client.inspect_container(job.id)["State"]["Pid"]
            groups = {
                line.split(":")[1]: line.split(":")[2] for line in Path(f"/proc/{pid}/cgroup").read_text().split()
            }
            limiting = [groups[""]] if device._group.unified else [groups[one] for one in ("cpu", "memory", "cpuset")]
            assert all(group.startswith(f"{device.cgroup_parent}/") for group in limiting), groups
            assert os.sched_getaffinity(pid) == {processor}
        used = device.read()
        until(lambda: device.read().cpu_s > used.cpu_s)
        assert 0 < device.read().memory_bytes <= 2**29
        for job in jobs:
            job.remove()
    assert list(Path("/sys/fs/cgroup").glob("**/paceline-device-test-cores")) == []


def test_containers_of_a_device_do_not_count_for_another_machine_of_the_same_engine(harness: ContainerHarness) -> None:
    with EmulatedDevice("test-usage", 0.5, memory_bytes=2**29) as device:
        size = {"kind": "nano", "cores": 1.0, "memory_gib": 1.0}
        machines = [Machine(name="part", cgroup_parent=device.cgroup_parent, **size), Machine(name="rest", **size)]
        fleet = Fleet(machines=tuple(machines), parameter_server=machines[1])
        wait = "import signal; signal.pause()"
        on_device, elsewhere = (
            harness.runtime.start(
                harness.spec(
                    wait, name=f"{harness.mark}-{name}", devices=0.1, options=DockerOptions(cgroup_parent=parent)
                )
            )
            for name, parent in (("part", device.cgroup_parent), ("rest", None))
        )
        gauges = [EngineUsage(harness.client, one, fleet.other_control_groups(one)) for one in machines]
        assert [gauge.includes(on_device.id) for gauge in gauges] == [True, False]
        assert [gauge.includes(elsewhere.id) for gauge in gauges] == [False, True]
        assert gauges[1].read().memory_bytes > 0
        for job in (on_device, elsewhere):
            job.remove()


def test_container_above_the_memory_limit_is_killed(harness: ContainerHarness) -> None:
    with EmulatedDevice("test-memory", cores=1.0, memory_bytes=2**26) as device:
        greedy = harness.spec(
            "x = bytearray(2**28); print(len(x))",
            options=DockerOptions(cgroup_parent=device.cgroup_parent),
            memory_bytes=None,
        )
        job = harness.runtime.start(greedy)
        assert job.wait(60)
        assert job.status().exit_code == 137
        job.remove()


def test_equal_devices_have_different_quota_periods() -> None:
    with EmulatedDevice("test-one", 0.333, 2**26) as one, EmulatedDevice("test-other", 0.333, 2**26) as other:
        assert read_quota_period_us(one) != read_quota_period_us(other)
        # The quotas must be exact: the kernel rejects a container whose quota is larger than its device's quota.
        assert quota_of_group(one._group) == quota_of_group(other._group) == 0.333


def read_quota_period_us(device: EmulatedDevice) -> int:
    if device._group.unified:
        return int((device._group.cpu / "cpu.max").read_text().split()[1])
    return int((device._group.cpu / "cpu.cfs_period_us").read_text())


def test_duplicate_device_name_is_rejected() -> None:
    with EmulatedDevice("test-name", 0.5, 2**26), pytest.raises(PacelineError, match="the name is in use"):
        EmulatedDevice("test-name", 0.5, 2**26)
