"""Decides the verdict of each feature from the tests of all features, and how much of the importance has drifted.

Called by ``paceline.drift._feature_comparison``; ``paceline.drift._features`` runs the tests.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction

from paceline.contract import FeatureDrift
from paceline.drift._categories import RARE
from paceline.drift._columns import Column, list_names, shorten_name
from paceline.drift._features import CONSTANT, UNTESTED, TestedFeature
from paceline.drift._settings import DriftSettings
from paceline.errors import InvalidInputError


def judge_features(measured: Sequence[TestedFeature], settings: DriftSettings) -> list[FeatureDrift]:
    """Return all features with verdicts, in their order. Control the false discovery rate of all tests together.

    The correction excludes the missing-value test of a feature without missing values: this test cannot be significant
    and would only weaken the other tests.
    """
    from scipy.stats import false_discovery_control

    tests: list[tuple[int, str]] = []
    p_values: list[float] = []
    for index, item in enumerate(measured):
        for tested, result in (("values", item.values), ("missing", item.missing)):
            if result is not None and (tested == "values" or result.effect or result.p_value < 1.0):
                tests.append((index, tested))
                p_values.append(result.p_value)
    adjusted = dict(zip(tests, false_discovery_control(p_values).tolist(), strict=True)) if p_values else {}
    judged = []
    for index, item in enumerate(measured):
        own = settings.of_feature(item.feature.name)
        judged.append(_judge(item, adjusted.get((index, "values")), adjusted.get((index, "missing")), own))
    return judged


def sort_by_severity(features: Sequence[FeatureDrift]) -> list[FeatureDrift]:
    """Return features with the most severe drift first, and skipped ones last."""
    rank = {"drift": 0, "no drift": 1, "skipped": 2}
    return sorted(features, key=lambda f: (rank[f.verdict], -_severity(f), f.name))


def drifted_share(features: Sequence[FeatureDrift], settings: DriftSettings) -> float | None:
    """Return the importance of the drifted features as a share of that of all compared ones.

    The share is None if no compared feature has an importance. Features with too dependent rows for a test count as not
    drifted. Fractions are exact: sums of floating-point numbers may overflow, or be slightly below ``drift_share``.
    """

    def importance(chosen: Iterable[FeatureDrift]) -> Fraction:
        return sum((Fraction(settings.importance(one.name)) for one in chosen), Fraction())

    compared = importance(one for one in features if one.verdict != "skipped" or one.reason == CONSTANT)
    if not compared:
        return None
    total = compared + importance(one for one in features if one.reason in UNTESTED)
    return float(importance(one for one in features if one.verdict == "drift") / total)


def check_importance(columns: Sequence[Column], settings: DriftSettings) -> None:
    """Raise InvalidInputError if ``drift_share`` can never be reached, because no column has an importance."""
    if settings.drift_share and columns and not any(settings.importance(one.name) for one in columns):
        accepted = "0, or an importance above 0 for at least one compared feature"
        raise InvalidInputError("settings.drift_share", settings.drift_share, accepted)


def describe_unused_settings(features: Sequence[FeatureDrift], settings: DriftSettings) -> list[str]:
    """Return a note for each column whose own settings have no effect."""
    known = {one.name: one for one in features}
    notes = []
    for name, own in settings.features.items():
        feature = known.get(name)
        unused = [field for field in ("effect_threshold", "psi_threshold") if getattr(own, field) is not None]
        if feature is None or (feature.verdict == "skipped" and feature.reason not in (CONSTANT, *UNTESTED)):
            reason = ", because the column is not compared" if feature is None else f": {feature.reason}"
            notes.append(f"The settings of {shorten_name(name)} have no effect{reason}.")
        elif feature.test == "domain classifier" and unused:
            has = "have" if len(unused) > 1 else "has"
            notes.append(
                f"{' and '.join(unused)} of {shorten_name(name)} {has} no effect: a classifier with joint_threshold "
                "tests it."
            )
    return notes


def describe_untested(features: Sequence[FeatureDrift]) -> list[str]:
    """Return a note for each reason for which features with dependent rows are not tested."""
    named = {reason: [one.name for one in features if one.reason == reason] for reason in UNTESTED}
    return [f"Not tested: {list_names(names)} ({reason})." for reason, names in named.items() if names]


def _severity(feature: FeatureDrift) -> float:
    gap = abs(feature.missing_current - feature.missing_reference)
    return max(feature.effect or 0.0, gap)


def _judge(
    item: TestedFeature, p_value: float | None, p_missing: float | None, settings: DriftSettings
) -> FeatureDrift:
    feature = replace(item.feature, adjusted_p_value=p_value, missing_adjusted_p_value=p_missing)
    findings = []
    if p_value is not None and p_value <= settings.significance:
        if _is_relevant(feature, settings):
            findings.append(_describe_change(feature) + f": {item.detail}" * bool(item.detail))
        else:
            feature = replace(feature, reason="the difference is significant, but too small to matter")
    before, after = feature.missing_reference, feature.missing_current
    gap = abs(after - before)
    if p_missing is not None and p_missing <= settings.significance and gap >= settings.missing_threshold:
        if after == 1.0:  # broken data, not drift; see ``paceline.drift.quality``
            return replace(feature, reason=f"no values in the current window ({before:.0%} missing in the reference)")
        findings.append(f"the share of missing values changed from {before:.0%} to {after:.0%}")
    if findings:
        return replace(feature, verdict="drift", reason="; ".join(findings))
    if item.values is None:
        return feature
    return replace(feature, verdict="no drift")


def _is_relevant(feature: FeatureDrift, settings: DriftSettings) -> bool:
    if feature.test == "domain classifier":
        return (feature.statistic or 0.0) >= settings.joint_threshold
    psi, effect = feature.psi or 0.0, feature.effect or 0.0
    return psi >= settings.psi_threshold or effect >= settings.effect_threshold


def _describe_change(feature: FeatureDrift) -> str:
    if feature.test == "domain classifier":
        values = "vectors" if feature.kind == "embedding" else "texts"
        return f"a classifier distinguishes its {values} in the two windows (AUC {feature.statistic or 0.0:.2f})"
    if feature.kind == "text":
        return "the shares of its most frequent texts changed"
    if feature.kind == "categorical":
        new = f", with new categories {', '.join(feature.new_categories)}" if feature.new_categories else ""
        return f"the shares of its {RARE if feature.test.endswith(RARE) else 'categories'} changed{new}"
    if feature.level_reference is None or feature.level_current is None:
        return "its distribution changed"
    return f"its distribution changed, its mean from {feature.level_reference:.4g} to {feature.level_current:.4g}"
