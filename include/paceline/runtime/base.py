"""The protocols of runtimes and jobs, for the control loop and for teams.

A *runtime* (``DockerRuntime``, ``ProcessRuntime``) starts jobs. A *job* runs training code: the control loop reads
its output, resizes its allocation, and collects its output files when the job has ended.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

# Default environment variables of a job. malloc keeps freed memory for the next batch, because memory from the kernel
# costs a page fault per 4 KiB: half a million faults in 40 batches of a large model. Idle OpenMP threads sleep, because
# busy waiting would use CPU time that other threads need under a quota or alongside a neighbour. Sleeping costs little
# on an idle machine. With a fixed hash seed, a set of text has the same order in every process and after a restart:
# training code may number its classes in that order.
JOB_ENVIRONMENT = {
    "MALLOC_MMAP_THRESHOLD_": str(2**30),
    "MALLOC_TRIM_THRESHOLD_": str(2**30),
    "OMP_WAIT_POLICY": "PASSIVE",
    "PYTHONHASHSEED": "0",
}


JobFolder = Literal["output", "checkpoint"]

LEASE_GRACE_S = 60.0
"""Time for a job to save a checkpoint after the end of its lease."""


@dataclass(frozen=True)
class TeamNetwork:
    """A private network for the jobs of one team.

    The job with an ``alias`` creates the network; the other jobs need it to exist. The runtime removes the network with
    the last job.

    Parameters
    ----------
    name:
        Name of the network, unique on the engine.
    alias:
        The job's host name in the network; ``None`` for a job that no other job connects to.
    external_access:
        Whether the network that the job creates is connected to other machines; ``published`` ports need this.
    published:
        Map of the job's port to the ``(IP, port)`` on the engine's machine at which other machines reach that port. For
        a pod, the cluster's administrator leads that address to the port.
    """

    name: str
    alias: str | None = None
    external_access: bool = False
    published: Mapping[int, tuple[str, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class JobSpec:
    """Everything a runtime needs to start one training job.

    Parameters
    ----------
    name:
        Unique among running jobs; lower-case letters, digits, ``-``, ``_`` and ``.`` only.
    command:
        Program and arguments; the working folder contains ``files``. ``"python"`` as the first word means the
        interpreter of the image or, in the process runtime, the interpreter of this process.
    devices:
        Allocation at the start, in cores or GPUs; fractions are allowed.
    image:
        Container image; ``None`` for runtimes without images.
    files:
        Small files to copy to the working folder, such as the script: a map of relative path to local path.
    inputs:
        Files or folders to copy to ``$PACELINE_INPUT``: a map of relative path to local path.
    checkpoint:
        Local folder to copy to ``$PACELINE_CHECKPOINT``, from which the job resumes; ``None`` for an empty folder.
    environment:
        Environment variables for the job. Values are not logged.
    gpus:
        Number of GPUs for the job's exclusive use. With 0, a container has no GPU, and a local process may use all. A
        number below 1 is a part of the time of one GPU, of which other jobs may use the rest; it needs ``shares_gpus``.
    cores_per_device:
        Cores of CPU time that come with each device of the allocation: 1 if the devices are cores.
    shares_gpus:
        Whether the devices are a share of the time of the job's GPUs, which its training code keeps. The job then has
        ``cores_per_device`` cores for each of its GPUs, whatever its share: infinity for all cores of the machine.
    memory_bytes:
        Hard memory limit; ``None`` for no limit.
    max_processes:
        Limit on processes and threads.
    disk_bytes:
        Limit on each file that the job writes and, if the engine supports this, on all of them together; ``None`` for
        no limit.
    read_only:
        Whether a container can write only to the folders that Paceline gives it, and to ``/tmp`` and ``/dev/shm``,
        which are in memory.
    user:
        Numeric ``uid`` or ``uid:gid`` of the job in a container. An unprivileged user by default.
    allow_root:
        Whether ``user`` may be root, uid 0. Otherwise, ``check`` rejects root.
    labels:
        Extra labels, for people and tools that list containers.
    lease_s:
        Longest time in seconds for which the job runs without ``Job.renew``; ``None`` for no limit. Then the job ends
        itself: SIGTERM, and SIGKILL after ``LEASE_GRACE_S``.
    team_network:
        Private network of the job's team; ``None`` for a job without a team. Only a ``SupportsTeams`` accepts a value.
    options:
        Settings of one runtime only, such as ``DockerOptions``: a frozen dataclass of JSON values. Every other runtime
        ignores them.
    min_devices, max_devices:
        The smallest and the largest allocation that the job may get later; ``None`` for ``devices``. ``check`` may find
        that the runtime would reject them.
    whole_devices:
        Whether the allocation is always a whole number of devices. With ``gpus``, the devices are then GPUs; a runtime
        whose jobs can have GPUs in several places may give a job more than ``gpus``.
    """

    name: str
    command: Sequence[str]
    devices: float
    image: str | None = None
    files: Mapping[str, Path] = field(default_factory=dict)
    inputs: Mapping[str, Path] = field(default_factory=dict)
    checkpoint: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    gpus: float = 0
    cores_per_device: float = 1.0
    shares_gpus: bool = False
    memory_bytes: int | None = 4 * 1024**3
    max_processes: int = 512
    disk_bytes: int | None = 20 * 1024**3
    read_only: bool = False
    user: str = "65532:65532"
    allow_root: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    lease_s: float | None = None
    team_network: TeamNetwork | None = None
    options: object | None = None
    min_devices: float | None = None
    max_devices: float | None = None
    whole_devices: bool = False

    def cores(self, capacity: float) -> float:
        """Return the cores of CPU time with which the job starts on a machine with ``capacity`` cores."""
        of_all_gpus = min(math.ceil(self.gpus) * self.cores_per_device, capacity)
        return of_all_gpus if self.shares_gpus else self.devices * self.cores_per_device


@dataclass(frozen=True)
class JobStatus:
    """The state of a job as the engine reports it.

    ``started_s`` and ``finished_s`` are seconds since the epoch on the engine's clock.
    ``reason`` explains the exit code to users if needed ("ran out of memory, limit 64 MiB: …").
    ``stopped``: the job ended because of ``Job.stop`` or the end of its lease, so exit code 0 does not mean success.
    ``device_lost``: the job ended because it lost a device, and resumes from its checkpoint on those that are left.
    """

    state: Literal["running", "exited", "gone"]
    exit_code: int | None = None
    started_s: float | None = None
    finished_s: float | None = None
    out_of_memory: bool = False
    reason: str = ""
    stopped: bool = False
    device_lost: bool = False


@dataclass(frozen=True)
class Usage:
    """Resource usage of a job: CPU seconds since its start, current memory in bytes, and network traffic in bytes.

    ``measured_s`` is the time of the measurement on the runtime's clock; equal times mean the same measurement.
    """

    cpu_s: float
    memory_bytes: int
    measured_s: float
    received_bytes: int = 0
    sent_bytes: int = 0


class Job(Protocol):
    """A started job, which may outlive the process that started it."""

    @property
    def id(self) -> str:
        """The identifier that any process can pass to ``Runtime.reattach`` to find this job."""

    @property
    def has_engine(self) -> bool:
        """Whether the job runs on an engine, which ends its jobs when it shuts down."""

    def read_lines(self) -> list[str]:
        """Return the lines written since the last call, without waiting.

        Once ``wait`` has returned True, return all remaining lines. After ``reattach``, start near the end of the
        earlier output. During an engine outage, return no lines; a later call returns the missing lines.
        """

    def wait(self, timeout_s: float) -> bool:
        """Wait at most ``timeout_s`` for the job to end; return whether it has ended."""

    def resize(self, devices: float) -> None:
        """Set the allocation to ``devices``.

        Raises RuntimeUnavailableError during an engine outage, and ResizePendingError with the allocation in force if
        the engine has not put the new one in force within about a second. A further call looks again.
        """

    def status(self) -> JobStatus:
        """Return the job's state. Raises RuntimeUnavailableError during an engine outage."""

    def usage(self) -> Usage:
        """Return the job's resource usage. Raises RuntimeUnavailableError during an engine outage."""

    def restart(self) -> None:
        """Restart an exited job in place, with the same files and checkpoints.

        ``read_lines`` then returns the new output.
        """

    def collect(self, destination: Path, folder: JobFolder = "output") -> list[str]:
        """Copy the job's output to ``destination``, created if missing; return the names of the top-level entries.

        ``"checkpoint"`` copies the checkpoint folder, also of a running job, which may change the folder meanwhile.
        """

    def work_files(self, placed: Collection[str]) -> list[str]:
        """Return a few of the newest files in the job's working folder, other than those ``placed`` there at its start.

        Return an empty list if the folder does not exist.
        """

    def stop(self, grace_s: float = 5.0) -> None:
        """Send SIGTERM, then SIGKILL after ``grace_s``. Idempotent."""

    def remove(self) -> None:
        """Stop the job if needed and remove everything that belongs to it. Idempotent."""

    def close(self) -> None:
        """Release this object's streams and threads; the job continues."""

    def renew(self, lease_s: float) -> None:
        """Renew the lease of a job that started with a lease: it now ends ``lease_s`` after this call."""

    def save_record(self, record: Mapping[str, Any]) -> None:
        """Replace the small JSON object that is stored with the job, out of reach of Airflow's users.

        In a container, the job's unprivileged user can only read the record.
        """

    def load_record(self) -> dict[str, Any] | None:
        """Return the stored JSON object; ``None`` if there is none. Raises RuntimeUnavailableError in an outage."""


