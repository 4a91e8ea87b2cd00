"""A window that grows while it is polled: false alarms and delay of checks with and without shared significance."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from datetime import datetime, timezone
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from paceline.airflow.windows import DataWindow
from paceline.drift import DriftSettings
from paceline.sensors.check import DriftCheck
from paceline.sensors.triggers import TriggerState, decide_new_window

ROWS, POLL_ROWS, REFERENCE_ROWS = 3000, 100, 5000
# Any significant difference counts, even one that is too small to matter.
SIGNIFICANCE_ALONE = DriftSettings(psi_threshold=0.0, effect_threshold=1e-9)
CASES = (
    ("no drift, any significant difference counts", 0.0, SIGNIFICANCE_ALONE),
    ("no drift", 0.0, DriftSettings()),
    ("shift of 0.35 sd", 0.35, DriftSettings()),
)


def growing_rates(windows: int) -> list[dict[str, Any]]:
    """Return the share of windows with an alarm and the median rows at the first alarm, for each case and strategy.

    A window of one feature grows to 3,000 rows, by 100 rows at each poll. ``every_poll`` checks it at each poll,
    ``shared`` decides like ``DriftEventTrigger(fire_on="new_window")``, and ``complete`` checks only the whole window.
    """
    results = []
    for name, shift, settings in CASES:
        rng = np.random.default_rng(7)
        alarms: dict[str, list[int]] = {"every_poll": [], "shared": [], "complete": []}
        with tempfile.TemporaryDirectory() as folder:
            for number in range(windows):
                path = Path(folder) / f"{number}.parquet"
                _one_feature(rng, REFERENCE_ROWS).to_parquet(path)
                check = DriftCheck(reference=str(path), current="current.parquet", settings=settings)
                frame = _one_feature(rng, ROWS)
                frame["a"] += shift
                alarms["every_poll"] += _first_alarm(check, frame)
                alarms["shared"] += _first_event(check, frame)
                alarms["complete"] += [ROWS] * check.compare(DataWindow(frame, ROWS)).drifted
        rows = {way: float(np.median(found)) if found else None for way, found in alarms.items()}
        shares = {way: len(found) / windows for way, found in alarms.items()}
        results.append({"case": name, "alarms": shares, "rows": rows})
    return results


def print_growing(results: list[dict[str, Any]]) -> None:
    """Print the result of ``growing_rates``."""
    for result in results:
        ways = (
            f"{way.replace('_', ' ')} {share:6.1%}" + (f" (after {result['rows'][way]:,.0f} rows)" if share else "")
            for way, share in result["alarms"].items()
        )
        print(f"  {result['case']}: " + "   ".join(ways))


def _one_feature(rng: np.random.Generator, n: int) -> pd.DataFrame:
    return pd.DataFrame({"a": rng.normal(size=n)})


def _polls(frame: pd.DataFrame) -> Iterator[DataWindow]:
    for rows in range(POLL_ROWS, len(frame) + 1, POLL_ROWS):
        yield DataWindow(frame[:rows], rows, "the window")


def _first_alarm(check: DriftCheck, frame: pd.DataFrame) -> list[int]:
    """Return the number of rows at the first poll that finds drift; ``None`` if no poll does."""
    return list(islice((window.rows for window in _polls(frame) if check.compare(window).drifted), 1))


def _first_event(check: DriftCheck, frame: pd.DataFrame) -> list[int]:
    """Return the number of rows at which an event trigger fires; ``None`` if it never does."""
    state, now = TriggerState(), datetime.now(timezone.utc)
    for window in _polls(frame):
        decision = decide_new_window(check, window, state, now, cooldown_s=None)
        if decision.fires:
            return [window.rows]
        state = decision.state
    return []
