"""The parts of a drift report: the findings about each feature, segment, the model's error and the data's quality.

Comparisons create these immutable values; ``paceline.drift._report`` combines them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from paceline.drift._confusion import Confusion
from paceline.drift._quality_settings import ProblemKind

Verdict = Literal["drift", "no drift", "not enough data", "no champion", "bad data", "nothing compared"]
# Verdicts after which a model is to be trained.
NEEDS_TRAINING = ("drift", "no champion")
FeatureVerdict = Literal["drift", "no drift", "skipped"]


@dataclass(frozen=True)
class Histogram:
    """Share of each window's rows in each bin (for numbers) or with each label (for categories).

    ``edges`` has one more entry than the shares and is empty for categories; ``labels`` is empty for numbers.
    """

    reference: tuple[float, ...]
    current: tuple[float, ...]
    edges: tuple[float, ...] = ()
    labels: tuple[str, ...] = ()


@dataclass(frozen=True)
class FeatureDrift:
    """One feature in both windows.

    ``test`` is ``"Kolmogorov-Smirnov"``, ``"chi-squared"`` (also of numbers with few distinct values), ``"chi-squared,
    rare categories"`` or, for an embedding of ``dimensions`` numbers and for text, ``"domain classifier"``; ``effect``
    is the KS statistic, the total variation distance, or 2 AUC - 1 of the classifier, whose ``statistic`` is the AUC.
    The ``statistic`` of rare categories is in standard deviations. Invalid vectors of an embedding count as missing.
    Adjusted p-values are corrected for the tests of all features together. ``level`` is the mean of a numeric feature.
    ``reason`` explains the verdict in words, or why the feature was skipped.
    """

    name: str
    kind: Literal["numeric", "categorical", "embedding", "text"]
    verdict: FeatureVerdict
    reason: str = ""
    test: str = ""
    statistic: float | None = None
    p_value: float | None = None
    adjusted_p_value: float | None = None
    effect: float | None = None
    psi: float | None = None
    missing_reference: float = 0.0
    missing_current: float = 0.0
    missing_adjusted_p_value: float | None = None
    level_reference: float | None = None
    level_current: float | None = None
    new_categories: tuple[str, ...] = ()
    histogram: Histogram | None = None
    dimensions: int = 0


@dataclass(frozen=True)
class QualityProblem:
    """A data quality problem in the current window.

    ``column`` is empty if the problem concerns whole rows. A ``severe`` problem makes the verdict ``"bad data"``.
    """

    kind: ProblemKind
    column: str
    reason: str
    severe: bool


@dataclass(frozen=True)
class Change:
    """A change in the model's error.

    ``row`` is the estimated row of the change, and ``at`` its time. ``detected_row`` is the row at which the detector
    reported the change, never before ``row``. Rows count from 0 in the current window, or in the sample that stands for
    it. The errors are the means before and after ``row``.
    """

    row: int
    detected_row: int
    error_before: float
    error_after: float
    at: str | None = None

    @property
    def is_rise(self) -> bool:
        """Whether the error rose."""
        return self.error_after > self.error_before


@dataclass(frozen=True)
class ConceptDrift:
    """The error of recorded predictions over time, and the changes that a streaming detector found.

    ``measure`` is ``"share of wrong predictions"``, ``"mean absolute error"``, ``"Brier score"``, ``"mean log loss"``
    or ``"ranking error"``; ``error_reference`` and ``error_current`` are its values in each window. ``curve`` is the
    running error as (row, error), downsampled for plotting. Row 0 is the first row of the current window or of its
    sample; reference rows are negative.

    ``auc_reference`` and ``auc_current`` are each window's area under the ROC curve. They are None unless the labels
    are 0 and 1, the predictions are probabilities or scores, and the window has labels of both classes.
    ``confusion_reference`` and ``confusion_current`` are None for numbers and for the
    ranking error.
    """

    detector: str
    verdict: Verdict
    reason: str
    measure: str
    reference_rows: int = 0
    current_rows: int = 0
    error_reference: float | None = None
    error_current: float | None = None
    changes: tuple[Change, ...] = ()
    curve: tuple[tuple[int, float], ...] = ()
    auc_reference: float | None = None
    auc_current: float | None = None
    confusion_reference: Confusion | None = None
    confusion_current: Confusion | None = None


@dataclass(frozen=True)
class JointDrift:
    """Whether a classifier distinguishes the windows although no single feature has drifted.

    ``auc`` is the classifier's area under the ROC curve on rows from which it has not learned: 0.5 if the windows have
    the same distribution. ``rows`` is the number of rows of both windows that were used.
    """

    verdict: Literal["drift", "no drift"]
    reason: str
    auc: float
    p_value: float
    rows: int


@dataclass(frozen=True)
class SegmentDrift:
    """The rows of one segment in both windows.

    ``tested`` is the number of features that were compared; ``drifted_features`` names those that have drifted, at most
    ten, and ``reason`` describes the first three.
    """

    name: str
    verdict: Literal["drift", "no drift"]
    reason: str
    reference_rows: int
    current_rows: int
    tested: int
    drifted_features: tuple[str, ...] = ()
