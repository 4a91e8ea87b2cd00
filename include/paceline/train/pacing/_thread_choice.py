"""Finds by trials the fastest thread count for a share of the processor. Called by ``threads``."""

from __future__ import annotations

from dataclasses import dataclass

from .share import whole_cores

# Minimum duration of a measurement, and its minimum number of batches. The slow first batch after a change of the
# thread count is excluded.
_MEASURE_S = 1.0
_MEASURE_BATCHES = 4
# Trials may take at most this fraction of the training time.
_MAX_TRIAL_FRACTION = 0.1
# Repeat a measurement that is older than ``_STALE_S`` if its speed was above ``_NEAR_BEST`` times the best speed.
_STALE_S = 120.0
_NEAR_BEST = 0.8
# End a trial early if its speed is below this fraction of the best speed.
_ABORT_BELOW = 0.75
# Change the thread count only for a speed-up above this factor: the speed varies by up to 4 % from second to second.
_MIN_IMPROVEMENT = 1.04
# A process that uses more than this fraction of its share is throttled: the scheduler wastes up to a tenth of a quota.
_THROTTLED = 0.85
_NEWEST_WEIGHT = 0.4  # weight of the newest measurement


@dataclass
class _Measurement:
    """Measured properties of a thread count: batches per CPU second, and the cores used when not throttled."""

    batches_per_cpu_s: float
    cores: float
    at_s: float

    def speed(self, share: float) -> float:
        return self.batches_per_cpu_s * min(share, self.cores)


class ThreadChoice:
    """Chooses the thread count with the most batches per second for a share of the processor.

    The first count is the share rounded up to whole cores. This is not always the best count: threads wait for each
    other, so an additional thread may use idle CPU time, and a second thread may slow a small model down. Therefore,
    each count near the best known count is tried for one second.

    With ``t`` threads on a share ``q``, a job trains ``e(t) * min(q, u(t))`` batches per second, where ``e(t)`` is the
    number of batches per CPU second and ``u(t)`` the number of cores that ``t`` threads keep busy. Measurements of
    ``e`` and ``u`` on one share also predict the speed on other shares.

    Parameters
    ----------
    cores:
        Cores of the machine, the largest thread count.
    """

    def __init__(self, cores: int) -> None:
        self._cores = cores
        self._measurements: dict[int, _Measurement] = {}
        self._threads = self._share_cores = 0
        self._trial: int | None = None
        self._trials_s = 0.0
        self._began_s = 0.0
        # Batches, CPU seconds and time at the start of the measurement; ``None`` until the first batch after a change.
        self._start: tuple[int, float, float] | None = None
        self._changed_at = -1
        self._share_s = self._last_s = 0.0  # core-seconds available since ``_start``; time of the last update

    def choose(self, share: float, done: int, cpu_s: float, now_s: float) -> int:
        """Return the thread count to use now.

        Parameters
        ----------
        share:
            The share of the processor, in cores.
        done, cpu_s, now_s:
            Batches done, CPU seconds used by the process, and the time in seconds.
        """
        share_cores = min(whole_cores(share), self._cores)
        if share_cores != self._share_cores:
            self._change_share_cores(share_cores, share, done, now_s)
        if self._start is None:
            if done > self._changed_at:
                self._start, self._share_s, self._last_s = (done, cpu_s, now_s), 0.0, now_s
            return self._threads
        self._share_s, self._last_s = self._share_s + share * (now_s - self._last_s), now_s
        start_done, start_cpu_s, start_s = self._start
        elapsed_s, batches, used_s = now_s - start_s, done - start_done, cpu_s - start_cpu_s
        is_complete = elapsed_s >= _MEASURE_S and batches >= _MEASURE_BATCHES
        if used_s <= 0 or not (is_complete or self._should_abort(batches / elapsed_s, batches, share)):
            return self._threads
        self._record_measurement(batches / used_s, used_s / elapsed_s, self._share_s / elapsed_s, now_s)
        self._start, self._share_s = (done, cpu_s, now_s), 0.0
        if self._trial is not None:
            self._trials_s += elapsed_s
        best = self._best_count(share)
        self._trial = self._next_trial(best, share, now_s)
        self._set_threads(self._trial or best, done)
        return self._threads

    def _should_abort(self, batches_per_s: float, batches: int, share: float) -> bool:
        """Return whether the current trial is so slow that it should end early."""
        best = max((measured.speed(share) for measured in self._measurements.values()), default=0.0)
        return self._trial is not None and batches >= 2 and batches_per_s < _ABORT_BELOW * best

    def _change_share_cores(self, share_cores: int, share: float, done: int, now_s: float) -> None:
        """Set the number of whole cores in the share; if the thread count is far from it, change it at once."""
        if not self._share_cores:
            self._began_s = now_s
        self._share_cores = share_cores
        if not share_cores / 2 <= self._threads <= 2 * share_cores:
            near = [threads for threads in self._measurements if share_cores / 2 <= threads <= 2 * share_cores]
            self._trial = None
            best = max(near, key=lambda count: self._measurements[count].speed(share), default=share_cores)
            self._set_threads(best, done)

    def _set_threads(self, threads: int, done: int) -> None:
        if threads != self._threads:
            self._threads, self._changed_at, self._start = threads, done, None

    def _record_measurement(self, batches_per_cpu_s: float, cores: float, share: float, now_s: float) -> None:
        before = self._measurements.get(self._threads)
        throttled = cores > _THROTTLED * share
        if before is None:
            cores = float(self._threads) if throttled else cores
            self._measurements[self._threads] = _Measurement(batches_per_cpu_s, cores, now_s)
            return
        before.batches_per_cpu_s += _NEWEST_WEIGHT * (batches_per_cpu_s - before.batches_per_cpu_s)
        if not throttled:
            before.cores += _NEWEST_WEIGHT * (cores - before.cores)
        elif cores > before.cores:
            before.cores = cores
        before.at_s = now_s

    def _best_count(self, share: float) -> int:
        now = self._measurements[self._threads].speed(share)
        best = max(self._measurements, key=lambda threads: self._measurements[threads].speed(share))
        return best if self._measurements[best].speed(share) > _MIN_IMPROVEMENT * now else self._threads

    def _next_trial(self, best: int, share: float, now_s: float) -> int | None:
        """Return a thread count near ``best`` for a trial; ``None`` if none is needed or trials took too much time."""
        if self._trials_s > _MAX_TRIAL_FRACTION * (now_s - self._began_s):
            return None
        step = max(1, best // 4)
        for threads in (self._share_cores, best + step, best - step):
            if not 1 <= threads <= min(self._cores, 2 * self._share_cores):
                continue
            measured = self._measurements.get(threads)
            if measured is None:
                return threads
            near_best = measured.speed(share) > _NEAR_BEST * self._measurements[best].speed(share)
            if near_best and now_s - measured.at_s > _STALE_S:
                return threads
        return None
