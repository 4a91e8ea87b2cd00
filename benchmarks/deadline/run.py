"""Runs a training job in a container, under a controller or on a constant allocation."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from paceline.contract import DEADLINE, PACE
from paceline.control import CPU_QUANTUM, GPU_QUANTUM, Controller, Limits, PastRun, make_controller
from paceline.run import Exchange, Handover, History, MemoryState, PaceLoop, Surroundings
from paceline.runtime import JobSpec, Runtime

HERE = Path(__file__).parent
MIN_CORES = 0.1
CHANGE_PROGRESS = 0.3  # share of the ideal progress, as in the paper
_LATE_PCT = 0.3


@dataclass(frozen=True)
class Result:
    """Result of one run. Each of ``samples`` has time, progress in percent, setpoint and cores."""

    finished_s: float
    deadline_s: float
    error_pct: float
    mean_devices: float
    core_seconds: float
    cpu_seconds: float
    resizes: int
    step_ms_mean: float
    learned: dict[str, Any] | None
    samples: list[list[float]] = field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON-safe values."""
        return asdict(self)


class Trainer:
    """Runs the benchmark's training jobs.

    Parameters
    ----------
    runtime:
        Containers of an engine, or pods of a cluster.
    image:
        Image with Python and torch.
    cores:
        Maximum cores of a job; all cores by default.
    on_pace:
        Called with each new sample of a run.
    whole_devices:
        Allocate whole devices; processes that join and leave stand in for GPUs.
    """

    def __init__(
        self,
        runtime: Runtime,
        image: str,
        cores: float | None = None,
        on_pace: Callable[[dict[str, Any]], None] = lambda pace: None,
        *,
        whole_devices: bool = False,
    ) -> None:
        self._runtime = runtime
        self._image = image
        self._on_pace = on_pace
        self._whole_devices = whole_devices
        self.cores = cores or self._runtime.capacity()
        self.quantum = GPU_QUANTUM if whole_devices else CPU_QUANTUM

    def train_constant(
        self, model: str, batches: int, cores: float, deadline_s: float, *, threads: int | None = None
    ) -> Result:
        """Train on a constant allocation, and optionally on a fixed number of threads."""
        controller = make_controller("default", Limits(cores, cores, self.quantum), deadline_s)
        return self._run(model, batches, controller, threads=threads)

    def train_controlled(
        self, model: str, batches: int, controller: str, deadline_s: float, *, past: PastRun, changed_s: float | None
    ) -> Result:
        """Train under a controller; at 30 % of ideal progress, the deadline changes to ``changed_s`` (None: never)."""
        limits = Limits(self.quantum if self._whole_devices else MIN_CORES, self.cores, self.quantum)
        return self._run(model, batches, make_controller(controller, limits, deadline_s, past=past), changed_s)

    def _run(
        self,
        model: str,
        batches: int,
        controller: Controller,
        changed_s: float | None = None,
        threads: int | None = None,
    ) -> Result:
        state = _ObservedState(self._on_pace)
        log = logging.getLogger("benchmarks.deadline.training")
        began = datetime.now(timezone.utc)
        devices = controller.start(0.0)
        options = ["--whole"] if self._whole_devices else []
        if threads is not None:
            options += ["--threads", str(threads)]
        spec = JobSpec(
            name=f"benchmark-{uuid.uuid4().hex[:8]}",
            command=["python", "train.py", model, "--batches", str(batches), *options],
            devices=devices,
            image=self._image,
            files={name: HERE / name for name in ("train.py", "models.py")},
        )
        job = self._runtime.start(spec)
        change = threading.Timer(CHANGE_PROGRESS * controller.deadline_s, state.set, (DEADLINE, changed_s))
        if changed_s is not None:
            change.start()
        exchange = Exchange(state)
        history = History()
        try:
            handover = Handover(began, devices, history=history)
            loop = PaceLoop(job, controller, exchange, handover, surroundings=Surroundings(log=log))
            outcome = loop.run()
        finally:
            change.cancel()
            exchange.close()
            job.remove()
        return Result(
            finished_s=outcome.finished_s,
            deadline_s=outcome.deadline_s,
            error_pct=outcome.error_pct,
            mean_devices=outcome.mean_devices,
            core_seconds=outcome.device_seconds,
            cpu_seconds=outcome.metrics["cpu_s"],
            resizes=outcome.resizes,
            step_ms_mean=outcome.step_ms_mean,
            learned=outcome.learned,
            samples=[row[:4] for row in history.to_json()["samples"]],
        )


def was_out_of_cores(run: dict[str, Any], cores: float) -> bool:
    """Return whether a run was late although it had all cores in its second half, so a controller could do no better.

    >>> samples = [[10.0 * second, 0.0, 0.0, 1.4 if second < 4 else 2.0] for second in range(11)]
    >>> was_out_of_cores({"error_pct": 3.0, "samples": samples}, cores=2.0)
    True
    >>> was_out_of_cores({"error_pct": 3.0, "samples": samples}, cores=4.0)
    False
    """
    end_s = run["samples"][-1][0]
    # Exclude the last samples: cores are released while the container ends.
    second_half = [devices for at_s, _, _, devices in run["samples"] if 0.5 < at_s / end_s < 0.95]
    return bool(run["error_pct"] > _LATE_PCT and min(second_half) >= cores)


class _ObservedState(MemoryState):
    """A live state that passes each new sample to a callback."""

    def __init__(self, on_pace: Callable[[dict[str, Any]], None]) -> None:
        super().__init__()
        self._on_pace = on_pace

    def set(self, key: str, value: Any) -> None:
        super().set(key, value)
        if key == PACE:
            self._on_pace(value)
