"""Measures how often the promotion gate, ``PromoteOperator(confidence=0.95)``, promotes a challenger that is no better.

``python -m benchmarks.gate`` (about 20 minutes on one core) simulates evaluations on different hold-out data and prints
the share of promotions. The challenger and the champion differ by chance only, except where the table says otherwise.
The simulated script and the two tasks use the functions of the real ones: ``resampled``, the summary of
``EvaluateOperator`` and the decision of ``PromoteOperator``.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from paceline.contract import EvaluationResult
from paceline.operators.improvement import MIN_UNITS, ResampleCollector, judge, summarise
from paceline.train import resampled
from paceline.train.progress import Progress

Array = NDArray[Any]
Metric = Callable[[Array], float]
# Two models on new data: the metric of the challenger, that of the champion (greater is better), and the rows.
Models = tuple[Metric, Metric, int]
Draw = Callable[[np.random.Generator], Models]
CONFIDENCE, RESAMPLES = 0.95, 200
_SHARED = 0.3  # standard deviation of a model's own error, relative to the error that both models share


def mean_of(values: Array) -> Metric:
    """Return the mean of a score of each row as a metric."""
    return lambda rows: float(values[rows].mean())


def area_under_curve(labels: Array, scores: Array) -> Metric:
    """Return the area under the ROC curve as a metric; it raises ValueError without both labels."""

    def metric(rows: Array) -> float:
        drawn, positive = scores[rows], labels[rows]
        negatives = np.sort(drawn[~positive])
        if len(negatives) in (0, len(rows)):
            raise ValueError("only one class")
        below, not_above = (negatives.searchsorted(drawn[positive], side) for side in ("left", "right"))
        return float((below + not_above).mean() / 2 / len(negatives))

    return metric


def accuracy(rows: int) -> Draw:
    """Return two models that are right in 80 % of the rows and disagree about 10 %."""

    def draw(random: np.random.Generator) -> Models:
        both, split = random.random(rows) < 0.8, random.random(rows) < 0.1
        challenger = np.where(split, random.random(rows) < 0.5, both)
        champion = np.where(split, ~challenger, both)
        return mean_of(challenger), mean_of(champion), rows

    return draw


def auc(rows: int, positives: int | None = None) -> Draw:
    """Return two models of labels that are 1 in half of the rows, or in ``positives`` rows."""

    def draw(random: np.random.Generator) -> Models:
        labels = random.permutation(np.arange(rows) < (positives or max(1, rows // 2)))
        shared = labels + random.normal(size=rows)
        new, old = (shared + _SHARED * random.normal(size=rows) for _ in range(2))
        return area_under_curve(labels, new), area_under_curve(labels, old), rows

    return draw


def absolute_error(rows: int, better_by: float = 0.0, rows_each: int = 1, noise: float = 0.0) -> Draw:
    """Return two models' negative absolute errors, equal or similar (``noise``) in ``rows_each`` successive rows."""

    def draw(random: np.random.Generator) -> Models:
        def normal() -> Array:
            return np.repeat(random.normal(size=rows // rows_each), rows_each) + noise * random.normal(size=rows)

        shared = normal()
        new, old = (-abs(shared + _SHARED * normal()) for _ in range(2))
        return mean_of(new + better_by), mean_of(old), rows

    return draw


def huge_errors(rows: int) -> Draw:
    """Return a challenger that is better by 0.2 in 99 % of the rows and worse by 50 in 1 %: worse on average."""

    def draw(random: np.random.Generator) -> Models:
        champion = -abs(random.normal(size=rows))
        gain = 0.2 + 0.5 * random.normal(size=rows)
        challenger = champion + np.where(random.random(rows) < 0.01, -50.0, gain)
        return mean_of(challenger), mean_of(champion), rows

    return draw


def promoted(models: Models, groups: Array | None, min_improvement: float) -> dict[str, bool]:
    """Return whether the share of resamples alone, the gate without a minimum, and the gate promote the challenger."""
    collected, scores = [], []
    for metric in models[:2]:
        try:
            score = resampled(metric, models[2], RESAMPLES, groups)
        except ValueError:  # the data have only one class
            return {"share alone": False, "minimum 20": False, "gate": False, "warned": False}
        collected.append(ResampleCollector("score"))
        collected[-1].add(Progress(1, 1, event="report", resamples={"score": score.resamples}))
        scores.append(float(score))
    summary = summarise(*collected, greater_is_better=True)
    improvement = scores[0] - scores[1]
    evaluation = EvaluationResult(
        model="gate", version=2, metric="score", challenger=scores[0], champion=scores[1], champion_version=1,
        improvement=improvement, improvements=summary,
    )  # fmt: skip
    if summary is None or improvement <= 0:
        return {"share alone": False, "minimum 20": False, "gate": False, "warned": False}
    wins = sum(value > 0 and value >= min_improvement for value in summary.quantiles) - 1
    return {
        "share alone": improvement >= min_improvement and wins / 200 >= CONFIDENCE,
        "minimum 20": judge(evaluation, min_improvement, CONFIDENCE, MIN_UNITS)[0] == "better",
        "gate": judge(evaluation, min_improvement, CONFIDENCE, 300)[0] == "better",
        "warned": summary.design_effect > 1,
    }


def cases() -> dict[str, tuple[Draw, Callable[[np.random.Generator], Array] | None, float]]:
    """Return the models, the groups and ``min_improvement`` of each row of the table."""
    table: dict[str, tuple[Draw, Callable[[np.random.Generator], Array] | None, float]] = {}
    for name, draw in (("accuracy", accuracy), ("AUC", auc), ("absolute error", absolute_error)):
        for rows in (1, 5, 10, 20, 30, 50, 100, 300, 1000):
            table[f"{name}, {rows} rows"] = draw(rows), None, 0.0
    for positives in (1, 2, 3, 5, 10, 20, 50):
        table[f"AUC, {positives} of 1000 rows positive"] = auc(1000, positives), None, 0.0
    for rows in (100, 300, 1000):
        table[f"worse by 1 % huge errors, {rows} rows"] = huge_errors(rows), None, 0.0
    table["worse by 1 % huge errors, 100 rows, min_improvement=1.5"] = huge_errors(100), None, 1.5
    for noise in (0.0, 0.3):
        kind = "similar" if noise else "equal"
        for rows in (300, 1000):
            models = absolute_error(rows, rows_each=10, noise=noise)
            clusters = np.repeat(np.arange(rows // 10), 10)
            table[f"tens of {kind} rows, {rows} rows"] = models, None, 0.0
            table[f"tens of {kind} rows, {rows} rows, groups"] = models, lambda random, by=clusters: by, 0.0
    table["tens of equal rows, 1000 rows in random order"] = shuffled(absolute_error(1000, rows_each=10)), None, 0.0
    for rows in (300, 1000):
        table[f"better by 1 / sqrt(rows), {rows} rows"] = absolute_error(rows, 1.0 / rows**0.5), None, 0.0
    return table


def shuffled(draw: Draw) -> Draw:
    """Return the same models with the rows in random order."""

    def shuffle(random: np.random.Generator) -> Models:
        challenger, champion, rows = draw(random)
        order = random.permutation(rows)
        return lambda drawn: challenger(order[drawn]), lambda drawn: champion(order[drawn]), rows

    return shuffle


def main() -> None:
    """Print the table, and write it as JSON if requested."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--evaluations", type=int, default=500, help="simulated evaluations for each row of the table")
    parser.add_argument("--json", type=Path, help="write the shares to this file")
    options = parser.parse_args()
    shares = {}
    for name, (draw, groups, min_improvement) in tqdm(cases().items()):
        random = np.random.default_rng(0)
        results = []
        for _ in range(options.evaluations):
            models = draw(random)
            results.append(promoted(models, None if groups is None else groups(random), min_improvement))
        shares[name] = {key: float(np.mean([one[key] for one in results])) for key in results[0]}
        tqdm.write(f"| {name} | " + " | ".join(f"{100 * share:.1f} %" for share in shares[name].values()) + " |")
    if options.json:
        options.json.write_text(json.dumps(shares, indent=1))


if __name__ == "__main__":
    main()
