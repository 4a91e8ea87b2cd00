"""Reads the reports of one worker of a measured training job, and waits for new reports. Used by ``bench``."""

from __future__ import annotations

import time
from collections.abc import Callable

from paceline.errors import TrainingFailedError
from paceline.runtime import PausableJob
from paceline.train.parameter_server.plan import NOTHING_SPENT
from paceline.train.progress import Progress, parse_line

_POLL_S = 0.1


class WorkerJob:
    """One machine's container of a training job, and its newest report."""

    def __init__(self, name: str, job: PausableJob) -> None:
        self.name = name
        self.job = job
        self._last_report: Progress | None = None
        self._last_line = ""

    @property
    def memory_bytes(self) -> int:
        """Memory in use by the container."""
        return self.job.usage().memory_bytes

    def latest_report(self) -> Progress:
        """Read the new output and return the newest report."""
        for line in self.job.read_lines():
            report = parse_line(line)
            if report is None:
                self._last_line = line
            elif report.spent:
                self._last_report = report
        return self._last_report or Progress(done=0, total=1, spent=NOTHING_SPENT)

    def wait_for_report(self, give_up_s: float) -> Progress:
        """Wait for a new report and return it."""
        previous = self._last_report
        self._wait_until(lambda: self.latest_report() is not previous, give_up_s)
        return self.latest_report()

    def wait_for_samples(self, samples: float, give_up_s: float) -> None:
        """Wait until the worker has trained on ``samples`` samples in total."""
        self._wait_until(lambda: self.latest_report().spent["samples"] >= samples, give_up_s)

    def _wait_until(self, condition: Callable[[], bool], give_up_s: float) -> None:
        while not condition():
            if self.job.wait(_POLL_S):
                self.latest_report()
                status = self.job.status()
                reason = status.reason or f"exit code {status.exit_code}"
                raise TrainingFailedError(f"the training job on {self.name} has ended: {reason}. {self._last_line}")
            if time.monotonic() > give_up_s:
                raise TrainingFailedError(
                    f"the training job on {self.name} timed out: the machine may be too busy to train"
                )
