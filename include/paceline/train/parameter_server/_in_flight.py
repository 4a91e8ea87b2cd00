"""The batches that workers have: since when, how long a worker usually takes, and which of them are stuck."""

from __future__ import annotations

from paceline.train._values import log

# A batch that takes longer than this many times the worker's usual time is stuck.
_STUCK_FACTOR = 10.0
# The log names a worker for whose batch the others wait after these seconds, and this many times its usual time.
_NAMED_AFTER_S, _NAMED_FACTOR = 5.0, 3.0


class BatchesInFlight:
    """The leases of the workers' batches. All times are seconds of the monotonic clock.

    Parameters
    ----------
    stuck_s:
        Seconds after which a batch is stuck; at least ten times the worker's usual time for a batch.

    Examples
    --------
    >>> batches = BatchesInFlight(stuck_s=60.0)
    >>> batches.add(7, "gate-1", now_s=100.0)
    >>> batches.take_stuck(now_s=150.0), batches.take_stuck(now_s=161.0)
    ([], [(7, 'gate-1', 61.0)])
    >>> batches.take_silent_s("gate-1")
    61.0
    """

    def __init__(self, stuck_s: float) -> None:
        self._stuck_s = stuck_s
        self._since: dict[int, tuple[str, float]] = {}  # lease number to worker and start time
        self._usual_s: dict[str, float] = {}  # by worker
        self._silent_s: dict[str, float] = {}  # by worker that has not returned a batch
        self._awaited: set[str] = set()  # workers with batches for which the others wait, as named in the log

    def add(self, number: int, worker: str, now_s: float) -> None:
        """Note that a worker has got a batch."""
        self._since[number] = (worker, now_s)

    def heard_of(self, worker: str) -> None:
        """Note that a worker has returned a batch, maybe one that another worker has got meanwhile."""
        self._silent_s.pop(worker, None)

    def finish(self, number: int, now_s: float) -> None:
        """Note that a batch counts, and how long its worker took."""
        worker, since_s = self._since.pop(number)
        duration_s = now_s - since_s
        self._usual_s[worker] = 0.8 * self._usual_s.get(worker, duration_s) + 0.2 * duration_s

    def drop(self, worker: str) -> None:
        """Forget the batches of a worker that is gone."""
        self._since = {number: held for number, held in self._since.items() if held[0] != worker}

    def take_silent_s(self, worker: str) -> float | None:
        """Return how long a worker had a stuck batch, and forget it; ``None`` if it has returned one since."""
        return self._silent_s.pop(worker, None)

    def take_stuck(self, now_s: float) -> list[tuple[int, str, float]]:
        """Forget the stuck batches, and return their numbers, their workers and for how long they had them."""
        stuck = []
        for number, (worker, since_s) in list(self._since.items()):
            held_s = now_s - since_s
            if held_s > max(self._stuck_s, _STUCK_FACTOR * self._usual_s.get(worker, 0.0)):
                # The worker may just be slow: allow twice the time for its next batch, or it would never finish one.
                self._usual_s[worker] = 2 * held_s / _STUCK_FACTOR
                self._silent_s[worker] = held_s
                del self._since[number]
                stuck.append((number, worker, held_s))
        return stuck

    def name_awaited(self, now_s: float, *, all_wait: bool) -> None:
        """Log which workers have the batches for which all others wait, once for each wait.

        ``all_wait``: whether the other workers have nothing else to do.
        """
        awaited = set()
        for worker, since_s in self._since.values() if all_wait else ():
            if now_s - since_s > max(_NAMED_AFTER_S, _NAMED_FACTOR * self._usual_s.get(worker, 0.0)):
                awaited.add(worker)
        for worker in sorted(awaited - self._awaited):
            log(f"the other workers wait for a batch of {worker}, which has not answered for {_NAMED_AFTER_S:g} s")
        self._awaited = awaited
