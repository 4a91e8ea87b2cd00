"""False alarms and detection in rows that depend on each other, with and without the parameters that say so."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from scipy.signal import lfilter

from paceline.drift import compare

FEATURES = 10
ROWS = (200, 1_000, 10_000, 100_000)
SHIFT = 0.5  # of one feature, in standard deviations
_START = pd.Timestamp("2029-01-01")  # a Monday


@dataclass(frozen=True)
class Stream:
    """A kind of rows without drift.

    ``make`` returns a number of rows, given a random generator and the number of the window. ``arguments`` are those of
    ``compare`` that the guide recommends for this kind.
    """

    make: Callable[[np.random.Generator, int, int], pd.DataFrame]
    arguments: Mapping[str, str] = field(default_factory=dict)


def _frame(values: np.ndarray) -> pd.DataFrame:
    return pd.DataFrame(values, columns=[f"feature_{number}" for number in range(values.shape[1])])


def independent(rng: np.random.Generator, rows: int, window: int) -> pd.DataFrame:
    """Return independent rows."""
    return _frame(rng.normal(size=(rows, FEATURES)))


def autocorrelated(rng: np.random.Generator, rows: int, window: int) -> pd.DataFrame:
    """Return rows of successive hours; the correlation of neighbours is 0.9."""
    noise = rng.normal(0, 0.19**0.5, (rows + 300, FEATURES))
    at = _START + pd.to_timedelta(window * rows + np.arange(rows), unit="h")
    return _frame(lfilter([1], [1, -0.9], noise, axis=0)[300:]).assign(at=at)


def clustered(noise: float, rng: np.random.Generator, rows: int, window: int) -> pd.DataFrame:
    """Return ten rows of each customer, which differ by ``noise``."""
    customer = np.arange(rows) // 10
    values = rng.normal(size=(customer[-1] + 1, FEATURES))[customer] + noise * rng.normal(size=(rows, FEATURES))
    return _frame(values).assign(customer=customer + window * rows)


def clusters(rng: np.random.Generator, rows: int, window: int) -> pd.DataFrame:
    """Return ten similar rows of each customer."""
    return clustered(0.3, rng, rows, window)


def copies(rng: np.random.Generator, rows: int, window: int) -> pd.DataFrame:
    """Return ten equal rows of each customer."""
    return clustered(0.0, rng, rows, window)


def weekly(rng: np.random.Generator, rows: int, window: int) -> pd.DataFrame:
    """Return rows of four weeks (the reference) or of a Saturday, which has higher values than a weekday."""
    day = rng.integers(0, 28, rows) if window == 0 else np.full(rows, 33)
    values = rng.normal(0.6 * (day % 7 >= 5)[:, None], 1.0, (rows, FEATURES))
    second = 86_400 * day + rng.integers(0, 86_400, rows)
    return _frame(values).assign(at=_START + pd.to_timedelta(second, unit="s"))


STREAMS = {
    "independent rows": Stream(independent),
    "AR(0.9)": Stream(autocorrelated, {"time": "at"}),
    "clusters of ten, 0.3 sd": Stream(clusters, {"groups": "customer"}),
    "ten equal rows": Stream(copies, {"groups": "customer"}),
    "Saturday against weeks": Stream(weekly, {"time": "at", "season": "weekday"}),
}


def _count(name: str, rows: int, windows: int, seed: int) -> dict[str, int]:
    rng = np.random.default_rng(seed)
    stream = STREAMS[name]
    counts = {"plain": 0, "named": 0, "detected": 0}
    for _ in range(windows):
        reference, current = (stream.make(rng, rows, window) for window in (0, 1))
        features = [column for column in reference.columns if column.startswith("feature")]
        counts["plain"] += compare(reference, current, columns=features).drifted
        counts["named"] += compare(reference, current, columns=features, **stream.arguments).drifted  # type: ignore[arg-type]
        current["feature_0"] += SHIFT * reference["feature_0"].std()
        found = compare(reference, current, columns=features, **stream.arguments)  # type: ignore[arg-type]
        counts["detected"] += "feature_0" in found.drifted_features
    return counts


def dependent_rates(windows: int) -> list[dict[str, Any]]:
    """Return, for each kind of stream and number of rows, the shares of windows with an alarm."""
    cases = [(name, rows) for name in STREAMS for rows in ROWS]
    found = []
    with ProcessPoolExecutor() as pool:
        parts = [pool.submit(_count, name, rows, _windows(rows, windows), 7) for name, rows in cases]
        for (name, rows), part in zip(cases, parts, strict=True):
            number = _windows(rows, windows)
            rates = {key: count / number for key, count in part.result().items()}
            found.append({"stream": name, "rows": rows, "windows": number, **rates})
            named = ", ".join(STREAMS[name].arguments) or "no"
            print(
                f"  {name:<24} {rows:>7,} rows, {number:>4} windows: false alarms {rates['plain']:6.1%}, with {named} "
                f"parameter {rates['named']:6.1%}; shift of {SHIFT} sd detected {rates['detected']:6.1%}",
                flush=True,
            )
    return found


def _windows(rows: int, windows: int) -> int:
    return windows if rows <= 1_000 else max(1, windows // (4 if rows <= 10_000 else 10))
