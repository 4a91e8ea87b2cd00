"""Measures the accuracy of Deep-Edge's functions learned from few points on an emulated fleet (table I of Deep-Edge).

``python -m benchmarks.models`` (more than an hour; ``--quick``: a third of that time) measures real training jobs
alongside SIFT, in containers that compete for the cores of an emulated device. The functions are learned from a part of
the full grid. The test points are drawn from the whole grid and measured four times each: predictions are compared with
the mean of the four, and their spread is the measurement error. The measurements are stored in
``build/models/measured.jsonl``. An interrupted survey resumes from this file, and a complete survey is not repeated.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from demo.signals import end_on_sigterm

from benchmarks.edge.fleet import DEVICES, emulated_fleet
from benchmarks.edge.measured import APP, FOLDER, measure, read
from paceline.profiles import FUNCTIONS, execution, learn
from paceline.profiles.learn import errors_pct
from paceline.profiles.survey import default_axes

if TYPE_CHECKING:
    import pandas as pd
    from pandas.core.groupby import SeriesGroupBy

    from paceline.profiles import Function

POINTS, HELD_OUT, REPEATS = 96, 18, 4
# Columns that identify a measured point of a machine.
POINT = ["stress_cpu", "stress_memory", "batch_size", "workers", "server_stress"]


def evaluate_functions(measured: pd.DataFrame) -> list[dict[str, Any]]:
    """Learn each function for each kind of device; return a row with its error on the held-out points."""
    rows = []
    functions = [one for one in FUNCTIONS if not one.name.endswith("gpu")]  # the devices have no GPU
    for kind, kind_rows in measured.groupby("kind"):
        train, all_tests = kind_rows[~kind_rows.held_out], kind_rows[kind_rows.held_out]
        repeats_by_point = all_tests.groupby(["machine", *POINT])
        test = repeats_by_point.mean(numeric_only=True).reset_index()
        for function in [*functions, execution(APP)]:
            usable, tested = train.dropna(subset=[function.target]), test.dropna(subset=[function.target])
            learned = learn(function, usable)
            predicted = learned(tested[list(function.features)].to_numpy(dtype=float))
            errors = errors_pct(function, predicted, tested[function.target].to_numpy(dtype=float))
            rows.append(
                {
                    "device": kind,
                    "function": function.name,
                    "train_points": len(usable),
                    "test_points": len(tested),
                    "regression": learned.regression,
                    "mape_pct": round(float(np.mean(errors)), 3),
                    "sd_pct": round(float(np.std(errors)), 3),
                    "measurement_pct": _spread_pct(function, repeats_by_point[function.target]),
                }
            )
    return rows


def _spread_pct(function: Function, repeats_by_point: SeriesGroupBy[float, tuple[object, ...]]) -> float | None:
    """Return the mean deviation of repeated measurements of a point from their mean; ``None`` without repeats."""
    repeated = repeats_by_point.transform("count") > 1
    means, values = repeats_by_point.transform("mean")[repeated], repeats_by_point.obj[repeated]
    errors = errors_pct(function, values.to_numpy(dtype=float), means.to_numpy(dtype=float))
    return round(float(np.mean(errors)), 3) if len(errors) else None


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the points, learn the functions, print the table and write the figures as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.models", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="measure only a third of the points")
    parser.add_argument("--points", type=int, default=None, help=f"number of points to learn from ({POINTS})")
    parser.add_argument(
        "--held-out", type=int, default=None, help=f"number of test points, measured {REPEATS} times each ({HELD_OUT})"
    )
    parser.add_argument(
        "--measured", type=Path, default=None, metavar="FILE", help="learn from this file of measurements"
    )
    parser.add_argument("--json", type=Path, default=None, metavar="FILE")
    chosen = parser.parse_args(arguments)
    end_on_sigterm()
    file = chosen.measured
    if file is None:
        file = FOLDER / "measured.jsonl"
        points = chosen.points or (POINTS // 3 if chosen.quick else POINTS)
        held_out = chosen.held_out or (HELD_OUT // 3 if chosen.quick else HELD_OUT)
        with emulated_fleet() as fleet:
            measure(fleet, points, held_out, REPEATS, file)
    measured = read(file)
    rows = evaluate_functions(measured)
    print(f"{'device':8} {'function':24} {'train':>6} {'test':>6} {'MAPE %':>16} {'measured':>9}  regression")
    for row in rows:
        error = f"{row['mape_pct']:.3f} ± {row['sd_pct']:.3f}"
        numbers = f"{row['train_points']:6} {row['test_points']:6} {error:>16} {row['measurement_pct'] or 0:8.3f}%"
        print(f"{row['device']:8} {row['function']:24} {numbers}  {row['regression']}")
    grid = len(default_axes(workers=len(DEVICES)).grid)
    used = int(measured[~measured.held_out].groupby("kind").size().max())
    overall = float(np.mean([row["mape_pct"] for row in rows]))
    print(f"overall {overall:.3f} % (Deep-Edge: 3.433 %), learned from at most {used} of {grid} grid points per kind")
    result = {"functions": rows, "overall_mape_pct": round(overall, 3), "grid_points": grid, "used_points": used}
    if chosen.json:
        chosen.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
