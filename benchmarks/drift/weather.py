"""Drift in decades of real daily weather records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.drift.rates import detection_rate, false_alarm_rate
from paceline.drift import DriftSettings, compare
from paceline.drift.concept import detect_concept_drift
from paceline.drift.detectors import DETECTORS
from paceline.drift.prediction_errors import WRONG


def weather_drift(path: Path, windows: int) -> dict[str, Any]:
    """Compare each year of daily weather records with years 2 and 3, using a model trained on year 1."""
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
        settings = DriftSettings(error="wrong")
        report = compare(reference, current, prediction="predicted", actual="target", settings=settings)
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


def print_weather(name: str, weather: dict[str, Any]) -> None:
    """Print the result of ``weather_drift``."""
    print(f"{name}: {weather['rows']} rows")
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
