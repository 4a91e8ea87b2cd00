"""Measures false-alarm and detection rates of the drift tests, also on a long real stream.

Run this benchmark as ``python -m benchmarks.drift [--data weather.csv] [--json FILE] [--windows 200]``.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from paceline.drift import compare
from paceline.drift.concept import DETECTORS, WRONG, detect_concept_drift

MakeFrame = Callable[[np.random.Generator, int], pd.DataFrame]


def ten_features(rng: np.random.Generator, n: int) -> pd.DataFrame:
    """Return ten features: normal, skewed, mostly zero, integer, categorical, and one with missing values."""
    frame = pd.DataFrame({f"normal_{i}": rng.normal(size=n) for i in range(4)})
    frame["delay"] = rng.exponential(size=n)
    frame["rain"] = np.where(rng.random(n) < 0.9, 0.0, rng.exponential(size=n))
    frame["hour"] = rng.integers(0, 24, n)
    frame["carrier"] = rng.choice(list("ABCDEFGH"), n, p=[0.3, 0.2, 0.2, 0.1, 0.1, 0.05, 0.04, 0.01])
    frame["origin"] = rng.choice(["EWR", "JFK", "LGA"], n)
    frame["gust"] = np.where(rng.random(n) < 0.3, np.nan, rng.gamma(3, size=n))
    return frame


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


def detector_rates(windows: int, history: int = 1000, n: int = 1000) -> list[dict[str, Any]]:
    """Return the alarm rate of each detector on predictions whose error rate of 15 % rises in the middle."""
    rows = []
    for detector in DETECTORS:
        for error_after in (0.15, 0.20, 0.25, 0.35):
            rng = np.random.default_rng(2)
            alarms, delays = 0, []
            for _ in range(windows):
                reference = (rng.random(history) < 0.15).astype(np.float64)
                current = (rng.random(n) < np.where(np.arange(n) < n // 2, 0.15, error_after)).astype(np.float64)
                report = detect_concept_drift(reference, current, measure=WRONG, detector=detector)
                alarms += report.verdict == "drift"
                delays += [c.detected_row - n // 2 for c in report.changes if c.is_rise and c.detected_row >= n // 2][
                    :1
                ]
            delay = float(np.median(delays)) if error_after > 0.15 and delays else None
            rows.append(
                {"detector": detector, "error_after": error_after, "alarms": alarms / windows, "delay_rows": delay}
            )
    return rows


def weather_drift(path: Path, windows: int) -> dict[str, Any]:
    """Compare each year of daily weather records with years 2 and 3, using a model that is trained on year 1."""
    from sklearn.ensemble import HistGradientBoostingClassifier  # type: ignore[import-untyped,unused-ignore]

    data = pd.read_csv(path)
    columns = [name for name in data.columns if name != "target"]
    model = HistGradientBoostingClassifier(random_state=0).fit(data[columns][:365], data["target"][:365])
    rest = data[365:].reset_index(drop=True)
    rest["predicted"] = model.predict_proba(rest[columns])[:, 1]
    reference = rest[:730]
    years = []
    for start in range(730, len(rest) - 364, 365):
        current = rest[start : start + 365].reset_index(drop=True)
        report = compare(reference, current, prediction="predicted", actual="target")
        assert report.concept is not None  # because the columns of predictions and of labels are passed
        years.append(
            {
                "year": (start + 365) // 365 + 1,
                "verdict": report.verdict,
                "drifted_features": report.drifted_features,
                "largest_psi": max(f.psi or 0.0 for f in report.features),
                "error": report.concept.error_current,
                "concept": report.concept.verdict,
            }
        )
    is_wrong = ((rest["predicted"] >= 0.5) != (rest["target"] == 1)).to_numpy(dtype=float)
    changes = {}
    for detector in DETECTORS:
        concept = detect_concept_drift(is_wrong[:730], is_wrong[730:], measure=WRONG, detector=detector)
        changes[detector] = [(c.row, c.detected_row, c.error_before, c.error_after) for c in concept.changes]

    def shuffled(rng: np.random.Generator, n: int) -> pd.DataFrame:
        rows: pd.DataFrame = data[columns].take(rng.choice(len(data), n, replace=False))
        return rows.reset_index(drop=True)

    return {
        "rows": len(data),
        "false_alarms": false_alarm_rate(shuffled, windows, 500),
        "detection_half_sd": detection_rate(shuffled, windows, 500, 0.5),
        "years": years,
        "changes": changes,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark, print its tables and write them as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.drift", description=__doc__)
    parser.add_argument("--data", type=Path, help="CSV of daily weather records with a 0/1 column `target`")
    parser.add_argument("--json", type=Path, help="also write the figures as JSON")
    parser.add_argument("--windows", type=int, default=200, help="number of windows for each figure (200)")
    options = parser.parse_args(arguments)
    started = time.monotonic()
    result: dict[str, Any] = {"windows": options.windows, "false_alarms": {}, "detection": {}}

    print(f"False alarms in {options.windows} windows without drift, ten features, default settings")
    for n in (100, 500, 5000):
        result["false_alarms"][n] = share = false_alarm_rate(ten_features, options.windows, n)
        print(f"  n = {n:<5}  {share:6.1%}")
    print(f"Detection of a shift in one of ten features, {options.windows} windows")
    for n in (100, 200, 500, 5000):
        shares = {shift: detection_rate(ten_features, options.windows, n, shift) for shift in (0.1, 0.25, 0.5, 1.0)}
        result["detection"][n] = shares
        print(f"  n = {n:<5}  " + "   ".join(f"{shift:g} sd {share:6.1%}" for shift, share in shares.items()))

    print("Alarms after 1,500 rows with a model error of 15 %, in 500 rows with an error of")
    result["detectors"] = detector_rates(options.windows)
    for row in result["detectors"]:
        delay = "" if row["delay_rows"] is None else f"   median delay {row['delay_rows']:.0f} rows"
        print(f"  {row['detector']:<13} {row['error_after']:.0%}: alarm in {row['alarms']:6.1%}{delay}")

    if options.data is not None:
        result["weather"] = weather = weather_drift(options.data, options.windows)
        print(f"{options.data.name}: {weather['rows']} rows")
        print(f"  shuffled, n = 500: false alarms {weather['false_alarms']:.1%}")
        print(
            f"  shuffled, shift of 0.5 standard deviations in one of eight features: "
            f"{weather['detection_half_sd']:.1%} detected"
        )
        print("  year  features  largest PSI  error  concept   (compared with years 2 and 3; model of year 1)")
        for year in weather["years"]:
            print(
                f"  {year['year']:>4}  {len(year['drifted_features']):>8}  {year['largest_psi']:>11.2f}"
                f"  {year['error']:>5.1%}  {year['concept']}"
            )
        for detector, places in weather["changes"].items():
            text = ", ".join(f"{row} ({before:.1%} to {after:.1%})" for row, _, before, after in places)
            print(f"  {detector} on all years: changes at rows {text or 'none'}")
    result["seconds"] = round(time.monotonic() - started, 1)
    print(f"{result['seconds']} s")
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
