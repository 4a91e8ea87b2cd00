"""Models that predict the errors of unlabelled predictions, from the scores or from all features.

Used by ``paceline.drift._estimates`` and ``paceline.drift._cross_fit``. The models come from scikit-learn.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, Protocol

from paceline.drift.prediction_errors import ErrorKind, compute_row_errors

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Rows = NDArray[np.int64]

FOLDS = 10


class Learner(Protocol):
    """A model of the errors, with the rows of both windows.

    The rows of the reference come first. ``target`` has, for each of them, the value that the model predicts.
    """

    method: Literal["CBPE", "DLE"]
    inputs: Floats
    target: Floats

    def split(self) -> Iterator[tuple[Rows, Rows]]:
        """Yield, for each fold, the rows of the reference outside it and the rows in it."""

    def fit(self, rows: Rows) -> Any:
        """Return a scikit-learn model that has learned the target of these rows."""

    def values(self, target: Floats, rows: Rows) -> Floats:
        """Return one value for each row, given its known or predicted target; the mean of the values is the error."""

    def limits(self, expected: Floats, rows: Rows) -> tuple[Floats, Floats]:
        """Return, for each row, the lowest and the highest value that its label can give, given the expected target."""

    def noise(self, expected: Floats, rows: Rows, own: Floats) -> Floats:
        """Return, for each row, the variance of the value that its label will give, given the expected target.

        ``own`` are the predictions for the rows of the reference.
        """


def split_at_random(target: Floats) -> Iterator[tuple[Rows, Rows]]:
    """Yield, for each fold, the rows outside it and the rows in it."""
    from sklearn.model_selection import KFold

    yield from KFold(FOLDS, shuffle=True, random_state=0).split(target)


class Calibrator:
    """Confidence-based performance estimation: the expected error of a row follows from the probability of its label.

    The model is the isotonic regression of the labels on the scores: the probability of the label 1 for each score. The
    error is known for either label, so the expected error is the mean of the two errors, weighted by the probability.
    """

    method: Literal["CBPE", "DLE"] = "CBPE"

    def __init__(self, error: ErrorKind, threshold: float, scores: Floats, truth: Floats) -> None:
        import numpy as np

        self.inputs, self.target = scores, truth
        start = len(truth)
        # The ranking error compares each score with those of the reference, so prepend the reference's scores again.
        everything = np.concatenate([scores[:start], scores])
        negative, positive = (
            compute_row_errors(
                error,
                everything,
                np.concatenate([truth, np.full(len(scores), float(label))]),
                start,
                threshold,
                binary=True,
            )[0][start:]
            for label in (0, 1)
        )
        self._errors = (negative, positive)
        self._balanced = error == "auc"

    def split(self) -> Iterator[tuple[Rows, Rows]]:
        """Yield random folds."""
        # Equal shares of positive rows in the folds would hide the uncertainty of this share from the jackknife.
        yield from split_at_random(self.target)

    def fit(self, rows: Rows) -> Any:
        """Return the isotonic regression of the labels on the scores."""
        from sklearn.isotonic import IsotonicRegression

        return IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(self.inputs[rows], self.target[rows])

    def values(self, target: Floats, rows: Rows) -> Floats:
        """Return the expected error of each row, given the probabilities of the label 1."""
        level, negative, positive = self._by_label(target, rows)
        return level + (1 - target) * negative + target * positive

    def limits(self, expected: Floats, rows: Rows) -> tuple[Floats, Floats]:
        """Return the smaller and the larger one of each row's errors for the two labels."""
        import numpy as np

        level, negative, positive = self._by_label(expected, rows)
        return level + np.minimum(negative, positive), level + np.maximum(negative, positive)

    def noise(self, expected: Floats, rows: Rows, own: Floats) -> Floats:
        """Return the variance of the error of each row, whose label is a Bernoulli variable."""
        _, negative, positive = self._by_label(expected, rows)
        variance: Floats = expected * (1 - expected) * (positive - negative) ** 2
        return variance

    def _by_label(self, target: Floats, rows: Rows) -> tuple[float, Floats, Floats]:
        """Return an offset, the value of each row for the label 0, and its value for the label 1.

        The ranking error is the mean of the two classes' means. A row's value is its influence on this mean, so the
        values have the variance of the mean.
        """
        errors = [both[rows] for both in self._errors]
        if not self._balanced:
            return 0.0, errors[0], errors[1]
        weights = (1 - target, target)
        occurring = [label for label in (0, 1) if weights[label].sum() > 0]
        level = 0.0
        for label in (0, 1):
            if label not in occurring:
                errors[label] = errors[label] * 0.0
                continue
            share = float(weights[label].mean())
            mean = float((weights[label] * errors[label]).mean()) / share
            errors[label] = (errors[label] - mean) / (share * len(occurring))
            level += mean / len(occurring)
        return level, errors[0], errors[1]


class LossModel:
    """Direct loss estimation: gradient-boosted trees learn the error of a row from the features and the prediction.

    With ``is_wrong``, the errors are 0 and 1, for right and wrong predictions.
    """

    method: Literal["CBPE", "DLE"] = "DLE"

    def __init__(self, inputs: Floats, errors: Floats, *, is_wrong: bool) -> None:
        self.inputs, self.target = inputs, errors
        self._is_wrong = is_wrong

    def split(self) -> Iterator[tuple[Rows, Rows]]:
        """Yield random folds."""
        yield from split_at_random(self.target)

    def fit(self, rows: Rows) -> Any:
        """Return trees that have learned the errors."""
        from sklearn.ensemble import HistGradientBoostingRegressor

        model = HistGradientBoostingRegressor(max_iter=60, early_stopping=False, random_state=0)
        return model.fit(self.inputs[rows], self.target[rows])

    def values(self, target: Floats, rows: Rows) -> Floats:
        """Return the expected errors, which are the target."""
        return target

    def limits(self, expected: Floats, rows: Rows) -> tuple[Floats, Floats]:
        """Return 0, and 1 or for absolute errors the 99 % quantile of the errors, which have no upper bound."""
        import numpy as np

        highest = 1.0 if self._is_wrong else float(np.quantile(self.target, 0.99))
        return np.zeros(len(rows)), np.maximum(expected, highest)

    def noise(self, expected: Floats, rows: Rows, own: Floats) -> Floats:
        """Return the variance of each row's error.

        Absolute errors are assumed to spread in proportion to their mean, as those of a scaled distribution do.
        """
        import numpy as np

        if self._is_wrong:
            probability = np.clip(expected, 0, 1)
            variance: Floats = probability * (1 - probability)
            return variance
        mean_square = float((own**2).mean())
        return expected**2 * (float(((self.target - own) ** 2).mean()) / mean_square if mean_square else 0.0)
