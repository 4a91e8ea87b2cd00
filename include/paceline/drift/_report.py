"""``DriftReport``: the result of a comparison, with a JSON form. ``paceline.drift._findings`` has its parts.

``paceline.drift.compare`` creates reports; the sensors and the HTML page read them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, TypeVar

from paceline.drift._confusion import Confusion
from paceline.drift._findings import (
    NEEDS_TRAINING,
    Change,
    ConceptDrift,
    FeatureDrift,
    Histogram,
    JointDrift,
    QualityProblem,
    SegmentDrift,
    Verdict,
)
from paceline.drift._performance import EstimatedPeriod, PerformanceEstimate
from paceline.errors import InvalidInputError

FORMAT = 1


@dataclass(frozen=True)
class DriftReport:
    """The result of ``compare`` for two windows.

    Parameters
    ----------
    verdict:
        ``"drift"``, ``"no drift"``, ``"not enough data"``, ``"bad data"`` if the current window has a severe data
        quality problem, ``"nothing compared"`` if every feature that counts is skipped, or ``"no champion"`` if
        there is no model yet whose training data could be the reference.
    reason:
        The verdict in one sentence.
    reference_rows, current_rows:
        Number of rows in each window.
    features:
        Every feature, most severe drift first.
    concept:
        The model's error, if ``compare`` was called with the columns of predictions and labels.
    joint:
        The joint distribution of the features, if no single feature has drifted.
    estimate:
        The model's error estimated without labels, if the reference has predictions and labels.
    reference, current:
        Descriptions of the windows: a query, a path, a time span.
    notes:
        Remarks, for example about samples.
    settings:
        The thresholds of the comparison.
    quality:
        Data quality problems, severe ones first; at most 50.
    segments:
        The segments, those with drift first, if ``compare`` was called with ``segments``.

    Examples
    --------
    >>> report = DriftReport("no drift", "No drift in 3 features.", 500, 500)
    >>> DriftReport.from_dict(report.to_dict()) == report
    True
    """

    verdict: Verdict
    reason: str
    reference_rows: int
    current_rows: int
    features: tuple[FeatureDrift, ...] = ()
    concept: ConceptDrift | None = None
    joint: JointDrift | None = None
    estimate: PerformanceEstimate | None = None
    reference: str = "reference"
    current: str = "current"
    notes: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    quality: tuple[QualityProblem, ...] = ()
    segments: tuple[SegmentDrift, ...] = ()

    @property
    def drifted(self) -> bool:
        """Whether the verdict is drift."""
        return self.verdict == "drift"

    @property
    def needs_training(self) -> bool:
        """Whether a model is to be trained, because of drift or because there is no model yet."""
        return self.verdict in NEEDS_TRAINING

    @property
    def is_tested(self) -> bool:
        """Whether any test has a result, so that there was a chance of a false alarm."""
        parts = (self.concept, self.joint, self.estimate)
        return (
            any(one.adjusted_p_value is not None or one.missing_adjusted_p_value is not None for one in self.features)
            or any(part is not None and part.verdict in ("drift", "no drift", "withheld") for part in parts)
            or any(one.tested for one in self.segments)
        )

    @property
    def drifted_features(self) -> list[str]:
        """Names of the features that drifted, most severe first."""
        return [feature.name for feature in self.features if feature.verdict == "drift"]

    @property
    def drifted_parts(self) -> list[str]:
        """Sorted names of the drifted features, with ``"(concept)"`` if the model's error rose.

        ``"(estimate)"`` means that the estimated error of rows without labels rose, ``"(joint)"`` that no single
        feature has drifted but all of them have jointly. A drifted segment is ``"(segment NAME)"``. Without a champion,
        ``["(no champion)"]``.
        """
        if self.verdict == "no champion":
            return ["(no champion)"]
        others = (("(concept)", self.concept), ("(joint)", self.joint), ("(estimate)", self.estimate))
        found = [name for name, part in others if part and part.verdict == "drift"]
        found += [f"(segment {one.name})" for one in self.segments if one.verdict == "drift"]
        return sorted([*self.drifted_features, *found])

    def fingerprint(self) -> str:
        """Return a digest of the report; equal data and settings have equal digests.

        >>> DriftReport("no drift", "", 5, 5).fingerprint() == DriftReport("no drift", "", 5, 6).fingerprint()
        False
        """
        text = json.dumps(self.to_dict(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def summary(self) -> dict[str, Any]:
        """Return a JSON-safe extract of the report, small enough for an XCom or an asset event.

        The extract contains at most twenty data quality problems, the statistics of at most twenty drifted features,
        and no histograms.
        """
        drifted = [feature for feature in self.features if feature.verdict == "drift"]
        estimate = self.estimate if self.estimate is not None and self.estimate.verdict != "withheld" else None
        return {
            "verdict": self.verdict,
            "reason": self.reason,
            "drifted_features": self.drifted_features,
            "concept_drift": self.concept is not None and self.concept.verdict == "drift",
            "joint_drift": self.joint is not None and self.joint.verdict == "drift",
            "estimated_drift": estimate is not None and estimate.verdict == "drift",
            "estimated_error": estimate and estimate.error,
            "drifted_segments": [one.name for one in self.segments if one.verdict == "drift"],
            "statistics": {
                feature.name: {
                    "test": feature.test,
                    "effect": feature.effect,
                    "adjusted_p_value": feature.adjusted_p_value,
                    "psi": feature.psi,
                    "missing_reference": feature.missing_reference,
                    "missing_current": feature.missing_current,
                }
                for feature in drifted[:20]
            },
            "quality": [asdict(problem) for problem in self.quality[:20]],
            "features": len(self.features),
            "reference_rows": self.reference_rows,
            "current_rows": self.current_rows,
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the whole report as a JSON-safe dict, which ``from_dict`` reads."""
        loaded: dict[str, Any] = json.loads(json.dumps({"format": FORMAT, **asdict(self)}, allow_nan=False))
        return loaded

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> DriftReport:
        """Build a report from the result of ``to_dict``. Ignore unknown keys, which a later version may write."""
        if data.get("format") != FORMAT:
            raise InvalidInputError("format", data.get("format"), f"{FORMAT}, the format of this version of Paceline")
        features = tuple(
            _build_known(FeatureDrift, item, histogram=_build_optional(Histogram, item.get("histogram")))
            for item in data.get("features", ())
        )
        concept = data.get("concept")
        if concept is not None:
            changes = tuple(_build_known(Change, item) for item in concept.get("changes", ()))
            curve = tuple((int(row), float(error)) for row, error in concept.get("curve", ()))
            confusions = {
                name: None if (item := concept.get(name)) is None else _build_confusion(item)
                for name in ("confusion_reference", "confusion_current")
            }
            concept = _build_known(ConceptDrift, concept, changes=changes, curve=curve, **confusions)
        joint = _build_optional(JointDrift, data.get("joint"))
        estimate = data.get("estimate")
        if estimate is not None:
            periods = tuple(_build_known(EstimatedPeriod, item) for item in estimate.get("periods", ()))
            estimate = _build_known(PerformanceEstimate, estimate, periods=periods)
        quality = tuple(_build_known(QualityProblem, item) for item in data.get("quality", ()))
        segments = tuple(_build_known(SegmentDrift, item) for item in data.get("segments", ()))
        parts = {"features": features, "concept": concept, "joint": joint, "estimate": estimate}
        return _build_known(cls, data, **parts, quality=quality, segments=segments)


T = TypeVar("T")


def _build_known(kind: type[T], data: Mapping[str, Any], **replaced: Any) -> T:
    known = {item.name for item in fields(kind)}  # type: ignore[arg-type]
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in data.items() if key in known}
    return kind(**{**values, **replaced})


def _build_optional(kind: type[T], data: Mapping[str, Any] | None) -> T | None:
    return None if data is None else _build_known(kind, data)


def _build_confusion(data: Mapping[str, Any]) -> Confusion:
    return _build_known(Confusion, data, counts=tuple(map(tuple, data["counts"])))
