"""The harnesses of Paceline's own runtimes for the contract of all runtimes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from kubernetes.client import CoreV1Api, NetworkingV1Api
from tests.conftest import connect_cluster
from tests.integration.clusters import run_in_pod
from tests.waiting import until

from paceline.runtime import DockerOptions, DockerRuntime, Job, JobSpec, ProcessRuntime, TeamNetwork, cgroups
from paceline.runtime.cgroups import Group
from paceline.runtime.kubernetes import KubernetesRuntime
from paceline.runtime.process_job import ProcessJob
from paceline.runtime.scratch import Scratch, read_json
from paceline.testing.runtime_contract import MAX_OUTPUT_BYTES, RuntimeHarness, TeamHarness

if TYPE_CHECKING:
    import docker


def _can_create_cgroup() -> bool:
    probe = cgroups.create(f"paceline-test-{os.getpid()}")
    return probe is not None and probe.remove()


MECHANISMS = [
    "signal",
    pytest.param(
        "cgroup", marks=pytest.mark.skipif(not _can_create_cgroup(), reason="this user may not create a cgroup")
    ),
]


class ContainerHarness(TeamHarness):
    """Test harness for jobs that run as containers of an engine."""

    runtime: DockerRuntime
    rejected: ClassVar = {
        "image: got 'no/such:image', expected an image that the engine has": {"image": "no/such:image"},
        "image: got None": {"image": None},
        "network: got 'no-such-network'": {"options": DockerOptions(network="no-such-network")},
        "network: got 'bridge', expected None, because the jobs of a team": {
            "options": DockerOptions(network="bridge"),
            "team_network": TeamNetwork("net"),
        },
    }

    def __init__(self, client: docker.APIClient, address: str, image: str, folder: Path) -> None:
        super().__init__(DockerRuntime(client, max_output_bytes=MAX_OUTPUT_BYTES), folder)
        self.client, self._image = client, image
        self.constructor = (
            "import docker\nfrom paceline.runtime import DockerRuntime\n"
            f"runtime = DockerRuntime(docker.APIClient({address!r}, version='auto'))"
        )

    def spec(self, code: str = "", **changes: Any) -> JobSpec:
        return super().spec(code, **{"image": self._image, "labels": {"paceline.test": self.mark}, **changes})

    def signal(self, job: Job, number: int) -> None:
        """Send a signal to the job's first process."""
        self.client.kill(job.id, signal=int(number))

    def quota_of(self, job: Job) -> float:
        """Return the job's current CPU quota in cores."""
        host = self.client.inspect_container(job.id)["HostConfig"]
        return float(host["CpuQuota"] / host["CpuPeriod"])

    def leftovers(self) -> list[str]:
        """Return the containers and networks that the test's jobs have left."""
        containers = self.client.containers(all=True, filters={"label": f"paceline.test={self.mark}"})
        networks = [one["Name"] for one in self.client.networks() if one["Name"].startswith(self.mark)]
        return [str(one["Id"]) for one in containers] + networks

    def remove_leftovers(self) -> None:
        self.runtime.remove_all({"paceline.test": self.mark})


