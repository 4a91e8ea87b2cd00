"""Measures an emulated fleet, stores the measurements in a file, and learns profiles from them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from benchmarks.edge.fleet import MEMORY_GIB, EmulatedFleet, training_spec
from benchmarks.edge.reference import Reference
from benchmarks.engine import connect
from paceline.errors import PacelineError
from paceline.profiles import DeviceProfile, Origin, ProfileEstimates
from paceline.profiles.bench import Bench, Timing
from paceline.profiles.neighbours import Load
from paceline.profiles.survey import Survey, default_axes
from paceline.runtime import DockerRuntime

if TYPE_CHECKING:
    import pandas as pd

FOLDER = Path("build/models")
APP = "stitching"
_POINT = ("machine", "batch_size", "stress_cpu", "stress_memory", "server_stress")
# A 95th percentile needs many executions, and a device has only five per second. As in ProfileOperator, the measurement
# before training is half as long.
TIMING = Timing(before_s=4.0, training_s=8.0)
_TIMES = ("compute_s", "update_s", f"execution_s.{APP}", f"alone_s.{APP}")


def make_bench(fleet: EmulatedFleet) -> Bench:
    """Return a bench on all devices of a fleet."""
    runtimes = dict.fromkeys(fleet.devices, DockerRuntime(connect))
    gauges = fleet.devices
    return Bench(fleet.machines, fleet.server, training_spec(), runtimes, gauges, timing=TIMING, reference=Reference())


def measure(fleet: EmulatedFleet, points: int, held_out: int, repeats: int, record: Path) -> None:
    """Run a survey; append every row to ``record`` immediately, so that an interrupted survey can resume."""
    axes = default_axes(workers=len(fleet.machines))
    record.parent.mkdir(parents=True, exist_ok=True)
    with (
        tqdm(total=points + held_out * repeats, unit="point") as bar,
        record.open("a+") as file,
        make_bench(fleet) as bench,
    ):
        file.seek(0)
        recorded = [json.loads(line) for line in file]
        replayed = len(recorded)
        if recorded:
            tqdm.write(
                f"{record} has {replayed} rows that are not measured again; move the file away to measure all points"
            )

        def append_new_rows(rows: list[dict[str, Any]]) -> None:
            nonlocal replayed
            if replayed <= 0:
                file.writelines(json.dumps(row) + "\n" for row in rows)
                file.flush()
            replayed -= len(rows)
            bar.update()

        Survey(_ResumedBench(bench, recorded, record), fleet.machines, axes, on_rows=append_new_rows).run(
            points, held_out, repeats
        )


class _ResumedBench:
    """A bench that replays the recorded measurements first and then measures; the requests must match the record."""

    def __init__(self, bench: Bench, recorded: list[dict[str, Any]], record: Path) -> None:
        self._bench, self._recorded, self._record = bench, recorded, record
        self._batch: dict[str, int] = {}
        self._is_training = False

    def train(self, batch: dict[str, int]) -> None:
        self._batch, self._is_training = batch, False

    def measure(self, loads: dict[str, Load], *, active: Sequence[str], server: Load | None) -> list[dict[str, Any]]:
        if not self._recorded:
            if not self._is_training:
                self._bench.train(self._batch)
                self._is_training = True
            return self._bench.measure(loads, active=active, server=server)
        rows, self._recorded = self._recorded[: len(active)], self._recorded[len(active) :]
        stress = (server or Load()).cpu
        requested = [(name, self._batch[name], loads[name].cpu, loads[name].memory, stress) for name in active]
        if [tuple(row[column] for column in _POINT) for row in rows] != requested:
            raise PacelineError(f"{self._record} belongs to a different survey: move it away to start again")
        return rows


def read(file: Path) -> pd.DataFrame:
    """Return the measurements, corrected to the machine's median speed, because its speed changes during a survey."""
    import pandas as pd

    measured: pd.DataFrame = pd.read_json(file, lines=True)
    slowness = measured["reference_s"] / measured["reference_s"].median()
    for name in _TIMES:
        measured[name] /= slowness
    measured["pushes_per_s"] *= slowness
    return measured


def fit_estimates(measured: pd.DataFrame) -> ProfileEstimates:
    """Return the scheduler's estimates, learned from all measurements."""
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return ProfileEstimates(
        {
            str(kind): DeviceProfile.fit(str(kind), rows, Origin("benchmark", 1, MEMORY_GIB, 0, now), apps=[APP])
            for kind, rows in measured.groupby("kind")
        }
    )
