"""Shortens a drift report for XComs and events. ``DriftSensor`` and ``DriftTrigger`` store the result for the pages."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import Any

from pydantic import TypeAdapter

from paceline.contract._drift_report import DriftReport
from paceline.contract._findings import FeatureDrift

XCOM_LIMIT_BYTES = 48_000
_NOTES_BYTES = 300  # reserved for the notes about omissions


def fit_to_xcom(report: DriftReport, limit_bytes: int = XCOM_LIMIT_BYTES) -> dict[str, Any]:
    """Return a report as ``DriftReport.to_dict`` does, small enough for XCom.

    First omit values that are the default, then features without drift, then the histograms of the least severe drifted
    features, then those features, then the least severe data quality problems. Notes state how many are omitted.

    >>> features = FeatureDrift("a", "numeric", "drift", "x" * 90), FeatureDrift("b", "text", "no drift", "x" * 600)
    >>> short = fit_to_xcom(DriftReport("drift", "", 9, 9, features), limit_bytes=700)
    >>> [feature["name"] for feature in short["features"]], short["notes"]
    (['a'], ['1 feature is omitted here; the stored report contains all features.'])
    """
    whole = report.to_dict()
    features = [_without_defaults(feature) for feature in report.features]
    for complete in (whole, {**whole, "features": features}):
        if len(json.dumps(complete)) <= limit_bytes:
            return complete
    notes = [*report.notes]
    note = "{} features are omitted here; the stored report contains all features."
    longest_note = note.format(len(features))
    problems = _limit_quality({**whole, "features": []}, limit_bytes)
    if omitted := len(report.quality) - len(problems):
        notes.append(f"Data quality problems that are omitted here, but not in the stored report: {omitted}.")
    short = {**whole, "quality": problems}
    left = limit_bytes - len(json.dumps({**short, "features": [], "notes": [*notes, longest_note]}))
    kept: dict[int, dict[str, Any]] = {}
    # The features are sorted by severity, drifted features first.
    drifted = [feature for feature in report.features if feature.verdict == "drift"]
    plain = [_without_defaults(replace(feature, histogram=None)) for feature in drifted]
    for entries in (plain, features):  # first the drifted features without histograms, then whole features
        for number, entry in enumerate(entries):
            size = len(json.dumps(entry)) + 2
            size -= len(json.dumps(kept[number])) + 2 if number in kept else 0
            if size > left:
                break
            kept[number] = entry
            left -= size
    if omitted := len(features) - len(kept):
        notes.append(note.format(omitted) if omitted > 1 else note.format(1).replace("features are", "feature is"))
    return {**short, "features": list(kept.values()), "notes": notes}


def _limit_quality(report: dict[str, Any], limit_bytes: int) -> list[dict[str, Any]]:
    """Return the data quality problems without the last ones, if the report without features is too large."""
    kept = list(report["quality"])
    excess = len(json.dumps(report)) + _NOTES_BYTES - limit_bytes
    while excess > 0 and kept:
        excess -= len(json.dumps(kept.pop())) + 2
    return kept


@cache
def _stored_feature() -> TypeAdapter[FeatureDrift]:
    return TypeAdapter(FeatureDrift)


def _without_defaults(feature: FeatureDrift) -> dict[str, Any]:
    stored: dict[str, Any] = _stored_feature().dump_python(feature, mode="json", exclude_defaults=True)
    return stored
