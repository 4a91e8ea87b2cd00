"""`airflow dags test` runs tasks in its own process, whose stand-in for Airflow's supervisor has one request at a time.

While it answers one, it hides itself from the rest of the process. A request that another thread makes then fails, and
two that overlap can leave it hidden.
"""

from __future__ import annotations

import threading
from typing import Any

from paceline.run import LiveState


def is_dags_test() -> bool:
    """Return whether `airflow dags test` runs the task, in its own process."""
    from airflow.sdk.execution_time import task_runner

    return type(getattr(task_runner, "SUPERVISOR_COMMS", None)).__name__ == "InProcessSupervisorComms"


class OneAtATime(LiveState):
    """A task state store whose requests, and other work under ``turn``, wait for one another.

    >>> from paceline.run import MemoryState
    >>> state = OneAtATime(MemoryState(deadline="20m"))
    >>> with state.turn:
    ...     state.set("ceiling", 1.5)
    >>> state.get("ceiling")
    1.5
    """

    turn = threading.RLock()

    def __init__(self, store: LiveState) -> None:
        self._store = store

    def get(self, key: str) -> Any:
        """Return the value of a key; ``None`` if the key is missing."""
        with self.turn:
            return self._store.get(key)

    def set(self, key: str, value: Any) -> None:
        """Write a value."""
        with self.turn:
            self._store.set(key, value)

    def delete(self, key: str) -> None:
        """Delete a key; a missing key is not an error."""
        with self.turn:
            self._store.delete(key)
