"""Compares Paceline with other tools on the same windows and streams, and counts alarms in the same way."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.drift.environments import read_result, run_adapter
from benchmarks.drift.frames import CHANGES, NO_CHANGE, ten_features, write_windows
from benchmarks.drift.rates import ERROR_BEFORE, ROWS, detector_rates, make_errors
from benchmarks.drift.tools import TOOLS

# Rows of the windows. There are half as many windows of the largest size, because each takes several seconds.
SIZES = (100, 500, 5000)
ERRORS_AFTER = (0.15, 0.20, 0.25, 0.35, 0.05)


def compare_tools(windows: int, processes: int = 2) -> list[dict[str, Any]]:
    """Return the share of false alarms and the share of detected changes, for each window size and tool.

    A false alarm is a window without drift in which the tool reports drift in any column. A change is detected if the
    tool reports drift in the changed column.
    """
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(processes) as pool:
        counts = {n: max(1, windows // 2) if n == max(SIZES) else windows for n in SIZES}
        changes = {name: change for name, (_, change) in CHANGES.items()}
        for n, count in counts.items():
            write_windows(Path(folder) / str(n), n, count, ten_features, changes)

        def measure(cell: tuple[int, str]) -> dict[str, Any]:
            n, tool = cell
            found = read_result(tool, run_adapter(TOOLS[tool].environment, "windows", Path(folder) / str(n), tool))
            rates = {NO_CHANGE: sum(map(bool, found[NO_CHANGE])) / counts[n]}
            for change, (column, _) in CHANGES.items():
                rates[change] = sum(column in names for names in found[change]) / counts[n]
            return {"n": n, "tool": tool, "windows": counts[n], "rates": rates}

        # Begin with the cells that take longest.
        results = list(pool.map(measure, [(n, tool) for n in reversed(SIZES) for tool in TOOLS]))
    return sorted(results, key=lambda row: int(row["n"]))


def print_tools(results: Sequence[dict[str, Any]]) -> None:
    """Print the result of ``compare_tools``."""
    print(f"  rows  windows  false alarms  {'  '.join(CHANGES)}")
    for row in results:
        rates = row["rates"]
        shares = "  ".join(f"{rates[change]:>{len(change)}.0%}" for change in CHANGES)
        label = TOOLS[row["tool"]].label
        print(f"  {row['n']:>4}  {row['windows']:>7}  {rates[NO_CHANGE]:>12.0%}  {shares}  {label}")


def compare_detectors(windows: int) -> list[dict[str, Any]]:
    """Return the alarm rate of Paceline and of river's detectors alone, on the same streams of errors.

    An alarm is a change in the current rows. Paceline reports only a rise of the error that is large enough to matter.
    """
    rows = [{**row, "tool": f"Paceline, {row['detector']}"} for row in detector_rates(windows, ERRORS_AFTER)]
    with tempfile.TemporaryDirectory() as folder:
        for error_after in ERRORS_AFTER:
            path = Path(folder) / "errors.npz"
            np.savez(path, errors=make_errors(windows, error_after))
            for name, streams in read_result("river", run_adapter("river", "streams", path)).items():
                current = [[row - ROWS for row in found if row >= ROWS] for found in streams]
                delays = [[row - ROWS // 2 for row in found if row >= ROWS // 2][:1] for found in current]
                rises = error_after > ERROR_BEFORE and any(delays)
                rows.append(
                    {
                        "tool": f"river, {name}",
                        "error_after": error_after,
                        "alarms": sum(map(bool, current)) / windows,
                        "delay_rows": float(np.median(np.concatenate(delays))) if rises else None,
                    }
                )
    return rows


def print_detectors(rows: Sequence[dict[str, Any]]) -> None:
    """Print the result of ``compare_detectors``; delay and distance are those at an error of 35 %."""
    print("  " + "  ".join(f"{error:>5.0%}" for error in ERRORS_AFTER) + "  delay, distance at 35 %")
    for tool in dict.fromkeys(row["tool"] for row in rows):
        cells = {row["error_after"]: row for row in rows if row["tool"] == tool}
        shares = "  ".join(f"{cells[error]['alarms']:>5.1%}" for error in ERRORS_AFTER)
        places = (cells[0.35].get(key) for key in ("delay_rows", "distance_rows"))
        text = ", ".join("-" if place is None else f"{place:.0f}" for place in places)
        print(f"  {shares}  {text:>18} rows  {tool}")
