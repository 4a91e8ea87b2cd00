"""Counts a window's rows by label and predicted class, with precision, recall and F1.

``paceline.drift.prediction_errors`` counts; ``ConceptDrift`` has the result for both windows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.contract import Confusion
from paceline.drift._columns import shorten_name

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from paceline.drift._classes import Classes

MAX_CLASSES = 10
OTHER = "(other)"


def count_confusion(classes: Classes) -> tuple[Confusion | None, Confusion | None]:
    """Return the counts of the reference and of the current window; None for a window without rows.

    >>> from paceline.drift._classes import encode_classes
    >>> _, current = count_confusion(encode_classes(["cat", "cat", "dog"], ["cat", "dog", "dog"], 0))
    >>> current.classes, current.counts, current.recall, round(current.macro_f1, 3)
    (('cat', 'dog'), ((1, 0), (1, 1)), (1.0, 0.5), 0.667)
    """
    import numpy as np

    number = len(classes.names)
    frequent = np.bincount(np.concatenate([classes.predicted, classes.truth]), minlength=number)
    shown = np.argsort(-frequent, kind="stable")[:MAX_CLASSES].tolist()
    shown.sort(key=lambda code: _sort_key(classes.names[code]))
    start = classes.start
    windows = [(codes[:start], codes[start:]) for codes in (classes.predicted, classes.truth)]
    before, after = (
        _count(predicted, truth, classes.names, shown) if len(truth) else None
        for predicted, truth in zip(*windows, strict=True)
    )
    return before, after


def _count(predicted: NDArray[np.int64], truth: NDArray[np.int64], names: list[str], shown: list[int]) -> Confusion:
    import numpy as np

    number, size = len(names), len(shown) + (len(names) > len(shown))
    place = np.full(number, size - 1)
    place[shown] = np.arange(len(shown))
    counts = np.bincount(place[truth] * size + place[predicted], minlength=size * size).reshape(size, size)

    right = np.bincount(truth[truth == predicted], minlength=number)
    given, true = (np.bincount(codes, minlength=number) for codes in (predicted, truth))
    scores = [
        np.divide(part, whole, out=np.full(number, np.nan), where=whole > 0)
        for part, whole in ((right, given), (right, true), (2 * right, given + true))
    ]
    occurs = given + true > 0
    macro = [float(np.nan_to_num(one[occurs]).mean()) for one in scores]
    rest = size - len(shown)
    listed = [(*(None if value != value else value for value in one[shown].tolist()), *[None] * rest) for one in scores]
    return Confusion(
        classes=(*(shorten_name(names[code]) for code in shown), *[OTHER] * rest),
        counts=tuple(map(tuple, counts.tolist())),
        precision=listed[0],
        recall=listed[1],
        f1=listed[2],
        macro_precision=macro[0],
        macro_recall=macro[1],
        macro_f1=macro[2],
    )


def _sort_key(name: str) -> tuple[float, str]:
    """Return a key that sorts numbers by value, before text."""
    try:
        return float(name), name
    except ValueError:
        return float("inf"), name
