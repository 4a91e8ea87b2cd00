"""Turns of several jobs on a GPU: a lock for each GPU. The kernel releases the locks of a process that ends.

Called by ``gpu_share``.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Sequence

from paceline.train._values import log

_POLL_S = 0.0005  # a blocking call could not be ended by SIGTERM
# A job that holds its turn for so long validates, has such long batches, or is suspended. Others wait no longer.
_LONGEST_WAIT_S = 2.0


class GpuTurns:
    """The turns on all GPUs of this job.

    Parameters
    ----------
    paths:
        A file or folder for each GPU, which only needs to be readable. All jobs on a GPU lock the same one.
    clock, sleep:
        The time in seconds, and a function that waits.
    ending:
        Returns whether the process has to end soon, and must not wait.
    """

    def __init__(
        self,
        paths: Sequence[str],
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
        ending: Callable[[], bool] = lambda: False,
    ) -> None:
        self._paths = sorted(paths)  # two jobs with several GPUs must not wait for each other
        self._clock, self._sleep, self._is_ending = clock, sleep, ending
        self._held: list[int] = []
        self._beside = False  # whether the job computes beside another one that keeps its turn
        self._warned = False

    @property
    def count(self) -> int:
        """The number of GPUs."""
        return len(self._paths)

    def take(self) -> None:
        """Wait for the turn on all GPUs, but not for a job that keeps its turn for long."""
        until_s = self._clock() + (0.0 if self._beside else _LONGEST_WAIT_S)
        while not self._try():
            now_s = self._clock()
            if now_s >= until_s or self._is_ending():
                self.release()
                self._beside = now_s >= until_s
                if self._beside:
                    self._warn(f"another job keeps its turn on the GPU for more than {_LONGEST_WAIT_S:g} s")
                return
            self._sleep(_POLL_S)
        self._beside = False

    def release(self) -> None:
        """End the turn."""
        for handle in self._held:
            # A process that was forked during the turn, for example to load data for a validation, has the file open.
            fcntl.flock(handle, fcntl.LOCK_UN)
            os.close(handle)
        self._held = []

    def _try(self) -> bool:
        """Lock the GPUs that are not locked yet, in order; return whether all are locked."""
        try:
            for path in self._paths[len(self._held) :]:
                # A process that a data loader forks between two turns must not inherit the lock: open the path anew.
                handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BaseException:
                    os.close(handle)
                    raise
                self._held.append(handle)
        except BlockingIOError:
            return False
        except OSError as error:  # the file system has no locks, or the path was removed
            self._warn(f"the turns on the GPU cannot be taken ({error})")
        return True

    def _warn(self, problem: str) -> None:
        if not self._warned:
            self._warned = True
            log(f"{problem}: training continues beside other jobs, and may get less than its share")
