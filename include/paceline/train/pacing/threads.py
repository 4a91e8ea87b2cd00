"""Adapts the thread count of torch or of another library to the cores that the process may use.

``_loop`` calls it between batches. An adapter sets ``library_pool`` while its library trains.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from ._thread_choice import ThreadChoice
from .share import CpuShare


@dataclass
class ThreadPool:
    """The threads of a library: their ``count`` and the function that changes it."""

    count: int
    set_count: Callable[[int], object]

    def resize(self, count: int) -> None:
        """Change the thread count."""
        self.set_count(count)
        self.count = count


library_pool: ThreadPool | None = None


class Threads:
    """Sets the thread count to the fastest count for the share of the processor.

    Parameters
    ----------
    fixed:
        A constant thread count; ``None`` adapts the count to the share.
    share:
        The share of the processor, by default that of this process.
    """

    def __init__(self, fixed: int | None, share: CpuShare | None = None) -> None:
        self._fixed = fixed
        self.share = share or CpuShare()
        self._initial: int | None = None
        self._choice = ThreadChoice(usable_cores())

    def adapt(self, done: int, now_s: float) -> None:
        """Adapt the thread count to the share after ``done`` batches; without a limit, use the initial count."""
        pool = _pool()
        if pool is None:
            return
        if self._fixed is not None:
            wanted = self._fixed
        else:
            share = self.share.read()
            if share is not None:
                wanted = self._choice.choose(share, done, time.process_time(), now_s)
            elif self._initial is not None:  # the limit was removed
                wanted = self._initial
            else:
                return
        if self._initial is None:
            self._initial = pool.count
        if wanted != pool.count:
            pool.resize(wanted)


def thread_count() -> int:
    """Return the number of threads that the training library uses; 1 if it is unknown."""
    pool = _pool()
    return pool.count if pool is not None else 1


def use_one_thread_on_cpu() -> None:
    """Limit this data-parallel process to one thread, unless it computes on a GPU."""
    torch = sys.modules["torch"]
    if not torch.cuda.is_available():
        torch.set_num_threads(1)


def usable_cores() -> int:
    """Return the number of cores that this process may run on."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        return os.cpu_count() or 1


def _pool() -> ThreadPool | None:
    """Return the pool of the adapter's library, else torch's pool; ``None`` without torch."""
    torch = sys.modules.get("torch")
    if library_pool is not None or torch is None:
        return library_pool
    return ThreadPool(int(torch.get_num_threads()), torch.set_num_threads)
