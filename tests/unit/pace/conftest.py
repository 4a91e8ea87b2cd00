"""A simulated job on a simulated clock: what waits in real life moves the clock here, so nothing sleeps."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

import pytest

from paceline.errors import JobLostError, RuntimeUnavailableError
from paceline.runtime.base import JobStatus, Usage
from paceline.train.progress import Progress


class SimulatedClock:
    def __init__(self, now_s: float = 1_900_000_000.0) -> None:
        self.now_s = now_s

    def now(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


class SimulatedJob:
    """A job of ``batches`` equal batches that needs ``core_s`` core-seconds, at a speed of ``devices ** scaling``."""

    id = "simulated"

    def __init__(
        self,
        clock: SimulatedClock,
        *,
        core_s: float,
        devices: float = 1.0,
        batches: int = 3000,
        start_up_s: float = 2.0,
        tail_s: float = 0.5,
        scaling: float = 0.9,
        noise: float = 0.0,
        slowdown: Callable[[float], float] = lambda t_s: 1.0,
        exit_code: int = 0,
        seed: int = 0,
    ) -> None:
        self.clock, self.batches, self.devices = clock, batches, devices
        self._work_s, self._scaling, self._noise, self._slowdown = core_s, scaling, noise, slowdown
        self._random = random.Random(seed)
        self._began_s = clock.now()
        self._first_batch_s = self._began_s + start_up_s
        self._tail_s = tail_s
        self._exit_code = exit_code
        self._done = 0.0
        self._lines: list[str] = []
        self._last_line_s = float("-inf")
        self._finished_s: float | None = None
        self.away_between: tuple[float, float] = (0.0, 0.0)
        self.killed_by_outage = False
        self.gone = False
        self.resizes: list[tuple[float, float]] = []
        self.restarted = self.stopped = 0
        self.at: list[tuple[float, Callable[[], None]]] = []

    @property
    def elapsed_s(self) -> float:
        return self.clock.now() - self._began_s

    def say(self, *lines: str) -> None:
        self._lines.extend(lines)

    def read_lines(self) -> list[str]:
        lines, self._lines = self._lines, []
        return [] if self._away() else lines

    def wait(self, timeout_s: float) -> bool:
        end_s = self.clock.now() + timeout_s
        while self.clock.now() < end_s - 1e-9:
            if self._over() and not self._away():
                return True
            self._advance(min(0.05, end_s - self.clock.now()))
        if self._away():
            raise RuntimeUnavailableError("no engine")
        return self._over()

    def resize(self, devices: float) -> None:
        if self._away():
            raise RuntimeUnavailableError("no engine")
        if self._over() and not self.stopped > self.restarted:  # a stopped job has its share when it goes on
            raise JobLostError("not running")
        self.devices = devices
        self.resizes.append((self.elapsed_s, devices))

    def status(self) -> JobStatus:
        if self._away():
            raise RuntimeUnavailableError("no engine")
        if self.gone:
            return JobStatus("gone")
        if self._finished_s is not None and self.clock.now() >= self._finished_s:
            return JobStatus("exited", self._exit_code, self._began_s, self._finished_s)
        return JobStatus("running", started_s=self._began_s)

    def usage(self) -> Usage:
        return Usage(0.0, 0, 0.0)

    def restart(self) -> None:
        self.restarted += 1
        self._finished_s = None
        self._exit_code = 0
        self._done = float(int(self._done * 0.8))  # the last checkpoint was a while ago
        self._report("start")

    def collect(self, destination: Path) -> None: ...

    def stop(self, grace_s: float = 5.0) -> None:
        if self._away():
            raise RuntimeUnavailableError("no engine")
        if not self._over():
            self.stopped += 1
            self.kill(143)

    def remove(self) -> None: ...

    def close(self) -> None: ...

    def kill(self, exit_code: int = 137) -> None:
        self._finished_s, self._exit_code = self.clock.now(), exit_code

    def _away(self) -> bool:
        return self.away_between[0] <= self.elapsed_s < self.away_between[1]

    def _over(self) -> bool:
        return self.gone or (self._finished_s is not None and self.clock.now() >= self._finished_s)

    def _advance(self, dt_s: float) -> None:
        before_s = self.clock.now()
        self.clock.sleep(dt_s)
        for due_s, action in list(self.at):
            if self.elapsed_s >= due_s:
                self.at.remove((due_s, action))
                action()
        if self._finished_s is not None or before_s < self._first_batch_s or self._done >= self.batches:
            return
        if self._last_line_s == float("-inf"):
            self._report("start")
        speed = self.batches / self._work_s * self.devices**self._scaling * self._slowdown(self.elapsed_s)
        self._done += speed * dt_s * (1 + self._random.gauss(0, self._noise) if self._noise else 1)
        if self._done >= self.batches:
            self._done = self.batches
            self._finished_s = self.clock.now() + self._tail_s
            self._report("finish")
        elif self.clock.now() - self._last_line_s >= 0.2:
            self._report("progress")

    def _report(self, event: str) -> None:
        self._last_line_s = self.clock.now()
        line = Progress(int(self._done), self.batches, event=event, wall_s=self.clock.now()).to_line()
        self._lines.append(line)


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture
def origin(clock: SimulatedClock) -> datetime:
    return datetime.fromtimestamp(clock.now(), tz=timezone.utc)


@pytest.fixture
def make_job(clock: SimulatedClock) -> Callable[..., SimulatedJob]:
    def make(**options: object) -> SimulatedJob:
        return SimulatedJob(clock, **options)  # type: ignore[arg-type]

    return make
