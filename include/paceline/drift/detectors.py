"""Finds places where the mean of a stream of errors may have changed, with the streaming detectors of river.

Called by ``paceline.drift.concept``, which tests the changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Detector = Literal["adwin", "ddm", "page_hinkley"]
DETECTORS: tuple[Detector, ...] = ("adwin", "ddm", "page_hinkley")


def find_changes(stream: NDArray[np.float64], detector: Detector, adwin_clock: int) -> list[tuple[int, int]]:
    """Return for each change its estimated position, and the position at which the detector reported the change."""
    from river import drift

    kinds: Any = drift  # river's detectors have no types
    # Page-Hinkley compares a sum of errors with the threshold; river's default of 50 suits errors larger than 1.
    make = {
        "adwin": lambda: kinds.ADWIN(clock=adwin_clock),
        "ddm": lambda: kinds.binary.DDM(),
        "page_hinkley": lambda: kinds.PageHinkley(threshold=25.0, mode="up"),
    }
    monitor = make[detector]()
    found = []
    last = 0
    for i, value in enumerate(stream.tolist()):
        monitor.update(bool(value) if detector == "ddm" else value)
        if monitor.drift_detected and i > last + 1:
            last = _change_point(stream, last, i + 1)
            found.append((last, i))
    return found


def _change_point(stream: NDArray[np.float64], start: int, end: int) -> int:
    """Return the most likely position of a change in the mean: the position with the largest gap between the means.

    The detectors report only that the mean has changed; ADWIN's window starts up to a bucket before the change.
    This is the classical estimator, which standardises the gap (D. V. Hinkley, Biometrika 57, 1970).
    """
    import numpy as np

    part = stream[start:end]
    before = np.arange(1, len(part))
    sums = np.cumsum(part)
    gap = np.abs(sums[:-1] - before * sums[-1] / len(part))
    return start + 1 + int(np.argmax(gap / np.sqrt(before * (len(part) - before))))
