"""Errors estimated without labels, by Paceline and by NannyML: difference from realised errors, alarms, and cost."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.drift.environments import read_result, run_adapter
from benchmarks.drift.estimators import DATA_SETS, ESTIMATORS, realise
from benchmarks.drift.frames import REFERENCE_WINDOWS, WINDOWS_PER_REFERENCE

ROWS = 500
# The mean of the feature that decides the error, in standard deviations from the reference, and the change of the
# relation of features and labels.
SCENARIOS = {
    "no change": (0.0, 0.0),
    "shift 0.25 sd": (0.25, 0.0),
    "shift 0.5 sd": (0.5, 0.0),
    "shift 1 sd": (1.0, 0.0),
    "concept drift": (0.0, 1.0),
}


def estimate_data_sets() -> list[dict[str, Any]]:
    """Return for each of NannyML's data sets, kind of error and tool the difference of estimates and realised errors.

    The current data are ten windows. ``difference`` is the mean absolute difference, and ``unchanged`` the one if the
    estimate were always the realised error of the reference.
    """
    results = []
    with tempfile.TemporaryDirectory() as folder:
        rows = read_result("nannyml", run_adapter("nannyml", "export", folder))
        for name, (kinds, *_) in DATA_SETS.items():
            for kind in kinds:
                for tool in ESTIMATORS:
                    found = read_result(tool, run_adapter(tool, "estimates", Path(folder) / name, tool, kind))
                    results.append({"data": name, "kind": kind, "tool": tool, "rows": rows[name], **found})
    return results


def alarm_rates(windows: int) -> list[dict[str, Any]]:
    """Return the share of windows of 500 rows with an alarm, for each tool, kind of error and scenario.

    ``errors`` are the mean realised errors. There is no AUC, because these shifts hardly change it.
    """
    makers = {"wrong": _make_scores, "absolute": _make_guesses}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        errors = {kind: _write_scenarios(Path(folder) / kind, kind, make, windows) for kind, make in makers.items()}
        cells = [(kind, tool) for kind in reversed(makers) for tool in ESTIMATORS]

        def measure(cell: tuple[str, str]) -> dict[str, Any]:
            kind, tool = cell
            done = run_adapter(tool, "alarms", Path(folder) / kind, tool, kind)
            return {"kind": kind, "tool": tool, "alarms": read_result(tool, done), "errors": errors[kind]}

        return list(pool.map(measure, cells))


def print_data_sets(results: Sequence[dict[str, Any]]) -> None:
    """Print the result of ``estimate_data_sets``."""
    print(f"  {'data':<20} {'error':<9} realised        difference  unchanged  s of CPU  MiB")
    for row in results:
        low, high = min(row["realised"]), max(row["realised"])
        print(
            f"  {row['data']:<20} {row['kind']:<9} {low:<7.4g} {high:<7.4g} {row['difference']:>9.4g}  "
            f"{row['unchanged']:>9.4g}  {row['cpu_s']:>8.1f} {row['peak_mib']:>4.0f}  {ESTIMATORS[row['tool']][0]}"
        )


def print_alarms(results: Sequence[dict[str, Any]]) -> None:
    """Print the result of ``alarm_rates``: the share of alarms, and in parentheses the realised error."""
    print(f"  {'error':<9} {'  '.join(f'{name:>14}' for name in SCENARIOS)}")
    for row in results:
        cells = (f"{row['alarms'][name]:.0%} ({row['errors'][name]:.3f})" for name in SCENARIOS)
        print(f"  {row['kind']:<9} {'  '.join(f'{cell:>14}' for cell in cells)}  {ESTIMATORS[row['tool']][0]}")


def _make_scores(rng: np.random.Generator, n: int, shift: float, change: float) -> pd.DataFrame:
    """Return overconfident scores. A shift makes them uncertain; a change moves the probability of the label."""
    x, other = rng.normal(2 - shift, 1, n), rng.normal(size=n)
    truth = rng.random(n) < 1 / (1 + np.exp(-(x - 2 * change)))
    return pd.DataFrame({"x": x, "other": other, "prediction": 1 / (1 + np.exp(-1.5 * x)), "actual": truth.astype(int)})


def _make_guesses(rng: np.random.Generator, n: int, shift: float, change: float) -> pd.DataFrame:
    """Return predictions of a number whose error grows with a feature; a change adds a bias."""
    x, other = rng.normal(shift, 1, n), rng.normal(size=n)
    noise = rng.normal(0, np.exp(0.5 * x))
    return pd.DataFrame({"x": x, "other": other, "prediction": 3 * x, "actual": 3 * x + noise + change})


def _write_scenarios(
    folder: Path, kind: str, make: Callable[[np.random.Generator, int, float, float], pd.DataFrame], windows: int
) -> dict[str, float]:
    """Write the references, and the windows of each scenario, numbered by the column ``window``.

    Return the mean error of each scenario.
    """
    rng = np.random.default_rng(5)
    references = -(-windows // WINDOWS_PER_REFERENCE)
    frame = make(rng, references * REFERENCE_WINDOWS * ROWS, 0.0, 0.0)
    folder.mkdir()
    numbers = np.repeat(np.arange(references), REFERENCE_WINDOWS * ROWS)
    frame.assign(window=numbers).to_parquet(folder / "reference.parquet")
    errors = {}
    for name, (shift, change) in SCENARIOS.items():
        current = make(rng, windows * ROWS, shift, change)
        errors[name] = realise(kind, frame, current, "paceline")
        current.assign(window=np.repeat(np.arange(windows), ROWS)).to_parquet(folder / f"{name}.parquet")
    return errors
