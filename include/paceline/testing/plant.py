"""A simulated training job, whose batch durations depend on the devices and on disturbances.

The simulation takes no real time. Tests and benchmarks control the job with the same controllers as real jobs.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass


def amdahl(serial: float) -> Callable[[float], float]:
    """Return Amdahl's speed-up for a serial fraction, as a function of the devices. Below one device, it is linear.

    >>> [round(amdahl(0.1)(devices), 2) for devices in (0.5, 1.0, 2.0, 8.0)]
    [0.5, 1.0, 1.82, 4.71]
    """
    return lambda devices: devices if devices <= 1 else 1 / (serial + (1 - serial) / devices)


_REPORT_EVERY_S = 0.2  # a trainer reports at most five times a second
_MOSTLY_PARALLEL = amdahl(0.1)
FORECAST_SD = 0.3
"""Relative standard deviation of a pause about the job's forecast of it."""


@dataclass(frozen=True)
class Neighbour:
    """Another application on the machine, which temporarily reduces the job's speed by the fraction ``speed_loss``."""

    from_s: float
    until_s: float
    speed_loss: float


@dataclass(frozen=True)
class Plant:
    """Properties of a simulated job and its environment.

    Parameters
    ----------
    batches:
        Number of batches in all epochs.
    batch_s:
        Seconds for one batch on one device.
    speedup:
        Speed-up as a function of the devices.
    startup_s, tail_s:
        Seconds before the first batch and after the last batch, on any number of devices.
    save_s:
        Duration of a checkpoint that the job reports; included in ``tail_s``. ``None`` if the job reports none.
    epochs, pause_s:
        Each epoch ends with a pause of ``pause_s`` seconds, for example a validation.
    forecast_pause_s:
        Duration of a pause that the job forecasts before the first pause; 0 if the job makes no forecast.
    noise:
        Relative standard deviation of a batch's duration.
    neighbours:
        Other applications that slow the job down for a time.
    throttling:
        Fraction of the speed lost on a fractional allocation above one device, because threads wait for each other.
    resize_s:
        Seconds until a new allocation takes effect.
    resize_pause_s:
        Seconds without training at each resize, in which a job on GPUs writes a checkpoint, resizes and resumes.
    stops_at:
        Batch after which the job stops early, unknown to the controller in advance.
    usable_devices:
        Maximum number of devices that the job can use, because its threads wait for each other.
    """

    batches: int
    batch_s: float
    speedup: Callable[[float], float] = _MOSTLY_PARALLEL
    startup_s: float = 0.0
    tail_s: float = 0.0
    save_s: float | None = None
    epochs: int = 1
    pause_s: float = 0.0
    forecast_pause_s: float = 0.0
    noise: float = 0.0
    neighbours: Sequence[Neighbour] = ()
    throttling: float = 0.0
    resize_s: float = 0.0
    resize_pause_s: float = 0.0
    stops_at: int | None = None
    usable_devices: float = math.inf

    def speed(self, devices: float, now_s: float) -> float:
        """Return the batches per second on ``devices`` at ``now_s``, without noise."""
        devices = min(devices, self.usable_devices)
        speed = self.speedup(devices) / self.batch_s
        if self.throttling and devices > 1 and devices != int(devices):
            speed *= 1 - self.throttling
        for neighbour in self.neighbours:
            if neighbour.from_s <= now_s < neighbour.until_s:
                speed *= 1 - neighbour.speed_loss
        return speed

    def shortest_s(self, devices: float) -> float:
        """Return the duration of the whole job on ``devices``, without noise, neighbours or an early stop.

        >>> Plant(batches=100, batch_s=1.0, startup_s=3.0, tail_s=1.0).shortest_s(1.0)
        104.0
        """
        training_s = self.batches / Plant.speed(self._without_disturbances(), devices, 0.0)
        return self.startup_s + training_s + self.epochs * self.pause_s + self.tail_s

    def _without_disturbances(self) -> Plant:
        usable = self.usable_devices
        return Plant(self.batches, self.batch_s, self.speedup, throttling=self.throttling, usable_devices=usable)


