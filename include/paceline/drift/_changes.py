"""Locates changes of the model's error in a stream of reference and current rows, and tests them.

Called by ``paceline.drift.concept``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log2
from typing import TYPE_CHECKING

from paceline.drift._level import ErrorRows, compare_means
from paceline.drift.detectors import Detector, find_changes

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Number of rows before a change that suffice to test it, or ten times the rows after it.
MOST_BEFORE = 1000


@dataclass(frozen=True)
class LocatedChange:
    """A significant change in the error at ``position`` of the stream, which the detector reported at ``detected``.

    ``begin`` and ``end`` are the positions of the changes before and after it. ``p_value`` tests whether the errors
    from ``position`` to ``end`` are higher than those of the reference or, without one, than those since ``begin``.
    """

    begin: int
    position: int
    end: int
    detected: int
    p_value: float


def locate_changes(
    stream: ErrorRows,
    scaled: NDArray[np.float64],
    followed: Sequence[NDArray[np.int64]],
    start: int,
    detector: Detector,
    significance: float,
    *,
    has_reference: bool,
) -> list[LocatedChange]:
    """Return the significant changes in the current rows, which begin at ``start``, for each of the ``followed`` rows.

    The detector processes the errors ``scaled`` to values between 0 and 1.
    """
    import numpy as np

    changes = []
    for part in followed:
        # By default ADWIN checks every 32nd value. A rare class may have few more values than that.
        found = find_changes(scaled[part], detector, adwin_clock=32 if len(part) == len(scaled) else 1)
        first = int(np.searchsorted(part, start))
        rows = len(part) - first
        # A change might have been found in each part, at many places, and with rows after it of many lengths.
        trials = len(followed) * log2(max(rows, 2)) * rows
        kept: list[tuple[int, int]] = []
        ends = [position for position, _ in found[1:]] + [len(part)]
        for (position, detected), end in zip(found, ends, strict=False):
            begin = max(kept[-1][0] if kept else 0, position - max(MOST_BEFORE, 10 * (end - position)))
            p_value = compare_means(stream.take(part[begin:position]), stream.take(part[position:end]))[1]
            shorter = min(position - begin, end - position, rows)
            if 2 * min(p_value, 1 - p_value) * trials / shorter <= significance:
                kept.append((position, detected))
        bounds = [0, *(position for position, _ in kept), len(part)]
        for (position, detected), begin, end in zip(kept, bounds, bounds[2:], strict=False):
            if detected < first or end <= first:
                continue  # in the reference window
            after = part[max(position, first) : end]
            before = part[:first] if has_reference else part[begin:position]
            p_value = compare_means(stream.take(before), stream.take(after))[1] * trials / len(after)
            changes.append(
                LocatedChange(
                    begin=int(part[begin]) if begin else 0,
                    position=int(part[position]),
                    end=int(part[end]) if end < len(part) else len(scaled),
                    detected=int(part[detected]),
                    p_value=min(p_value, 1.0),
                )
            )
    return changes
