"""The result of a drift check, small enough for an XCom or an asset event: what ``DriftSensor`` returns."""

from __future__ import annotations

from pydantic import JsonValue

from paceline.contract._findings import NEEDS_TRAINING, DriftVerdict, FeatureDrift, QualityProblem
from paceline.contract._record import Moment, Record, SparseRecord, Text


class FeatureStatistics(Record):
    """The values of a drifted feature, as in :class:`~paceline.drift.FeatureDrift`."""

    test: str
    effect: float | None
    adjusted_p_value: float | None
    psi: float | None
    missing_reference: float
    missing_current: float

    @classmethod
    def of(cls, feature: FeatureDrift) -> FeatureStatistics:
        """Return the values of a feature."""
        return cls(**{name: getattr(feature, name) for name in cls.model_fields})


class WindowSource(SparseRecord):
    """The source of a current window: the ``data_window`` of a model that is trained on it.

    Users may write other keys into a ``data_window``, or a source of their own.
    """

    source: Text
    """A SQL query, or the path or URL of a file."""
    parameters: dict[str, JsonValue] | list[JsonValue] | None = None
    """Values for the placeholders of the query."""
    conn_id: Text | None = None
    file: Text | None = None
    """The file that was checked; ``source`` may be a copy of its rows."""
    file_state: Text | None = None
    """Identifies the content of ``file``, and shows a later change."""


class DriftSummary(SparseRecord):
    """An extract of a drift report, and what its check has led to.

    Examples
    --------
    >>> from paceline.contract import DriftReport
    >>> summary = DriftReport("no drift", "No drift in 3 features.", 500, 500).summary()
    >>> DriftSummary.read(summary.to_json()) == summary
    True
    >>> summary.needs_training, "window" in summary.to_json()
    (False, False)
    """

    verdict: DriftVerdict
    reason: Text
    drifted_features: list[Text]
    concept_drift: bool
    joint_drift: bool
    estimated_drift: bool
    estimated_error: float | None
    drifted_segments: list[Text]
    statistics: dict[Text, FeatureStatistics]
    """At most 20 drifted features, the most severe first."""
    quality: list[QualityProblem]
    """At most 20 data quality problems, severe ones first."""
    features: int
    """Number of features."""
    reference_rows: int
    current_rows: int
    model: Text | None = None
    registry: Text | None = None
    window: WindowSource | None = None
    report_json: Text | None = None
    """Path or URL of the stored report; ``report_html`` is its page."""
    report_html: Text | None = None
    retrain: bool = False
    """Whether training is to start."""
    at: Moment | None = None
    """The time of a scheduled run, or of a waiting sensor's last check."""
    current: Text | None = None
    """Description of the current window, in an event of ``DriftEventTrigger``."""
    fingerprint: Text | None = None
    """Digest of the report, in an event of ``DriftEventTrigger``."""

    @property
    def needs_training(self) -> bool:
        """Whether the verdict calls for training, as ``DriftReport.needs_training``."""
        return self.verdict in NEEDS_TRAINING
