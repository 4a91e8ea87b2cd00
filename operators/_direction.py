"""The name of the metric, and whether a greater score is better. Called by ``EvaluateOperator``."""

from __future__ import annotations

import re

from paceline.errors import InvalidInputError

# Words in the names of metrics of which a smaller value is better, besides those that end in "loss".
_LOSSES = {
    *("error", "errors", "err", "mae", "mse", "rmse", "nrmse", "rmsle", "msle", "mape", "smape", "nll", "bce"),
    *("cost", "costs", "brier", "deviance", "perplexity", "ppl", "wer", "cer", "fid"),
}


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
    """Return whether a greater score is better; raise InvalidInputError if only the user can know."""
    words = re.findall(r"[a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", metric).lower())
    if isinstance(greater_is_better, bool):
        return greater_is_better
    if greater_is_better is None and not any(word.endswith("loss") or word in _LOSSES for word in words):
        return True
    reason = f", because {metric!r} may be a loss or an error" if greater_is_better is None else ""
    raise InvalidInputError("greater_is_better", greater_is_better, f"True or False{reason}")
