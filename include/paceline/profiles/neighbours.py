"""Neighbours of a profiled training job: the device's applications, and artificial load. Used by ``bench``."""

from __future__ import annotations

import contextlib
import math
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from paceline.errors import InvalidInputError, PacelineError, TrainingFailedError
from paceline.fleet import Machine
from paceline.runtime import Job, JobSpec, SupportsTeams
from paceline.train.progress import parse_line

IMAGE = "paceline-neighbour:latest"
BACKGROUND = "paceline.background"  # container label with the name of the background application
_MIB = 2**20
_OVERHEAD_BYTES = 64 * _MIB  # memory that stress-ng needs in addition to the load
_MIN_SHARE = 0.01
_POLL_S = 0.1
_FILLED_SHARE, _FILL_TIMEOUT_S = 0.95, 30.0
LONGEST_LIFE_S = 86_400.0  # lease of a profile's jobs, which no process renews
# stress-ng ends after an hour, even if this process dies and cannot stop it.
_TIMEOUT = ("--timeout", "3600")


@dataclass(frozen=True)
class Load:
    """Artificial load in addition to the applications, as fractions (0 to 1) of the device's cores and memory."""

    cpu: float = 0.0
    memory: float = 0.0

    def __post_init__(self) -> None:
        for name, value in (("cpu", self.cpu), ("memory", self.memory)):
            if not 0 <= value <= 1:
                raise InvalidInputError(f"load.{name}", value, "a share from 0 to 1")


