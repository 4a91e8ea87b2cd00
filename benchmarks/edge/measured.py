"""What was measured of an emulated fleet: kept in a file, read from it, and what is learned from it."""

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
# A 95th percentile needs many executions, of which there are five a second; half as long before, like ProfileOperator.
_ASKED = ("machine", "batch_size", "stress_cpu", "stress_memory", "server_stress")
TIMING = Timing(before_s=4.0, training_s=8.0)
_TIMES = ("compute_s", "update_s", f"execution_s.{APP}", f"alone_s.{APP}")


def bench_of(fleet: EmulatedFleet) -> Bench:
    """A bench on all of a fleet's devices."""
    runtimes = dict.fromkeys(fleet.devices, DockerRuntime(connect))
    gauges = fleet.devices
    return Bench(fleet.machines, fleet.server, training(), runtimes, gauges, timing=TIMING, reference=Reference())


def measure(fleet: EmulatedFleet, points: int, held_out: int, repeats: int, keep: Path) -> None:
    """Measure; every row is written down at once, and who is interrupted goes on from there."""
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
            tqdm.write(f"{keep} has {left} rows, which are not measured again; move it away to measure all anew")

        def note(rows: list[dict[str, Any]]) -> None:
            nonlocal left
            if left <= 0:
                file.writelines(json.dumps(row) + "\n" for row in rows)
                file.flush()
            left -= len(rows)
            bar.update()

        Survey(_Resumed(bench, known, keep), fleet.machines, axes, on_rows=note).run(points, held_out, repeats)


class _Resumed:
    """A bench that says again what it has measured before, as long as it is asked the same; then it measures."""

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
        asked = [(name, self._batch[name], loads[name].cpu, loads[name].memory, stress) for name in active]
        if [tuple(row[column] for column in _ASKED) for row in rows] != asked:
            raise PacelineError(f"{self._keep} is of another survey than this one: move it away to begin anew")
        return rows


def read(file: Path) -> pd.DataFrame:
    """What was measured, as if the machine had had its median speed all the time: that changes while it is measured."""
    import pandas as pd

    measured: pd.DataFrame = pd.read_json(file, lines=True)
    slow = measured["reference_s"] / measured["reference_s"].median()
    for name in _TIMES:
        measured[name] /= slow
    measured["pushes_per_s"] *= slow
    return measured


def estimates(measured: pd.DataFrame) -> ProfileEstimates:
    """What a scheduler asks, learned from all that was measured."""
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return ProfileEstimates(
        {
            str(kind): DeviceProfile.fit(str(kind), rows, Origin("benchmark", 1, MEMORY_GIB, 0, now), apps=[APP])
            for kind, rows in measured.groupby("kind")
        }
    )
