"""What was measured of an emulated fleet: kept in a file, read from it, and what is learned from it."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from benchmarks.edge.fleet import MEMORY_GIB, EmulatedFleet, training
from benchmarks.edge.reference import Reference
from benchmarks.engine import connect
from paceline.profile import DeviceProfile, Origin, ProfileEstimates
from paceline.profile.bench import Bench, Timing
from paceline.profile.survey import Survey, default_axes
from paceline.runtime import DockerRuntime

if TYPE_CHECKING:
    import pandas as pd

FOLDER = Path("build/models")
APP = "stitching"
# A 95th percentile needs many executions, of which there are five a second; half as long before, like ProfileOperator.
TIMING = Timing(before_s=4.0, training_s=8.0)
_TIMES = ("compute_s", "update_s", f"execution_s.{APP}", f"alone_s.{APP}")


def bench_of(fleet: EmulatedFleet) -> Bench:
    """A bench on all of a fleet's devices."""
    runtimes = dict.fromkeys(fleet.devices, DockerRuntime(connect))
    gauges = fleet.devices
    return Bench(fleet.machines, fleet.server, training(), runtimes, gauges, timing=TIMING, reference=Reference())


def measure(fleet: EmulatedFleet, points: int, held_out: int, repeats: int, keep: Path) -> None:
    """Measure; every row is written down at once, so that what was measured outlives an interruption."""
    axes = default_axes(workers=len(fleet.machines))
    keep.parent.mkdir(parents=True, exist_ok=True)
    with (
        tqdm(total=points + held_out * repeats, unit="point") as bar,
        keep.open("w") as file,
        bench_of(fleet) as bench,
    ):

        def note(rows: list[dict[str, Any]]) -> None:
            for row in rows:
                file.write(json.dumps(row) + "\n")
            file.flush()
            bar.update()

        Survey(bench, fleet.machines, axes, on_rows=note).run(points, held_out, repeats)


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
