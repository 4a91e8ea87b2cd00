"""The paired bootstrap of challenger and champion, from the resamples of ``paceline.train.resampled``.

``EvaluateOperator`` summarises the improvement on each resample; ``PromoteOperator`` decides from the summary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.errors import InvalidInputError
from paceline.train.progress import Progress

from .values import number

MIN_PAIRS = 100
_STEPS = 200  # the summary has the quantiles 0, 0.5, ..., 100 %
_FIVE_PERCENT = _STEPS // 20


def scores_in(progress: Progress) -> dict[str, float]:
    """Return the scores in a progress line, in which ``loss`` has a field of its own.

    >>> scores_in(Progress(1, 1, event="report", loss=0.4, metrics={"auc": 0.8}))
    {'auc': 0.8, 'loss': 0.4}
    """
    return progress.metrics if progress.loss is None else {**progress.metrics, "loss": progress.loss}


class ResampleCollector:
    """Collects the resamples of one metric from the progress lines of one run of the script.

    >>> from paceline.train.progress import Resamples
    >>> collector = ResampleCollector("auc")
    >>> collector.add(Progress(1, 1, event="report", resamples={"auc": Resamples(rows=50, values=(0.7, None, 0.8))}))
    >>> collector.rows, collector.values
    (50, {0: 0.7, 2: 0.8})
    """

    def __init__(self, metric: str) -> None:
        self._metric = metric
        self.rows: int | None = None
        self.values: dict[int, float] = {}  # by the number of the resample, without undefined values
        self._score: float | None = None  # the value on all rows, reported with the resamples

    def add(self, progress: Progress) -> None:
        """Add the values in a progress line, if any. A later report replaces an earlier one."""
        part = progress.resamples.get(self._metric)
        if part is None:
            score = scores_in(progress).get(self._metric)
            if score is not None and self._score is None:
                self._score = score
            elif score is not None and score != self._score:  # reported later, without resamples
                self.rows, self.values = None, {}
            return
        if part.first == 0:
            self.rows, self.values, self._score = part.rows, {}, None
        if part.rows == self.rows:
            self.values.update({k: v for k, v in enumerate(part.values, part.first) if v is not None})


def summarise(
    challenger: ResampleCollector, champion: ResampleCollector, *, greater_is_better: bool
) -> dict[str, Any] | None:
    """Return a summary of the paired improvements; ``None`` if fewer than 100 resamples have a value for both models.

    Returns
    -------
    dict or None
        ``rows`` of the hold-out data, ``pairs`` (resamples with a value for both models), ``interval`` (the two ends of
        the 90 % interval of the improvement) and ``quantiles`` of the improvement, from 0 to 100 % in steps of 0.5 %.

    Raises
    ------
    InvalidInputError
        If the two runs have resampled different numbers of rows.
    """
    if challenger.rows is None or champion.rows is None:
        return None
    if challenger.rows != champion.rows:
        rows = f"{challenger.rows} for the challenger and {champion.rows} for the champion"
        raise InvalidInputError("rows", rows, "the same rows in resampled(...) for both models")
    sign = 1 if greater_is_better else -1
    paired = challenger.values.keys() & champion.values.keys()
    ordered = sorted(sign * (challenger.values[k] - champion.values[k]) for k in paired)
    if len(ordered) < MIN_PAIRS:
        return None
    # The inverse of the empirical distribution: the k-th quantile is the smallest value at or below which at least the
    # share k / _STEPS of all values lies. ``confidence`` relies on this.
    last = [max(0, -(-len(ordered) * k // _STEPS) - 1) for k in range(_STEPS + 1)]
    quantiles = [float(f"{ordered[index]:.6g}") for index in last]
    return {
        "rows": challenger.rows,
        "pairs": len(ordered),
        "interval": [quantiles[_FIVE_PERCENT], quantiles[-1 - _FIVE_PERCENT]],
        "quantiles": quantiles,
    }


def describe_interval(summary: Mapping[str, Any]) -> str:
    """Return the 90 % interval in a summary, for the log.

    >>> describe_interval({"rows": 50, "pairs": 998, "interval": [-0.01, 0.052]})
    '90 % interval of the improvement: -0.01 to 0.052 (998 resamples of 50 rows)'
    """
    low, high = summary["interval"]
    resamples = f"{summary['pairs']} resamples of {summary['rows']} rows"
    return f"90 % interval of the improvement: {low:.4g} to {high:.4g} ({resamples})"


def confidence(quantiles: Sequence[float], required: float) -> float:
    """Return the share of resamples whose improvement is above 0 and at least ``required``, rounded down to 0.5 %.

    >>> quantiles = [step / 1000 for step in range(-10, 191)]  # from -0.01 to 0.19
    >>> confidence(quantiles, 0), confidence(quantiles, 0.09), confidence(quantiles, 0.2)
    (0.945, 0.5, 0.0)
    """
    below = sum(not (value > 0 and value >= required) for value in quantiles)
    return max(0, _STEPS - below) / _STEPS


def read_quantiles(evaluation: Mapping[str, Any]) -> list[float]:
    """Return the quantiles in an evaluation's summary. Raise InvalidInputError if there are none."""
    field, summary, metric = "evaluation.improvements", evaluation.get("improvements"), evaluation["metric"]
    if summary is None:
        raise InvalidInputError(
            field,
            None,
            f"resamples of {metric!r}, which confidence needs: the script has to call "
            f"report({metric}=resampled(..., rows=...)) outside a track loop, and at least {MIN_PAIRS} resamples have "
            "to have a finite value for both models",
        )
    quantiles = summary.get("quantiles") if isinstance(summary, Mapping) else None
    accepted = f"a list of {_STEPS + 1} numbers, as EvaluateOperator returns it"
    if not isinstance(quantiles, list) or len(quantiles) != _STEPS + 1:
        raise InvalidInputError(f"{field}.quantiles", quantiles, accepted)
    return [number(f"{field}.quantiles", value, accepted) for value in quantiles]
