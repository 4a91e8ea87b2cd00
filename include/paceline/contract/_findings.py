"""The parts of a drift report: the findings about each feature, segment, the model's error and the data's quality.

``paceline.drift`` creates these immutable values; ``DriftReport`` contains them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from pydantic import ConfigDict

DriftVerdict = Literal["drift", "no drift", "not enough data", "no champion", "bad data", "nothing compared"]
# Verdicts after which a model is to be trained.
NEEDS_TRAINING = ("drift", "no champion")
FeatureVerdict = Literal["drift", "no drift", "skipped"]
ProblemKind = Literal[
    "missing column",
    "changed type",
    "no values",
    "stale",
    "missing values",
    "out of range",
    "new categories",
    "duplicated rows",
    "new column",
]
# Readers accept lists for tuples, and ignore unknown fields.
STORED = ConfigDict(strict=False, extra="ignore", allow_inf_nan=False)


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

    __pydantic_config__: ClassVar[ConfigDict] = STORED

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
class Confusion:
    """The labels and predicted classes of a window's rows.

    Parameters
    ----------
    classes:
        The ten most frequent classes of both windows, in order. Further classes are together in ``"(other)"``.
    counts:
        Number of rows for each label (outer) and predicted class (inner).
    precision, recall, f1:
        Scores of each class: the share of right rows among those with this prediction, the share among those with this
        label, and the harmonic mean of both. None if there are no such rows, and for ``"(other)"``.
    macro_precision, macro_recall, macro_f1:
        Means over all classes that the window's labels or predictions have, without merging classes. A class without
        such rows counts as 0, as in scikit-learn.
    """

    classes: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]
    precision: tuple[float | None, ...]
    recall: tuple[float | None, ...]
    f1: tuple[float | None, ...]
    macro_precision: float
    macro_recall: float
    macro_f1: float


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
    verdict: DriftVerdict
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
