"""Computes the utilization of machines from readings of their usage. Used by ``bench``."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from paceline.fleet import Machine
from paceline.runtime import Usage

_RESOLUTION_S = 0.1
_REFERENCE_EVERY_S = 0.25
_PERCENTILE = 95  # for node states and execution times, as in the paper


class Gauge(Protocol):
    """Reads a machine's usage: :class:`paceline.fleet.usage.EngineUsage`, or an emulated device."""

    def read(self) -> Usage:
        """Return the cumulative CPU time, the memory in use and the time of the reading."""


@dataclass(frozen=True)
class Utilization:
    """A machine's CPU utilization (mean and 95th percentile) and maximum memory use, as fractions of its capacity."""

    mean_cpu: float
    p95_cpu: float
    max_memory: float

    @classmethod
    def from_readings(cls, readings: Sequence[Usage], machine: Machine) -> Utilization:
        """Compute the utilization from successive readings."""
        rates = [
            (after.cpu_s - before.cpu_s) / (after.measured_s - before.measured_s) / machine.cores
            for before, after in pairwise(readings)
            if after.measured_s > before.measured_s
        ]
        passed_s = readings[-1].measured_s - readings[0].measured_s
        mean = (readings[-1].cpu_s - readings[0].cpu_s) / passed_s if passed_s > 0 else 0.0
        memory = max(reading.memory_bytes for reading in readings) / (machine.memory_gib * 2**30)
        p95 = percentile(rates) if rates else 0.0
        return cls(min(mean / machine.cores, 1.0), min(p95, 1.0), min(memory, 1.0))


def measure_utilization(
    machines: Sequence[Machine],
    gauges: Mapping[str, Gauge],
    for_s: float,
    *,
    every_s: float = 1.0,
    reference: Callable[[str], float] | None = None,
) -> tuple[dict[str, Utilization], dict[str, float]]:
    """Measure the machines' utilization over ``for_s`` seconds, and the mean of ``reference(machine name)``."""
    readings: dict[str, list[Usage]] = {machine.name: [] for machine in machines}
    reference_s: dict[str, list[float]] = {machine.name: [] for machine in machines}
    with ThreadPoolExecutor(len(machines)) as pool:  # read in parallel, because an engine may take a second to respond

        def read() -> None:
            for name, usage in zip(readings, pool.map(lambda name: gauges[name].read(), readings), strict=True):
                readings[name].append(usage)

        read()
        end_s = time.monotonic() + for_s
        while (now_s := time.monotonic()) < end_s - _RESOLUTION_S / 2:
            next_s = now_s + min(every_s, end_s - now_s)
            while reference is not None and time.monotonic() + _REFERENCE_EVERY_S < next_s:
                for name, times_s in reference_s.items():
                    times_s.append(reference(name))
                time.sleep(_REFERENCE_EVERY_S)
            time.sleep(max(next_s - time.monotonic(), 0.0))
            read()
    utilization = {machine.name: Utilization.from_readings(readings[machine.name], machine) for machine in machines}
    return utilization, {name: statistics.fmean(times_s) for name, times_s in reference_s.items() if times_s}


def percentile(values: Sequence[float], percent: float = _PERCENTILE) -> float:
    """Return a percentile, interpolated linearly between two values. Return NaN if there are no values.

    >>> percentile([1.0, 2.0, 3.0], 50), percentile([1.0, 2.0], 75)
    (2.0, 1.75)
    """
    import numpy as np

    return float(np.percentile(values, percent)) if values else math.nan
