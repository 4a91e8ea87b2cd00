"""Finds current rows that are unlike any rows of the reference, and bounds what they do to an estimated error.

Called by ``paceline.drift._estimates``. The classifier comes from scikit-learn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.drift._columns import Column, shorten_name
from paceline.drift._cross_fit import CrossFit
from paceline.drift._joint import encode_column
from paceline.drift._statistics import count_values, kolmogorov_smirnov

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Rows = NDArray[np.int64]
    Flags = NDArray[np.bool_]

# Rows of each window from which a classifier learns, and rows of the reference that it scores.
_LEARNED_ROWS, _SCORED_ROWS = 5_000, 20_000
# Minimum number of rows in a leaf of the trees. Categories with fewer rows count as one.
_LEAF = 10
# A row of the reference supports at most ``_RATIO`` times its share of the current window.
_RATIO = 10
_NAMES = 3  # maximum number of columns that a description names


@dataclass(frozen=True)
class Support:
    """The current rows that the reference does not support, and the columns that distinguish them most.

    ``unsupported`` has one flag for each current row.
    """

    unsupported: Flags
    columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class Bounds:
    """How far an estimate can be off beyond its random error.

    Parameters
    ----------
    estimate:
        The estimate.
    unsupported:
        One flag for each current row. The error of these rows is anything that their labels can give.
    bias:
        By how much the realised error of rows with labels is above their estimate. The error of other rows is off by
        anything from 0 to this.
    """

    estimate: CrossFit
    unsupported: Flags
    bias: float = 0.0

    def share(self, rows: Rows) -> float:
        """Return the share of unsupported rows."""
        return float(self.unsupported[rows].mean())

    def range(self, rows: Rows) -> tuple[float, float]:
        """Return the lowest (at most 0) and the highest deviation of the error from the estimate."""
        expected, flags, bias = self.estimate.expected(rows), self.unsupported[rows], self.bias * (1 - self.share(rows))
        low, high = (float((limit - expected)[flags].sum()) / len(rows) for limit in self.estimate.limits(rows))
        return min(low, 0.0) + min(bias, 0.0), max(high, 0.0) + max(bias, 0.0)

    def distance(self, rows: Rows) -> float:
        """Return the largest deviation of the error from the estimate."""
        low, high = self.range(rows)
        return max(-low, high)

    def error(self, rows: Rows) -> tuple[float, float]:
        """Return the estimated error, and half the distance from it that covers both bounds and the random error."""
        error, standard_error = self.estimate.error(rows)
        return error, standard_error + self.distance(rows) / 2


def find_unsupported_rows(
    columns: Sequence[Column], reference: pd.DataFrame, current: pd.DataFrame, minimum: int, significance: float
) -> Support:
    """Return the current rows in regions of ``columns`` in which the reference has hardly any rows.

    A classifier learns to distinguish the windows, and scores rows from which it has not learned. The unsupported rows
    are those above the score at which the share of current rows exceeds what the reference supports by most: each row
    of the reference supports at most 1 / ``minimum`` of the current window, and at most ten times its own share. This
    excess estimates the hockey-stick divergence of the windows, which bounds how much larger than in the reference an
    error can be. A binomial test at ``significance`` ignores an excess that may be due to chance.

    Notes
    -----
    I. Sason and S. Verdú, "f-divergence inequalities", IEEE Transactions on Information Theory 62, 2016 (section VII).

    Examples
    --------
    >>> import numpy as np, pandas as pd
    >>> rng = np.random.default_rng(0)
    >>> houses = pd.DataFrame({"latitude": rng.normal(34, 1, 1000)})
    >>> half = pd.DataFrame({"latitude": np.repeat([34.0, 41.0], 200) + rng.normal(0, 1, 400)})
    >>> support = find_unsupported_rows([Column("latitude", "numeric")], houses, half, 100, 0.01)
    >>> bool(0.45 < support.unsupported.mean() < 0.55), support.columns
    (True, ('latitude',))
    """
    import numpy as np
    from scipy.stats import binom

    chosen = np.sort(np.random.default_rng(0).permutation(len(reference))[:_SCORED_ROWS])
    start = len(chosen)
    frames = reference.iloc[chosen], current
    inputs = np.concatenate([_encode(column, *frames) for column in columns], axis=1)
    scores = _score(inputs, np.repeat([0, 1], [start, len(current)]))
    before, after = np.sort(scores[:start]), np.sort(scores[start:])
    levels = np.unique(after)
    rows = start - np.searchsorted(before, levels)
    unlike = len(after) - np.searchsorted(after, levels)
    excess = unlike / len(after) - rows * max(1 / minimum, _RATIO / start)
    best = int(excess.argmax())
    share = len(after) / len(scores)
    if excess[best] <= 0 or binom.sf(unlike[best] - 1, unlike[best] + rows[best], share) > significance:
        return Support(np.zeros(len(current), dtype=bool))
    unsupported: Flags = scores[start:] >= levels[best]
    filled = np.nan_to_num(inputs, nan=-np.inf, neginf=-np.inf, posinf=np.inf).T
    counts = [count_values(values[:start], values[start:][unsupported]) for values in filled]
    gaps = [kolmogorov_smirnov(*pair).effect for pair in counts]
    order = [index for index in np.argsort(gaps)[::-1] if gaps[index] >= max(gaps) / 2]
    return Support(unsupported, tuple(shorten_name(columns[index].name) for index in order[:_NAMES]))


def _encode(column: Column, *frames: pd.DataFrame) -> Floats:
    """Return a column's values as numbers.

    Rare categories are one, because each window of a column with many rare categories has some that the other lacks.
    """
    import numpy as np

    encoded = encode_column(column, *frames)
    if column.kind == "numeric":
        return encoded
    counts = np.bincount(encoded[~np.isnan(encoded)].astype(int))  # the codes are ranks by frequency
    return np.minimum(encoded, int((counts >= _LEAF).sum()))


def _score(inputs: Floats, labels: NDArray[np.int64]) -> Floats:
    """Return for each row how likely it is of the current window, by a classifier that learned from other rows."""
    import numpy as np
    import pandas as pd
    from sklearn.ensemble import HistGradientBoostingClassifier
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    rng = np.random.default_rng(0)
    # Equal rows are in the same half, because a classifier recognises rows that one window repeats. Rows with few
    # possible values are equal by chance; the classifier has to learn from some of them.
    digests = pd.util.hash_pandas_object(pd.DataFrame(inputs), index=False).to_numpy()
    _, codes, counts = np.unique(digests, return_inverse=True, return_counts=True)
    halves = np.where(counts[codes] < _LEAF, rng.integers(0, 2, len(counts))[codes], rng.integers(0, 2, len(codes)))
    scores = np.zeros(len(labels))
    with threadpool_limits(1, user_api="openmp"):  # several threads would take longer for so few rows
        for half in (0, 1):
            fold = halves == half
            mixed = rng.permutation(np.flatnonzero(~fold))
            learned = np.concatenate([mixed[labels[mixed] == label][:_LEARNED_ROWS] for label in (0, 1)])
            if labels[learned].min() == labels[learned].max():  # a few rows, all equal
                continue
            classifier = HistGradientBoostingClassifier(
                max_iter=30, learning_rate=0.2, min_samples_leaf=_LEAF, early_stopping=False, random_state=0
            )
            scores[fold] = classifier.fit(inputs[learned], labels[learned]).decision_function(inputs[fold])
    return scores
