"""Measurements of an emulated fleet: stored in a file, read from it, and learned from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from benchmarks.edge.fleet import MEMORY_GIB, EmulatedFleet, training
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
# A 95th percentile needs many executions, of which there are five a second; half as long before, like ProfileOperator.
TIMING = Timing(before_s=4.0, training_s=8.0)
_TIMES = ("compute_s", "update_s", f"execution_s.{APP}", f"alone_s.{APP}")


def bench_of(fleet: EmulatedFleet) -> Bench:
    """Return a bench on all devices of a fleet."""
    runtimes = dict.fromkeys(fleet.devices, DockerRuntime(connect))
    gauges = fleet.devices
    return Bench(fleet.machines, fleet.server, training(), runtimes, gauges, timing=TIMING, reference=Reference())


def measure(fleet: EmulatedFleet, points: int, held_out: int, repeats: int, keep: Path) -> None:
    """Run a survey; append every row to ``keep`` at once, so that an interrupted survey resumes from there."""
    axes = default_axes(workers=len(fleet.machines))
    keep.parent.mkdir(parents=True, exist_ok=True)
    with (
        tqdm(total=points + held_out * repeats, unit="point") as bar,
        keep.open("a+") as file,
        bench_of(fleet) as bench,
    ):
        file.seek(0)
        known = [json.loads(line) for line in file]
        left = len(known)
        if known:
            tqdm.write(
                f"{keep} has {left} rows, which are not measured again; move the file away to measure all points"
            )

        def note(rows: list[dict[str, Any]]) -> None:
            nonlocal left
            if left <= 0:
                file.writelines(json.dumps(row) + "\n" for row in rows)
                file.flush()
            left -= len(rows)
            bar.update()

        Survey(_Resumed(bench, known, keep), fleet.machines, axes, on_rows=note).run(points, held_out, repeats)


class _Resumed:
    """A bench that replays earlier measurements while the requests match, and then measures."""

    def __init__(self, bench: Bench, known: list[dict[str, Any]], keep: Path) -> None:
        self._bench, self._known, self._keep = bench, known, keep
        self._batch: dict[str, int] = {}
        self._begun = False

    def train(self, batch: dict[str, int]) -> None:
        self._batch, self._begun = batch, False

    def measure(self, loads: dict[str, Load], *, active: Sequence[str], server: Load | None) -> list[dict[str, Any]]:
        if not self._known:
            if not self._begun:
                self._bench.train(self._batch)
                self._begun = True
            return self._bench.measure(loads, active=active, server=server)
        rows, self._known = self._known[: len(active)], self._known[len(active) :]
        stress = (server or Load()).cpu
        requested = [(name, self._batch[name], loads[name].cpu, loads[name].memory, stress) for name in active]
        if [tuple(row[column] for column in _POINT) for row in rows] != requested:
            raise PacelineError(f"{self._keep} is of another survey: move it away to start again")
        return rows


def read(file: Path) -> pd.DataFrame:
    """Return the measurements, normalised to the machine's median speed, which changes during a survey."""
    import pandas as pd

    measured: pd.DataFrame = pd.read_json(file, lines=True)
    slow = measured["reference_s"] / measured["reference_s"].median()
    for name in _TIMES:
        measured[name] /= slow
    measured["pushes_per_s"] *= slow
    return measured


def estimates(measured: pd.DataFrame) -> ProfileEstimates:
    """Return the scheduler's estimates, learned from all measurements."""
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return ProfileEstimates(
        {
            str(kind): DeviceProfile.fit(str(kind), rows, Origin("benchmark", 1, MEMORY_GIB, 0, now), apps=[APP])
            for kind, rows in measured.groupby("kind")
        }
    )
