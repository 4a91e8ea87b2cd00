"""How busy machines are for a while, from readings of what they use. For ``bench``."""

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
from paceline.runtime.base import Usage

_LOOK_S = 0.1
_REFERENCE_EVERY_S = 0.25
_PERCENTILE = 95  # of node states and execution times, as in the paper


class Gauge(Protocol):
    """Reads what a machine uses: :class:`paceline.fleet.usage.EngineUsage`, or an emulated device."""

    def read(self) -> Usage:
        """CPU time since any moment, memory now, and when."""


@dataclass(frozen=True)
class Seen:
    """What was seen of a machine, as shares of what it has: CPU on average, its 95th percentile, the most memory."""

    mean_cpu: float
    high_cpu: float
    most_memory: float

    @classmethod
    def of(cls, readings: Sequence[Usage], machine: Machine) -> Seen:
        """From readings one after the other."""
        shares = [
            (after.cpu_s - before.cpu_s) / (after.measured_s - before.measured_s) / machine.cores
            for before, after in pairwise(readings)
            if after.measured_s > before.measured_s
        ]
        passed_s = readings[-1].measured_s - readings[0].measured_s
        whole = (readings[-1].cpu_s - readings[0].cpu_s) / passed_s if passed_s > 0 else 0.0
        most = max(reading.memory_bytes for reading in readings) / (machine.memory_gib * 2**30)
        high = percentile(shares) if shares else 0.0
        return cls(min(whole / machine.cores, 1.0), min(high, 1.0), min(most, 1.0))


def watch(
    machines: Sequence[Machine],
    gauges: Mapping[str, Gauge],
    for_s: float,
    *,
    every_s: float = 1.0,
    reference: Callable[[str], float] | None = None,
) -> tuple[dict[str, Seen], dict[str, float]]:
    """Read what machines use every now and then; also the mean of each one's reference, which is measured meanwhile."""
    readings: dict[str, list[Usage]] = {machine.name: [] for machine in machines}
    reference_s: dict[str, list[float]] = {machine.name: [] for machine in machines}
    with ThreadPoolExecutor(len(machines)) as pool:  # an engine may take a second to answer

        def read() -> None:
            for name, usage in zip(readings, pool.map(lambda name: gauges[name].read(), readings), strict=True):
                readings[name].append(usage)

        read()
        end_s = time.monotonic() + for_s
        while (now_s := time.monotonic()) < end_s - _LOOK_S / 2:
            next_s = now_s + min(every_s, end_s - now_s)
            while reference is not None and time.monotonic() + _REFERENCE_EVERY_S < next_s:
                for name, taken_s in reference_s.items():
                    taken_s.append(reference(name))
                time.sleep(_REFERENCE_EVERY_S)
            time.sleep(max(next_s - time.monotonic(), 0.0))
            read()
    seen = {machine.name: Seen.of(readings[machine.name], machine) for machine in machines}
    return seen, {name: statistics.fmean(taken_s) for name, taken_s in reference_s.items() if taken_s}


def percentile(values: Sequence[float], percent: float = _PERCENTILE) -> float:
    """A percentile between the two values next to it; NaN of no values.

    >>> percentile([1.0, 2.0, 3.0], 50), percentile([1.0, 2.0], 75)
    (2.0, 1.75)
    """
    import numpy as np

    return float(np.percentile(values, percent)) if values else math.nan
