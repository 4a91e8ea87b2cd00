"""The utilization of a job's allocation. The control loop measures it for the controller."""

from __future__ import annotations

from collections import deque

from paceline.errors import JobLostError, RuntimeUnavailableError
from paceline.run._outage import Outage
from paceline.runtime import Job, Usage
from paceline.train.progress import Progress

_WINDOW_S = 3.0


class JobUtilization:
    """The fraction of its devices that a job used during the last 3 s, computed from its CPU time.

    For a share of GPUs, it is computed from the time for which they have computed, which the job reports.

    Parameters
    ----------
    cores_per_device:
        Cores of CPU time that come with each device.
    shares_gpus:
        Whether the devices are a share of the time of the job's GPUs.

    Examples
    --------
    >>> utilization = JobUtilization()
    >>> for second in range(5):
    ...     utilization.add(Usage(cpu_s=1.2 * second, memory_bytes=0, measured_s=second), device_s=2.0 * second)
    >>> utilization.share
    0.6
    """

    def __init__(self, cores_per_device: float = 1.0, *, shares_gpus: bool = False) -> None:
        self._cores_per_device = 1.0 if shares_gpus else cores_per_device
        self._shares_gpus = shares_gpus
        self.share: float | None = None  # from 0 to 1; ``None`` until measured
        self.devices: float | None = None  # the used devices
        self._measured_s: float | None = None
        self._source = ""
        self._readings: deque[tuple[float, float, float]] = deque()  # time, total CPU seconds and device-seconds

    def read(self, job: Job, outage: Outage, device_s: float) -> None:
        """Add the job's newest reading. The answer, or that there is none, also shows outages between two resizes."""
        try:
            usage = job.usage()
        except RuntimeUnavailableError as error:
            outage.record_failure(error)
            return
        except JobLostError:
            return  # the status check reports how the job ended
        if usage.measured_s != self._measured_s:
            self._measured_s = usage.measured_s
            outage.add_reading()
        if not self._shares_gpus:
            self.add(usage, device_s)

    def add_report(self, report: Progress | None, device_s: float) -> None:
        """Add the newest report of a job with a share of GPUs. A job with all of their time reports no usage."""
        if not self._shares_gpus:
            return
        if report is not None and report.gpu_s is not None:
            if report.source != self._source:  # another process, perhaps on another machine
                self._readings.clear()
            self._source = report.source
            self.add(Usage(report.gpu_s, 0, report.monotonic_s), device_s)
        else:
            self._readings.clear()
            self.share = self.devices = None

    def add(self, usage: Usage, device_s: float) -> None:
        """Add a reading and the device-seconds of the allocation so far."""
        if self._readings and usage.measured_s <= self._readings[-1][0]:
            return  # a repeated reading
        if self._readings and usage.cpu_s < self._readings[-1][1]:
            self._readings.clear()  # the job was restarted, or had all of the GPUs' time meanwhile
        self._readings.append((usage.measured_s, usage.cpu_s, device_s))
        while len(self._readings) > 2 and usage.measured_s - self._readings[1][0] >= _WINDOW_S:
            self._readings.popleft()
        first_s, first_cpu_s, first_device_s = self._readings[0]
        if usage.measured_s - first_s < _WINDOW_S or device_s <= first_device_s:
            return
        used_s = (usage.cpu_s - first_cpu_s) / self._cores_per_device
        self.devices = used_s / (usage.measured_s - first_s)
        self.share = round(min(used_s / (device_s - first_device_s), 1.0), 3)
