"""What the other tasks of a distributed training say about this one: whether its job can still be of use.

Asked by the control loop through ``_host``, and while a worker waits for its server.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from paceline.errors import PacelineError

# States of tasks that will not run again by themselves.
FAILED = frozenset({"failed", "upstream_failed", "skipped", "removed"})
_INTERVAL_S = 5.0


def task_states(ti: Any, task_ids: list[str]) -> Mapping[str, Any]:
    """Return the states of tasks of the same run, by task id."""
    found: Mapping[str, Mapping[str, Any]] = ti.get_task_states(
        dag_id=ti.dag_id, task_ids=task_ids, run_ids=[ti.run_id]
    )
    return {name: None if state is None else str(state) for name, state in found.get(ti.run_id, {}).items()}


class Question:
    """Asks Airflow every five seconds, in a thread, so that an Airflow that answers slowly does not delay control.

    Parameters
    ----------
    ask:
        Function of the job's stage that raises a ``PacelineError`` if the job can be of no use any more.
    """

    def __init__(self, ask: Callable[[str], None]) -> None:
        self._ask = ask
        self._thread: threading.Thread | None = None
        self._next_s = 0.0
        self._answer: tuple[str, PacelineError] | None = None

    def check(self, stage: str) -> None:
        """Raise the error of the newest answer that was given for this stage."""
        if self._answer is not None and self._answer[0] == stage:
            raise self._answer[1]
        if time.monotonic() < self._next_s or (self._thread is not None and self._thread.is_alive()):
            return
        self._next_s = time.monotonic() + _INTERVAL_S
        self._thread = threading.Thread(target=self._run, args=(stage,), name="paceline-others", daemon=True)
        self._thread.start()

    def _run(self, stage: str) -> None:
        self._answer = None
        try:
            self._ask(stage)
        except PacelineError as error:
            self._answer = stage, error
        except Exception:  # Airflow does not answer: ask again
            return
