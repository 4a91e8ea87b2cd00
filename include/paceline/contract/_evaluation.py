"""The result of ``EvaluateOperator``, which ``ApproveOperator`` and ``PromoteOperator`` read."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from paceline.contract._record import Record, SparseRecord, Text

QUANTILES = 201


class Improvements(Record):
    """The paired improvements on resamples of the hold-out data, see :func:`paceline.train.resampled`."""

    rows: int = Field(ge=1)
    """Number of rows of the hold-out data."""
    groups: int | None = Field(default=None, ge=1)
    resamples: int = Field(ge=1)
    pairs: int = Field(ge=1)
    """Number of resamples with a score of both models."""
    interval: Annotated[list[float], Field(min_length=2, max_length=2)]
    """Ends of the 90 % interval of the improvement."""
    quantiles: Annotated[list[float], Field(min_length=QUANTILES, max_length=QUANTILES)]
    """Quantiles of the improvement, from 0 to 100 % in steps of 0.5 %."""
    design_effect: float = Field(default=1.0, ge=1)
    """Ratio of the variance of the improvement to that of independent rows or groups."""
    unseen_share: float
    """Rows or groups of a kind with a smaller share are absent from more than 5 % of all data of this size."""
    repeated_lines: int = Field(default=0, ge=0)
    """Number of lines of the data that repeat an earlier line."""


class Comparison(SparseRecord):
    """The scores of the challenger and the champion. Without a champion, its values are ``None``."""

    metric: Text
    challenger: float
    champion: float | None
    champion_version: int | None = Field(ge=1)
    champion_digest: Text | None = None
    better: bool | None = None
    improvement: float | None
    """Difference of the scores; positive is better."""


class EvaluationResult(Comparison):
    """The comparison of a registered version with the champion.

    Examples
    --------
    >>> scores = dict(metric="auc", challenger=0.8, champion=None, champion_version=None, improvement=None)
    >>> EvaluationResult.read(EvaluationResult(model="churn", version=1, **scores).to_json()).challenger
    0.8
    """

    model: Text
    registry: Text | None = None
    version: int = Field(ge=1)
    digest: Text | None = None
    """Digest of the challenger's files."""
    greater_is_better: bool = True
    improvements: Improvements | None = None
    challenger_metrics: dict[Text, float] | None = None
    champion_metrics: dict[Text, float] | None = None
    approved_by: Text | None = None
    """Name of the user who approved the promotion; ``None`` if the task approved it, because no user answered in time.

    Unset if the task asked no user.
    """

    @property
    def was_asked(self) -> bool:
        """Whether a question about this evaluation has been answered."""
        return "approved_by" in self.model_fields_set


class ShownEvaluation(Record):
    """The evaluation that Airflow shows in its question for one task instance."""

    ti_id: Text
    evaluation: EvaluationResult
