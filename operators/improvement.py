"""The paired bootstrap of challenger and champion, from the resamples of ``paceline.train.resampled``.

``EvaluateOperator`` summarises the improvement on each resample; ``PromoteOperator`` decides from the summary.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist, pstdev
from typing import Any

from paceline.contract import QUANTILES, EvaluationResult, Improvements, PromotionVerdict
from paceline.errors import InvalidInputError
from paceline.train.progress import Progress

from ._scores import scores_in

MIN_PAIRS = 100
MIN_UNITS = 20  # rows or groups; with fewer, the bootstrap is wrong more often than its confidence says
_STEPS = QUANTILES - 1
_FIVE_PERCENT = _STEPS // 20


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
        self.groups: int | None = None
        self.drawn = 0  # the number of resamples, with and without values
        self.values: dict[int, float] = {}  # by the number of the resample, without undefined values
        self.without: tuple[float | None, ...] = ()  # the values on all rows except one block
        self._score: float | None = None  # the value on all rows, reported with the resamples

    def to_json(self) -> dict[str, Any]:
        """Return the form that ``read`` accepts."""
        values = [[number, value] for number, value in self.values.items()]
        own = {"rows": self.rows, "groups": self.groups, "drawn": self.drawn, "score": self._score}
        return {**own, "values": values, "without": list(self.without)}

    @classmethod
    def read(cls, metric: str, content: Mapping[str, Any]) -> ResampleCollector:
        """Return what ``to_json`` has returned, of the same metric."""
        collector = cls(metric)
        collector.rows, collector.groups, collector.drawn = (content[name] for name in ("rows", "groups", "drawn"))
        collector.values, collector.without = dict(content["values"]), tuple(content["without"])
        collector._score = content["score"]
        return collector

    def add(self, progress: Progress) -> None:
        """Add the values in a progress line, if any. A later report replaces an earlier one."""
        part = progress.resamples.get(self._metric)
        if part is None:
            score = scores_in(progress).get(self._metric)
            if score is not None and self._score is None:
                self._score = score
            elif score is not None and score != self._score:  # reported later, without resamples
                self.rows, self.groups, self.drawn, self.values, self.without = None, None, 0, {}, ()
            return
        if part.first == 0:
            self.rows, self.groups, self.drawn, self.values, self.without = part.rows, part.groups, 0, {}, ()
            self._score = None
        if part.rows == self.rows:
            self.drawn += len(part.values)
            self.values.update({k: v for k, v in enumerate(part.values, part.first) if v is not None})
            self.without = part.without or self.without


def summarise(
    challenger: ResampleCollector, champion: ResampleCollector, *, greater_is_better: bool
) -> Improvements | None:
    """Return a summary of the paired improvements; ``None`` if fewer than 100 resamples have a value for both models.

    The design effect is 1 unless rows clearly depend on their neighbours.

    Raises
    ------
    InvalidInputError
        If the two runs have resampled different numbers of rows or of groups.
    """
    if challenger.rows is None or champion.rows is None:
        return None
    if challenger.rows != champion.rows:
        rows = f"{challenger.rows} for the challenger and {champion.rows} for the champion"
        raise InvalidInputError("rows", rows, "the same rows in resampled(...) for both models")
    if challenger.groups != champion.groups:
        groups = f"{challenger.groups} for the challenger and {champion.groups} for the champion"
        raise InvalidInputError("groups", groups, "the same groups in resampled(...) for both models")
    sign = 1 if greater_is_better else -1
    paired = challenger.values.keys() & champion.values.keys()
    ordered = sorted(sign * (challenger.values[k] - champion.values[k]) for k in paired)
    if len(ordered) < MIN_PAIRS:
        return None
    # The inverse of the empirical distribution: the k-th quantile is the smallest value at or below which at least the
    # share k / _STEPS of all values lies. ``confidence`` relies on this.
    last = [max(0, -(-len(ordered) * k // _STEPS) - 1) for k in range(_STEPS + 1)]
    quantiles = [float(f"{ordered[index]:.6g}") for index in last]
    return Improvements(
        rows=challenger.rows,
        groups=challenger.groups,
        resamples=min(challenger.drawn, champion.drawn),
        pairs=len(ordered),
        interval=[quantiles[_FIVE_PERCENT], quantiles[-1 - _FIVE_PERCENT]],
        quantiles=quantiles,
        design_effect=_design_effect(challenger, champion, _variance(ordered)),
        unseen_share=float(f"{1 - 0.05 ** (1 / (challenger.groups or challenger.rows)):.3g}"),
    )


def _design_effect(challenger: ResampleCollector, champion: ResampleCollector, independent: float) -> float:
    """Return the ratio of the block jackknife's variance to that of independent units, or 1 if it may be chance.

    Rows that depend on their neighbours have similar influence on the improvement. So whole blocks of them have more
    influence than blocks of independent rows (Kuensch, Annals of Statistics 17, 1989).
    """
    both = zip(challenger.without, champion.without, strict=False)
    changes = [new - old for new, old in both if new is not None and old is not None]
    blocks = len(changes)
    if blocks < max(2, len(challenger.without), len(champion.without)) or not independent:
        return 1.0
    effect = (blocks - 1) * _variance(changes) / independent
    largest_by_chance = 1 + 4 * math.sqrt(2 / (blocks - 1))  # four standard errors
    return float(f"{effect:.3g}") if largest_by_chance < effect < math.inf else 1.0


def _variance(values: Sequence[float]) -> float:
    """Return the variance. Raise no error for huge values, which a script may report."""
    mean = sum(values) / len(values)
    return sum((value - mean) * (value - mean) for value in values) / len(values)


def describe_interval(summary: Improvements) -> str:
    """Return the 90 % interval in a summary, for the log.

    >>> describe_interval(Improvements(
    ...     rows=500, resamples=1000, pairs=998, interval=[-0.01, 0.052], quantiles=[0.0] * 201, unseen_share=0.006))
    '90 % interval of the improvement: -0.01 to 0.052 (998 resamples of 500 rows)'
    """
    low, high = summary.interval
    groups = f" in {summary.groups} groups" if summary.groups else ""
    resamples = f"{summary.pairs} resamples of {summary.rows} rows{groups}"
    return f"90 % interval of the improvement: {low:.4g} to {high:.4g} ({resamples})"


def describe_doubts(summary: Improvements) -> list[str]:
    """Return why the hold-out data may not support the decision.

    >>> summary = Improvements(
    ...     rows=500, resamples=1000, pairs=1000, interval=[0.0, 1.0], quantiles=[0.0] * 200 + [1.0],
    ...     unseen_share=0.006, repeated_lines=40, design_effect=8.2)
    >>> describe_doubts(summary)  # doctest: +NORMALIZE_WHITESPACE
    ['neighbouring rows look dependent (8.2 times the variance of independent rows): pass groups to resampled(...)',
     '40 lines of the data repeat an earlier line: pass groups to resampled(...) if they belong together']
    """
    doubts = []
    units = "groups" if summary.groups else "rows"
    if summary.quantiles[0] == summary.quantiles[-1]:
        doubts.append("all resamples have the same improvement, as if the metric ignored its rows")
    if missing := summary.resamples - summary.pairs:
        doubts.append(f"{missing} of {summary.resamples} resamples have no score and count against the challenger")
    if (effect := summary.design_effect) > 1:
        doubts.append(
            f"neighbouring {units} look dependent ({effect:.3g} times the variance of independent {units}): "
            f"pass {'larger ' if units == 'groups' else ''}groups to resampled(...)"
        )
    if repeated := summary.repeated_lines:
        doubts.append(
            f"{repeated} lines of the data repeat an earlier line: "
            "pass groups to resampled(...) if they belong together"
        )
    return doubts


def reached_confidence(summary: Improvements, improvement: float, required: float) -> float:
    """Return the confidence that the improvement is above 0 and at least ``required``, in steps of 0.1 %.

    Parameters
    ----------
    summary:
        The summary of the resamples. If all resamples have the same improvement, the confidence is 0, because the
        metric appears to ignore its rows.
    improvement:
        The improvement on all rows.

    Notes
    -----
    The confidence is the smaller one of two shares of resamples: that of the percentile interval, and that of the basic
    interval, for which the resamples are reflected at the improvement on all rows. The first is too high if a few rows
    decide. Resamples without a value count against the challenger. Student's t instead of the normal distribution
    corrects for few rows or groups (Hesterberg, The American Statistician 69, 2015).

    Examples
    --------
    >>> quantiles = [step / 1000 for step in range(-10, 191)]  # from -0.01 to 0.19
    >>> summary = Improvements(
    ...     rows=10**6, resamples=1000, pairs=1000, interval=[0.0, 0.18], quantiles=quantiles, unseen_share=3e-6)
    >>> [reached_confidence(summary, 0.09, required) for required in (0, 0.09, 0.2)]
    [0.945, 0.5, 0.0]
    >>> reached_confidence(summary.model_copy(update={"rows": 20}), 0.09, 0)
    0.932
    """
    quantiles = summary.quantiles
    if quantiles[0] == quantiles[-1]:
        return 0.0
    below = sum(not (value > 0 and _reaches(value, required)) for value in quantiles)
    reflected = (2 * improvement - value for value in quantiles)
    below = max(below, sum(not (value > 0 and _reaches(value, required)) for value in reflected))
    share = max(0, _STEPS - below) / _STEPS * summary.pairs / summary.resamples
    if not share:
        return 0.0
    z = NormalDist().inv_cdf(share) if share < 1 else (improvement - required) / pstdev(quantiles)
    units = summary.groups or summary.rows
    freedom = units - 1
    t = z * math.sqrt(freedom / units / summary.design_effect)
    # The distribution function of Student's t (Abramowitz and Stegun, 26.7.8).
    corrected = NormalDist().cdf(t * (1 - 1 / (4 * freedom)) / math.sqrt(1 + t * t / (2 * freedom)))
    return round(corrected, 3)


def _reaches(improvement: float, required: float) -> bool:
    """Return whether an improvement is at least ``required``, in spite of rounding.

    >>> 0.6 - 0.5 >= 0.1, _reaches(0.6 - 0.5, 0.1)
    (False, True)
    """
    return improvement >= required or math.isclose(improvement, required, rel_tol=1e-9)


def too_few(summary: Improvements, minimum_rows: int) -> tuple[str, int, int] | None:
    """Return the unit ("rows" or "groups"), its number and the minimum, if there are too few; else None."""
    rows, groups = summary.rows, summary.groups
    if rows < minimum_rows:
        return "rows", rows, minimum_rows
    return ("groups", groups, MIN_UNITS) if groups is not None and groups < MIN_UNITS else None


def judge(
    evaluation: EvaluationResult, required: float, confidence: float | None, minimum_samples: int
) -> tuple[PromotionVerdict, str]:
    """Return the verdict on an evaluation and its reason.

    Parameters
    ----------
    required:
        Smallest improvement that leads to a promotion.
    confidence:
        Required confidence, or ``None`` if the improvement on all rows decides.
    minimum_samples:
        Smallest number of rows for a decision with a confidence.

    Raises
    ------
    InvalidInputError
        If there is a required confidence, but no resamples.
    """
    version, metric, challenger = evaluation.version, evaluation.metric, evaluation.challenger
    champion, improvement, summary = evaluation.champion, evaluation.improvement, evaluation.improvements
    if champion is None or improvement is None:
        return "first", f"version {version} is the first, with {metric} {challenger:.4g}"
    if confidence is not None and summary is None:
        raise InvalidInputError(
            "evaluation.improvements",
            None,
            f"resamples of {metric!r}, which confidence needs: the script has to call "
            f"report({metric}=resampled(..., rows=...)) outside a track loop, and at least {MIN_PAIRS} resamples have "
            "to have a finite value for both models",
        )
    comparison = (
        f"version {version}, {metric} {challenger:.4g}, against {champion:.4g} for champion version "
        f"{evaluation.champion_version}: "
    )
    if improvement <= 0:
        return "not better", f"{comparison}not better"
    size = f"by {improvement:.4g}"
    if not _reaches(improvement, required):
        return "improvement below min_improvement", f"{comparison}better {size}, less than the required {required:g}"
    if confidence is None or summary is None:
        return "better", f"{comparison}better {size}"
    few = too_few(summary, minimum_samples)
    if few is not None:
        unit, found, minimum = few
        few_reason = f"{comparison}better {size}, but too few {unit}: {found}, expected at least {minimum}"
        if unit == "groups":
            return "too few groups", few_reason
        return "too few rows", f"{few_reason} (minimum_samples)"
    reached = reached_confidence(summary, improvement, required)
    size += f", {f'at least {required:g}' if required else 'above 0'} with a confidence of {100 * reached:g} %"
    if reached < confidence:
        size += f", less than the required {100 * confidence:g} %"
    size = "; ".join([size, *describe_doubts(summary)])
    if reached < confidence:
        return "not significantly better", f"{comparison}not significantly better: {size}"
    return "better", f"{comparison}better {size}"
