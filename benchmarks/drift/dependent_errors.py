"""False alarms and detection of concept drift in errors that depend on each other: in time, in seasons, in groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter  # type: ignore[import-untyped,unused-ignore]

from paceline.drift.concept import Units, detect_concept_drift
from paceline.drift.prediction_errors import WRONG

Floats = NDArray[np.float64]
# Rows of the reference and of the current window.
SIZES = (200, 1000, 10_000, 100_000)
# Share of wrong predictions in the reference, and its rise: in the whole current window, and in its last fifth.
SHARE = 0.15
RISES = {"no change": (0.0, 0.0), "whole window": (0.15, 0.15), "last fifth": (0.0, 0.3)}


@dataclass(frozen=True)
class Stream:
    """The errors of a reference window and of a current window, with their units and seasons if these are known."""

    errors: Floats
    units: Units | None = None
    seasons: NDArray[np.int64] | None = None


def _independent(rng: np.random.Generator, share: Floats) -> Stream:
    return Stream((rng.random(len(share)) < share) * 1.0)


def _lasting(rng: np.random.Generator, share: Floats) -> Stream:
    """Right or wrong, as in the row before with probability 0.9."""
    drawn = np.where(rng.random(len(share)) < 0.1, np.arange(len(share)), 0)
    return Stream((rng.random(len(share)) < share)[np.maximum.accumulate(drawn)] * 1.0)


def _autoregressive(rng: np.random.Generator, share: Floats) -> Stream:
    """Errors between 0 and 1 with a correlation of 0.9 between neighbours and a standard deviation of 0.1."""
    noise = rng.normal(0, 0.1 * (1 - 0.9**2) ** 0.5, len(share) + 200)
    return Stream(np.clip(0.15 + share + lfilter([1], [1, -0.9], noise)[200:], 0, 1))


def _weekly(rng: np.random.Generator, share: Floats) -> Stream:
    """Predictions of four weeks in each window that are wrong more often at the weekend; the season is the weekday."""
    days = np.arange(len(share)) * 56 // len(share) % 7
    return Stream((rng.random(len(share)) < share - 0.05 + 0.2 * (days >= 5)) * 1.0, seasons=days)


def _groups(rng: np.random.Generator, share: Floats) -> Stream:
    """Ten consecutive rows of each customer, all right or all wrong."""
    customers = np.arange(len(share)) // 10
    wrong = rng.random(customers[-1] + 1) < share[::10]
    return Stream(wrong[customers] * 1.0, units=Units(customers))


def _scattered(rng: np.random.Generator, share: Floats) -> Stream:
    """Ten rows of each customer, all right or all wrong unless the share changes, anywhere in one window."""
    half = len(share) // 2
    customers = np.concatenate([rng.permutation(np.arange(half) // 10) + start for start in (0, half)])
    return Stream((rng.random(len(share))[customers] < share) * 1.0, units=Units(customers))


def _days(rng: np.random.Generator, share: Floats) -> Stream:
    """Forty days in each window; the share of wrong predictions of a day differs by a standard deviation of 0.05."""
    days = np.arange(len(share)) * 80 // len(share)
    return Stream((rng.random(len(share)) < share + rng.normal(0, 0.05, 80)[days]) * 1.0, units=Units(days, True))


STREAMS: dict[str, Callable[[np.random.Generator, Floats], Stream]] = {
    "independent": _independent,
    "correlation of 0.9, wrong or right": _lasting,
    "correlation of 0.9, numbers": _autoregressive,
    "weekly pattern, with its season": _weekly,
    "ten rows of a group, with the groups": _groups,
    "scattered rows of a group, with the groups": _scattered,
    "days that differ, with the days": _days,
}


def alarm_rates(streams: int) -> list[dict[str, Any]]:
    """Return the share of streams with an alarm, for each kind of dependence, number of rows and rise."""
    cells = [(kind, rows, rise) for rows in reversed(SIZES) for kind in STREAMS for rise in RISES]
    with ProcessPoolExecutor() as pool:
        rates = pool.map(partial(_alarm_rate, streams), cells)
        found = [
            {"kind": kind, "rows": rows, "rise": rise, "alarms": rate}
            for (kind, rows, rise), rate in zip(cells, rates, strict=True)
        ]
    return found[::-1]


def _alarm_rate(streams: int, cell: tuple[str, int, str]) -> float:
    kind, rows, rise = cell
    rng = np.random.default_rng(6)
    place = np.arange(2 * rows)
    early, late = RISES[rise]
    share = SHARE + np.where(place < rows, 0.0, np.where(place < 1.8 * rows, early, late))
    return sum(_has_alarm(STREAMS[kind](rng, share), rows) for _ in range(streams)) / streams


def _has_alarm(stream: Stream, rows: int) -> bool:
    units, seasons = stream.units, stream.seasons
    concept = detect_concept_drift(
        stream.errors[:rows],
        stream.errors[rows:],
        measure=WRONG,
        units=None if units is None else (units.take(np.arange(rows)), units.take(np.arange(rows, 2 * rows))),
        seasons=None if seasons is None else (seasons[:rows], seasons[rows:]),
    )
    return concept.verdict == "drift"


def print_rates(results: Sequence[dict[str, Any]]) -> None:
    """Print the result of ``alarm_rates``."""
    print("  " + "".join(f"{f'{rows:,} rows':>22}" for rows in SIZES) + f"   ({', '.join(RISES)})")
    for kind in STREAMS:
        cells = {(row["rows"], row["rise"]): row["alarms"] for row in results if row["kind"] == kind}
        print(
            "  " + "".join(f"{' '.join(f'{cells[rows, r]:6.1%}' for r in RISES):>22}" for rows in SIZES) + f"   {kind}"
        )
