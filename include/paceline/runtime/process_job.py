"""One local training job: output, CPU allocation, status, resource usage and output files.

Created by ``ProcessRuntime``; used by the control loop. The job's whole state is in the scratch folder, so any process
can reattach to the job.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import psutil

from paceline.errors import JobLostError, PacelineError, RuntimeUnavailableError
from paceline.runtime import _guardian as guardian
from paceline.runtime import gpus
from paceline.runtime._lines import LineAssembler
from paceline.runtime._local_output import collect_folder
from paceline.runtime._output import collect_output
from paceline.runtime._work_files import entries_in_folder, newest_files
from paceline.runtime.base import JobFolder, JobStatus, Usage
from paceline.runtime.cgroups import Group
from paceline.runtime.checks import check_devices
from paceline.runtime.processes import Identity, kill_by_environment, send
from paceline.runtime.scratch import Scratch, read_json, write_json

_TAIL_BYTES = 64 * 1024
# In the output of an ended job, many lines may follow the last progress line.
_TAIL_BYTES_ENDED = 4 * 1024 * 1024
_START_S = 30.0


def claim(scratch: Scratch) -> BinaryIO:
    """Return the launcher's log, locked for this process and the launcher, so that a job never runs twice.

    Raises RuntimeUnavailableError if another process has the lock.
    """
    out = scratch.launcher_log.open("ab")
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(out, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if is_claimed(out):
            return out
    out.close()
    raise RuntimeUnavailableError(f"another process is starting or running the job in {scratch.path}")


def is_claimed(out: BinaryIO) -> bool:
    """Return whether the folder of a lock still exists. A removal of all jobs does not wait for the lock."""
    return os.fstat(out.fileno()).st_nlink > 0


def launch(scratch: Scratch, out: BinaryIO) -> None:
    """Start the launcher for ``scratch``, which inherits the lock of ``claim``; return once the job is running.

    Raises RuntimeUnavailableError if too few GPUs are free.
    """
    path = [str(Path(module).resolve().parents[depth]) for module, depth in ((__file__, 2), (psutil.__file__, 1))]
    # The launcher outlives this process and must not inherit its environment, which may contain secrets.
    environment = {"PATH": os.environ.get("PATH", os.defpath), "PYTHONPATH": os.pathsep.join(path), "LANG": "C.UTF-8"}
    launcher = subprocess.Popen(
        [sys.executable, "-m", "paceline.runtime.launcher", str(scratch.path)],
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=out,
        env=environment,
        cwd="/",
        start_new_session=True,
    )
    try:
        code = launcher.wait(_START_S)
    except BaseException as error:
        launcher.kill()  # without it, the launcher cannot report the start of the job, and ends
        launcher.wait()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        code = -1
    if code != 0:
        output = scratch.launcher_log.read_text(errors="replace").strip()[-2000:]
        if code == gpus.EXIT_UNAVAILABLE:
            raise RuntimeUnavailableError(output.rpartition("\n")[2])
        raise PacelineError(f"could not start the job: {output or 'the launcher did not answer'}")


class _TailReader:
    """Reads the new lines of a growing file."""

    def __init__(self, path: Path, max_bytes: int | None) -> None:
        self._path = path
        self._lines = LineAssembler()
        self._offset = 0
        self._skip = False
        if max_bytes is not None:
            with contextlib.suppress(OSError):
                self._offset = max(0, path.stat().st_size - max_bytes)
                self._skip = self._offset > 0

    def take_lines(self, ended: bool) -> list[str]:
        try:
            with self._path.open("rb") as stream:
                stream.seek(self._offset)
                data = stream.read()
        except FileNotFoundError:
            data = b""
        self._offset += len(data)
        if self._skip and data:  # the first line after a seek may be incomplete
            _, newline, data = data.partition(b"\n")
            self._skip = not newline
        lines = self._lines.feed(data)
        return lines + self._lines.flush() if ended else lines


class ProcessJob:
    """A job that ``ProcessRuntime`` started. ``paceline.runtime.base.Job`` specifies the methods."""

    def __init__(self, scratch: Scratch, *, max_output_bytes: int, from_start: bool) -> None:
        self._scratch = scratch
        self._max_output_bytes = max_output_bytes
        tail = _TAIL_BYTES_ENDED if scratch.end.exists() else _TAIL_BYTES
        self._tails = tuple(_TailReader(log, None if from_start else tail) for log in (scratch.stdout, scratch.stderr))
        self._usage = Usage(cpu_s=0.0, memory_bytes=0, measured_s=0.0)

    @property
    def id(self) -> str:
        """The path of the scratch folder."""
        return str(self._scratch.path)

    @property
    def has_engine(self) -> bool:
        """False: the job consists only of processes of this machine."""
        return False

    @property
    def mechanism(self) -> str:
        """The mechanism that enforces the allocation: ``"cgroup"`` or ``"signal"``."""
        return str((read_json(self._scratch.state) or {}).get("mechanism", ""))

    def read_lines(self) -> list[str]:
        """Return the lines written since the last call: from standard output, then from standard error."""
        ended = self.status().state != "running"  # read the status first: files of an ended job are complete
        return [line for tail in self._tails for line in tail.take_lines(ended)]

    def wait(self, timeout_s: float) -> bool:
        """Wait for the launcher to exit, which it does as soon as the job has ended."""
        limit = time.monotonic() + timeout_s
        while self.status().state == "running":
            left = limit - time.monotonic()
            if left <= 0:
                return False
            launcher = self._helper_identity("launcher")
            if launcher is None or not launcher.wait(left):
                time.sleep(min(left, 0.01))  # the guardian is cleaning up
        return True

    def resize(self, devices: float) -> None:
        """Rewrite the control file; the launcher applies the new allocation within 50 ms."""
        check_devices(devices)
        self._write(self._scratch.control, {"devices": devices}, "change the job's allocation")

    def status(self) -> JobStatus:
        """Return the job's state, from the scratch folder, the launcher process and the guardian process."""
        state = read_json(self._scratch.state)
        helpers = map(self._helper_identity, ("launcher", "guardian"))
        running = any(helper is not None and helper.is_alive() for helper in helpers)
        end = read_json(self._scratch.end)
        if end is not None:
            return JobStatus(
                state="exited",
                exit_code=int(end["exit_code"]),
                started_s=end.get("started_s"),
                finished_s=end.get("finished_s"),
                out_of_memory=bool(end.get("out_of_memory")),
                reason=str(end.get("reason", "")),
                stopped=bool(end.get("stopped")),
            )
        if state is None:
            with contextlib.suppress(OSError):  # the folder was removed
                written_s = self._scratch.job.stat().st_mtime
                return JobStatus(state="gone", started_s=written_s, reason="the job was never started")
        started = state.get("started_s") if state else None
        if running:
            return JobStatus(state="running", started_s=started)
        return JobStatus(state="gone", started_s=started, reason="its processes no longer exist (after a reboot?)")

    def usage(self) -> Usage:
        """Return the resource usage, at most 0.1 s old; after the job has ended, the total CPU time."""
        end = read_json(self._scratch.end)
        if end is not None and "cpu_s" in end:
            return Usage(float(end["cpu_s"]), memory_bytes=0, measured_s=float(end["finished_s"]))
        with contextlib.suppress(OSError, ValueError, KeyError):
            stored = json.loads(self._scratch.usage.read_text())
            self._usage = Usage(float(stored["cpu_s"]), int(stored["memory_bytes"]), float(stored["measured_s"]))
        return self._usage

    def restart(self) -> None:
        """Run the command again in the same folder, even after a reboot."""
        if not self._scratch.path.exists():
            raise JobLostError(f"there is no job in {self._scratch.path}")
        if self.status().state == "running":
            return
        self._wait_for_helpers()
        with claim(self._scratch) as out:
            self._kill_remaining()
            launch(self._scratch, out)

    def collect(self, destination: Path, folder: JobFolder = "output") -> list[str]:
        """Copy a folder of the job; see ``paceline.runtime._output`` for links, devices and pipes."""
        source = self._scratch.folder(folder)
        add_entries = partial(collect_folder, source)
        return collect_output(destination, add_entries, name=folder, max_bytes=self._max_output_bytes)

    def work_files(self, placed: Collection[str]) -> list[str]:
        """Return a few of the newest files in the working folder."""
        with contextlib.suppress(OSError):  # the job may have removed a folder, or made it unreadable
            return newest_files(entries_in_folder(self._scratch.folder("work")), placed)
        return []

    def stop(self, grace_s: float = 5.0) -> None:
        """Send SIGTERM to the job's first process, and SIGKILL to all its processes after ``grace_s``."""
        launcher = self._helper_identity("launcher")
        if launcher is not None and launcher.is_alive() and self._scratch.path.exists():
            with contextlib.suppress(OSError):  # on a full disk, the launcher's own grace period applies
                write_json(self._scratch.stop, {"grace_s": grace_s})
            send(launcher.pid, signal.SIGTERM)
            self.wait(grace_s + 5.0)

    def remove(self) -> None:
        """Kill the job and delete its scratch folder."""
        self.stop(0.0)
        self._wait_for_helpers()
        self._kill_remaining()
        self._scratch.delete()

    def close(self) -> None:
        """Do nothing: this object has no open files or threads between calls."""

    def move(self, folder: Path) -> None:
        """Rename the scratch folder of this ended job."""
        self._wait_for_helpers()
        self._kill_remaining()
        self._scratch.path.rename(folder)

    def renew(self, lease_s: float) -> None:
        """Replace the lease file, which the launcher watches."""
        self._write(self._scratch.lease, {"lasts_s": lease_s}, "renew the job's lease")

    def save_record(self, record: Mapping[str, Any]) -> None:
        """Store the record in the scratch folder, which belongs to this user."""
        self._write(self._scratch.record, dict(record), "store the job's record")

    def load_record(self) -> dict[str, Any] | None:
        """Return the record in the scratch folder."""
        return read_json(self._scratch.record)

    def _write(self, path: Path, value: dict[str, Any], action: str) -> None:
        if not self._scratch.path.exists():
            raise JobLostError(f"there is no job in {self._scratch.path}")
        try:
            write_json(path, value)
        except OSError as error:  # for example, the disk is full
            raise RuntimeUnavailableError(f"could not {action}: {error}") from error

    def _helper_identity(self, role: str) -> Identity | None:
        return Identity.read((read_json(self._scratch.state) or {}).get(role))

    def _wait_for_helpers(self, timeout_s: float = 5.0) -> None:
        """Wait until the launcher and the guardian exit, a few milliseconds after they record how the job ended."""
        limit = time.monotonic() + timeout_s
        for helper in map(self._helper_identity, ("launcher", "guardian")):
            if helper is not None:
                helper.wait(max(limit - time.monotonic(), 0.0))

    def _kill_remaining(self) -> None:
        """Kill the job's remaining processes, which exist only if the launcher and the guardian were killed."""
        kill_by_environment(*guardian.job_variable(self._scratch))
        group = (read_json(self._scratch.state) or {}).get("cgroup")
        if isinstance(group, dict):
            found = Group.from_json(group)
            if found.is_of(self._scratch.path.name):  # the job's own code may have changed the file
                found.remove()
