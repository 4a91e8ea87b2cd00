"""Ranks the scores of two classes: the ranking error of each row, and the area under the ROC curve.

Called by ``paceline.drift.prediction_errors``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def rank_errors(
    predicted: NDArray[np.float64],
    truth: NDArray[np.float64],
    positives: NDArray[np.float64],
    negatives: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return for each row the share of the other class's scores on the wrong side of its score; ties count half."""
    import numpy as np

    below = [
        (np.searchsorted(scores, predicted, "left") + np.searchsorted(scores, predicted, "right")) / 2 / len(scores)
        for scores in (np.sort(positives), np.sort(negatives))
    ]
    return np.where(truth == 1, 1 - below[1], below[0])


def compute_auc(predicted: NDArray[np.float64], truth: NDArray[np.float64]) -> float | None:
    """Return the area under the ROC curve, or None without rows of both classes."""
    positives, negatives = predicted[truth == 1], predicted[truth == 0]
    if not len(positives) or not len(negatives):
        return None
    return 1 - float(rank_errors(predicted, truth, positives, negatives)[truth == 1].mean())
