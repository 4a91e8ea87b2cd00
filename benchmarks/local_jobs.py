"""Runs training as a local process under the control loop, without Airflow, and records its progress lines."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import psutil

from paceline.control import CPU_QUANTUM, Controller, Limits, PastRun, make_controller
from paceline.run import Exchange, Handover, History, MemoryState, PaceLoop, Surroundings
from paceline.runtime import JobSpec, ProcessRuntime
from paceline.train.progress import MARKER, parse_line

MIN_CORES = 0.1
_NO_DEADLINE_S = 1e4


def constant(cores: float) -> Controller:
    """Return a controller that keeps the allocation at ``cores``."""
    return make_controller("default", Limits(cores, cores, CPU_QUANTUM), _NO_DEADLINE_S)


def by_deadline(deadline_s: float, cores: float, past: PastRun | None = None) -> Controller:
    """Return a controller that ends training at ``deadline_s`` on at most ``cores``."""
    return make_controller("default", Limits(MIN_CORES, cores, CPU_QUANTUM), deadline_s, past=past)


def train(
    runtime: ProcessRuntime, spec: JobSpec, controller: Controller, past: PastRun | None = None
) -> dict[str, Any]:
    """Run ``spec`` under ``controller``, which chooses its allocation; return the result as JSON-safe values.

    ``past`` has the measurements of an earlier run, which the controller knows, too.
    """
    devices = controller.start(0.0)
    began, busy_s = datetime.now(timezone.utc), _busy_seconds()
    job = _RecordedJob(runtime.start(replace(spec, devices=devices)), devices)
    exchange, history = Exchange(MemoryState()), History()
    log = logging.getLogger("benchmarks.training")
    try:
        handover = Handover(began, devices, history=history, past=past)
        loop = PaceLoop(job, controller, exchange, handover, surroundings=Surroundings(log=log))
        outcome = loop.run()
        cpu_s = job.usage().cpu_s
        others_s = _busy_seconds() - busy_s - cpu_s
        mechanism = job.mechanism
    finally:
        exchange.close()
        job.remove()
    return {
        "finished_s": outcome.finished_s,
        "deadline_s": outcome.deadline_s,
        "error_pct": outcome.error_pct,
        "mean_devices": outcome.mean_devices,
        "core_seconds": outcome.device_seconds,
        "cpu_seconds": cpu_s,
        "other_cores": max(others_s, 0.0) / outcome.finished_s,
        "resizes": outcome.resizes,
        "learned": outcome.learned,
        "metrics": outcome.metrics,
        "mechanism": mechanism,
        "threads": job.threads,
        "samples": [row[:4] for row in history.to_json()["samples"]],
    }


class _RecordedJob:
    """A local job that records the thread counts in its progress lines, with the allocation at that time.

    Each of ``threads`` has the steps done, the number of threads and the allocation in cores.
    """

    def __init__(self, job: Any, devices: float) -> None:
        self._job = job
        self._devices = devices
        self.threads: list[tuple[int, int, float]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._job, name)

    def read_lines(self) -> list[str]:
        lines: list[str] = self._job.read_lines()
        for line in lines:
            progress = parse_line(line) if line.startswith(MARKER) else None
            if progress is not None and progress.event == "progress":
                self.threads.append((progress.done, progress.threads, self._devices))
        return lines

    def resize(self, devices: float) -> None:
        self._job.resize(devices)
        self._devices = devices


def _busy_seconds() -> float:
    """Return the CPU time of all processes of this machine since its start."""
    times = psutil.cpu_times()
    return float(times.user + times.system + times.nice + times.irq + times.softirq)
