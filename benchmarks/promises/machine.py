"""Measures the state of the machine: its speed in a fixed loop on all cores, and its load.

A figure from a slow or busy machine shows more about the machine than about Paceline.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

# One process per core runs this loop for a quarter of a second and prints the iterations per second.
_LOOP = """
import time
began = time.perf_counter()
rounds = 0
while time.perf_counter() - began < 0.25:
    sum(range(2000))
    rounds += 1
print(rounds / (time.perf_counter() - began))
"""

_MIN_IDLE_CORES = 0.2


@dataclass(frozen=True)
class State:
    """The iterations of the fixed loop per second on all cores together, and the load average."""

    speed: float
    load: float
    at_s: float

    def to_dict(self) -> dict[str, Any]:
        """Return the state as JSON-safe values."""
        return asdict(self)


def measure() -> State:
    """Run the fixed loop on every core for a quarter of a second."""
    load = os.getloadavg()[0]
    command = [sys.executable, "-I", "-S", "-c", _LOOP]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(cores())]
    speed = sum(float(process.communicate(timeout=60)[0]) for process in running)
    return State(speed, load, time.time())


def cores() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0))


def idle_core_s() -> float:
    """Return the idle CPU time of this machine since boot in core-seconds."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()
    return (int(fields[4]) + int(fields[5])) / os.sysconf("SC_CLK_TCK")


def busy_excuse(too_few_cores: bool, idle_cores: float) -> str:
    """Return why a job with too few cores does not count: fewer than 0.2 cores were idle. "" if it counts.

    >>> busy_excuse(True, idle_cores=0.01), busy_excuse(True, idle_cores=1.0)
    ('the machine had 0.01 idle cores', '')
    """
    return f"the machine had {idle_cores:.2f} idle cores" if too_few_cores and idle_cores < _MIN_IDLE_CORES else ""


def describe(state: dict[str, Any], best_speed: float) -> str:
    """Return a state as text, with the speed in percent of the best speed seen.

    >>> describe({"speed": 45.0, "load": 1.234, "at_s": 0}, 50.0)
    '90 % load 1.2'
    """
    return f"{100 * state['speed'] / best_speed:.0f} % load {state['load']:.1f}"
