"""Names the process that data-parallel training waits for, and ends processes that are stopped. Started by ``_lead``.

An exchange of gradients blocks the lead's main thread until all processes have arrived, so a thread watches.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from paceline.train._values import log
from paceline.train.job import EXIT_DEVICE_LOST

from ._arrivals import SAME_CALLS
from ._pods import PodProcess

if TYPE_CHECKING:
    from ._process import ProcessLink
    from ._replica import Replica

_INTERVAL_S = 1.0
# The first message about a wait comes after this time, the next ones after three times as long each.
_FIRST_MESSAGE_S = 10.0
_GROWTH = 3.0
# Nothing in a job stops a process and continues it later, and a debugger does so within seconds.
_STOPPED_LIMIT_S = 60.0
# A process runs the same code up to the loop as the lead has run, perhaps with a busier disk and processor.
_SHORTEST_START_LIMIT_S, _START_LIMIT_FACTOR = 600.0, 10.0
# With NCCL, an exchange with a process that has ended may never return.
_ENDED_LIMIT_S = 30.0
# A process that waits for the next batch, or in another exchange, will never take part in the one in progress.
_NEVER_COMING_LIMIT_S = 20.0


class Watchdog:
    """Watches the processes of a lead, from a thread.

    Parameters
    ----------
    replica:
        The lead's copy of the model, which knows of the exchange in progress.
    active, starting:
        Return the processes of the group in the order of their ranks, and those that have not joined yet.
    own_start_s:
        Seconds that the lead needed up to the loop.
    """

    def __init__(
        self,
        replica: Replica,
        active: Callable[[], Sequence[ProcessLink]],
        starting: Callable[[], Sequence[ProcessLink]],
        own_start_s: float,
    ) -> None:
        self._replica, self._active, self._starting = replica, active, starting
        self._start_limit_s = max(_SHORTEST_START_LIMIT_S, _START_LIMIT_FACTOR * own_start_s)
        self._looks: Counter[object] = Counter()  # successive looks at which something was so
        self._stopped: list[ProcessLink] = []
        self._next_message_s: dict[object, float] = {}  # for each wait, the seconds until its next message
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="paceline-watchdog", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(_INTERVAL_S):
            self.look()

    def look(self) -> None:
        """Look at all processes once."""
        active, starting = list(self._active()), list(self._starting())
        before, self._looks = self._looks, Counter()

        def seconds(state: str, subject: object) -> float:
            """Return for how long it has been so. A paused job has no looks, but its clock goes on."""
            self._looks[state, subject] = before[state, subject] + 1
            return self._looks[state, subject] * _INTERVAL_S

        self._stopped = [process for process in (*active, *starting) if process.is_stopped]
        for process in self._stopped:
            if seconds("stopped", process) >= _STOPPED_LIMIT_S:
                process.kill(f"was stopped (SIGSTOP) for {_STOPPED_LIMIT_S:g} s and then killed")
        for process in starting:
            if not process.ready:
                self._watch_start(process, seconds("starting", process))
        self._watch_exchange(active, seconds)

    def _watch_start(self, process: ProcessLink, elapsed_s: float) -> None:
        if elapsed_s >= self._start_limit_s:
            process.kill(f"did not reach the loop within {self._start_limit_s:.0f} s and was killed")
        elif self._is_due(process, elapsed_s):
            log(f"the {self._names([process])} has been starting for {elapsed_s:.0f} s: training continues without it")

    def _watch_exchange(self, active: list[ProcessLink], seconds: Callable[[str, object], float]) -> None:
        arrivals = self._replica.arrivals
        since_s = None if arrivals is None else arrivals.waiting_since_s
        if arrivals is None or since_s is None:
            return
        missing = [active[rank - 1] for rank in arrivals.missing() if rank <= len(active)]
        missing = missing or [process for process in active if process in self._stopped] or active
        elapsed_s = seconds("exchange", since_s)
        for process in [active[rank - 1] for rank in arrivals.never_coming() if 0 < rank <= len(active)]:
            is_alive = process not in self._stopped and not process.has_ended
            if seconds("never coming", (since_s, process)) >= _NEVER_COMING_LIMIT_S and is_alive:
                log(f"data_parallel: the {self._names([process])} makes other exchanges: {SAME_CALLS}")
                process.kill("made other exchanges than the others and was killed")
        if missing and self._is_due(since_s, elapsed_s):
            log(f"training waits for the {self._names(missing)}, for {elapsed_s:.0f} s")
        if elapsed_s >= _ENDED_LIMIT_S:
            for process in missing:
                if process.has_ended:
                    log(f"data_parallel: {process.describe_end()}")
                    os._exit(EXIT_DEVICE_LOST if isinstance(process, PodProcess) and process.is_lost() else 1)

    def _is_due(self, subject: object, elapsed_s: float) -> bool:
        due_s = self._next_message_s.get(subject, _FIRST_MESSAGE_S)
        if elapsed_s + _INTERVAL_S <= due_s:  # otherwise, the next look comes after the due time
            return False
        self._next_message_s[subject] = due_s * _GROWTH
        return True

    def _names(self, processes: list[ProcessLink]) -> str:
        stopped = [process for process in processes if process in self._stopped]
        devices = " and ".join(str(process.device) for process in processes)
        text = f"process on device {devices}" if len(processes) == 1 else f"processes on devices {devices}"
        return f"{text} (stopped by SIGSTOP)" if stopped == processes else text
