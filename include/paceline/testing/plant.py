"""A training job as physics: batches that take longer on fewer devices, and all that disturbs them.

No real time passes. Tests and benchmarks steer it with the same controllers as real jobs.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass


def amdahl(serial: float) -> Callable[[float], float]:
    """Speed-up of work of which a share is serial, as a function of the devices; in proportion below one device.

    >>> [round(amdahl(0.1)(devices), 2) for devices in (0.5, 1.0, 2.0, 8.0)]
    [0.5, 1.0, 1.82, 4.71]
    """
    return lambda devices: devices if devices <= 1 else 1 / (serial + (1 - serial) / devices)


_REPORT_EVERY_S = 0.2  # a trainer reports at most five times a second
_MOSTLY_PARALLEL = amdahl(0.1)


@dataclass(frozen=True)
class Neighbour:
    """Somebody else on the machine, who takes the share ``takes`` of the job's speed between two moments."""

    from_s: float
    until_s: float
    takes: float


@dataclass(frozen=True)
class Plant:
    """What a job is made of, and where it runs.

    Parameters
    ----------
    batches:
        Batches in all epochs.
    batch_s:
        Seconds for one batch on one device.
    speedup:
        Speed on so many devices, compared with one.
    startup_s, tail_s:
        Seconds before the first batch and after the last, whatever the devices.
    save_s:
        Reported duration of a checkpoint, which is a part of ``tail_s``; ``None`` if the job reports none.
    epochs, pause_s:
        Each epoch ends with a pause of ``pause_s`` seconds, for a validation, say.
    expects_s:
        The job's forecast of a pause before the first one; 0 if it has none.
    noise:
        Standard deviation of a batch's time as a share of it.
    neighbours:
        Who interferes, and when.
    throttling:
        Share of the speed lost where threads wait for each other: on more than one device, but not on a whole number.
    resize_s:
        Seconds until a new allocation is in force.
    resize_pause_s:
        Seconds that the job stands still for it (a job on GPUs saves, changes and goes on).
    stops_at:
        The batch after which the job stops early, unknown before.
    keeps_busy:
        The most devices that it uses, however many it holds: threads wait for each other.
    """

    batches: int
    batch_s: float
    speedup: Callable[[float], float] = _MOSTLY_PARALLEL
    startup_s: float = 0.0
    tail_s: float = 0.0
    save_s: float | None = None
    epochs: int = 1
    pause_s: float = 0.0
    expects_s: float = 0.0
    noise: float = 0.0
    neighbours: Sequence[Neighbour] = ()
    throttling: float = 0.0
    resize_s: float = 0.0
    resize_pause_s: float = 0.0
    stops_at: int | None = None
    keeps_busy: float = math.inf

    def speed(self, devices: float, now_s: float) -> float:
        """Batches a second on ``devices`` at a moment, without noise."""
        devices = min(devices, self.keeps_busy)
        speed = self.speedup(devices) / self.batch_s
        if self.throttling and devices > 1 and devices != int(devices):
            speed *= 1 - self.throttling
        for neighbour in self.neighbours:
            if neighbour.from_s <= now_s < neighbour.until_s:
                speed *= 1 - neighbour.takes
        return speed

    def shortest_s(self, devices: float) -> float:
        """How long the whole job takes on so many devices, without noise, neighbours and early stop.

        >>> Plant(batches=100, batch_s=1.0, startup_s=3.0, tail_s=1.0).shortest_s(1.0)
        104.0
        """
        training_s = self.batches / Plant.speed(self._undisturbed(), devices, 0.0)
        return self.startup_s + training_s + self.epochs * self.pause_s + self.tail_s

    def _undisturbed(self) -> Plant:
        return Plant(self.batches, self.batch_s, self.speedup, throttling=self.throttling, keeps_busy=self.keeps_busy)


