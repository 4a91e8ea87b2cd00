"""The end of a team's workers: those for which the task waits after the parameter server, and those that end too early.

Used by ``team``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from paceline.errors import RuntimeUnavailableError, UnsuitableCodeError
from paceline.runtime import Job
from paceline.train.progress import Progress

_NAMED_AFTER_S = 5.0  # time for workers to end after the parameter server; then the log names the missing workers
# All workers have the same model. After one has ended with it, the others have this many seconds to end.
_SURPLUS_GRACE_S = 60.0


class TeamEnd:
    """The time from the end of the parameter server until the workers' code after the loop has ended.

    Parameters
    ----------
    began_s:
        When the parameter server had ended, in seconds of a monotonic clock.
    """

    def __init__(self, began_s: float) -> None:
        self._began_s = began_s
        self._named: set[str] = set()  # workers with their states, as named in the log
        self._succeeded_s: float | None = None  # when the first worker had succeeded

    def wait_longer(self, workers: Mapping[str, Job], running: Collection[str], now_s: float) -> tuple[bool, list[str]]:
        """Return whether the ``running`` workers are no longer needed, and new lines for the task's log."""
        lines = []
        waited_s = now_s - self._began_s
        if waited_s >= _NAMED_AFTER_S:
            states = {f"{name} ({_state(workers[name])})" for name in running}
            if not self._named.issuperset(states):
                lines.append(f"training ended {waited_s:.0f} s ago: waiting for the end of {', '.join(sorted(states))}")
            self._named |= states
        ended = [job.status() for name, job in workers.items() if name not in running]
        if not any(status.state == "exited" and status.exit_code == 0 for status in ended):
            return False, lines
        self._succeeded_s = now_s if self._succeeded_s is None else self._succeeded_s
        if now_s - self._succeeded_s < _SURPLUS_GRACE_S:
            return False, lines
        lines.append(f"another worker's result is complete: ending {', '.join(running)} without a result")
        return True, lines


def _state(worker: Job) -> str:
    try:
        return worker.status().reason or "running"
    except RuntimeUnavailableError:  # its machine may be down, while the others' respond
        return "does not respond"


def check_loops(server: Progress | None, workers: Sequence[Job], *, has_loop: bool) -> None:
    """Raise UnsuitableCodeError if the script of every worker has ended with exit code 0 before the end of training.

    The parameter server would wait for ten minutes. A worker that has just learned that training is over may end before
    the server's last line, so only a line that is newer than the end of all workers counts.

    Parameters
    ----------
    server:
        The newest progress of the parameter server.
    workers:
        The workers that have not been told to leave.
    has_loop:
        Whether one of the workers has started a loop over ``track(...)``.
    """
    if server is None or server.done >= server.total or not workers or not all(job.wait(0.0) for job in workers):
        return
    for status in [job.status() for job in workers]:
        ended_well = status.state == "exited" and status.exit_code == 0 and not status.stopped
        if not ended_well or status.finished_s is None or status.finished_s >= server.wall_s:
            return
    message = "ended without a loop over track(...), expected one with at least one batch"
    if has_loop or server.done:
        message = "left its loop over track(...) before the end of training, expected stop_early() before a break"
    raise UnsuitableCodeError(f"worker: the script {message}", 0)
