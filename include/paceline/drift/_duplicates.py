"""Counts the rows of two windows that equal an earlier row of their window.

Called by ``paceline.drift.quality``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

    Codes = NDArray[np.int64]  # equal for equal rows

# A sample may contain fewer pairs of equal rows by chance, although it stands for many.
_FEWEST_PAIRS = 10


def count_duplicates(
    reference: pd.DataFrame, current: pd.DataFrame, rows_per_row: tuple[float, float] = (1.0, 1.0)
) -> tuple[int, int]:
    """Return the numbers of duplicates in random samples of both windows, which have the size of the smaller window.

    In larger samples, more rows are equal by chance. But a sample separates copies of a row from each other. If a
    window has copies, its number is therefore at least the one that follows from the share in all its rows. Equal
    values of a single column are no copies.

    Parameters
    ----------
    reference, current:
        The windows, with the same columns and at least one row each.
    rows_per_row:
        For each window that is itself a random sample: the number of rows for each of its rows.

    Raises
    ------
    TypeError
        For values without a hash, such as lists.

    Examples
    --------
    >>> import pandas as pd
    >>> orders = pd.DataFrame({"order": range(3000), "customer": range(3000)})
    >>> logged_twice = pd.concat([orders[:1000], orders[:1000]])
    >>> count_duplicates(logged_twice, orders[2000:2100])
    (50, 0)
    """
    import numpy as np
    import pandas as pd

    both = pd.concat([reference, current], ignore_index=True)
    codes = both.groupby([*both.columns], sort=False, dropna=False, observed=True).ngroup().to_numpy()
    columns = [pd.factorize(both[name], use_na_sentinel=False)[0] for name in both.columns]
    (before, *before_columns), (after, *after_columns) = (
        [one[rows] for one in (codes, *columns)] for rows in (slice(len(reference)), slice(len(reference), None))
    )
    rng = np.random.default_rng(0)
    size = min(len(before), len(after))
    numbers = []
    for rows, own_columns, other, whole in (
        (before, before_columns, after, rows_per_row[0]),
        (after, after_columns, before, rows_per_row[1]),
    ):
        number = _count(rows[rng.permutation(len(rows))[:size]])
        if _has_copies(rows, own_columns, other):
            share = _count(rows) / len(rows) * whole
            number = max(number, round(min(share, 1.0) * size))
        numbers.append(number)
    return numbers[0], numbers[1]


def _count(codes: Codes) -> int:
    import numpy as np

    return len(codes) - len(np.unique(codes))


def _has_copies(rows: Codes, columns: Sequence[Codes], other: Codes) -> bool:
    """Return whether more rows repeat within their window than chance explains.

    The chance is at least the probability that a row of the ``other`` window is equal, and at least the product of the
    probabilities that the values of single ``columns`` are equal: if the values have drifted, the first is too low.
    """
    import numpy as np

    number = int(max(rows.max(), other.max())) + 1
    own, others = (np.bincount(codes, minlength=number) for codes in (rows, other))
    between = float(own @ others.astype(float)) / len(rows) / len(other)
    chance = max(between, math.prod(map(_equal_share, columns)))
    pairs = len(rows) * (len(rows) - 1) / 2
    return _equal_share(rows) * pairs > 2 * chance * pairs + _FEWEST_PAIRS


def _equal_share(codes: Codes) -> float:
    """Return the share of equal pairs among all pairs."""
    import numpy as np

    counts = np.bincount(codes).astype(float)
    return float((counts * (counts - 1)).sum()) / max(len(codes) * (len(codes) - 1), 1)
