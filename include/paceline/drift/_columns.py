"""Chooses the columns to compare and their kinds; raises ``InvalidInputError`` for columns that cannot be compared.

Called by ``paceline.drift.compare`` before the statistics.
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from paceline.contract import ProblemKind
from paceline.drift._kinds import KIND_TEXT, OddValueError, column_kind, is_text
from paceline.drift._vectors import count_dimensions
from paceline.errors import InvalidInputError, describe_value

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

Kind = Literal["numeric", "categorical", "embedding", "text"]


@dataclass(frozen=True)
class Column:
    """A column to compare, or a column to skip for the reason in ``skipped``.

    If the reason is a data quality problem, ``problem`` is its kind. ``dimensions`` is the length of the vectors of
    an embedding. ``is_odd`` says that its values have a type without a comparison, for example JSON.
    """

    name: str
    kind: Kind
    skipped: str = ""
    problem: ProblemKind | None = None
    dimensions: int = 0
    is_odd: bool = False


def check_column(field: str, name: str, frame: pd.DataFrame, window: str) -> None:
    """Raise InvalidInputError if ``name`` is not a column of ``frame``; suggest the closest names."""
    if name in frame.columns:
        return
    available = [str(column) for column in frame.columns]
    hint = _suggest(_find_closest(name, available))
    shown = ", ".join(available[:20]) + (", …" if len(available) > 20 else "")
    accepted = f"a column of the {window} window ({hint}{' ' if hint else ''}the columns are {shown})"
    raise InvalidInputError(field, name, accepted)


def _find_closest(name: str, available: Sequence[str]) -> list[str]:
    lowered = {column.lower(): column for column in available}
    return [lowered[hit] for hit in difflib.get_close_matches(str(name).lower(), lowered, n=3, cutoff=0.5)]


def _suggest(close: Sequence[str]) -> str:
    return f"did you mean {' or '.join(map(repr, close))}?" if close else ""


def choose_columns(
    reference: pd.DataFrame,
    current: pd.DataFrame,
    *,
    columns: Sequence[str] | None,
    categorical: Collection[str],
    excluded: Collection[str],
) -> tuple[list[Column], list[str]]:
    """Return the columns to compare, and the names of the columns that only the current window has.

    ``columns=None`` means every column of the reference except ``excluded``. With a list, no column counts as new.
    """
    if columns is not None and (isinstance(columns, str) or not len(columns)):
        raise InvalidInputError("columns", columns, "a list with at least one column name, or None for all")
    if isinstance(categorical, str):
        raise InvalidInputError("categorical", categorical, "a list of column names")
    explicit = columns is not None
    names = list(dict.fromkeys(map(str, columns))) if columns is not None else []
    categorical = [*map(str, categorical)]
    new: list[str] = []
    if not explicit:
        names = [name for name in reference.columns if name not in excluded]
        new = [str(name) for name in current.columns if name not in reference.columns and name not in excluded]
    for name in names:
        check_column("columns", name, reference, "reference")
    for name in categorical:
        check_column("categorical", name, reference, "reference")
    return [_choose_column(name, reference, current, name in categorical, explicit) for name in names], new


def _choose_column(
    name: str, reference: pd.DataFrame, current: pd.DataFrame, as_labels: bool, explicit: bool
) -> Column:
    """Choose how to compare a column, or state why it is not compared."""
    before, odd = None, None
    try:
        before = _labels_or_kind(reference[name], "reference", as_labels)
    except OddValueError as error:
        if explicit:
            raise
        odd = error
    usual = _KINDS.get(before or "", "numeric")
    if name not in current.columns:
        new = [str(column) for column in current.columns if column not in reference.columns]
        hint = _suggest([shorten(column) for column in _find_closest(name, new)])
        return Column(name, usual, f"the current window lacks the column{f' ({hint})' * bool(hint)}", "missing column")
    if odd is not None:
        return _skip_odd(name, odd)
    try:
        after = _labels_or_kind(current[name], "current", as_labels)
    except InvalidInputError as error:
        if before is None and isinstance(error, OddValueError) and not explicit:
            return _skip_odd(name, error)
        if before is None:
            raise
        reason = f"the current window contains {_show(error.value)}, expected {error.accepted}"
        return Column(name, usual, reason, "changed type")
    kinds = {before, after} - {None}
    if not kinds:
        return Column(name, "numeric", "no values in either window")
    if "time" in kinds or kinds == {"array text"}:
        skipped, found, accepted = _NOT_COMPARED["time" if "time" in kinds else "array text"]
        if explicit:
            raise InvalidInputError(name, found, accepted)
        return Column(name, "numeric", skipped)
    if "numeric" in kinds and kinds <= {"numeric", "boolean"}:
        return Column(name, "numeric")
    if kinds <= {"categorical", "boolean", "array text"}:
        values = reference[name] if before else current[name]
        return Column(name, "text" if not as_labels and is_text(values) else "categorical")
    if kinds == {"embedding"}:
        sizes = [count_dimensions(series) for series in (reference[name], current[name])]
        known = set(sizes) - {0}
        if not known:
            return Column(name, "embedding", "no values in either window")
        if len(known) == 1:
            return Column(name, "embedding", dimensions=known.pop())
        reason = f"arrays of {sizes[0]} numbers became arrays of {sizes[1]} numbers"
        return Column(name, "embedding", reason, "changed type")
    example = _show(current[name].dropna().iloc[0])
    labels = "" if "embedding" in kinds else " (or add the column to categorical, if its values are labels)"
    reason = f"{KIND_TEXT[str(before)]} became {KIND_TEXT[str(after)]}, for example {example}{labels}"
    return Column(name, usual, reason, "changed type")


def _skip_odd(name: str, error: OddValueError) -> Column:
    return Column(name, "numeric", f"values such as {_show(error.value)} are not compared", is_odd=True)


def _show(value: object) -> str:
    return shorten(describe_value(value.tolist() if hasattr(value, "tolist") else value))


def shorten(text: str) -> str:
    """Shorten a text to 40 characters, because names and values in reports may have any length.

    >>> shorten("temp"), len(shorten("temp" * 1000))
    ('temp', 40)
    """
    return text if len(text) <= 40 else f"{text[:39]}…"


def shorten_name(text: str) -> str:
    """Shorten a name to 40 characters, so that different names stay different: a digest replaces what is cut.

    >>> shorten_name("free"), shorten_name("plan" * 10 + " a"), shorten_name("plan" * 10 + " b")
    ('free', 'planplanplanplanplanplanplanpla…16b499fe', 'planplanplanplanplanplanplanpla…5b87da3d')
    """
    if len(text) <= 40:
        return text
    return f"{text[:31]}…{hashlib.sha256(text.encode(errors='surrogatepass')).hexdigest()[:8]}"


def _labels_or_kind(series: pd.Series[Any], window: str, as_labels: bool) -> str | None:
    return "categorical" if as_labels and series.notna().any() else column_kind(series, window)


_MAX_NUMBER = 1e300
_KINDS: dict[str, Kind] = {"categorical": "categorical", "boolean": "categorical", "embedding": "embedding"}
# For each kind: the reason to skip the column; and, for the error if the user names the column, the value found and the
# accepted values.
_NOT_COMPARED = {
    "time": ("dates and times are not compared", "dates or times", "numbers or categories"),
    "array text": ("arrays as text are not compared", "arrays as text", "arrays of numbers, as in a Parquet file"),
}


def without_infinite(series: pd.Series[Any]) -> tuple[pd.Series[Any], int]:
    """Return numbers with missing values instead of those beyond 1e300, and how many these are.

    >>> import pandas as pd
    >>> values, infinite = without_infinite(pd.Series([1.0, float("inf"), None]))
    >>> values.isna().tolist(), infinite
    ([False, True, True], 1)
    """
    if series.dtype.kind in "biu":
        return series, 0
    values = series.where(series.notna(), 0)
    infinite = (values if series.dtype.kind == "O" else values.astype(float)).abs() > _MAX_NUMBER
    return series.mask(infinite) if infinite.any() else series, int(infinite.sum())


def to_numbers(series: pd.Series[Any], window: str) -> NDArray[np.float64]:
    """Return all values except missing ones as floats; raise InvalidInputError for infinite values.

    Numbers beyond 1e300 count as infinite, because their sums may overflow. Some tools write the largest float for
    "no value".
    """
    import numpy as np

    try:
        values = series.dropna().to_numpy(dtype=float)
    except OverflowError:
        huge = next(value for value in series.dropna() if abs(value) > _MAX_NUMBER)
        accepted = f"numbers between {-_MAX_NUMBER:g} and {_MAX_NUMBER:g} or missing values in the {window} window"
        raise InvalidInputError(str(series.name), huge, accepted) from None
    infinite = np.abs(values) > _MAX_NUMBER
    if infinite.any():
        raise InvalidInputError(
            str(series.name),
            float(values[infinite][0]),
            f"finite numbers or missing values ({int(infinite.sum())} of {len(series)} rows of the {window} "
            f"window are infinite{'' if np.isinf(values).any() else ' or beyond 1e300'})",
        )
    return values


def list_names(names: Sequence[str]) -> str:
    """Return the first five names, and the number of the others.

    >>> list_names("abcdefg")
    'a, b, c, d, e and 2 more'
    """
    return ", ".join(map(shorten_name, names[:5])) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def count_labels(series: pd.Series[Any]) -> dict[str, int]:
    """Count the rows of each label. 1, 1.0 and "1" are one label, because files and databases use different types.

    >>> import pandas as pd
    >>> count_labels(pd.Series([1, 1.0, "1", True, None]))
    {'1': 3, 'True': 1}
    """
    import pandas as pd

    if pd.api.types.infer_dtype(series) == "string":
        return {str(label): int(number) for label, number in series.value_counts(sort=False).items()}
    counts: dict[str, int] = {}
    # pandas' value_counts would not distinguish 1 from True.
    for value in series.dropna().tolist():
        label = to_label(value)
        counts[label] = counts.get(label, 0) + 1
    return counts


def to_label(value: object) -> str:
    """Convert a value to a label. A whole number has no decimal point in its label.

    >>> from decimal import Decimal
    >>> to_label(1.0), to_label(Decimal("1.00")), to_label(Decimal("1.50"))
    ('1', '1', '1.5')
    """
    from decimal import Decimal

    if isinstance(value, Decimal) and value.is_finite():
        return str(int(value)) if value == value.to_integral_value() else str(float(value))
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)
