"""``JobOperator``: base of the operators that run user code as a job in a container or a local process.

``DeadlineTrainingOperator`` and ``EvaluateOperator`` extend it. A parameter has the same name as the corresponding
parameter of the Docker provider.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator

from paceline.airflow.engine_connection import engine_hook
from paceline.errors import InvalidInputError, RuntimeUnavailableError
from paceline.runtime import JobSpec, Runtime
from paceline.runtime.checks import check_max_processes, check_user

from ._engine import connect, gpus_of_engine
from ._identity import job_labels, task_labels, unique_name
from ._private import masked_log, read_private, render_private
from ._restrictions import check_root, check_runtime, fallback_obstacle, is_allowed
from .values import (
    NOTHING,
    Reader,
    command_words,
    duration_s,
    local_copies,
    mapping,
    memory_bytes,
    one_of,
    optional_text,
    path_or_url,
    read_fields,
    sequence,
)

if TYPE_CHECKING:
    from airflow.providers.docker.hooks.docker import DockerHook
    from airflow.sdk import Context

RUNTIMES = ("auto", "docker", "process")
DEFAULT_IMAGE = "paceline-trainer:latest"
DEFAULT_USER = "65532:65532"
_MIN_LEASE_S = 300.0  # a worker process renews the lease at least once a minute
DEFAULT_DISK_LIMIT = "20g"
# If an argument differs from this default, the job needs a container, and "auto" never falls back to a local process.
_CONTAINER_DEFAULTS: dict[str, object] = {
    "command": None,
    "image": DEFAULT_IMAGE,
    "engine_conn_id": None,
    "docker_conn_id": None,
    "gpus": 0,
    "mem_limit": "4g",
    "max_processes": 512,
    "disk_limit": DEFAULT_DISK_LIMIT,
    "read_only": False,
    "network_mode": None,
    "user": DEFAULT_USER,
}


def _script(field: str, value: object) -> str | None:
    return None if value in NOTHING else path_or_url(field, value, "the path of a Python file")


def _command(field: str, value: object) -> object:
    if value in NOTHING:
        return None
    command_words(field, value)
    return value  # Airflow's pages show the command as the user wrote it


class JobOperator(BaseOperator):
    """A task that runs a script or a command as a sandboxed job, in a container or as a local process.

    Template fields accept templates, XComArgs, DAG parameters and functions, also inside lists and dicts. Their values
    are checked when the task runs. All other values are checked when Airflow parses the DAG, except that the job's
    runtime checks the names of files, inputs and environment variables.

    Parameters
    ----------
    script:
        Python file to run, relative to the DAG's folder; set either ``script`` or ``command``. (templated)
    arguments:
        Command-line arguments for ``script``. (templated)
    command:
        Command to run in ``image``, as text or as a list. (templated)
    files:
        Files to place in the script's folder, as ``{name in the job: local path}``. (templated)
    inputs:
        Data that the job reads, as ``{name below $PACELINE_INPUT: local path or object storage URL}``. (templated)
    runtime:
        ``"docker"``, ``"process"`` or ``"auto"``. ``"auto"`` uses a container if an engine responds and has the image,
        else a local process. It never uses a local process if any of these is set: ``command``, ``image``, a
        connection, ``gpus``, ``mem_limit``, ``max_processes``, ``disk_limit``, ``read_only``, ``network_mode`` or
        ``user``; nor if the worker runs as root, unless ``[paceline] allowed_runtimes`` names ``process``. That option
        restricts all jobs. (templated)
    image:
        Container image with Python and the script's dependencies; ``paceline-trainer:latest`` by default. (templated)
    engine_conn_id:
        Airflow connection with the address of the Docker engine, see
        :func:`~paceline.airflow.engine_connection.engine_address`; by default, the engine at ``$DOCKER_HOST`` or
        the local engine. (templated)
    docker_conn_id:
        Docker provider's connection with the login for an image registry. (templated)
    force_pull:
        Pull the image before the job starts, even if the engine has it; a failed pull is an error. A retry that
        reconnects to its container does not pull.
    environment:
        Environment variables of the job. (templated)
    private_environment:
        Environment variables that Airflow neither stores nor shows. Values may be templates, such as
        ``"{{ conn.my_db.password }}"``; in the task's log and errors, the rendered values are masked.
    gpus:
        Number of GPUs for the job alone; a container needs NVIDIA's container toolkit. With 0, a container has no GPU,
        and a local process may use all GPUs.
    mem_limit:
        Memory limit, in bytes or as a string such as ``"2g"``; 4 GiB by default, ``None`` for no limit.
    network_mode:
        Network that the container joins. With ``None`` (default), the container has no network.
    user:
        ``uid:gid`` in the container; an unprivileged user by default.
    allow_root:
        Allow root (uid 0) as ``user``, unless ``[paceline] allow_root`` is false.
    max_processes:
        Maximum number of processes and threads.
    disk_limit:
        Limit on the job's files, in bytes or as a string such as ``"50g"``; 20 GiB by default, ``None`` for no limit.
        It applies to each file, to the collected output and, if the engine supports this, to all files together,
        except ``files`` and ``inputs``.
    read_only:
        Make the container's root file system read-only: the job can write only to its own folders, and to ``/tmp`` and
        ``/dev/shm``, which are in memory.
    labels:
        Additional labels for the container.
    lease:
        Longest time for which the job runs without a worker process (``"6h"``, ``"PT6H"``, seconds, ``timedelta``), for
        example after the worker's machine has failed. Then the job ends itself, after a checkpoint, from which the next
        try resumes. A container needs ``/bin/sh`` for this.
    """

    template_fields: Sequence[str] = (
        "script",
        "arguments",
        "command",
        "files",
        "inputs",
        "runtime",
        "image",
        "engine_conn_id",
        "docker_conn_id",
        "environment",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"environment": "json", "inputs": "json"}
    # Mapping of template fields to readers, see ``read_templates``. A subclass adds the readers of its template fields.
    readers: ClassVar[Mapping[str, Reader]] = {
        "script": _script,
        "arguments": sequence,
        "command": _command,
        "files": mapping,
        "inputs": mapping,
        "runtime": one_of(RUNTIMES),
        "image": optional_text,
        "engine_conn_id": optional_text,
        "docker_conn_id": optional_text,
        "environment": mapping,
    }
    ui_color = "#e8f1ff"

    def __init__(
        self,
        *,
        script: str | os.PathLike[str] | None = None,
        arguments: Sequence[str] = (),
        command: str | Sequence[str] | None = None,
        files: Mapping[str, str] | None = None,
        inputs: Mapping[str, str] | None = None,
        runtime: str = "auto",
        image: str = DEFAULT_IMAGE,
        engine_conn_id: str | None = None,
        docker_conn_id: str | None = None,
        force_pull: bool = False,
        environment: Mapping[str, str] | None = None,
        private_environment: Mapping[str, str] | None = None,
        gpus: int = 0,
        mem_limit: int | str | None = "4g",
        network_mode: str | None = None,
        user: str = DEFAULT_USER,
        allow_root: bool = False,
        max_processes: int = 512,
        disk_limit: int | str | None = DEFAULT_DISK_LIMIT,
        read_only: bool = False,
        labels: Mapping[str, str] | None = None,
        lease: str | float | timedelta = "6h",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.script: Any = script
        self.arguments: Any = arguments
        self.command = command
        self.files: Any = files
        self.inputs: Any = inputs
        self.runtime = runtime
        self.image = image
        self.engine_conn_id = engine_conn_id
        self.docker_conn_id = docker_conn_id
        self.force_pull = force_pull
        self.environment: Any = environment
        self._private_templates = read_private("private_environment", private_environment)
        self._private_environment: dict[str, str] = {}  # set by `read_templates`
        self.gpus = gpus
        self.mem_limit = mem_limit
        self.network_mode = network_mode
        self.user = user
        self.allow_root = allow_root
        self.max_processes = max_processes
        self.disk_limit = disk_limit
        self.read_only = read_only
        self.labels = dict(labels or {})
        self.lease = lease
        self.lease_s = duration_s("lease", lease, at_least_s=_MIN_LEASE_S)
        read_fields(self, JobOperator.readers, rendered=False)
        self._check_script()
        memory_bytes("mem_limit", mem_limit)
        memory_bytes("disk_limit", disk_limit)
        if not isinstance(read_only, bool):
            raise InvalidInputError("read_only", read_only, "True or False")
        if not isinstance(gpus, int) or isinstance(gpus, bool) or gpus < 0:
            raise InvalidInputError("gpus", gpus, "a whole number of GPUs, 0 for none")
        check_user(user, allow_root)
        check_max_processes(max_processes)

    def read_templates(self, context: Context) -> None:
        """Check and convert the rendered template fields; ``execute`` calls this method first.

        The method also renders the private environment variables, and masks their values in the log.

        Raises
        ------
        InvalidInputError
            If the constructor would reject a rendered value.
        """
        self._private_environment = render_private(self, self._private_templates, context)
        read_fields(self, self.readers, rendered=True)
        self._check_script()
        if self.runtime != "auto":
            check_runtime(self.runtime)
        check_root(self.allow_root)

    def _check_script(self) -> None:
        if (self.script is None) == (self.command is None):
            raise InvalidInputError("script", self.script, "a Python file, or command=..., but not both")

    @property
    def log(self) -> Any:
        """The task's log, in which private values are masked."""
        return masked_log(super().log)

    # --- runtime --------------------------------------------------------------------------------------------------

    @cached_property
    def hook(self) -> DockerHook:
        """The Docker provider's hook for this operator's connections."""
        return engine_hook(self.engine_conn_id, self.docker_conn_id)

    def make_runtime(self) -> Runtime:
        """Return a runtime for a new job of this task."""
        name = self._choose_runtime() if self.runtime == "auto" else self.runtime
        check_runtime(name)
        return self._runtime(name)

    def possible_runtimes(self) -> list[Runtime]:
        """Return each runtime in which an earlier try may have started the job."""
        names = [name for name in RUNTIMES if name != "auto"] if self.runtime == "auto" else [self.runtime]
        return [self._runtime(name) for name in names]

    def _runtime(self, name: str) -> Runtime:
        max_output = memory_bytes("disk_limit", self.disk_limit) or sys.maxsize
        if name == "docker":
            from paceline.runtime import DockerRuntime

            gpus = self._engine_gpus() if self.gpus else 0
            return DockerRuntime(self._connect, pull=self.force_pull, gpus=gpus, max_output_bytes=max_output)
        from paceline.runtime import ProcessRuntime

        return ProcessRuntime(max_output_bytes=max_output)

    def _engine_gpus(self) -> int:
        """Return the declared number of the engine's GPUs; 0 if it is not declared."""
        return gpus_of_engine(self.engine_conn_id)

    def _connect(self) -> Any:
        return connect(lambda: self.hook, self.engine_conn_id, self.docker_conn_id)

    def _choose_runtime(self) -> str:
        from paceline.runtime import DockerRuntime

        needed_by = [field for field, default in _CONTAINER_DEFAULTS.items() if getattr(self, field) != default]
        if not is_allowed("docker"):
            if needed_by:
                self.log.error("A container is needed by: %s", ", ".join(needed_by))
                return "docker"  # which `make_runtime` rejects
            self.log.warning("Running as a local process: [paceline] allowed_runtimes does not name 'docker'")
            return "process"
        try:
            DockerRuntime(self._connect, pull=self.force_pull).check(
                JobSpec(name="check", command=["python"], devices=0.1, image=self.image)
            )
        except (RuntimeUnavailableError, InvalidInputError) as error:
            obstacle = f"a container is needed by: {', '.join(needed_by)}" if needed_by else fallback_obstacle()
            if obstacle:
                self.log.error("Not running as a local process: %s", obstacle)
                raise
            self.log.warning(
                "Running as a local process without a container's isolation: the job can read all files and secrets "
                "that the worker's user (uid %d) can read, and use the worker's network. The reason: %s",
                os.geteuid(),
                error,
            )
            return "process"
        self.log.info("Running in a container of image %s", self.image)
        return "docker"

    # --- job ------------------------------------------------------------------------------------------------------

    def job_name(self, context: Context, suffix: str = "") -> str:
        """Return the name of this task's job, which is the same for every try and unique among tasks."""
        ti = context["ti"]
        return unique_name(context, f"{ti.dag_id}-{ti.task_id}{suffix}", *task_labels(context).values(), suffix)

    def job_spec(
        self,
        context: Context,
        copies: Path | Mapping[str, Path],
        devices: float,
        *,
        inputs: Mapping[str, Path] | None = None,
        suffix: str = "",
    ) -> JobSpec:
        """Return the specification of the job. Raises InvalidInputError if a script, file or input does not exist.

        Parameters
        ----------
        copies:
            Folder for local copies of remote inputs, or the paths of all inputs after they were copied. The files must
            exist until the job has started.
        devices:
            Allocation at the start, in cores.
        inputs:
            Additional inputs: a mapping of names to local paths.
        suffix:
            Suffix of the job's name, if the task has several jobs.
        """
        command, files = self.command_and_files(arguments=True)
        own = {PurePosixPath(name).parts[:1] for name in inputs or ()}
        if taken := [name for name in self.inputs if PurePosixPath(name).parts[:1] in own]:
            raise InvalidInputError("inputs", taken[0], "another name: the task has inputs of its own there")
        if isinstance(copies, Path):
            copies = local_copies("inputs", self.inputs, copies)
        return JobSpec(
            name=self.job_name(context, suffix),
            command=command,
            devices=devices,
            image=self.image,
            files=files,
            inputs={**copies, **(inputs or {})},
            environment={
                **{name: str(value) for name, value in self.environment.items()},
                **self._private_environment,
            },
            gpus=self.gpus,
            memory_bytes=memory_bytes("mem_limit", self.mem_limit),
            max_processes=self.max_processes,
            disk_bytes=memory_bytes("disk_limit", self.disk_limit),
            read_only=self.read_only,
            user=self.user,
            allow_root=self.allow_root,
            network=self.network_mode,
            labels={**self.labels, **job_labels(context)},
            lease_s=self.lease_s,
        )

    def command_and_files(self, *, arguments: bool = False) -> tuple[list[str], dict[str, Path]]:
        """Return the command, with or without the script's arguments, and the local paths of the job's files."""
        files = {name: self._local_file(f"files[{name!r}]", path) for name, path in self.files.items()}
        if self.script is None:
            return command_words("command", self.command), files
        script = self._local_file("script", self.script)
        words = map(str, self.arguments) if arguments else ()
        return ["python", script.name, *words], {script.name: script, **files}

    def _local_file(self, field: str, path: str) -> Path:
        local = Path(path_or_url(field, path))
        if not local.is_absolute():
            dag = self.get_dag()
            local = Path(dag.folder if dag is not None else ".") / local
        if not local.is_file():
            raise InvalidInputError(field, path, f"an existing file ({local} does not exist)")
        return local
