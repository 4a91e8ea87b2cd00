"""Runs training jobs as local processes, on a Linux machine without a container engine.

``DeadlineTrainingOperator`` can use this runtime instead of ``DockerRuntime``. The control loop is the same for both.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Literal

from paceline.errors import InvalidInputError, JobLostError, PacelineError, RuntimeUnavailableError
from paceline.runtime import cgroups, gpus
from paceline.runtime._sdk import sdk_files
from paceline.runtime.base import JOB_ENVIRONMENT, Job, JobSpec
from paceline.runtime.checks import (
    check_capacity,
    check_labels,
    check_spec,
    job_files,
    spec_digest,
)
from paceline.runtime.process_job import ProcessJob, claim, is_claimed, launch
from paceline.runtime.scratch import Scratch, read_json, write_json
from paceline.train.job import ENV_CHECKPOINT, ENV_CONTROL, ENV_CORES_PER_DEVICE, ENV_INPUT, ENV_OUTPUT

log = logging.getLogger(__name__)

Mechanism = Literal["auto", "cgroup", "signal"]
# Processes that load data open sockets in the job's temporary folder, and the path of a socket has at most 107 bytes.
_MAX_NAME = 32
_FOLDERS = ("sdk", "work", "input", "output", "checkpoint", "tmp")


class ProcessRuntime:
    """Runs training jobs as processes on this machine.

    Parameters
    ----------
    root:
        Parent folder of the jobs' scratch folders; by default, a per-user folder in the system's temporary folder. A
        retry must use the same root, because it finds the job by its scratch folder.
    mechanism:
        How the CPU allocation is enforced. ``"cgroup"``: the kernel's quota on the job's own cgroup, if this user may
        create one. ``"signal"``: stop and continue the job according to its CPU time. ``"auto"``: the cgroup if
        possible, else signals.
    period_s:
        Length of one stop-and-continue cycle, in seconds.
    max_output_bytes:
        Maximum size of the output that ``collect`` accepts.
    dev:
        Folder with the device files of the GPUs.

    Notes
    -----
    A job runs as this user with access to this machine, so it is far less isolated than in a container. The job's new
    environment contains no Airflow secrets. ``image``, ``user``, ``network`` and ``read_only`` of a spec are ignored.
    ``max_processes`` is enforced only in a cgroup, ``disk_bytes`` only for each file. The scratch folder keeps a job's
    complete output until ``remove``.

    A job with ``gpus`` sees only its own GPUs, which no other job in the same ``root`` uses at the same time; a part of
    a GPU leaves the rest to other such jobs. A job without ``gpus`` may use all GPUs of the machine. With
    ``shares_gpus``, the job reads its share from the control file, and its CPU time does not depend on it.
    """

    name = "process"

    def __init__(
        self,
        root: Path | None = None,
        *,
        mechanism: Mechanism = "auto",
        period_s: float = 0.1,
        max_output_bytes: int = 16 * 1024**3,
        dev: Path = Path("/dev"),
    ) -> None:
        if mechanism not in ("auto", "cgroup", "signal"):
            raise InvalidInputError("mechanism", mechanism, "'auto', 'cgroup' or 'signal'")
        if not 0.01 <= period_s <= 1.0:
            raise InvalidInputError("period_s", period_s, "0.01 to 1 second")
        self.root = Path(tempfile.gettempdir()) / f"paceline-{os.getuid()}" if root is None else root.absolute()
        self.mechanism: Mechanism = mechanism
        self._period_s = period_s
        self._max_output_bytes = max_output_bytes
        self._gpus = gpus.of_process(dev=dev)

    def capacity(self) -> float:
        """Return the number of cores that this process may use."""
        cores = float(len(os.sched_getaffinity(0)))
        quota = cgroups.own_quota()
        return cores if quota is None else min(cores, quota)

    def check(self, spec: JobSpec) -> None:
        """Raise if ``spec`` cannot run on this machine."""
        if sys.platform != "linux" or not hasattr(os, "pidfd_open"):
            raise RuntimeUnavailableError("the process runtime requires Linux 5.3 or newer")
        check_spec(spec)
        if spec.team_network is not None:
            raise InvalidInputError("team_network", spec.team_network.name, "None: a local process has no own network")
        check_capacity(spec, self.capacity())
        program = spec.command[0]
        in_files = "/" in program and program.removeprefix("./") in spec.files
        if program != "python" and not in_files and not shutil.which(program, path=_search_path(spec)):
            raise InvalidInputError("command", program, "'python', a program on PATH, or './' plus a name in files")
        gpus.choose(self._gpus, (), math.ceil(spec.gpus))
        self._make_root()
        if self.mechanism == "cgroup":
            probe = cgroups.create(f"paceline-probe-{os.getpid()}")
            if probe is None:
                raise InvalidInputError("mechanism", "cgroup", "'signal', because this user may not create a cgroup")
            probe.remove()

    def start(self, spec: JobSpec) -> ProcessJob:
        """Start ``spec``; reattach to its job if another process has just started the job."""
        self.check(spec)
        digest = spec_digest(spec)
        scratch = self._scratch(spec.name)
        if scratch.path.exists():
            job = self._reattach_or_remove(scratch, spec, digest)
            if job is not None:
                return job
        return self._start_new(scratch, spec, digest, None)

    def find_job(self, name: str, labels: Mapping[str, str]) -> ProcessJob | None:
        """Return the job in the scratch folder for this job name. Complete an interrupted ``replace``."""
        current, earlier = self._scratch(name), self._earlier_scratch(name)
        if self._stored(earlier) is not None:
            if self._stored(current) is None:  # it was not launched, and may lack the checkpoint
                current = earlier
            else:
                self._job(earlier).remove()
        if self._stored(current) is None:
            return None
        try:
            return self.reattach(str(current.path), labels)
        except JobLostError:
            return None

    def has_same_spec(self, job: Job, spec: JobSpec) -> bool:
        """Return whether the digest of ``spec`` is that in the scratch folder."""
        return (self._stored(Scratch(Path(job.id))) or {}).get("digest") == spec_digest(spec)

    def replace(self, job: Job, spec: JobSpec) -> ProcessJob:
        """Start a job with a copy of an ended job's checkpoint. The ended job keeps its checkpoint until the start."""
        self.check(spec)
        scratch, earlier = self._scratch(spec.name), self._earlier_scratch(spec.name)
        if self._stored(earlier) is None:  # else an earlier call has moved the ended job
            self._job(Scratch(Path(job.id))).move(earlier.path)
        digest = spec_digest(spec)
        if (self._stored(scratch) or {}).get("digest") == digest:
            started = self._job(scratch)  # by an earlier call, which could not remove the ended job
        else:
            if scratch.path.exists():
                with claim(scratch):
                    scratch.delete()
            started = self._start_new(scratch, spec, digest, earlier)
        self._job(earlier).remove()
        return started

    def reattach(self, job_id: str, labels: Mapping[str, str] | None = None) -> ProcessJob:
        """Return the job in the scratch folder ``job_id``. Any process of this user on this machine can reattach."""
        scratch = Scratch(Path(job_id))
        stored = self._stored(scratch, is_started=False)
        if stored is None:
            raise JobLostError(f"there is no job in {job_id}")
        check_labels(f"the job in {job_id}", stored.get("labels"), labels)
        return self._job(scratch)

    def jobs(self) -> Iterator[tuple[str, dict[str, str]]]:
        """Yield the scratch folder and labels of every job of this user on this machine, started or not."""
        for path in sorted(self.root.iterdir()) if self.root.is_dir() else ():
            stored = self._stored(Scratch(path), is_started=False)
            if stored is not None:
                yield str(path), dict(stored.get("labels") or {})

    def remove_all(self, labels: Mapping[str, str]) -> None:
        """Remove all jobs with these labels, in any state."""
        for path, found in list(self.jobs()):
            if labels.items() <= found.items():
                self._job(Scratch(Path(path))).remove()

    def _scratch(self, name: str) -> Scratch:
        return Scratch(self.root / _folder_name(name))

    def _earlier_scratch(self, name: str) -> Scratch:
        """Return the folder of a job while another one replaces it."""
        return Scratch(self.root / f"{_folder_name(name)}.earlier")

    def _job(self, scratch: Scratch) -> ProcessJob:
        return ProcessJob(scratch, max_output_bytes=self._max_output_bytes, from_start=False)

    def _stored(self, scratch: Scratch, *, is_started: bool = True) -> dict[str, Any] | None:
        """Return what is stored about a job; ``None`` if there is no job of this user in the folder.

        ``is_started``: ignore a job that has not started.

        A user of Airflow may name any folder, and another user of this machine may create one: its files would name
        processes of this user as those of a job.
        """
        if scratch.path != self.root / scratch.path.name or not scratch.path.name.startswith("paceline-"):
            return None
        is_own = _is_own_folder(self.root) and _is_own_folder(scratch.path)
        return read_json(scratch.job) if is_own and (scratch.state.exists() or not is_started) else None

    def _start_new(self, scratch: Scratch, spec: JobSpec, digest: str, earlier: Scratch | None) -> ProcessJob:
        """Create the folder and start the job. ``earlier``: the job whose checkpoint to copy."""
        try:
            scratch.path.mkdir(mode=0o700)
            with claim(scratch) as out:
                self._fill_and_launch(scratch, spec, digest, out, earlier)
        except OSError as error:
            raise PacelineError(f"could not create the job's scratch folder: {error}") from error
        return ProcessJob(scratch, max_output_bytes=self._max_output_bytes, from_start=True)

    def _make_root(self) -> None:
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidInputError("root", str(self.root), f"a writable folder ({error})") from error
        if not _is_own_folder(self.root) or not os.access(self.root, os.W_OK):
            accepted = "a folder, not a link, that this user owns and only this user can write to"
            raise InvalidInputError("root", str(self.root), accepted)

    def _reattach_or_remove(self, scratch: Scratch, spec: JobSpec, digest: str) -> ProcessJob | None:
        """Return the job in ``scratch`` if it has this digest; otherwise remove the folder and return ``None``."""
        stored = self._stored(scratch)
        if stored is not None:
            job = self.reattach(str(scratch.path))
            if stored.get("digest") == digest:
                log.info("%s already contains the same job: reattaching to it", scratch.path)
                return job
            if job.status().state == "running":
                raise RuntimeUnavailableError(f"{scratch.path} is running another job named {spec.name}")
            job.remove()
        else:  # the process that prepared the folder died before it started the job
            with claim(scratch):
                scratch.delete()
        return None

    def _fill_and_launch(
        self, scratch: Scratch, spec: JobSpec, digest: str, out: BinaryIO, earlier: Scratch | None
    ) -> None:
        try:
            self._create_scratch(scratch, spec, digest, out)
            if earlier is not None:
                _check_claimed(scratch, out)
                source, target = earlier.folder("checkpoint"), scratch.folder("checkpoint")
                shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
            _check_claimed(scratch, out)
            launch(scratch, out)
        except BaseException:
            if is_claimed(out):  # else the folder could be that of another process
                ProcessJob(scratch, max_output_bytes=0, from_start=True).remove()  # the job may already run
            raise

    def _create_scratch(self, scratch: Scratch, spec: JobSpec, digest: str, out: BinaryIO) -> None:
        command = list(spec.command)
        if command[0] == "python":
            command[0] = sys.executable
        cores = spec.cores(self.capacity())
        job = {
            "digest": digest,
            "labels": dict(spec.labels),
            "command": command,
            "environment": _environment(scratch, spec, cores),
            "devices": spec.devices,
            "cores_per_device": None if spec.shares_gpus else spec.cores_per_device,
            "cores": cores if spec.shares_gpus else None,
            "gpus": spec.gpus,
            "gpu_ids": self._gpus,
            "memory_bytes": spec.memory_bytes,
            "max_processes": spec.max_processes,
            "disk_bytes": spec.disk_bytes,
            "mechanism": self.mechanism,
            "period_s": self._period_s,
        }
        write_json(scratch.job, job)  # first: its labels tell whose job it is if this process is killed meanwhile
        if spec.lease_s is not None:
            write_json(scratch.lease, {"lasts_s": spec.lease_s})
        write_json(scratch.control, {"devices": spec.devices})
        for folder in _FOLDERS:
            scratch.folder(folder).mkdir(mode=0o700)
        for path, content in sdk_files().items():
            _check_claimed(scratch, out)
            target = scratch.folder("sdk") / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        for path, local in job_files(spec):
            _check_claimed(scratch, out)
            target = scratch.path / path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(local, target)


