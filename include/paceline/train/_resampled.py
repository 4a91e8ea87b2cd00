"""Bootstrap resamples of a metric, from which ``EvaluateOperator`` determines how certain an improvement is.

An evaluation script calls ``resampled`` and passes the result to ``report``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ._values import bad_value, whole_number
from .progress import MAX_BLOCKS, MAX_RESAMPLES, Resamples

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MIN_RESAMPLES = 100
_MIN_BLOCKS = 4
_SEED = 0
_DIGITS = 9  # significant digits in a progress line


class Resampled(float):
    """A metric's value on all rows, together with its values on resamples of the rows."""

    resamples: Resamples


def resampled(
    metric: Callable[[NDArray[np.int64]], Any],
    rows: int,
    resamples: int = 1000,
    groups: Iterable[Any] | None = None,
) -> Resampled:
    """Return a metric on all rows together with its values on bootstrap resamples, for ``report``.

    A resample draws as many rows as there are, with replacement. The drawn rows depend only on the number of rows, so
    the resamples of the champion and of the challenger contain the same rows, and the difference of the two models
    on each resample is free of the variation that both share: the paired bootstrap (Efron and Tibshirani, An
    Introduction to the Bootstrap, 1993). Both evaluations must read the same rows in the same order.

    Rows that depend on each other, such as the rows of one customer or one day, need ``groups``: a resample then draws
    whole groups.

    The function calls ``metric`` for all rows, for each resample, and for all rows without one of up to 100 blocks of
    successive rows, from which the evaluation finds rows that depend on their neighbours. A resample on which
    ``metric`` is not finite or raises ``ValueError``, for example because all its rows have the same label, has no
    value. Call ``report`` outside a ``track`` loop; within one, only the value on all rows is reported.

    Parameters
    ----------
    metric:
        Function from an array of row numbers, counted from 0 and with repetitions, to one number.
    rows:
        Number of rows of the hold-out data.
    resamples:
        Number of resamples, 100 to 10,000.
    groups:
        The group of each row: one value for each row, such as the customer's number. By default, the rows are
        independent.

    Returns
    -------
    float
        The metric on all rows, each once. Its attribute ``resamples`` contains the values on the resamples, rounded to
        nine significant digits.

    Raises
    ------
    ValueError
        If ``rows`` or ``resamples`` is out of range, or a row has no group. Errors that ``metric`` raises on all rows
        are also passed on.
    ImportError
        If numpy is not installed.

    Examples
    --------
    >>> import numpy as np
    >>> correct = np.array([1, 1, 0, 1])
    >>> accuracy = resampled(lambda rows: correct[rows].mean(), rows=len(correct), resamples=100)
    >>> float(accuracy), len(accuracy.resamples.values), set(accuracy.resamples.values) <= {0, 0.25, 0.5, 0.75, 1}
    (0.75, 100, True)
    >>> by_customer = resampled(lambda rows: correct[rows].mean(), rows=4, groups=["Ada", "Ada", "Ben", "Ben"])
    >>> set(by_customer.resamples.values)  # Ada twice, both, or Ben twice
    {0.5, 0.75, 1.0}
    """
    rows, resamples = whole_number("rows", rows), whole_number("resamples", resamples, MIN_RESAMPLES)
    if resamples > MAX_RESAMPLES:
        raise bad_value("resamples", resamples, f"at most {MAX_RESAMPLES}")
    try:
        import numpy as np
    except ImportError as error:
        raise ImportError("resampled() needs numpy: install it where the script runs") from error
    units = _Units(rows, groups)
    result = Resampled(metric(np.arange(rows)))
    generator = np.random.default_rng(_SEED)
    values = tuple(
        _value(metric, units.rows(generator.integers(units.number, size=units.number))) for _ in range(resamples)
    )
    blocks = min(MAX_BLOCKS, math.isqrt(units.number))
    without: tuple[float | None, ...] = ()
    if blocks >= _MIN_BLOCKS:
        all_units = np.arange(units.number)
        split = np.array_split(all_units, blocks)
        without = tuple(_value(metric, units.rows(np.delete(all_units, block))) for block in split)
    number = None if groups is None else units.number
    result.resamples = Resamples(rows=rows, values=values, groups=number, without=without)
    return result


class _Units:
    """What a resample draws: groups of rows, numbered in the order of their first rows, or else single rows."""

    def __init__(self, rows: int, groups: Iterable[Any] | None) -> None:
        import numpy as np

        self.number = rows
        self._by_group: NDArray[np.int64] | None = None
        if groups is None:
            return
        labels = groups.tolist() if hasattr(groups, "tolist") else list(groups)
        if len(labels) != rows:
            raise bad_value("groups", f"{len(labels)} values", f"one group for each of the {rows} rows")
        number_of: dict[Any, int] = {}
        codes = np.empty(rows, np.int64)
        for row, label in enumerate(labels):
            # NaN, NaT and NA differ from themselves.
            if label is None or isinstance(label, list) or (label != label) is not False:
                raise bad_value("groups", label, f"one value for each row; see row {row}, counted from 0")
            codes[row] = number_of.setdefault(label, len(number_of))
        self.number = len(number_of)
        self._by_group = np.argsort(codes, kind="stable")
        self._sizes = np.bincount(codes)
        self._starts = np.cumsum(self._sizes) - self._sizes

    def rows(self, drawn: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rows of the drawn units."""
        import numpy as np

        if self._by_group is None:
            return drawn
        sizes = self._sizes[drawn]
        first = np.cumsum(sizes) - sizes
        places = np.repeat(self._starts[drawn] - first, sizes) + np.arange(sizes.sum())
        found: NDArray[np.int64] = self._by_group[places]
        return found


def _value(metric: Callable[[NDArray[np.int64]], Any], drawn: NDArray[np.int64]) -> float | None:
    try:
        value = float(metric(drawn))
    except ValueError:
        return None
    # Rounding also removes differences between the models that come only from the order of additions.
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
