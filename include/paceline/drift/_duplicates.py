"""Counts the rows of two windows that equal an earlier row of their window.

Called by ``paceline.drift.quality``.
"""

from __future__ import annotations

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
    window has copies, its number is therefore at least the one that follows from the share in all its rows.

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
    >>> orders = pd.DataFrame({"order": range(1000)})
    >>> logged_twice = pd.concat([orders, orders])
    >>> count_duplicates(logged_twice, pd.DataFrame({"order": range(2000, 2100)}))
    (50, 0)
    """
    import numpy as np
    import pandas as pd

    both = pd.concat([reference, current], ignore_index=True)
    codes = both.groupby([*both.columns], sort=False, dropna=False, observed=True).ngroup().to_numpy()
    before, after = np.split(codes, [len(reference)])
    rng = np.random.default_rng(0)
    size = min(len(before), len(after))
    numbers = []
    for rows, other, whole in ((before, after, rows_per_row[0]), (after, before, rows_per_row[1])):
        number = _count(rows[rng.permutation(len(rows))[:size]])
        if _has_copies(rows, other):
            share = _count(rows) / len(rows) * whole
            number = max(number, round(min(share, 1.0) * size))
        numbers.append(number)
    return numbers[0], numbers[1]


def _count(codes: Codes) -> int:
    import numpy as np

    return len(codes) - len(np.unique(codes))


def _has_copies(rows: Codes, other: Codes) -> bool:
    """Return whether rows repeat more often within their window than between the windows, where it is by chance."""
    import numpy as np

    number = int(max(rows.max(), other.max())) + 1
    own, others = (np.bincount(codes, minlength=number).astype(float) for codes in (rows, other))
    pairs = (own * (own - 1)).sum() / 2
    by_chance = (own * others).sum() / len(other) * (len(rows) - 1) / 2
    return bool(pairs > 2 * by_chance + _FEWEST_PAIRS)
