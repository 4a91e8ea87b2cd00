"""Turns stored drift reports into the cells of the history: one row for each feature, one column for each check.

``paceline.plugins.web.history`` calls ``rows_of``. A report may lack features (above 48 kB), come from another version
of Paceline, or have been written by a user; then the check's summary stands for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, FiniteFloat, ValidationError

from ._checks import StoredCheck

MAX_FEATURES = 20
RowKind = Literal["model error", "estimated error", "all features", "feature"]
# How the rows that are not features are called.
NAMES: Mapping[RowKind, str] = {
    "model error": "Model's error",
    "estimated error": "Estimated error",
    "all features": "All features together",
}


class Cell(BaseModel):
    """A feature in one check: the verdict, and the effect from 0 to 1; for an error, its values in both windows."""

    verdict: str
    effect: float | None = None
    before: float | None = None
    now: float | None = None


class HistoryRow(BaseModel):
    """A feature, or an error of the model, with a cell for each check, or ``None`` if the check has no value."""

    kind: RowKind
    name: str
    cells: list[Cell | None]


class _Part(BaseModel):
    """The parts of a report that have a cell; other keys are ignored."""

    name: str = ""
    verdict: str = ""
    effect: FiniteFloat | None = None
    error_reference: FiniteFloat | None = None
    error_current: FiniteFloat | None = None
    reference_error: FiniteFloat | None = None
    error: FiniteFloat | None = None
    auc: FiniteFloat | None = None


class _Report(BaseModel):
    features: list[_Part] = []
    concept: _Part | None = None
    estimate: _Part | None = None
    joint: _Part | None = None


class _Summary(BaseModel):
    drifted_features: list[str] = []
    statistics: dict[str, _Part] = {}
    concept_drift: bool = False
    estimated_drift: bool = False
    estimated_error: FiniteFloat | None = None
    joint_drift: bool = False


def rows_of(checks: Sequence[StoredCheck]) -> tuple[list[HistoryRow], int]:
    """Return the rows of the history, and the number of features that are left out.

    The errors come first, then the features that have drifted, then the others; the largest effect first.
    """
    columns = [_cells_of(check) for check in checks]
    keys = {key: None for column in columns for key in column}  # a dict, because a set has no order

    def severity(key: tuple[RowKind, str]) -> tuple[bool, float]:
        cells = [column[key] for column in columns if key in column]
        return any(cell.verdict == "drift" for cell in cells), max(cell.effect or 0.0 for cell in cells)

    features = sorted((key for key in keys if key[0] == "feature"), key=severity, reverse=True)
    others = [(kind, name) for kind, name in NAMES.items() if (kind, name) in keys]
    rows = [
        HistoryRow(kind=kind, name=name, cells=[column.get((kind, name)) for column in columns])
        for kind, name in [*others, *features[:MAX_FEATURES]]
    ]
    return rows, max(len(features) - MAX_FEATURES, 0)


def _cells_of(check: StoredCheck) -> dict[tuple[RowKind, str], Cell]:
    report, summary = _read(_Report, check.report), _read(_Summary, check.summary)
    cells: dict[tuple[RowKind, str], Cell] = {}
    for feature in report.features:
        cells["feature", feature.name] = Cell(verdict=feature.verdict, effect=feature.effect)
    for name in summary.drifted_features:
        effect = summary.statistics.get(name, _Part()).effect
        cells.setdefault(("feature", name), Cell(verdict="drift", effect=effect))
    concept, estimate, joint = report.concept, report.estimate, report.joint
    if concept is not None and concept.error_current is not None:
        before, now = concept.error_reference, concept.error_current
        cells["model error", NAMES["model error"]] = Cell(verdict=concept.verdict, before=before, now=now)
    elif summary.concept_drift:
        cells["model error", NAMES["model error"]] = Cell(verdict="drift")
    if estimate is not None and estimate.error is not None:
        before, now = estimate.reference_error, estimate.error
        cells["estimated error", NAMES["estimated error"]] = Cell(verdict=estimate.verdict, before=before, now=now)
    elif summary.estimated_error is not None:
        verdict = "drift" if summary.estimated_drift else "no drift"
        cells["estimated error", NAMES["estimated error"]] = Cell(verdict=verdict, now=summary.estimated_error)
    if joint is not None and joint.auc is not None:
        effect = min(max(2 * joint.auc - 1, 0.0), 1.0)
        cells["all features", NAMES["all features"]] = Cell(verdict=joint.verdict, effect=effect)
    elif summary.joint_drift:
        cells["all features", NAMES["all features"]] = Cell(verdict="drift")
    return cells


T = TypeVar("T", bound=BaseModel)


def _read(kind: type[T], value: Any) -> T:
    """Return a stored value as far as it is valid."""
    try:
        return kind.model_validate(value)
    except ValidationError:
        return kind()
