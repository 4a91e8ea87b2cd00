"""One training container as a job: output, CPU quota, status, resource usage and output files.

Created by ``DockerRuntime``; used by the control loop.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.errors import JobLostError, PacelineError, RuntimeUnavailableError, TrainingFailedError
from paceline.runtime import _docker_network as docker_network
from paceline.runtime import _docker_state as docker_state
from paceline.runtime import docker_gpus
from paceline.runtime._docker_logs import LogFollower
from paceline.runtime._memory import engine_saw_kill, out_of_memory
from paceline.runtime._work_files import entries_in_archive, newest_files
from paceline.runtime.archive import extract_output
from paceline.runtime.base import JobFolder, JobStatus, Usage
from paceline.runtime.checks import check_devices
from paceline.runtime.docker_errors import engine_call
from paceline.runtime.docker_stats import StatsFollower

if TYPE_CHECKING:
    from docker import APIClient

log = logging.getLogger(__name__)

PERIOD_US = 100_000  # the kernel's default CFS period
_QUOTA_MIN_US = 1_000  # the kernel's minimum quota
_HOME = "/paceline"
_POLL_S = 5.0  # interval of status checks, in case the output stream does not show the end
_DRAIN_S = 30.0  # time for the remaining output to arrive after the container has ended
_PAUSE_ATTEMPTS = 5


def quota_us(cores: float) -> int:
    """Return the CFS quota for a number of cores, in microseconds per 100 ms period. Equation (6) of DECOR-NN.

    >>> quota_us(1.5), quota_us(0.001)
    (150000, 1000)
    """
    return max(_QUOTA_MIN_US, round(cores * PERIOD_US))


class DockerJob:
    """A container that ``DockerRuntime`` started. ``paceline.runtime.base.Job`` specifies the methods."""

    def __init__(
        self,
        client: APIClient,
        container: str,
        *,
        max_output_bytes: int,
        tail: int | None,
        cores_per_device: float = 1.0,
        shares_gpus: bool = False,
    ) -> None:
        self._client = client
        self._container = container
        self._max_output_bytes = max_output_bytes
        self._cores_per_device = cores_per_device
        self._shares_gpus = shares_gpus
        self._team_network: str | None = None  # stored for ``remove``, which may find the container already removed
        self._stats = StatsFollower(client, container)
        self._follower = LogFollower(client, container, self._has_ended, tail)
        self._follow()

    @property
    def id(self) -> str:
        """The container's id."""
        return self._container

    @property
    def has_engine(self) -> bool:
        """True: the Docker engine ends the container when it shuts down."""
        return True

    def read_lines(self) -> list[str]:
        """Return the lines written since the last call. Once ``wait`` has returned True, return all remaining lines."""
        return self._follower.take_lines()

    def wait(self, timeout_s: float) -> bool:
        """Wait for the container to end, which closes its output stream without delay."""
        limit = time.monotonic() + timeout_s
        while True:
            left = limit - time.monotonic()
            if self._follower.ended.wait(max(0.0, min(left, _POLL_S))):
                return True
            if left <= _POLL_S:
                return False
            try:
                if self._has_ended():
                    # The rest of the stream may still arrive, if read_lines frees space in the queue.
                    return self._follower.ended.wait(max(0.0, min(limit - time.monotonic(), _DRAIN_S))) or True
            except PacelineError:
                pass  # an engine outage, which the follower logs

    def resize(self, devices: float) -> None:
        """Change the CFS quota of the running container to that of ``devices``, or the share of its GPUs."""
        check_devices(devices)
        if self._shares_gpus:
            docker_state.set_share(self._client, self._container, devices)
            return
        quota = quota_us(devices * self._cores_per_device)
        with engine_call("change the container's CPU quota"):
            self._client.update_container(self._container, cpu_period=PERIOD_US, cpu_quota=quota)

    def pause(self) -> None:
        """Freeze the container; it keeps its memory."""
        for attempt in range(1, _PAUSE_ATTEMPTS + 1):
            try:
                with engine_call("pause the container"):
                    self._client.pause(self._container)
                return
            except RuntimeUnavailableError:
                # Control groups v1 cannot freeze a process while it is throttled.
                if attempt == _PAUSE_ATTEMPTS or self.status().state != "running":
                    raise

    def unpause(self) -> None:
        """Unfreeze the container."""
        with engine_call("unpause the container"):
            self._client.unpause(self._container)

    def status(self) -> JobStatus:
        """Return the container's state, read from the engine."""
        details = self._inspect()
        if details is None:
            return JobStatus(state="gone", reason="the container was removed")
        status = _status_of(details)
        if self._restarting and status.state == "running":
            self._follow()
        if (limit := _memory_limit(details)) and status.exit_code and not status.out_of_memory:
            began_s, ended_s = status.started_s or 0.0, status.finished_s or 0.0
            if engine_saw_kill(self._client, self._container, began_s, ended_s):
                status = replace(status, out_of_memory=True, reason=out_of_memory(limit))
        if status.state == "exited" and docker_state.was_stopped(self._client, self._container):
            status = replace(status, stopped=True)
        return status

    def usage(self) -> Usage:
        """Return the resource usage, at most about a second old, or the last measurement of an ended container."""
        return self._stats.newest()

    def restart(self) -> None:
        """Restart the exited container with its files and GPUs.

        Raises RuntimeUnavailableError while another container uses one of these GPUs.
        """
        self._check_gpus()
        self._restarting = True  # the engine may restart the container without answering; ``status`` shows this
        with engine_call("restart the container"):
            self._client.start(self._container)
        docker_state.mark_stopped(self._client, self._container, False)
        try:
            self._check_gpus()  # another process may just have assigned them, see ``docker_gpus.assign``
        except RuntimeUnavailableError:
            self.stop(0)
            raise
        self._follow()

    def collect(self, destination: Path, folder: JobFolder = "output") -> list[str]:
        """Copy a folder out of the container, running or not."""
        with engine_call(f"read the container's {folder} folder"):
            try:
                chunks, _ = self._client.get_archive(self._container, f"{_HOME}/{folder}")
            except Exception as error:
                if type(error).__name__ == "NotFound" and self._inspect() is not None:
                    raise TrainingFailedError(f"{folder}: the job removed its {folder} folder") from error
                raise
            return extract_output(chunks, destination, root=folder, max_bytes=self._max_output_bytes)

    def work_files(self, placed: Collection[str]) -> list[str]:
        """Return a few of the newest files in the working folder, read from the start of the folder's archive."""
        with contextlib.suppress(JobLostError), engine_call("read the container's working folder"):
            chunks, _ = self._client.get_archive(self._container, f"{_HOME}/work")
            with contextlib.closing(chunks):
                return newest_files(entries_in_archive(chunks, root="work"), placed)
        return []

    def stop(self, grace_s: float = 5.0) -> None:
        """Send SIGTERM, then SIGKILL after ``grace_s``, rounded up to whole seconds."""
        try:
            if not self._has_ended():
                docker_state.mark_stopped(self._client, self._container, True)
            with engine_call("stop the container"):
                self._client.stop(self._container, timeout=math.ceil(grace_s))
        except JobLostError:
            pass

    def remove(self) -> None:
        """Remove the container and its anonymous volumes, running or not, and its private network if it is empty."""
        self._inspect()
        remove_container(self._client, self._container)
        if self._team_network is not None:
            docker_network.remove_if_empty(self._client, self._team_network)
        self.close()

    def close(self) -> None:
        """End the threads that read output and usage; the container continues."""
        self._stats.close()
        self._follower.close()

    def renew(self, lease_s: float) -> None:
        """Write a new lease into the container, where a watcher compares it with the last one."""
        docker_state.renew(self._client, self._container, lease_s)

    def save_record(self, record: Mapping[str, Any]) -> None:
        """Store the record in the container, as a file of root."""
        docker_state.save_record(self._client, self._container, record)

    def load_record(self) -> dict[str, Any] | None:
        """Return the record in the container."""
        return docker_state.load_record(self._client, self._container)

    def _follow(self) -> None:
        """Read the output of a container that has been started or restarted."""
        self._restarting = False
        self._follower.start()

    def _check_gpus(self) -> None:
        conflicts = docker_gpus.describe_conflicts(self._client, self._container)
        if conflicts:
            raise RuntimeUnavailableError(
                f"gpus: container {self._container[:12]} waits for its GPUs, in use: {conflicts}"
            )

    def _inspect(self) -> Mapping[str, Any] | None:
        try:
            with engine_call("read the container's status"):
                details: Mapping[str, Any] = self._client.inspect_container(self._container)
                self._team_network = (details["Config"]["Labels"] or {}).get(docker_network.LABEL)
                return details
        except JobLostError:
            return None

    def _has_ended(self) -> bool:
        details = self._inspect()
        return details is None or _status_of(details).state != "running"


