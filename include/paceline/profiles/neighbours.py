"""What runs on a device besides a training while it is profiled: its applications, and load that is set at will.

Driven by ``bench``.
"""

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
from paceline.runtime import DockerRuntime, JobSpec
from paceline.runtime.docker_job import DockerJob
from paceline.train.progress import parse_line

IMAGE = "paceline-neighbour:latest"
BACKGROUND = "paceline.background"  # label of a container that is an application of its machine
_MIB = 2**20
_SPARE_BYTES = 64 * _MIB  # of the program that fills memory, besides what it fills
_LEAST_SHARE = 0.01
_LOOK_S = 0.1
_FILLED, _FILLING_S = 0.95, 30.0
# Should nobody be there any more to end it, load ends by itself.
_AT_MOST = ("--timeout", "3600")


@dataclass(frozen=True)
class Load:
    """Load besides the applications: so much of the device's cores and of its memory, as shares from 0 to 1."""

    cpu: float = 0.0
    memory: float = 0.0

    def __post_init__(self) -> None:
        for name, value in (("cpu", self.cpu), ("memory", self.memory)):
            if not 0 <= value <= 1:
                raise InvalidInputError(f"load.{name}", value, "a share from 0 to 1")


class Neighbours:
    """The applications of one device, and load.

    An application that runs there already, in a container with the label ``paceline.background`` and its name, is left
    as it is and listened to; the others are started.

    Parameters
    ----------
    runtime:
        The device's engine.
    device:
        The device; its ``background`` says which applications.
    name:
        A name for its containers that no others have.
    image:
        Image with stress-ng.
    labels:
        Labels for its containers.
    patience_s:
        How long to wait for the first word of an application that runs already.
    """

    def __init__(
        self,
        runtime: DockerRuntime,
        device: Machine,
        name: str,
        image: str = IMAGE,
        labels: Mapping[str, str] | None = None,
        *,
        patience_s: float = 30.0,
    ) -> None:
        self._patience_s = patience_s
        self._runtime = runtime
        self._device = device
        self._name = name
        self._image = image
        self._labels = dict(labels or {})
        self._closed = False
        self._apps: dict[str, DockerJob] = {}
        self._listened_to: dict[str, DockerJob] = {}  # applications that were there before
        self._cpu: DockerJob | None = None
        self._cpu_share = 0.0
        self._memory: DockerJob | None = None
        self._memory_share = 0.0
        self._times: defaultdict[str, list[float]] = defaultdict(list)

    def start(self) -> None:
        """Start the applications that do not run there yet."""
        for app in self._device.background:
            found = self._runtime.find({BACKGROUND: app.name}, self._device.cgroup_parent)
            if found is not None:
                self._listened_to[app.name] = found
                self._wait_for_word(app.name, found)
                continue
            if app.image is None or app.script is None:
                accepted = "an image and a script: how the application is run to be measured"
                raise InvalidInputError(f"background.{app.name}", f"{app.image}, {app.script}", accepted)
            script = Path(app.script)
            self._apps[app.name] = self._run(app.name, ["python", script.name], app.image, {script.name: script})

    def set(self, load: Load) -> None:
        """Let there be so much load from now on."""
        if load.memory != self._memory_share:
            self._set_cpu(min(_LEAST_SHARE, self._cpu_share))  # to fill memory takes the processor, too
            self._set_memory(load.memory)
        self._set_cpu(load.cpu)

    def take_times(self) -> dict[str, list[float]]:
        """Seconds that each application's executions took since the last call."""
        for app, job in [*self._apps.items(), *self._listened_to.items()]:
            self._times[app] += _executions(job)
            if job.wait(0):
                status = job.status()
                why = status.reason or f"exit code {status.exit_code}"
                raise TrainingFailedError(f"background.{app} of {self._device.name} has ended: {why}")
        times, self._times = dict(self._times), defaultdict(list)
        return times

    def close(self) -> None:
        """Remove everything that was started here."""
        self._closed = True
        listened_to, self._listened_to = self._listened_to, {}
        for one in listened_to.values():
            one.close()
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

    def _wait_until_filled(self, job: DockerJob, fill: int) -> None:
        """Filling takes a slow device's processor for seconds: what is measured meanwhile is not of a full memory."""
        give_up_s = time.monotonic() + _FILLING_S
        while job.usage().memory_bytes < _FILLED * fill and time.monotonic() < give_up_s and not self._closed:
            if job.wait(_LOOK_S):
                raise TrainingFailedError(f"the load on the memory of {self._device.name} has ended at once")

    def _wait_for_word(self, app: str, job: DockerJob) -> None:
        give_up_s = time.monotonic() + self._patience_s
        while not self._times[app]:
            if self._closed or time.monotonic() > give_up_s:
                raise TrainingFailedError(
                    f"background.{app} of {self._device.name} runs already, and in {self._patience_s:g} s has not said "
                    "what an execution takes: it has to call paceline.train.report(execution_s=...) after each, with "
                    "PACELINE_PROGRESS=lines in its environment"
                )
            time.sleep(_LOOK_S)
            self._times[app] += _executions(job)

    def _set_memory(self, share: float) -> None:
        if self._memory is not None:
            self._memory.remove()
            self._memory = None
        fill = int(share * self._device.memory_gib * 2**30)
        if fill:
            keep_filled = ["--vm", "1", "--vm-bytes", f"{fill}", "--vm-keep", "--vm-hang", "0"]
            command = ["stress-ng", *keep_filled, "--quiet", *_AT_MOST]
            self._memory = self._run("memory", command, self._image, {}, memory_bytes=fill + _SPARE_BYTES)
            self._wait_until_filled(self._memory, fill)
        self._memory_share = share

    def _set_cpu(self, share: float) -> None:
        if share == self._cpu_share:
            return
        if share < _LEAST_SHARE:
            if self._cpu is not None:
                self._cpu.remove()
                self._cpu = None
        else:
            if self._cpu is None:
                hands = math.ceil(self._device.cores)
                command = ["stress-ng", "--cpu", f"{hands}", "--cpu-method", "matrixprod", "--quiet", *_AT_MOST]
                # On all there is: on a small share of a slow device, to start has taken half a minute.
                self._cpu = self._run("cpu", command, self._image, {})
            self._cpu.resize(share * self._device.cores)
        self._cpu_share = share

    def _run(
        self,
        part: str,
        command: list[str],
        image: str,
        files: dict[str, Path],
        *,
        memory_bytes: int | None = None,
    ) -> DockerJob:
        job = self._runtime.start(
            JobSpec(
                name=f"{self._name}-{part}",
                command=command,
                devices=self._device.cores,
                image=image,
                files=files,
                memory_bytes=memory_bytes or int(self._device.memory_gib * 2**30),
                cgroup_parent=self._device.cgroup_parent,
                labels=self._labels,
            )
        )
        if self._closed:  # by another thread meanwhile, which could not know of this job
            job.remove()
            raise TrainingFailedError("the bench was closed")
        return job


def _executions(job: DockerJob) -> list[float]:
    """What the executions took that it has told of since the last call."""
    found = []
    for line in job.read_lines():
        with contextlib.suppress(ValueError):  # of an application that is not ours, a line may say anything
            told = parse_line(line)
            if told is not None and "execution_s" in told.metrics:
                found.append(told.metrics["execution_s"])
    return found
