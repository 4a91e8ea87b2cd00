"""Where a training job runs: the one protocol that every runtime implements and the control loop calls.

A *runtime* starts jobs (``DockerRuntime``, ``ProcessRuntime``); a *job* is one running training: its output is
read, its devices are resized while it runs, and its output files are collected when it has ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

# Defaults for a job's environment. Memory that a batch gives back is kept for the next: fetched from the kernel anew it
# costs a page fault for each 4 KiB, half a million for 40 batches of a large model. Threads that wait for each other in
# a busy loop burn the CPU time that a quota, or a neighbour, leaves to the thread they wait for: asleep they cost a
# little where all is quiet and save a lot elsewhere.
JOB_ENVIRONMENT = {
    "MALLOC_MMAP_THRESHOLD_": str(2**30),
    "MALLOC_TRIM_THRESHOLD_": str(2**30),
    "OMP_WAIT_POLICY": "PASSIVE",
}


@dataclass(frozen=True)
class JobSpec:
    """Everything a runtime needs to start one training job.

    Parameters
    ----------
    name:
        Unique among running jobs; lower-case letters, digits, ``-``, ``_`` and ``.`` only.
    command:
        Program and arguments, run in the folder that holds ``files``. ``"python"`` as the first word means
        the interpreter of the image, or of this environment in the process runtime.
    devices:
        Cores (fractions allowed) given at the start.
    image:
        Container image; ``None`` for runtimes without images.
    files:
        Small files placed in the working folder before the start: relative path to local path. The script is one.
    inputs:
        Files or folders placed under ``$PACELINE_INPUT``: relative path to local path.
    environment:
        Environment variables for the job. Values are kept out of logs.
    gpus:
        GPUs that a container gets, of any that its engine has; a local process sees what there is.
    memory_bytes:
        Hard memory limit, or ``None`` for none.
    max_processes:
        Limit on processes and threads.
    user:
        ``uid`` or ``uid:gid`` of the job in a container, as numbers. An ordinary user by default.
    allow_root:
        Whether ``user`` may be root, uid 0. A job that is root by mistake is refused.
    network:
        Network to join; ``None`` means no network at all.
    own_network:
        Name of a network for the jobs of one training, in place of ``network``, without a way out of it: the one with
        an ``alias`` makes it, the others need it to be there, and whoever leaves last removes it.
    alias:
        The job's name in ``own_network``, by which the others reach it.
    way_out:
        Whether the network that the job makes has a way out of it: to other machines, and from them to what is
        ``published``.
    published:
        Port of the job to the address of the engine's machine, ``(IP, port)``, at which others reach it.
    cgroup_parent:
        Control group that the container's is put into: a device that is part of a machine, with limits of its own.
    labels:
        Extra labels, for people and tools that list containers.
    """

    name: str
    command: Sequence[str]
    devices: float
    image: str | None = None
    files: Mapping[str, Path] = field(default_factory=dict)
    inputs: Mapping[str, Path] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    gpus: int = 0
    memory_bytes: int | None = 4 * 1024**3
    max_processes: int = 512
    user: str = "65532:65532"
    allow_root: bool = False
    network: str | None = None
    own_network: str | None = None
    alias: str | None = None
    way_out: bool = False
    published: Mapping[int, tuple[str, int]] = field(default_factory=dict)
    cgroup_parent: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class JobStatus:
    """What the engine says of a job now.

    ``started_s`` and ``finished_s`` are seconds since the epoch on the engine's clock.
    ``reason`` is a phrase for people when the exit code alone does not say it ("killed for memory, limit 64 MiB").
    """

    state: Literal["running", "exited", "gone"]
    exit_code: int | None = None
    started_s: float | None = None
    finished_s: float | None = None
    out_of_memory: bool = False
    reason: str = ""


@dataclass(frozen=True)
class Usage:
    """What a job has used: CPU time since its start in seconds, memory now in bytes, and bytes over its network.

    ``measured_s`` is when, in seconds on a clock of its own: two readings with the same are the same reading.
    """

    cpu_s: float
    memory_bytes: int
    measured_s: float
    received_bytes: int = 0
    sent_bytes: int = 0


class Job(Protocol):
    """One job that was started, by this process or by one that died since."""

    @property
    def id(self) -> str:
        """What ``Runtime.reattach`` needs to find this job again, from any process."""

    def read_lines(self) -> list[str]:
        """Return the lines written since the last call, without waiting.

        Once ``wait`` has returned True, returns all that is left. After ``reattach``, starts near the end of what
        was written before. A passing loss of the engine returns nothing; the lines follow when it is back.
        """

    def wait(self, timeout_s: float) -> bool:
        """Wait until the job has ended, at most ``timeout_s``; return whether it has."""

    def resize(self, devices: float) -> None:
        """Give the job ``devices`` cores from now on. Raises RuntimeUnavailableError while the engine is away."""

    def status(self) -> JobStatus:
        """Ask the engine. Raises RuntimeUnavailableError while it is away."""

    def usage(self) -> Usage:
        """Ask the engine what the job has used. Raises RuntimeUnavailableError while it is away."""

    def restart(self) -> None:
        """Start an exited job again in place: same files, same checkpoint folder. Its output goes on."""

    def collect(self, destination: Path) -> list[str]:
        """Copy what the job left in its output folder into ``destination`` (created if missing); returns the names."""

    def stop(self, grace_s: float = 5.0) -> None:
        """Ask the job to end (SIGTERM), end it after ``grace_s`` (SIGKILL). Safe to call again."""

    def remove(self) -> None:
        """Stop the job if needed and remove every trace of it. Safe to call again."""

    def close(self) -> None:
        """Let go of streams and threads of this object; the job itself goes on."""


class Runtime(Protocol):
    """A place where jobs run."""

    name: str

    def capacity(self) -> float:
        """Return the number of cores there are to give. Raises RuntimeUnavailableError while the engine is away."""

    def check(self, spec: JobSpec) -> None:
        """Raise before anything is started if ``spec`` cannot run here (missing image, engine away, bad value)."""

    def start(self, spec: JobSpec) -> Job:
        """Start a job. Leaves nothing behind when it raises."""

    def jobs(self) -> Iterator[tuple[str, dict[str, str]]]:
        """Every job there is, running or not, whoever has started it: its id and its labels."""

    def reattach(self, job_id: str, labels: Mapping[str, str] | None = None) -> Job:
        """Find a job again. Raises JobLostError if there is none with this id, or it lacks one of the ``labels``."""
