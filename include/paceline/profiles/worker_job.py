"""One worker's job of a measured training: its reports, and waiting for them. Used by ``bench``."""

from __future__ import annotations

import time
from collections.abc import Callable

from paceline.errors import TrainingFailedError
from paceline.runtime.docker_job import DockerJob
from paceline.train.asynchronous.plan import NOTHING_SPENT
from paceline.train.progress import Progress, parse_line

_POLL_S = 0.1


class WorkerJob:
    """The job of one machine and its last report."""

    def __init__(self, name: str, job: DockerJob) -> None:
        self.name = name
        self.job = job
        self._last_report: Progress | None = None
        self._last_line = ""

    @property
    def memory_bytes(self) -> int:
        """Memory in use."""
        return self.job.usage().memory_bytes

    def latest(self) -> Progress:
        """Return the last report."""
        for line in self.job.read_lines():
            report = parse_line(line)
            if report is None:
                self._last_line = line
            elif report.spent:
                self._last_report = report
        return self._last_report or Progress(done=0, total=1, spent=NOTHING_SPENT)

    def wait_for_report(self, give_up_s: float) -> Progress:
        """Wait for a new report."""
        previous = self._last_report
        self._wait_until(lambda: self.latest() is not previous, give_up_s)
        return self.latest()

    def wait_for(self, samples: float, give_up_s: float) -> None:
        """Wait until ``samples`` samples are done."""
        self._wait_until(lambda: self.latest().spent["samples"] >= samples, give_up_s)

    def _wait_until(self, condition: Callable[[], bool], give_up_s: float) -> None:
        while not condition():
            if self.job.wait(_POLL_S):
                self.latest()
                status = self.job.status()
                reason = status.reason or f"exit code {status.exit_code}"
                raise TrainingFailedError(f"the training on {self.name} has ended: {reason}. {self._last_line}")
            if time.monotonic() > give_up_s:
                raise TrainingFailedError(
                    f"the training on {self.name} timed out: its machine may be too busy to train"
                )
