"""Computes how many devices a job has held over time, from its stored history, for ``paceline.plugins.web.pools``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from paceline.contract import PaceSample, StoredHistory

INTERVALS = 240


@dataclass(frozen=True)
class Period:
    """The time from ``begin`` to ``end``, in ``INTERVALS`` intervals of equal length."""

    begin: datetime
    end: datetime

    @property
    def interval_s(self) -> float:
        """The length of an interval."""
        return (self.end - self.begin).total_seconds() / INTERVALS

    def means(self, samples: Sequence[tuple[datetime, float]], until: datetime) -> list[float]:
        """Return the mean of a value in each interval.

        The value stays that of a sample until the next one, and is 0 before the first sample and after ``until``.

        >>> noon = datetime.fromisoformat("2030-01-01T12:00:00+00:00")
        >>> four_hours = Period(noon, noon + timedelta(hours=4))  # an interval is a minute
        >>> samples = [(noon - timedelta(minutes=5), 2.0), (noon + timedelta(seconds=90), 4.0)]
        >>> four_hours.means(samples, until=noon + timedelta(minutes=3))[:4]
        [2.0, 3.0, 4.0, 0.0]
        """
        sums = [0.0] * INTERVALS
        ends = [at for at, _ in samples[1:]] + [until]
        for (at, value), next_at in zip(samples, ends, strict=True):
            first, last = self._place(at), self._place(min(next_at, until))
            for index in range(int(first), INTERVALS):
                if last <= index:
                    break
                sums[index] += value * (min(last, index + 1) - max(first, index))
        return [round(mean, 4) for mean in sums]

    def _place(self, at: datetime) -> float:
        """Return a time as a number of intervals after ``begin``, limited to the period."""
        return min(max((at - self.begin).total_seconds() / self.interval_s, 0.0), float(INTERVALS))


def samples_of(pace: PaceSample, history: StoredHistory | None) -> list[tuple[datetime, float]]:
    """Return the allocations of a job over time, by its history and its newest sample."""
    t, devices = (StoredHistory().columns.index(name) for name in ("t_s", "devices"))
    rows = [] if history is None else history.samples
    known = [(s, held) for row in rows if (s := row[t]) is not None and (held := row[devices]) is not None]
    before = [(s, held) for s, held in sorted(known) if s < pace.t_s]
    return [(pace.origin + timedelta(seconds=s), held) for s, held in [*before, (pace.t_s, pace.devices)]]
