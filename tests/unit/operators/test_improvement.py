"""The paired bootstrap: error rates of simulated evaluations, and the summary on which a promotion depends."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from paceline.errors import InvalidInputError
from paceline.operators._improvement import ResampleCollector, confidence, read_quantiles, summarise
from paceline.train import resampled
from paceline.train.progress import Progress, Resamples

ROWS, EVALUATIONS = 200, 300


def collect(rows: int, values: Sequence[float | None], first: int = 0) -> ResampleCollector:
    collector = ResampleCollector("auc")
    collector.add(Progress(1, 1, event="report", resamples={"auc": Resamples(rows, tuple(values), first)}))
    return collector


def score_rows(row_scores: np.ndarray) -> ResampleCollector:
    """Return what the operator collects from a script whose metric is the mean of a score of each row."""
    mean = resampled(lambda drawn: row_scores[drawn].mean(), rows=len(row_scores), resamples=400)
    return collect(mean.resamples.rows, mean.resamples.values)


def simulate_evaluations(true_improvement: float, count: int = EVALUATIONS) -> list[tuple[float, list[float]]]:
    """Return the improvement and the quantiles of evaluations on different data. Rows are hard for both models."""
    random = np.random.default_rng(0)
    results = []
    for _ in range(count):
        difficulty = random.normal(size=ROWS)
        champion = difficulty + 0.3 * random.normal(size=ROWS)
        challenger = difficulty + 0.3 * random.normal(size=ROWS) + true_improvement
        summary = summarise(score_rows(challenger), score_rows(champion), greater_is_better=True)
        assert summary is not None
        results.append((challenger.mean() - champion.mean(), summary["quantiles"]))
    return results


def test_challenger_that_is_no_better_is_rarely_confirmed() -> None:
    """The share of wrong decisions is at most 1 - confidence."""
    results = simulate_evaluations(0.0)
    for required in (0.95, 0.8):
        confirmed = sum(confidence(quantiles, 0.0) >= required for _, quantiles in results)
        assert confirmed <= stats.binom.ppf(0.999, EVALUATIONS, 1 - required)
    by_the_score_alone = sum(improvement > 0 for improvement, _ in results)
    assert by_the_score_alone >= 0.4 * EVALUATIONS, "the score alone is wrong half of the time"


def test_clear_improvement_is_confirmed() -> None:
    results = simulate_evaluations(0.15, count=50)  # five standard errors of the paired difference
    assert sum(confidence(quantiles, 0.0) >= 0.95 for _, quantiles in results) >= 49


def test_pairing_narrows_the_interval() -> None:
    random = np.random.default_rng(0)
    difficulty = random.normal(size=ROWS)
    champion, challenger = (score_rows(difficulty + 0.1 * random.normal(size=ROWS)) for _ in range(2))
    unpaired = collect(ROWS, [*list(champion.values.values())[1:], champion.values[0]])
    widths = []
    for other in (champion, unpaired):
        summary = summarise(challenger, other, greater_is_better=True)
        assert summary is not None
        widths.append(summary["interval"][1] - summary["interval"][0])
    assert widths[0] < widths[1] / 5


thousandths = st.integers(-20, 20).map(lambda k: k / 1000)


@given(st.lists(thousandths, min_size=100, max_size=450), st.integers(0, 20).map(lambda k: k / 1000))
def test_confidence_is_the_share_of_resamples_rounded_down(improvements: list[float], required: float) -> None:
    summary = summarise(collect(50, improvements), collect(50, [0.0] * len(improvements)), greater_is_better=True)
    assert summary is not None
    share = sum(value > 0 and value >= required for value in improvements) / len(improvements)
    reached = confidence(summary["quantiles"], required)
    assert reached <= share <= reached + 0.005 + 1e-9
    assert (reached == 1) == (share == 1)


def test_confidence_is_zero_for_equal_models() -> None:
    summary = summarise(collect(50, [0.7] * 100), collect(50, [0.7] * 100), greater_is_better=True)
    assert summary is not None
    assert confidence(summary["quantiles"], 0.0) == 0.0


def test_smaller_is_better_for_losses() -> None:
    challenger, champion = collect(50, [0.5 - k / 1000 for k in range(100)]), collect(50, [0.5] * 100)
    summary = summarise(challenger, champion, greater_is_better=False)
    assert summary is not None
    assert (summary["quantiles"][0], summary["quantiles"][-1]) == (0.0, 0.099)
    assert summary["interval"] == [0.004, 0.094]
    opposite = summarise(challenger, champion, greater_is_better=True)
    assert opposite is not None
    assert (opposite["quantiles"][0], opposite["quantiles"][-1]) == (-0.099, 0.0)


def test_pair_with_an_undefined_score_is_skipped() -> None:
    challenger, champion = [0.8] * 120, [0.7] * 120
    undefined: list[float | None] = [None] * 10
    summary = summarise(
        collect(50, [*undefined, *challenger]), collect(50, [*champion, *undefined]), greater_is_better=True
    )
    assert summary is not None
    assert (summary["pairs"], summary["rows"], set(summary["quantiles"])) == (110, 50, {0.1})
    many: list[float | None] = [None] * 21
    assert summarise(collect(50, [*many, *challenger]), collect(50, champion), greater_is_better=True) is None


def test_summary_requires_resamples_of_both_models() -> None:
    assert summarise(collect(50, [0.7] * 100), ResampleCollector("auc"), greater_is_better=True) is None
    assert summarise(ResampleCollector("auc"), collect(50, [0.7] * 100), greater_is_better=True) is None


def test_different_numbers_of_rows_are_rejected() -> None:
    with pytest.raises(InvalidInputError, match="rows: got '50 for the challenger and 51 for the champion'"):
        summarise(collect(50, [0.7] * 100), collect(51, [0.7] * 100), greater_is_better=True)


def test_collector_joins_the_lines_of_the_newest_report_and_ignores_other_metrics() -> None:
    collector = collect(9, [0.1, 0.2, 0.3])
    for parts in (
        {"auc": Resamples(9, (0.4, None), first=3)},
        {"log_loss": Resamples(8, (1.0,), first=0)},
        {"auc": Resamples(7, (9.0,), first=5)},  # belongs to no report that has begun
    ):
        collector.add(Progress(1, 1, event="report", resamples=parts))
    assert (collector.rows, collector.values) == (9, {0: 0.1, 1: 0.2, 2: 0.3, 3: 0.4})
    collector.add(Progress(1, 1, event="report", resamples={"auc": Resamples(7, (0.5,))}))
    assert (collector.rows, collector.values) == (7, {0: 0.5})


@pytest.mark.parametrize(
    ("improvements", "message"),
    [
        (None, r"expected resamples of 'auc'.*report\(auc=resampled\(\.\.\., rows=\.\.\.\)\)"),
        (0.95, r"improvements\.quantiles: got None, expected a list of 201 numbers"),
        ({"quantiles": [0.1] * 200}, r"improvements\.quantiles: got \[0\.1.*expected a list of 201 numbers"),
        ({"quantiles": [0.1] * 200 + ["x"]}, r"improvements\.quantiles: got 'x'"),
        ({"quantiles": [0.1] * 200 + [float("nan")]}, r"improvements\.quantiles: got nan"),
    ],
)
def test_invalid_summary_is_rejected_by_field(improvements: object, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        read_quantiles({"metric": "auc", "improvements": improvements})


def test_resamples_belong_only_to_the_score_that_was_reported_with_them() -> None:
    def report(score: float, *values: float) -> list[Progress]:
        parts = [Progress(1, 1, event="report", resamples={"auc": Resamples(rows=50, values=values)})] if values else []
        return [*parts, Progress(1, 1, event="report", metrics={"auc": score})]

    collector = ResampleCollector("auc")
    for line in [*report(0.9, 0.8, 0.9), *report(0.9)]:  # later lines repeat the newest values
        collector.add(line)
    assert collector.values == {0: 0.8, 1: 0.9}
    for line in report(0.5):
        collector.add(line)
    assert (collector.rows, collector.values) == (None, {})
    for line in report(0.5, 0.4):
        collector.add(line)
    assert collector.values == {0: 0.4}
