"""The interface between a job and its runtime: environment variables, folders, exit codes.

Imported by training code and by the runtimes. The progress line is in ``progress``. Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

# Absolute paths in the job: inputs (JobSpec.inputs), outputs (collected after the job), checkpoints (kept across
# restarts), and a JSON file {"devices": x} with the allocation (replaced atomically; unset if a cgroup limits the job).
ENV_INPUT = "PACELINE_INPUT"
ENV_OUTPUT = "PACELINE_OUTPUT"
ENV_CHECKPOINT = "PACELINE_CHECKPOINT"
ENV_CONTROL = "PACELINE_CONTROL"
# Cores that come with each device of the allocation: 1 if the devices are cores.
ENV_CORES_PER_DEVICE = "PACELINE_CORES_PER_DEVICE"
# If the allocation is a share of the time of the job's GPUs: a path for each GPU, which the jobs on this GPU lock in
# turn. The control file then exists in every runtime, and the job has its cores whatever its share.
ENV_GPU_TURNS = "PACELINE_GPU_TURNS"
# For a worker of distributed training: ``host:port`` of its parameter server, their shared key, the worker's name.
ENV_SERVER = "PACELINE_SERVER"
ENV_SERVER_KEY = "PACELINE_SERVER_KEY"
ENV_WORKER = "PACELINE_WORKER"
# A JSON file with the new addresses of hosts that have moved since the job's start, such as
# ``{"parameter-server": "10.0.0.7"}``. It appears when the first host moves, and is replaced atomically.
ENV_MOVED_HOSTS = "PACELINE_MOVED_HOSTS"
# For a profiling run: the number of epochs, which overrides the script's number.
ENV_EPOCHS = "PACELINE_EPOCHS"
# For a follower of data-parallel training: the descriptor of the socket to the lead, the index of the process's device.
ENV_LEAD = "PACELINE_LEAD_SOCKET"
ENV_DEVICE = "PACELINE_DEVICE_INDEX"
# For the same process: the file with the first states of the lead's random number generators.
ENV_FIRST_STATES = "PACELINE_FIRST_STATES"
# For the first process of data-parallel training whose further devices are in pods of their own: the port at which
# these pods connect, and the secret that they have. For these pods, also ``host:port`` of the first process.
ENV_DEVICE_PODS = "PACELINE_DEVICE_PODS"
ENV_DEVICE_PODS_KEY = "PACELINE_DEVICE_PODS_KEY"
ENV_LEAD_ADDRESS = "PACELINE_LEAD_ADDRESS"
# ``lines``: print progress lines even if Paceline did not start the process.
ENV_PROGRESS = "PACELINE_PROGRESS"

EXIT_NO_WORKERS = 4  # parameter server: no workers are left
EXIT_EXCLUDED = 5  # worker: excluded after too many failures
EXIT_NO_SERVER = 6  # worker: cannot reach the parameter server
EXIT_REJECTED = 7  # worker: no retry can succeed, e.g. its script or model differs, or it has left its loop
EXIT_STATE_LOST = 8  # parameter server: a shard of the state is lost
# Its runtime restarts the job after this code, which no script has by chance.
EXIT_DEVICE_LOST = 189  # data-parallel training: the pod of a device was lost during a batch
EXIT_TERMINATED = 143  # SIGTERM, in a shell's notation: 128 + 15


def input_dir() -> Path:
    """Return the folder with the job's input files; the current folder outside a job."""
    return Path(os.environ.get(ENV_INPUT) or Path.cwd())


def output_dir() -> Path:
    """Return the folder for files that are collected after the job; the current folder outside a job."""
    return Path(os.environ.get(ENV_OUTPUT) or Path.cwd())


def run_by_paceline() -> bool:
    """Return whether a Paceline runtime started this process."""
    return bool(os.environ.get(ENV_OUTPUT))


def rank_count() -> int:
    """Return the number of processes that ``torchrun`` or Accelerate has started for this job."""
    return int(os.environ.get("WORLD_SIZE") or 1)


def rank() -> int:
    """Return the rank of this process among the processes of ``torchrun`` or Accelerate; 0 for a single process."""
    return int(os.environ.get("RANK") or 0) if rank_count() > 1 else 0


def is_worker() -> bool:
    """Return whether this process is a worker of a parameter server."""
    return bool(os.environ.get(ENV_SERVER))


def current_address(host: str) -> str:
    """Return the new address of a host of the team that has moved since this job's start; otherwise, its name."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return str(json.loads(Path(os.environ.get(ENV_MOVED_HOSTS, "")).read_text()).get(host, host))
    return host


def is_follower() -> bool:
    """Return whether the first process of data-parallel training started this process."""
    return bool(os.environ.get(ENV_LEAD))


def device_index() -> int:
    """Return the index of this process's device, from 0."""
    return int(os.environ.get(ENV_DEVICE, "0"))


def gpu_index() -> int:
    """Return the index of this process's GPU among those that it sees. A pod of a further device has only one."""
    return 0 if ENV_LEAD_ADDRESS in os.environ else device_index()
