"""Runs the trainings of the benchmark, on all cores or by a deadline."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.deadline.run import was_out_of_cores
from benchmarks.frameworks.cases import EPOCHS, predicted_s, step_count
from benchmarks.local_jobs import by_deadline, constant, train
from paceline.control import Controller, PastRun
from paceline.errors import PacelineError
from paceline.runtime import JobSpec, ProcessRuntime

FILES = {"train.py": Path(__file__).with_name("train.py")}
PROBE_STEPS = (100, 500, 2_500, 12_500, 62_500)  # the next if these take too short a time for a measurement
ATTEMPTS = 2


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

    def train_by(self, deadline_s: float, factor: float, library: str) -> dict[str, Any]:
        """Calibrate, then train by a deadline of about ``deadline_s``, ``factor`` times the shortest time.

        If training was late on all cores, because the machine has become slower since the calibration, both are
        repeated once. ``errors_pct`` in the result has the deviations of all attempts.
        """
        errors_pct: list[float] = []
        while True:
            run = self._train_calibrated(deadline_s, factor, library, self._calibrate(library))
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

    def _train_calibrated(self, deadline_s: float, factor: float, library: str, past: PastRun) -> dict[str, Any]:
        """Train so many steps that ``deadline_s`` is about ``factor`` times their predicted shortest time.

        The deadline is exactly that. The controller is new and knows nothing of the calibration.
        """
        steps = step_count(deadline_s / factor, past)
        shortest_s = predicted_s(steps, past)
        controller = by_deadline(factor * shortest_s, self.cores)
        return {
            "shortest_s": shortest_s,
            "calibrated": past.to_dict(),
            **self._run(library, steps, EPOCHS, controller),
        }

    def train_constant(self, library: str, steps: int, cores: float, threads: int | None = None) -> dict[str, Any]:
        """Train one epoch on a constant allocation, and optionally with a limit of native threads."""
        return self._run(library, steps, 1, constant(cores), threads)

    def _run(
        self, library: str, steps: int, epochs: int, controller: Controller, threads: int | None = None
    ) -> dict[str, Any]:
        options = ["--threads", str(threads)] if threads is not None else []
        spec = JobSpec(
            name=f"benchmark-{library}-{uuid.uuid4().hex[:8]}",
            command=["python", "train.py", library, "--steps", str(steps), "--epochs", str(epochs), *options],
            devices=self.cores,
            files=self._files,
            gpus=self._gpus,
            memory_bytes=None,
        )
        return {"steps": steps, **train(self._runtime, spec, controller)}
