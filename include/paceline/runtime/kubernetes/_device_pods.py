"""``FirstPodJob``: a job whose further GPUs join and leave as pods of their own."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from paceline.errors import ResizePendingError, RuntimeUnavailableError, TrainingFailedError
from paceline.runtime.base import JobStatus, Usage
from paceline.runtime.kubernetes import _pod
from paceline.runtime.kubernetes._cluster import Cluster, list_pods
from paceline.runtime.kubernetes._device_pod import OF, STARTS, FurtherDevice
from paceline.runtime.kubernetes._job import PodJob, delete_pod
from paceline.train.job import EXIT_DEVICE_LOST
from paceline.train.progress import MARKER, parse_line

_LOOK_S, _LOOK_FIRST_S = 5.0, 60.0  # between two looks at the pods: if there are some, and if none are known


class FirstPodJob(PodJob):
    """A job in a pod with its first GPUs, and in a pod for each further GPU of its allocation.

    ``resize`` starts and removes the pods of the further devices, in threads. The job goes on meanwhile, and with
    what it has if a pod waits or is lost.
    """

    def __init__(self, cluster: Cluster, pod: Mapping[str, Any], *, is_new: bool, **options: Any) -> None:
        super().__init__(cluster, pod, is_new=is_new, **options)
        self._first, self._gpus = pod, int(_pod.annotation(pod, _pod.GPUS) or 1)
        self._own = float(self._gpus)  # devices of the first pod
        self._further: list[FurtherDevice] | None = [] if is_new else None  # ``None``: not looked for yet
        self._wanted = 0
        # Devices on which the job trains, as it has reported; ``None`` if another process has read the report.
        self._training: int | None = 0 if is_new else None
        self._failures: dict[int, str] = {}  # reasons of the last pods, by device
        self._looked_s = -math.inf
        self._lines: list[str] = []
        self._ended_cpu_s = 0.0

    def devices_in_force(self) -> float:
        """Return the devices that the job has: those that have joined, and those that have not left yet."""
        return self._own + self._count(self._look())

    def resize(self, devices: float) -> None:
        """Change the CPU limit of the first pod, and start or remove pods of further devices.

        Raises ResizePendingError while not all of them have joined or left.
        """
        self._own, why_own = min(devices, float(self._gpus)), ""
        try:
            super().resize(self._own)
        except ResizePendingError as pending:
            self._own, why_own = pending.devices, pending.reason
        if self._follower.ended.is_set():  # the control loop asks again after its restart
            return
        self._wanted = max(math.ceil(devices - 1e-9) - self._gpus, 0)
        further = self._look()
        staying = [one for one in further if not one.is_leaving]
        for surplus in staying[self._wanted :]:
            surplus.leave()
        numbers = {one.device for one in further}
        for _ in range(self._wanted - len(staying)):
            number = next(k for k in range(self._gpus, self._gpus + len(numbers) + 1) if k not in numbers)
            numbers.add(number)
            reason = self._failures.pop(number, STARTS)
            device = FurtherDevice(self._cluster, self._first, number, self._make_job, reason)
            further.append(device)
            device.start()
        further.sort(key=lambda one: one.device)
        in_force = self._own + self._count(further)
        if why_own or in_force != devices:
            raise ResizePendingError(in_force, why_own or self._why_pending(further))

    def read_lines(self) -> list[str]:
        """Return the lines of the first pod, and those of the others behind the number of the device."""
        lines, self._lines = self._lines, []
        for line in super().read_lines():
            lines.append(line)
            if MARKER in line:
                with contextlib.suppress(ValueError, RecursionError):  # the control loop reports invalid lines
                    progress = parse_line(line)
                    if progress is not None:  # without ``data_parallel``, only the first pod trains
                        self._training = progress.devices_in_force or self._gpus
        for device in self._further or []:
            lines += _lines_of(device)
        return lines

    def status(self) -> JobStatus:
        """Return the state of the job, and whether it has ended because a device was lost during a batch."""
        status = super().status()
        if status.state != "exited" or status.exit_code != EXIT_DEVICE_LOST or status.stopped:
            return status
        return replace(status, device_lost=True, reason="a device was lost during a batch")

    def usage(self) -> Usage:
        """Return the usage of all pods."""
        first = super().usage()
        others = [one.job.usage() for one in self._further or [] if one.job is not None]
        return Usage(
            cpu_s=first.cpu_s + self._ended_cpu_s + sum(one.cpu_s for one in others),
            memory_bytes=first.memory_bytes + sum(one.memory_bytes for one in others),
            measured_s=first.measured_s,
            received_bytes=first.received_bytes,
            sent_bytes=first.sent_bytes,
        )

    def restart(self) -> None:
        """Start the job again in its first pod; the others join again."""
        self._lines = self.read_lines()  # of the earlier run, on other devices
        super().restart()
        self._training = 0

    def stop(self, grace_s: float = 5.0) -> None:
        """Stop the job, and delete the pods of the further devices."""
        super().stop(grace_s)
        self._delete_further()

    def remove(self) -> None:
        """Delete all pods of the job."""
        super().remove()
        self._delete_further()

    def close(self) -> None:
        """Release the threads; the pods continue."""
        super().close()
        for device in self._further or []:
            device.close()

    def renew(self, lease_s: float) -> None:
        """Renew the leases of all pods."""
        super().renew(lease_s)
        for device in self._further or []:
            device.renew(lease_s)

    def _make_job(self, pod: Mapping[str, Any], is_new: bool) -> PodJob:
        return PodJob(self._cluster, pod, max_output_bytes=self._max_output_bytes, is_new=is_new)

    def _look(self) -> list[FurtherDevice]:
        """Return the further devices that are not gone; look at their pods every few seconds.

        Raises TrainingFailedError if the script has run out of memory in one of them.
        """
        if self._further is not None and time.monotonic() < self._looked_s + (
            _LOOK_S if self._further else _LOOK_FIRST_S
        ):
            return self._without_gone(self._further)
        try:
            pods = list_pods(self._cluster, f"{OF}={self._uid}")
        except RuntimeUnavailableError:
            if self._further is None:
                raise
            return self._without_gone(self._further)
        self._looked_s = time.monotonic()
        further = self._further = self._further or []
        known = {one.name for one in further}
        found = [pod for pod in pods if pod["metadata"]["name"] not in known]  # by an earlier process, or one cut off
        further += [FurtherDevice.of(self._cluster, self._first, pod, self._make_job) for pod in found]
        further.sort(key=lambda one: one.device)
        by_name = {pod["metadata"]["name"]: pod for pod in pods}
        for device in further:
            device.observe(by_name.get(device.name))
        return self._without_gone(further)

    def _without_gone(self, further: list[FurtherDevice]) -> list[FurtherDevice]:
        for device in further:
            if device.failure:
                raise TrainingFailedError(f"device {device.device}: {device.failure}")
        for device in [one for one in further if one.is_gone]:
            further.remove(device)
            if not device.is_leaving:
                self._failures[device.device] = device.reason
            self._lines += _lines_of(device)
            if device.job is not None:
                self._ended_cpu_s += device.job.usage().cpu_s
        return further

    def _count(self, further: list[FurtherDevice]) -> int:
        """Return how many further devices the job has."""
        running = sum(one.has_started and not one.is_lost for one in further)
        if running > self._wanted:
            return running  # a device stays allocated until its pod is gone
        joined = running if self._training is None else max(self._training - self._gpus, 0)
        return min(joined, running)

    def _why_pending(self, further: list[FurtherDevice]) -> str:
        for one in further:
            if not one.has_started and not one.is_leaving:
                return f"Device {one.device} has not joined. {one.reason[:1].upper()}{one.reason[1:]}"
        for one in further:
            if one.is_leaving:
                return f"Device {one.device} is leaving. {one.reason[:1].upper()}{one.reason[1:]}"
        return "The script is starting on further devices, and joins when it calls data_parallel()"

    def _delete_further(self) -> None:
        self._wanted = 0
        for device in self._further or []:
            device.close()
        self._further = []
        for pod in list_pods(self._cluster, f"{OF}={self._uid}"):
            delete_pod(self._cluster, pod["metadata"]["name"], pod["metadata"]["uid"])


def _lines_of(device: FurtherDevice) -> list[str]:
    lines = [] if device.job is None else device.job.read_lines()
    return [f"device {device.device}: {line}" for line in lines if MARKER not in line]
