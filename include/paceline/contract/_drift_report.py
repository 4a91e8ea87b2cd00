"""``DriftReport``: the result of a comparison, with a JSON form. ``paceline.contract._findings`` has its parts.

``paceline.drift.compare`` creates reports; the sensors and the pages read them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any, ClassVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from paceline.contract._drift_summary import DriftSummary, FeatureStatistics
from paceline.contract._findings import (
    NEEDS_TRAINING,
    STORED,
    ConceptDrift,
    DriftVerdict,
    FeatureDrift,
    JointDrift,
    QualityProblem,
    SegmentDrift,
)
from paceline.contract._performance_estimate import PerformanceEstimate
from paceline.contract._record import input_error
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

    __pydantic_config__: ClassVar[ConfigDict] = STORED

    verdict: DriftVerdict
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

    def summary(self) -> DriftSummary:
        """Return an extract of the report, small enough for an XCom or an asset event.

        The extract contains at most twenty data quality problems, the statistics of at most twenty drifted features,
        and no histograms.
        """
        drifted = [feature for feature in self.features if feature.verdict == "drift"]
        estimate = self.estimate if self.estimate is not None and self.estimate.verdict != "withheld" else None
        return DriftSummary(
            verdict=self.verdict,
            reason=self.reason,
            drifted_features=self.drifted_features,
            concept_drift=self.concept is not None and self.concept.verdict == "drift",
            joint_drift=self.joint is not None and self.joint.verdict == "drift",
            estimated_drift=estimate is not None and estimate.verdict == "drift",
            estimated_error=None if estimate is None else estimate.error,
            drifted_segments=[one.name for one in self.segments if one.verdict == "drift"],
            statistics={feature.name: FeatureStatistics.of(feature) for feature in drifted[:20]},
            quality=list(self.quality[:20]),
            features=len(self.features),
            reference_rows=self.reference_rows,
            current_rows=self.current_rows,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the whole report as a JSON-safe dict, which ``from_dict`` reads."""
        loaded: dict[str, Any] = json.loads(json.dumps({"format": FORMAT, **asdict(self)}, allow_nan=False))
        return loaded

    @classmethod
    def from_dict(cls, data: object) -> DriftReport:
        """Read the result of ``to_dict``. Ignore unknown keys, which a later version may write.

        Raises
        ------
        InvalidInputError
            If the data is not a report of this format. The error names the field.

        Examples
        --------
        >>> stored = DriftReport("drift", "", 500, 500, features=(FeatureDrift("temp", "numeric", "drift"),)).to_dict()
        >>> stored["features"][0]["effect"] = "large"
        >>> DriftReport.from_dict(stored)
        Traceback (most recent call last):
        paceline.errors.InvalidInputError: report.features.0.effect: got 'large', expected a valid number, unable to \
parse string as a number
        """
        known = data.get("format") if isinstance(data, Mapping) else data
        if known != FORMAT:
            raise InvalidInputError("format", known, f"{FORMAT}, the format of this version of Paceline")
        try:
            return _stored_form().validate_python(data)
        except ValidationError as error:
            raise input_error("report", error) from None


@cache
def _stored_form() -> TypeAdapter[DriftReport]:
    return TypeAdapter(DriftReport)
