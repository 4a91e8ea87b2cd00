"""One local training job: its output, its share of the CPU, its end and what it leaves.

Made by ``ProcessRuntime``; driven by the control loop. All it knows is in the scratch folder, so that any process
can take it over.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from paceline.errors import JobLostError, PacelineError
from paceline.runtime import guardian
from paceline.runtime.base import JobStatus, Usage
from paceline.runtime.cgroups import Group
from paceline.runtime.checks import check_devices
from paceline.runtime.lines import LineAssembler
from paceline.runtime.local_output import take_folder
from paceline.runtime.output import take_output
from paceline.runtime.processes import Identity, kill_carrying, send
from paceline.runtime.scratch import Scratch, read_json, write_json

_NEAR_END_BYTES = 64 * 1024
# A job that has ended says nothing more: the last it reported may be far behind what it printed after that.
_NEAR_ITS_LAST_BYTES = 4 * 1024 * 1024
_START_S = 30.0


def launch(scratch: Scratch) -> None:
    """Start the launcher for ``scratch`` and return once the job runs."""
    path = [str(Path(module).resolve().parents[depth]) for module, depth in ((__file__, 2), (psutil.__file__, 1))]
    # The launcher outlives us: it must not carry our environment about, which may hold secrets.
    environment = {"PATH": os.environ.get("PATH", os.defpath), "PYTHONPATH": os.pathsep.join(path), "LANG": "C.UTF-8"}
    with scratch.launcher_log.open("ab") as out:
        starter = subprocess.Popen(
            [sys.executable, "-m", "paceline.runtime.launcher", str(scratch.path)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=environment,
            cwd="/",
            start_new_session=True,
        )
        try:
            code = starter.wait(_START_S)
        except subprocess.TimeoutExpired:
            starter.kill()
            starter.wait()
            code = -1
    if code != 0:
        said = scratch.launcher_log.read_text(errors="replace").strip()[-2000:]
        raise PacelineError(f"the job could not be started: {said or 'its launcher did not answer'}")


class _Tail:
    """Reads a growing file from where it was left."""

    def __init__(self, path: Path, most_bytes: int | None) -> None:
        self._path = path
        self._lines = LineAssembler()
        self._offset = 0
        self._skip = False
        if most_bytes is not None:
            with contextlib.suppress(OSError):
                self._offset = max(0, path.stat().st_size - most_bytes)
                self._skip = self._offset > 0

    def take(self, ended: bool) -> list[str]:
        try:
            with self._path.open("rb") as stream:
                stream.seek(self._offset)
                data = stream.read()
        except FileNotFoundError:
            data = b""
        self._offset += len(data)
        if self._skip and data:  # the first line after a jump is half of one
            _, newline, data = data.partition(b"\n")
            self._skip = not newline
        lines = self._lines.feed(data)
        return lines + self._lines.flush() if ended else lines


class ProcessJob:
    """A job that ``ProcessRuntime`` started. See ``paceline.runtime.base.Job`` for what each method promises."""

    def __init__(self, scratch: Scratch, *, max_output_bytes: int, from_start: bool) -> None:
        self._scratch = scratch
        self._max_output_bytes = max_output_bytes
        near_end = _NEAR_ITS_LAST_BYTES if scratch.end.exists() else _NEAR_END_BYTES
        self._tails = tuple(_Tail(path, None if from_start else near_end) for path in (scratch.stdout, scratch.stderr))
        self._usage = Usage(cpu_s=0.0, memory_bytes=0, measured_s=0.0)

    @property
    def id(self) -> str:
        """The scratch folder."""
        return str(self._scratch.path)

    @property
    def mechanism(self) -> str:
        """How the share is enforced: ``"cgroup"`` or ``"signal"``."""
        return str((read_json(self._scratch.state) or {}).get("mechanism", ""))

    def read_lines(self) -> list[str]:
        """Return what was written since the last call: first standard output's lines, then standard error's."""
        ended = self.status().state != "running"  # asked first: what comes before the end is in the file by then
        return [line for tail in self._tails for line in tail.take(ended)]

    def wait(self, timeout_s: float) -> bool:
        """Wait for the launcher's end, which follows the job's at once."""
        limit = time.monotonic() + timeout_s
        while self.status().state == "running":
            left = limit - time.monotonic()
            if left <= 0:
                return False
            launcher = self._identity("launcher")
            if launcher is None or not launcher.wait(left):
                time.sleep(min(left, 0.01))  # its guardian is clearing up
        return True

    def resize(self, devices: float) -> None:
        """Rewrite the control file; the launcher follows within 50 ms."""
        check_devices(devices)
        if not self._scratch.path.exists():
            raise JobLostError(f"there is no job in {self._scratch.path}")
        write_json(self._scratch.control, {"devices": devices})

    def status(self) -> JobStatus:
        """Look into the scratch folder, and whether the launcher lives."""
        state = read_json(self._scratch.state)
        running = any(who is not None and who.alive() for who in map(self._identity, ("launcher", "guardian")))
        end = read_json(self._scratch.end)
        if end is not None:
            return JobStatus(
                state="exited",
                exit_code=int(end["exit_code"]),
                started_s=end.get("started_s"),
                finished_s=end.get("finished_s"),
                out_of_memory=bool(end.get("out_of_memory")),
                reason=str(end.get("reason", "")),
            )
        started = state.get("started_s") if state else None
        if running:
            return JobStatus(state="running", started_s=started)
        return JobStatus(state="gone", started_s=started, reason="its processes have vanished (a reboot?)")

    def usage(self) -> Usage:
        """CPU time and memory, at most 0.1 s old; after the end, the CPU time in all."""
        end = read_json(self._scratch.end)
        if end is not None and "cpu_s" in end:
            return Usage(float(end["cpu_s"]), memory_bytes=0, measured_s=float(end["finished_s"]))
        with contextlib.suppress(OSError, ValueError, KeyError):
            said = json.loads(self._scratch.usage.read_text())
            self._usage = Usage(float(said["cpu_s"]), int(said["memory_bytes"]), float(said["measured_s"]))
        return self._usage

    def restart(self) -> None:
        """Run the command again in the same folder, also after a reboot took everything else."""
        if not self._scratch.path.exists():
            raise JobLostError(f"there is no job in {self._scratch.path}")
        if self.status().state == "running":
            return
        self._await_helpers()
        self._clear()
        for path in (self._scratch.end, self._scratch.stop, self._scratch.usage, self._scratch.state):
            path.unlink(missing_ok=True)
        launch(self._scratch)

    def collect(self, destination: Path) -> list[str]:
        """Copy the output folder; see ``paceline.runtime.output`` for what becomes of links, devices and pipes."""
        source = self._scratch.folder("output")
        return take_output(destination, lambda intake: take_folder(source, intake), max_bytes=self._max_output_bytes)

    def stop(self, grace_s: float = 5.0) -> None:
        """SIGTERM to the job's first process, SIGKILL to all after ``grace_s``."""
        launcher = self._identity("launcher")
        if launcher is not None and launcher.alive() and self._scratch.path.exists():
            write_json(self._scratch.stop, {"grace_s": grace_s})
            send(launcher.pid, signal.SIGTERM)
            self.wait(grace_s + 5.0)

    def remove(self) -> None:
        """End the job and delete its scratch folder."""
        self.stop(0.0)
        self._await_helpers()
        self._clear()
        shutil.rmtree(self._scratch.path, ignore_errors=True)

    def close(self) -> None:
        """Nothing is held open between calls."""

    def _identity(self, who: str) -> Identity | None:
        return Identity.read((read_json(self._scratch.state) or {}).get(who))

    def _await_helpers(self, patience_s: float = 5.0) -> None:
        """Launcher and guardian outlive the word that the job has ended by some milliseconds."""
        limit = time.monotonic() + patience_s
        for who in map(self._identity, ("launcher", "guardian")):
            if who is not None:
                who.wait(max(limit - time.monotonic(), 0.0))

    def _clear(self) -> None:
        """End what a killed launcher and guardian may have left; nothing in the normal case."""
        kill_carrying(*guardian.mark(self._scratch))
        group = (read_json(self._scratch.state) or {}).get("cgroup")
        if isinstance(group, dict):
            Group.from_json(group).remove()
