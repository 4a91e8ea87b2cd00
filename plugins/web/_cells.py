"""Turns stored drift reports into the cells of the history: one row for each feature, one column for each check.

``paceline.plugins.web.history`` calls ``rows_of``. A report may lack features (above 48 kB), and an event
has none; then the check's summary stands for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel

from paceline.contract import FeatureDrift

from ._checks import StoredCheck

MAX_FEATURES = 20
RowKind = Literal["model error", "estimated error", "all features", "feature"]
# How the rows that are not features are called.
NAMES: Mapping[RowKind, str] = {
    "model error": "Model's error",
    "estimated error": "Estimated error",
    "all features": "All features together",
}


class Cell(BaseModel, json_schema_serialization_defaults_required=True):
    """A feature in one check: the verdict, and the effect from 0 to 1; for an error, its values in both windows.

    ``threshold`` is the smallest effect that matters, if the report has it. A smaller one may be drift, too: by the PSI
    or by missing values.
    """

    verdict: str
    effect: float | None = None
    threshold: float | None = None
    before: float | None = None
    now: float | None = None


class HistoryRow(BaseModel):
    """A feature, or an error of the model, with a cell for each check, or ``None`` if the check has no value."""

    kind: RowKind
    name: str
    cells: list[Cell | None]


def rows_of(checks: Sequence[StoredCheck]) -> tuple[list[HistoryRow], int]:
    """Return the rows of the history, and the number of features that are left out.

    The errors come first, then the features that have drifted, then the others, the largest effect first, and last all
    features together.
    """
    columns = [_cells_of(check) for check in checks]
    keys = {key: None for column in columns for key in column}  # a dict, because a set has no order

    def severity(key: tuple[RowKind, str]) -> tuple[bool, float]:
        cells = [column[key] for column in columns if key in column]
        return any(cell.verdict == "drift" for cell in cells), max(cell.effect or 0.0 for cell in cells)

    features = sorted((key for key in keys if key[0] == "feature"), key=severity, reverse=True)
    joint = ("all features", NAMES["all features"])
    errors = [(kind, name) for kind, name in NAMES.items() if (kind, name) in keys and (kind, name) != joint]
    shown = [*errors, *features[:MAX_FEATURES], *([joint] if joint in keys else [])]
    rows = [
        HistoryRow(kind=kind, name=name, cells=[column.get((kind, name)) for column in columns]) for kind, name in shown
    ]
    return rows, max(len(features) - MAX_FEATURES, 0)


def _cells_of(check: StoredCheck) -> dict[tuple[RowKind, str], Cell]:
    report, summary = check.report, check.summary
    cells: dict[tuple[RowKind, str], Cell] = {}
    for feature in report.features if report else ():
        threshold = _threshold_of(feature, report.settings) if report and feature.effect is not None else None
        cells["feature", feature.name] = Cell(verdict=feature.verdict, effect=feature.effect, threshold=threshold)
    for name in summary.drifted_features if summary else ():
        known = summary.statistics.get(name) if summary else None
        cells.setdefault(("feature", name), Cell(verdict="drift", effect=known.effect if known else None))
    concept, estimate, joint = (report.concept, report.estimate, report.joint) if report else (None, None, None)
    if concept is not None and concept.error_current is not None:
        before, now = concept.error_reference, concept.error_current
        cells["model error", NAMES["model error"]] = Cell(verdict=concept.verdict, before=before, now=now)
    elif summary and summary.concept_drift:
        cells["model error", NAMES["model error"]] = Cell(verdict="drift")
    if estimate is not None and estimate.error is not None:
        before, now = estimate.reference_error, estimate.error
        cells["estimated error", NAMES["estimated error"]] = Cell(verdict=estimate.verdict, before=before, now=now)
    elif summary and summary.estimated_error is not None:
        verdict = "drift" if summary.estimated_drift else "no drift"
        cells["estimated error", NAMES["estimated error"]] = Cell(verdict=verdict, now=summary.estimated_error)
    if joint is not None:
        threshold = _joint_threshold(report.settings) if report else None
        effect = _effect_of(joint.auc)
        cells["all features", NAMES["all features"]] = Cell(verdict=joint.verdict, effect=effect, threshold=threshold)
    elif summary and summary.joint_drift:
        cells["all features", NAMES["all features"]] = Cell(verdict="drift")
    return cells


def _threshold_of(feature: FeatureDrift, settings: Mapping[str, Any]) -> float | None:
    if feature.test == "domain classifier":
        return _joint_threshold(settings)
    features = settings.get("features")
    own = features.get(feature.name) if isinstance(features, Mapping) else None
    return _number(own, "effect_threshold") or _number(settings, "effect_threshold")


def _joint_threshold(settings: Mapping[str, Any]) -> float | None:
    auc = _number(settings, "joint_threshold")
    return None if auc is None else _effect_of(auc)


def _effect_of(auc: float) -> float:
    return min(max(2 * auc - 1, 0.0), 1.0)


def _number(settings: object, key: str) -> float | None:
    """Return a number of the settings, which a user may have written."""
    value = settings.get(key) if isinstance(settings, Mapping) else None
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
