"""A runtime of simulated jobs, which the triggerer opens like any installed runtime."""

from __future__ import annotations

import dataclasses
import json
import os
import zlib
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, ClassVar

from paceline.airflow.runtimes import RuntimeSettings
from paceline.contract import JobRecord
from paceline.run.clock import SystemClock
from paceline.runtime import JobStatus
from paceline.testing.plant import Plant
from paceline.testing.simulated_job import SimulatedJob

CORES = 4.0
_ENDS = "BENCHMARK_ENDS"  # folder for the times at which the jobs end


@dataclasses.dataclass(frozen=True, kw_only=True)
class Simulated(RuntimeSettings):
    """Simulated jobs of ``batches`` batches, each of ``batch_s`` seconds on one device."""

    name: ClassVar[str] = "simulated"
    batches: int = 1_000
    batch_s: float = 0.5

    def open(self) -> Any:
        """Return the runtime."""
        return SimulatedRuntime(Plant(batches=self.batches, batch_s=self.batch_s, noise=0.05))


class SimulatedRuntime:
    """The jobs of this process. A job begins when its control looks for it first."""

    name = "simulated"
    _jobs: ClassVar[dict[str, StoredJob]] = {}

    def __init__(self, plant: Plant) -> None:
        self._plant = plant

    def capacity(self) -> float:
        """Return the number of cores for each job."""
        return CORES

    def find_job(self, name: str, labels: Mapping[str, str]) -> StoredJob:
        """Return the job of a name."""
        if name not in self._jobs:
            self._jobs[name] = StoredJob(name, self._plant)
        return self._jobs[name]

    def jobs(self) -> Iterator[tuple[str, dict[str, str]]]:
        """Yield nothing, because no process lists these jobs."""
        yield from ()

    def remove_all(self, labels: Mapping[str, str]) -> None:
        """Do nothing, because no process removes these jobs by their labels."""


def record(name: str) -> JobRecord:
    """Return the record of a job that a worker process has just started in the first try."""
    now = datetime.now(timezone.utc)
    place = {"runtime": Simulated.name, "id": name, "origin": now, "started_at": now}
    return JobRecord(**place, devices=1.0, deferred=True, max_tries=0, try_number=1)


class StoredJob(SimulatedJob):
    """A simulated job that stores a record, and writes a file at its end."""

    def __init__(self, name: str, plant: Plant) -> None:
        super().__init__(plant, 1.0, SystemClock(), seed=zlib.crc32(name.encode()))
        self._name, self._has_ended = name, False
        self._record: Any = record(name).to_json()

    def save_record(self, record: Any) -> None:
        """Store the record."""
        self._record = record

    def load_record(self) -> Any:
        """Return the stored record."""
        return self._record

    def status(self) -> JobStatus:
        """Return the status, and write the end of the job to a file."""
        status = super().status()
        if status.finished_s is not None and not self._has_ended:
            self._has_ended = True
            content = json.dumps({"name": self._name, "finished_s": status.finished_s})
            Path(os.environ[_ENDS], self._name).write_text(content)
        return status