class Run:
    """One simulated run of a job.

    Parameters
    ----------
    plant:
        Properties of the job.
    devices:
        Initial allocation.
    seed:
        Seed of the noise.

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
        self.used_s = 0.0  # device-seconds used
        self.trained_s: float | None = None  # time at the end of the last batch
        self.finished_s: float | None = None
        self._random = random.Random(seed)  # noqa: S311 - a simulation, no secret
        self._pending_devices = devices
        self._pending_from_s = 0.0
        self._idle_until_s = plant.startup_s
        self._batch_work_left = self._draw_batch_work()  # fraction of the current batch
        self._pause_until_s = self._resized_s = 0.0
        self.reported: tuple[int, float] | None = None  # batches done and time of the last report
        self._last = plant.batches if plant.stops_at is None else min(plant.stops_at, plant.batches)
        self._epoch = max(1, plant.batches // plant.epochs)
        self._changes = sorted({change_s for one in plant.neighbours for change_s in (one.from_s, one.until_s)})

    @property
    def total(self) -> int:
        """Total number of batches known to the controller; decreases when the job stops early."""
        return self.plant.batches if self.trained_s is None else self._last

    @property
    def busy(self) -> float:
        """Fraction of the allocation that the job keeps busy. Start-up and tail are single-threaded."""
        usable = self.plant.usable_devices if self.reported and self.trained_s is None else 1.0
        return min(1.0, usable / self.devices) if self.devices > 0 else 0.0

    @property
    def in_pause(self) -> bool:
        """Whether the job is in the pause at the end of an epoch."""
        return self.now_s < self._pause_until_s

    @property
    def resizing(self) -> bool:
        """Whether a new allocation is pending, or has interrupted the job."""
        return self._pending_devices != self.devices or self.now_s < self._resized_s

    @property
    def resize_s(self) -> float | None:
        """How long the last resize has interrupted the job, in seconds; ``None`` before a resize that has."""
        return self.plant.resize_pause_s if 0 < self._resized_s <= self.now_s else None

    def pauses_left_s(self, *, known: bool) -> float:
        """Return the seconds of pauses to come. Unless ``known``, estimate them from past pauses or the forecast."""
        epochs_done = self.done // self._epoch
        if self.trained_s is not None:
            return 0.0
        each_s = self.plant.pause_s if known or epochs_done else self.plant.forecast_pause_s
        left_s = (self.plant.epochs - epochs_done) * each_s
        return left_s + max(self._pause_until_s - self.now_s, 0.0)

    def pause_sd_s(self, *, known: bool) -> float:
        """Return the standard deviation of the last pause, of which the job has only a forecast before its first."""
        return 0.0 if known or self.done >= self._epoch else FORECAST_SD * self.plant.forecast_pause_s

    def resize(self, devices: float) -> None:
        """Change the allocation; the change takes effect after ``resize_s``."""
        if devices != self._pending_devices:
            self._pending_devices = devices
            self._pending_from_s = self.now_s + self.plant.resize_s

    def advance(self, until_s: float) -> None:
        """Simulate until ``until_s`` or the end of the job."""
        while self.now_s < until_s and self.finished_s is None:
            from_s = self.now_s
            next_s = min([until_s, *(change_s for change_s in self._changes if change_s > self.now_s)])
            if self._pending_devices != self.devices:
                if self.now_s >= self._pending_from_s:
                    self.devices = self._pending_devices
                    if self.plant.resize_pause_s:
                        self._idle_until_s = max(self._idle_until_s, self.now_s) + self.plant.resize_pause_s
                        self._resized_s = self._idle_until_s
                else:
                    next_s = min(next_s, self._pending_from_s)
            in_use = self.busy * self.devices
            if self._idle_until_s > self.now_s:
                self.now_s = min(next_s, self._idle_until_s)
            elif self.trained_s is None:
                self._train(next_s)
            self.used_s += in_use * (self.now_s - from_s)
            if self.trained_s is not None and self.now_s >= self._idle_until_s:
                self.finished_s = self.now_s

    def _train(self, until_s: float) -> None:
        if self.reported is None:
            self.reported = (0, self.now_s)
        speed = self.plant.speed(self.devices, self.now_s)
        while self.now_s < until_s:
            ends_s = self.now_s + self._batch_work_left / speed if speed > 0 else float("inf")
            if ends_s > until_s:
                self._batch_work_left -= (until_s - self.now_s) * speed
                self.now_s = until_s
                return
            self.now_s = ends_s
            self.done += 1
            self._batch_work_left = self._draw_batch_work()
            if self.plant.pause_s and self.done % self._epoch == 0:
                self._idle_until_s = self._pause_until_s = self.now_s + self.plant.pause_s
            ended = self.done >= self._last
            if ended or self.reported is None or ends_s - self.reported[1] >= _REPORT_EVERY_S:
                self.reported = (self.done, ends_s)
            if ended:
                self.trained_s = self.now_s
                self._idle_until_s = max(self._idle_until_s, self.now_s) + self.plant.tail_s
                return
            if self._idle_until_s > self.now_s:
                return

    def _draw_batch_work(self) -> float:
        return max(0.05, self._random.gauss(1.0, self.plant.noise)) if self.plant.noise else 1.0
