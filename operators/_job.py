"""``JobOperator``: base of the operators that run user code as a job in a container or a local process.

``DeadlineTrainingOperator`` and ``EvaluateOperator`` extend it. The settings of a runtime are in
:mod:`paceline.airflow.runtimes`.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator

from paceline.airflow.arguments import (
    command_words,
    duration_s,
    local_copies,
    mapping,
    path_or_url,
    read_fields,
    sequence,
)
from paceline.airflow.runtimes import RuntimeSettings, runtime_value
from paceline.airflow.tasks import CheckedTask
from paceline.airflow.values import NOTHING, Reader, is_template
from paceline.errors import InvalidInputError
from paceline.runtime import JobSpec, Runtime

from . import _auto
from ._identity import first_run_start, job_labels, task_labels, unique_name
from ._private import masked_log, read_private, redacted, render_private
from ._restrictions import check_root, check_runtime

if TYPE_CHECKING:
    from airflow.sdk import Context

_MIN_LEASE_S = 300.0  # a worker process renews the lease at least once a minute


def _script(field: str, value: object) -> str | None:
    return None if value in NOTHING else path_or_url(field, value, "the path of a Python file")


def _command(field: str, value: object) -> object:
    if value in NOTHING:
        return None
    command_words(field, value)
    return value  # Airflow's pages show the command as the user wrote it


def _inputs(field: str, value: object) -> dict[str, Any]:
    """Read names and places. Whether a place exists is known only on the worker that runs the task."""
    places = mapping(field, value)
    for name, place in places.items():
        if not is_template(place):
            path_or_url(f"{field}[{name!r}]", place)
    return places


class JobOperator(CheckedTask, BaseOperator):
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
        Command to run instead of a script, as text or as a list. (templated)
    files:
        Files to place in the script's folder, as ``{name in the job: local path}``. (templated)
    inputs:
        Data that the job reads, as ``{name below $PACELINE_INPUT: local path or object storage URL}``. (templated)
    runtime:
        Where the job runs: :class:`Docker(...) <paceline.operators.Docker>`, :class:`Process(...)
        <paceline.operators.Process>`, other settings, or the name of an installed runtime, such as ``"process"``, for
        its default settings. With ``"auto"``, the job runs in a container with the default settings if an engine
        responds and has the image, else as a local process; it never runs as a local process if ``command`` is set, nor
        if the worker runs as root, unless ``[paceline] allowed_runtimes`` names ``process``. That option restricts all
        jobs. (templated)
    environment:
        Environment variables of the job. (templated)
    private_environment:
        Environment variables that Airflow neither stores nor shows. Values may be templates, such as
        ``"{{ conn.my_db.password }}"``; in the task's log and errors, the rendered values are masked.
    labels:
        Additional labels of the job.
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
        "environment",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"environment": "json", "inputs": "json", "runtime": "json"}
    # Mapping of template fields to readers, see ``read_templates``. A subclass adds the readers of its template fields.
    readers: ClassVar[Mapping[str, Reader]] = {
        "script": _script,
        "arguments": sequence,
        "command": _command,
        "files": mapping,
        "inputs": _inputs,
        "runtime": runtime_value,
        "environment": mapping,
    }
    on_fleet: ClassVar[bool] = False  # whether a fleet's file determines the runtime's ``machine_fields``
    ui_color = "#e8f1ff"

    def __init__(
        self,
        *,
        script: str | os.PathLike[str] | None = None,
        arguments: Sequence[str] = (),
        command: str | Sequence[str] | None = None,
        files: Mapping[str, str] | None = None,
        inputs: Mapping[str, str] | None = None,
        runtime: RuntimeSettings | str = "auto",
        environment: Mapping[str, str] | None = None,
        private_environment: Mapping[str, str] | None = None,
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
        self.runtime: Any = runtime
        self.environment: Any = environment
        self._private_templates = read_private("private_environment", private_environment)
        self._private_environment: dict[str, str] = {}  # set by `read_templates`
        self.labels = dict(labels or {})
        self.lease = lease
        self.lease_s = duration_s("lease", lease, at_least_s=_MIN_LEASE_S)
        if isinstance(runtime, type):  # else, it would count as a function that the task calls
            raise InvalidInputError("runtime", runtime.__name__, "settings such as Docker(...), with parentheses")
        read_fields(self, JobOperator.readers, rendered=False)
        self._check_script()

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
            check_runtime(self.runtime.name)
        check_root(self.runtime_settings)

    def _check_script(self) -> None:
        if (self.script is None) == (self.command is None):
            raise InvalidInputError("script", self.script, "a Python file, or command=..., but not both")

    @property
    def log(self) -> Any:
        """The task's log, in which private values are masked."""
        return masked_log(super().log)

    # --- runtime --------------------------------------------------------------------------------------------------

    @property
    def runtime_settings(self) -> RuntimeSettings:
        """The settings of the runtime; those of a container with ``"auto"`` and before a template is rendered."""
        return self.runtime if isinstance(self.runtime, RuntimeSettings) else _auto.CHOICES[0]

    def choose_runtime(self) -> RuntimeSettings:
        """Return the settings of the runtime for a new job of this task."""
        settings: RuntimeSettings = _auto.choose(self.command, self.log) if self.runtime == "auto" else self.runtime
        check_runtime(settings.name)
        return settings

    def possible_runtimes(self) -> Sequence[RuntimeSettings]:
        """Return the settings of each runtime in which an earlier try may have started the job."""
        return _auto.CHOICES if self.runtime == "auto" else [self.runtime]

    def open_runtime(self, settings: RuntimeSettings) -> Runtime:
        """Return the runtime for these settings."""
        return settings.open()

    def describe(self, error: Exception) -> str:
        """Return the message of an error, with private values masked.

        A runtime does not know which settings it was opened with: its error about ``image`` names ``runtime.image``, as
        the user wrote it.
        """
        message = redacted(error)
        settings = self.runtime_settings
        fields = {field.name for field in dataclasses.fields(settings)}  # type: ignore[arg-type]
        of_file = settings.machine_fields if self.on_fleet else ()
        of_runtime = isinstance(error, InvalidInputError) and error.field in fields.difference(of_file)
        return f"runtime.{message}" if of_runtime else message

    # --- job ------------------------------------------------------------------------------------------------------

    def job_name(self, context: Context, suffix: str = "") -> str:
        """Return the name of this task's job, which is the same for every try and unique among tasks."""
        ti = context["ti"]
        parts = (*task_labels(context).values(), suffix, first_run_start(context))
        return unique_name(f"{ti.dag_id}-{ti.task_id}{suffix}", *parts)

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
        spec = JobSpec(
            name=self.job_name(context, suffix),
            command=command,
            devices=devices,
            files=files,
            inputs={**copies, **(inputs or {})},
            environment={
                **{name: str(value) for name, value in self.environment.items()},
                **self._private_environment,
            },
            labels={**self.labels, **job_labels(context)},
            lease_s=self.lease_s,
        )
        return self.runtime_settings.extend(spec)

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
