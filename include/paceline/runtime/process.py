"""Runs training jobs as local processes, where no container engine is at hand. Linux only.

``DeadlineTrainingOperator`` uses it in place of ``DockerRuntime``; the control loop sees no difference.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from paceline.errors import InvalidInputError, JobLostError, PacelineError, RuntimeUnavailableError
from paceline.runtime import cgroups
from paceline.runtime.base import JOB_ENVIRONMENT, JobSpec
from paceline.runtime.checks import check_capacity, check_labels, check_spec, placed_files, spec_digest
from paceline.runtime.process_job import ProcessJob, launch
from paceline.runtime.scratch import Scratch, read_json, write_json
from paceline.runtime.sdk import sdk_files
from paceline.train.job import ENV_CHECKPOINT, ENV_CONTROL, ENV_INPUT, ENV_OUTPUT

log = logging.getLogger(__name__)

Mechanism = Literal["auto", "cgroup", "signal"]
_FOLDERS = ("sdk", "work", "input", "output", "checkpoint", "tmp")


class ProcessRuntime:
    """Training jobs as processes of this machine.

    Parameters
    ----------
    root:
        Folder for the jobs' scratch folders. By default one in the system's folder for temporary files, for this
        user only. A job is found again by its scratch folder, so this must be the same for a retry.
    mechanism:
        How the CPU share is enforced. ``"cgroup"``: the kernel's quota on a cgroup of the job's own, where this
        user may make one. ``"signal"``: the job is stopped and continued, by the CPU time it used. ``"auto"``: the
        first of them that works here.
    period_s:
        Length of one stop-and-continue cycle.
    max_output_bytes:
        Limit on what ``collect`` accepts.

    Notes
    -----
    A job runs as this user and sees this machine: this isolates far less than a container. Its environment is made
    afresh, so that no secret of Airflow's reaches it. ``image``, ``user`` and ``network`` of a spec are ignored.
    ``max_processes`` is enforced in a cgroup only. What a job prints is kept whole in its scratch folder until
    ``remove``.
    """

    name = "process"

    def __init__(
        self,
        root: Path | None = None,
        *,
        mechanism: Mechanism = "auto",
        period_s: float = 0.1,
        max_output_bytes: int = 16 * 1024**3,
    ) -> None:
        if mechanism not in ("auto", "cgroup", "signal"):
            raise InvalidInputError("mechanism", mechanism, "'auto', 'cgroup' or 'signal'")
        if not 0.01 <= period_s <= 1.0:
            raise InvalidInputError("period_s", period_s, "0.01 to 1 second")
        self.root = Path(tempfile.gettempdir()) / f"paceline-{os.getuid()}" if root is None else root.absolute()
        self.mechanism: Mechanism = mechanism
        self._period_s = period_s
        self._max_output_bytes = max_output_bytes

    def capacity(self) -> float:
        """Return how many cores this process may use."""
        cores = float(len(os.sched_getaffinity(0)))
        quota = cgroups.own_quota()
        return cores if quota is None else min(cores, quota)

    def check(self, spec: JobSpec) -> None:
        """Raise if ``spec`` cannot run here."""
        if sys.platform != "linux" or not hasattr(os, "pidfd_open"):
            raise RuntimeUnavailableError("the process runtime needs Linux 5.3 or newer")
        check_spec(spec)
        check_capacity(spec.devices, self.capacity())
        program = spec.command[0]
        placed = "/" in program and program.removeprefix("./") in spec.files
        if program != "python" and not placed and not shutil.which(program, path=_path(spec)):
            raise InvalidInputError("command", program, "'python', a program on PATH, or './' and one of files")
        self._make_root()
        if self.mechanism == "cgroup":
            probe = cgroups.create(f"paceline-probe-{os.getpid()}")
            if probe is None:
                raise InvalidInputError("mechanism", "cgroup", "'signal': this user may not make a cgroup here")
            probe.remove()

    def start(self, spec: JobSpec) -> ProcessJob:
        """Start ``spec``, or find it again if the same spec was started by somebody who died before saying so."""
        self.check(spec)
        digest = spec_digest(spec)
        scratch = Scratch(self.root / _folder_name(spec.name))
        if scratch.path.exists():
            job = self._adopt(scratch, spec, digest)
            if job is not None:
                return job
        try:
            self._lay_out(scratch, spec, digest)
            launch(scratch)
        except BaseException as error:
            shutil.rmtree(scratch.path, ignore_errors=True)
            if isinstance(error, OSError):
                raise PacelineError(f"the job's scratch folder could not be made: {error}") from error
            raise
        return ProcessJob(scratch, max_output_bytes=self._max_output_bytes, from_start=True)

    def reattach(self, job_id: str, labels: Mapping[str, str] | None = None) -> ProcessJob:
        """Find a job again by its scratch folder, from any process of this machine and user."""
        scratch = Scratch(Path(job_id))
        order = read_json(scratch.order)
        if order is None or not scratch.state.exists():
            raise JobLostError(f"there is no job in {job_id}")
        check_labels(f"the job in {job_id}", order.get("labels"), labels)
        return ProcessJob(scratch, max_output_bytes=self._max_output_bytes, from_start=False)

    def jobs(self) -> Iterator[tuple[str, dict[str, str]]]:
        """All jobs of this machine and user, by their scratch folders."""
        for path in sorted(self.root.iterdir()) if self.root.is_dir() else ():
            scratch = Scratch(path)
            order = read_json(scratch.order)
            if order is not None and scratch.state.exists():
                yield str(path), dict(order.get("labels") or {})

    def _make_root(self) -> None:
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = self.root.stat()
        except OSError as error:
            raise InvalidInputError("root", str(self.root), f"a folder that can be written ({error})") from error
        if found.st_uid != os.getuid() or not os.access(self.root, os.W_OK):
            raise InvalidInputError("root", str(self.root), "a folder of this user that can be written")

    def _adopt(self, scratch: Scratch, spec: JobSpec, digest: str) -> ProcessJob | None:
        """Decide on a folder that is there already; ``None`` means it was in the way and has been removed."""
        order = read_json(scratch.order)
        if order is not None and scratch.state.exists():
            job = self.reattach(str(scratch.path))
            if order.get("digest") == digest:
                log.info("The same job is in %s already: taking it over.", scratch.path)
                return job
            if job.status().state == "running":
                accepted = f"a name that no running job has; {scratch.path} runs another job of this name"
                raise InvalidInputError("name", spec.name, accepted)
            job.remove()
        else:  # whoever laid it out died before the start
            shutil.rmtree(scratch.path)
        return None

    def _lay_out(self, scratch: Scratch, spec: JobSpec, digest: str) -> None:
        scratch.path.mkdir(mode=0o700)
        for folder in _FOLDERS:
            scratch.folder(folder).mkdir(mode=0o700)
        for path, content in sdk_files().items():
            target = scratch.folder("sdk") / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        for place, local in placed_files(spec):
            target = scratch.path / place
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(local, target)
        command = list(spec.command)
        if command[0] == "python":
            command[0] = sys.executable
        order = {
            "digest": digest,
            "labels": dict(spec.labels),
            "command": command,
            "environment": _environment(scratch, spec),
            "devices": spec.devices,
            "memory_bytes": spec.memory_bytes,
            "max_processes": spec.max_processes,
            "mechanism": self.mechanism,
            "period_s": self._period_s,
        }
        write_json(scratch.control, {"devices": spec.devices})
        write_json(scratch.order, order)


def _folder_name(name: str) -> str:
    """A name for files and cgroups: a long job name is shortened, and stays unique."""
    return (
        f"paceline-{name}"
        if len(name) <= 80
        else f"paceline-{name[:60]}-{hashlib.sha256(name.encode()).hexdigest()[:16]}"
    )


def _path(spec: JobSpec) -> str:
    return spec.environment.get("PATH") or f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"


def _environment(scratch: Scratch, spec: JobSpec) -> dict[str, str]:
    given = dict(spec.environment)
    sdk = str(scratch.folder("sdk"))
    home = {"HOME": str(scratch.folder("work")), "LANG": "C.UTF-8", "TMPDIR": str(scratch.folder("tmp"))}
    return (
        JOB_ENVIRONMENT
        | home
        | given
        | {
            "PATH": _path(spec),
            "PYTHONUNBUFFERED": "1",
            "PYTHONPATH": sdk + (f":{given['PYTHONPATH']}" if given.get("PYTHONPATH") else ""),
            ENV_INPUT: str(scratch.folder("input")),
            ENV_OUTPUT: str(scratch.folder("output")),
            ENV_CHECKPOINT: str(scratch.folder("checkpoint")),
            ENV_CONTROL: str(scratch.control),
        }
    )
