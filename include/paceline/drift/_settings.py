"""``DriftSettings``: how two windows of data are compared. Used by ``compare``, the drift sensor and its triggers."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from paceline.drift._feature_settings import FeatureSettings, read_least, read_share
from paceline.drift._quality_settings import QualitySettings
from paceline.drift.detectors import DETECTORS, Detector
from paceline.drift.prediction_errors import ERROR_KINDS, ErrorKind
from paceline.errors import InvalidInputError


@dataclass(frozen=True)
class DriftSettings:
    """Thresholds and methods of a drift check.

    Parameters
    ----------
    significance:
        False discovery rate of all features and segments together; the joint check, the model's error and its estimate
        have this significance level each. The default of 1 % is below the common 5 %, and loses little statistical
        power with hundreds of rows.
    psi_threshold, effect_threshold:
        A difference matters if its population stability index reaches ``psi_threshold`` (0.1 is the usual limit for
        stable data) or its effect reaches ``effect_threshold`` (0.1: the shares of rows differ by ten percentage
        points). The effect is the KS statistic or, with the chi-squared test, the total variation distance. Embeddings
        and texts have ``joint_threshold`` instead.
    joint_threshold:
        Smallest relevant area under the ROC curve (AUC) of a classifier that distinguishes the windows: by all features
        if no single one has drifted, by the vectors of an embedding, or by texts. At 0.5, it cannot distinguish them;
        at 0.55, 2 AUC - 1 is the ``effect_threshold``.
    missing_threshold:
        Smallest relevant change in the share of missing values (0.05: five percentage points).
    minimum_samples:
        Minimum number of rows of each window, of values of a feature, of rows of a segment, and of labels. The joint
        check, embeddings and texts need five times as many.
    max_rows:
        Number of rows above which a random sample of this size stands for a window. 200,000 rows show differences far
        smaller than those that matter.
    error_threshold:
        Smallest relevant rise in the model's error, relative to the error of predictions without skill (0.02: two
        percent of it; for wrong predictions two percentage points).
    estimate_threshold:
        Smallest relevant rise in the estimated error of predictions without labels, relative to the error of
        predictions without skill (0.02).
    detector:
        ``"adwin"``, ``"page_hinkley"``, or ``"ddm"`` for right and wrong predictions.
    error:
        Kind of error: ``"wrong"``, ``"absolute"``, ``"brier"``, ``"log_loss"`` or ``"auc"``. ``"auto"`` selects the
        absolute error for quantities, the Brier score for probabilities, and otherwise right and wrong predictions.
    threshold:
        Probability from which a prediction counts as class 1, for right and wrong predictions.
    quality:
        Thresholds of the data quality problems, and the problems that prevent training.
    features:
        Thresholds and importance of single features, by column name.
    drift_share:
        Smallest share of the features, weighted by their importance, whose drift is drift of the window. At 0, one
        feature is enough.

    Raises
    ------
    InvalidInputError
        For a value out of range.

    Examples
    --------
    >>> DriftSettings(minimum_samples=500).significance
    0.01
    >>> DriftSettings(minimum_samples=0)
    Traceback (most recent call last):
    paceline.errors.InvalidInputError: minimum_samples: got 0, expected a whole number of at least 2
    """

    significance: float = 0.01
    psi_threshold: float = 0.1
    effect_threshold: float = 0.1
    joint_threshold: float = 0.55
    missing_threshold: float = 0.05
    minimum_samples: int = 100
    max_rows: int = 200_000
    error_threshold: float = 0.02
    estimate_threshold: float = 0.02
    detector: Detector = "adwin"
    error: ErrorKind = "auto"
    threshold: float = 0.5
    quality: QualitySettings = dataclasses.field(default_factory=QualitySettings)
    features: Mapping[str, FeatureSettings] = dataclasses.field(default_factory=dict)
    drift_share: float = 0.0

    def __post_init__(self) -> None:
        if isinstance(self.quality, Mapping):  # of ``to_dict``
            object.__setattr__(self, "quality", QualitySettings(**self.quality))
        if not isinstance(self.quality, QualitySettings):
            raise InvalidInputError("quality", self.quality, "QualitySettings(...)")
        if not isinstance(self.features, Mapping):
            raise InvalidInputError(
                "settings.features", self.features, "a mapping from column names to FeatureSettings(...)"
            )
        own = {str(name): _read_feature(str(name), one) for name, one in self.features.items()}
        object.__setattr__(self, "features", own)
        for field in (
            "significance",
            "effect_threshold",
            "joint_threshold",
            "missing_threshold",
            "error_threshold",
            "estimate_threshold",
            "threshold",
        ):
            object.__setattr__(self, field, read_share(field, getattr(self, field)))
        if read_least("drift_share", self.drift_share) > 1:
            raise InvalidInputError("drift_share", self.drift_share, "a number from 0 to 1")
        for field in ("psi_threshold", "drift_share"):
            object.__setattr__(self, field, read_least(field, getattr(self, field)))
        for field, least in (("minimum_samples", 2), ("max_rows", self.minimum_samples)):
            rows = getattr(self, field)
            if isinstance(rows, bool) or not isinstance(rows, Integral) or rows < least:
                raise InvalidInputError(field, rows, f"a whole number of at least {least}")
            object.__setattr__(self, field, int(rows))
        for field, accepted in (("detector", DETECTORS), ("error", ERROR_KINDS)):
            if getattr(self, field) not in accepted:
                raise InvalidInputError(field, getattr(self, field), "one of " + ", ".join(accepted))
        if self.detector == "ddm" and self.error not in ("auto", "wrong"):
            suitable = f"adwin or page_hinkley for error={self.error!r} (ddm processes right and wrong predictions)"
            raise InvalidInputError("detector", self.detector, suitable)

    def to_dict(self) -> dict[str, Any]:
        """Return the arguments of ``DriftSettings(**…)`` as plain JSON values.

        >>> DriftSettings(**DriftSettings(error="brier").to_dict()) == DriftSettings(error="brier")
        True
        """
        loaded: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        return loaded

    def importance(self, name: str) -> float:
        """Return the importance of one feature."""
        own = self.features.get(name)
        return 1.0 if own is None else own.importance

    def of_feature(self, name: str) -> DriftSettings:
        """Return the settings with the thresholds of one feature."""
        own = self.features.get(name)
        fields = ("effect_threshold", "psi_threshold", "missing_threshold")
        known = {} if own is None else {field: getattr(own, field) for field in fields}
        chosen = {field: value for field, value in known.items() if value is not None}
        return dataclasses.replace(self, **chosen) if chosen else self


def _read_feature(name: str, value: object) -> FeatureSettings:
    field = f"settings.features[{name!r}]"
    known = [one.name for one in dataclasses.fields(FeatureSettings)]
    if isinstance(value, Mapping):  # of ``to_dict``
        for key in value:
            if key not in known:
                raise InvalidInputError(field, key, "one of " + ", ".join(known))
        return FeatureSettings(**value)
    if not isinstance(value, FeatureSettings):
        raise InvalidInputError(field, value, "FeatureSettings(...)")
    return value
