"""A simulated job behind the protocol of real ones, so that whole control loops run on it. Benchmarks use it."""

from __future__ import annotations

from pathlib import Path

from paceline.errors import JobLostError
from paceline.run.clock import Clock
from paceline.runtime.base import JobStatus, Usage
from paceline.testing.plant import Plant, Run
from paceline.train.progress import Progress


class SimulatedJob:
    """A job of a plant that runs on a clock: the machine's own, or one that tests move.

    Parameters
    ----------
    plant:
        What it is made of.
    devices:
        What it holds at the start.
    clock:
        The time.
    seed:
        Of the plant's noise.
    """

    def __init__(self, plant: Plant, devices: float, clock: Clock, seed: int = 0) -> None:
        self.id = f"simulated-{seed}"
        self._run = Run(plant, devices, seed)
        self._clock = clock
        self._began_s = clock.now()
        self._told: tuple[int, float] | None = None

    def read_lines(self) -> list[str]:
        """The newest progress line, if there is news."""
        run = self._advance()
        if run.reported is None or run.reported == self._told:
            return []
        event = "start" if self._told is None else "progress" if run.trained_s is None else "finish"
        self._told = run.reported
        done, done_s = run.reported
        return [Progress(done, max(run.total, done), event=event, wall_s=self._began_s + done_s).to_line()]

    def wait(self, timeout_s: float) -> bool:
        """Let ``timeout_s`` pass; returns whether the job has ended by then."""
        if self._advance().finished_s is None and timeout_s > 0:
            self._clock.sleep(timeout_s)
        return self._advance().finished_s is not None

    def resize(self, devices: float) -> None:
        """Give the job ``devices`` from now on."""
        if self._advance().finished_s is not None:
            raise JobLostError("the job has ended")
        self._run.resize(devices)

    def status(self) -> JobStatus:
        """Running, or ended well."""
        finished_s = self._advance().finished_s
        if finished_s is None:
            return JobStatus("running", started_s=self._began_s)
        return JobStatus("exited", 0, self._began_s, self._began_s + finished_s)

    def usage(self) -> Usage:
        """What it has used."""
        run = self._advance()
        return Usage(run.used_s, 0, run.now_s)

    def restart(self) -> None:
        """A simulated job does not die."""
        raise NotImplementedError

    def collect(self, destination: Path) -> list[str]:
        """It leaves nothing."""
        return []

    def stop(self, grace_s: float = 5.0) -> None:
        """It holds nothing."""

    def remove(self) -> None:
        """It holds nothing."""

    def close(self) -> None:
        """It holds nothing."""

    def _advance(self) -> Run:
        self._run.advance(self._clock.now() - self._began_s)
        return self._run
