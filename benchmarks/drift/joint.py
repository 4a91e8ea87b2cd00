"""Compares the multivariate tests of Paceline and other tools on changes that no single column shows."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.drift.environments import read_result, run_adapter
from benchmarks.drift.frames import NO_CHANGE, Change, write_windows
from benchmarks.drift.joint_tools import JOINT_TOOLS

# Rows of the windows, and by how much their number is divided: one large window takes a classifier several seconds.
SIZES = {500: 1, 5000: 5}


def dependent_features(rng: np.random.Generator, n: int) -> pd.DataFrame:
    """Return ten features, of which two pairs of numbers, and a category and a number, depend on each other."""
    frame = pd.DataFrame({name: rng.normal(size=n) for name in ("temp", "wind", "x", "y", "z")})
    frame = _correlate("temp", "humid", 0.9, _correlate("wind", "gust", 0.5, frame, rng), rng)
    carrier = rng.integers(0, 4, n)
    frame["carrier"] = np.array(list("ABCD"))[carrier]
    frame["delay"] = rng.normal(0.7 * carrier, 1.0)
    frame["hour"] = rng.integers(0, 24, n)
    return frame


def _correlate(given: str, name: str, correlation: float, frame: pd.DataFrame, rng: np.random.Generator) -> Any:
    noise = np.sqrt(1 - correlation**2) * rng.normal(size=len(frame))
    return frame.assign(**{name: correlation * frame[given] + noise})


def _fix_sign(frame: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    """Make the product of three independent numbers positive. Each pair of them stays independent."""
    return frame.assign(z=frame["z"].abs() * np.sign(frame["x"] * frame["y"]))


def _separate(frame: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    return frame.assign(carrier=rng.permutation(frame["carrier"]))


# Changes of a dependence. Each leaves the distribution of every column as it is.
DEPENDENCES: dict[str, Change] = {
    "0.9 to -0.9": partial(_correlate, "temp", "humid", -0.9),
    "0.9 to 0.7": partial(_correlate, "temp", "humid", 0.7),
    "0.5 to 0": partial(_correlate, "wind", "gust", 0.0),
    "three signs": _fix_sign,
    "category": _separate,
}


def compare_joint_tests(windows: int, processes: int = 2) -> list[dict[str, Any]]:
    """Return the share of windows with an alarm, for each size, tool, setting and change.

    Every alarm of a tool counts; Paceline's are those of all its tests.
    """
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(processes) as pool:
        counts = {n: max(1, windows // divisor) for n, divisor in SIZES.items()}
        for n, count in counts.items():
            write_windows(Path(folder) / str(n), n, count, dependent_features, DEPENDENCES)

        def measure(cell: tuple[int, str]) -> list[dict[str, Any]]:
            n, name = cell
            tool = JOINT_TOOLS[name]
            found = read_result(name, run_adapter(tool.environment, "windows", Path(folder) / str(n), name))
            return [
                {
                    "n": n,
                    "tool": f"{tool.label}, {setting}",
                    "windows": counts[n],
                    "rates": {
                        change: sum(setting in alarms for alarms in found[change]) / counts[n]
                        for change in (NO_CHANGE, *DEPENDENCES)
                    },
                }
                for setting in tool.settings
            ]

        # Begin with the cells that take longest.
        cells = [(n, name) for n in reversed(SIZES) for name in JOINT_TOOLS]
        results = [row for rows in pool.map(measure, cells) for row in rows]
    return sorted(results, key=lambda row: int(row["n"]))


def print_joint_tests(results: Sequence[dict[str, Any]]) -> None:
    """Print the result of ``compare_joint_tests``."""
    print(f"  rows  windows  false alarms  {'  '.join(DEPENDENCES)}")
    for row in results:
        shares = "  ".join(f"{row['rates'][change]:>{len(change)}.0%}" for change in DEPENDENCES)
        print(f"  {row['n']:>4}  {row['windows']:>7}  {row['rates'][NO_CHANGE]:>12.0%}  {shares}  {row['tool']}")
