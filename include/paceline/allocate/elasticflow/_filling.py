"""Progressive filling: the smallest share of a pool that meets a deadline, in the capacity left by other jobs.

Plain lists suffice: a pool has few periods, and a search stops in the period in which the job ends.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, inf

from paceline.allocate._speeds import Speeds

_ROUNDING = 1e-9


class ScalingCurve:
    """The useful numbers of devices of a job, and its speeds on them."""

    def __init__(self, speeds: Speeds) -> None:
        self.levels = [(count, speeds.at(count)) for count in speeds.useful]
        self.speed_of = dict([(0, 0.0), *self.levels])
        # The largest useful number of devices up to each number.
        self.floor = [0] * self.levels[0][0]
        for (count, _), (following, _) in pairwise([*self.levels, (self.levels[-1][0] + 1, 0.0)]):
            self.floor += [count] * (following - count)


@dataclass(frozen=True, slots=True)
class Demand:
    """What a job needs: work before a deadline, and the state from which it continues.

    Parameters
    ----------
    curve:
        Speeds of the job.
    work:
        Its remaining work.
    deadline_s:
        Its deadline.
    held:
        Its current number of devices.
    pause_left_s:
        Seconds until the job makes progress again after its last change of devices.
    """

    curve: ScalingCurve
    work: float
    deadline_s: float
    held: int = 0
    pause_left_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Share:
    """The devices of a job over time: ``counts[k]`` from ``starts_s[k]`` until the next start, none from ``free_s``.

    The job ends at ``ends_s``; its devices become free at the end of that slot, ``free_s``.
    """

    starts_s: list[float]
    counts: list[int]
    ends_s: float
    free_s: float

    @property
    def devices_now(self) -> int:
        """Number of devices at the start."""
        return self.counts[0]

    @property
    def device_s(self) -> float:
        """Device seconds until the end of the job."""
        periods = zip(self.counts, pairwise([*self.starts_s, self.ends_s]), strict=True)
        return sum(count * (until_s - from_s) for count, (from_s, until_s) in periods)

    @property
    def next_change_s(self) -> float:
        """Time of the first change of the number of devices before the end; infinite if there is none."""
        return self.starts_s[1] if len(self.starts_s) > 1 else inf

    def after(self, now_s: float) -> Share:
        """Return the share from ``now_s``, which must be before ``free_s``."""
        index = bisect_right(self.starts_s, now_s) - 1
        return Share([now_s, *self.starts_s[index + 1 :]], self.counts[index:], self.ends_s, self.free_s)


class Pool:
    """The free devices of a pool over time, as a step function from now on.

    Parameters
    ----------
    devices:
        Number of devices.
    now_s:
        The time in seconds.
    slot_s:
        Length of a slot; a job keeps its devices until the end of the slot in which it ends.
    pause_s:
        Seconds without progress after each change of a job's number of devices.

    Examples
    --------
    The example of the paper: two jobs hold three of four devices in the first slot. A limit of two devices is too slow,
    but one device in the first slot and four in the second slot are enough.

    >>> pool = Pool(4, 0.0, slot_s=1.0, pause_s=0.0)
    >>> pool.reserve(Share([0.0], [3], ends_s=1.0, free_s=1.0))
    >>> curve = ScalingCurve(Speeds((1, 2, 4), (1.0, 1.5, 2.0)))
    >>> share = pool.fill(Demand(curve, work=3.0, deadline_s=2.0))
    >>> share.counts, share.ends_s
    ([1, 4], 2.0)
    >>> pool.fill(Demand(curve, work=3.1, deadline_s=2.0)) is None
    True
    """

    def __init__(self, devices: int, now_s: float, slot_s: float, pause_s: float) -> None:
        self.now_s = now_s
        self._slot_s, self._pause_s = slot_s, pause_s
        self._starts_s = [now_s]
        self._free = [devices]

    @property
    def free_now(self) -> int:
        """Number of free devices now."""
        return self._free[0]

    @property
    def overbooked(self) -> bool:
        """Whether more devices are reserved than the pool has."""
        return min(self._free) < 0

    @property
    def next_change_s(self) -> float:
        """Time of the next change of the number of free devices; infinite if there is none."""
        return self._starts_s[1] if len(self._starts_s) > 1 else inf

    def fill(self, demand: Demand, first: tuple[int, float] | None = None) -> Share | None:
        """Return the minimum satisfactory share of a job; ``None`` if the job cannot meet its deadline.

        In each period the job uses the largest number of free devices up to a limit. The limit starts at the smallest
        number of devices and rises until the job meets its deadline. With ``first=(count, until_s)``, the job uses
        exactly ``count`` devices, which must be free, until ``until_s``.
        """
        within_s = demand.deadline_s - self.now_s
        floor = demand.curve.floor
        starts_s, free, fixed = self._starts_s, self._free, 0
        if first is not None:
            fixed = bisect_left(starts_s, first[1])
            if first[1] < inf and starts_s[fixed - 1 : fixed + 1][-1] != first[1]:
                starts_s = [*starts_s[:fixed], first[1], *starts_s[fixed:]]
                free = [*free[:fixed], free[fixed - 1], *free[fixed:]]
        for limit, speed in demand.curve.levels:
            if first is None and speed * within_s < demand.work * (1 - _ROUNDING):
                continue
            counts = (
                first[0] if first is not None and number < fixed else floor[min(count, limit)]
                for number, count in enumerate(free)
            )
            share = self._share(demand, starts_s, counts, demand.deadline_s)
            if share is not None:
                return share
        return None

    def check(self, demand: Demand, share: Share) -> Share | None:
        """Return the share with the job's end recalculated; ``None`` if the share does not meet the deadline."""
        if any(count not in demand.curve.speed_of for count in share.counts):
            return None  # the speeds of the job have changed
        found = self._share(demand, share.starts_s, share.counts, min(share.free_s, demand.deadline_s))
        return None if found is None else Share(found.starts_s, found.counts, found.ends_s, share.free_s)

    def reserve(self, share: Share) -> None:
        """Subtract the devices of a share."""
        self._add(share, -1)

    def release(self, share: Share) -> None:
        """Add the devices of a share."""
        self._add(share, 1)

    def _add(self, share: Share, sign: int) -> None:
        for count, (from_s, until_s) in zip(share.counts, pairwise([*share.starts_s, share.free_s]), strict=True):
            first, last = self._split(from_s), self._split(until_s)
            for index in range(first, last):
                self._free[index] += sign * count
        # Neighbouring periods with equal numbers become one.
        first, last = bisect_right(self._starts_s, share.starts_s[0]) - 1, bisect_left(self._starts_s, share.free_s)
        for index in range(min(last, len(self._free) - 1), max(first, 1) - 1, -1):
            if self._free[index] == self._free[index - 1]:
                del self._free[index], self._starts_s[index]

    def _split(self, at_s: float) -> int:
        """Return the index of the period that starts at ``at_s``; split a period if there is none."""
        index = bisect_left(self._starts_s, at_s)
        if index == len(self._starts_s) or self._starts_s[index] != at_s:
            self._starts_s.insert(index, at_s)
            self._free.insert(index, self._free[index - 1])
        return index

    def _share(self, demand: Demand, starts_s: list[float], counts: Iterable[int], until_s: float) -> Share | None:
        """Return the share with these counts if it completes the work by ``until_s``, which is at most the deadline."""
        left, rounding = max(demand.work, _ROUNDING), max(demand.work, _ROUNDING) * _ROUNDING
        speed_of, before, pause_s = demand.curve.speed_of, demand.held, demand.pause_left_s
        begins_s: list[float] = []
        held: list[int] = []
        last = len(starts_s) - 1
        for number, count in enumerate(counts):
            from_s = starts_s[number]
            if from_s >= until_s:
                return None
            if count != before:
                before, pause_s = count, self._pause_s
            if not held or count != held[-1]:
                begins_s.append(from_s)
                held.append(count)
            to_s = until_s if number == last else min(starts_s[number + 1], until_s)
            length_s = to_s - from_s
            if length_s > pause_s:
                done = speed_of[count] * (length_s - pause_s)
                if done >= left - rounding:
                    ends_s = min(from_s + pause_s + left / speed_of[count], to_s)
                    return Share(begins_s, held, ends_s, self._free_s(ends_s, count))
                left -= done
                pause_s = 0.0
            else:
                pause_s -= length_s
        return None

    def _free_s(self, ends_s: float, count: int) -> float:
        """Return the end of the slot that contains ``ends_s``, or an earlier time at which another job needs devices.

        Slots begin now, so shares of an earlier decision may begin within a slot.
        """
        slot_ends_s = self.now_s + max(1, ceil((ends_s - self.now_s) / self._slot_s - _ROUNDING)) * self._slot_s
        index = bisect_left(self._starts_s, ends_s)
        while index < len(self._starts_s) and self._starts_s[index] < slot_ends_s:
            if self._free[index] < count:
                return self._starts_s[index]
            index += 1
        return slot_ends_s
