"""A training's processes on a bench: what they say, and how long is waited for it."""

from __future__ import annotations

import time
from collections.abc import Callable

from paceline.errors import TrainingFailedError
from paceline.runtime.docker_job import DockerJob
from paceline.train.asynchronous.plan import NOTHING
from paceline.train.progress import Progress, parse_line

_LOOK_S = 0.1


class Trainer:
    """One machine's training, and what it says."""

    def __init__(self, name: str, job: DockerJob) -> None:
        self.name = name
        self.job = job
        self._newest: Progress | None = None
        self._said = ""

    @property
    def memory_bytes(self) -> int:
        """Memory that it holds."""
        return self.job.usage().memory_bytes

    def now(self) -> Progress:
        """What it has said last."""
        for line in self.job.read_lines():
            told = parse_line(line)
            if told is None:
                self._said = line
            elif told.spent:
                self._newest = told
        return self._newest or Progress(done=0, total=1, spent=NOTHING)

    def wait_for_news(self, give_up_s: float) -> Progress:
        """Wait until it says something new."""
        before = self._newest
        self._wait_until(lambda: self.now() is not before, give_up_s)
        return self.now()

    def wait_for(self, samples: float, give_up_s: float) -> None:
        """Wait until so many samples are done."""
        self._wait_until(lambda: self.now().spent["samples"] >= samples, give_up_s)

    def _wait_until(self, true: Callable[[], bool], give_up_s: float) -> None:
        while not true():
            if self.job.wait(_LOOK_S):
                self.now()
                status = self.job.status()
                why = status.reason or f"exit code {status.exit_code}"
                raise TrainingFailedError(f"the training on {self.name} has ended: {why}. {self._said}")
            if time.monotonic() > give_up_s:
                raise TrainingFailedError(
                    f"the training on {self.name} takes too long: is its machine too busy to train?"
                )
