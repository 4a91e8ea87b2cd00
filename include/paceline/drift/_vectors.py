"""Recognises columns of arrays, which are embeddings: one vector of numbers per row.

Called by ``paceline.drift._columns`` and ``paceline.drift._features``.
"""

from __future__ import annotations

import numbers
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

# Text such as "[0.1, -2, 3e-5, 4]", the form in which CSV files and databases without arrays store vectors. Fewer
# numbers may be a category, for example a range.
_ARRAY_TEXT = re.compile(r"[\[({]\s*(-?[\d.]+(e[+-]?\d+)?[\s,]+){3}.*[\])}]", re.IGNORECASE | re.DOTALL)

_MAX_NUMBER = 1e100


def is_array(value: object) -> bool:
    """Return whether a value is an array, list or tuple of numbers, judged by its first element; it may be empty.

    >>> is_array([0.5, 1]), is_array([]), is_array(["a"]), is_array("[0.5, 1]")
    (True, True, False, False)
    """
    import numpy as np

    if isinstance(value, np.ndarray):
        if value.ndim != 1:
            return False
        value = value if value.dtype.kind == "O" else value[:1].tolist()
    elif not isinstance(value, list | tuple):
        return False
    filled = next((item for item in value if item is not None), 0.0)
    return isinstance(filled, numbers.Real)


def is_array_text(value: object) -> bool:
    """Return whether a value is the text of an array of numbers.

    >>> is_array_text("[0.1, -2, 3e-5, 4]"), is_array_text("[0, 10]")
    (True, False)
    """
    if not isinstance(value, str):
        return False
    text = value.strip()
    # Match only the start and the last character, because the expression is very slow on some long texts.
    return _ARRAY_TEXT.fullmatch(text if len(text) <= 200 else text[:200] + text[-1]) is not None


def count_dimensions(series: pd.Series[Any]) -> int:
    """Return the most common number of dimensions of a column's vectors; 0 without vectors."""
    lengths = series.dropna().map(len)
    return int(next(iter(lengths[lengths > 0].mode()), 0))


def drop_invalid_vectors(series: pd.Series[Any], dimensions: int) -> pd.Series[Any]:
    """Return a column in which vectors with another number of dimensions or a non-finite number are missing.

    Numbers beyond 1e100 count as infinite, because computing with their powers may overflow.

    >>> import pandas as pd
    >>> drop_invalid_vectors(pd.Series([[1.0, 2.0], [1.0, None], [1.0], None]), 2).isna().tolist()
    [False, True, True, True]
    """
    import numpy as np

    def is_valid(value: Any) -> bool:
        if not isinstance(value, np.ndarray | list | tuple) or len(value) != dimensions:
            return False
        try:
            return bool((np.abs(np.asarray(value, dtype=float)) <= _MAX_NUMBER).all())
        except (TypeError, ValueError):
            return False

    valid: pd.Series[Any] = series.where(series.map(is_valid).astype(bool), None)
    return valid
