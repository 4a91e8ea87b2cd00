"""Which processes of a data-parallel group have arrived at an exchange. Used by ``_replica`` and ``_watchdog``."""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

_POLL = timedelta(seconds=1)
# A process at the loop answers within milliseconds; one that has not joined by then is ended.
_JOIN_TIMEOUT_S = 60.0


class Arrivals:
    """Counts, in memory that all processes of a group share, the exchanges that each process has arrived at.

    Parameters
    ----------
    file:
        Path of the shared file, which the first process of the group to arrive creates.
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

    def __init__(self, file: str, rank: int, world_size: int) -> None:
        size = 8 * world_size
        with open(file, "a+b") as shared:
            shared.truncate(size)
            self._counts = memoryview(mmap.mmap(shared.fileno(), size)).cast("Q")
        self._rank = rank
        self.waiting_since_s: float | None = None
        """When this process arrived at the exchange in progress, in monotonic time; ``None`` between exchanges."""

    def arrive(self) -> None:
        """Record that this process has arrived at an exchange."""
        self._counts[self._rank] += 1
        self.waiting_since_s = time.monotonic()

    def leave(self) -> None:
        """Record that the exchange is over."""
        self.waiting_since_s = None

    @contextmanager
    def exchange(self) -> Iterator[None]:
        """Record an exchange that the body makes."""
        self.arrive()
        yield
        self.leave()

    def missing(self) -> list[int]:
        """Return the ranks that have not arrived at the exchange that this process has arrived at."""
        own = self._counts[self._rank]
        return [rank for rank, count in enumerate(self._counts) if count < own]


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