class Neighbours:
    """The applications and the artificial load on one device.

    ``start`` starts the applications that are not running. If a container has the label
    ``paceline.background`` with an application's name, it already runs the application, and this class only observes
    the container.

    Parameters
    ----------
    runtime:
        Runtime on the device's engine.
    device:
        The device with its ``background`` applications.
    name:
        Unique prefix of the containers' names.
    image:
        Image with stress-ng.
    labels:
        Labels for the containers.
    timeout_s:
        Maximum wait for the first report of an application.
    memory_bytes:
        Limit of each application; ``None`` for all memory of the device.
    """

    def __init__(
        self,
        runtime: SupportsTeams,
        device: Machine,
        name: str,
        image: str = IMAGE,
        labels: Mapping[str, str] | None = None,
        *,
        timeout_s: float = 60.0,
        memory_bytes: int | None = None,
    ) -> None:
        self._timeout_s = timeout_s
        self._memory_bytes = memory_bytes or int(device.memory_gib * 2**30)
        self._runtime = runtime
        self._device = device
        self._name = name
        self._image = image
        self._labels = dict(labels or {})
        self._closed = False
        self._apps: dict[str, Job] = {}
        self._attached: dict[str, Job] = {}  # applications that this object did not start
        self._cpu: Job | None = None
        self._cpu_share = 0.0
        self._memory: Job | None = None
        self._memory_share = 0.0
        self._times: defaultdict[str, list[float]] = defaultdict(list)

    def check_image(self) -> None:
        """Raise InvalidInputError if the engine lacks the image of the artificial load."""
        self._check_image("neighbour_image", self._image, f"; `make neighbour-image` builds {IMAGE}")

    def start(self) -> None:
        """Start the applications that are not running, and wait for the first report of each application."""
        for app in self._device.background:
            running = self._runtime.find({BACKGROUND: app.name}, self._device.job_options())
            if running is not None:
                self._attached[app.name] = running
                continue
            if app.image is None or app.script is None:
                accepted = "an image and a script to start the application for the measurement"
                raise InvalidInputError(f"background.{app.name}", f"{app.image}, {app.script}", accepted)
            self._check_image(f"fleet.{self._device.name}.background.{app.name}.image", app.image)
            script = Path(app.script)
            self._apps[app.name] = self._start(app.name, ["python", script.name], app.image, {script.name: script})
        for name, job in [*self._apps.items(), *self._attached.items()]:
            self._wait_for_report(name, job)

    def set_load(self, load: Load) -> None:
        """Change the artificial load, and wait until the load process has filled its memory."""
        if load.memory != self._memory_share:
            self._set_cpu(min(_MIN_SHARE, self._cpu_share))  # filling the memory needs CPU time
            self._set_memory(load.memory)
        self._set_cpu(load.cpu)

    def take_execution_times(self) -> dict[str, list[float]]:
        """Return each application's execution times in seconds since the last call."""
        for app, job in [*self._apps.items(), *self._attached.items()]:
            self._read(app, job)
        for resource, load in (("CPU", self._cpu), ("memory", self._memory)):
            if load is not None and load.wait(0):
                raise TrainingFailedError(f"the {resource} load on {self._device.name} has ended: {_end_of(load)}")
        times, self._times = dict(self._times), defaultdict(list)
        return times

    def close(self) -> None:
        """Remove all containers that this object started."""
        self._closed = True
        attached, self._attached = self._attached, {}
        for running in attached.values():
            running.close()
        jobs = [*self._apps.values(), self._cpu, self._memory]
        self._apps, self._cpu, self._memory = {}, None, None
        problem = None
        for job in jobs:
            if job is not None:
                try:
                    job.remove()
                except PacelineError as error:
                    problem = error
        if problem is not None:
            raise problem

    def _check_image(self, field: str, image: str, hint: str = "") -> None:
        try:
            self._runtime.check(
                JobSpec(
                    name=self._name,
                    command=["python"],
                    devices=self._device.cores,
                    image=image,
                    memory_bytes=self._memory_bytes,
                    options=self._device.job_options(),
                )
            )
        except InvalidInputError as error:
            if error.field != "image":
                raise
            accepted = f"{error.accepted}{hint}. The engine of {self._device.name} does not have it"
            raise InvalidInputError(field, image, accepted) from None

    def _wait_until_filled(self, job: Job, fill: int) -> None:
        """Wait until the load process has filled its memory, which takes seconds on a slow device."""
        give_up_s = time.monotonic() + _FILL_TIMEOUT_S
        while job.usage().memory_bytes < _FILLED_SHARE * fill and time.monotonic() < give_up_s and not self._closed:
            if job.wait(_POLL_S):
                reason = f"has ended while it filled the memory: {_end_of(job)}"
                raise TrainingFailedError(f"the memory load on {self._device.name} {reason}")

    def _read(self, app: str, job: Job) -> None:
        """Read an application's new execution times. Raises ``TrainingFailedError`` if the application has ended."""
        self._times[app] += _read_execution_times(job)
        if job.wait(0):
            raise TrainingFailedError(f"background.{app} of {self._device.name} has ended: {_end_of(job)}")

    def _wait_for_report(self, app: str, job: Job) -> None:
        give_up_s = time.monotonic() + self._timeout_s
        while not self._times[app]:
            if self._closed or time.monotonic() > give_up_s:
                variable = ", with PACELINE_PROGRESS=lines in its environment" if app in self._attached else ""
                raise TrainingFailedError(
                    f"background.{app} of {self._device.name} is running but did not report an execution time within "
                    f"{self._timeout_s:g} s: it must call paceline.train.report(execution_s=...) after each execution"
                    f"{variable}"
                )
            time.sleep(_POLL_S)
            self._read(app, job)

    def _set_memory(self, share: float) -> None:
        if self._memory is not None:
            self._memory.remove()
            self._memory = None
        fill = int(share * self._device.memory_gib * 2**30)
        if fill:
            keep_filled = ["--vm", "1", "--vm-bytes", f"{fill}", "--vm-keep", "--vm-hang", "0"]
            command = ["stress-ng", *keep_filled, "--quiet", *_TIMEOUT]
            self._memory = self._start("memory", command, self._image, {}, memory_bytes=fill + _OVERHEAD_BYTES)
            self._wait_until_filled(self._memory, fill)
        self._memory_share = share

    def _set_cpu(self, share: float) -> None:
        if share == self._cpu_share:
            return
        if share < _MIN_SHARE:
            if self._cpu is not None:
                self._cpu.remove()
                self._cpu = None
        else:
            if self._cpu is None:
                processes = math.ceil(self._device.cores)
                command = ["stress-ng", "--cpu", f"{processes}", "--cpu-method", "matrixprod", "--quiet", *_TIMEOUT]
                # Start on all cores, then resize: on a fraction of a core of a slow device, the start took 30 s.
                self._cpu = self._start("cpu", command, self._image, {})
            self._cpu.resize(share * self._device.cores)
        self._cpu_share = share

    def _start(
        self,
        suffix: str,
        command: list[str],
        image: str,
        files: dict[str, Path],
        *,
        memory_bytes: int | None = None,
    ) -> Job:
        job = self._runtime.start(
            JobSpec(
                name=f"{self._name}-{suffix}",
                command=command,
                devices=self._device.cores,
                image=image,
                files=files,
                memory_bytes=memory_bytes or self._memory_bytes,
                options=self._device.job_options(),
                labels=self._labels,
                lease_s=LONGEST_LIFE_S,
            )
        )
        if self._closed:  # another thread closed the bench before this job was registered
            job.remove()
            raise TrainingFailedError("the bench was closed")
        return job


def _end_of(job: Job) -> str:
    status = job.status()
    return status.reason or f"exit code {status.exit_code}"


def _read_execution_times(job: Job) -> list[float]:
    """Return the execution times that the application has reported since the last call."""
    times = []
    for line in job.read_lines():
        with contextlib.suppress(ValueError):  # applications may print lines with invalid reports
            report = parse_line(line)
            if report is not None and "execution_s" in report.metrics:
                times.append(report.metrics["execution_s"])
    return times