def remove_container(client: APIClient, container: str) -> None:
    """Remove a container and its anonymous volumes, running or not, unless it is gone or its removal is in progress."""
    try:
        with engine_call("remove the container"):
            client.remove_container(container, force=True, v=True)
    except JobLostError:
        pass
    except PacelineError as error:
        if "already in progress" not in str(error):  # by another process, or by a call without an answer
            raise


def _status_of(details: Mapping[str, Any]) -> JobStatus:
    state = details["State"]
    if state["Status"] == "created":
        created_s = _epoch_seconds(details["Created"])
        return JobStatus(state="gone", started_s=created_s, reason="the container was never started")
    if state["Status"] in ("running", "paused", "restarting"):
        reason = "paused" if state["Status"] == "paused" else ""
        return JobStatus(state="running", started_s=_epoch_seconds(state["StartedAt"]), reason=reason)
    code = int(state["ExitCode"])
    is_killed = bool(state.get("OOMKilled")) and code != 0
    return JobStatus(
        state="exited",
        exit_code=code,
        started_s=_epoch_seconds(state["StartedAt"]),
        finished_s=_epoch_seconds(state["FinishedAt"]),
        out_of_memory=is_killed,
        reason=out_of_memory(_memory_limit(details)) if is_killed else _exit_reason(details, code),
    )


def _memory_limit(details: Mapping[str, Any]) -> int:
    return int(details["HostConfig"].get("Memory") or 0)


def _exit_reason(details: Mapping[str, Any], code: int) -> str:
    if details["State"].get("Error"):
        return str(details["State"]["Error"])
    if code == 137:
        return "killed (SIGKILL)"
    if code == 143:
        return "stopped (SIGTERM)"
    if code in (126, 127):
        return "the command could not be run in this image"
    return ""


def _epoch_seconds(stamp: str) -> float | None:
    """Return the engine's RFC 3339 time in seconds since the epoch; ``None`` for the zero time.

    >>> _epoch_seconds("1970-01-01T00:01:00.5Z")
    60.5
    """
    if stamp.startswith("0001-"):
        return None
    whole, _, rest = stamp.rstrip("Z").partition(".")
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
    zone = rest[len(digits) :] or "+00:00"
    moment = datetime.fromisoformat(whole + zone)
    return moment.timestamp() + (float(f"0.{digits}") if digits else 0.0)
