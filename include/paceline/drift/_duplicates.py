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


def count_duplicates(reference: pd.DataFrame, current: pd.DataFrame, rows_per_row: float = 1.0) -> tuple[int, int]:
    """Return the numbers of duplicates in random samples of both windows, which have the size of the smaller window.

    In larger samples, more rows are equal by chance. But a sample separates copies of a row from each other. If the
    reference has copies, its number is therefore at least the one that follows from the share in all its rows.

    Parameters
    ----------
    reference, current:
        The windows, with the same columns and at least one row each.
    rows_per_row:
        If the reference is itself a random sample: the number of rows for each of its rows.

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
    windows = np.split(codes, [len(reference)])
    rng = np.random.default_rng(0)
    size = min(map(len, windows))
    before, after = (_count(rows[rng.permutation(len(rows))[:size]]) for rows in windows)
    if _has_copies(*windows):
        share = _count(windows[0]) / len(reference) * rows_per_row
        before = max(before, round(min(share, 1.0) * size))
    return before, after


def _count(codes: Codes) -> int:
    import numpy as np

    return len(codes) - len(np.unique(codes))


def _has_copies(reference: Codes, current: Codes) -> bool:
    """Return whether rows repeat more often within the reference than between the windows, where it is by chance."""
    import numpy as np

    number = int(max(reference.max(), current.max())) + 1
    before, after = (np.bincount(codes, minlength=number).astype(float) for codes in (reference, current))
    within = (before * (before - 1)).sum() / max(len(reference) - 1, 1)
    return bool(within > 2 * (before * after).sum() / len(current))
