"""Whether a greater score is better, from the name of the metric or from the user. Called by ``EvaluateOperator``."""

from __future__ import annotations

import re

from paceline.errors import InvalidInputError

# Words in the names of metrics of which a smaller value is better, besides those that end in "loss".
_LOSSES = {
    *("error", "errors", "err", "mae", "mse", "rmse", "nrmse", "rmsle", "msle", "mape", "smape", "nll", "bce"),
    *("cost", "costs", "brier", "deviance", "perplexity", "ppl", "wer", "cer", "fid"),
}


def direction(metric: str, greater_is_better: object) -> bool:
    """Return whether a greater score is better; raise InvalidInputError if only the user can know."""
    words = re.findall(r"[a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", metric).lower())
    if isinstance(greater_is_better, bool):
        return greater_is_better
    if greater_is_better is None and not any(word.endswith("loss") or word in _LOSSES for word in words):
        return True
    reason = f", because {metric!r} may be a loss or an error" if greater_is_better is None else ""
    raise InvalidInputError("greater_is_better", greater_is_better, f"True or False{reason}")