class Run:
    """One job of a plant, on its way.

    Parameters
    ----------
    plant:
        The job.
    devices:
        What it holds at the start.
    seed:
        Of the noise.

    Examples
    --------
    >>> run = Run(Plant(batches=100, batch_s=1.0, startup_s=3.0), devices=1.0)
    >>> run.advance(13.0)
    >>> run.done
    10
    >>> run.resize(0.5)
    >>> run.advance(1000.0)
    >>> run.finished_s
    193.0
    """

    def __init__(self, plant: Plant, devices: float, seed: int = 0) -> None:
        self.plant = plant
        self.devices = devices
        self.now_s = 0.0
        self.done = 0
        self.used_s = 0.0  # device-seconds that it used
        self.trained_s: float | None = None  # when the last batch was done
        self.finished_s: float | None = None
        self._random = random.Random(seed)  # noqa: S311 - a simulation, no secret
        self._wanted = devices
        self._wanted_from_s = 0.0
        self._idle_until_s = plant.startup_s
        self._left = self._work()  # of the batch under way, in batches
        self._pause_until_s = self._resized_s = 0.0
        # Batches done, and when, as last reported; None until training has begun.
        self.reported: tuple[int, float] | None = None
        self._last = plant.batches if plant.stops_at is None else min(plant.stops_at, plant.batches)
        self._epoch = max(1, plant.batches // plant.epochs)
        self._changes = sorted({moment for each in plant.neighbours for moment in (each.from_s, each.until_s)})

    @property
    def total(self) -> int:
        """Batches in all as far as is known: less once the job has stopped early."""
        return self.plant.batches if self.trained_s is None else self._last

    @property
    def busy(self) -> float:
        """The share of its devices that it uses."""
        return min(1.0, self.plant.keeps_busy / self.devices) if self.devices > 0 else 0.0

    @property
    def resting(self) -> bool:
        """Whether the job stands still at the end of an epoch."""
        return self.now_s < self._pause_until_s

    @property
    def resizing(self) -> bool:
        """Whether a new allocation is not in force yet, or the job stands still for it."""
        return self._wanted != self.devices or self.now_s < self._resized_s

    def pauses_left_s(self, *, known: bool) -> float:
        """Seconds of pauses still to come; if they are not ``known`` yet, as far as the pauses so far tell."""
        epochs_done = self.done // self._epoch
        if self.trained_s is not None:
            return 0.0
        each_s = self.plant.pause_s if known or epochs_done else self.plant.expects_s
        left_s = (self.plant.epochs - epochs_done) * each_s
        return left_s + max(self._pause_until_s - self.now_s, 0.0)

    def resize(self, devices: float) -> None:
        """Give the job ``devices``; in force ``resize_s`` later."""
        if devices != self._wanted:
            self._wanted = devices
            self._wanted_from_s = self.now_s + self.plant.resize_s

    def advance(self, until_s: float) -> None:
        """Let the job run until a moment, or to its end if that comes first."""
        while self.now_s < until_s and self.finished_s is None:
            from_s = self.now_s
            next_s = min([until_s, *(moment for moment in self._changes if moment > self.now_s)])
            if self._wanted != self.devices:
                if self.now_s >= self._wanted_from_s:
                    self.devices = self._wanted
                    if self.plant.resize_pause_s:
                        self._idle_until_s = max(self._idle_until_s, self.now_s) + self.plant.resize_pause_s
                        self._resized_s = self._idle_until_s
                else:
                    next_s = min(next_s, self._wanted_from_s)
            using = self.busy * self.devices
            if self._idle_until_s > self.now_s:
                self.now_s = min(next_s, self._idle_until_s)
            elif self.trained_s is None:
                self._train(next_s)
            self.used_s += using * (self.now_s - from_s)
            if self.trained_s is not None and self.now_s >= self._idle_until_s:
                self.finished_s = self.now_s

    def _train(self, until_s: float) -> None:
        if self.reported is None:
            self.reported = (0, self.now_s)
        speed = self.plant.speed(self.devices, self.now_s)
        while self.now_s < until_s:
            ends_s = self.now_s + self._left / speed if speed > 0 else float("inf")
            if ends_s > until_s:
                self._left -= (until_s - self.now_s) * speed
                self.now_s = until_s
                return
            self.now_s = ends_s
            self.done += 1
            self._left = self._work()
            if self.plant.pause_s and self.done % self._epoch == 0:
                self._idle_until_s = self._pause_until_s = self.now_s + self.plant.pause_s
            over = self.done >= self._last
            if over or self.reported is None or ends_s - self.reported[1] >= _REPORT_EVERY_S:
                self.reported = (self.done, ends_s)
            if over:
                self.trained_s = self.now_s
                self._idle_until_s = max(self._idle_until_s, self.now_s) + self.plant.tail_s
                return
            if self._idle_until_s > self.now_s:
                return

    def _work(self) -> float:
        return max(0.05, self._random.gauss(1.0, self.plant.noise)) if self.plant.noise else 1.0
