"""Which processes of a data-parallel group have arrived at an exchange.

Used by ``_replica``, ``_follower`` and ``_watchdog``.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Literal, get_args

SAME_CALLS = (
    "each process must make the same calls in each batch, so a `continue` or an additional call must not depend on the "
    "loss of its slice, or on a random number (which differs between the processes)"
)
Kind = Literal["gradients", "comparison", "counters", "accumulation", "end of a group", "join"]
_POLL = timedelta(seconds=1)
# A process at the loop answers within milliseconds; one that has not joined by then is ended.
_JOIN_TIMEOUT_S = 60.0


class Arrivals:
    """Counts, in memory that all processes of a group share, the exchanges that each process has arrived at.

    It also contains which processes have done their batch and are idle until the first process goes on. The processes
    of a group in several pods share no memory: each knows only its own exchanges, and all others count as missing.

    Parameters
    ----------
    file:
        Path of the shared file, which the first process of the group to arrive creates; ``None`` for memory of its own.
    rank, world_size:
        The process, and the number of processes.

    Examples
    --------
    >>> from tempfile import NamedTemporaryFile
    >>> file = NamedTemporaryFile()
    >>> here, there = Arrivals(file.name, 0, 2), Arrivals(file.name, 1, 2)
    >>> here.arrive(); here.missing()
    [1]
    >>> there.arrive(); here.missing()
    []
    """

    def __init__(self, file: str | None, rank: int, world_size: int) -> None:
        size = 3 * 8 * world_size
        if file is None:
            memory = mmap.mmap(-1, size)
        else:
            with open(file, "a+b") as shared:
                shared.truncate(size)
                memory = mmap.mmap(shared.fileno(), size)
        numbers = memoryview(memory).cast("Q")
        self._counts, self._idle, self._kinds = (numbers[k * world_size : (k + 1) * world_size] for k in range(3))
        self._rank = rank
        self.waiting_since_s: float | None = None
        """When this process arrived at the exchange in progress, in monotonic time; ``None`` between exchanges."""

    @property
    def count(self) -> int:
        """Number of exchanges of this process."""
        return self._counts[self._rank]

    @contextmanager
    def idle(self) -> Iterator[None]:
        """Record that this process is idle during the body."""
        self._idle[self._rank] = 1
        yield
        self._idle[self._rank] = 0

    def arrive(self, kind: Kind = "gradients") -> None:
        """Record that this process has arrived at an exchange of this kind."""
        self._kinds[self._rank] = get_args(Kind).index(kind)
        self._counts[self._rank] += 1
        self.waiting_since_s = time.monotonic()

    def leave(self) -> None:
        """Record that the exchange is over."""
        self.waiting_since_s = None

    @contextmanager
    def exchange(self, kind: Kind) -> Iterator[None]:
        """Record an exchange that the body makes."""
        self.arrive(kind)
        yield
        self.leave()

    def missing(self) -> list[int]:
        """Return the ranks that have not arrived at the exchange that this process has arrived at."""
        own = self._counts[self._rank]
        return [rank for rank, count in enumerate(self._counts) if count < own]

    def never_coming(self) -> list[int]:
        """Return the ranks that are idle, or at an exchange of another kind, instead of at that of this process."""
        missing, own = self.missing(), self._kinds[self._rank]
        return [rank for rank, kind in enumerate(self._kinds) if (self._idle[rank] if rank in missing else kind != own)]


class IncompleteGroup(RuntimeError):
    """Some processes did not join. ``ranks`` are theirs."""

    def __init__(self, ranks: list[int]) -> None:
        super().__init__(f"data_parallel: the processes of rank {ranks} did not join")
        self.ranks = ranks


def gather(store: Any, rank: int, world_size: int, has_ended: Callable[[int], bool]) -> bool:
    """Return whether all processes have come to join the group. The first process decides.

    Raises ``IncompleteGroup`` in the first process if one of the others has ended or does not come in time.
    """
    store.set(f"rank-{rank}", "ready")
    if rank:
        store.wait(["decision"], timedelta(seconds=2 * _JOIN_TIMEOUT_S))
        return bool(store.get("decision") == b"join")
    deadline_s = time.monotonic() + _JOIN_TIMEOUT_S
    waited_for = list(range(1, world_size))
    while waited_for and time.monotonic() < deadline_s and not any(map(has_ended, waited_for)):
        try:
            store.wait([f"rank-{waited_for[0]}"], _POLL)
        except RuntimeError:  # not yet
            continue
        del waited_for[0]
    missing = [other for other in waited_for if has_ended(other) or not store.check([f"rank-{other}"])]
    store.set("decision", "abandon" if missing else "join")
    if missing:
        raise IncompleteGroup(missing)
    return True
