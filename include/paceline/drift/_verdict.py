"""Combines the findings of a comparison into one verdict and its reason. Called by ``paceline.drift.compare``."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.drift._columns import shorten
from paceline.drift._features import CONSTANT, TestedFeature
from paceline.drift._performance import PerformanceEstimate
from paceline.drift._report import ConceptDrift, FeatureDrift, JointDrift, Verdict

_NAMES = 10  # maximum number of features that a reason names


def overall_verdict(
    features: Sequence[FeatureDrift],
    others: Sequence[JointDrift | ConceptDrift | PerformanceEstimate | None],
    measured: Sequence[TestedFeature],
) -> tuple[Verdict, str]:
    """Return the verdict of a comparison and its reason."""
    drifted = [feature.name for feature in features if feature.verdict == "drift"]
    tested = [feature for feature in features if feature.verdict != "skipped"]
    parts = []
    if drifted:
        names = ", ".join(map(shorten, drifted[:5])) + (f" and {len(drifted) - 5} more" if len(drifted) > 5 else "")
        parts.append(f"Drift in {len(drifted)} of {len(tested)} features: {names}.")
    parts += [part.reason for part in others if part is not None and part.verdict == "drift"]
    if parts:
        return "drift", " ".join(parts)
    if not tested and any(item.too_few for item in measured):
        return "not enough data", "No feature has enough values in both windows."
    if not tested:
        return _untested_verdict(features, [part for part in others if part is not None])
    return "no drift", f"No drift in {len(tested)} feature{'' if len(tested) == 1 else 's'}."


def _untested_verdict(
    features: Sequence[FeatureDrift], others: Sequence[JointDrift | ConceptDrift | PerformanceEstimate]
) -> tuple[Verdict, str]:
    """Return the verdict of a comparison without a tested feature and without drift."""
    if any(part.verdict == "no drift" for part in others):
        return "no drift", "No drift in the model's error. No feature was compared."
    if any(part.verdict == "not enough data" for part in others):
        return "not enough data", "; ".join(part.reason for part in others if part.verdict == "not enough data")
    if any(feature.reason == CONSTANT for feature in features):
        return "no drift", "No drift: each compared feature has one value in both windows."
    left_out = [f"{shorten(feature.name)}: {feature.reason}" for feature in features[:_NAMES]]
    more = f" and {len(features) - _NAMES} more" if len(features) > _NAMES else ""
    return "nothing compared", f"Nothing was compared: {'; '.join(left_out) or 'the reference has no features'}{more}."


def too_short_reason(reference: int, current: int, minimum: int) -> str:
    """Return which window has too few rows, or ""."""
    short = [
        f"{name}: got {rows} rows, expected at least {minimum} (minimum_samples)"
        for name, rows in (("reference", reference), ("current", current))
        if rows < minimum
    ]
    return "; ".join(short)