def _check_claimed(scratch: Scratch, out: BinaryIO) -> None:
    """Raise if the folder was removed: another job may since use its path."""
    if not is_claimed(out):
        raise JobLostError(f"the job in {scratch.path} was removed before its start")


def _is_own_folder(path: Path) -> bool:
    """Return whether a path is a folder, not a link, that belongs to this user and that no other user can change."""
    try:
        info = path.lstat()
    except (OSError, ValueError):  # ValueError: a NUL character
        return False
    return (
        stat.S_ISDIR(info.st_mode) and info.st_uid == os.getuid() and not info.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    )


def _folder_name(name: str) -> str:
    """Return a unique name for files and cgroups; a hash replaces the end of a long job name."""
    if len(name) > _MAX_NAME:
        name = f"{name[: _MAX_NAME - 17]}-{hashlib.sha256(name.encode()).hexdigest()[:16]}"
    return f"paceline-{name}"


def _search_path(spec: JobSpec) -> str:
    return spec.environment.get("PATH") or f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"


def _environment(scratch: Scratch, spec: JobSpec, cores: float) -> dict[str, str]:
    environment = dict(spec.environment)
    sdk = str(scratch.folder("sdk"))
    home = {"HOME": str(scratch.folder("work")), "LANG": "C.UTF-8", "TMPDIR": str(scratch.folder("tmp"))}
    return (
        JOB_ENVIRONMENT
        | home
        | environment
        | {
            "PATH": _search_path(spec),
            "PYTHONUNBUFFERED": "1",
            "PYTHONPATH": sdk + (f":{environment['PYTHONPATH']}" if environment.get("PYTHONPATH") else ""),
            ENV_INPUT: str(scratch.folder("input")),
            ENV_OUTPUT: str(scratch.folder("output")),
            ENV_CHECKPOINT: str(scratch.folder("checkpoint")),
            ENV_CONTROL: str(scratch.control),
            ENV_CORES_PER_DEVICE: str(cores / math.ceil(spec.gpus) if spec.shares_gpus else spec.cores_per_device),
        }
    )
