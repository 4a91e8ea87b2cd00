"""Rejects predictions and labels that cannot be equal to each other. Called by ``paceline.drift.prediction_errors``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from paceline.drift._classes import Classes, parse_number
from paceline.drift._columns import shorten
from paceline.errors import InvalidInputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# The share of rows below which predictions and labels do not match.
_SMALLEST_SHARE = 0.01
_EXAMPLES = 3


def check_match(
    classes: Classes, prediction: str, actual: str, minimum_rows: int, *, possible: Iterable[str] = ()
) -> None:
    """Raise InvalidInputError if predictions and labels have (nearly) no value in common.

    A model may never predict some of the labels. In each window, however, labels that are never predicted and that the
    other window does not have, or predictions that are never a label, are written in another way.

    Parameters
    ----------
    classes:
        All rows with a prediction and a label.
    prediction, actual:
        Names of the columns, for the message.
    minimum_rows:
        Number of rows below which all predictions of a good model may be wrong by chance.
    possible:
        Classes that the model can predict, besides those that it predicts.
    """
    import numpy as np

    positions = {name: number for number, name in enumerate(classes.names)}
    can_predict = np.array([positions[name] for name in possible if name in positions], dtype=np.int64)
    given, truth = classes.predicted, classes.truth
    predicted = np.concatenate([given, can_predict])
    before, after = slice(None, classes.start), slice(classes.start, None)

    never_true, never_given = ([classes.names[code] for code in codes] for codes in _differences(predicted, truth))
    blanks = {name.strip() for name in never_true} & {name.strip() for name in never_given}
    if blanks:
        shown = [[name for name in names if name.strip() in blanks] for names in (never_true, never_given)]
        raise _describe(shown, "the windows", prediction, actual)
    if len(truth) < minimum_rows:
        return
    if max(_share(given, truth), _share(truth, predicted)) < _SMALLEST_SHARE:
        window = "both windows" if 0 < classes.start < len(truth) else "the window"
        raise _mismatch(classes, slice(None), window, prediction, actual)
    for window, rows, other in (("reference", before, after), ("current", after, before)):
        if len(truth[rows]) < minimum_rows or not len(truth[other]):
            continue
        known_labels = _share(truth[rows], np.concatenate([predicted, truth[other]]))
        if min(known_labels, _share(given[rows], np.concatenate([truth, given[other]]))) < _SMALLEST_SHARE:
            raise _mismatch(classes, rows, f"the {window} window", prediction, actual)


def _differences(first: NDArray[np.int64], second: NDArray[np.int64]) -> tuple[list[int], list[int]]:
    import numpy as np

    return np.setdiff1d(first, second).tolist(), np.setdiff1d(second, first).tolist()


def _share(values: NDArray[np.int64], known: NDArray[np.int64]) -> float:
    import numpy as np

    return float(np.isin(values, known).mean())


def _examples(classes: Classes, rows: slice) -> list[list[str]]:
    """Return the most frequent predictions and labels, most frequent first."""
    import numpy as np

    counts = [np.bincount(codes[rows], minlength=1) for codes in (classes.predicted, classes.truth)]
    return [[classes.names[code] for code in np.argsort(-one, kind="stable") if one[code]] for one in counts]


def _mismatch(classes: Classes, rows: slice, window: str, prediction: str, actual: str) -> InvalidInputError:
    import numpy as np

    is_number = np.array([parse_number(name) is not None for name in classes.names])
    columns = {prediction: classes.predicted[rows], actual: classes.truth[rows]}
    shares = [float(is_number[codes].mean()) for codes in columns.values()]
    error = _describe(_examples(classes, rows), window, prediction, actual)
    # If one column has only numbers, name the first other value of the other column.
    for (column, codes), share, other in zip(columns.items(), shares, reversed(shares), strict=True):
        if share < other == 1:
            odd = classes.names[codes[~is_number[codes]][0]]
            accepted = f"only numbers, like most values in {window}" if share > 0.5 else error.accepted
            return InvalidInputError(column, odd, accepted)
    return error


def _describe(values: list[list[str]], window: str, prediction: str, actual: str) -> InvalidInputError:
    shown = [", ".join(repr(shorten(name)) for name in names[:_EXAMPLES]) for names in values]
    folded = [{name.strip().casefold() for name in names} for names in values]
    hint = " (equal except for case or blanks)" if folded[0] & folded[1] else ""
    return InvalidInputError(
        prediction,
        values[0][0],
        f"the same values in {prediction!r} and {actual!r}, or probabilities of labels that are 0 and 1: in {window}, "
        f"{prediction!r} has {shown[0]} and {actual!r} has {shown[1]}, which never match{hint}",
    )
