"""``Docker``: settings of jobs in containers."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from paceline.airflow._engine_client import connect, gpus_of_engine
from paceline.airflow.engine_connection import engine_hook
from paceline.airflow.values import Reader, boolean, memory_bytes, optional_text
from paceline.errors import InvalidInputError
from paceline.runtime import DockerOptions
from paceline.runtime.checks import check_user

from ._base import RuntimeSettings, gpu_amount, gpu_count, image, max_processes, size

if TYPE_CHECKING:
    from paceline.fleet import Fleet, Machine
    from paceline.fleet.usage import EngineUsage
    from paceline.runtime import DockerRuntime, JobSpec


@dataclass(frozen=True, kw_only=True)
class Docker(RuntimeSettings):
    """Run the job in a container of a Docker engine. The container has no capabilities and cannot gain any.

    Parameters
    ----------
    image:
        Container image with Python and the script's dependencies. Example: ``"registry.example/trainer:3"``.
        (templated)
    engine_conn_id:
        Airflow connection with the address of the Docker engine, see
        :func:`~paceline.airflow.engine_connection.engine_address`; by default, the engine at ``$DOCKER_HOST`` or the
        local engine. Example: ``"gate_docker"``. (templated)
    docker_conn_id:
        Docker provider's connection with the login for an image registry. Example: ``"docker_hub"``. (templated)
    pull:
        Pull the image before the job starts, even if the engine has it; a failed pull is an error. A retry that
        reconnects to its container does not pull. Example: ``True``.
    gpus:
        Number of GPUs for the job alone, which needs NVIDIA's container toolkit. A number below 1 is the largest share
        of the time of one GPU, of which other jobs may have the rest. Example: ``2``.
    engine_gpus:
        Number of GPUs of the engine, if neither the engine nor its connection tells it. Example: ``4``.
    memory:
        Memory limit, in bytes or as text; ``None`` for no limit. Example: ``"16g"``. (templated)
    max_processes:
        Maximum number of processes and threads. Example: ``1024``.
    disk:
        Limit on the job's files, in bytes or as text; ``None`` for no limit. It applies to each file, to the collected
        output and, if the engine supports this, to all files together, except ``files`` and ``inputs``. Example:
        ``"50g"``. (templated)
    read_only:
        Make the container's root file system read-only: the job can write only to its own folders, and to ``/tmp`` and
        ``/dev/shm``, which are in memory. Example: ``True``.
    network:
        Network that the container joins; ``None`` for no network. Example: ``"bridge"``. (templated)
    user:
        ``uid:gid`` in the container; an unprivileged user by default. Example: ``"1000:1000"``. (templated)
    allow_root:
        Allow root (uid 0) as ``user``, unless ``[paceline] allow_root`` is false. Example: ``True``.

    Examples
    --------
    >>> from paceline.operators import DeadlineTrainingOperator, Docker
    >>> train = DeadlineTrainingOperator(
    ...     task_id="train", script="train.py", deadline="20m", runtime=Docker(image="trainer:3", memory="16g", gpus=1)
    ... )
    >>> Docker(memory="lots")
    Traceback (most recent call last):
    paceline.errors.InvalidInputError: runtime.memory: got 'lots', expected a number of bytes, or text such as "512m" \
or "2g", at least 16 MiB
    """

    name = "docker"
    template_fields: ClassVar[Sequence[str]] = (
        "image",
        "engine_conn_id",
        "docker_conn_id",
        "memory",
        "disk",
        "network",
        "user",
    )
    readers: ClassVar[Mapping[str, Reader]] = {
        "image": image,
        "engine_conn_id": optional_text,
        "docker_conn_id": optional_text,
        "pull": boolean,
        "gpus": gpu_amount,
        "engine_gpus": gpu_count,
        "memory": size,
        "max_processes": max_processes,
        "disk": size,
        "read_only": boolean,
        "network": optional_text,
        "allow_root": boolean,
    }
    shares_gpus = True
    forms_teams = True
    machine_fields: ClassVar[Sequence[str]] = ("engine_conn_id", "memory", "gpus", "engine_gpus")

    image: str = "paceline-trainer:latest"
    engine_conn_id: str | None = None
    docker_conn_id: str | None = None
    pull: bool = False
    gpus: float = 0
    engine_gpus: int = 0
    memory: int | str | None = "4g"
    max_processes: int = 512
    disk: int | str | None = "20g"
    read_only: bool = False
    network: str | None = None
    user: str = "65532:65532"
    allow_root: bool = False

    def read(self, field: str, value: Any) -> Any:
        """Return the value of a field, or raise InvalidInputError."""
        if field == "user":
            check_user(value, self.allow_root, "runtime.user")
        return super().read(field, value)

    @property
    def names_engine(self) -> bool:
        """Whether a connection names the engine, instead of that of the worker's machine."""
        return self.engine_conn_id is not None

    def open(self) -> DockerRuntime:
        """Return the runtime."""
        from paceline.runtime import DockerRuntime

        return DockerRuntime(
            self.connect,
            pull=self.pull,
            gpus=gpus_of_engine(self.engine_conn_id) or self.engine_gpus if self.gpus else 0,
            max_output_bytes=memory_bytes("runtime.disk", self.disk) or sys.maxsize,
        )

    def connect(self) -> Any:
        """Return a client for the engine. Raises RuntimeUnavailableError if no engine responds."""
        return connect(
            lambda: engine_hook(self.engine_conn_id, self.docker_conn_id), self.engine_conn_id, self.docker_conn_id
        )

    def on_machine(self, fleet: Fleet, machine: Machine, *, gpus: int) -> Docker:
        """Return the settings for a task's containers on a machine of a fleet: its engine, memory and GPUs.

        >>> from paceline.fleet import Fleet, Machine
        >>> gate = Machine(name="gate", kind="nano", cores=4, memory_gib=4)
        >>> Docker(memory="2g").on_machine(Fleet(machines=[gate], parameter_server=gate), gate, gpus=0)
        Traceback (most recent call last):
        paceline.errors.InvalidInputError: runtime.memory: got '2g', expected the default: the fleet's file determines \
it for each machine
        """
        if machine.is_node:
            accepted = f"'kubernetes', because {machine.name} is a node of a cluster"
            raise InvalidInputError("runtime", self.name, accepted)
        if self.network is not None:
            accepted = "None, because the containers of a fleet use a private network"
            raise InvalidInputError("runtime.network", self.network, accepted)
        return self._with_machine(
            {
                "engine_conn_id": machine.engine_conn_id,
                "memory": int(machine.memory_gib * 2**30),
                "gpus": gpus,
                "engine_gpus": fleet.engine_gpus(machine) if gpus else 0,
            }
        )

    def gauge(
        self, fleet: Fleet, machine: Machine, *, name: str, labels: Mapping[str, str], apart: str | None = None
    ) -> EngineUsage:
        """Return what measures the usage of a machine's containers."""
        from paceline.fleet.usage import EngineUsage

        client = self.on_machine(fleet, machine, gpus=0).connect()
        return EngineUsage(client, machine, fleet.other_control_groups(machine))

    def extend(self, spec: JobSpec) -> JobSpec:
        """Return the specification of a job with the image, the limits, the network and the user."""
        return replace(
            spec,
            image=self.image,
            gpus=self.gpus,
            memory_bytes=memory_bytes("runtime.memory", self.memory),
            max_processes=self.max_processes,
            disk_bytes=memory_bytes("runtime.disk", self.disk),
            read_only=self.read_only,
            options=DockerOptions(network=self.network),
            user=self.user,
            allow_root=self.allow_root,
        )
