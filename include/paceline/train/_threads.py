"""Keeps torch's thread count in step with the cores that the process may use. Called by ``_loop`` between batches."""

from __future__ import annotations

import math
import os
import sys

from ._share import CpuShare


class Threads:
    """Sets torch's thread count to the share of the processor, rounded up.

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

    def follow(self) -> None:
        """Look at the share now. Without a limit, and without torch, nothing is touched."""
        torch = sys.modules.get("torch")
        if torch is None:
            return
        if self._fixed is not None:
            wanted = self._fixed
        else:
            share = self._share.read()
            if share is not None:
                wanted = threads_for(share, _usable_cores())
            elif self._at_first is not None:  # there was a limit, and now there is none
                wanted = self._at_first
            else:
                return
        now = torch.get_num_threads()
        if self._at_first is None:
            self._at_first = now
        if wanted != now:
            torch.set_num_threads(wanted)


def threads_for(share: float, cores: int) -> int:
    """Threads for a share of so many cores on a machine of ``cores``.

    >>> [threads_for(share, cores=4) for share in (0.05, 1.0, 1.05, 2.5, 64)]
    [1, 1, 2, 3, 4]
    """
    # A share computed as quota / period may lie a rounding error above a whole number.
    return max(1, min(cores, math.ceil(share - 1e-9)))


def current() -> int:
    """Return torch's thread count, 1 if torch is not imported."""
    torch = sys.modules.get("torch")
    return int(torch.get_num_threads()) if torch is not None else 1


def _usable_cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        return os.cpu_count() or 1
