"""A simulated job with the interface of a real job, for tests and benchmarks of the whole control loop."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from paceline.errors import JobLostError
from paceline.run.clock import Clock
from paceline.runtime import JobFolder, JobStatus, Usage
from paceline.testing.plant import Plant, Run
from paceline.train.progress import Progress


class SimulatedJob:
    """A simulated job that runs on a real or simulated clock.

    Parameters
    ----------
    plant:
        Properties of the job.
    devices:
        Initial allocation.
    clock:
        Source of time.
    seed:
        Seed of the plant's noise.
    """

    has_engine = False

    def __init__(self, plant: Plant, devices: float, clock: Clock, seed: int = 0) -> None:
        self.id = f"simulated-{seed}"
        self._run = Run(plant, devices, seed)
        self._clock = clock
        self._started_s = clock.now()
        self._last_reported: tuple[int, float] | None = None

    def read_lines(self) -> list[str]:
        """Return the latest progress line if it is new."""
        run = self._advance()
        if run.reported is None or run.reported == self._last_reported:
            return []
        event = "start" if self._last_reported is None else "progress" if run.trained_s is None else "finish"
        self._last_reported = run.reported
        done, done_s = run.reported
        return [Progress(done, max(run.total, done), event=event, wall_s=self._started_s + done_s).to_line()]

    def wait(self, timeout_s: float) -> bool:
        """Wait for ``timeout_s``, and return whether the job has ended."""
        if self._advance().finished_s is None and timeout_s > 0:
            self._clock.sleep(timeout_s)
        return self._advance().finished_s is not None

    def resize(self, devices: float) -> None:
        """Change the allocation to ``devices``."""
        if self._advance().finished_s is not None:
            raise JobLostError("the job has ended")
        self._run.resize(devices)

    def status(self) -> JobStatus:
        """Return "running", or "exited" with exit code 0."""
        finished_s = self._advance().finished_s
        if finished_s is None:
            return JobStatus("running", started_s=self._started_s)
        return JobStatus("exited", 0, self._started_s, self._started_s + finished_s)

    def usage(self) -> Usage:
        """Return the CPU time that the job has used so far."""
        run = self._advance()
        return Usage(run.used_s, 0, run.now_s)

    def restart(self) -> None:
        """Raise NotImplementedError, because a simulated job does not crash."""
        raise NotImplementedError

    def collect(self, destination: Path, folder: JobFolder = "output") -> list[str]:
        """Return no files, because a simulated job has no output."""
        return []

    def work_files(self, placed: Collection[str]) -> list[str]:
        """Return no files, because a simulated job writes none."""
        return []

    def stop(self, grace_s: float = 5.0) -> None:
        """Do nothing."""

    def renew(self, lease_s: float) -> None:
        """Do nothing, because a simulated job has no lease."""

    def remove(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""

    def _advance(self) -> Run:
        self._run.advance(self._clock.now() - self._started_s)
        return self._run