class Runtime(Protocol):
    """A backend that runs jobs."""

    name: str

    def capacity(self) -> float:
        """Return the number of cores available to jobs; infinity if it is unknown.

        Raises RuntimeUnavailableError during an engine outage.
        """

    def check(self, spec: JobSpec) -> None:
        """Raise if ``spec`` cannot run (missing image, engine outage, invalid value). Do not start a job."""

    def start(self, spec: JobSpec) -> Job:
        """Start a job. If the start fails, remove everything that belongs to the job."""

    def jobs(self) -> Iterator[tuple[str, dict[str, str]]]:
        """Yield the id and labels of every job, whichever process started it.

        Include jobs that have not started yet, or never will because their process was killed: ``reattach`` accepts
        them, so that they can be removed.
        """

    def find_job(self, name: str, labels: Mapping[str, str]) -> Job | None:
        """Return the job that was started with this name and these labels; ``None`` if there is none."""

    def has_same_spec(self, job: Job, spec: JobSpec) -> bool:
        """Return whether ``job`` was started with an equal specification, apart from the allocation."""

    def replace(self, job: Job, spec: JobSpec) -> Job:
        """Start a job with the checkpoint of an ended ``job``, and then remove that job.

        If this process dies meanwhile, ``find_job`` finds one of the two jobs, with the checkpoint.
        """

    def reattach(self, job_id: str, labels: Mapping[str, str] | None = None) -> Job:
        """Return the job with this id. Raises JobLostError if it does not exist or lacks one of the ``labels``."""

    def remove_all(self, labels: Mapping[str, str]) -> None:
        """Remove all jobs with these labels, and their private networks.

        Include jobs that are starting in another thread or process. Such a call may take until the job has its files.
        """


