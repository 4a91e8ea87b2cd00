"""Keeps torch's thread count in step with the cores that the process may use. Called by ``_loop`` between batches."""

from __future__ import annotations

import os
import sys
import time

from ._share import CpuShare
from ._thread_choice import ThreadChoice


class Threads:
    """Sets torch's thread count to what makes the most of the share of the processor.

    Parameters
    ----------
    fixed:
        A thread count to keep whatever the share is, or ``None`` to follow the share.
    share:
        Where the share is read.
    """

    def __init__(self, fixed: int | None, share: CpuShare) -> None:
        self._fixed = fixed
        self._share = share
        self._at_first: int | None = None
        self._choice = ThreadChoice(_usable_cores())

    def follow(self, done: int, now_s: float) -> None:
        """Look at the share now, with so many batches done. Without a limit, and without torch, nothing is touched."""
        torch = sys.modules.get("torch")
        if torch is None:
            return
        if self._fixed is not None:
            wanted = self._fixed
        else:
            share = self._share.read()
            if share is not None:
                wanted = self._choice.choose(share, done, time.process_time(), now_s)
            elif self._at_first is not None:  # there was a limit, and now there is none
                wanted = self._at_first
            else:
                return
        now = torch.get_num_threads()
        if self._at_first is None:
            self._at_first = now
        if wanted != now:
            torch.set_num_threads(wanted)


def current() -> int:
    """Return torch's thread count, 1 if torch is not imported."""
    torch = sys.modules.get("torch")
    return int(torch.get_num_threads()) if torch is not None else 1


def one_on_cpu() -> None:
    """Let this process of a data-parallel training compute with one thread, unless a GPU computes for it."""
    torch = sys.modules["torch"]
    if not torch.cuda.is_available():
        torch.set_num_threads(1)


def _usable_cores() -> int:
    """How many cores this process may run on."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        return os.cpu_count() or 1
