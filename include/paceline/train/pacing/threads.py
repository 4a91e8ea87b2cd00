"""Adapts torch's thread count to the cores that the process may use. Called by ``_loop`` between batches."""

from __future__ import annotations

import os
import sys
import time

from ._thread_choice import ThreadChoice
from .share import CpuShare


class Threads:
    """Sets torch's thread count to the fastest count for the share of the processor.

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
        self._choice = ThreadChoice(_usable_cores())

    def adapt(self, done: int, now_s: float) -> None:
        """Adapt the thread count to the share after ``done`` batches; without a limit, use the initial count."""
        torch = sys.modules.get("torch")
        if torch is None:
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
        now = torch.get_num_threads()
        if self._initial is None:
            self._initial = now
        if wanted != now:
            torch.set_num_threads(wanted)


def thread_count() -> int:
    """Return torch's thread count, 1 if torch is not imported."""
    torch = sys.modules.get("torch")
    return int(torch.get_num_threads()) if torch is not None else 1


def use_one_thread_on_cpu() -> None:
    """Limit this data-parallel process to one thread, unless it computes on a GPU."""
    torch = sys.modules["torch"]
    if not torch.cuda.is_available():
        torch.set_num_threads(1)


def _usable_cores() -> int:
    """Return the number of cores that this process may run on."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        return os.cpu_count() or 1
