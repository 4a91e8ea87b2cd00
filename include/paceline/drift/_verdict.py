"""Combines the findings of a comparison into one verdict and its reason. Called by ``paceline.drift.compare``."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.contract import ConceptDrift, DriftVerdict, FeatureDrift, JointDrift, PerformanceEstimate
from paceline.drift._columns import list_names, shorten_name
from paceline.drift._feature_comparison import FeatureComparison
from paceline.drift._features import CONSTANT, UNTESTED
from paceline.drift._judgement import drifted_share
from paceline.drift._settings import DriftSettings

_NAMES = 10  # maximum number of features that a reason names


def overall_verdict(
    found: FeatureComparison, errors: Sequence[ConceptDrift | PerformanceEstimate | None], settings: DriftSettings
) -> tuple[DriftVerdict, str]:
    """Return the verdict of a comparison and its reason, which names untested features and withheld estimates."""
    others = [part for part in (found.joint, *errors) if part is not None]
    verdict, reason = _verdict_of_parts(found, others, settings)
    withheld = [part.reason for part in others if part.verdict == "withheld"]
    untested = [feature.name for feature in found.features if feature.reason in UNTESTED]
    left_out = [f"Not tested: {list_names(untested)}."] if untested and verdict in ("drift", "no drift") else []
    return verdict, " ".join([reason, *left_out, *withheld])


def _verdict_of_parts(
    found: FeatureComparison, others: Sequence[JointDrift | ConceptDrift | PerformanceEstimate], settings: DriftSettings
) -> tuple[DriftVerdict, str]:
    """Return the verdict of the parts that have one, and its reason."""
    features, segments, measured = found.features, found.segments, found.measured
    drifted = [feature.name for feature in features if feature.verdict == "drift"]
    tested = [feature for feature in features if feature.verdict != "skipped"]
    parts, too_few = [], ""
    if drifted:
        parts.append(f"Drift in {len(drifted)} of {len(tested)} features: {list_names(drifted)}.")
        share = drifted_share(features, settings)
        if (share or 0.0) < settings.drift_share:
            too_few = "No feature with an importance above 0 was tested."
            if share is not None:
                too_few = (
                    f"Too few for drift: {share:.0%} by importance, less than drift_share={settings.drift_share:g}."
                )
            parts = [f"{parts[0]} {too_few}"]
    parts += [part.reason for part in others if part.verdict == "drift"]
    in_segments = [segment for segment in segments if segment.verdict == "drift"]
    if in_segments:
        names = list_names([f"{one.name} ({list_names(one.drifted_features)})" for one in in_segments])
        parts.append(f"Drift in {len(in_segments)} of {len(segments)} segments: {names}.")
    if too_few and len(parts) == 1:
        return "nothing compared" if share is None else "no drift", parts[0]
    if parts:
        return "drift", " ".join(parts)
    if not tested and any(item.too_few for item in measured):
        return "not enough data", "No feature has enough values in both windows."
    if not tested:
        return _untested_verdict(features, others)
    return "no drift", f"No drift in {len(tested)} feature{'' if len(tested) == 1 else 's'}."


def _untested_verdict(
    features: Sequence[FeatureDrift], others: Sequence[JointDrift | ConceptDrift | PerformanceEstimate]
) -> tuple[DriftVerdict, str]:
    """Return the verdict of a comparison without a tested feature and without drift."""
    if any(part.verdict == "no drift" for part in others):
        return "no drift", "No drift in the model's error. No feature was compared."
    if any(part.verdict == "not enough data" for part in others):
        return "not enough data", "; ".join(part.reason for part in others if part.verdict == "not enough data")
    if any(feature.reason == CONSTANT for feature in features):
        return "no drift", "No drift: each compared feature has one value in both windows."
    left_out = [f"{shorten_name(feature.name)}: {feature.reason}" for feature in features[:_NAMES]]
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
