"""Divides two windows into segments, for example customers of one plan, whose features are compared separately.

Called by ``paceline.drift.compare``. A change in a small segment is lost among the rows of the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.contract import FeatureDrift, SegmentDrift
from paceline.drift._columns import Column, check_column, shorten_name, to_label
from paceline.drift._dependence import Units
from paceline.drift._features import TestedFeature, run_tests
from paceline.drift._judgement import sort_by_severity
from paceline.drift._settings import DriftSettings
from paceline.drift.units import FEWEST_UNITS, has_enough_units

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

MAX_SEGMENTS = 20
_NAMED, _DESCRIBED = 10, 3  # drifted features of a segment in the report, and in its reason


@dataclass(frozen=True)
class Segment:
    """A segment: the value of its column, and the positions of its rows in both windows."""

    name: str
    reference: NDArray[np.int64]
    current: NDArray[np.int64]

    def take(self, units: tuple[Units, Units]) -> tuple[Units, Units]:
        """Return the units of the segment's rows."""
        return units[0].take(self.reference), units[1].take(self.current)


def find_segments(
    reference: pd.DataFrame,
    current: pd.DataFrame,
    column: str,
    minimum: int,
    units: tuple[Units, Units] | None = None,
) -> tuple[list[Segment], list[str]]:
    """Return the largest segments, at most 20, with at least ``minimum`` rows in each window, and notes on the others.

    With ``units``, a segment also needs ten groups or times in each window.

    >>> import pandas as pd
    >>> reference, current = (pd.DataFrame({"plan": ["pro"] * n + ["free"] * 300}) for n in (200, 3))
    >>> segments, notes = find_segments(reference, current, "plan", 100)
    >>> [segment.name for segment in segments], notes[0][-5:]
    (['free'], ' pro.')
    """
    import numpy as np
    import pandas as pd

    for window, frame in (("reference", reference), ("current", current)):
        check_column("segments", column, frame, window)
    labels = pd.concat([reference[column], current[column]], ignore_index=True).map(to_label, na_action="ignore")
    codes, names = pd.factorize(labels)
    before, after = codes[: len(reference)], codes[len(reference) :]
    counts = np.stack([np.bincount(one[one >= 0], minlength=len(names)) for one in (before, after)])
    smaller = counts.min(axis=0)
    largest = [int(code) for code in np.argsort(-smaller, kind="stable") if smaller[code] >= minimum][:MAX_SEGMENTS]
    found = {
        code: Segment(str(names[code]), np.flatnonzero(before == code), np.flatnonzero(after == code))
        for code in largest
    }
    compared = {code: one for code, one in found.items() if units is None or has_enough_units(one.take(units))}
    others = [shorten_name(str(name)) for code, name in enumerate(names) if code not in compared]
    notes = [] if compared else [f"No segment ({column}) is compared separately."]
    if missing := int((codes < 0).sum()):
        notes.append(f"{missing:,} rows without a value of {column} belong to no segment.")
    if not others:
        return [*compared.values()], notes
    shown = ", ".join(others[:3]) + (f" and {len(others) - 3} more" if len(others) > 3 else "")
    too_few = f"{minimum} rows"
    if units is not None:
        too_few += f" or {FEWEST_UNITS} {'times' if units[0].in_time_order else 'groups'}"
    notes.append(
        f"Segments ({column}) that are not compared separately, because they have fewer than {too_few} in a window or "
        f"are not among the {MAX_SEGMENTS} largest: {shown}."
    )
    return [*compared.values()], notes


def run_segment_tests(
    segment: Segment,
    columns: Sequence[Column],
    reference: pd.DataFrame,
    current: pd.DataFrame,
    settings: DriftSettings,
    units: tuple[Units, Units] | None,
) -> list[TestedFeature]:
    """Test the features of a segment."""
    rows = segment.reference, segment.current
    before, after = (frame.iloc[chosen] for frame, chosen in zip((reference, current), rows, strict=True))
    own = None if units is None else segment.take(units)
    return [run_tests(column, before, after, settings, own) for column in columns]


def summarise_segment(segment: Segment, judged: Sequence[FeatureDrift]) -> SegmentDrift:
    """Return the result of a segment, given its features."""
    drifted = [feature for feature in sort_by_severity(judged) if feature.verdict == "drift"]
    more = f"; and {len(drifted) - _DESCRIBED} more" if len(drifted) > _DESCRIBED else ""
    return SegmentDrift(
        name=shorten_name(segment.name),
        verdict="drift" if drifted else "no drift",
        reason="; ".join(f"{shorten_name(one.name)}: {one.reason}" for one in drifted[:_DESCRIBED]) + more,
        reference_rows=len(segment.reference),
        current_rows=len(segment.current),
        tested=sum(feature.verdict != "skipped" for feature in judged),
        drifted_features=tuple(shorten_name(one.name) for one in drifted[:_NAMED]),
    )
