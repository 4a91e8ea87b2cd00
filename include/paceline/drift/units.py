"""Finds the rows of two windows that depend on each other, from a column of groups or of times.

Called by ``paceline.drift.compare``; ``paceline.drift._dependence`` has the variances that follow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from paceline.drift._columns import Column, check_column, to_label
from paceline.drift._dependence import Units, mean_variance
from paceline.drift.seasons import SEASONS
from paceline.errors import InvalidInputError

if TYPE_CHECKING:
    import pandas as pd

# With fewer groups or points in time, their variance cannot be estimated.
FEWEST_UNITS = 10
# With fewer points in time in the reference, errors of rows are not compared by time: the variance between so few is
# unknown.
FEWEST_REFERENCE_TIMES = 5
# A note warns if a row counts as less than this share of an independent row.
_DEPENDENT_SHARE = 0.5
_CHECKED_COLUMNS, _CHECKED_ROWS = 10, 20_000


def check_groups(reference: pd.DataFrame, current: pd.DataFrame, groups: str) -> None:
    """Raise InvalidInputError if a window lacks the column of the groups, or has no values in it."""
    for window, frame in (("reference", reference), ("current", current)):
        check_column("groups", groups, frame, window)
        if len(frame) and frame[groups].isna().all():
            raise InvalidInputError("groups", groups, f"a column with values in the {window} window")


def find_groups(reference: pd.DataFrame, current: pd.DataFrame, groups: str) -> tuple[Units, Units]:
    """Return the groups of both windows; equal values have equal codes. A row without a group is its own group.

    >>> import pandas as pd
    >>> windows = pd.DataFrame({"customer": ["a", "a", None]}), pd.DataFrame({"customer": ["b", "a"]})
    >>> [units.codes.tolist() for units in find_groups(*windows, "customer")]
    [[0, 0, 2], [1, 0]]
    """
    import numpy as np
    import pandas as pd

    values = pd.concat([reference[groups], current[groups]], ignore_index=True)
    if not pd.api.types.is_numeric_dtype(values.dtype):
        values = values.map(to_label, na_action="ignore")
    codes, known = pd.factorize(values)
    missing = codes < 0
    codes[missing] = len(known) + np.arange(missing.sum())
    return Units(codes[: len(reference)]), Units(codes[len(reference) :])


def find_times(reference: pd.DataFrame, current: pd.DataFrame, time: str) -> tuple[Units, Units] | None:
    """Return the points in time of both windows, or None if one has too few of them to estimate their dependence."""
    import pandas as pd

    if time not in reference.columns or not len(reference) or not len(current):
        return None
    found = [
        Units(pd.factorize(frame[time], sort=True, use_na_sentinel=False)[0], True) for frame in (reference, current)
    ]
    if min(int(units.codes.max()) + 1 for units in found) < FEWEST_UNITS:
        return None
    return found[0], found[1]


def has_enough_units(units: Sequence[Units]) -> bool:
    """Return whether each window has enough groups or points in time to estimate how rows depend on each other.

    >>> import numpy as np
    >>> [has_enough_units([Units(np.arange(number))]) for number in (9, 10)]
    [False, True]
    """
    return all(len(one.first_rows()) >= FEWEST_UNITS for one in units)


def describe_too_few_groups(groups: str, units: Sequence[Units]) -> str:
    """Return which window has too few groups, or ""."""
    import numpy as np

    counts = [len(np.unique(one.codes)) for one in units]
    return "; ".join(
        f"{window}: got {count} different {'value' if count == 1 else 'values'} of {groups} (groups), expected at "
        f"least {FEWEST_UNITS}"
        for window, count in zip(("reference", "current"), counts, strict=True)
        if count < FEWEST_UNITS
    )


def describe_dependence(columns: Sequence[Column], reference: pd.DataFrame, time: str | None) -> list[str]:
    """Return a note if the rows seem to depend on each other, although no column says which."""
    import numpy as np

    frame = reference.head(_CHECKED_ROWS)
    numeric = [one.name for one in columns if one.kind == "numeric" and not one.skipped][:_CHECKED_COLUMNS]
    found: list[tuple[float, str]] = []
    for name in numeric:
        ranks = frame[name].dropna().rank().to_numpy(dtype=float)
        if len(ranks):
            units = Units(np.arange(len(ranks)), True)
            found.append((float(mean_variance(ranks[:, None], units).design_effect[0]), name))
    effect, name = max(found, default=(1.0, ""))
    if effect * _DEPENDENT_SHARE < 1.0:
        return []
    hint = "the column of the times as `time`, or " if time is None else ""
    return [
        f"Rows look dependent: neighbouring rows have similar values of {name}, and {effect:.0f} of them count "
        "as about one independent row. The significance assumes independent rows, so there may be more false alarms. "
        f"Name {hint}the column of the customers, days or sessions as `groups`."
    ]


def check_roles(columns: Mapping[str, object], labels: Sequence[str | None], time: str | None) -> None:
    """Raise InvalidInputError if a parameter is neither None nor a column name, or names the predictions or labels.

    A season that follows from the time needs the column ``time``.
    """
    season = columns.get("season")
    if season in SEASONS and time is None:
        raise InvalidInputError("time", None, f"the column of the times, because season is {season!r}")
    for field, value in columns.items():
        if value is not None and (not isinstance(value, str) or not value):
            raise InvalidInputError(field, value, "the name of a column, or None")
        if value is not None and value in labels:
            raise InvalidInputError(field, value, "a column other than prediction and actual")