class PausableJob(Job, Protocol):
    """A job that can be suspended."""

    def pause(self) -> None:
        """Suspend all processes of a running job, which keep their memory."""

    def unpause(self) -> None:
        """Continue a suspended job."""


class ScatteredJob(Job, Protocol):
    """A job whose devices join and leave one by one, also without ``resize``."""

    def devices_in_force(self) -> float:
        """Return the number of devices that the job has now."""


class SupportsTeams(Runtime, Protocol):
    """A runtime whose jobs can form a team: they share a ``TeamNetwork``, and are found and removed by their labels.

    ``team=Team(...)``, fleets and profiles need such a runtime.
    """

    def team_capacity(self) -> float:
        """Return the number of cores available to the jobs of a team together; infinity if it is unknown.

        Raises RuntimeUnavailableError during an engine outage.
        """

    def start(self, spec: JobSpec) -> PausableJob:
        """Start a job, in its team's network if it has one."""

    def find_all(self, labels: Mapping[str, str]) -> Sequence[tuple[Job, Mapping[str, str], float]]:
        """Return every started job with these labels, running or ended: the job, all its labels and its allocation."""

    def labels_of(self, job_id: str) -> Mapping[str, str]:
        """Return the labels of a job. Raises JobLostError if it does not exist."""

    def has_network(self, name: str) -> bool:
        """Return whether a private network with this name exists."""

    def find(self, labels: Mapping[str, str], options: object | None = None) -> Job | None:
        """Return a running program with these labels; ``None`` if there is none.

        Whether a program is found that Paceline has not started depends on the runtime.

        ``options``, as in a ``JobSpec``, name the part of a machine on which the program has to run. The returned job
        reads only the program's new output.
        """
