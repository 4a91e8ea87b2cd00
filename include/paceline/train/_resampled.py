"""Bootstrap resamples of a metric, from which ``EvaluateOperator`` determines how certain an improvement is.

An evaluation script calls ``resampled`` and passes the result to ``report``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ._values import bad_value, whole_number
from .progress import MAX_RESAMPLES, Resamples

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MIN_RESAMPLES = 100
_SEED = 0
_DIGITS = 9  # significant digits in a progress line


class Resampled(float):
    """A metric's value on all rows, together with its values on resamples of the rows."""

    resamples: Resamples


def resampled(metric: Callable[[NDArray[np.int64]], Any], rows: int, resamples: int = 1000) -> Resampled:
    """Return a metric on all rows together with its values on bootstrap resamples, for ``report``.

    A resample draws as many rows as there are, with replacement. The drawn rows depend only on the number of rows, so
    the resamples of the champion and of the challenger contain the same rows, and the difference of the two models
    on each resample is free of the variation that both share: the paired bootstrap (Efron and Tibshirani, An
    Introduction to the Bootstrap, 1993). Both evaluations must read the same rows in the same order.

    The function calls ``metric`` once more than there are resamples. A resample on which ``metric`` is not finite or
    raises ``ValueError``, for example because all its rows have the same label, has no value. Call ``report`` outside a
    ``track`` loop; within one, only the value on all rows is reported.

    Parameters
    ----------
    metric:
        Function from an array of row numbers, counted from 0 and with repetitions, to one number.
    rows:
        Number of rows of the hold-out data.
    resamples:
        Number of resamples, 100 to 10,000.

    Returns
    -------
    float
        The metric on all rows, each once. Its attribute ``resamples`` contains the values on the resamples, rounded to
        nine significant digits.

    Raises
    ------
    ValueError
        If ``rows`` or ``resamples`` is out of range. Errors that ``metric`` raises on all rows are also passed on.
    ImportError
        If numpy is not installed.

    Examples
    --------
    >>> import numpy as np
    >>> correct = np.array([1, 1, 0, 1])
    >>> accuracy = resampled(lambda rows: correct[rows].mean(), rows=len(correct), resamples=100)
    >>> float(accuracy), len(accuracy.resamples.values), set(accuracy.resamples.values) <= {0, 0.25, 0.5, 0.75, 1}
    (0.75, 100, True)
    """
    whole_number("rows", rows)
    if whole_number("resamples", resamples, MIN_RESAMPLES) > MAX_RESAMPLES:
        raise bad_value("resamples", resamples, f"at most {MAX_RESAMPLES}")
    try:
        import numpy as np
    except ImportError as error:
        raise ImportError("resampled() needs numpy: install it where the script runs") from error
    result = Resampled(metric(np.arange(rows)))
    generator = np.random.default_rng(_SEED)
    values = tuple(_value(metric, generator.integers(rows, size=rows)) for _ in range(resamples))
    result.resamples = Resamples(rows=rows, values=values)
    return result


def _value(metric: Callable[[NDArray[np.int64]], Any], drawn: NDArray[np.int64]) -> float | None:
    try:
        value = float(metric(drawn))
    except ValueError:
        return None
    # Rounding also removes differences between the models that come only from the order of additions.
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
