"""Creates the container of a job: its configuration, environment and files. Used by ``DockerRuntime``."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from paceline.runtime import _docker_network as docker_network
from paceline.runtime import _docker_state as docker_state
from paceline.runtime import docker_gpus
from paceline.runtime._docker_options import DockerOptions
from paceline.runtime._sdk import sdk_files
from paceline.runtime.archive import Entry
from paceline.runtime.base import JOB_ENVIRONMENT, JobSpec
from paceline.runtime.checks import job_files
from paceline.runtime.docker_errors import engine_call
from paceline.runtime.docker_job import PERIOD_US, quota_us
from paceline.runtime.docker_limits import WriteLimits
from paceline.train.job import (
    ENV_CHECKPOINT,
    ENV_CONTROL,
    ENV_CORES_PER_DEVICE,
    ENV_GPU_TURNS,
    ENV_INPUT,
    ENV_OUTPUT,
)

if TYPE_CHECKING:
    from docker import APIClient

HOME = "/paceline"
LABEL_JOB = "paceline.job"
LABEL_SPEC = "paceline.spec"
LABEL_CORES = "paceline.cores_per_device"
LABEL_SHARES = "paceline.shares_gpus"
_TURNS = f"{HOME}/gpus"
_SHM_BYTES = 1024**3
# Size limits of a job's log on the engine's disk. The engine keeps the newest log files, so recent progress lines
# survive while nothing reads the log: at 5 lines per second, deleted lines are more than a day old.
_LOG_OPTIONS = {"max-size": "50m", "max-file": "4"}
# Debian images have only ``python3``. Commands other than ``python`` are not changed.
_PYTHON = ["/bin/sh", "-c", 'exec "$(command -v python || command -v python3 || echo python)" "$@"', "python"]


def container_name(job_name: str) -> str:
    """Return the name of a job's container."""
    return f"paceline-{job_name}"


def earlier_name(job_name: str) -> str:
    """Return the name of a container while another one replaces it."""
    return f"{container_name(job_name)}.earlier"


def owner_of(user: str) -> dict[str, int]:
    """Return the owner of the files of ``user``."""
    uid, _, group = user.partition(":")
    return {"uid": int(uid), "gid": int(group or 0)}


def create(
    client: APIClient, spec: JobSpec, digest: str, limits: WriteLimits, cores: float, gpus: Sequence[str] = ()
) -> str:
    """Create the container of a job with this number of cores, and return its id.

    ``gpus``: ids of the GPUs to assign, if they are known.
    """
    from docker.types import DeviceRequest, LogConfig

    command = list(spec.command)
    if command[0] == "python":
        command = [*_PYTHON, *command[1:]]
    memory = spec.memory_bytes
    requested = {"device_ids": [*gpus]} if gpus else {"count": int(spec.gpus)}
    memory_limits: dict[str, Any] = {}
    if memory is not None:
        memory_limits = {"mem_limit": memory, "memswap_limit": memory}
    team, options = spec.team_network, DockerOptions.of(spec)
    turns = docker_gpus.turns(gpus, _TURNS) if spec.shares_gpus else {}
    published = {} if team is None else team.published
    host = client.create_host_config(
        cpu_period=PERIOD_US,
        cpu_quota=quota_us(cores),
        cap_drop=["ALL"],
        security_opt=["no-new-privileges"],
        pids_limit=spec.max_processes,
        device_requests=[DeviceRequest(**requested, capabilities=[["gpu"]])] if spec.gpus else None,
        network_mode=team.name if team is not None else options.network or "none",
        # By default, looking up the name of a dead parameter server takes ten seconds.
        dns_opt=["timeout:1", "attempts:2"] if team is not None else None,
        cgroup_parent=options.cgroup_parent,
        port_bindings={port: (address, host_port) for port, (address, host_port) in published.items()} or None,
        init=True,
        privileged=False,
        # PyTorch's data loaders pass batches through /dev/shm and fail with the engine's default of 64 MiB.
        shm_size=min(memory, _SHM_BYTES) if memory is not None else _SHM_BYTES,
        log_config=LogConfig(type=LogConfig.types.JSON, config=_LOG_OPTIONS),
        # The containers on a GPU lock the folder of its volume in turn. Locking needs no right to write.
        binds={volume: {"bind": folder, "mode": "ro"} for folder, volume in turns.items()} or None,
        **memory_limits,
        **limits.host_options(client, spec, HOME),
    )
    cores_per_device = cores / math.ceil(spec.gpus) if spec.shares_gpus else spec.cores_per_device
    labels = {LABEL_JOB: spec.name, LABEL_SPEC: digest, LABEL_CORES: str(cores_per_device)}
    if spec.shares_gpus:
        labels[LABEL_SHARES] = "true"
    if gpus:
        labels[docker_gpus.LABEL] = ",".join(gpus)
    if spec.gpus < 1 and gpus:
        labels[docker_gpus.LABEL_PART] = str(spec.gpus)
    networking: Any = None
    if team is not None:
        labels[docker_network.LABEL] = team.name
        endpoint = client.create_endpoint_config(aliases=[team.alias] if team.alias else None)
        networking = {"EndpointsConfig": {team.name: endpoint}}
    with engine_call("create the container"):
        return limits.create(
            client,
            str(spec.image),
            # The command replaces the image's entry point, which could otherwise change what runs.
            entrypoint=docker_state.watched_command(command, spec.lease_s),
            command=[],
            name=container_name(spec.name),
            user=spec.user,
            working_dir=f"{HOME}/work",
            environment=_environment(spec, cores_per_device, turns),
            labels={**spec.labels, **labels},
            stop_signal="SIGTERM",
            host_config=host,
            ports=list(published) or None,
            networking_config=networking,
        )


