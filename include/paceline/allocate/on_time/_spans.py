"""The spans of time in which a plan has constant numbers of free devices, from now to the last deadline."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from functools import cached_property
from math import ceil, floor, inf, log2

import numpy as np

from paceline.allocate.on_time.curve import ROUNDING, Floats

_EXACT_DEADLINES = 256  # number of early deadlines that each end a span; later deadlines share at most 256 spans
# With few deadlines: minimum number of spans before the first deadline, and in each doubling of the time after it. So
# the spans of jobs that are due in an hour stay short even if another job is due in a month.
_SPANS_BEFORE_FIRST, _SPANS_PER_DOUBLING, _MAX_DOUBLINGS = 64, 16, 16


class Spans:
    """Spans of time between now and the deadlines of all jobs; the last span has no end.

    If there are many deadlines, only some of them end a span, but each of the times in ``exact_s`` does.

    Examples
    --------
    >>> spans = Spans(0.0, [20.0, 10.0, -1.0])
    >>> spans.last_end_s(15.0), spans.last_end_s(5.0), float(spans.ends_s[0])
    (10.0, 0.0, 0.125)
    """

    def __init__(self, now_s: float, deadlines_s: Iterable[float], exact_s: Iterable[float] = ()) -> None:
        self.now_s = now_s
        deadlines = sorted({deadline_s for deadline_s in deadlines_s if now_s < deadline_s < inf})
        if len(deadlines) > 2 * _EXACT_DEADLINES:
            late = deadlines[_EXACT_DEADLINES:]
            deadlines = deadlines[:_EXACT_DEADLINES] + late[:: -(-len(late) // _EXACT_DEADLINES)]
        exact = {end_s for end_s in exact_s if now_s < end_s < inf}
        self._deadlines = sorted(exact.union(deadlines)) if exact else deadlines
        self._many = len(self._deadlines) > 2 * _EXACT_DEADLINES

    def with_end(self, end_s: float) -> Spans:
        """Return spans of which one ends at ``end_s``."""
        index = bisect_left(self._deadlines, end_s)
        if self._deadlines[index : index + 1] == [end_s] or not self.now_s < end_s < inf:
            return self
        return Spans(self.now_s, self._deadlines, [*self._deadlines, end_s])

    def last_end_s(self, deadline_s: float) -> float:
        """Return the last of the deadlines that end a span, up to ``deadline_s``; now if there is none."""
        index = bisect_right(self._deadlines, deadline_s + ROUNDING * (deadline_s - self.now_s))
        return self._deadlines[index - 1] if index else self.now_s

    @cached_property
    def ends_s(self) -> Floats:
        """The ends of the spans."""
        ends = np.array(self._deadlines, dtype=np.float64)
        if len(ends) and not self._many:
            # Devices move between jobs only at ends of spans, so add spans if deadlines are few.
            ends = np.unique(np.concatenate((ends, *_added_ends(self.now_s, self._deadlines[0], self._deadlines[-1]))))
        return np.append(ends, inf)

    @cached_property
    def ends_list_s(self) -> list[float]:
        """The ends of the spans as a list, whose single elements are faster to read."""
        return self.ends_s.tolist()  # type: ignore[no-any-return]


def _added_ends(now_s: float, first_s: float, last_s: float) -> Iterator[Floats]:
    """Yield ends of spans whose length grows with the time from now.

    They are multiples of powers of two, so that later plans have the same ends.
    """
    until_s, spans = max(first_s, now_s + (last_s - now_s) / 2**_MAX_DOUBLINGS), _SPANS_BEFORE_FIRST
    begin_s = now_s
    while begin_s < last_s:
        if length_s := (until_s - now_s) / spans:  # 0 if the deadline differs from now only by a rounding error
            step_s = 2.0 ** floor(log2(length_s))
            yield step_s * np.arange(floor(begin_s / step_s) + 1, ceil(until_s / step_s))
        begin_s, until_s, spans = until_s, min(now_s + 2 * (until_s - now_s), last_s), 2 * _SPANS_PER_DOUBLING