class PodHarness(TeamHarness):
    """Test harness for jobs that run as pods in a namespace of their own."""

    runtime: KubernetesRuntime
    rejected: ClassVar = {
        "image: got None": {"image": None},
    }

    def __init__(self, namespace: str, image: str, folder: Path) -> None:
        runtime = KubernetesRuntime(connect_cluster, namespace=namespace, max_output_bytes=MAX_OUTPUT_BYTES)
        super().__init__(runtime, folder)
        self.namespace, self._image = namespace, image
        self.core, self.networks = CoreV1Api(connect_cluster()), NetworkingV1Api(connect_cluster())
        self.constructor = (
            "from kubernetes.config import new_client_from_config\n"
            "from paceline.runtime.kubernetes import KubernetesRuntime\n"
            f"runtime = KubernetesRuntime(new_client_from_config, namespace={namespace!r})"
        )

    def spec(self, code: str = "", **changes: Any) -> JobSpec:
        return super().spec(code, **{"image": self._image, "labels": {"paceline.test": self.mark}, **changes})

    def run(self, job: Job, command: str) -> str:
        """Run a shell command in the job's pod and return its output."""
        return run_in_pod(self.namespace, job.id.split("/")[2], command)

    def signal(self, job: Job, number: int) -> None:
        """Send a signal to the only child of the pod's first process."""
        self.run(job, f"kill -{int(number)} $(cat /proc/1/task/1/children | cut -d ' ' -f 1)")

    def quota_of(self, job: Job) -> float:
        one, two = "cat cpu.max", "cat cpu/cpu.cfs_quota_us cpu/cpu.cfs_period_us"  # control groups version 2 and 1
        quota, period = self.run(job, f"cd /sys/fs/cgroup; {one} 2>/dev/null || {two}").split()
        return int(quota) / int(period)

    def leftovers(self) -> list[str]:
        """Return everything that the test's jobs have left in the namespace."""
        # The cluster deletes the policies of pods soon after the pods.
        until(lambda: len(self.policies()) <= len(self.core.list_namespaced_pod(self.namespace).items), "the policies")
        pods = self.core.list_namespaced_pod(self.namespace).items
        secrets = self.core.list_namespaced_secret(self.namespace).items
        return [one.metadata.name for one in (*pods, *secrets)]

    def policies(self) -> list[Any]:
        """Return the network policies of the namespace."""
        return list(self.networks.list_namespaced_network_policy(self.namespace).items)

    def remove_leftovers(self) -> None:
        self.runtime.remove_all({})


class ProcessHarness(RuntimeHarness):
    """Test harness for jobs that run as local processes, with folders in ``root``."""

    runtime: ProcessRuntime
    owns_its_folder = True
    rejected: ClassVar = {
        "command: got 'no-such-program'": {"command": ["no-such-program"]},
        "command: got './no-such-file'": {"command": ["./no-such-file"]},
        "command: got 'job.py'": {"command": ["job.py"]},  # not on PATH; ./job.py would be accepted
        "team_network: got 'net', expected None": {"team_network": TeamNetwork("net")},
    }

    def __init__(self, root: Path, mechanism: Any, folder: Path) -> None:
        super().__init__(ProcessRuntime(root, mechanism=mechanism, max_output_bytes=MAX_OUTPUT_BYTES), folder)
        self.constructor = (
            f"from paceline.runtime import ProcessRuntime\nruntime = ProcessRuntime({root!r}, mechanism={mechanism!r})"
        )

    def signal(self, job: Job, number: int) -> None:
        os.kill(self.read_state(job)["child"], number)

    def quota_of(self, job: Job) -> float:
        group = self.read_state(job)["cgroup"]
        if group is None:
            stored, control = (
                read_json(path) or {} for path in (Scratch(Path(job.id)).job, Scratch(Path(job.id)).control)
            )
            return float(control["devices"] * stored["cores_per_device"])
        return quota_of_group(Group.from_json(group))

    def leftovers(self) -> list[str]:
        root = self.runtime.root
        # Unlike `glob`, `walk` ignores control groups of other tests that disappear meanwhile.
        folders = [Path(parent, name) for parent, names, _ in os.walk("/sys/fs/cgroup") for name in names]
        groups = [str(group) for group in folders if group.name.startswith(f"paceline-{self.mark}")]
        return [*map(str, root.iterdir()), *(f"process {pid}" for pid in pids_of_jobs_in(root)), *groups]

    def remove_leftovers(self) -> None:
        for folder in self.runtime.root.iterdir():
            ProcessJob(Scratch(folder), max_output_bytes=MAX_OUTPUT_BYTES, from_start=False).remove()

    def read_state(self, job: Job) -> dict[str, Any]:
        return read_json(Scratch(Path(job.id)).state) or {}


Harness = ContainerHarness | PodHarness | ProcessHarness


def quota_of_group(group: Group) -> float:
    """Return the CPU quota of a control group in cores."""
    if group.unified:
        limit, period = (group.cpu / "cpu.max").read_text().split()
    else:
        limit, period = ((group.cpu / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
    return int(limit) / int(period)


def pids_of_jobs_in(root: Path) -> list[int]:
    """Return the process ids of all jobs, launchers and guardians whose folders are in ``root``."""
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                content = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
                state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
            except OSError:
                continue
            if str(root).encode() in content and state not in "ZX":
                pids.append(int(entry.name))
    return pids
