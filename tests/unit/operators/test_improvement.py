"""The paired bootstrap: error rates of simulated evaluations, and the summary on which a promotion depends."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from paceline.contract import EvaluationResult
from paceline.errors import InvalidInputError
from paceline.operators._evaluation import read_evaluation
from paceline.operators.improvement import ResampleCollector, judge, reached_confidence, summarise
from paceline.train import resampled
from paceline.train.progress import Progress, Resamples

ROWS, EVALUATIONS = 200, 300


def collect(rows: int, values: Sequence[float | None], first: int = 0) -> ResampleCollector:
    collector = ResampleCollector("auc")
    collector.add(Progress(1, 1, event="report", resamples={"auc": Resamples(rows, tuple(values), first)}))
    return collector


def score(metric: Callable[[Any], float], rows: int, groups: Any = None) -> tuple[float, ResampleCollector]:
    """Return the score on all rows, and what the operator collects from the script."""
    value = resampled(metric, rows, 400, groups)
    collector = ResampleCollector("auc")
    collector.add(Progress(1, 1, event="report", resamples={"auc": value.resamples}))
    return float(value), collector


def score_rows(row_scores: np.ndarray, groups: Any = None) -> ResampleCollector:
    """Return what the operator collects from a script whose metric is the mean of a score of each row."""
    return score(lambda drawn: row_scores[drawn].mean(), len(row_scores), groups)[1]


def evaluation(challenger: tuple[float, ResampleCollector], champion: tuple[float, ResampleCollector]) -> Any:
    """Return the parts of an evaluation on which the decision depends."""
    return EvaluationResult(
        model="churn", version=2, metric="auc", challenger=challenger[0], champion=champion[0], champion_version=1,
        improvement=challenger[0] - champion[0],
        improvements=summarise(challenger[1], champion[1], greater_is_better=True),
    )  # fmt: skip


def compare_rows(challenger: np.ndarray, champion: np.ndarray, groups: Any = None) -> Any:
    """Return the evaluation of two models with a score for each row."""
    scores = [(float(one.mean()), score_rows(one, groups)) for one in (challenger, champion)]
    return evaluation(*scores)


def simulate_evaluations(true_improvement: float, count: int = EVALUATIONS) -> list[Any]:
    """Return evaluations on different data. Rows are hard for both models."""
    random = np.random.default_rng(0)
    results = []
    for _ in range(count):
        difficulty = random.normal(size=ROWS)
        champion = difficulty + 0.3 * random.normal(size=ROWS)
        challenger = difficulty + 0.3 * random.normal(size=ROWS) + true_improvement
        results.append(compare_rows(challenger, champion))
    return results


def test_challenger_that_is_no_better_is_rarely_confirmed() -> None:
    """The share of wrong decisions is at most 1 - confidence."""
    results = simulate_evaluations(0.0)
    for required in (0.95, 0.8):
        confirmed = sum(judge(one, 0.0, required, 20)[0] == "better" for one in results)
        assert confirmed <= stats.binom.ppf(0.999, EVALUATIONS, 1 - required)
    by_the_score_alone = sum(one.improvement > 0 for one in results)
    assert by_the_score_alone >= 0.4 * EVALUATIONS, "the score alone is wrong half of the time"


def test_clear_improvement_is_confirmed() -> None:
    results = simulate_evaluations(0.15, count=50)  # five standard errors of the paired difference
    assert sum(judge(one, 0.0, 0.95, 20)[0] == "better" for one in results) >= 49


def test_pairing_narrows_the_interval() -> None:
    random = np.random.default_rng(0)
    difficulty = random.normal(size=ROWS)
    champion, challenger = (score_rows(difficulty + 0.1 * random.normal(size=ROWS)) for _ in range(2))
    unpaired = collect(ROWS, [*list(champion.values.values())[1:], champion.values[0]])
    widths = []
    for other in (champion, unpaired):
        summary = summarise(challenger, other, greater_is_better=True)
        assert summary is not None
        widths.append(summary.interval[1] - summary.interval[0])
    assert widths[0] < widths[1] / 5


thousandths = st.integers(-20, 20).map(lambda k: k / 1000)


@given(st.lists(thousandths, min_size=100, max_size=450), st.integers(0, 20).map(lambda k: k / 1000))
def test_confidence_is_at_most_the_share_of_resamples(improvements: list[float], required: float) -> None:
    rows = 2**53  # so many that nothing is corrected
    summary = summarise(collect(rows, improvements), collect(rows, [0.0] * len(improvements)), greater_is_better=True)
    assert summary is not None
    share = sum(value > 0 and value >= required for value in improvements) / len(improvements)
    far = reached_confidence(summary, 1.0, required)  # the reflected resamples are better
    assert far == pytest.approx(share, abs=0.0051) or share == 1 or len(set(improvements)) == 1
    assert reached_confidence(summary, 0.0, required) <= share + 0.0005


def test_equal_improvement_on_every_resample_is_not_confirmed() -> None:
    """A metric that ignores its rows has the same value on every resample."""
    ignoring = evaluation(score(lambda rows: 0.8, 500), score(lambda rows: 0.7, 500))
    verdict, reason = judge(ignoring, 0.0, 0.95, 300)
    assert verdict == "not significantly better"
    assert reason.endswith("all resamples have the same improvement, as if the metric ignored its rows")


@pytest.mark.parametrize("rows", [1, 5, 19])
def test_few_rows_are_never_confirmed(rows: int) -> None:
    verdict, reason = judge(compare_rows(np.arange(rows) + 1.0, np.zeros(rows)), 0.0, 0.95, 20)
    assert verdict == "too few rows"
    assert reason.endswith(f"but too few rows: {rows}, expected at least 20 (minimum_samples)")
    assert judge(compare_rows(np.arange(20) + 1.0, np.zeros(20)), 0.0, 0.95, 20)[0] == "better"


def test_three_rows_do_not_confirm_an_improvement() -> None:
    """An equal challenger is better in all of three rows with a probability of 1/8."""
    champion = np.zeros(1000)
    for better, confirmed in ((3, False), (12, True)):
        challenger = champion.copy()
        challenger[100 : 100 + 20 * better : 20] = 1.0
        result = compare_rows(challenger, champion)
        assert sum(value > 0 for value in result.improvements.quantiles) / 201 >= 0.94
        assert (judge(result, 0.0, 0.95, 300)[0] == "better") is confirmed


def test_resamples_without_score_count_against_the_challenger() -> None:
    """The AUC with one positive row is undefined on the resamples without this row."""
    labels = np.arange(1000) == 0

    def auc(lower: int) -> tuple[float, ResampleCollector]:
        scores = np.arange(1000) % 97 + 200.0 * labels - lower * labels

        def metric(rows: Any) -> float:
            positive = labels[rows]
            if not positive.any():
                raise ValueError("only one class")
            return float((scores[rows][~positive] < scores[0]).mean())

        return score(metric, 1000)

    verdict, reason = judge(evaluation(auc(lower=0), auc(lower=190)), 0.0, 0.95, 300)
    assert verdict == "not significantly better"
    assert "of 400 resamples have no score and count against the challenger" in reason


def make_clusters(rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a challenger and a champion with equal scores in ten successive rows, and the number of each ten."""
    random = np.random.default_rng(8)
    clusters = np.repeat(np.arange(rows // 10), 10)
    challenger, champion = random.normal(size=(2, rows // 10))
    # A little better, as an equal challenger often is by chance.
    return challenger[clusters] - challenger.mean() + 0.12, champion[clusters] - champion.mean(), clusters


def test_neighbouring_rows_that_depend_on_each_other_lower_the_confidence() -> None:
    challenger, champion, clusters = make_clusters(1000)
    dependent = compare_rows(challenger, champion)
    assert 5 < dependent.improvements.design_effect < 20
    verdict, reason = judge(dependent, 0.0, 0.95, 300)
    assert verdict == "not significantly better"
    assert "neighbouring rows look dependent" in reason
    order = np.random.default_rng(1).permutation(1000)
    unnoticed = compare_rows(challenger[order], champion[order])
    assert unnoticed.improvements.design_effect == 1.0
    assert judge(unnoticed, 0.0, 0.95, 300)[0] == "better", "nothing shows that these rows depend on each other"
    grouped = compare_rows(challenger[order], champion[order], clusters[order])
    assert (grouped.improvements.groups, grouped.improvements.design_effect) == (100, 1.0)
    assert judge(grouped, 0.0, 0.95, 300)[0] == "not significantly better"


def test_few_groups_are_never_confirmed() -> None:
    days = np.repeat(np.arange(19), 50)
    verdict, reason = judge(compare_rows(np.arange(950) + 1.0, np.zeros(950), days), 0.0, 0.95, 300)
    assert verdict == "too few groups"
    assert reason.endswith("but too few groups: 19, expected at least 20")
    days[-10:] = 19
    assert judge(compare_rows(np.arange(950) + 1.0, np.zeros(950), days), 0.0, 0.95, 300)[0] == "better"


def test_summary_states_which_rows_may_be_absent() -> None:
    summary = compare_rows(np.arange(300) + 1.0, np.zeros(300)).improvements
    assert summary.unseen_share == pytest.approx(0.01, abs=0.0001)


def test_smaller_is_better_for_losses() -> None:
    challenger, champion = collect(50, [0.5 - k / 1000 for k in range(100)]), collect(50, [0.5] * 100)
    summary = summarise(challenger, champion, greater_is_better=False)
    assert summary is not None
    assert (summary.quantiles[0], summary.quantiles[-1]) == (0.0, 0.099)
    assert summary.interval == [0.004, 0.094]
    opposite = summarise(challenger, champion, greater_is_better=True)
    assert opposite is not None
    assert (opposite.quantiles[0], opposite.quantiles[-1]) == (-0.099, 0.0)


def test_pair_with_an_undefined_score_is_skipped() -> None:
    challenger, champion = [0.8] * 120, [0.7] * 120
    undefined: list[float | None] = [None] * 10
    summary = summarise(
        collect(50, [*undefined, *challenger]), collect(50, [*champion, *undefined]), greater_is_better=True
    )
    assert summary is not None
    assert (summary.pairs, summary.rows, set(summary.quantiles)) == (110, 50, {0.1})
    many: list[float | None] = [None] * 21
    assert summarise(collect(50, [*many, *challenger]), collect(50, champion), greater_is_better=True) is None


def test_summary_requires_resamples_of_both_models() -> None:
    assert summarise(collect(50, [0.7] * 100), ResampleCollector("auc"), greater_is_better=True) is None
    assert summarise(ResampleCollector("auc"), collect(50, [0.7] * 100), greater_is_better=True) is None


def test_different_numbers_of_rows_are_rejected() -> None:
    with pytest.raises(InvalidInputError, match="rows: got '50 for the challenger and 51 for the champion'"):
        summarise(collect(50, [0.7] * 100), collect(51, [0.7] * 100), greater_is_better=True)


@pytest.mark.parametrize("without", [(), (1.0,), (1e308, -1e308), (1.0, None), (1.0, 2.0, 3.0)])
def test_odd_values_without_blocks_show_no_dependence(without: tuple[float | None, ...]) -> None:
    """A script may write progress lines of its own."""
    values = tuple(k / 1000 for k in range(100))
    challenger, champion = ResampleCollector("auc"), ResampleCollector("auc")
    for collector, parts in ((challenger, without), (champion, (-1e308, 1e308))):
        resamples = Resamples(50, values if collector is champion else values[::-1], without=parts)
        collector.add(Progress(1, 1, event="report", resamples={"auc": resamples}))
    summary = summarise(challenger, champion, greater_is_better=True)
    assert summary is not None
    assert summary.design_effect == 1.0


def test_different_numbers_of_groups_are_rejected() -> None:
    scores = np.arange(50) + 1.0
    with pytest.raises(InvalidInputError, match="groups: got '25 for the challenger and None for the champion'"):
        summarise(score_rows(scores, np.arange(50) // 2), score_rows(scores), greater_is_better=True)


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


SUMMARY: dict[str, Any] = {
    "rows": 50, "resamples": 100, "pairs": 100, "interval": [0.0, 0.2], "quantiles": [0.1] * 201, "unseen_share": 0.1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("improvements", "message"),
    [
        (0.95, r"improvements: got 0\.95, expected a valid dictionary"),
        ({**SUMMARY, "quantiles": [0.1] * 200}, r"improvements\.quantiles: got \[0\.1.*should have at least 201 items"),
        (
            {**SUMMARY, "quantiles": [0.1] * 200 + ["x"]},
            r"improvements\.quantiles\.200: got 'x', expected a valid number",
        ),
        ({**SUMMARY, "quantiles": [0.1] * 200 + [float("nan")]}, r"improvements\.quantiles\.200: got nan"),
        ({**SUMMARY, "rows": 0.5}, r"improvements\.rows: got 0\.5, expected a valid integer"),
        ({**SUMMARY, "pairs": None}, r"improvements\.pairs: got None, expected a valid integer"),
        ({"rows": 50}, r"improvements\.resamples: got None, expected a value"),
        ({**SUMMARY, "groups": "x"}, r"improvements\.groups: got 'x'"),
    ],
)
def test_invalid_summary_is_rejected_by_field(improvements: object, message: str) -> None:
    scores = {"challenger": 0.8, "champion": 0.7, "champion_version": 1, "improvement": 0.1}
    with pytest.raises(InvalidInputError, match=message):
        read_evaluation({"model": "churn", "version": 2, "metric": "auc", **scores, "improvements": improvements})


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


@pytest.mark.parametrize("groups", [None, np.repeat(np.arange(60), 10)])
def test_collected_resamples_are_the_same_after_a_deferral(groups: Any) -> None:
    first = score_rows(np.random.default_rng(0).normal(size=600), groups)
    first.add(Progress(1, 1, event="report", metrics={"auc": 0.5}))
    first.values.pop(3)
    again = ResampleCollector.read("auc", json.loads(json.dumps(first.to_json())))
    assert vars(again) == vars(first)
    assert again.without
