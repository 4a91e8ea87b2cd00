"""Generates random simulated jobs to evaluate controllers. Used by tests and benchmarks."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace

from paceline.control import PastRun, PastTail
from paceline.testing.plant import FORECAST_SD, Neighbour, Plant, Run, amdahl


@dataclass(frozen=True)
class Case:
    """A job with its maximum allocation, its deadline, and its new deadlines by the time at which each takes effect."""

    plant: Plant
    max_devices: float
    deadline_s: float
    new_deadlines: Mapping[float, float]
    seed: int

    def with_reports(self, *, validation: bool) -> Case:
        """Add noisy trainer reports: the checkpoint duration, and with ``validation`` a forecast of pauses."""
        reported = random.Random(self.seed + 1)  # noqa: S311 - a simulation, no secret
        plant = self.plant
        assert plant.save_s is not None
        plant = replace(plant, save_s=plant.save_s * math.exp(reported.gauss(0, 0.1)))
        forecast_pause_s = plant.pause_s * math.exp(reported.gauss(0, FORECAST_SD)) if validation else 0.0
        return replace(self, plant=replace(plant, forecast_pause_s=forecast_pause_s))

    def past_run(self, *, speed_sd: float) -> PastRun:
        """Return the measurements of an earlier run, whose speed differs randomly (log-normal, ``speed_sd``).

        Set ``speed_sd`` to 0 for the same task, and higher for a run of another task with other data or machines.
        """
        other = random.Random(self.seed + 2)  # noqa: S311 - a simulation, no secret
        plant, devices = self.plant, self.max_devices
        return PastRun(
            batches=plant.batches,
            startup_s=plant.startup_s * math.exp(other.gauss(0, speed_sd / 3)),
            tail_s=plant.tail_s * math.exp(other.gauss(0, speed_sd / 3)),
            devices=devices,
            batches_per_s=plant.speed(devices, 0.0) * math.exp(other.gauss(0, speed_sd)),
            exponent=0.85,
            pauses_s=plant.epochs * plant.pause_s * math.exp(other.gauss(0, speed_sd / 3)),
            epochs=plant.epochs,
            save_s=plant.save_s,
            related=speed_sd > 0,
        )

    def best_constant(self, quantum: float = 0.05) -> float | None:
        """Return the device-seconds of the smallest constant allocation that meets the deadline, or ``None``."""
        low, high = 2, round(self.max_devices / quantum)
        if self._finished_s(high * quantum) is None:
            return None
        while low < high:
            middle = (low + high) // 2
            if self._finished_s(middle * quantum) is None:
                low = middle + 1
            else:
                high = middle
        finished_s = self._finished_s(low * quantum)
        return None if finished_s is None else low * quantum * finished_s

    def _finished_s(self, devices: float) -> float | None:
        run = Run(self.plant, devices, self.seed)
        run.advance(self.deadline_s)
        return run.finished_s


def random_tail(rng: random.Random, most_s: float = math.inf) -> PastTail:
    """Return a tail of 0.1 to 4 s, or at most ``most_s``, and an independent duration of a checkpoint."""
    return PastTail(min(_log_uniform(rng, 0.1, 4.0), most_s), _log_uniform(rng, 0.05, 3.0))


def random_case(seed: int, *, foretold: bool = True) -> Case:
    """Return a job of 30 s to 10 h on 1 to 16 devices, with a deadline of 1.1 to 3 times its shortest time.

    The job has 1, 5 or 20 epochs, with validations of up to 3 % of its shortest time in all. Of all jobs, 50 % have
    neighbours, and 40 % have a deadline change. If its tail is ``foretold``, it consists of the final checkpoint, a
    model file and the exit, as measured with real jobs: the job exits 0.2 to 0.6 s after it has written the model
    file. Otherwise, the tail is that of ``random_tail``.

    >>> case = random_case(1)
    >>> case.deadline_s >= 1.1 * case.plant.shortest_s(case.max_devices)
    True
    """
    rng = random.Random(seed)  # noqa: S311 - a simulation, no secret
    shortest_s, max_devices = _log_uniform(rng, 30.0, 36_000.0), rng.choice([1.0, 2.0, 4.0, 8.0, 16.0])
    startup_s = _log_uniform(rng, 1.0, 12.0)
    tail_s, save_s = random_tail(rng)
    assert save_s is not None
    if foretold:
        tail_s = save_s + 0.4 * save_s * rng.uniform(0.5, 1.5) + rng.uniform(0.2, 0.6)
    epochs, speedup = rng.choice([1, 5, 20]), amdahl(rng.choice([0.02, 0.1, 0.3, 0.5]))
    pauses_s = rng.uniform(0.0, 0.03) * shortest_s
    training_s = shortest_s - startup_s - tail_s
    batch_s = min(max(_log_uniform(rng, 0.02, 3.0), shortest_s / 5000), shortest_s / 60)
    batches = max(int((training_s - pauses_s) * speedup(max_devices) / batch_s) // epochs, 1) * epochs
    d_c = rng.uniform(1.1, 3.0)
    neighbours = []
    for _ in range(rng.choice([0, 0, 1, 2]) if d_c > 1.4 else 0):
        from_s = rng.uniform(0.1, 1.0) * shortest_s
        neighbours.append(Neighbour(from_s, from_s + rng.uniform(0.05, 0.3) * shortest_s, rng.uniform(0.05, 0.25)))
    plant = Plant(
        batches,
        batch_s,
        speedup,
        startup_s=startup_s,
        tail_s=tail_s,
        save_s=save_s,
        epochs=epochs,
        pause_s=pauses_s / epochs,
        noise=rng.uniform(0.0, 0.1),
        neighbours=neighbours,
        throttling=rng.choice([0.0, 0.0, 0.1]),
        resize_s=rng.choice([0.0, 0.0, 0.5]),
    )
    deadline_s = d_c * plant.shortest_s(max_devices)
    moved_to = d_c * rng.uniform(0.75, 1.4)
    new_deadlines = {}
    if rng.random() < 0.4 and moved_to > (1.4 if neighbours else 1.2):
        new_deadlines = {rng.uniform(0.1, 0.5) * deadline_s: moved_to * plant.shortest_s(max_devices)}
    return Case(plant, max_devices, deadline_s, new_deadlines, seed)


def _log_uniform(rng: random.Random, low: float, high: float) -> float:
    return math.exp(rng.uniform(math.log(low), math.log(high)))
