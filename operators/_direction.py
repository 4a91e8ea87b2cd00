"""The name of the metric, and whether a greater score is better. Called by ``EvaluateOperator``.

Each library has losses of its own, so only the names of scores are known. All other metrics need the user's direction.
"""

from __future__ import annotations

import re
from difflib import get_close_matches

from paceline.errors import InvalidInputError

# Words in the names of scores of which a greater value is better. They may have a number, such as "map50".
_SCORES = {
    *("acc", "accuracy", "auc", "aucpr", "auprc", "auroc", "prauc", "rocauc", "ap", "map", "precision", "recall"),
    *("f0", "f1", "f2", "fbeta", "fscore", "specificity", "sensitivity", "tpr", "tnr", "kappa", "mcc", "matthews"),
    *("dice", "iou", "miou", "jaccard", "ndcg", "dcg", "mrr", "hit", "hits", "hitrate", "r2", "explained"),
    *("corr", "corrcoef", "correlation", "pearson", "spearman", "kendall", "concordance"),
    *("silhouette", "rand", "ari", "nmi", "ami", "bleu", "sacrebleu", "chrf", "meteor", "rouge", "psnr", "ssim"),
}
# Words that turn a score into something else, such as "accuracy_gap", besides those that end in "loss" or "error".
_OPPOSITES = {
    *("err", "neg", "negative", "minus", "cost", "time", "latency", "mae", "mse", "rmse", "mape", "nll", "regret"),
    *("distance", "gap", "drop", "decay", "degradation", "delta", "diff", "difference", "disparity", "bias"),
    *("std", "stdev", "stddev", "var", "variance", "deviation", "spread", "range", "uncertainty", "entropy"),
}
_LOSSES = ("loss", "losses", "error", "errors")


def check_metric(metric: object) -> str:
    """Return the name of a score; raise InvalidInputError for a value that no script can report.

    >>> check_metric(" ")
    Traceback (most recent call last):
    paceline.errors.InvalidInputError: metric: got ' ', expected the name of a score, without white space at its ends
    """
    if not isinstance(metric, str) or not metric or metric != metric.strip():
        raise InvalidInputError("metric", metric, "the name of a score, without white space at its ends")
    return metric


def direction(metric: str, greater_is_better: object) -> bool:
    """Return whether a greater score is better; raise InvalidInputError if only the user can know.

    >>> direction("val_auc", None)
    True
    >>> direction("l2", None)
    Traceback (most recent call last):
    paceline.errors.InvalidInputError: greater_is_better: got None, expected True or False, because 'l2' may be a \
loss, an error or a cost
    >>> direction("acu", None)
    Traceback (most recent call last):
    paceline.errors.InvalidInputError: greater_is_better: got None, expected True or False, because 'acu' may be a \
loss, an error or a cost; similar names of scores: auc, acc
    """
    if isinstance(greater_is_better, bool):
        return greater_is_better
    if greater_is_better is None and _is_score(metric):
        return True
    reason = ""
    if greater_is_better is None:
        reason = f", because {metric!r} may be a loss, an error or a cost"
        if similar := _similar_scores(metric):
            reason += f"; similar names of scores: {', '.join(similar)}"
    raise InvalidInputError("greater_is_better", greater_is_better, f"True or False{reason}")


def _is_score(metric: str) -> bool:
    words = _words(metric)
    return not _is_opposite(metric, words) and any(
        word in _SCORES or word.rstrip("0123456789") in _SCORES for word in words
    )


def _similar_scores(metric: str) -> list[str]:
    """Return the known names to which a word of the metric is similar, for a misspelt name."""
    words = _words(metric)
    if _is_opposite(metric, words):
        return []
    return [name for word in words for name in get_close_matches(word, sorted(_SCORES))]


def _words(metric: str) -> list[str]:
    name = re.sub(r"(?<=[a-z]{2})(?=[A-Z])", "_", metric).lower()  # "mIoU" is one word
    return re.findall(r"[a-z]+\d*", re.sub(r"explained.?variance", "explained", name))


def _is_opposite(metric: str, words: list[str]) -> bool:
    return bool(re.match(r"1\s*-", metric)) or any(word in _OPPOSITES or word.endswith(_LOSSES) for word in words)