def _environment(spec: JobSpec, cores_per_device: float, turns: Collection[str]) -> dict[str, str]:
    environment = dict(spec.environment)
    shares = {ENV_CONTROL: docker_state.CONTROL, ENV_GPU_TURNS: ":".join(turns)} if spec.shares_gpus else {}
    path = f"{HOME}/sdk" + (f":{environment['PYTHONPATH']}" if environment.get("PYTHONPATH") else "")
    home = {"HOME": f"{HOME}/work", "USER": "paceline", "LANG": "C.UTF-8"}  # /etc/passwd lacks the user
    return (
        JOB_ENVIRONMENT
        | home
        | environment
        | {
            "PYTHONUNBUFFERED": "1",
            "PYTHONPATH": path,
            ENV_INPUT: f"{HOME}/input",
            ENV_OUTPUT: f"{HOME}/output",
            ENV_CHECKPOINT: f"{HOME}/checkpoint",
            ENV_CORES_PER_DEVICE: str(cores_per_device),
        }
        | shares
    )


def file_entries(spec: JobSpec) -> Iterator[Entry]:
    """Yield the container's files and folders. The job's user can change only the folders that it writes to."""
    users = owner_of(spec.user)
    root = "." if spec.read_only else HOME.lstrip("/")
    yield Entry(root, None, 0o755)
    yield from docker_state.entries(root, spec.lease_s, users, spec.devices if spec.shares_gpus else None)
    for folder in ("sdk", "input"):
        yield Entry(f"{root}/{folder}", None, 0o755)
    for folder in ("work", "output", "checkpoint"):
        yield Entry(f"{root}/{folder}", None, 0o700, **users)
    for path, content in sdk_files().items():
        yield Entry(f"{root}/sdk/{path}", content, 0o644)
    yielded = {"work", "input", "checkpoint"}
    for target, local in job_files(spec):
        ownership = {} if target.startswith("input/") else users
        parts = target.split("/")
        for depth in range(1, len(parts)):
            folder = "/".join(parts[:depth])
            if folder not in yielded:
                yielded.add(folder)
                yield Entry(f"{root}/{folder}", None, 0o755, **ownership)
        executable = local.stat().st_mode & 0o111
        yield Entry(f"{root}/{target}", local, 0o755 if executable else 0o644, **ownership)
