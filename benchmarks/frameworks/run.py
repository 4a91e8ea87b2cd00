"""Runs a training as a local process, on all cores or under the deadline controller, and records its progress lines."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import psutil

from benchmarks.deadline.run import was_out_of_cores
from benchmarks.frameworks.cases import DEADLINE_FACTOR, EPOCHS, predicted_s, step_count
from paceline.control import CPU_QUANTUM, Controller, Limits, PastRun, make_controller
from paceline.errors import PacelineError
from paceline.run import Exchange, History, MemoryState, PaceLoop
from paceline.runtime import JobSpec, ProcessRuntime
from paceline.train.progress import MARKER, parse_line

FILES = {"train.py": Path(__file__).with_name("train.py")}
MIN_CORES = 0.1
PROBE_STEPS = (100, 500)  # more if they take too short a time for a measurement
ATTEMPTS = 2
_NO_DEADLINE_S = 1e4


class Trainer:
    """Runs the trainings of the benchmark in local processes, whose share of the processor is enforced from outside.

    Parameters
    ----------
    folder:
        Folder for the scratch folders of the jobs.
    files:
        Files of a job by name; ``train.py`` is its script.
    gpus:
        Number of GPUs of a job.
    """

    def __init__(self, folder: Path, files: Mapping[str, Path] = FILES, gpus: int = 0) -> None:
        self._runtime = ProcessRuntime(folder)
        self._files, self._gpus = files, gpus
        self.cores = self._runtime.capacity()

    def train_by(self, deadline_s: float, library: str) -> dict[str, Any]:
        """Calibrate, then train by a deadline of about ``deadline_s``; return the result.

        If training was late on all cores, because the machine has become slower since the calibration, both are
        repeated once. ``errors_pct`` in the result has the deviations of all attempts.
        """
        errors_pct: list[float] = []
        while True:
            run = self._train_calibrated(deadline_s, library, self._calibrate(library))
            errors_pct.append(run["error_pct"])
            if len(errors_pct) == ATTEMPTS or not was_out_of_cores(run, self.cores):
                return {**run, "errors_pct": errors_pct}

    def _calibrate(self, library: str) -> PastRun:
        """Train a few steps on all cores; return the measurements, with the mean speed of all steps."""
        for steps in PROBE_STEPS:
            run = self.train_constant(library, steps, self.cores)
            past = PastRun.read(run["learned"])
            if past is not None:
                training_s = run["finished_s"] - past.startup_s - past.tail_s - past.pauses_s
                return replace(past, devices=self.cores, batches_per_s=steps / training_s)
        raise PacelineError(f"{library}: {max(PROBE_STEPS)} steps were too few to measure the speed")

    def _train_calibrated(self, deadline_s: float, library: str, past: PastRun) -> dict[str, Any]:
        """Train so many steps that ``deadline_s`` is about 1.5 times their predicted shortest time.

        The deadline is exactly 1.5 times that time. The controller is new and knows nothing of the calibration.
        """
        steps = step_count(deadline_s / DEADLINE_FACTOR, past)
        shortest_s = predicted_s(steps, past)
        limits = Limits(MIN_CORES, self.cores, CPU_QUANTUM)
        controller = make_controller("default", limits, DEADLINE_FACTOR * shortest_s)
        return {
            "shortest_s": shortest_s,
            "calibrated": past.to_dict(),
            **self._run(library, steps, EPOCHS, controller),
        }

    def train_constant(self, library: str, steps: int, cores: float, threads: int | None = None) -> dict[str, Any]:
        """Train one epoch on a constant allocation, and optionally with a limit of native threads."""
        controller = make_controller("default", Limits(cores, cores, CPU_QUANTUM), _NO_DEADLINE_S)
        return self._run(library, steps, 1, controller, threads)

    def _run(
        self, library: str, steps: int, epochs: int, controller: Controller, threads: int | None = None
    ) -> dict[str, Any]:
        devices = controller.start(0.0)
        options = ["--threads", str(threads)] if threads is not None else []
        spec = JobSpec(
            name=f"benchmark-{library}-{uuid.uuid4().hex[:8]}",
            command=["python", "train.py", library, "--steps", str(steps), "--epochs", str(epochs), *options],
            devices=devices,
            files=self._files,
            gpus=self._gpus,
            memory_bytes=None,
        )
        began, busy_s = datetime.now(timezone.utc), _busy_seconds()
        job = _RecordedJob(self._runtime.start(spec), devices)
        exchange, history = Exchange(MemoryState()), History()
        log = logging.getLogger("benchmarks.frameworks.training")
        try:
            loop = PaceLoop(
                job, controller, exchange, origin=began, allocated_devices=devices, history=history, log=log
            )
            outcome = loop.run()
            cpu_s = job.usage().cpu_s
            others_s = _busy_seconds() - busy_s - cpu_s
            mechanism = job.mechanism
        finally:
            exchange.close()
            job.remove()
        return {
            "steps": steps,
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
