"""How many threads make the most of a share of the processor, found by trying. Asked by ``_threads``."""

from __future__ import annotations

import math
from dataclasses import dataclass

# One look at a thread count covers at least so much; the first batch after a change, which sets things up, is left out.
_LOOK_S = 1.0
_LOOK_BATCHES = 4
# Trying takes at most this share of the time.
_TRIAL_SHARE = 0.1
# What was seen so long ago may have changed, and is looked at again if it was nearly as good.
_STALE_S = 120.0
_NEARLY, _HOPELESS = 0.8, 0.75
# So much better another count must be: speeds differ by that from one second to the next.
_BETTER = 1.04
# A quota leaves a process up to a tenth less than it says, lost between two looks of the scheduler.
_THROTTLED = 0.85
_NEWEST = 0.4  # weight of the newest look


@dataclass
class _Seen:
    """What was seen of a thread count: batches for each CPU second, and cores used where nothing held it back."""

    batches_per_cpu_s: float
    cores: float
    at_s: float

    def speed(self, share: float) -> float:
        return self.batches_per_cpu_s * min(share, self.cores)


class ThreadChoice:
    """Chooses the thread count that makes the most batches of a share.

    As many threads as the share has cores, rounded up, is where it begins. That is not always best: threads wait for
    each other, so one more than that may use a share that would lie idle; and a second thread may cost a small model
    more than it brings. So the counts beside the best one known are tried for a second each.

    With ``t`` threads on a share ``q`` a training makes ``e(t) * min(q, u(t))`` batches a second, where ``e`` is
    batches for each second of CPU time and ``u`` the cores that ``t`` threads keep busy. Both are measured, so what was
    seen on one share tells about others.

    Parameters
    ----------
    cores:
        Cores of the machine: never more threads than so many.
    """

    def __init__(self, cores: int) -> None:
        self._cores = cores
        self._seen: dict[int, _Seen] = {}
        self._threads = self._anchor = 0
        self._trial: int | None = None
        self._trials_s = 0.0
        self._began_s = 0.0
        # Batches, CPU seconds and time when the look under way began; None until the first batch after a change.
        self._from: tuple[int, float, float] | None = None
        self._changed_at = -1
        self._share_s = self._last_s = 0.0  # core-seconds to use since then, and when they were counted last

    def choose(self, share: float, done: int, cpu_s: float, now_s: float) -> int:
        """Return how many threads to use from here on.

        Parameters
        ----------
        share:
            Cores that the process may use now.
        done, cpu_s, now_s:
            Batches done, CPU seconds used by the process, and the time.
        """
        anchor = min(in_whole(share), self._cores)
        if anchor != self._anchor:
            self._move(anchor, share, done, now_s)
        if self._from is None:
            if done > self._changed_at:
                self._from, self._share_s, self._last_s = (done, cpu_s, now_s), 0.0, now_s
            return self._threads
        self._share_s, self._last_s = self._share_s + share * (now_s - self._last_s), now_s
        from_done, from_cpu_s, from_s = self._from
        passed_s, batches, used_s = now_s - from_s, done - from_done, cpu_s - from_cpu_s
        enough = passed_s >= _LOOK_S and batches >= _LOOK_BATCHES
        if used_s <= 0 or not (enough or self._is_hopeless(batches / passed_s, batches, share)):
            return self._threads
        self._note(batches / used_s, used_s / passed_s, self._share_s / passed_s, now_s)
        self._from, self._share_s = (done, cpu_s, now_s), 0.0
        if self._trial is not None:
            self._trials_s += passed_s
        best = self._best(share)
        self._trial = self._to_try(best, share, now_s)
        self._change(self._trial or best, done)
        return self._threads

    def _is_hopeless(self, batches_per_s: float, batches: int, share: float) -> bool:
        """Whether a trial goes so badly that it can end at once."""
        best = max((seen.speed(share) for seen in self._seen.values()), default=0.0)
        return self._trial is not None and batches >= 2 and batches_per_s < _HOPELESS * best

    def _move(self, anchor: int, share: float, done: int, now_s: float) -> None:
        """The share has another number of cores: go near it at once."""
        if not self._anchor:
            self._began_s = now_s
        self._anchor = anchor
        if not anchor / 2 <= self._threads <= 2 * anchor:
            near = [threads for threads in self._seen if anchor / 2 <= threads <= 2 * anchor]
            self._trial = None
            self._change(max(near, key=lambda threads: self._seen[threads].speed(share), default=anchor), done)

    def _change(self, threads: int, done: int) -> None:
        if threads != self._threads:
            self._threads, self._changed_at, self._from = threads, done, None

    def _note(self, batches_per_cpu_s: float, cores: float, share: float, now_s: float) -> None:
        before = self._seen.get(self._threads)
        held_back = cores > _THROTTLED * share
        if before is None:
            cores = float(self._threads) if held_back else cores
            self._seen[self._threads] = _Seen(batches_per_cpu_s, cores, now_s)
            return
        before.batches_per_cpu_s += _NEWEST * (batches_per_cpu_s - before.batches_per_cpu_s)
        if not held_back:
            before.cores += _NEWEST * (cores - before.cores)
        elif cores > before.cores:
            before.cores = cores
        before.at_s = now_s

    def _best(self, share: float) -> int:
        now = self._seen[self._threads].speed(share)
        best = max(self._seen, key=lambda threads: self._seen[threads].speed(share))
        return best if self._seen[best].speed(share) > _BETTER * now else self._threads

    def _to_try(self, best: int, share: float, now_s: float) -> int | None:
        """A count beside the best one that is not known (any more), if there is time for it."""
        if self._trials_s > _TRIAL_SHARE * (now_s - self._began_s):
            return None
        step = max(1, best // 4)
        for threads in (self._anchor, best + step, best - step):
            if not 1 <= threads <= min(self._cores, 2 * self._anchor):
                continue
            seen = self._seen.get(threads)
            if seen is None:
                return threads
            nearly = seen.speed(share) > _NEARLY * self._seen[best].speed(share)
            if nearly and now_s - seen.at_s > _STALE_S:
                return threads
        return None


def in_whole(share: float) -> int:
    """A share of the processor, rounded up to whole cores.

    >>> [in_whole(share) for share in (0.05, 1.0, 1.05)]
    [1, 1, 2]
    """
    # A share computed as quota / period may lie a rounding error above a whole number.
    return max(1, math.ceil(share - 1e-9))
