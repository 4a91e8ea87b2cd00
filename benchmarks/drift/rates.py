"""Rates of false alarms and detection of Paceline's drift tests alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.drift.frames import MakeFrame
from paceline.drift import compare
from paceline.drift.concept import detect_concept_drift
from paceline.drift.detectors import DETECTORS
from paceline.drift.prediction_errors import WRONG

ERROR_BEFORE = 0.15
# Concept drift: a history of errors, then as many rows whose error rate changes in the middle.
ROWS = 1000


def false_alarm_rate(make: MakeFrame, windows: int, n: int, seed: int = 0) -> float:
    """Return the share of drift-free windows that raise an alarm at the default settings."""
    rng = np.random.default_rng(seed)
    return sum(compare(make(rng, n), make(rng, n)).drifted for _ in range(windows)) / windows


def detection_rate(make: MakeFrame, windows: int, n: int, shift: float, seed: int = 1) -> float:
    """Return the share of windows in which a shift of one feature by ``shift`` standard deviations is detected."""
    rng = np.random.default_rng(seed)
    detected = 0
    for _ in range(windows):
        reference, current = make(rng, n), make(rng, n)
        feature = str(reference.columns[0])
        current[feature] += shift * reference[feature].std()
        detected += feature in compare(reference, current).drifted_features
    return detected / windows


def make_errors(windows: int, error_after: float) -> np.ndarray:
    """Return streams of wrong (1) and right (0) predictions, one per row: the history, then the current rows."""
    rng = np.random.default_rng(2)
    shares = np.where(np.arange(2 * ROWS) < 1.5 * ROWS, ERROR_BEFORE, error_after)
    return (rng.random((windows, 2 * ROWS)) < shares).astype(np.float64)


def detector_rates(windows: int, errors_after: tuple[float, ...] = (0.15, 0.20, 0.25, 0.35)) -> list[dict[str, Any]]:
    """Return the alarm rate of each detector on predictions whose error rate of 15 % changes in the middle.

    Delay is the median number of rows from the change to the alarm. Distance is the median number of rows between the
    change and the row that the detector reports for it.
    """
    rows = []
    for detector in DETECTORS:
        for error_after in errors_after:
            alarms, delays, distances = 0, [], []
            for stream in make_errors(windows, error_after):
                report = detect_concept_drift(stream[:ROWS], stream[ROWS:], measure=WRONG, detector=detector)
                alarms += report.verdict == "drift"
                late = [c for c in report.changes if c.is_rise and c.detected_row >= ROWS // 2][:1]
                delays += [c.detected_row - ROWS // 2 for c in late]
                distances += [abs(c.row - ROWS // 2) for c in late]
            rises = error_after > ERROR_BEFORE and bool(delays)
            rows.append(
                {
                    "detector": detector,
                    "error_after": error_after,
                    "alarms": alarms / windows,
                    "delay_rows": float(np.median(delays)) if rises else None,
                    "distance_rows": float(np.median(distances)) if rises else None,
                }
            )
    return rows
